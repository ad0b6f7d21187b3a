"""What is posed: tokens in a geometry, labelled problems, corpora of token ids, and standard instances."""

from tokenmargin.problem.problem_files import ProblemFileError as ProblemFileError
from tokenmargin.problem.problem_files import load_problem as load_problem
from tokenmargin.problem.problem_files import parse_problem as parse_problem
from tokenmargin.problem.token_problem import TokenProblem as TokenProblem
