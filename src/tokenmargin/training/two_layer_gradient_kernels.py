"""Triton kernels of the two-layer step from the loss back to the parameters; see `two_layer_kernels.py`.

- `combine_kernel`: `dG + dG'` of all paths, and the gradients of `C p`, `C v` and mu;
- `pull_kernel`: `(dG + dG') C_X`;
- `heads_kernel`: the gradients of p and v from those of `C p` and `C v`;
- `settle_kernel`: the gradient of each token from its occurrences, AdamW, and the next step's C, `C p`, `C v` and mu.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenmargin.training.kernels import adamw
from tokenmargin.training.two_layer_kernels import sequence, tile


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
    scales,
    bounds,
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

    Added to `gradient` on the way: those of `C p` and `C v`, `B'` times the rows' gradients, and that of mu. With
    "tf32" `bounds[b]` becomes the largest entry of `dG + dG'` times the scale of its column: what float16 must hold.
    """
    b = tl.program_id(1)
    _, begin, u = sequence(order, offsets, counter, b, BATCH)
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
        A_ij = tile(weights, b, i, j, u, U)
        A_ji = tile(weights, b, j, i, u, U)
        c_p, c_v = tl.load(columns + y), tl.load(columns + m + y)
        e_p, e_v = tl.load(columns + x), tl.load(columns + m + x)
        upper = _softmax_back(A_ij, tile(product, b, i, j, u, U), p_i, v_i, q_i, t_i, c_p, c_v)
        lower = _softmax_back(A_ji, tile(product, b, j, i, u, U), p_j, v_j, q_j, t_j, e_p, e_v)
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
        peak = tl.load(bounds + BATCH + b)
        unit = 1.0 if PRECISION == "tf32x3" else tl.where(peak > 0, peak, 1.0)  # of q, so that float16 holds it
        FACTOR: tl.constexpr = tl.float32 if PRECISION == "tf32x3" else tl.float16  # A lies between 0 and 1
        squares = tl.zeros((SIDE, SIDE), tl.float32)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            q = tl.load(back + (2 * BATCH + b) * U + k, mask=k < u, other=0.0) / unit
            left = tl.trans(tile(weights, b, k, i, u, U).to(FACTOR))
            right = (q[:, None] * tile(weights, b, k, j, u, U)).to(FACTOR)
            squares = tl.dot(left, right, squares, input_precision=PRECISION)
        total += squares * unit
        inside = (i < u)[:, None] & (j < u)[None, :]
        if PRECISION == "tf32":
            scale = tl.maximum(tl.load(scales + x)[:, None], tl.load(scales + y)[None, :])
            tl.atomic_max(bounds + b, tl.max(tl.where(inside, tl.abs(total) * scale, 0.0)), sem="relaxed")
        base = together + b.to(tl.int64) * U * U
        tl.store(base + i[:, None] * U + j[None, :], total, mask=inside)
        if second > first:
            tl.store(base + j[:, None] * U + i[None, :], tl.trans(total), mask=tl.trans(inside))


@triton.jit
def _split_parts(x, PART: tl.constexpr):
    """x as a sum of three numbers of type PART: for bfloat16, 24 bits together."""
    first = x.to(PART)
    rest = x - first.to(tl.float32)
    second = rest.to(PART)
    return first, second, (rest - second.to(tl.float32)).to(PART)


@triton.jit
def pull_kernel(
    together,
    parts,
    scales,
    bounds,
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
    """Program (columns, rows, b): a tile of `(dG + dG') C_X`, from the 16-bit parts of C.

    Tensor cores take a factor whose sum runs across memory, as here, in 16 bits only. Three bfloat16 parts of each
    factor and the six largest products make float32; one float16 part of each has the 11 bits of TF32.
    """
    b = tl.program_id(2)
    _, begin, u = sequence(order, offsets, counter, b, BATCH)
    if tl.program_id(1) * ROWS < u:
        i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        size = m.to(tl.int64) * d
        inside = (c < d)[None, :]
        bound = tl.load(bounds + b)
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            x = tl.load(ids + begin + k, mask=k < u, other=0).to(tl.int64)
            where = parts + x[:, None] * d + c[None, :]
            c_1 = tl.load(where, mask=inside, other=0.0)
            factor = tile(together, b, i, k, u, U)
            if PARTS == 1:
                factor *= tl.load(scales + x)[None, :] * tl.where(bound > 0, 1.0 / bound, 0.0)
                total = tl.dot(factor.to(tl.float16), c_1, total)
            else:
                c_2 = tl.load(where + size, mask=inside, other=0.0)
                c_3 = tl.load(where + 2 * size, mask=inside, other=0.0)
                f_1, f_2, f_3 = _split_parts(factor, parts.dtype.element_ty)
                total = tl.dot(f_3, c_1, total)
                total = tl.dot(f_2, c_2, total)
                total = tl.dot(f_1, c_3, total)
                total = tl.dot(f_2, c_1, total)
                total = tl.dot(f_1, c_2, total)
                total = tl.dot(f_1, c_1, total)
        where = (b.to(tl.int64) * U + i)[:, None] * d + c[None, :]
        # In float16 the bound is left to the reader: without it no sum exceeds u.
        tl.store(pulled + where, total.to(pulled.dtype.element_ty), mask=(i < u)[:, None] & (c < d)[None, :])


@triton.jit
def heads_kernel(rows, scales, gradient, sums, m, d: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (columns, rows): the rows of C, four blocks of them, weighted by the gradients of `C p` and `C v`.

    `rows` and `scales` are those of `gram_kernel`.
    """
    c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    p = tl.zeros((COLUMNS,), tl.float32)
    v = tl.zeros((COLUMNS,), tl.float32)
    for block in range(4):
        s = (tl.program_id(1) * 4 + block) * ROWS + tl.arange(0, ROWS)
        inside = (s < m)[:, None] & (c < d)[None, :]
        x = tl.load(rows + s.to(tl.int64)[:, None] * d + c[None, :], mask=inside, other=0.0)
        if rows.dtype.element_ty == tl.float16:
            x = x.to(tl.float32) * tl.load(scales + s, mask=s < m, other=0.0)[:, None]
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
    scales,
    columns,
    gradient,
    pulled,
    bounds,
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
    U: tl.constexpr,
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
        place = tl.load(occurrences + k)
        part = tl.load(pulled + place.to(tl.int64) * d + c, mask=inside, other=0.0)
        if PARTS == 1:
            g += part.to(tl.float32) * tl.load(bounds + place // U)
        else:
            g += part
    x = tl.load(embeddings + at, mask=inside, other=0.0)
    mean = tl.load(first_moment + at, mask=inside, other=0.0, eviction_policy="evict_first")
    square = tl.load(second_moment + at, mask=inside, other=0.0, eviction_policy="evict_first")
    x, mean, square = adamw(x, g, mean, square, rates, step, B1, B2, EPS)
    tl.store(embeddings + at, x, mask=inside)
    tl.store(first_moment + at, mean, mask=inside, eviction_policy="evict_first")
    tl.store(second_moment + at, square, mask=inside, eviction_policy="evict_first")
    mu = tl.sum(tl.where(inside, x, 0.0), 0) / d
    x = tl.where(inside, x - mu, 0.0)
    if PARTS == 1:
        peak = tl.max(tl.abs(x), 0)
        scale = tl.where(peak > 0, peak, 1.0)
        tl.store(scales + s, scale)
        tl.store(parts + at, (x / scale).to(tl.float16), mask=inside)
    else:
        tl.store(centred + at, x, mask=inside)
        first, second, third = _split_parts(x, parts.dtype.element_ty)
        size = m.to(tl.int64) * d
        tl.store(parts + at, first, mask=inside)
        tl.store(parts + size + at, second, mask=inside)
        tl.store(parts + 2 * size + at, third, mask=inside)
    tl.store(columns + s, tl.sum(x * tl.load(after + c, mask=inside, other=0.0), 0))
    tl.store(columns + m + s, tl.sum(x * tl.load(after + d + c, mask=inside, other=0.0), 0))
    tl.store(columns + 2 * m + s, mu)
