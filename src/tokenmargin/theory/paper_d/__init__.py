"""*Mechanics of Next Token Prediction with Self-Attention*: its numbered statements.

One layer of self-attention with a fixed head reads `fW(X) = X' softmax(X W z)`, z being the last token, and the risk is
`L(W) = mean loss(<c_y, fW(X)>)`. The paper writes logits `x' W z`; here they are `z' W x`, so our W is its transpose.
Next tokens that are not in their sequence (outside Assumption 2) are refused when a problem is posed.
"""

from tokenmargin.theory.paper_d import convexity, descent, paths, risk
from tokenmargin.theory.paper_d.instance import NextTokenInstance as NextTokenInstance
from tokenmargin.theory.paper_d.instance import assumption1 as assumption1
from tokenmargin.theory.paper_d.instance import assumption2 as assumption2
from tokenmargin.theory.paper_d.instance import assumption3 as assumption3

CLAIMS = (*convexity.CLAIMS, *risk.CLAIMS, *descent.CLAIMS, *paths.CLAIMS)
