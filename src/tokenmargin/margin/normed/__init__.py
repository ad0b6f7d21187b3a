"""Max-margin problems in norms other than the Euclidean: proposals by norm, one certificate for all of them."""
