"""Integer tables counted slice by slice and merged exactly.

A part is a parquet file of keys and integer sums. It is written whole or not at all and depends on its slice alone, so
work that is done twice, because a machine was lost, writes the same file twice. Merging adds integers: the result does
not depend on how the corpus was cut, where it was counted, or in what order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmargin._files import atomic_path
from tokenmargin.data.pipeline import Pipeline, fold
from tokenmargin.data.sharded.slices import Slice, read_slice
from tokenmargin.data.sources import SourceError
from tokenmargin.data.words import find_words
from tokenmargin.engines import AbstractEngine, LostTask

if TYPE_CHECKING:
    import polars as pl

__all__ = ["SliceCount", "count_words", "merge_parts", "run_all", "write_table"]

MERGED_AT_ONCE = 16
SHOWN = 20  # rejected rows remembered of a slice


@dataclass(frozen=True)
class SliceCount:
    """What counting found in a slice, besides its words.

    **Attributes**
    - `labels`: how many texts have each label.
    - `rejected`: how many rows could not be used; `reasons` are the first of them, by line of the slice.
    """

    lines: int
    labels: dict[str, int]
    rejected: int
    reasons: tuple[tuple[int, str], ...]

    @property
    def texts(self) -> int:
        """How many rows could be used."""
        return sum(self.labels.values())


def count_words(part: Slice, out: Path, pipeline: Pipeline, *, text: str, label: str) -> SliceCount:
    """Write how often each word of a slice occurs under each label; lower case, before stop words and stems."""
    import polars as pl

    tables: list[pl.DataFrame] = []
    labels: Counter[str] = Counter()
    reasons: list[tuple[int, str]] = []
    lines = rejected = 0
    for batch in read_slice(part, text=text, label=label):
        lines += batch.lines
        rejected += len(batch.rejected)
        reasons += batch.rejected[: SHOWN - len(reasons)]
        labels.update(batch.labels)
        if len(labels) > 2:
            shown = ", ".join(sorted(labels)[:6])
            raise SourceError(f"{part.path}: labels must have exactly two values, got {shown}; keep two of them")
        tables.append(_words(batch.texts, batch.labels, pipeline))
        if len(tables) == MERGED_AT_ONCE:
            tables = [_added(pl.concat(tables))]
    write_table(_added(pl.concat(tables)), out)
    return SliceCount(lines, dict(labels), rejected, tuple(reasons))


def _words(texts: list[str], labels: list[str], pipeline: Pipeline) -> pl.DataFrame:
    """Words of some texts with their counts under each label."""
    import polars as pl

    found = find_words(texts, punctuation=pipeline.punctuation, markup=pipeline.markup)
    names, side = np.unique(np.array(labels, dtype=str), return_inverse=True)
    columns = len(names)
    cells = found.codes.astype(np.int64) * columns + np.repeat(side, np.diff(found.offsets))
    counts = np.bincount(cells, minlength=len(found.distinct) * columns)
    lower = pl.Series("word", [fold(word) for word in found.distinct], dtype=pl.String)
    tables = [
        pl.DataFrame({"word": lower, "label": pl.repeat(name, len(lower), eager=True), "count": counts[k::columns]})
        for k, name in enumerate(names.tolist())
    ]
    empty = pl.DataFrame(schema={"word": pl.String, "label": pl.String, "count": pl.Int64})
    return _added(pl.concat([empty, *tables]).filter(pl.col("count") > 0))


def _added(table: pl.DataFrame) -> pl.DataFrame:
    """Rows with the same keys (columns of text, or ids) become one; everything else is added up."""
    import polars as pl

    keys = [name for name in table.columns if name in ("word", "label", "token")]
    return table.lazy().group_by(keys).agg(pl.exclude(keys).sum()).collect(engine="streaming")


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a parquet file, whole or not at all."""
    with atomic_path(path) as beside:
        table.write_parquet(beside)


def merge_parts(parts: Sequence[Path], folder: Path, engine: AbstractEngine, *, name: str) -> pl.DataFrame:
    """The sum of all parts, merged by the engine some at a time until they are few."""
    import polars as pl

    level = 0
    while len(parts) > MERGED_AT_ONCE:
        level += 1
        groups = [tuple(parts[i : i + MERGED_AT_ONCE]) for i in range(0, len(parts), MERGED_AT_ONCE)]
        outs = [folder / f"{name}-merged-{level}-{i:06d}.parquet" for i in range(len(groups))]
        run_all(partial(_merge_some, groups, outs), len(groups), engine)
        parts = outs
    return _added(pl.concat([pl.read_parquet(part) for part in parts]))


def _merge_some(groups: list[tuple[Path, ...]], outs: list[Path], piece: range) -> None:
    import polars as pl

    for i in piece:
        write_table(_added(pl.concat([pl.read_parquet(part) for part in groups[i]])), outs[i])


def run_all(
    task: Callable[[range], Any], count: int, engine: AbstractEngine, *, progress: Callable[[int], None] | None = None
) -> list[Any]:
    """`task` on every one of `count` pieces, in order, however they were done."""
    found: dict[int, Any] = {}
    for piece, outcome in engine.map(task, _each(count)):
        if isinstance(outcome, LostTask):
            raise SourceError(
                f"part {piece.start} of {count} was lost with its worker ({outcome.reason}); "
                "what is done is kept: run the same command again"
            )
        found[piece.start] = outcome
        if progress is not None:
            progress(len(found))
    if len(found) < count:
        raise SourceError(f"only {len(found)} of {count} parts came back; run the same command again")
    return [found[i] for i in range(count)]


def _each(count: int) -> Iterator[range]:
    return (range(i, i + 1) for i in range(count))
