"""The probe on arrays, on torch models through hooks, and on models written by others."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.oracles.rounding import rounding
from torch import nn

from tokenmargin.training.vision.attention_probe import (
    key_query_weights,
    measure_attention,
    model_norms,
    recorded_attention,
)
from tokenmargin.training.vision.vit import Attention

SAME = rounding(20)  # the same weights, measured in double precision by a few operations each
SINGLE = 1e-6  # some ten roundings of single precision, in which models compute


@pytest.fixture(name="encoder")
def small_encoder() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 3, dim_feedforward=24, dropout=0.3, batch_first=True)
    return nn.TransformerEncoder(layer, 2)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("training", [True, False])
def test_hooks_record_every_layer_and_leave_the_output_alone(encoder: nn.Module, training: bool) -> None:
    """Against weights computed from the parameters; dropout draws the same numbers with and without the probe."""
    encoder.train(training)
    x = torch.randn(4, 7, 12)
    torch.manual_seed(1)
    plain = encoder(x)
    torch.manual_seed(1)
    with recorded_attention(encoder) as recorded:
        watched = encoder(x)
    torch.testing.assert_close(watched, plain, rtol=1e-5, atol=1e-6)  # other kernels, the same numbers
    assert list(recorded) == ["layers.0.self_attn", "layers.1.self_attn"]
    if not training:
        attention = encoder.layers[0].self_attn
        q, k, _ = (x @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=-1)
        q, k = (part.view(4, 7, 3, 4).transpose(1, 2) for part in (q, k))
        expected = (q @ k.transpose(-2, -1) / 2).softmax(dim=-1)
        # Weights below 1, of sums of twelve products in single precision.
        torch.testing.assert_close(recorded["layers.0.self_attn"], expected, rtol=0, atol=12 * SINGLE)
    with torch.no_grad():
        encoder(torch.randn(1, 3, 12))
    assert recorded["layers.0.self_attn"].shape == (4, 3, 7, 7)  # nothing is recorded once it is over
    if not training:
        measures = measure_attention(list(recorded.values()), token=0, k=2)
        assert measures.sparsity.shape == (2, 3)
        assert measures.mean_map.shape == (2, 4, 6)


def test_any_module_that_returns_weights_can_be_named() -> None:
    class Weights(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x.transpose(-2, -1)).softmax(dim=-1)

    model = nn.Sequential(Weights(), nn.Flatten())
    x = torch.randn(2, 3, 4, 5)
    with recorded_attention(model, ["0"]) as recorded:
        model(x)
    assert torch.equal(recorded["0"], Weights()(x))
    with pytest.raises(ValueError, match="the model has no module 'attn'"), recorded_attention(model, ["attn"]):
        pass
    with pytest.raises(ValueError, match=r"no nn\.MultiheadAttention"), recorded_attention(model):
        pass
    with (
        pytest.raises(ValueError, match="module '1' returned no weights of shape"),
        recorded_attention(model, ["1"]),
    ):
        model(x)


def test_measures_agree_with_loops_over_heads() -> None:
    """As a Hugging Face model gives them: a tuple with one tensor a layer."""
    rng = torch.Generator().manual_seed(0)
    output = SimpleNamespace(attentions=tuple(torch.randn(2, 3, 5, 5, generator=rng).softmax(-1) for _ in range(2)))
    found = measure_attention(output.attentions, token=1, k=2)
    for layer, weights in enumerate(output.attentions):
        row = weights[:, :, 1].double().numpy()
        patches = np.delete(row, 1, axis=-1)
        patches /= patches.sum(axis=-1, keepdims=True)
        for head in range(3):
            s = patches[:, head]
            assert found.sparsity[layer, head] == pytest.approx(np.mean([1 / (v @ v) for v in s]), rel=SAME, abs=0)
            assert found.entropy[layer, head] == pytest.approx(np.mean([-(v @ np.log(v)) for v in s]), rel=SAME, abs=0)
            assert found.top[layer, head] == pytest.approx(np.mean([np.sort(v)[-2:].sum() for v in s]), rel=SAME, abs=0)
            assert found.own[layer, head] == pytest.approx(row[:, head, 1].mean(), rel=SAME, abs=0)
        average = patches.mean(axis=1)
        np.testing.assert_allclose(found.mean_map[layer], average, rtol=SAME)
        np.testing.assert_allclose(found.mean_sparsity[layer], [1 / (v @ v) for v in average], rtol=SAME)
    whole = measure_attention(output.attentions[0].numpy()[:, :, 1], token=1, leave_out_itself=False)
    assert whole.mean_map.shape == (1, 2, 5)
    with pytest.raises(ValueError, match="were these logits"):
        measure_attention(np.ones((2, 3, 5)))
    with pytest.raises(ValueError, match="3 or 4 axes"):
        measure_attention(np.ones((3, 5)))


def test_key_query_weights_of_modules_by_several_authors() -> None:
    torch.manual_seed(0)
    joint = nn.MultiheadAttention(8, 2)
    apart = nn.MultiheadAttention(8, 2, kdim=8, vdim=6)
    ours = Attention(8, 2)
    bert = nn.Module()
    bert.query, bert.key = nn.Linear(8, 8), nn.Linear(8, 8)
    assert key_query_weights(joint)[1] is not None
    assert torch.equal(key_query_weights(joint)[1], joint.in_proj_weight[8:16])
    assert torch.equal(key_query_weights(apart)[0], apart.q_proj_weight)
    assert torch.equal(key_query_weights(ours)[1], ours.key_query()[1])
    assert torch.equal(key_query_weights(bert)[0], bert.query.weight)
    with pytest.raises(ValueError, match="Linear has no query and key weights"):
        key_query_weights(nn.Linear(2, 2))
    heads, together = model_norms([joint, ours, bert], heads=2)
    assert heads.shape == (3, 2)
    q, k = (w.detach().double().numpy() for w in key_query_weights(bert))
    assert together[2] == pytest.approx(np.linalg.norm(q.T @ k), rel=SINGLE, abs=0)
