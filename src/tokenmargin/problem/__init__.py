"""What is posed: tokens in a geometry, labelled problems, corpora of token ids, and standard instances."""

from tokenmargin.problem.token_problem import ProblemFileError, TokenProblem, load_problem, parse_problem

__all__ = ["ProblemFileError", "TokenProblem", "load_problem", "parse_problem"]
