"""The GPU kernels in Triton's interpreter, against the model that the other tests check."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

CHECK = """
import numpy as np, torch
from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer_cuda import OneLayerCuda
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.parameters import AdamW, initial_state

rng = np.random.default_rng(0)
lengths = rng.integers(1, 20, 7)
data = TokenData.of(rng.integers(0, 30, lengths.sum()), np.append(0, lengths.cumsum()), rng.choice([-1, 1], 7), m=30)
settings, order = AdamW(decay=0.01), torch.tensor([6, 2, 0, 1, 5, 4, 3])
ours, theirs = (initial_state(30, 12, seed=1, scales=(2.0, 2.0, 1.0)) for _ in range(2))
model, reference = OneLayerCuda(data, ours, settings), OneLayer(data, theirs, settings)
model._rates[:3] = torch.tensor([settings.scalars(step, 0.01) for step in (1, 2, 3)])
model._order.copy_(order)
for _ in range(3):  # batches of 3, 3 and 1
    model._take_step(3)
loss = reference.run(order, 3, first=0, last=3, rate=0.01)
assert abs(model._losses.double().sum() - loss) < 1e-5, (model._losses.sum(), loss)
pairs = (ours.embeddings, theirs.embeddings), (ours.heads, theirs.heads), (model.scores(), reference.scores())
for mine, its in pairs:
    assert (mine - its).abs().max() < 2e-6, (mine - its).abs().max()  # a few units in the last place of float32
assert model._counters.tolist() == [3, 2] and not model._weights.any()
"""


RANKS = """
from tokenmargin.training.ranks import Ranks
from tokenmargin.training.ranks import ByTexts

for size in (2, 3):
    states = [initial_state(30, 12, seed=1, scales=(2.0, 2.0, 1.0)) for _ in range(size)]
    models = [
        OneLayerCuda(data, state, settings, split=ByTexts(Ranks(rank, size))) for rank, state in enumerate(states)
    ]
    for model in models:
        model._rates[:3] = torch.tensor([settings.scalars(step, 0.01) for step in (1, 2, 3)])
        model._order.copy_(order)
    for _ in range(3):
        for model in models:
            model._attend(3)
        total = sum(model._weights for model in models)
        for model in models:
            model._weights.copy_(total)
            model._update()
    assert abs(sum(model._losses.double().sum() for model in models) - loss) < 1e-5
    for model, state in zip(models, states):
        assert torch.equal(state.embeddings, states[0].embeddings)
        for mine, its in ((state.embeddings, theirs.embeddings), (model.scores(), reference.scores())):
            assert (mine - its).abs().max() < 2e-6
"""


TWO_LAYERS = """
import numpy as np, torch
from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import Conventions
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.two_layer import TwoLayer
from tokenmargin.training.two_layer_cuda import TwoLayerCuda

rng = np.random.default_rng(0)
lengths = rng.integers(1, 150, 7)  # up to two tiles of distinct tokens
data = TokenData.of(rng.integers(0, 160, lengths.sum()), np.append(0, lengths.cumsum()), rng.choice([-1, 1], 7), m=160)
settings, order = AdamW(decay=0.01), torch.tensor([6, 2, 0, 1, 5, 4, 3])
for how in (Conventions(), Conventions(False, 3.5, True)):
    states = [initial_state(160, 12, seed=1, scales=(2.0, 2.0, 1.0), affine_norm=how.affine_norm) for _ in range(2)]
    for state in states:  # nothing special: an offset common to all entries, gain and bias off 1 and 0
        state.embeddings += 0.05
        state.heads[2:] += 0.3 * torch.randn(state.heads[2:].shape, generator=torch.Generator().manual_seed(0))
    model, reference = (kind(data, state, settings, conventions=how)
                        for kind, state in zip((TwoLayerCuda, TwoLayer), states))
    ours, theirs = (one.run(order, 3, first=0, last=3, rate=0.01) for one in (model, reference))
    assert abs(ours - theirs) < 1e-5, (ours, theirs)
    # AdamW's first steps divide by the gradient's own size, so parameters differ by rounding of order one unit of
    # float32; the moments are the gradients themselves.
    for name, size in (("embeddings", 4e-6), ("heads", 4e-6), ("embeddings_m", 1e-7), ("heads_m", 1e-7)):
        difference = (getattr(states[0], name) - getattr(states[1], name)).abs().max()
        assert difference < size, (name, difference)
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("check", [CHECK, CHECK + RANKS, TWO_LAYERS], ids=["one process", "ranks", "two layers"])
def test_three_steps_equal_the_reference(check):
    done = subprocess.run(
        [sys.executable, "-c", check],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
