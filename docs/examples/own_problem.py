# %% [markdown]
# # Your own problem
#
# Two inputs of three tokens in the plane. We ask which directions attention can converge to, prove the answer, and
# watch descent find them.

# %%
import itertools

import numpy as np

import tokenmargin as tm

problem = tm.TokenProblem.of(
    [[[1.0, 0.2], [-0.5, 1.0], [0.0, -1.0]], [[0.8, 0.6], [-1.0, 0.1], [0.3, -0.9]]],
    [1, 1],
    scores=[[1.0, 0.6, 0.0], [1.0, 0.2, 0.5]],
)

# %% [markdown]
# Every way to pick one token per input has a shortest direction that does it, or a proof that there is none.

# %%
for selected in itertools.product(range(3), repeat=2):
    solution = tm.max_margin(problem, selected)
    print(selected, solution.status, f"margin {solution.margin:.3f}", f"residual {solution.certificate.residual:.0e}")
    assert solution.status in ("optimal", "infeasible")

# %% [markdown]
# Descent from a ring of starts. Each run selects some tokens; its direction is compared with the certified one of that
# selection.

# %%
turn = np.linspace(0, 2 * np.pi, 8, endpoint=False)
starts = 2 * np.stack([np.cos(turn), np.sin(turn)], axis=1)
path = tm.evolve(tm.PromptObjective(problem), tm.NormalizedGradientDescent(step=0.1), steps=5000, start=starts)
for start, final, selected in zip(starts, path.final, path.selected, strict=True):
    solution = tm.max_margin(problem, selected)
    cosine = float(tm.cosine(problem.keys, final, solution.vector))
    print(f"from ({start[0]:+.1f}, {start[1]:+.1f}) to tokens {selected.tolist()}: cosine {cosine:.5f}")
    assert solution.status == "optimal"
    assert cosine > 0.99

# %% [markdown]
# Only inner products are needed: the same problem without its coordinates gives the same answers.

# %%
gram = tm.max_margin(problem.as_gram(), (0, 0))
assert np.isclose(gram.margin, tm.max_margin(problem, (0, 0)).margin)
print("the same margin from inner products alone:", gram.margin)
