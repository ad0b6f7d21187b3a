"""*Attention with Trained Embeddings Provably Selects Important Tokens*: its stated results."""

from tokenmargin.theory.paper_a import (
    classes,
    first_step,
    flow,
    gradients,
    leading_pairs,
    lengths,
    links,
    only_important,
)

__all__ = ["CLAIMS"]

CLAIMS = (
    *first_step.CLAIMS,
    *gradients.CLAIMS,
    *leading_pairs.CLAIMS,
    *classes.CLAIMS,
    *flow.CLAIMS,
    *links.CLAIMS,
    *only_important.CLAIMS,
    *lengths.CLAIMS,
)
