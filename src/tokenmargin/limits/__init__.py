"""Where dynamics meet margins: the limit of a path, named and certified, and the shares of the starts that reach it."""

from tokenmargin.limits.by_method import MethodLimit
from tokenmargin.limits.constants import LimitConstants, limit_constants
from tokenmargin.limits.limit import Limit, limit_of
from tokenmargin.limits.next_token import NextTokenLimit, next_token_limit
from tokenmargin.limits.rates import Rate, Rates, rates
from tokenmargin.limits.shares import Basins, basin_map, basins, random_starts

__all__ = [
    "Basins",
    "Limit",
    "LimitConstants",
    "MethodLimit",
    "NextTokenLimit",
    "Rate",
    "Rates",
    "basin_map",
    "basins",
    "limit_constants",
    "limit_of",
    "next_token_limit",
    "random_starts",
    "rates",
]
