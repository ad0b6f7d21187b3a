"""One max-margin problem at a time: the general solver, the quick attempt before it, refinement and exact proofs."""
