"""Results of our own on the two papers' questions: each with a proof in `docs/results`, and a claim that tests it."""

from tokenmargin.theory.results import constants

__all__ = ["CLAIMS"]

CLAIMS = (*constants.CLAIMS,)
