"""The closing conjecture of *Attention with Trained Embeddings ...*: do earlier layers form pairs for later ones?

No single word of this corpus tells anything about the label; pairs of words decide it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array

from tokenmargin.experiments.experiment import AbstractExperiment, Finding, Progress, Result, Scales, Table, track
from tokenmargin.experiments.tables import PAPER_A, columns


@dataclass(frozen=True)
class Pairs(AbstractExperiment):
    """`tokenmargin reproduce pairs`: the two models on texts whose label is decided by a pair of words.

    Every text holds one left word, one right word and other words, all drawn evenly. Half of the left and half of the
    right words are of the first kind: the label is +1 where both or neither are, -1 otherwise. So every single word has
    posterior difference 0 in law, and every pair has +1 or -1.
    """

    figure = "pairs"
    title = "Two layers find the pairs that decide, one layer cannot"
    source = PAPER_A
    seconds = (25, None)
    needs = ("train",)
    shows = (
        "nothing: a closing remark conjectures that with more layers and heads the earlier ones learn the causal "
        "structure between tokens, and the later ones classify by the statistics of the tuples that result."
    )
    scales = Scales(paper={"words": 8, "others": 200, "length": 12, "texts": 4000, "seeds": (0, 1, 2)})

    words: int = 4  # left ones, and as many right ones
    others: int = 60
    length: int = 8
    texts: int = 2000
    dimension: int = 64
    epochs: int = 100
    rate: float = 1e-3
    seeds: tuple[int, ...] = (0, 1)

    def corpus(self, rng: np.random.Generator, texts: int) -> tuple[Array, Array, Array]:
        """Ids, labels, and the left and the right word of every text."""
        pair = rng.integers(0, self.words, (texts, 2))
        others = 2 * self.words + rng.integers(0, self.others, (texts, self.length - 2))
        deciding = pair + np.array([0, self.words])
        ids = rng.permuted(np.concatenate([deciding, others], axis=1), axis=1)
        first = pair < self.words // 2
        return ids, np.where(first[:, 0] == first[:, 1], 1.0, -1.0), pair

    def run(self, progress: Progress = None) -> Result:
        rows, pairs = [], []
        for seed in track(self.seeds, progress):
            ids, labels, _ = self.corpus(np.random.default_rng([seed, 0]), self.texts)
            held = self.corpus(np.random.default_rng([seed, 1]), 2000)
            for model in ("one-layer", "two-layer"):
                row, seen = self._train(model, seed, ids, labels, held)
                rows.append({"model": model, "seed": seed, **row})
                if model == "two-layer":
                    pairs.append(seen)
        runs = columns(rows)
        tables = {"runs": runs, "pairs": {name: np.concatenate([p[name] for p in pairs]) for name in pairs[0]}}
        return Result(self, tables, _findings(runs))

    def _train(
        self, model: str, seed: int, ids: Array, labels: Array, held: tuple[Array, Array, Array]
    ) -> tuple[dict[str, float], Table]:
        """Train a model; how it does on held-out texts, and what it makes of every pair in them."""
        from tokenmargin.training.batches import TokenData
        from tokenmargin.training.config import TrainingConfig
        from tokenmargin.training.trainer import train

        offsets = np.arange(len(ids) + 1) * self.length
        data = TokenData.of(ids.ravel(), offsets, labels, m=2 * self.words + self.others, device="cpu")
        config = TrainingConfig(
            model=model,  # type: ignore[arg-type]
            dimension=self.dimension, epochs=self.epochs, rate=self.rate, milestones=(), decay=1e-4, seed=seed,
        )  # fmt: skip
        state = train(data, config).model.state
        E, heads = (tensor.double().numpy() for tensor in (state.embeddings, state.heads))
        layers = 1 if model == "one-layer" else 2
        weights, values = products(E, heads[0], heads[1], held[0], layers=layers)
        output = (weights * values).sum(axis=1)
        on_training = products(E, heads[0], heads[1], ids, layers=layers)
        fitted = (on_training[0] * on_training[1]).sum(axis=1)
        deciding = held[0] < 2 * self.words
        at, on = held[2] @ [self.words, 1], (weights * deciding).sum(axis=1)
        count = np.bincount(at, minlength=self.words**2)
        means = [np.bincount(at, weights=x, minlength=self.words**2) / count for x in (output, held[1])]
        single = (E @ heads[1])[: 2 * self.words]
        row = {
            "training loss": float(np.logaddexp(0.0, -labels * fitted).mean()),
            "held-out accuracy": float((np.sign(output) == held[1]).mean()),
            "attention on the pair": float(on.mean()),
            "correlation with the pair's posterior difference": float(np.corrcoef(means[0], means[1])[0, 1]),
            "spread of <E, v> over the deciding words": float(single.std()),
        }
        return row, {"output": means[0], "posterior": means[1]}


def products(E: Array, p: Array, v: Array, ids: Array, *, layers: int) -> tuple[Array, Array]:
    """The last softmax's weights and what they average, `<h, v>`, of every token: h is its row of E, or of (36)."""
    h = E[ids]
    if layers == 2:
        logits = h @ np.swapaxes(h, 1, 2)
        mixing = np.exp(logits - logits.max(axis=2, keepdims=True))
        h = mixing @ h / mixing.sum(axis=2, keepdims=True) + h
        h = h - h.mean(axis=2, keepdims=True)
        h = h / np.sqrt((h**2).mean(axis=2, keepdims=True) + 1e-5)
    logits = h @ p
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True), h @ v


def _findings(runs: Table) -> tuple[Finding, ...]:
    one, two = runs["model"] == "one-layer", runs["model"] == "two-layer"

    def least(name: str) -> float:
        return float(runs[name][two].min())

    best = float(runs["held-out accuracy"][one].max())
    chance = "a bag of words can be right on three of the four kinds of pairs at most; the margin for chance is ours"
    ours = "what counts as found is our choice"
    return (
        Finding("one layer: held-out accuracy, the best seed", best, 0, 0.8, chance),
        Finding("two layers: held-out accuracy, the worst seed", least("held-out accuracy"), 0.95, 1, ours),
        Finding("two layers: attention on the two deciding words", least("attention on the pair"), 0.5, 1, ours),
        Finding(
            "two layers: correlation over pairs of the output with the posterior difference",
            least("correlation with the pair's posterior difference"), 0.9, 1, ours,
        ),
    )  # fmt: skip
