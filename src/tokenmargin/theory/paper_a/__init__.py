"""*Attention with Trained Embeddings Provably Selects Important Tokens*: its stated results."""

from tokenmargin.theory.paper_a import first_step, gradients, only_important, selection

__all__ = ["CLAIMS"]

CLAIMS = (*first_step.CLAIMS, *gradients.CLAIMS, *selection.CLAIMS, *only_important.CLAIMS)
