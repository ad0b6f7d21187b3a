"""Triton kernels of the two-layer step that go back from the loss to the parameters; see `two_layer_kernels.py`.

- `gram_gradient_kernel`: `dG + dG'` of all paths, and the gradients of `C p`, `C v` and mu;
- `embedding_gradient_kernel`: `(dG + dG') C_X`;
- `heads_gradient_kernel`: the gradients of p and v from those of `C p` and `C v`;
- `update_embeddings_kernel`: sums the gradient of each token over its occurrences, takes the step of AdamW, and leaves
  the next step's C, `C p`, `C v` and mu.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenmargin.training.one_layer_kernels import adamw
from tokenmargin.training.two_layer_kernels import sequence, tile, tile_of_program


@triton.jit
def _softmax_back(A, product, g_p, g_v, twice, taken, c_p, c_v):
    """`A (dB - sum A dB)` of a tile, from its rows' gradients and its columns' `C p` and `C v`."""
    dB = twice[:, None] * product + g_p[:, None] * c_p[None, :] + g_v[:, None] * c_v[None, :]
    return A * (dB - taken[:, None])


@triton.jit
def gram_gradient_kernel(
    weights, product, back, columns, ids, offsets, order, counter, together, gradient,
    m, d: tl.constexpr,
    BATCH: tl.constexpr, U: tl.constexpr, SIDE: tl.constexpr, DEPTH: tl.constexpr, SHARPNESS: tl.constexpr,
):  # fmt: skip
    """Program (tile, b): one tile of `dG + dG'` on or above the diagonal and its mirror image.

    It also adds to `gradient`: the gradients of `C p` and `C v`, which are `B'` times the rows' gradients, and of mu.
    """
    b, begin, u, first, second = tile_of_program(order, offsets, counter, BATCH, U, SIDE)
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
        squares = tl.zeros((SIDE, SIDE), tl.float32)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            q = tl.load(back + (2 * BATCH + b) * U + k, mask=k < u, other=0.0)
            left = tl.trans(tile(weights, b, k, i, u, U))
            right = q[:, None] * tile(weights, b, k, j, u, U)
            squares = tl.dot(left, right, squares, input_precision="tf32x3")
        total += squares
        inside = (i < u)[:, None] & (j < u)[None, :]
        base = together + b.to(tl.int64) * U * U
        tl.store(base + i[:, None] * U + j[None, :], total, mask=inside)
        if second > first:
            tl.store(base + j[:, None] * U + i[None, :], tl.trans(total), mask=tl.trans(inside))


@triton.jit
def _split_parts(x, PART: tl.constexpr):
    """x as a sum of three numbers of type PART; three bfloat16 numbers have 24 bits together, as float32 has."""
    first = x.to(PART)
    rest = x - first.to(tl.float32)
    second = rest.to(PART)
    return first, second, (rest - second.to(tl.float32)).to(PART)


@triton.jit
def embedding_gradient_kernel(
    together,
    parts,
    ids, offsets, order, counter, pulled,
    m, d: tl.constexpr,
    BATCH: tl.constexpr, U: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Program (columns, rows, b): a tile of `(dG + dG') C_X`, from the three 16-bit parts of C.

    Tensor cores take a factor whose sum runs across memory, as here, in 16 bits only. With three bfloat16 parts of
    each factor, the six largest products of parts have the accuracy of float32.
    """
    b = tl.program_id(2)
    _, begin, u = sequence(order, offsets, counter, b, BATCH)
    if tl.program_id(1) * ROWS < u:
        i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
        c = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        size = m.to(tl.int64) * d
        inside = (c < d)[None, :]
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for at in range(0, u, DEPTH):
            k = at + tl.arange(0, DEPTH)
            x = tl.load(ids + begin + k, mask=k < u, other=0).to(tl.int64)
            where = parts + x[:, None] * d + c[None, :]
            c_1 = tl.load(where, mask=inside, other=0.0)
            c_2 = tl.load(where + size, mask=inside, other=0.0)
            c_3 = tl.load(where + 2 * size, mask=inside, other=0.0)
            f_1, f_2, f_3 = _split_parts(tile(together, b, i, k, u, U), parts.dtype.element_ty)
            total = tl.dot(f_3, c_1, total)  # the smallest products first
            total = tl.dot(f_2, c_2, total)
            total = tl.dot(f_1, c_3, total)
            total = tl.dot(f_2, c_1, total)
            total = tl.dot(f_1, c_2, total)
            total = tl.dot(f_1, c_1, total)
        where = (b.to(tl.int64) * U + i)[:, None] * d + c[None, :]
        tl.store(pulled + where, total, mask=(i < u)[:, None] & (c < d)[None, :])


@triton.jit
def heads_gradient_kernel(centred, gradient, sums, m, d: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Program (columns, rows): four blocks of rows of C, weighted by the gradients of `C p` and `C v`, and summed."""
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
def update_embeddings_kernel(
    embeddings, first_moment, second_moment, centred,
    parts,
    columns, gradient, pulled, occurrences, starts, old_vectors, new_vectors, rates, counter,
    m, d: tl.constexpr,
    B1: tl.constexpr, B2: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Program s: AdamW on the embedding of token s, then its centred form and products with the new p and v."""
    s = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    inside = c < d
    at = s.to(tl.int64) * d + c
    step = tl.load(counter)
    g = tl.load(gradient + s) * tl.load(old_vectors + c, mask=inside, other=0.0)
    g += tl.load(gradient + m + s) * tl.load(old_vectors + d + c, mask=inside, other=0.0)
    g += tl.load(gradient + 2 * m + s) / d
    begin = tl.load(starts + step * m + s)
    end = tl.load(starts + step * m + s + 1)
    for k in range(begin, end):
        place = tl.load(occurrences + k)
        g += tl.load(pulled + place.to(tl.int64) * d + c, mask=inside, other=0.0)
    x = adamw(embeddings, first_moment, second_moment, at, inside, g, rates, step, B1, B2, EPS)
    mu = tl.sum(tl.where(inside, x, 0.0), 0) / d
    x = tl.where(inside, x - mu, 0.0)
    tl.store(centred + at, x, mask=inside)
    first, second, third = _split_parts(x, parts.dtype.element_ty)
    size = m.to(tl.int64) * d
    tl.store(parts + at, first, mask=inside)
    tl.store(parts + size + at, second, mask=inside)
    tl.store(parts + 2 * size + at, third, mask=inside)
    tl.store(columns + s, tl.sum(x * tl.load(new_vectors + c, mask=inside, other=0.0), 0))
    tl.store(columns + m + s, tl.sum(x * tl.load(new_vectors + d + c, mask=inside, other=0.0), 0))
    tl.store(columns + 2 * m + s, mu)
