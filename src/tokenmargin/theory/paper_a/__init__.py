"""*Attention with Trained Embeddings Provably Selects Important Tokens*: its stated results."""

from tokenmargin.theory.paper_a import (
    classes,
    first_step,
    flow,
    gradients,
    leading_pairs,
    links,
    only_important,
)

CLAIMS = (
    *first_step.CLAIMS,
    *gradients.CLAIMS,
    *leading_pairs.CLAIMS,
    *classes.CLAIMS,
    *flow.CLAIMS,
    *links.CLAIMS,
    *only_important.CLAIMS,
)
ABOUT_A_SELECTION = frozenset({"A.lemma9", "A.lemma10", *(known.name for known in classes.CLAIMS)})
"""Claims about what any vector selects: the `selection` of their instance decides what is checked."""
