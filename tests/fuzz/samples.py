"""Files of every kind that the package writes and reads, small, made once; the fuzzers damage copies of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.harness import command

import tokenmargin as tm

TEXTS = ["a good film", "a bad film", "good fun and tea", "bad fun, no tea", "what a fine day", "what a grim day"] * 6
LABELS = ["pos", "neg"] * 18
PROBE = ["a good day", "bad tea", "nothing known", ""]


@dataclass(frozen=True, eq=False)
class Samples:
    """Everything in one folder."""

    folder: Path

    def place(self, name: str) -> Path:
        """A path for an input; what was there goes."""
        path = self.folder / "inputs" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path

    @cached_property
    def problems(self) -> list[dict[str, Any]]:
        rng = np.random.default_rng(0)
        found = []
        for n, T, d in ((1, 2, 2), (2, 3, 2), (3, 2, 3), (1, 1, 1), (2, 2, 1)):
            problem = tm.TokenProblem.of(
                rng.integers(-3, 4, (n, T, d)), rng.choice([-1.0, 1.0], n), scores=rng.normal(size=(n, T))
            )
            found.append({name: array.tolist() for name, array in problem.fields().items()})
        found.append({"keys": found[1]["keys"], "labels": [0, 2], "head": [[1, 0], [0, 1], [1, 1]]})
        found.append({"keys": found[1]["keys"], "targets": [0.5, -2], "head": [1, 0]})
        found.append({**found[1], "queries": [[1, 0], [1, 2]]})
        found.append({"keys": found[0]["keys"], "labels": [1], "head": [1, 2], "values": found[0]["keys"]})
        return found

    @cached_property
    def rows(self) -> list[dict[str, str]]:
        return [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)]

    @cached_property
    def jsonl(self) -> Path:
        return self._text("rows.jsonl", "\n".join(map(json.dumps, self.rows)))

    @cached_property
    def csv(self) -> Path:
        return self._text("rows.csv", "text,label\n" + "".join(f'"{r["text"]}",{r["label"]}\n' for r in self.rows))

    @cached_property
    def parquet(self) -> Path:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"text": TEXTS, "label": LABELS}), self._made("rows.parquet"))
        return self._made("rows.parquet")

    @cached_property
    def problem(self) -> Path:
        return self._text("problem.json", json.dumps(self.problems[1]))

    @cached_property
    def model(self) -> Path:
        self._do("fit", self.jsonl, "--out", self._made("model"), "--min-count", 1)
        return self._made("model")

    @cached_property
    def ids(self) -> Path:
        self._do("prepare", self.jsonl, "--out", self._made("ids.safetensors"), "--minimum-count", 1)
        return self._made("ids.safetensors")

    @cached_property
    def shards(self) -> Path:
        self._do("prepare", self.jsonl, "--out", self._made("shards"), "--minimum-count", 1)
        return self._made("shards")

    @cached_property
    def trained(self) -> Path:
        self._do("train", self.ids, "--out", self._made("trained"), "--epochs", 2, "--dimension", 2, "--batch", 9)
        return self._made("trained")

    @cached_property
    def kept(self) -> Path:
        self._do("evolve", "fig1b", "--steps", 20, "--save", self._made("kept.npz"))
        return self._made("kept.npz")

    @cached_property
    def runs(self) -> Path:
        from tokenmargin.experiments import record
        from tokenmargin.experiments.figures.prompt_paths import Figure1b

        record(Figure1b(steps=5), self._made("runs"))
        return self._made("runs")

    def _made(self, name: str) -> Path:
        (self.folder / "whole").mkdir(exist_ok=True, parents=True)
        return self.folder / "whole" / name

    def _text(self, name: str, content: str) -> Path:
        self._made(name).write_text(content)
        return self._made(name)

    def _do(self, *arguments: object) -> None:
        code, _, said = command(*arguments)
        assert code == 0, said
