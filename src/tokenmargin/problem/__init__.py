"""What is posed: tokens in a geometry, labelled problems, corpora of token ids, and standard instances."""

from tokenmargin.problem.problem_files import ProblemFileError, load_problem, parse_problem
from tokenmargin.problem.token_problem import TokenProblem

__all__ = ["ProblemFileError", "TokenProblem", "load_problem", "parse_problem"]
