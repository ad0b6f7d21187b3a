# %% [markdown]
# # Your own theorem
#
# A claim is a statement as something to run: hypotheses and conclusion, each a measured number beside its bound. Here
# is one that is easy to believe: *a thousand steps of normalised descent come to a cosine of 0.999 with the shortest
# vector that selects the tokens of highest score*. We check it where it holds, and find that a hypothesis is missing.
# (It speaks of a thousand steps, so a run can refute it. A statement about a limit is in
# [the tutorial](../tutorials/theorem_sweep_figure.md).)

# %%
import numpy as np

import tokenmargin as tm
from tokenmargin.problem.instances import figure1a
from tokenmargin.theory import Claim, Findings, ProblemInstance
from tokenmargin.theory.claim import above, true


def check(instance: ProblemInstance) -> Findings:
    """1000 steps of 0.1 come to a cosine of 0.999 with the max-margin direction of the tokens of highest score."""
    problem = instance.problem
    best = tm.max_margin(problem, instance.alpha)
    start = np.zeros(problem.keys.dimension) if instance.p is None else instance.p
    path = tm.evolve(instance.objective, tm.NormalizedGradientDescent(0.1), steps=1000, start=start)
    reached = float(tm.cosine(problem.keys, path.prompt, best.vector))
    return Findings(
        hypotheses=(true("the tokens of highest score can be selected", best.is_optimal),),
        conclusion=(above("cosine with their max-margin direction", reached, 0.999),),
    )


claim = Claim(
    name="mine.global",
    check=check,
    evidence="sampled",
    about="descent finds the tokens of highest score",
    example=lambda: ProblemInstance(figure1a(), "equal scores among the others"),
    refutation=lambda: ProblemInstance(tm.figure1b(), "unequal scores", p=np.array([0.0, -1.0, 0.0])),
)

# %% [markdown]
# On the data of Figure 1a, where the tokens that are not optimal have equal scores, it holds. On those of Figure 1b,
# from a start below, descent takes another direction: the claim as stated is false. (Theorem 2 of *Max-Margin Token
# Selection in Attention Mechanism* has the hypothesis that is missing.)

# %%
for report in claim.own():
    print(report.kind, report.verdict, [f"{slack.name}: {slack.measured:.4f}" for slack in report.findings.conclusion])
    assert report.as_expected
assert [report.verdict for report in claim.own()] == ["holds", "fails"]
