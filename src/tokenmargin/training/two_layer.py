"""The two-layer model (36) of paper A: `E' = LayerNorm(softmax(E_X E_X') E_X + E_X)`, then attention with p and v.

Two facts make it cheap. Equal tokens of a sequence have equal rows throughout, so a sequence of T tokens is its u <= T
distinct tokens with their counts. And the layer norm enters only through products with p and v. Write `mu_s` for the
mean of the entries of E_s and `C = E - mu 1'` for the centred embeddings. With `G = C_X C_X'` the logits of the first
softmax are `G + d mu mu'`; with `B = softmax + I` the centred row `h_i = (B C_X)_i` has `<h_i, p> = (B C_X p)_i` and
variance `(B G B')_ii / d`: all u x u work. (The variance from `|h|^2 / d - mean^2` would cancel when the entries of E
share an offset.) So the vectors of a sequence are touched twice: for G, and for the gradient `(dG + dG') C_X`. What
goes through p, v and the mean is of rank three over the vocabulary, and is added once a step. A gain of the layer norm
multiplies p and v, a bias b adds the constant `<b, v>` to the output. The backward pass is written out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.config import Conventions
from tokenmargin.training.parameters import AdamW, State

EPSILON = 1e-5  # of the layer norm, as in torch


@dataclass(frozen=True, eq=False)
class Bucket:
    """Sequences of similar numbers of distinct tokens: ids and counts (r, u), labels (r,), weights (r,) in the mean."""

    ids: Tensor
    counts: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class Projected:
    """What the sequences need of the parameters.

    **Attributes**
    - `centred`: C, of shape (m, d).
    - `columns`: `C p`, `C v` and mu, of shape (m, 3).
    - `offset`: `<b, v>`, the output of the layer norm's bias.
    - `temperature`: of both softmaxes.
    """

    centred: Tensor
    columns: Tensor
    offset: Tensor
    temperature: float


@dataclass(frozen=True, eq=False)
class _Forward:
    """What the backward pass needs again."""

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


def _forward(params: Projected, bucket: Bucket) -> _Forward:
    d = params.centred.shape[1]
    X, Y = params.centred[bucket.ids], params.columns[bucket.ids]
    mu = Y[..., 2]
    G = torch.bmm(X, X.mT)
    log_counts = torch.log(bucket.counts)  # -inf for padding
    logits = torch.baddbmm(log_counts[:, None, :], mu[..., None], mu[:, None, :], alpha=d / params.temperature).add_(
        G, alpha=1.0 / params.temperature
    )
    A = torch.softmax(logits, dim=2)
    B = A.clone()
    B.diagonal(dim1=1, dim2=2).add_(1.0)
    BG = torch.bmm(B, G)
    r = torch.rsqrt((B * BG).sum(2) / d + EPSILON)
    H = torch.bmm(B, Y[..., :2])
    P, V = r * H[..., 0], r * H[..., 1]
    s = torch.softmax(P / params.temperature + log_counts, dim=1)
    return _Forward(X, A, B, BG, Y, r, P, V, s, (s * V).sum(1))


@dataclass(frozen=True, eq=False)
class Gradient:
    """Where buckets add their gradients: of C through G (m, d), of the columns (m, 3), of the offset ()."""

    embeddings: Tensor
    columns: Tensor
    offset: Tensor

    def zero_(self) -> None:
        """Forget everything."""
        for tensor in vars(self).values():
            tensor.zero_()


def bucket_gradient(params: Projected, bucket: Bucket, *, into: Gradient) -> Tensor:
    """Losses of a bucket's rows; the gradients of their weighted sum are added to `into`."""
    d = params.centred.shape[1]
    x = _forward(params, bucket)
    margin = bucket.labels * (x.f + params.offset)
    slope = -bucket.labels * torch.sigmoid(-margin) * bucket.weights
    dV = slope[:, None] * x.s
    dP = dV * (x.V - x.f[:, None]) / params.temperature
    # r enters P and V as a factor; P / r is the product with the centred row.
    dq = -(x.r * x.r * (dP * x.P + dV * x.V))[..., None] / d
    dH = torch.stack([x.r * dP, x.r * dV], dim=2)
    dB = torch.baddbmm(dq * x.BG, dH, x.Y[..., :2].mT)
    dG = x.A * (dB - (x.A * dB).sum(2, keepdim=True)) / params.temperature
    dG = dG + dG.mT
    dmu = d * torch.bmm(dG, x.Y[..., 2:])
    dG = torch.baddbmm(dG, x.B.mT, dq * x.B)
    ids = bucket.ids.reshape(-1)
    into.embeddings.index_add_(0, ids, torch.bmm(dG, x.X).reshape(-1, d))
    into.columns.index_add_(0, ids, torch.cat([torch.bmm(x.B.mT, dH), dmu], dim=2).reshape(-1, 3))
    into.offset.add_(slope.sum())
    return torch.nn.functional.softplus(-margin)


class TwoLayer:
    """The two-layer model on any device, in buckets of sequences of similar size.

    **Arguments**
    - `group`: sequences in a bucket; a batch is sorted by size and cut into buckets, each padded to its own width.
    - `multiple`: widths are rounded up to a multiple of this, so that a GPU meets few different shapes.
    """

    def __init__(
        self,
        data: TokenData,
        state: State,
        optimizer: AdamW,
        *,
        conventions: Conventions | None = None,
        group: int = 16,
        multiple: int = 1,
    ) -> None:
        state.check_rows(data.m)
        self.data, self.state, self.optimizer = data, state, optimizer
        self.conventions = conventions or Conventions()
        self.group, self.multiple = group, multiple
        self._ids, self._counts, self._offsets = _distinct(data)
        self._widths = self._offsets.diff().cpu()
        centred, columns = torch.empty_like(state.embeddings), state.embeddings.new_empty(data.m, 3)
        offset = state.heads.new_zeros(())
        self._params = Projected(centred, columns, offset, self.conventions.temperature)
        self._gradient = Gradient(torch.zeros_like(centred), torch.zeros_like(columns), torch.zeros_like(offset))
        self._step = torch.tensor(float(state.step), device=state.heads.device)

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

    def _groups(self, order: Tensor, batch: int) -> tuple[Tensor, list[list[tuple[slice, int]]]]:
        """The rows of all batches sorted by size within each, and for each batch its groups with their widths.

        Planned on the CPU for many batches at once: the device is never asked anything between two steps.
        """
        rows = order.cpu()
        batches = [part[torch.argsort(self._widths[part], stable=True)] for part in torch.split(rows, batch)]
        plan, begin = [], 0
        for part in batches:
            # A batch takes places `begin ..` of all rows; within it the last of a group, sorted by size, is the widest.
            cuts = [slice(begin + i, begin + min(i + self.group, len(part))) for i in range(0, len(part), self.group)]
            largest = [int(self._widths[part[cut.stop - begin - 1]]) for cut in cuts]
            plan.append([(cut, -(-u // self.multiple) * self.multiple) for cut, u in zip(cuts, largest, strict=True)])
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
        """f for some rows."""
        f = self.data.labels.new_empty(len(rows))
        where = torch.argsort(self._widths[rows.cpu()], stable=True).to(rows.device)
        ordered, plan = self._groups(rows, len(rows))
        self._project()
        for cut, width in plan[0]:
            bucket = self.bucket(ordered[cut], width, len(rows))
            f[where[cut]] = _forward(self._params, bucket).f
        return f + self._params.offset

    @torch.no_grad()
    def run(self, order: Tensor, batch: int, *, first: int, last: int, rate: float) -> Tensor:
        """Train on batches `first..last-1` of the epoch's `order`; the sum of the losses of their rows."""
        total = torch.zeros((), dtype=torch.float64, device=order.device)
        rows, plan = self._groups(order[first * batch : last * batch], batch)
        for groups in filter(None, plan):
            self._gradient.zero_()
            self._project()
            size = groups[-1][0].stop - groups[0][0].start
            for cut, width in groups:
                total += self._add(rows[cut], width, size)
            self._update(rate)
        return total

    def _add(self, rows: Tensor, width: int, total: int) -> Tensor:
        """Add the gradient of some rows of a batch; the sum of their losses."""
        bucket = self.bucket(rows, width, total)
        losses = bucket_gradient(self._params, bucket, into=self._gradient)
        return losses.sum(dtype=torch.float64)

    def _vectors(self) -> Tensor:
        """p and v as the centred rows meet them: times the gain of the layer norm, and centred."""
        heads = self.state.heads
        vectors = heads[:2] * heads[2] if self.conventions.affine_norm else heads[:2]
        return vectors - vectors.mean(1, keepdim=True)

    def _project(self) -> None:
        """What the sequences need of the parameters, from their present values."""
        params, heads = self._params, self.state.heads
        mean = self.state.embeddings.mean(1, keepdim=True)
        torch.sub(self.state.embeddings, mean, out=params.centred)
        torch.mm(params.centred, self._vectors().T, out=params.columns[:, :2])
        params.columns[:, 2:] = mean
        if self.conventions.affine_norm:
            torch.dot(heads[3], heads[1], out=params.offset)

    def _heads_gradient(self, pulled: Tensor) -> Tensor:
        """Gradient of the heads from that of their vectors, which is `pulled`."""
        if not self.conventions.affine_norm:
            return pulled
        _, v, gain, bias = self.state.heads
        slope = self._gradient.offset
        return torch.stack(
            [gain * pulled[0], gain * pulled[1] + slope * bias, (self.state.heads[:2] * pulled).sum(0), slope * v]
        )

    def _update(self, rate: float) -> None:
        state, gradient = self.state, self._gradient
        state.step += 1
        self._step += 1
        d = state.embeddings.shape[1]
        heads = self._heads_gradient(gradient.columns[:, :2].T @ self._params.centred)
        mean = state.heads.new_full((1, d), 1.0 / d)
        gradient.embeddings.addmm_(gradient.columns, torch.cat([self._vectors(), mean]))
        rows = self.conventions.trained
        self.optimizer.update(
            [state.embeddings, *(state.heads[row] for row in rows)],
            [gradient.embeddings, *(heads[row] for row in rows)],
            [state.embeddings_m, *(state.heads_m[row] for row in rows)],
            [state.embeddings_w, *(state.heads_w[row] for row in rows)],
            step=self._step,
            rate=rate,
        )


def _distinct(data: TokenData) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct tokens of each row with their counts, ragged."""
    row = torch.repeat_interleave(torch.arange(data.n, device=data.ids.device), data.offsets.diff())
    keys, counts = torch.unique(row * data.m + data.ids, return_counts=True)  # row and token in one number
    lengths = torch.bincount(keys // data.m, minlength=data.n)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return keys % data.m, counts, offsets
