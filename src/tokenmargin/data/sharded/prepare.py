"""Prepare corpora larger than memory, slice by slice, here or on a cluster.

Two passes over the source. The first counts words by label, the counts are merged, and the vocabulary is chosen from
them as `prepare` does; the second writes one shard of ids per slice. The result is that of `prepare` on all texts.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin._files import file_digest, locked_folder, plain, remove_leftovers, seal_record, write_json
from tokenmargin.data.pipeline import PLAIN, ChosenTokens, Pipeline, choose_tokens, no_token_left
from tokenmargin.data.sharded.slices import (
    FORMAT,
    MANIFEST,
    STATISTICS,
    ShardedText,
    Slice,
    find_slices,
    load_sharded,
    shard_path,
)
from tokenmargin.data.sharded.worker import (
    BITS,
    MERGED_AT_ONCE,
    SHOWN,
    Numbering,
    Plan,
    SliceCount,
    count_slice,
    number_slice,
    sum_by_key,
    sums_path,
    words_path,
    write_table,
)
from tokenmargin.data.sources import binary_labels
from tokenmargin.data.table_files import SourceError
from tokenmargin.engines import AbstractEngine, LostTask, SerialEngine

if TYPE_CHECKING:
    import polars as pl

SliceProgress = Callable[[str, int, int], None]


def prepare_sharded(
    source: str | Path,
    out: str | Path,
    pipeline: Pipeline = PLAIN,
    *,
    engine: AbstractEngine | None = None,
    slice_bytes: int = 32 << 20,
    columns: tuple[str, str] = ("text", "label"),
    positive: str | None = None,
    progress: SliceProgress | None = None,
) -> ShardedText:
    """Prepare a folder of parquet files or JSON lines in bounded memory.

    If a call was stopped, the next one goes on from there: slices that are done are not done again.

    **Arguments**
    - `out`: the folder for the shards; on a cluster all machines must see it and the source.
    - `engine`: where slices are worked on; by default in this process.
    - `slice_bytes`: how much text a slice has, which bounds the memory of a worker.
    - `columns`: names of the columns with the text and the label.
    - `positive`: the label that counts as +1, if the labels are not one of the usual pairs.
    - `progress`: called with the pass, the slices done, and how many there are.
    """
    tell = progress or (lambda step, done, of: None)
    slices = find_slices(source, size=slice_bytes, text=columns[0], label=columns[1])
    place = Path(out).resolve()
    with locked_folder(place):
        _write_corpus(slices, place, pipeline, engine or SerialEngine(), columns, positive, tell)
    return load_sharded(place)


def _write_corpus(
    slices: Sequence[Slice],
    place: Path,
    pipeline: Pipeline,
    engine: AbstractEngine,
    columns: tuple[str, str],
    positive: str | None,
    tell: SliceProgress,
) -> None:
    """Count words, choose the vocabulary, and number the tokens. The caller holds the folder's lock."""
    of, work = len(slices), place / ".work"
    plan = Plan(tuple(slices), pipeline, columns).save(work)
    counted = _run_all(partial(count_slice, plan), of, engine, progress=lambda done: tell("counting", done, of))
    names = sorted({name for count in counted for name in count.labels})
    sides = dict(zip(names, binary_labels(names, positive=positive).tolist(), strict=True))
    words = _merge_parts([words_path(work, i) for i in range(of)], work, engine, name="words")
    chosen, counts = _choose_vocabulary(words, sides, pipeline)
    if not chosen.vocabulary:
        raise SourceError(no_token_left(chosen.steps, pipeline))

    firsts = np.cumsum([0, *(count.texts for count in counted)]).tolist()
    (place / MANIFEST).unlink(missing_ok=True)  # what stood here before is no corpus once its shards are overwritten
    numbering = Numbering(chosen.vocabulary, sides, tuple(firsts)).save(work)
    task = partial(number_slice, plan, numbering)
    shards = _run_all(task, of, engine, progress=lambda done: tell("numbering", done, of))
    texts = [count for count, _ in shards]
    sums = _merge_parts([sums_path(work, i) for i in range(of)], work, engine, name="tokens")
    write_table(_token_statistics(chosen.vocabulary, counts, sums, sum(texts)), place / STATISTICS)
    manifest = {
        "format": FORMAT,
        "texts": texts,
        "checksums": [checksum for _, checksum in shards],
        "statistics": file_digest(place / STATISTICS),
        "steps": [vars(step) for step in chosen.steps],
        "choices": pipeline.describe(),
        "source": {"labels": sides, **_unused_rows(slices, counted)},
    }
    _write_manifest(place, work, manifest)


def _choose_vocabulary(words: pl.DataFrame, sides: dict[str, int], pipeline: Pipeline) -> tuple[ChosenTokens, Array]:
    """The vocabulary, and how often each of its tokens occurs in negative and in positive texts."""
    import polars as pl

    under = pl.col("label").replace_strict(sides, return_dtype=pl.Int8)
    table = (
        words.lazy()
        .group_by("word")
        .agg(pl.col("count").filter(under == side).sum().alias(str(side)) for side in (-1, 1))
        .sort("word")
        .collect()
    )
    by_label = np.stack([table[str(side)].to_numpy() for side in (-1, 1)])
    chosen = choose_tokens(table["word"].to_list(), by_label.sum(0), pipeline)
    rank = {name: code for code, name in enumerate(chosen.vocabulary)}
    ids = np.array([rank.get(piece, -1) for parts in chosen.pieces for piece in parts], np.int64)
    word = np.repeat(np.arange(len(chosen.pieces)), [len(parts) for parts in chosen.pieces])
    counts = np.zeros((2, len(rank)), np.int64)
    for side in (0, 1):
        np.add.at(counts[side], ids[ids >= 0], by_label[side, word[ids >= 0]])
    return chosen, counts


def _token_statistics(vocabulary: tuple[str, ...], counts: Array, sums: pl.DataFrame, texts: int) -> pl.DataFrame:
    """A table with a row for each token: its occurrences by label, and its signed share.

    The fractions 1/T were rounded down to multiples of `4^-BITS`. So a sum that is within one such unit for each
    occurrence of zero may be zero in truth, and is set to zero. Both passes must have counted the same occurrences.
    """
    import polars as pl

    found = {name: np.zeros(len(vocabulary), np.int64) for name in ("negative", "positive", "high", "low")}
    for name, values in found.items():
        values[sums["token"].to_numpy()] = sums[name].to_numpy()
    if not all(np.array_equal(found[name], counts[k]) for k, name in enumerate(("negative", "positive"))):
        raise SourceError("the second pass counted other tokens than the first: the source was changed meanwhile")
    occurrences = counts.sum(0)
    total = np.ldexp(found["high"].astype(float), -BITS) + np.ldexp(found["low"].astype(float), -2 * BITS)
    share = np.where(np.abs(total) <= np.ldexp(occurrences.astype(float), -2 * BITS), 0.0, total) / max(texts, 1)
    return pl.DataFrame(
        {"token": vocabulary, "negative": counts[0], "positive": counts[1], "signed share": share},
        schema_overrides={"token": pl.String},
    )


def _unused_rows(slices: Sequence[Slice], counted: Sequence[SliceCount]) -> dict[str, Any]:
    """How many rows could not be used, and the first of them by file and line."""
    reasons: list[dict[str, str]] = []
    path, before = "", 0
    for part, count in zip(slices, counted, strict=True):
        path, before = part.path, before if part.path == path else 0
        for line, reason in count.reasons[: SHOWN - len(reasons)]:
            reasons.append({"place": f"{Path(path).name} line {before + line}", "reason": reason})
        before += count.lines
    return {"rejected": sum(count.rejected for count in counted), "reasons": reasons}


def _write_manifest(place: Path, work: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest, which makes the folder a corpus, then remove everything that is not part of it."""
    write_json(place / MANIFEST, seal_record(plain(manifest)))
    ours = {shard_path(place, i) for i in range(len(manifest["texts"]))}
    for extra in set(place.glob("shard-*.safetensors")) - ours:
        extra.unlink()
    remove_leftovers(place)
    for plan in work.glob("plan-*.json"):  # first: without a plan nobody goes on from a folder that is half removed
        plan.unlink()
    shutil.rmtree(work)


def _merge_parts(parts: Sequence[Path], folder: Path, engine: AbstractEngine, *, name: str) -> pl.DataFrame:
    """The sum of the tables of all parts; the engine adds up some at a time until few are left."""
    import polars as pl

    level = 0
    while len(parts) > MERGED_AT_ONCE:
        level += 1
        groups = [tuple(parts[i : i + MERGED_AT_ONCE]) for i in range(0, len(parts), MERGED_AT_ONCE)]
        outs = [folder / f"{name}-merged-{level}-{i:06d}.parquet" for i in range(len(groups))]
        _run_all(partial(_merge_some, groups, outs), len(groups), engine)
        parts = outs
    return sum_by_key(pl.concat([pl.read_parquet(part) for part in parts]))


def _merge_some(groups: list[tuple[Path, ...]], outs: list[Path], piece: range) -> None:
    import polars as pl

    for i in piece:
        write_table(sum_by_key(pl.concat([pl.read_parquet(part) for part in groups[i]])), outs[i])


def _run_all(
    task: Callable[[range], Any], count: int, engine: AbstractEngine, *, progress: Callable[[int], None] | None = None
) -> list[Any]:
    """The results of `task` on each of `count` pieces, in order."""
    found: dict[int, Any] = {}
    for piece, outcome in engine.map(task, (range(i, i + 1) for i in range(count))):
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
