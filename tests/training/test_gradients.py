"""Models against the direct transcription of the papers' formulas under torch's automatic differentiation and AdamW."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from tests.oracles.rounding import NOISE, of_training

from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import Conventions
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.parameters import AdamW, State, initial_state
from tokenmargin.training.two_layer import WORTH_A_CALL, TwoLayer

WIDEST = 20 + 12  # terms of the longest sums: tokens of a text, and dimensions
SETTINGS = AdamW(rate=0.01, decay=0.02)


READINGS = {
    "as printed": Conventions(),
    "v fixed": Conventions(trained_head=False),
    "scaled logits": Conventions(temperature=3.5),
    "all, v fixed": Conventions(trained_head=False, temperature=3.5, affine_norm=True),
    "all": Conventions(temperature=3.5, affine_norm=True),
}


def naive_one_layer(x: torch.Tensor, E: torch.Tensor, heads: torch.Tensor, how: Conventions) -> torch.Tensor:
    EX = torch.nn.functional.embedding(x, E)
    return torch.softmax(EX @ heads[0] / how.temperature, 0) @ EX @ heads[1]


def naive_two_layer(x: torch.Tensor, E: torch.Tensor, heads: torch.Tensor, how: Conventions) -> torch.Tensor:
    EX = torch.nn.functional.embedding(x, E)
    mixed = torch.softmax(EX @ EX.T / how.temperature, 1) @ EX + EX
    gain, bias = heads[2:] if how.affine_norm else (None, None)
    H = torch.nn.functional.layer_norm(mixed, (E.shape[1],), gain, bias)
    return torch.softmax(H @ heads[0] / how.temperature, 0) @ H @ heads[1]


MODELS = {"one-layer": (OneLayer, naive_one_layer), "two-layer": (TwoLayer, naive_two_layer)}
CASES = [(name, how) for name in MODELS for how in READINGS if name == "two-layer" or not READINGS[how].affine_norm]


def naive_loss(data: TokenData, rows: torch.Tensor, forward, parameters) -> torch.Tensor:
    f = torch.stack([forward(data.ids[data.offsets[i] : data.offsets[i + 1]], *parameters) for i in rows])
    return torch.nn.functional.softplus(-data.labels[rows] * f).mean()


def start(data: TokenData, d: int, how: Conventions, *, scale: float, seed: int) -> State:
    """A start at which nothing is special: gain and bias are off 1 and 0."""
    state = initial_state(
        data.m, d, seed=seed, scales=(scale, scale, 1.0), affine_norm=how.affine_norm, dtype=torch.float64
    )
    rng = torch.Generator().manual_seed(seed)
    state.heads[2:] += 0.3 * torch.randn(state.heads[2:].shape, generator=rng, dtype=torch.float64)
    return state


def with_noise(state: State) -> State:
    noisy = deepcopy(state)
    rng = torch.Generator().manual_seed(1)
    noisy.embeddings *= 1 + NOISE * torch.randn(noisy.embeddings.shape, generator=rng, dtype=torch.float64)
    return noisy


@pytest.mark.parametrize(("name", "reading"), CASES)
def test_hundred_steps_equal_naive_autograd_adamw(name, reading, ragged):
    model_class, forward = MODELS[name]
    data, how = ragged(), READINGS[reading]
    state = start(data, 12, how, scale=3.0, seed=3)
    E, p, v, norm = (torch.nn.Parameter(t.clone()) for t in (state.embeddings, *state.heads[:2], state.heads[2:]))
    v.requires_grad_(how.trained_head)
    trained = [parameter for parameter in (E, p, v, norm) if parameter.requires_grad]
    naive = torch.optim.AdamW(trained, lr=SETTINGS.rate, weight_decay=SETTINGS.decay)
    noisy = with_noise(state)
    model, beside = (model_class(data, at, SETTINGS, conventions=how) for at in (state, noisy))
    rng = torch.Generator().manual_seed(0)
    for epoch in range(1, 11):
        order = torch.randperm(data.n, generator=rng)
        ours = model.run(order, 4, first=0, last=10, rate=SETTINGS.rate)  # 10 batches, the last of one row
        off = of_training(ours, beside.run(order, 4, first=0, last=10, rate=SETTINGS.rate), 10 * epoch, WIDEST)
        theirs = 0.0
        for rows in order.split(4):
            naive.zero_grad()
            loss = naive_loss(data, rows, forward, (E, torch.cat([p[None], v[None], norm]), how))
            loss.backward()
            naive.step()
            theirs += loss.item() * len(rows)
        assert abs(ours.item() - theirs) <= off
    ends = [torch.cat([at.embeddings.ravel(), at.heads.ravel()]) for at in (state, noisy)]
    theirs = torch.cat([E.ravel(), p, v, norm.ravel()])
    assert torch.allclose(ends[0], theirs, rtol=0, atol=of_training(*ends, 100, WIDEST))
    off = of_training(model.scores(), beside.scores(), 100, WIDEST)
    assert (model.scores() - torch.stack([p, v]) @ E.T).abs().max() <= off


@pytest.mark.parametrize(("name", "reading"), CASES)
def test_outputs_are_those_of_the_formula(name, reading, ragged):
    model_class, forward = MODELS[name]
    data, how = ragged(seed=5), READINGS[reading]
    state = start(data, 7, how, scale=4.0, seed=1)
    rows = torch.tensor([5, 0, 11, 36])
    f = model_class(data, state, SETTINGS, conventions=how).outputs(rows)
    wanted = [
        forward(data.ids[data.offsets[i] : data.offsets[i + 1]], state.embeddings, state.heads, how) for i in rows
    ]
    off = of_training(f, model_class(data, with_noise(state), SETTINGS, conventions=how).outputs(rows), 1, WIDEST)
    assert (f - torch.stack(wanted)).abs().max() <= off


def test_an_offset_common_to_all_entries_costs_no_digits(ragged):
    """In float32 a variance from `|h|^2 / d - mean^2` would be all rounding here; layer_norm itself loses none."""
    data = ragged(dtype=torch.float32)
    state = initial_state(data.m, 64, seed=3)
    state.embeddings += 100.0
    rows = torch.arange(data.n)
    how = Conventions(temperature=1e6)  # logits of 1e4 d would make the first softmax itself a matter of rounding
    f = TwoLayer(data, state, SETTINGS, conventions=how).outputs(rows)
    exact = (state.embeddings.double(), state.heads.double(), how)
    wanted = torch.stack([naive_two_layer(data.ids[data.offsets[i] : data.offsets[i + 1]], *exact) for i in rows])
    # Entries near 100 are known to 100 / 2^24 = 6e-6 beside a deviation of 1/8.
    assert (f - wanted).abs().max() < 1e-3


@pytest.mark.parametrize("lengths", [(150, 150), (170, 139, 151, 170)])
def test_large_products_in_float32_are_those_of_float64(lengths):
    """Products of this size are formed one sequence at a time; the other tests have small ones, and float64."""
    rng, d = np.random.default_rng(4), 256
    assert min(lengths) ** 2 * d > WORTH_A_CALL
    ids = np.concatenate([rng.permutation(300)[:length] for length in lengths])
    moments = []
    for dtype in (torch.float32, torch.float64):
        offsets, labels = np.append(0, np.cumsum(lengths)), np.resize([1, -1], len(lengths))
        data = TokenData.of(ids, offsets, labels, m=300, dtype=dtype)
        state = initial_state(300, d, seed=2, dtype=dtype)
        TwoLayer(data, state, SETTINGS).run(torch.arange(data.n), data.n, first=0, last=1, rate=1e-3)
        moments.append(state.embeddings_m.double())  # a tenth of the gradient
    # Sums over d entries for G, twice over u tokens, and some twenty further operations, each rounded to 24 bits.
    assert (moments[0] - moments[1]).abs().max() < 2.0**-24 * (d + 2 * max(lengths) + 20) * moments[1].abs().max()


def test_gradient_keeps_its_direction_when_attention_is_saturated():
    """One weight rounds to 1: the textbook b - f is zero there, and the gradient in p would vanish."""
    data = TokenData.of(np.array([0, 1]), np.array([0, 2]), np.array([1]), m=2, dtype=torch.float64)
    state = initial_state(2, 2, seed=0, dtype=torch.float64)
    state.embeddings.copy_(torch.eye(2))
    state.heads.copy_(torch.tensor([[60.0, 0.0], [1.0, 0.5]]))
    c, e = OneLayer(data, state, SETTINGS).gradient(data.batch(torch.tensor([0])))[1].tolist()
    # Nothing cancels where the pivot is: some ten operations each, and an exponential of 60.
    assert c[0] == pytest.approx(-c[1], rel=1e-12, abs=0)
    assert c[0] != 0
    # exp(-60) has 60 roundings of its argument.
    assert c[0] == pytest.approx(-0.5 * np.exp(-60) / (1 + np.e), rel=1e-12, abs=0)
    assert e[0] == pytest.approx(-1 / (1 + np.e), rel=1e-12, abs=0)


def test_the_number_of_threads_does_not_change_a_bit(ragged):
    results = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            data = ragged(dtype=torch.float32)
            state = initial_state(data.m, 8192, seed=3)
            model = OneLayer(data, state, SETTINGS)
            model.run(torch.arange(data.n), 8, first=0, last=5, rate=0.01)
            results.append(state)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0].embeddings, results[1].embeddings)
    assert torch.equal(results[0].heads, results[1].heads)


def test_bad_data_is_named():
    with pytest.raises(ValueError, match="sequence 1 has no token"):
        TokenData.of(np.array([0, 1]), np.array([0, 2, 2]), np.array([1, 1]), m=2)
    with pytest.raises(ValueError, match=r"token ids must lie in 0\.\.1, got 0\.\.2"):
        TokenData.of(np.array([0, 2]), np.array([0, 2]), np.array([1]), m=2)
    with pytest.raises(ValueError, match="3 rows and the data 2 tokens"):
        OneLayer(
            TokenData.of(np.array([0]), np.array([0, 1]), np.array([1]), m=2), initial_state(3, 2, seed=0), SETTINGS
        )


def test_state_refuses_tensors_of_another_shape():
    state: State = initial_state(3, 2, seed=0)
    other = initial_state(4, 2, seed=0)
    with pytest.raises(ValueError, match=r"saved embeddings has shape \(4, 2\), this model \(3, 2\)"):
        state.load(other.tensors(), 1)
