"""Triton kernels of the two-layer step up to the loss; imported only where a GPU is used.

Each kernel is launched once for a whole batch of ragged sequences. A program whose tile lies outside its sequence ends
at once, so only tokens that exist cost time, and one captured graph serves every batch. With the letters of
`two_layer.py`:

- `gram_kernel`: `G = C_X C_X'`, the rows of C gathered on the way, the lower triangle copied from the upper;
- `softmax_kernel`: the first softmax A, and `B C p`, `B C v`;
- `product_kernel`: `B G` and the diagonal of `B G B'`;
- `attend_kernel`: the second softmax, the loss, and the gradients with respect to the rows of `B C_X`.

Products run on tensor cores. "tf32x3" splits each factor into parts, so the error is that of float32 sums.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenmargin.training.one_layer_kernels import softplus_sigmoid


@triton.jit
def sequence(order, offsets, counter, b, BATCH: tl.constexpr):
    """Row of the batch's b-th sequence, where its distinct tokens begin, and how many there are.

    `counter` holds the number of the batch and the number of rows in `order`; past the end there are no tokens.
    """
    n = tl.load(counter + 1)
    place = tl.load(counter) * BATCH + b
    row = tl.load(order + place, mask=place < n, other=0)
    begin = tl.load(offsets + row)
    count = tl.where(place < n, tl.load(offsets + row + 1) - begin, 0).to(tl.int32)
    return row, begin, count


@triton.jit
def tile_of_program(order, offsets, counter, BATCH: tl.constexpr, U: tl.constexpr, SIDE: tl.constexpr):
    """Of program (tile, b): b, where its distinct tokens begin, how many there are, and the tile's row and column."""
    b = tl.program_id(1)
    _, begin, u = sequence(order, offsets, counter, b, BATCH)
    return b, begin, u, tl.program_id(0) // (U // SIDE), tl.program_id(0) % (U // SIDE)


@triton.jit
def tile(matrix, b, i, j, u, U: tl.constexpr):
    """The entries (i, j) of the b-th matrix; zero outside its u x u part."""
    inside = (i < u)[:, None] & (j < u)[None, :]
    return tl.load(matrix + (b.to(tl.int64) * U + i)[:, None] * U + j[None, :], mask=inside, other=0.0)


@triton.jit
def gram_kernel(
    centred, ids, offsets, order, counter, gram,
    d: tl.constexpr,
    BATCH: tl.constexpr, U: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (tile, b): one tile of G on or above the diagonal, and its mirror image; `centred` is C."""
    b, begin, u, first, second = tile_of_program(order, offsets, counter, BATCH, U, SIDE)
    if (second >= first) & (second * SIDE < u):
        i = first * SIDE + tl.arange(0, SIDE)
        j = second * SIDE + tl.arange(0, SIDE)
        x = tl.load(ids + begin + i, mask=i < u, other=0).to(tl.int64)
        y = tl.load(ids + begin + j, mask=j < u, other=0).to(tl.int64)
        total = tl.zeros((SIDE, SIDE), tl.float32)
        for at in range(0, d, DEPTH):
            k = at + tl.arange(0, DEPTH)
            left = tl.load(centred + x[:, None] * d + k[None, :], mask=(k < d)[None, :], other=0.0)
            right = tl.load(centred + y[:, None] * d + k[None, :], mask=(k < d)[None, :], other=0.0)
            total = tl.dot(left, tl.trans(right), total, input_precision="tf32x3")
        base = gram + b.to(tl.int64) * U * U
        inside = (i < u)[:, None] & (j < u)[None, :]
        tl.store(base + i[:, None] * U + j[None, :], total, mask=inside)
        if second > first:
            tl.store(base + j[:, None] * U + i[None, :], tl.trans(total), mask=tl.trans(inside))


@triton.jit
def softmax_kernel(
    gram, columns, ids, counts, offsets, order, counter, weights, mixed, squares,
    m, d: tl.constexpr,
    BATCH: tl.constexpr, U: tl.constexpr, SIDE: tl.constexpr, COLUMNS: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """Program (rows, b): A of some rows, and their `B C p` and `B C v`; clears the sums the next kernel adds to."""
    b = tl.program_id(1)
    _, begin, u = sequence(order, offsets, counter, b, BATCH)
    if tl.program_id(0) * SIDE < u:
        i = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
        token = tl.load(ids + begin + i, mask=i < u, other=0)
        mean = tl.load(columns + 2 * m + token) * d
        top = tl.full((SIDE,), -float("inf"), tl.float32)
        mass = tl.zeros((SIDE,), tl.float32)
        p = tl.zeros((SIDE,), tl.float32)
        v = tl.zeros((SIDE,), tl.float32)
        # Two passes over the row: the running softmax with its sums, then the weights themselves.
        for at in range(0, u, COLUMNS):
            j = at + tl.arange(0, COLUMNS)
            other = tl.load(ids + begin + j, mask=j < u, other=0)
            logits = tile(gram, b, i, j, u, U) + mean[:, None] * tl.load(columns + 2 * m + other)[None, :]
            count = tl.load(counts + begin + j, mask=j < u, other=1.0)
            logits = tl.where((j < u)[None, :], SHARPNESS * logits + tl.log(count)[None, :], -float("inf"))
            higher = tl.maximum(top, tl.max(logits, 1))
            shrink = tl.exp(top - higher)
            term = tl.exp(logits - higher[:, None])
            mass = mass * shrink + tl.sum(term, 1)
            p = p * shrink + tl.sum(term * tl.load(columns + other)[None, :], 1)
            v = v * shrink + tl.sum(term * tl.load(columns + m + other)[None, :], 1)
            top = higher
        for at in range(0, u, COLUMNS):
            j = at + tl.arange(0, COLUMNS)
            other = tl.load(ids + begin + j, mask=j < u, other=0)
            logits = tile(gram, b, i, j, u, U) + mean[:, None] * tl.load(columns + 2 * m + other)[None, :]
            count = tl.load(counts + begin + j, mask=j < u, other=1.0)
            logits = SHARPNESS * logits + tl.log(count)[None, :]
            inside = (i < u)[:, None] & (j < u)[None, :]
            value = tl.exp(logits - top[:, None]) / mass[:, None]
            tl.store(weights + (b.to(tl.int64) * U + i)[:, None] * U + j[None, :], value, mask=inside)
        tl.store(mixed + b * U + i, p / mass + tl.load(columns + token), mask=i < u)
        tl.store(mixed + (BATCH + b) * U + i, v / mass + tl.load(columns + m + token), mask=i < u)
        tl.store(squares + b * U + i, tl.zeros((SIDE,), tl.float32), mask=i < u)


@triton.jit
def product_kernel(
    weights, gram, offsets, order, counter, product, squares,
    BATCH: tl.constexpr, U: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (tile, b): one tile of `B G`; the squared lengths of the rows of `B C_X`, and the diagonal of `B G`."""
    b, _, u, first, second = tile_of_program(order, offsets, counter, BATCH, U, SIDE)
    if (first * SIDE < u) & (second * SIDE < u):
        i = first * SIDE + tl.arange(0, SIDE)
        j = second * SIDE + tl.arange(0, SIDE)
        total = tile(gram, b, i, j, u, U)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            # G is symmetric: its tile (j, k), transposed, is the factor (k, j) with k along memory.
            right = tl.trans(tile(gram, b, j, k, u, U))
            total = tl.dot(tile(weights, b, i, k, u, U), right, total, input_precision="tf32x3")
        where = (b.to(tl.int64) * U + i)[:, None] * U + j[None, :]
        tl.store(product + where, total, mask=(i < u)[:, None] & (j < u)[None, :])
        square = tl.sum(tile(weights, b, i, j, u, U) * total, 1)
        if first == second:
            diagonal = tl.sum(tl.where(i[:, None] == j[None, :], total, 0.0), 1)
            tl.store(squares + (BATCH + b) * U + i, diagonal, mask=i < u)
            square += diagonal
        tl.atomic_add(squares + b * U + i, square, mask=i < u, sem="relaxed")


@triton.jit
def attend_kernel(
    mixed, squares, columns, ids, counts, labels, offsets, order, counter, offset, back, losses, slopes,
    m, d: tl.constexpr,
    BATCH: tl.constexpr, U: tl.constexpr, BLOCK: tl.constexpr, SHARPNESS: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Program b: the second softmax, the output and the loss.

    `back` receives four numbers for every row: the gradients of `B C p` and of `B C v`, twice the gradient of its
    squared length, and what the softmax of the first layer subtracts, `sum_j A_ij dB_ij`.
    """
    b = tl.program_id(0)
    row, begin, u = sequence(order, offsets, counter, b, BATCH)
    if u > 0:
        lane = tl.arange(0, BLOCK)
        top = tl.full((BLOCK,), -float("inf"), tl.float32)
        mass = tl.zeros((BLOCK,), tl.float32)
        moment = tl.zeros((BLOCK,), tl.float32)
        for at in range(0, u, BLOCK):
            i = at + lane
            r = tl.rsqrt(tl.load(squares + b * U + i, mask=i < u, other=1.0) / d + EPSILON)
            p = r * tl.load(mixed + b * U + i, mask=i < u, other=0.0)
            v = r * tl.load(mixed + (BATCH + b) * U + i, mask=i < u, other=0.0)
            logit = SHARPNESS * p + tl.log(tl.load(counts + begin + i, mask=i < u, other=1.0))
            logit = tl.where(i < u, logit, -float("inf"))
            higher = tl.maximum(top, logit)
            shrink = tl.where(higher > -float("inf"), tl.exp(top - higher), 0.0)
            term = tl.where(i < u, tl.exp(logit - higher), 0.0)
            mass = mass * shrink + term
            moment = moment * shrink + term * v
            top = higher
        highest = tl.max(top, 0)
        scale = tl.exp(top - highest)
        total = tl.sum(mass * scale, 0)
        f = tl.sum(moment * scale, 0) / total

        place = tl.load(counter) * BATCH + b
        y = tl.load(labels + row)
        loss, sigmoid = softplus_sigmoid(-y * (f + tl.load(offset)))
        tl.store(losses + place, loss)
        rows = tl.minimum(tl.load(counter + 1) - tl.load(counter) * BATCH, BATCH).to(tl.float32)
        slope = -y * sigmoid / rows
        tl.atomic_add(slopes, slope, sem="relaxed")

        for at in range(0, u, BLOCK):
            i = at + lane
            square = tl.load(squares + b * U + i, mask=i < u, other=1.0)
            diagonal = tl.load(squares + (BATCH + b) * U + i, mask=i < u, other=0.0)
            r = tl.rsqrt(square / d + EPSILON)
            h_p = tl.load(mixed + b * U + i, mask=i < u, other=0.0)
            h_v = tl.load(mixed + (BATCH + b) * U + i, mask=i < u, other=0.0)
            logit = SHARPNESS * r * h_p + tl.log(tl.load(counts + begin + i, mask=i < u, other=1.0))
            d_v = slope * tl.exp(logit - highest) / total
            d_p = SHARPNESS * d_v * (r * h_v - f)
            # r is a factor of both products, so its gradient comes from both; r is (square / d + eps)^(-1/2).
            twice = -(r * r * r) * (d_p * h_p + d_v * h_v) / d
            g_p = r * d_p
            g_v = r * d_v
            token = tl.load(ids + begin + i, mask=i < u, other=0)
            own_p = tl.load(columns + token)
            own_v = tl.load(columns + m + token)
            taken = twice * (square - diagonal) + g_p * (h_p - own_p) + g_v * (h_v - own_v)
            tl.store(back + b * U + i, g_p, mask=i < u)
            tl.store(back + (BATCH + b) * U + i, g_v, mask=i < u)
            tl.store(back + (2 * BATCH + b) * U + i, twice, mask=i < u)
            tl.store(back + (3 * BATCH + b) * U + i, taken, mask=i < u)
