"""A probe for the attention of any model: how sparse its heads are, and the size of their key-query weights.

Attention weights are probability vectors along the last axis; the axes before it (layers, inputs, heads) are kept.

Arrays go straight to `measure_attention`. A torch model is watched while it runs:

    with recorded_attention(model) as recorded:
        model(inputs)
    measure_attention(recorded["encoder.layers.0.self_attn"])

A Hugging Face model gives its weights itself: `measure_attention(model(**inputs, output_attentions=True).attentions)`
(load it with `attn_implementation="eager"`). Nothing of a model is changed, and without the probe nothing is computed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray as Array
from torch import Tensor, nn


def soft_sparsity(weights: Float[Array, "*axes T"]) -> Float[Array, "*axes"]:
    """Effective number of tokens attended to, `|s|_1 / |s|_2^2`: T for uniform weights, 1 for a single token.

    Scaled weights need no care: `|s|_1^2 / |s|_2^2` is computed, which is the same when they sum to one.

    >>> soft_sparsity(np.array([[0.25, 0.25, 0.25, 0.25], [0.0, 1.0, 0.0, 0.0]]))
    array([4., 1.])

    *Reference*: Max-Margin Token Selection in Attention Mechanism, section 4.
    """
    weights = np.asarray(weights, dtype=float)
    return weights.sum(axis=-1) ** 2 / (weights**2).sum(axis=-1)


def attention_entropy(weights: Float[Array, "*axes T"]) -> Float[Array, "*axes"]:
    """`-sum_t s_t log s_t` in nats: log T for uniform weights, 0 for a single token.

    >>> float(attention_entropy(np.array([0.5, 0.5, 0.0])) / np.log(2))
    1.0
    """
    weights = np.asarray(weights, dtype=float)
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return -(weights * logs).sum(axis=-1) + 0.0


def top_mass(weights: Float[Array, "*axes T"], k: int) -> Float[Array, "*axes"]:
    """Mass of the k largest weights.

    >>> float(top_mass(np.array([0.1, 0.6, 0.3]), 2).round(12))
    0.9
    """
    weights = np.asarray(weights, dtype=float)
    if not 1 <= k <= weights.shape[-1]:
        raise ValueError(f"k must lie in 1..{weights.shape[-1]}, the number of tokens, got {k}")
    return np.partition(weights, weights.shape[-1] - k, axis=-1)[..., -k:].sum(axis=-1)


def without_token(weights: Float[Array, "*axes T"], token: int = 0) -> Float[Array, "*axes U"]:
    """The weights on all other tokens, made to sum to one: attention of [CLS] to the patches alone.

    NaN where the token attends to nothing but itself.

    >>> without_token(np.array([0.5, 0.25, 0.25]))
    array([0.5, 0.5])
    """
    rest = np.delete(np.asarray(weights, dtype=float), token, axis=-1)
    total = rest.sum(axis=-1, keepdims=True)
    return np.divide(rest, total, out=np.full_like(rest, np.nan), where=total > 0)


def key_query_norms(
    query: Float[Array, "out d"], key: Float[Array, "out d"], *, heads: int
) -> tuple[Float[Array, " heads"], float]:
    """Frobenius norms of the key-query product: `|Q_h' K_h|_F` of every head, and `|Q' K|_F` of all heads together.

    The logits of head h are `x' Q_h' K_h y / sqrt(out / heads)`, where `Q_h` is the h-th block of rows of Q. The
    products, of shape (d, d), are not formed: `|Q' K|_F^2 = <Q Q', K K'>`.

    **Arguments**
    - `query`, `key`: the weights of two linear layers, as torch keeps them (outputs first); biases have no part.
    - `heads`: how many.
    """
    query, key = np.asarray(query, dtype=float), np.asarray(key, dtype=float)
    if query.shape != key.shape or query.ndim != 2 or len(query) % heads:
        raise ValueError(
            f"query and key weights must have one shape (outputs, d) with outputs a multiple of the {heads} heads, "
            f"got {query.shape} and {key.shape}"
        )
    grams = query @ query.T, key @ key.T
    squares = grams[0] * grams[1]
    size = len(query) // heads
    blocks = squares.reshape(heads, size, heads, size)
    per_head = np.array([blocks[h, :, h, :].sum() for h in range(heads)])
    return np.sqrt(np.maximum(per_head, 0.0)), float(np.sqrt(max(squares.sum(), 0.0)))


@dataclass(frozen=True, eq=False)
class AttentionMeasures:
    """Measures of the attention of one token, averaged over inputs; per layer and head, and of the heads' average.

    **Attributes**
    - `sparsity`: soft sparsity `|s|_1 / |s|_2^2` of every head, of shape (layers, heads).
    - `entropy`, `top`: entropy in nats, and mass of the k largest weights, likewise.
    - `mean_sparsity`: soft sparsity of the average over heads, of shape (layers, inputs).
    - `mean_entropy`, `mean_top`: likewise.
    - `mean_map`: the average over heads itself, of shape (layers, inputs, tokens).
    - `own`: weight of the token on itself, where it was left out, of shape (layers, heads).
    """

    sparsity: Float[Array, "L H"]
    entropy: Float[Array, "L H"]
    top: Float[Array, "L H"]
    mean_sparsity: Float[Array, "L n"]
    mean_entropy: Float[Array, "L n"]
    mean_top: Float[Array, "L n"]
    mean_map: Float[Array, "L n T"]
    own: Float[Array, "L H"]


def measure_attention(weights: Any, *, token: int = 0, k: int = 10, leave_out_itself: bool = True) -> AttentionMeasures:
    """Measure attention weights, arrays or tensors.

    **Arguments**
    - `weights`: of shape (inputs, heads, tokens, tokens), or (inputs, heads, tokens) when they are of one token
        already; a list of them has an entry per layer.
    - `token`: the one that attends, such as [CLS].
    - `k`: for the mass of the k largest weights (fewer where there are fewer tokens).
    - `leave_out_itself`: whether the token's weight on itself is left out, and the others made to sum to one. A head
        that, on some input, attends to nothing else has no part in the averages there.
    """
    layers = weights if isinstance(weights, Sequence) else [weights]
    s = np.stack([_of_token(layer, token) for layer in layers])
    if not np.allclose(s.sum(axis=-1), 1.0, atol=1e-2):
        raise ValueError("attention weights must sum to one along the last axis; were these logits?")
    own = s[..., token].mean(axis=1)
    if leave_out_itself:
        s = without_token(s, token)
    k = min(k, s.shape[-1])
    average = _mean_of_known(s, axis=2)
    return AttentionMeasures(
        sparsity=_mean_of_known(soft_sparsity(s), axis=1),
        entropy=_mean_of_known(attention_entropy(s), axis=1),
        top=_mean_of_known(top_mass(s, k), axis=1),
        mean_sparsity=soft_sparsity(average),
        mean_entropy=attention_entropy(average),
        mean_top=top_mass(average, k),
        mean_map=average,
        own=own,
    )


def _mean_of_known(values: Array, *, axis: int) -> Array:
    """The mean of what is not NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def _of_token(weights: Any, token: int) -> Array:
    array = _array(weights)
    if array.ndim not in (3, 4):
        raise ValueError(f"a layer's weights have 3 or 4 axes (inputs, heads, [tokens,] tokens), got {array.shape}")
    return array[:, :, token] if array.ndim == 4 else array


def _array(values: Any) -> Array:
    if isinstance(values, Tensor):
        return values.detach().double().cpu().numpy()
    return np.asarray(values, dtype=float)


@contextlib.contextmanager
def recorded_attention(model: nn.Module, names: Sequence[str] | None = None) -> Iterator[dict[str, Tensor]]:
    """Keep the attention weights of a torch model's modules while it runs, by the module's name.

    **Arguments**
    - `names`: modules that return weights, alone or with other things; by default every `nn.MultiheadAttention`,
        which is asked for the weights of every head.
    """
    modules = dict(model.named_modules())
    if names is None:
        names = [name for name, module in modules.items() if isinstance(module, nn.MultiheadAttention)]
    if missing := [name for name in names if name not in modules]:
        raise ValueError(f"the model has no module {missing[0]!r}; named_modules() lists them")
    if not names:
        raise ValueError("the model has no nn.MultiheadAttention; give the names of the modules that return weights")
    recorded: dict[str, Tensor] = {}
    handles = [
        modules[name].register_forward_pre_hook(_ask_for_weights, with_kwargs=True)
        for name in names
        if isinstance(modules[name], nn.MultiheadAttention)
    ]
    handles += [modules[name].register_forward_hook(_keep(recorded, name)) for name in names]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _ask_for_weights(module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return arguments, keywords | {"need_weights": True, "average_attn_weights": False}


def _keep(recorded: dict[str, Tensor], name: str) -> Any:
    def hook(module: nn.Module, arguments: Any, output: Any) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        found = [value for value in outputs if isinstance(value, Tensor) and value.ndim == 4]
        if not found:
            raise ValueError(f"module {name!r} returned no weights of shape (inputs, heads, tokens, tokens)")
        recorded[name] = found[-1].detach()

    return hook


PAIRS = (
    ("query", "key"),
    ("q_proj", "k_proj"),
    ("q_lin", "k_lin"),
    ("to_q", "to_k"),
    ("q", "k"),
    ("q_proj_weight", "k_proj_weight"),
)
"""Names that other libraries give the two linear layers."""


def key_query_weights(attention: nn.Module) -> tuple[Tensor, Tensor]:
    """The query and key weights of an attention module, whoever wrote it.

    Known: `nn.MultiheadAttention`; a layer `qkv` for all three (ours, timm's); two layers with one of the usual pairs
    of names (`query` and `key`, `q_proj` and `k_proj`, ...), as in Hugging Face's models.
    """
    joint = getattr(attention, "in_proj_weight", None)
    if joint is None:
        joint = getattr(getattr(attention, "qkv", None), "weight", None)
    if isinstance(joint, Tensor):
        return joint.chunk(3)[0], joint.chunk(3)[1]
    for names in PAIRS:
        found = [getattr(attention, name, None) for name in names]
        query, key = (getattr(layer, "weight", layer) for layer in found)
        if isinstance(query, Tensor) and isinstance(key, Tensor):
            return query, key
    raise ValueError(f"{type(attention).__name__} has no query and key weights under a name known here")


def model_norms(modules: Sequence[nn.Module], *, heads: int) -> tuple[Float[Array, "L H"], Float[Array, " L"]]:
    """Frobenius norms of the key-query products of attention modules: per layer and head, and per layer."""
    with torch.no_grad():
        found = [key_query_norms(*map(_array, key_query_weights(module)), heads=heads) for module in modules]
    return np.stack([per_head for per_head, _ in found]), np.array([together for _, together in found])
