"""The max-margin problem of a whole corpus: pairs of tokens as constraints, cutting planes and interior points."""
