"""*Max-Margin Token Selection in Attention Mechanism*: its stated results."""

from tokenmargin.theory.paper_b import (
    gradients,
    joint_limits,
    local_cone,
    mixing,
    prompt_limits,
)

CLAIMS = (
    *gradients.CLAIMS,
    *local_cone.CLAIMS,
    *mixing.CLAIMS,
    *prompt_limits.CLAIMS,
    *joint_limits.CLAIMS,
)
