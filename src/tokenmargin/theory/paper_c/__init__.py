"""*Transformers as Support Vector Machines*: its main statements, for W and for K and Q.

They are named by what they say: its numbering differs between editions. `W` is laid out as in the rest of the package,
`z' W k`, the transpose of the paper's.
"""

from tokenmargin.theory.paper_c import matrix_limits, several_tokens

CLAIMS = (*matrix_limits.CLAIMS, *several_tokens.CLAIMS)
