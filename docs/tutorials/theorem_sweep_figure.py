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
from tokenmargin.theory.claim import below, true


def slope_over_margin(problem: tm.TokenProblem) -> tuple[float, tm.Limit]:
    """Slope of log t against |p| from |p| = 1000 on, over the margin of the limit."""
    limit = tm.limit_of(problem, until_norm=1e5)
    table = limit.path.to_frame()
    late = table["norm"] > 1e3
    slope = np.polyfit(table["norm"][late], table["log_time"][late], 1)[0]
    return float(slope / limit.solution.margin), limit


def check(instance: ProblemInstance) -> Findings:
    """The norm of gradient flow grows like log t over the margin."""
    ratio, limit = slope_over_margin(instance.problem)
    return Findings(
        hypotheses=(true("the flow has a certified limit direction", limit.outcome == "direction"),),
        conclusion=(below("|slope / margin - 1|", abs(ratio - 1), 1e-3),),
    )


claim = Claim(
    name="mine.growth",
    check=check,
    evidence="sampled",
    about="|p| grows like log t over the margin",
    example=lambda: ProblemInstance(tm.figure1b(), "Figure 1b"),
)
report = next(claim.own())
report

# %% [markdown]
# It holds on Figure 1b. Once is an anecdote; now many instances that nobody chose.
#
# ## A sweep
#
# In Python a sweep is a loop. When it takes hours, write it as an experiment with a field per setting and let `tokenmargin
# sweep` run it on all cores, keep what is done and go on after a stop ([how](../extending.md)).

# %%
rows = []
for seed in range(6):
    problem = tm.random_problem(n=3, T=4, d=6, rng=seed)
    ratio, limit = slope_over_margin(problem)
    rows.append((limit.solution.margin, ratio - 1, limit.kind))
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
# `figure.savefig("growth.pdf")` inside the context embeds the fonts. A claim of yours can join `tokenmargin verify`, and an
# experiment `tokenmargin reproduce`, without a change to this package: see [how to add](../extending.md).
