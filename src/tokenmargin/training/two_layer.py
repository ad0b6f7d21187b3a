"""The two-layer model (36) of paper A: `E' = LayerNorm(softmax(E_X E_X') E_X + E_X)`, then attention with p and v.

Two facts make it cheap. Equal tokens of a sequence have equal rows throughout, so a sequence of T tokens is its u <= T
distinct tokens with their counts. And the layer norm enters only through products with p and v: with
`B = softmax(G) + I`, `G = E_X E_X'`, the row `h_i = (B E_X)_i` has `<h_i, p> = (B a)_i`, `mean(h_i) = (B mu)_i` and
`|h_i|^2 = (B G B')_ii`, all u x u work. So the vectors of a sequence are touched twice: for G, and for the gradient
`(dG + dG') E_X`. What goes through p, v and the mean is of rank three over the vocabulary, and is added once a step.
The backward pass is written out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tokenmargin.training.batches import TokenData
from tokenmargin.training.parameters import AdamW, State

__all__ = ["Bucket", "Gradient", "GraphedBuckets", "TwoLayer", "bucket_gradient"]

EPSILON = 1e-5  # of the layer norm, as in torch


@dataclass(frozen=True, eq=False)
class Bucket:
    """Sequences of similar numbers of distinct tokens: ids and counts (r, u), labels (r,), weights (r,) in the mean."""

    ids: Tensor
    counts: Tensor
    labels: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class _Forward:
    """What the backward pass needs again."""

    X: Tensor
    A: Tensor
    B: Tensor
    BG: Tensor
    Y: Tensor  # columns a, b, mu
    H: Tensor  # B Y
    r: Tensor
    P: Tensor
    V: Tensor
    s: Tensor
    f: Tensor


def _columns(heads: Tensor) -> Tensor:
    """p, v and the averaging vector, of shape (3, d)."""
    d = heads.shape[1]
    return torch.cat([heads, heads.new_full((1, d), 1.0 / d)])


def _forward(E: Tensor, columns: Tensor, sums: Tensor, bucket: Bucket) -> _Forward:
    d = E.shape[1]
    X = E[bucket.ids]
    G = torch.bmm(X, X.mT)
    log_counts = torch.log(bucket.counts)  # -inf for padding
    A = torch.softmax(G + log_counts[:, None, :], dim=2)
    B = A.clone()
    B.diagonal(dim1=1, dim2=2).add_(1.0)
    BG = torch.bmm(B, G)
    Y = columns[bucket.ids]
    H = torch.bmm(B, Y)
    mu = H[..., 2]
    r = torch.rsqrt((B * BG).sum(2) / d - mu * mu + EPSILON)
    P, V = (r * (H[..., k] - mu * sums[k]) for k in (0, 1))
    s = torch.softmax(P + log_counts, dim=1)
    return _Forward(X, A, B, BG, Y, H, r, P, V, s, (s * V).sum(1))


@dataclass(frozen=True, eq=False)
class Gradient:
    """Where buckets add their gradients: of E through G (m, d), of `E [p v 1/d]` (m, 3), of the sums of p and v (2)."""

    embeddings: Tensor
    columns: Tensor
    sums: Tensor

    def zero_(self) -> None:
        """Forget everything."""
        for tensor in vars(self).values():
            tensor.zero_()


def bucket_gradient(E: Tensor, columns: Tensor, sums: Tensor, bucket: Bucket, *, into: Gradient) -> Tensor:
    """Losses of a bucket's rows; the gradients of their weighted sum are added to `into`."""
    d = E.shape[1]
    x = _forward(E, columns, sums, bucket)
    margin = bucket.labels * x.f
    slope = (-bucket.labels * torch.sigmoid(-margin) * bucket.weights)[:, None]
    mu = x.H[..., 2]
    dV = slope * x.s
    dP = dV * (x.V - x.f[:, None])
    # r enters P and V as a factor; P / r is the centred product.
    dvar = -0.5 * x.r * x.r * (dP * x.P + dV * x.V)
    rP, rV = x.r * dP, x.r * dV
    dmu = -(rP * sums[0] + rV * sums[1]) - 2.0 * dvar * mu
    dH = torch.stack([rP, rV, dmu], dim=2)
    dq = (2.0 / d) * dvar[..., None]
    dB = torch.baddbmm(dq * x.BG, dH, x.Y.mT)
    dG = x.A * (dB - (x.A * dB).sum(2, keepdim=True))
    dG = torch.baddbmm(dG + dG.mT, x.B.mT, dq * x.B)
    ids = bucket.ids.reshape(-1)
    into.embeddings.index_add_(0, ids, torch.bmm(dG, x.X).reshape(-1, d))
    into.columns.index_add_(0, ids, torch.bmm(x.B.mT, dH).reshape(-1, 3))
    into.sums.sub_(torch.stack([(rP * mu).sum(), (rV * mu).sum()]))
    return torch.nn.functional.softplus(-margin)


class TwoLayer:
    """The two-layer model on any device, in buckets of sequences of similar size.

    **Arguments**
    - `group`: sequences in a bucket; a batch is sorted by size and cut into buckets, each padded to its own width.
    - `multiple`: widths are rounded up to a multiple of this, so that a GPU meets few different shapes.
    """

    def __init__(self, data: TokenData, state: State, optimizer: AdamW, *, group: int = 16, multiple: int = 1) -> None:
        if state.embeddings.shape[0] != data.m:
            raise ValueError(f"the embeddings have {state.embeddings.shape[0]} rows and the data {data.m} tokens")
        self.data, self.state, self.optimizer = data, state, optimizer
        self.group, self.multiple = group, multiple
        self._ids, self._counts, self._offsets = _distinct(data)
        self._widths = self._offsets.diff().cpu()
        self._columns = torch.empty_like(state.embeddings[:, :1].expand(-1, 3)).contiguous()
        self._sums = torch.empty_like(state.heads[:, 0])
        self._gradient = Gradient(
            torch.zeros_like(state.embeddings), torch.zeros_like(self._columns), torch.zeros_like(self._sums)
        )
        self._step = torch.tensor(float(state.step), device=state.heads.device)
        # Deterministic scatters sort, and cannot be captured.
        graphed = state.heads.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled()
        self._accumulate = GraphedBuckets(self._add) if graphed else self._add

    def scores(self) -> Tensor:
        """`<E_s, p>` and `<E_s, v>` of all tokens."""
        return self.state.heads @ self.state.embeddings.T

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
            f[where[cut]] = _forward(self.state.embeddings, self._columns, self._sums, bucket).f
        return f

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
                total += self._accumulate(rows[cut], width, size)
            self._update(rate)
        return total

    def _add(self, rows: Tensor, width: int, total: int) -> Tensor:
        """Add the gradient of some rows of a batch; the sum of their losses."""
        bucket = self.bucket(rows, width, total)
        losses = bucket_gradient(self.state.embeddings, self._columns, self._sums, bucket, into=self._gradient)
        return losses.sum(dtype=torch.float64)

    def _project(self) -> None:
        """What the sequences need of p and v: `E [p v 1/d]` and the sums of p and v."""
        torch.mm(self.state.embeddings, _columns(self.state.heads).T, out=self._columns)
        torch.sum(self.state.heads, dim=1, out=self._sums)

    def _update(self, rate: float) -> None:
        state, gradient, (b1, b2) = self.state, self._gradient, self.optimizer.betas
        state.step += 1
        self._step += 1
        heads = gradient.columns[:, :2].T @ state.embeddings + gradient.sums[:, None]
        gradient.embeddings.addmm_(gradient.columns, _columns(state.heads))
        torch._fused_adamw_(
            [state.embeddings, state.heads],
            [gradient.embeddings, heads],
            [state.embeddings_m, state.heads_m],
            [state.embeddings_w, state.heads_w],
            [],
            [self._step, self._step],
            lr=rate,
            beta1=b1,
            beta2=b2,
            weight_decay=self.optimizer.decay,
            eps=self.optimizer.eps,
            amsgrad=False,
            maximize=False,
        )


class GraphedBuckets:
    """The work on a bucket as a captured graph, one for each shape met: a GPU then gets its kernels in one call."""

    def __init__(self, work: Callable[[Tensor, int, int], Tensor]) -> None:
        self._work = work
        self._graphs: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, rows: Tensor, width: int, total: int) -> Tensor:
        """Do the work on these rows."""
        key = (len(rows), width, total)
        if key not in self._graphs:
            done = self._work(rows, width, total)  # the rehearsal that a capture needs is the work itself
            self._graphs[key] = self._capture(rows, width, total)
            return done
        graph, buffer, result = self._graphs[key]
        buffer.copy_(rows)
        graph.replay()
        return result

    def _capture(self, rows: Tensor, width: int, total: int) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        buffer = rows.clone()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, pool=self._pool):
            result = self._work(buffer, width, total)
        return graph, buffer, result


def _distinct(data: TokenData) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct tokens of each row with their counts, ragged."""
    row = torch.repeat_interleave(torch.arange(data.n, device=data.ids.device), data.offsets.diff())
    keys, counts = torch.unique(row * data.m + data.ids, return_counts=True)
    lengths = torch.bincount(keys // data.m, minlength=data.n)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    return keys % data.m, counts, offsets
