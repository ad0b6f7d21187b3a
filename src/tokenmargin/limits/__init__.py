"""Where dynamics meet margins: the limit of a path, named and certified, and the shares of the starts that reach it."""

from tokenmargin.limits.by_method import MethodLimit as MethodLimit
from tokenmargin.limits.constants import LimitConstants as LimitConstants
from tokenmargin.limits.constants import limit_constants as limit_constants
from tokenmargin.limits.limit import Limit as Limit
from tokenmargin.limits.limit import limit_of as limit_of
from tokenmargin.limits.next_token import NextTokenLimit as NextTokenLimit
from tokenmargin.limits.next_token import next_token_limit as next_token_limit
from tokenmargin.limits.rates import Rate as Rate
from tokenmargin.limits.rates import Rates as Rates
from tokenmargin.limits.rates import rates as rates
from tokenmargin.limits.shares import Basins as Basins
from tokenmargin.limits.shares import basin_map as basin_map
from tokenmargin.limits.shares import basins as basins
from tokenmargin.limits.shares import random_starts as random_starts
