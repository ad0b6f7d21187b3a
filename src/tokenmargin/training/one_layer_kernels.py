"""Triton kernels of the one-layer step; imported only where a GPU is used.

A step is four launches: attention of each sequence, which adds to the vectors c and e; the gradients `E' c` and `E' e`
of p and v in partial sums; AdamW on p and v; AdamW on E with the rank-two gradient, which also computes the next a and
b and sets c and e to zero. The number of the batch is a counter on the device, so a captured graph of the step can be
replayed without copying anything. There are two such counters, since no launch may write one that it reads: the first
launch reads A, the second copies A to B, the third reads B and advances A, the fourth reads B.

The parameters of a kernel come in three groups: arrays, sizes, and what is fixed when it is compiled.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def adamw(
    parameters, first_moment, second_moment, at, inside, g, rates, step,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr,
):  # fmt: skip
    """A step with gradient g for the parameters at some places; returns their new values.

    `rates` holds the three `AdamW.scalars` of each step. The moments are read once a step: they leave the cache first.
    """
    x = tl.load(parameters + at, mask=inside, other=0.0)
    mean = tl.load(first_moment + at, mask=inside, other=0.0, eviction_policy="evict_first")
    square = tl.load(second_moment + at, mask=inside, other=0.0, eviction_policy="evict_first")
    mean = B1 * mean + (1.0 - B1) * g
    square = B2 * square + (1.0 - B2) * g * g
    length = tl.load(rates + 3 * step)
    root = tl.load(rates + 3 * step + 1)
    shrink = tl.load(rates + 3 * step + 2)
    x = x * shrink - length * mean / (tl.sqrt(square) / root + EPS)
    tl.store(parameters + at, x, mask=inside)
    tl.store(first_moment + at, mean, mask=inside, eviction_policy="evict_first")
    tl.store(second_moment + at, square, mask=inside, eviction_policy="evict_first")
    return x


@triton.jit
def block_scores(ids, scores, m, at, end, BLOCK: tl.constexpr, SHARPNESS: tl.constexpr):
    """For the tokens at places from `at` on: which of them come before `end`, the tokens, their logits and their b."""
    place = at + tl.arange(0, BLOCK)
    inside = place < end
    token = tl.load(ids + place, mask=inside, other=0)
    a = SHARPNESS * tl.load(scores + token, mask=inside, other=-float("inf"))
    return inside, token, a, tl.load(scores + m + token, mask=inside, other=0.0)


@triton.jit
def softplus_sigmoid(u):
    """`log(1 + e^u)` and its derivative, for every size of u."""
    small = tl.exp(-tl.abs(u))
    # log(1 + small) rounds small away below 6e-8: use the series there.
    tail = tl.where(small < 1e-3, small * (1.0 - 0.5 * small), tl.log(1.0 + small))
    return tl.maximum(u, 0.0) + tail, tl.where(u >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def attend_kernel(
    ids, offsets, labels, order, counter_a, scores, weights, losses,
    n, m,
    BATCH: tl.constexpr, BLOCK: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """One program per sequence of this rank's part of the batch: softmax, output, loss, and its terms of c and e."""
    begun = tl.load(counter_a) * BATCH
    inside_batch = tl.minimum(n - begun, BATCH)
    within = inside_batch * RANK // RANKS + tl.program_id(0)
    if within < inside_batch * (RANK + 1) // RANKS:
        place = begun + within
        rows = inside_batch.to(tl.float32)
        row = tl.load(order + place)
        begin = tl.load(offsets + row)
        end = tl.load(offsets + row + 1)

        top = tl.full((BLOCK,), -float("inf"), tl.float32)
        for at in range(begin, end, BLOCK):
            _, _, a, _ = block_scores(ids, scores, m, at, end, BLOCK, SHARPNESS)
            top = tl.maximum(top, a)
        highest = tl.max(top, 0)

        total = tl.zeros((BLOCK,), tl.float32)
        best = tl.full((BLOCK,), -float("inf"), tl.float32)
        for at in range(begin, end, BLOCK):
            _, _, a, b = block_scores(ids, scores, m, at, end, BLOCK, SHARPNESS)
            total += tl.exp(a - highest)
            best = tl.maximum(best, tl.where(a == highest, b, -float("inf")))
        mass = tl.sum(total, 0)
        pivot = tl.max(best, 0)

        moment = tl.zeros((BLOCK,), tl.float32)
        for at in range(begin, end, BLOCK):
            inside, _, a, b = block_scores(ids, scores, m, at, end, BLOCK, SHARPNESS)
            moment += tl.where(inside, tl.exp(a - highest) * (b - pivot), 0.0)
        mean = tl.sum(moment, 0) / mass

        y = tl.load(labels + row)
        loss, sigmoid = softplus_sigmoid(-y * (pivot + mean))
        tl.store(losses + place, loss)
        slope = -y * sigmoid / rows

        for at in range(begin, end, BLOCK):
            inside, token, a, b = block_scores(ids, scores, m, at, end, BLOCK, SHARPNESS)
            e = slope * tl.exp(a - highest) / mass
            tl.atomic_add(weights + token, SHARPNESS * e * ((b - pivot) - mean), mask=inside, sem="relaxed")
            tl.atomic_add(weights + m + token, e, mask=inside, sem="relaxed")


@triton.jit
def heads_gradient_kernel(
    embeddings, weights, partial, counter_a, counter_b,
    m, d: tl.constexpr, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Program (i, j): the sum over rows `i share ..` of c_s E_s and e_s E_s in columns `j COLUMNS ..`."""
    if (tl.program_id(0) == 0) & (tl.program_id(1) == 0):
        tl.store(counter_b, tl.load(counter_a))
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    lane = tl.arange(0, ROWS)
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, m)
    sum_c = tl.zeros((COLUMNS,), tl.float32)
    sum_e = tl.zeros((COLUMNS,), tl.float32)
    for at in range(first, last, ROWS):
        row = at + lane
        c = tl.load(weights + row, mask=row < last, other=0.0)
        e = tl.load(weights + m + row, mask=row < last, other=0.0)
        # Tokens that are not in the batch have c = e = 0: their rows are not even read.
        wanted = ((c != 0.0) | (e != 0.0))[:, None] & (column < d)[None, :]
        x = tl.load(embeddings + row[:, None] * d + column[None, :], mask=wanted, other=0.0)
        sum_c += tl.sum(c[:, None] * x, 0)
        sum_e += tl.sum(e[:, None] * x, 0)
    base = partial + tl.program_id(0) * 2 * d
    tl.store(base + column, sum_c, mask=column < d)
    tl.store(base + d + column, sum_e, mask=column < d)


@triton.jit
def update_heads_kernel(
    partial, heads, old_heads, first_moment, second_moment, rates, counter_a, counter_b,
    parts, d: tl.constexpr,
    TRAINED: tl.constexpr, B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """AdamW on the first TRAINED of p and v; their old values go to `old_heads`, which the update of E reads.

    A head that is not trained stands in `old_heads` from the beginning.
    """
    step = tl.load(counter_b)
    if tl.program_id(0) == 0:
        tl.store(counter_a, step + 1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < TRAINED * d
    g = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts):
        g += tl.load(partial + part * 2 * d + at, mask=inside, other=0.0)
    tl.store(old_heads + at, tl.load(heads + at, mask=inside, other=0.0), mask=inside)
    adamw(heads, first_moment, second_moment, at, inside, g, rates, step, B1, B2, EPS)


@triton.jit
def update_embeddings_kernel(
    embeddings, first_moment, second_moment, weights, scores, heads, old_heads, rates, counter_b,
    m, d: tl.constexpr,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program per token: AdamW on its embedding with the gradient c p + e v, then its new a and b."""
    s = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < d
    at = s.to(tl.int64) * d + column
    c = tl.load(weights + s)
    e = tl.load(weights + m + s)
    step = tl.load(counter_b)
    p = tl.load(old_heads + column, mask=inside, other=0.0)
    v = tl.load(old_heads + d + column, mask=inside, other=0.0)
    x = adamw(embeddings, first_moment, second_moment, at, inside, c * p + e * v, rates, step, B1, B2, EPS)
    p = tl.load(heads + column, mask=inside, other=0.0)
    v = tl.load(heads + d + column, mask=inside, other=0.0)
    tl.store(scores + s, tl.sum(x * p, 0))
    tl.store(scores + m + s, tl.sum(x * v, 0))
    tl.store(weights + s, 0.0)
    tl.store(weights + m + s, 0.0)
