# %% [markdown]
# # From zero to the theorem
#
# Ten minutes, no prior knowledge: what attention computes, what training does to it, which direction it takes, and how
# one proves that. You need `pip install 'tokenmargin[report]'` and a notebook, or nothing but this page.
#
# ## One input, three tokens
#
# An input is a set of tokens. Each token has a *key* $k_t$, which says how it is found, and a *score* $\gamma_t$, which
# says how good it would be to find it. Attention has one vector $p$, the prompt. The *logit* of a token is
# $\langle k_t, p\rangle$, and its weight is
#
# $$s_t = \frac{e^{\langle k_t, p\rangle}}{\sum_u e^{\langle k_u, p\rangle}}.$$
#
# The output is the weighted mean of the scores, $f = \sum_t s_t \gamma_t$.

# %%
import numpy as np

import tokenmargin as tm

problem = tm.TokenProblem.of(
    keys=[[[-0.1, 1.0], [1.0, 0.0], [0.0, 0.0]]],  # one input, three tokens, two coordinates
    labels=[1],
    scores=[[1.0, 0.9, 0.0]],
)
problem

# %%
problem.plot()

# %% [markdown]
# Tokens have names: A1 is the first token of the first input. At $p = 0$ every weight is a third. A longer $p$ along
# A1's key gives A1 more:

# %%
for length in (0.0, 1.0, 5.0):
    weights = tm.attention_weights(problem.keys, np.array([0.0, length]))
    print(f"|p| = {length:g}: weights {weights[0].round(3)}")

# %% [markdown]
# ## Training
#
# Training lowers a loss, here $\log(1 + e^{-f})$, by moving $p$ against its gradient. `evolve` does that. We keep the
# points on the way, so that the path can be drawn: in the disc below, tokens are on a linear scale, and $p$ on a scale
# that has infinity at its rim.

# %%
starts = np.array([[0.0, 0.5], [0.5, -0.2], [0.2, -1.0], [-1.0, 0.3]])
method = tm.NormalizedGradientDescent(step=0.1)
path = tm.evolve(tm.PromptObjective(problem), method, steps=3000, start=starts, keep=("point",), every=10)
path

# %%
path.plot()

# %% [markdown]
# Two things happen. The *norm* of $p$ grows for ever: the loss has no minimum, it only falls. And the *direction* of $p$
# settles: on one ray for some starts, on another for the others. Which rays?
#
# ## The margin
#
# Take a selection: one token of the input, say A1. Among all directions that prefer A1 to every other token, one does so
# with the largest *margin*: the least amount by which A1's logit leads, per unit of length of $p$. It is the shortest $p$
# that solves a support vector machine (the papers call it ATT-SVM):
#
# $$\min_p \|p\| \quad\text{such that}\quad \langle k_{\alpha} - k_t, p\rangle \ge 1 \text{ for all } t \ne \alpha.$$

# %%
solution = tm.max_margin(problem, [0])
print(solution)
print("direction", solution.vector.round(6), "with margin", round(solution.margin, 6))

# %% [markdown]
# `optimal` is a statement with a proof. The certificate holds multipliers that show no shorter vector will do; the
# residual says by how much, in exact arithmetic, anything is off.
#
# ## The theorem
#
# *Training turns to a max-margin direction of a locally optimal selection.* A selection is locally optimal when the
# selected token scores higher than the tokens that hold the margin (its neighbours). The atlas lists all of them:

# %%
found = tm.atlas(problem)
found

# %%
found.plot()

# %% [markdown]
# Two rays, and they are those of the picture above. `GMM` is the globally optimal one (it selects the token of highest
# score), `LMM` a locally optimal one. Every run is close to its ray, and the closer the longer it goes on: the angle falls
# like one over the norm. Gradient flow can be followed as far as we like.

# %%
limit = tm.limit_of(problem, start=np.array([0.2, -1.0]), until_norm=1e8)
limit

# %%
print(f"angle to the certified direction {limit.angle:.1e} at |p| = {limit.path.norm:.0e}, exponent {limit.rate:.3f}")
assert limit.angle < 1e-6
assert abs(limit.rate + 1) < 0.01

# %% [markdown]
# ## A proof that there is none
#
# Some selections no direction can make. Put the third token between the other two: it can then never lead both. The
# answer is not "failed" but a proof: weights $\lambda \ge 0$ under which the constraints add up to zero.

# %%
between = tm.TokenProblem.of(keys=[[[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]]], labels=[1], scores=[[1.0, 0.9, 0.0]])
answer = tm.max_margin(between, [2])
print(answer.status, "-", answer.explanation)
print("weights", answer.farkas)

# %% [markdown]
# The theorem itself can be run. A claim measures hypotheses and conclusion on an instance:

# %%
for report in tm.verify("B.theorem3"):
    print(report.verdict, "on", report.instance)

# %% [markdown]
# Read on: [how to choose](../choose.md) a method, a solver, a geometry; [the page by question](../questions.md); the
# [explorable page](../explore.md), where all of this can be dragged.
