"""The work on one slice of a large corpus: count its words, then write its shard and the sums of its tokens.

Workers and driver share a folder and nothing else. It holds plans, and results that are whole or absent. A result
depends on its slice and the plan alone, so a slice may be worked on twice, as when a machine is lost. Counts are
integers: their sum does not depend on how the corpus was cut, where it was counted, or in what order.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmargin._files import atomic_path, json_digest, write_json
from tokenmargin.data.pipeline import Pipeline, cut_words, fold_word, number_tokens
from tokenmargin.data.prepared import ARRAYS, PreparedText
from tokenmargin.data.sharded.slices import FORMAT, Slice, read_slice, shard_path
from tokenmargin.data.table_files import SourceError
from tokenmargin.data.words import find_words

if TYPE_CHECKING:
    import polars as pl

BITS = 30  # of a fraction 1/T in each of two integers; sums over 2^33 tokens stay exact
MERGED_AT_ONCE = 16
SHOWN = 20  # rejected rows of which the reason is kept, for each slice


@dataclass(frozen=True)
class Plan:
    """What the first pass needs: the slices, and how they are read."""

    slices: tuple[Slice, ...]
    pipeline: Pipeline
    columns: tuple[str, str]

    def save(self, work: Path) -> Path:
        """Write the plan, and remove what another plan has left in the folder."""
        stamps = {part.path: Path(part.path).stat() for part in self.slices}
        words = self.pipeline.vocabulary
        content = {
            "slices": [vars(part) for part in self.slices],
            "files": {path: [stamp.st_size, stamp.st_mtime_ns] for path, stamp in stamps.items()},
            "pipeline": asdict(self.pipeline) | {"vocabulary": None if words is None else str(Path(words).resolve())},
            "choices": self.pipeline.describe(),
            "columns": self.columns,
            "format": FORMAT,
        }
        path = work / f"plan-{json_digest(content)[:16]}.json"
        if not path.is_file():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            write_json(path, content, indent=None)
        return path


@dataclass(frozen=True)
class Numbering:
    """What the second pass needs: vocabulary, labels as -1 and +1, and the number of each slice's first text."""

    vocabulary: tuple[str, ...]
    sides: Mapping[str, int]
    firsts: tuple[int, ...]

    def save(self, work: Path) -> Path:
        """Write the numbering into the folder of the plan."""
        content = vars(self)
        path = work / f"numbering-{json_digest(content)[:16]}.json"
        write_json(path, content, indent=None)
        return path


@lru_cache(maxsize=1)
def _read_plan(path: Path) -> Plan:
    content = json.loads(path.read_text(encoding="utf-8"))
    chosen = content["pipeline"]
    stops, words = chosen["stop_words"], chosen["vocabulary"]
    chosen |= {
        "stop_words": stops if isinstance(stops, str) else tuple(stops),
        "vocabulary": None if words is None else Path(words),
    }
    text, label = content["columns"]
    return Plan(tuple(Slice(**part) for part in content["slices"]), Pipeline(**chosen), (text, label))


@lru_cache(maxsize=1)
def _read_numbering(path: Path) -> tuple[Numbering, dict[str, int]]:
    content = json.loads(path.read_text(encoding="utf-8"))
    return Numbering(**content), {name: code for code, name in enumerate(content["vocabulary"])}


def words_path(work: Path, i: int) -> Path:
    """The word counts of slice `i`."""
    return work / f"words-{i:06d}.parquet"


def sums_path(work: Path, i: int) -> Path:
    """The token sums of slice `i`."""
    return work / f"tokens-{i:06d}.parquet"


def count_slice(plan_path: Path, piece: range) -> SliceCount:
    """Count the words of slice `piece.start`, unless that was done before."""
    plan, i, work = _read_plan(plan_path), piece.start, plan_path.parent
    note = words_path(work, i).with_suffix(".json")
    if note.is_file():
        return SliceCount(**json.loads(note.read_text(encoding="utf-8")))
    text, label = plan.columns
    found = write_word_counts(plan.slices[i], words_path(work, i), plan.pipeline, text=text, label=label)
    write_json(note, vars(found))
    return found


def number_slice(plan_path: Path, numbering_path: Path, piece: range) -> tuple[int, str]:
    """Write the shard and the sums of slice `piece.start`, unless that was done; its number of texts and checksum."""
    plan, (numbering, rank), i = _read_plan(plan_path), _read_numbering(numbering_path), piece.start
    note = numbering_path.with_name(f"{numbering_path.stem}-{i:06d}.json")
    if note.is_file():
        texts, checksum = json.loads(note.read_text(encoding="utf-8"))
        return int(texts), str(checksum)
    work = plan_path.parent
    shard = _number_texts(plan, i, numbering, rank)
    checksum = shard.save(shard_path(work.parent, i))
    write_table(_token_sums(shard, len(rank)), sums_path(work, i))
    write_json(note, [shard.n, checksum])
    return shard.n, checksum


def _number_texts(plan: Plan, i: int, numbering: Numbering, rank: dict[str, int]) -> PreparedText:
    """The token ids of a slice; its texts are numbered as in the whole corpus."""
    text, label = plan.columns
    chosen, first = plan.pipeline, numbering.firsts[i]
    parts: list[PreparedText] = []
    for batch in read_slice(plan.slices[i], text=text, label=label):
        words = find_words(batch.texts, punctuation=chosen.punctuation, markup=chosen.markup)
        pieces = cut_words([fold_word(word) for word in words.distinct], chosen)
        labels = np.array([numbering.sides[name] for name in batch.labels], np.int8)
        part = number_tokens(words, labels, pieces, rank)
        parts.append(replace(part, rows=part.rows + first))
        first += len(batch.texts)
    joined: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS}
    joined["offsets"] = np.cumsum(np.concatenate([[0], *(np.diff(part.offsets) for part in parts)]))
    return replace(parts[0], **joined)


def _token_sums(shard: PreparedText, m: int) -> pl.DataFrame:
    """Sums over the texts of a shard, for each token in it, as integers.

    These are the occurrences by label, and the sum of label/T over the occurrences in units of `4^-BITS`, in two parts.
    """
    import polars as pl

    lengths = np.diff(shard.offsets)
    # 1/T is an integer of 2 BITS bits. Its halves are summed separately: so sums stay below 2^63 and are exact.
    share = (1 << 2 * BITS) // np.maximum(lengths, 1)
    y = shard.labels.astype(np.int64)
    terms = {"negative": y < 0, "positive": y > 0, "high": y * (share >> BITS), "low": y * (share & (1 << BITS) - 1)}
    sums = {name: np.zeros(m, np.int64) for name in terms}
    for name, term in terms.items():
        np.add.at(sums[name], shard.ids, np.repeat(term.astype(np.int64), lengths))
    seen = np.flatnonzero(sums["negative"] + sums["positive"])
    return pl.DataFrame({"token": seen, **{name: values[seen] for name, values in sums.items()}})


@dataclass(frozen=True)
class SliceCount:
    """What is known of a slice after counting, besides its words.

    **Attributes**
    - `labels`: how many texts have each label.
    - `rejected`: how many rows could not be used; `reasons` are those of the first, with their lines in the slice.
    """

    lines: int
    labels: dict[str, int]
    rejected: int
    reasons: tuple[tuple[int, str], ...]

    @property
    def texts(self) -> int:
        """How many rows could be used."""
        return sum(self.labels.values())


def write_word_counts(part: Slice, out: Path, pipeline: Pipeline, *, text: str, label: str) -> SliceCount:
    """Count how often each word of a slice, in lower case, occurs under each label, and write the table."""
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
        tables.append(_count_words(batch.texts, batch.labels, pipeline))
        if len(tables) == MERGED_AT_ONCE:
            tables = [sum_by_key(pl.concat(tables))]
    write_table(sum_by_key(pl.concat(tables)), out)
    return SliceCount(lines, dict(labels), rejected, tuple(reasons))


def _count_words(texts: list[str], labels: list[str], pipeline: Pipeline) -> pl.DataFrame:
    """A table of the words of some texts with their counts under each label."""
    import polars as pl

    found = find_words(texts, punctuation=pipeline.punctuation, markup=pipeline.markup)
    names, side = np.unique(np.array(labels, dtype=str), return_inverse=True)
    columns = len(names)
    cells = found.codes.astype(np.int64) * columns + np.repeat(side, np.diff(found.offsets))  # word, then label
    counts = np.bincount(cells, minlength=len(found.distinct) * columns)
    lower = pl.Series("word", [fold_word(word) for word in found.distinct], dtype=pl.String)
    tables = [
        pl.DataFrame({"word": lower, "label": pl.repeat(name, len(lower), eager=True), "count": counts[k::columns]})
        for k, name in enumerate(names.tolist())
    ]
    empty = pl.DataFrame(schema={"word": pl.String, "label": pl.String, "count": pl.Int64})
    return sum_by_key(pl.concat([empty, *tables]).filter(pl.col("count") > 0))


def sum_by_key(table: pl.DataFrame) -> pl.DataFrame:
    """Add up the rows that have the same keys, which are the columns `word`, `label` and `token`."""
    import polars as pl

    keys = [name for name in table.columns if name in ("word", "label", "token")]
    return table.lazy().group_by(keys).agg(pl.exclude(keys).sum()).collect(engine="streaming")


def write_table(table: pl.DataFrame, path: Path) -> None:
    """Write a parquet file, whole or not at all."""
    with atomic_path(path) as beside:
        table.write_parquet(beside)
