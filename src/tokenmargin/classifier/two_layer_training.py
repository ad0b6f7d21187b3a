"""Training of the two-layer classifier with torch: minibatches, Adam, stopped where held-out texts say so.

The start is the paper's with one step taken: small random embeddings, to which the log-ratio of naive Bayes is added
along v and its size along p. From there one to three passes over the data lower the held-out loss; more raise it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import scipy.sparse as sp
import torch
from numpy import ndarray as Array
from numpy.random import RandomState
from torch import Tensor
from torch.nn import functional

from tokenmargin.classifier.fitting import Fitted, Labelled, Settings
from tokenmargin.classifier.solver import SOFT, naive_bayes
from tokenmargin.classifier.two_layer import EPSILON, TwoLayerWeights
from tokenmargin.classifier.validation import validate

__all__ = ["DIMENSION", "fit_two_layer"]

DIMENSION = 64
NOISE = 0.3  # of the random embeddings, in units of 1/sqrt(d)
TILT = 0.3  # of the attention at the start
RATE, DECAY = 1e-3, 1e-2
PATIENCE, GAIN = 2, 0.002  # passes that may fail to lower the held-out loss by this much
BLIND = 3  # passes when no texts are held out
LARGEST_BATCH = 64
SHORT = 50  # tokens
SORTED = 16  # batches whose texts are sorted by length together
MOST_CELLS = 1 << 25  # products of embeddings in a batch: smaller batches of long texts
LONGEST = 10_000  # tokens


def fit_two_layer(
    data: Labelled, settings: Settings, held: Array | None, *, rng: RandomState, start: TwoLayerWeights | None = None
) -> Fitted[TwoLayerWeights]:
    """Train on texts that are not held out; of those held out one half stops the training, the other judges it."""
    longest = int(np.diff(data.presence.indptr).argmax())
    tokens = int(np.diff(data.presence.indptr)[longest])
    if tokens > LONGEST:
        raise ValueError(
            f"text {longest} has {tokens} distinct tokens, and two layers compare all pairs of them; {LONGEST} is the "
            "most they are trained on: cut the text into parts, raise min_count, or use model='one-layer'"
        )
    train, stop, judge = _roles(data, held)
    if start is None or start.embeddings.shape[1] != (settings.dimension or DIMENSION):
        start = start_two_layer(data.part(train), settings, rng)
    model = _TwoLayer(data, start, settings, rng)
    losses: list[float] = []
    best, lowest, waited = model.weights(), np.inf, 0
    with _threads(data):
        while len(losses) < (settings.max_iter if stop is not None else min(BLIND, settings.max_iter)):
            losses.append(model.run(train))
            if settings.progress is not None:
                settings.progress(len(losses), losses[-1])
            reached = losses[-1] if stop is None else model.loss(stop)
            waited = 0 if reached < lowest - GAIN else waited + 1
            if reached < lowest:
                best, lowest = model.weights(), reached
            if waited == PATIENCE:
                break
    judged = None if judge is None else validate(best.decide(data.presence[judge]), data.codes[judge], data.codes)
    return Fitted(best, losses, judged)


@contextmanager
def _threads(data: Labelled) -> Iterator[None]:
    """One thread for short texts, whose matrices are too small to share; torch's own number for others."""
    before = torch.get_num_threads()
    if data.presence.nnz < SHORT * len(data.codes):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _roles(data: Labelled, held: Array | None) -> tuple[Array, Array | None, Array | None]:
    """Rows to train on, to stop by and to judge by; the two halves hold the classes alike."""
    if held is None:
        return np.arange(len(data.codes)), None, None
    rows = np.flatnonzero(held)
    rows = rows[np.argsort(data.codes[rows], kind="stable")]
    return np.flatnonzero(~held), rows[::2], rows[1::2]


def start_two_layer(data: Labelled, settings: Settings, rng: RandomState) -> TwoLayerWeights:
    """Random embeddings moved by naive Bayes."""
    d = settings.dimension or DIMENSION
    ratio = naive_bayes(data.presence, data.codes, data.weight, data.k)
    m, k = ratio.shape
    directions = rng.standard_normal((d, k + 1))
    if d > k:
        directions = np.linalg.qr(directions)[0]
    directions /= np.linalg.norm(directions, axis=0)
    prompt, heads = directions[:, 0], directions[:, 1:]
    embeddings = NOISE * rng.standard_normal((m + 1, d)) / np.sqrt(d)
    size = np.log(np.abs(ratio).max(axis=1, initial=0.0) + SOFT) - np.log(SOFT)
    embeddings[:-1] += ratio @ heads.T + TILT * np.outer(size, prompt)
    uniform = settings.attention == "uniform"
    single = [array.astype(np.float32) for array in (embeddings, 0 * prompt if uniform else prompt, heads)]
    return TwoLayerWeights(*single)


class _TwoLayer:
    """The model in torch with its optimiser; row m of the embeddings is the sink, row m + 1 is padding."""

    def __init__(self, data: Labelled, start: TwoLayerWeights, settings: Settings, rng: RandomState) -> None:
        self.data, self.rng = data, rng
        self.batch = int(np.clip(len(data.codes) // 80, 4, LARGEST_BATCH))
        embeddings = np.concatenate([start.embeddings, np.zeros_like(start.embeddings[:1])])
        self.E, self.p, self.v = (torch.tensor(array) for array in (embeddings, start.prompt, start.heads))
        trained = [self.E, self.v] if settings.attention == "uniform" else [self.E, self.v, self.p]
        self.optimizer = torch.optim.AdamW([x.requires_grad_() for x in trained], lr=RATE, weight_decay=DECAY)

    def weights(self) -> TwoLayerWeights:
        """A copy in numpy."""
        E, p, v = (x.detach().numpy().copy() for x in (self.E, self.p, self.v))
        return TwoLayerWeights(E[:-1], p, v)

    def run(self, rows: Array) -> float:
        """One pass over some rows in a random order; their mean loss on the way."""
        total = 0.0
        batches = list(self._batches(self.rng.permutation(rows)))
        for number in self.rng.permutation(len(batches)):
            loss = self._loss(batches[number])
            self.optimizer.zero_grad()
            (loss / len(batches[number])).backward()  # type: ignore[no-untyped-call, unused-ignore]
            self.optimizer.step()
            total += loss.item()
        return total / float(self.data.weight[rows].sum())

    @torch.no_grad()
    def loss(self, rows: Array) -> float:
        """Mean loss of some rows."""
        return sum(self._loss(batch).item() for batch in self._batches(rows)) / float(self.data.weight[rows].sum())

    def _batches(self, rows: Array) -> Iterator[Array]:
        """Rows of similar length together, so that little is padding."""
        lengths = np.diff(self.data.presence.indptr)
        pool = SORTED * self.batch
        for at in range(0, len(rows), pool):
            part = rows[at : at + pool]
            part = part[np.argsort(lengths[part], kind="stable")]
            while len(part):
                cells = np.arange(1, len(part) + 1) * (lengths[part] + 1) ** 2
                size = max(1, min(self.batch, int(np.searchsorted(cells, MOST_CELLS))))
                yield part[:size]
                part = part[size:]

    def _loss(self, rows: Array) -> Tensor:
        """Sum of the losses of some rows, each times its weight."""
        f = self._outputs(torch.from_numpy(_padded(self.data.presence, rows)))
        codes = torch.from_numpy(self.data.codes[rows])
        weight = torch.from_numpy(self.data.weight[rows].astype(np.float32))
        if f.shape[1] == 1:
            return (weight * functional.softplus((1 - 2 * codes) * f[:, 0])).sum()
        return (weight * functional.cross_entropy(f, codes, reduction="none")).sum()

    def _outputs(self, ids: Tensor) -> Tensor:
        """f for rows of token ids, padded."""
        absent = ids == len(self.E) - 1
        X = functional.embedding(ids, self.E, padding_idx=len(self.E) - 1)
        A = torch.softmax((X @ X.mT).masked_fill(absent[:, None, :], -torch.inf), dim=2)
        H = functional.layer_norm(A @ X + X, (X.shape[2],), eps=EPSILON)
        s = torch.softmax((H @ self.p).masked_fill(absent, -torch.inf), dim=1)
        return (s[:, None, :] @ (H @ self.v))[:, 0]


def _padded(presence: sp.csr_matrix, rows: Array) -> Array:
    """The tokens of some rows, then the sink, then padding."""
    m = presence.shape[1]
    lengths = np.diff(presence.indptr)[rows]
    ids = np.full((len(rows), int(lengths.max()) + 1), m + 1, np.int64)
    for line, row, length in zip(ids, rows, lengths, strict=True):
        line[:length] = presence.indices[presence.indptr[row] : presence.indptr[row] + length]
        line[length] = m
    return ids
