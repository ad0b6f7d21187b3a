"""*Mechanics of Next-Token Prediction with Self-Attention*: its stated results, in our own words.

The paper's text and numbering were not at hand: the statements are read off its abstract, public summaries and
notebooks, so they are named by what they say. Training is gradient descent on W for one layer of self-attention whose
head reads the weight of the next token off (the paper's assumption on the head), and whose next token is one of the
sequence (its assumption on labels; problems without it are refused).
"""

from tokenmargin.theory.paper_d.instance import NextTokenInstance
from tokenmargin.theory.paper_d.limit import CLAIMS

__all__ = ["CLAIMS", "NextTokenInstance"]
