"""Models against the direct transcription of the papers' formulas under torch's automatic differentiation and AdamW."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.parameters import AdamW, State, initial_state
from tokenmargin.training.two_layer import TwoLayer

SETTINGS = AdamW(rate=0.01, decay=0.02)


def naive_one_layer(x: torch.Tensor, E: torch.Tensor, p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    EX = torch.nn.functional.embedding(x, E)
    return torch.softmax(EX @ p, 0) @ EX @ v


def naive_two_layer(x: torch.Tensor, E: torch.Tensor, p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    EX = torch.nn.functional.embedding(x, E)
    mixed = torch.softmax(EX @ EX.T, 1) @ EX + EX
    H = torch.nn.functional.layer_norm(mixed, (E.shape[1],))
    return torch.softmax(H @ p, 0) @ H @ v


MODELS = {"one-layer": (OneLayer, naive_one_layer), "two-layer": (TwoLayer, naive_two_layer)}


def naive_loss(data: TokenData, rows: torch.Tensor, forward, parameters) -> torch.Tensor:
    f = torch.stack([forward(data.ids[data.offsets[i] : data.offsets[i + 1]], *parameters) for i in rows])
    return torch.nn.functional.softplus(-data.labels[rows] * f).mean()


@pytest.mark.parametrize("name", MODELS)
def test_hundred_steps_equal_naive_autograd_adamw(name, ragged):
    model_class, forward = MODELS[name]
    data = ragged()
    state = initial_state(data.m, 12, seed=3, scale=3.0, dtype=torch.float64)
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in (state.embeddings, *state.heads)]
    naive = torch.optim.AdamW(parameters, lr=SETTINGS.rate, weight_decay=SETTINGS.decay)
    model = model_class(data, state, SETTINGS)
    rng = torch.Generator().manual_seed(0)
    for _ in range(10):
        order = torch.randperm(data.n, generator=rng)
        ours = model.run(order, 4, first=0, last=10, rate=SETTINGS.rate)  # 10 batches, the last of one row
        theirs = 0.0
        for rows in order.split(4):
            naive.zero_grad()
            loss = naive_loss(data, rows, forward, parameters)
            loss.backward()
            naive.step()
            theirs += loss.item() * len(rows)
        assert abs(ours.item() - theirs) < 1e-9
    for ours, theirs in zip((state.embeddings, *state.heads), parameters, strict=True):
        assert (ours - theirs).abs().max() < 1e-9
    scores = torch.stack(parameters[1:]) @ parameters[0].T
    assert (model.scores() - scores).abs().max() < 1e-9


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_formula(name, ragged):
    model_class, forward = MODELS[name]
    data = ragged(seed=5)
    state = initial_state(data.m, 7, seed=1, scale=4.0, dtype=torch.float64)
    rows = torch.tensor([5, 0, 11, 36])
    f = model_class(data, state, SETTINGS).outputs(rows)
    parameters = (state.embeddings, *state.heads)
    wanted = [forward(data.ids[data.offsets[i] : data.offsets[i + 1]], *parameters) for i in rows]
    assert (f - torch.stack(wanted)).abs().max() < 1e-12


def test_gradient_keeps_its_direction_when_attention_is_saturated():
    """One weight rounds to 1: the textbook b - f is zero there, and the gradient in p would vanish."""
    data = TokenData.of(np.array([0, 1]), np.array([0, 2]), np.array([1]), m=2, dtype=torch.float64)
    state = initial_state(2, 2, seed=0, dtype=torch.float64)
    state.embeddings.copy_(torch.eye(2))
    state.heads.copy_(torch.tensor([[60.0, 0.0], [1.0, 0.5]]))
    c, e = OneLayer(data, state, SETTINGS).gradient(data.batch(torch.tensor([0])))[1].tolist()
    assert c[0] == pytest.approx(-c[1], rel=1e-12)
    assert c[0] != 0
    assert c[0] == pytest.approx(-0.5 * np.exp(-60) / (1 + np.e), rel=1e-9)
    assert e[0] == pytest.approx(-1 / (1 + np.e), rel=1e-12)


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
