"""Triton kernels of the two-layer step; imported only where a GPU is used.

One launch each for a whole batch of ragged sequences: a program that finds its tile outside its sequence ends at once,
so the work is that of the tokens there are, and one captured graph serves every batch. With the letters of
`two_layer.py`:

- `gram_kernel`: `G = C_X C_X'`, the rows of C gathered on the way, the lower triangle copied from the upper;
- `soften_kernel`: the first softmax A, and `B C p`, `B C v`;
- `mix_kernel`: `B G` and the diagonal of `B G B'`;
- `attend_kernel`: the second softmax, the loss, and the gradients with respect to the rows of `B C_X`;
- `combine_kernel`: `dG + dG'` of all paths, and the gradients of `C p`, `C v` and mu;
- `pull_kernel`: `(dG + dG') C_X`;
- `heads_kernel`: the gradients of p and v from those of `C p` and `C v`;
- `settle_kernel`: the gradient of each token from its occurrences, AdamW, and the next step's C, `C p`, `C v` and mu.

Products run on tensor cores, in PRECISION "tf32x3" (each factor split in two; the error is that of float32 sums) or
"tf32".
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenmargin.training.kernels import adamw


@triton.jit
def _sequence(order, offsets, counter, b, BATCH: tl.constexpr):
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
def _tile(matrix, b, i, j, u, U: tl.constexpr):
    """The entries (i, j) of the b-th matrix; zero outside its u x u part."""
    inside = (i < u)[:, None] & (j < u)[None, :]
    return tl.load(matrix + (b.to(tl.int64) * U + i)[:, None] * U + j[None, :], mask=inside, other=0.0)


@triton.jit
def gram_kernel(
    centred,
    ids,
    offsets,
    order,
    counter,
    gram,
    d: tl.constexpr,
    BATCH: tl.constexpr,
    U: tl.constexpr,
    SIDE: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile, b): one tile of G on or above the diagonal, and its mirror image."""
    b = tl.program_id(1)
    _, begin, u = _sequence(order, offsets, counter, b, BATCH)
    first = tl.program_id(0) // (U // SIDE)
    second = tl.program_id(0) % (U // SIDE)
    if (second >= first) & (second * SIDE < u):
        i = first * SIDE + tl.arange(0, SIDE)
        j = second * SIDE + tl.arange(0, SIDE)
        x = tl.load(ids + begin + i, mask=i < u, other=0).to(tl.int64) * d
        y = tl.load(ids + begin + j, mask=j < u, other=0).to(tl.int64) * d
        total = tl.zeros((SIDE, SIDE), tl.float32)
        for at in range(0, d, DEPTH):
            k = at + tl.arange(0, DEPTH)
            left = tl.load(centred + x[:, None] + k[None, :], mask=(k < d)[None, :], other=0.0)
            right = tl.load(centred + y[:, None] + k[None, :], mask=(k < d)[None, :], other=0.0)
            total = tl.dot(left, tl.trans(right), total, input_precision=PRECISION)
        base = gram + b.to(tl.int64) * U * U
        inside = (i < u)[:, None] & (j < u)[None, :]
        tl.store(base + i[:, None] * U + j[None, :], total, mask=inside)
        if second > first:
            tl.store(base + j[:, None] * U + i[None, :], tl.trans(total), mask=tl.trans(inside))


@triton.jit
def soften_kernel(
    gram,
    columns,
    ids,
    counts,
    offsets,
    order,
    counter,
    weights,
    mixed,
    squares,
    m,
    d: tl.constexpr,
    BATCH: tl.constexpr,
    U: tl.constexpr,
    SIDE: tl.constexpr,
    COLUMNS: tl.constexpr,
    SHARPNESS: tl.constexpr,
):
    """Program (rows, b): A of some rows, and their `B C p` and `B C v`; clears the sums the next kernel adds to."""
    b = tl.program_id(1)
    _, begin, u = _sequence(order, offsets, counter, b, BATCH)
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
            logits = _tile(gram, b, i, j, u, U) + mean[:, None] * tl.load(columns + 2 * m + other)[None, :]
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
            logits = _tile(gram, b, i, j, u, U) + mean[:, None] * tl.load(columns + 2 * m + other)[None, :]
            count = tl.load(counts + begin + j, mask=j < u, other=1.0)
            logits = SHARPNESS * logits + tl.log(count)[None, :]
            inside = (i < u)[:, None] & (j < u)[None, :]
            value = tl.exp(logits - top[:, None]) / mass[:, None]
            tl.store(weights + (b.to(tl.int64) * U + i)[:, None] * U + j[None, :], value, mask=inside)
        tl.store(mixed + b * U + i, p / mass + tl.load(columns + token), mask=i < u)
        tl.store(mixed + (BATCH + b) * U + i, v / mass + tl.load(columns + m + token), mask=i < u)
        tl.store(squares + b * U + i, tl.zeros((SIDE,), tl.float32), mask=i < u)


@triton.jit
def mix_kernel(
    weights,
    gram,
    offsets,
    order,
    counter,
    product,
    squares,
    BATCH: tl.constexpr,
    U: tl.constexpr,
    SIDE: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile, b): one tile of `B G`; the squared lengths of the rows of `B C_X`, and the diagonal of `B G`."""
    b = tl.program_id(1)
    _, _, u = _sequence(order, offsets, counter, b, BATCH)
    first = tl.program_id(0) // (U // SIDE)
    second = tl.program_id(0) % (U // SIDE)
    if (first * SIDE < u) & (second * SIDE < u):
        i = first * SIDE + tl.arange(0, SIDE)
        j = second * SIDE + tl.arange(0, SIDE)
        total = _tile(gram, b, i, j, u, U)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            # G is symmetric: its tile (j, k), transposed, is the factor (k, j) with k along memory.
            right = tl.trans(_tile(gram, b, j, k, u, U))
            total = tl.dot(_tile(weights, b, i, k, u, U), right, total, input_precision=PRECISION)
        where = (b.to(tl.int64) * U + i)[:, None] * U + j[None, :]
        tl.store(product + where, total, mask=(i < u)[:, None] & (j < u)[None, :])
        square = tl.sum(_tile(weights, b, i, j, u, U) * total, 1)
        if first == second:
            diagonal = tl.sum(tl.where(i[:, None] == j[None, :], total, 0.0), 1)
            tl.store(squares + (BATCH + b) * U + i, diagonal, mask=i < u)
            square += diagonal
        tl.atomic_add(squares + b * U + i, square, mask=i < u, sem="relaxed")


@triton.jit
def attend_kernel(
    mixed,
    squares,
    columns,
    ids,
    counts,
    labels,
    offsets,
    order,
    counter,
    offset,
    back,
    losses,
    slopes,
    m,
    d: tl.constexpr,
    BATCH: tl.constexpr,
    U: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARPNESS: tl.constexpr,
    EPSILON: tl.constexpr,
):
    """Program b: the second softmax, the output and the loss.

    `back` receives, for every row: the gradients of `B C p` and of `B C v`, twice that of its squared length, and what
     the softmax of the first layer subtracts, `sum_j A_ij dB_ij`.
    """
    b = tl.program_id(0)
    row, begin, u = _sequence(order, offsets, counter, b, BATCH)
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
        against = -y * (f + tl.load(offset))
        small = tl.exp(-tl.abs(against))
        # log(1 + small) rounds small away below 6e-8: use the series there.
        tail = tl.where(small < 1e-3, small * (1.0 - 0.5 * small), tl.log(1.0 + small))
        tl.store(losses + place, tl.maximum(against, 0.0) + tail)
        sigmoid = tl.where(against >= 0, 1.0, small) / (1.0 + small)
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


@triton.jit
def _softmax_back(A, product, g_p, g_v, twice, taken, c_p, c_v):
    """`A (dB - sum A dB)` of a tile, from its rows' gradients and its columns' `C p` and `C v`."""
    dB = twice[:, None] * product + g_p[:, None] * c_p[None, :] + g_v[:, None] * c_v[None, :]
    return A * (dB - taken[:, None])


@triton.jit
def combine_kernel(
    weights,
    product,
    back,
    columns,
    ids,
    offsets,
    order,
    counter,
    together,
    gradient,
    m,
    d: tl.constexpr,
    BATCH: tl.constexpr,
    U: tl.constexpr,
    SIDE: tl.constexpr,
    DEPTH: tl.constexpr,
    SHARPNESS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Program (tile, b): one tile of `dG + dG'` on or above the diagonal and its mirror image.

    Added to `gradient` on the way: those of `C p` and `C v`, `B'` times the rows' gradients, and that of mu.
    """
    b = tl.program_id(1)
    _, begin, u = _sequence(order, offsets, counter, b, BATCH)
    first = tl.program_id(0) // (U // SIDE)
    second = tl.program_id(0) % (U // SIDE)
    if (second >= first) & (second * SIDE < u):
        i = first * SIDE + tl.arange(0, SIDE)
        j = second * SIDE + tl.arange(0, SIDE)
        x = tl.load(ids + begin + i, mask=i < u, other=0)
        y = tl.load(ids + begin + j, mask=j < u, other=0)
        p_i = tl.load(back + b * U + i, mask=i < u, other=0.0)
        v_i = tl.load(back + (BATCH + b) * U + i, mask=i < u, other=0.0)
        q_i = tl.load(back + (2 * BATCH + b) * U + i, mask=i < u, other=0.0)
        t_i = tl.load(back + (3 * BATCH + b) * U + i, mask=i < u, other=0.0)
        p_j = tl.load(back + b * U + j, mask=j < u, other=0.0)
        v_j = tl.load(back + (BATCH + b) * U + j, mask=j < u, other=0.0)
        q_j = tl.load(back + (2 * BATCH + b) * U + j, mask=j < u, other=0.0)
        t_j = tl.load(back + (3 * BATCH + b) * U + j, mask=j < u, other=0.0)
        A_ij = _tile(weights, b, i, j, u, U)
        A_ji = _tile(weights, b, j, i, u, U)
        c_p, c_v = tl.load(columns + y), tl.load(columns + m + y)
        e_p, e_v = tl.load(columns + x), tl.load(columns + m + x)
        upper = _softmax_back(A_ij, _tile(product, b, i, j, u, U), p_i, v_i, q_i, t_i, c_p, c_v)
        lower = _softmax_back(A_ji, _tile(product, b, j, i, u, U), p_j, v_j, q_j, t_j, e_p, e_v)
        total = SHARPNESS * (upper + tl.trans(lower))

        mu_x, mu_y = tl.load(columns + 2 * m + x), tl.load(columns + 2 * m + y)
        tl.atomic_add(gradient + 2 * m + x, d * tl.sum(total * mu_y[None, :], 1), mask=i < u, sem="relaxed")
        tl.atomic_add(gradient + y, tl.sum(A_ij * p_i[:, None], 0), mask=j < u, sem="relaxed")
        tl.atomic_add(gradient + m + y, tl.sum(A_ij * v_i[:, None], 0), mask=j < u, sem="relaxed")
        if second > first:
            tl.atomic_add(gradient + 2 * m + y, d * tl.sum(total * mu_x[:, None], 0), mask=j < u, sem="relaxed")
            tl.atomic_add(gradient + x, tl.sum(A_ji * p_j[:, None], 0), mask=i < u, sem="relaxed")
            tl.atomic_add(gradient + m + x, tl.sum(A_ji * v_j[:, None], 0), mask=i < u, sem="relaxed")
        else:
            tl.atomic_add(gradient + x, p_i, mask=i < u, sem="relaxed")
            tl.atomic_add(gradient + m + x, v_i, mask=i < u, sem="relaxed")

        # The squared lengths: B' diag(q) B = A' diag(q) A + diag(q) A + A' diag(q) + diag(q), with q as in `back`.
        total += q_i[:, None] * A_ij + tl.trans(q_j[:, None] * A_ji)
        total += tl.where(i[:, None] == j[None, :], q_i[:, None], 0.0)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            q = tl.load(back + (2 * BATCH + b) * U + k, mask=k < u, other=0.0)
            left = tl.trans(_tile(weights, b, k, i, u, U))
            total = tl.dot(left, q[:, None] * _tile(weights, b, k, j, u, U), total, input_precision=PRECISION)
        inside = (i < u)[:, None] & (j < u)[None, :]
        base = together + b.to(tl.int64) * U * U
        tl.store(base + i[:, None] * U + j[None, :], total, mask=inside)
        if second > first:
            tl.store(base + j[:, None] * U + i[None, :], tl.trans(total), mask=tl.trans(inside))


@triton.jit
def _split(x, PART: tl.constexpr):
    """x as a sum of three numbers of type PART: for bfloat16, 24 bits together."""
    first = x.to(PART)
    rest = x - first.to(tl.float32)
    second = rest.to(PART)
    return first, second, (rest - second.to(tl.float32)).to(PART)


@triton.jit
def pull_kernel(
    together,
    parts,
    ids,
    offsets,
    order,
    counter,
    pulled,
    m,
    d: tl.constexpr,
    BATCH: tl.constexpr,
    U: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program (columns, rows, b): a tile of `(dG + dG') C_X`, from the bfloat16 parts of C.

    Tensor cores take a factor whose sum runs across memory, as here, in 16 bits only. Three parts of each factor and
    the six largest products make float32; two parts and three products are nearer to it than TF32.
    """
    b = tl.program_id(2)
    _, begin, u = _sequence(order, offsets, counter, b, BATCH)
    if tl.program_id(1) * ROWS < u:
        i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        size = m.to(tl.int64) * d
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            x = tl.load(ids + begin + k, mask=k < u, other=0).to(tl.int64) * d
            where = parts + x[:, None] + c[None, :]
            inside = (c < d)[None, :]
            c_1 = tl.load(where, mask=inside, other=0.0)
            c_2 = tl.load(where + size, mask=inside, other=0.0)
            f_1, f_2, f_3 = _split(_tile(together, b, i, k, u, U), parts.dtype.element_ty)
            if PARTS == 3:
                c_3 = tl.load(where + 2 * size, mask=inside, other=0.0)
                total = tl.dot(f_3, c_1, total)
                total = tl.dot(f_2, c_2, total)
                total = tl.dot(f_1, c_3, total)
            total = tl.dot(f_2, c_1, total)
            total = tl.dot(f_1, c_2, total)
            total = tl.dot(f_1, c_1, total)
        where = (b.to(tl.int64) * U + i)[:, None] * d + c[None, :]
        tl.store(pulled + where, total, mask=(i < u)[:, None] & (c < d)[None, :])


@triton.jit
def heads_kernel(centred, gradient, sums, m, d: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (columns, rows): the rows of C, four blocks of them, weighted by the gradients of `C p` and `C v`."""
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    p = tl.zeros((COLUMNS,), tl.float32)
    v = tl.zeros((COLUMNS,), tl.float32)
    for block in range(4):
        s = (tl.program_id(1) * 4 + block) * ROWS + tl.arange(0, ROWS)
        inside = (s < m)[:, None] & (c < d)[None, :]
        x = tl.load(centred + s.to(tl.int64)[:, None] * d + c[None, :], mask=inside, other=0.0)
        p += tl.sum(x * tl.load(gradient + s, mask=s < m, other=0.0)[:, None], 0)
        v += tl.sum(x * tl.load(gradient + m + s, mask=s < m, other=0.0)[:, None], 0)
    tl.atomic_add(sums + c, p, mask=c < d, sem="relaxed")
    tl.atomic_add(sums + d + c, v, mask=c < d, sem="relaxed")


@triton.jit
def settle_kernel(
    embeddings,
    first_moment,
    second_moment,
    centred,
    parts,
    columns,
    gradient,
    pulled,
    occurrences,
    starts,
    before,
    after,
    rates,
    counter,
    m,
    d: tl.constexpr,
    B1: tl.constexpr,
    B2: tl.constexpr,
    EPS: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Program s: AdamW on the embedding of token s, then its centred form and products with the new p and v."""
    s = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < d
    at = s.to(tl.int64) * d + c
    step = tl.load(counter)
    g = tl.load(gradient + s) * tl.load(before + c, mask=inside, other=0.0)
    g += tl.load(gradient + m + s) * tl.load(before + d + c, mask=inside, other=0.0)
    g += tl.load(gradient + 2 * m + s) / d
    begin = tl.load(starts + step * m + s)
    end = tl.load(starts + step * m + s + 1)
    for k in range(begin, end):
        g += tl.load(pulled + tl.load(occurrences + k).to(tl.int64) * d + c, mask=inside, other=0.0)
    x = tl.load(embeddings + at, mask=inside, other=0.0)
    mean = tl.load(first_moment + at, mask=inside, other=0.0, eviction_policy="evict_first")
    square = tl.load(second_moment + at, mask=inside, other=0.0, eviction_policy="evict_first")
    x, mean, square = adamw(x, g, mean, square, rates, step, B1, B2, EPS)
    tl.store(embeddings + at, x, mask=inside)
    tl.store(first_moment + at, mean, mask=inside, eviction_policy="evict_first")
    tl.store(second_moment + at, square, mask=inside, eviction_policy="evict_first")
    mu = tl.sum(tl.where(inside, x, 0.0), 0) / d
    x = tl.where(inside, x - mu, 0.0)
    tl.store(centred + at, x, mask=inside)
    first, second, third = _split(x, parts.dtype.element_ty)
    size = m.to(tl.int64) * d
    tl.store(parts + at, first, mask=inside)
    tl.store(parts + size + at, second, mask=inside)
    if PARTS == 3:
        tl.store(parts + 2 * size + at, third, mask=inside)
    tl.store(columns + s, tl.sum(x * tl.load(after + c, mask=inside, other=0.0), 0))
    tl.store(columns + m + s, tl.sum(x * tl.load(after + d + c, mask=inside, other=0.0), 0))
    tl.store(columns + 2 * m + s, mu)
