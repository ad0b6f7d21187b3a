# %% [markdown]
# # Your own theorem, sweep and figure
#
# You believe something about attention. This page turns it into a claim that can fail, runs it over many instances, and
# draws the result at the size of a column.
#
# ## The statement
#
# Gradient flow of the logistic loss follows $p(t)$ with $\|p(t)\| \approx \log t / m$, where $m$ is the margin of the limit
# direction: after a long time the selected tokens lead by $m\|p\|$, the gradient is about $e^{-m\|p\|}$, and
# $\mathrm{d}\|p\|/\mathrm{d}t = e^{-m\|p\|}$ integrates to that. So the slope of $\log t$ against $\|p\|$, divided by the
# margin, should be 1.

# %%
import numpy as np

import tokenmargin as tm
from tokenmargin.theory import Claim, Findings, ProblemInstance
from tokenmargin.theory.claim import below, seen, true


def slope_over_margin(limit: tm.Limit) -> float:
    """Slope of log t against |p| from |p| = 1000 on, over the margin of the limit."""
    path = limit.path
    norms = np.linalg.norm(path(path.arcs), axis=-1)  # a path is called with arc lengths, and gives points
    late = norms > 1e3
    slope = np.polyfit(norms[late], path.log_time[late], 1)[0]
    return float(slope / limit.solution.margin)


def check(instance: ProblemInstance) -> Findings:
    """The norm of gradient flow grows like log t over the margin."""
    limit = tm.limit_of(instance.problem, until_norm=1e5)
    diverges = limit.outcome == "direction"
    off = abs(slope_over_margin(limit) - 1) if diverges else np.nan
    return Findings(
        hypotheses=(true("the flow diverges along a certified direction", diverges),),
        conclusion=(seen(below("|slope / margin - 1| at |p| = 1e5", off, 1e-3)),),
    )


claim = Claim(
    name="mine.growth",
    check=check,
    evidence="sampled",
    about="|p| grows like log t over the margin",
    example=lambda: ProblemInstance(tm.figure1b(), "Figure 1b"),
)
next(claim.own())

# %% [markdown]
# A hypothesis and a conclusion are measured numbers beside their bounds. `seen` says that this one is about a limit and was
# looked at a finite norm: such a number can support the statement and cannot refute it, so that the verdict is *holds* or
# *undecided*, and *fails* is kept for what is proven. Where a hypothesis is not met the claim says nothing: here two inputs
# want opposite things, and $p$ stays at zero.

# %%
opposed = tm.TokenProblem.of(keys=[[[1.0], [-1.0]], [[1.0], [-1.0]]], labels=[1, 1], scores=[[1.0, 0.0], [0.0, 1.0]])
report = claim.on(ProblemInstance(opposed, "opposed"))
print(report.verdict)
assert report.verdict == "vacuous"

# %% [markdown]
# It holds on Figure 1b. Once is an anecdote; now many instances that nobody chose.
#
# ## A sweep
#
# In Python a sweep is a loop. When it takes hours, write it as an experiment with a field per setting and let `tokenmargin
# sweep` run it on all cores, keep what is done and go on after a stop ([how](../extending.md#an-experiment)).

# %%
rows = []
for seed in range(6):
    limit = tm.limit_of(tm.random_problem(n=3, T=4, d=6, rng=seed), until_norm=1e5)
    rows.append((limit.solution.margin, slope_over_margin(limit) - 1, limit.kind))
margins, errors, kinds = (np.array(column) for column in zip(*rows, strict=True))
print(f"largest |slope / margin - 1| over {len(rows)} random problems: {np.abs(errors).max():.1e}")
assert np.abs(errors).max() < 1e-3

# %% [markdown]
# ## A figure
#
# The style of our figures is a context: 3.25 or 6.75 inches wide, STIX, colours that colour-blind readers tell apart; a
# colour means a direction, the global one being the first.

# %%
import matplotlib.pyplot as plt

from tokenmargin.report.style import GLOBAL, LOCAL, ONE, paper_style

with paper_style():
    figure, ax = plt.subplots(figsize=ONE, layout="constrained")
    for kind, colour in (("GMM", GLOBAL), ("LMM", LOCAL)):
        here = kinds == kind
        ax.scatter(margins[here], np.abs(errors[here]), s=14, color=colour, label=kind)
    ax.set(xlabel="margin $m$", ylabel=r"$|\mathrm{slope}/m - 1|$", yscale="log")
    ax.legend()

# %% [markdown]
# `figure.savefig("growth.pdf")` inside the context embeds the fonts. Put the claim into a file `mine.py`, and `tokenmargin
# verify mine:claim fig1c` asks it of Figure 1c; an experiment joins `tokenmargin reproduce` in the same way, without a change
# to this package ([how to add](../extending.md)).
