"""The two-layer model (36) of paper A: `E' = LayerNorm(softmax(E_X E_X') E_X + E_X)`, then attention with p and v.

Two facts make it cheap. Equal tokens of a sequence have equal rows throughout, so a sequence of T tokens is its u <= T
distinct tokens with their counts. And the layer norm enters only through products with p and v. Write `mu_s` for the
mean of the entries of E_s and `C = E - mu 1'` for the centred embeddings. With `G = C_X C_X'` the logits of the first
softmax are `G + d mu mu'`; with `B = softmax + I` the centred row `h_i = (B C_X)_i` has `<h_i, p> = (B C_X p)_i` and
variance `(B G B')_ii / d`: products of u x u matrices. (`|h|^2 / d - mean^2` would cancel when the entries of E share
an offset.) So the vectors of a sequence are read twice: for G, and for the gradient `(dG + dG') C_X`. The gradient that
goes through p, v and the mean has rank three over the vocabulary, and is added once a step. A gain of the layer norm
multiplies p and v, a bias b adds the constant `<b, v>` to the output. The backward pass is written out. AdamW runs over
blocks of rows small enough for the cache, and computes the next step's projections while a block is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import Conventions
from tokenmargin.training.one_layer import BLOCK_BYTES, RowBlocks
from tokenmargin.training.parameters import AdamW, State

EPSILON = 1e-5  # of the layer norm, as in torch
BUCKET_BYTES = 6 << 20  # of the vectors of a bucket, which are read for two products: they stay in the cache
WORTH_A_CALL = 4_000_000  # multiplications from which on a product of one sequence is worth a call of its own


@dataclass(frozen=True, eq=False)
class Bucket:
    """r sequences with similar numbers of distinct tokens, padded to u tokens.

    **Attributes**
    - `ids`, `counts`: the distinct tokens of each and how often they occur, of shape (r, u); padding has count 0.
    - `labels`, `weights`: of each sequence; the weights are those of its loss in the mean over the batch.
    """

    ids: Tensor
    counts: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Projections:
    """The functions of the parameters that the sequences need.

    **Attributes**
    - `centred`: C, of shape (m, d).
    - `columns`: `C p`, `C v` and mu, of shape (m, 3).
    - `offset`: `<b, v>`, the output of the layer norm's bias.
    - `temperature`: what the logits of both softmaxes are divided by.
    """

    centred: Tensor
    columns: Tensor
    offset: Tensor
    temperature: float


@dataclass(frozen=True, eq=False)
class _Forward:
    """What the backward pass needs of the forward pass; the letters are those of the module's text."""

    X: Tensor
    A: Tensor
    B: Tensor
    BG: Tensor
    Y: Tensor  # columns C p, C v, mu
    r: Tensor
    P: Tensor
    V: Tensor
    s: Tensor
    f: Tensor


def _one_by_one(x: Tensor, rows: int) -> bool:
    """Whether the products of so many rows of x with each other are computed one sequence at a time, by oneDNN."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and rows * rows * x.shape[-1] >= WORTH_A_CALL


def times_transposed(A: Tensor, B: Tensor) -> Tensor:
    """`A B'` of two float32 matrices on a CPU.

    torch uses MKL for such products, which does not use the widest registers of every processor. oneDNN does, but
    torch has no batched product by oneDNN.
    """
    by_one_dnn = getattr(torch.ops.mkldnn, "_linear_pointwise", None)  # what torch's own compiler calls
    return A @ B.T if by_one_dnn is None else by_one_dnn(A, B, None, "none", [], "")


def _gram(X: Tensor) -> Tensor:
    """`X X'` of each sequence: (r, u, d) to (r, u, u)."""
    u = X.shape[1]
    if not _one_by_one(X, u):
        return torch.bmm(X, X.mT)
    G = X.new_empty(len(X), u, u)
    half = u // 2
    for x, g in zip(X, G, strict=True):  # symmetric: the upper right quarter is the lower left one
        g[:half, :half] = times_transposed(x[:half], x[:half])
        g[half:] = times_transposed(x[half:], x)
        g[:half, half:] = g[half:, :half].T
    return G


def _products(A: Tensor, B: Tensor) -> Tensor:
    """`A B` of each sequence."""
    if not _one_by_one(B, B.shape[1]):
        return torch.bmm(A, B)
    return torch.stack([times_transposed(a, b.T) for a, b in zip(A, B, strict=True)])


def _add_products(into: Tensor, ids: Tensor, S: Tensor, X: Tensor) -> None:
    """Add the rows of `S X` of each sequence to the rows `ids` of a matrix."""
    if not _one_by_one(X, X.shape[1]):
        into.index_add_(0, ids.reshape(-1), torch.bmm(S, X).reshape(-1, X.shape[2]))
        return
    for rows, s, x in zip(ids, S, X, strict=True):  # added at once, while the product is still in the cache
        into.index_add_(0, rows, times_transposed(s, x.T))


def _forward(params: Projections, bucket: Bucket) -> _Forward:
    d = params.centred.shape[1]
    ids = bucket.ids.reshape(-1)
    X, Y = (matrix.index_select(0, ids).view(*bucket.ids.shape, -1) for matrix in (params.centred, params.columns))
    mu = Y[..., 2]
    G = _gram(X)
    log_counts = torch.log(bucket.counts)  # -inf for padding
    # (G + d mu mu') / temperature + log counts, in one pass over G
    left = torch.stack([mu * (d / params.temperature), torch.ones_like(mu)], dim=2)
    logits = torch.baddbmm(G, left, torch.stack([mu, log_counts], dim=1), beta=1.0 / params.temperature)
    A = torch.softmax(logits, dim=2)
    B = A.clone()
    B.diagonal(dim1=1, dim2=2).add_(1.0)
    BG = _products(B, G)
    r = torch.rsqrt((B * BG).sum(2) / d + EPSILON)
    H = torch.bmm(B, Y[..., :2])
    P, V = r * H[..., 0], r * H[..., 1]
    s = torch.softmax(P / params.temperature + log_counts, dim=1)
    return _Forward(X, A, B, BG, Y, r, P, V, s, (s * V).sum(1))


@dataclass(frozen=True, eq=False)
class Gradient:
    """Sums of the buckets' gradients: of C through G (m, d), of the columns (m, 3), and of the offset ()."""

    embeddings: Tensor
    columns: Tensor
    offset: Tensor

    def zero_(self) -> None:
        """Set all sums to zero."""
        for tensor in vars(self).values():
            tensor.zero_()


def bucket_gradient(params: Projections, bucket: Bucket, *, into: Gradient) -> Tensor:
    """The losses of a bucket's rows. The gradients of their weighted sum are added to `into`."""
    d = params.centred.shape[1]
    x = _forward(params, bucket)
    margin = bucket.labels * (x.f + params.offset)
    slope = -bucket.labels * torch.sigmoid(-margin) * bucket.weights
    dV = slope[:, None] * x.s
    dP = dV * (x.V - x.f[:, None]) / params.temperature
    # r enters P and V as a factor; P / r is the product with the centred row.
    dq = -(x.r * x.r * (dP * x.P + dV * x.V))[..., None] / d
    dH = torch.stack([x.r * dP, x.r * dV], dim=2)
    # The logits are the products over the temperature.
    dB = x.BG.mul_(dq).baddbmm_(dH, x.Y[..., :2].mT, beta=1 / params.temperature, alpha=1 / params.temperature)
    dG = torch._softmax_backward_data(dB, x.A, 2, dB.dtype)
    dG = dG + dG.mT
    dmu = d * torch.bmm(dG, x.Y[..., 2:])
    dG += _products(x.B.mT, dq * x.B)
    _add_products(into.embeddings, bucket.ids, dG, x.X)
    columns = torch.cat([torch.bmm(x.B.mT, dH), dmu], dim=2)
    into.columns.index_add_(0, bucket.ids.reshape(-1), columns.reshape(-1, 3))
    into.offset.add_(slope.sum())
    return torch.nn.functional.softplus(-margin)


class TwoLayer:
    """The two-layer model on any device, in buckets of sequences of similar size.

    **Arguments**
    - `group`: sequences in a bucket; a batch is sorted by size and cut into buckets, each padded to its own width.
      Unless given, at most 16, and so many that their vectors take `BUCKET_BYTES` in the median.
    """

    def __init__(
        self,
        data: TokenData,
        state: State,
        optimizer: AdamW,
        *,
        conventions: Conventions | None = None,
        group: int | None = None,
    ) -> None:
        state.check_rows(data.m)
        self.data, self.state, self.optimizer = data, state, optimizer
        self.conventions = conventions or Conventions()
        self._ids, self._counts, self._offsets = _distinct_tokens(data)
        self._widths = self._offsets.diff().cpu()
        row = state.embeddings[0].nbytes
        fitting = BUCKET_BYTES // (row * max(int(self._widths.median()), 1))
        self.group = group or min(max(fitting, 1), 16)
        centred, columns = torch.empty_like(state.embeddings), state.embeddings.new_empty(data.m, 3)
        offset = state.heads.new_zeros(())
        self._params = Projections(centred, columns, offset, self.conventions.temperature)
        self._gradient = Gradient(torch.zeros_like(centred), torch.zeros_like(columns), torch.zeros_like(offset))
        self._step = torch.tensor(float(state.step), device=state.heads.device)
        on_cpu = state.embeddings.device.type == "cpu"
        self._rows = RowBlocks(data.m, max(BLOCK_BYTES // row, 1) if on_cpu else data.m, 1)

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens."""
        return self.state.heads[:2] @ self.state.embeddings.T

    def tensors(self) -> dict[str, Tensor]:
        """The state: nothing else is carried from step to step."""
        return self.state.tensors()

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Go on from saved tensors."""
        self.state.load(tensors, step)
        self._step.fill_(step)

    def _plan_groups(self, order: Tensor, batch: int) -> tuple[Tensor, list[list[tuple[slice, int]]]]:
        """The rows of all batches, sorted by size within each, and for each batch its groups with their widths.

        This is planned on the CPU for many batches at once, so that no step has to wait for an answer of the device.
        """
        rows = order.cpu()
        batches = [part[torch.argsort(self._widths[part], stable=True)] for part in torch.split(rows, batch)]
        plan, begin = [], 0
        for part in batches:
            # A batch takes places `begin ..` of all rows; within it the last of a group, sorted by size, is the widest.
            cuts = [slice(begin + i, begin + min(i + self.group, len(part))) for i in range(0, len(part), self.group)]
            largest = [int(self._widths[part[cut.stop - begin - 1]]) for cut in cuts]
            plan.append(list(zip(cuts, largest, strict=True)))
            begin += len(part)
        return torch.cat(batches).to(order.device), plan

    def bucket(self, rows: Tensor, width: int, total: int) -> Bucket:
        """Rows padded to a width, as part of a batch of `total` rows."""
        begin = self._offsets[rows]
        column = torch.arange(width, device=rows.device)
        inside = column < (self._offsets[rows + 1] - begin)[:, None]
        place = torch.where(inside, begin[:, None] + column, 0)
        # Padding holds token `column`, not one token for all: its zero gradients then do not queue up on one row.
        ids = torch.where(inside, self._ids[place], column % self.data.m)
        counts = torch.where(inside, self._counts[place], 0).to(self.data.labels.dtype)
        labels = self.data.labels[rows]
        return Bucket(ids, counts, labels, torch.full_like(labels, 1.0 / total))

    @torch.no_grad()
    def outputs(self, rows: Tensor) -> Tensor:
        """The output f of each of the given rows."""
        f = self.data.labels.new_empty(len(rows))
        where = torch.argsort(self._widths[rows.cpu()], stable=True).to(rows.device)
        ordered, plan = self._plan_groups(rows, len(rows))
        self._project()
        for cut, width in plan[0]:
            bucket = self.bucket(ordered[cut], width, len(rows))
            f[where[cut]] = _forward(self._params, bucket).f
        return f + self._params.offset

    @torch.no_grad()
    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on the batches `first..last-1` of the epoch's `order`; returns the sum of the losses of their rows."""
        total = torch.zeros((), dtype=torch.float64, device=order.device)
        rows, plan = self._plan_groups(order[first * batch : last * batch], batch)
        self._project()
        for groups in filter(None, plan):
            size = groups[-1][0].stop - groups[0][0].start
            for cut, width in groups:
                total += self._add_gradient(rows[cut], width, size)
            self._update(rate)
        return total

    def _add_gradient(self, rows: Tensor, width: int, total: int) -> Tensor:
        """Add the gradient of some rows of a batch to the sums; returns the sum of their losses."""
        bucket = self.bucket(rows, width, total)
        losses = bucket_gradient(self._params, bucket, into=self._gradient)
        return losses.sum(dtype=torch.float64)

    def _vectors(self) -> Tensor:
        """p and v times the gain of the layer norm, centred: the vectors that the centred rows are multiplied with."""
        heads = self.state.heads
        vectors = heads[:2] * heads[2] if self.conventions.affine_norm else heads[:2]
        return vectors - vectors.mean(1, keepdim=True)

    def _project(self) -> None:
        """Compute `Projections` from the present parameters."""
        vectors = self._vectors()
        self._rows.for_each(lambda block: self._project_rows(block, vectors))
        if self.conventions.affine_norm:
            torch.dot(self.state.heads[3], self.state.heads[1], out=self._params.offset)

    def _project_rows(self, block: slice, vectors: Tensor) -> None:
        rows, centred, columns = self.state.embeddings[block], self._params.centred[block], self._params.columns[block]
        torch.mean(rows, 1, out=columns[:, 2])
        torch.sub(rows, columns[:, 2:], out=centred)
        torch.mm(centred, vectors.T, out=columns[:, :2])

    def _heads_gradient(self, pulled: Tensor) -> Tensor:
        """The gradient of all rows of the heads, given that of `_vectors()`, which is `pulled`."""
        if not self.conventions.affine_norm:
            return pulled
        _, v, gain, bias = self.state.heads
        slope = self._gradient.offset
        return torch.stack(
            [gain * pulled[0], gain * pulled[1] + slope * bias, (self.state.heads[:2] * pulled).sum(0), slope * v]
        )

    def _update(self, rate: float) -> None:
        """Take a step of AdamW, compute the projections of the new parameters, and set the gradient to zero.

        The heads go first, since their gradient needs all rows. The rows follow in blocks that stay in the cache.
        """
        state, gradient, trained = self.state, self._gradient, self.conventions.trained
        state.step += 1
        self._step += 1
        d = state.embeddings.shape[1]
        pulls = torch.cat([self._vectors(), state.heads.new_full((1, d), 1.0 / d)])
        heads = self._heads_gradient(gradient.columns[:, :2].T @ self._params.centred)
        moments = ([matrix[row] for row in trained] for matrix in (state.heads, heads, state.heads_m, state.heads_w))
        self.optimizer.update(*moments, step=self._step, rate=rate)
        gradient.offset.zero_()
        vectors = self._vectors()

        def update_rows(block: slice) -> None:
            gradient.embeddings[block].addmm_(gradient.columns[block], pulls)
            matrices = (state.embeddings, gradient.embeddings, state.embeddings_m, state.embeddings_w)
            self.optimizer.update(*([matrix[block]] for matrix in matrices), step=self._step, rate=rate)
            self._project_rows(block, vectors)
            gradient.embeddings[block].zero_()
            gradient.columns[block].zero_()

        self._rows.for_each(update_rows)
        if self.conventions.affine_norm:
            torch.dot(state.heads[3], state.heads[1], out=self._params.offset)


def _distinct_tokens(data: TokenData) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct tokens of each row and their counts, end to end, and where each row begins."""
    row = torch.repeat_interleave(torch.arange(data.n, device=data.ids.device), data.offsets.diff())
    keys, counts = torch.unique(row * data.m + data.ids, return_counts=True)  # row and token in one number
    lengths = torch.bincount(keys // data.m, minlength=data.n)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return keys % data.m, counts, offsets
