"""The corpora of the figures, prepared once and kept in the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokenmargin._files import file_digest, json_digest
from tokenmargin.data.datasets import DatasetError, cache_folder
from tokenmargin.data.pipeline import PAPER, PLAIN, Pipeline, prepare
from tokenmargin.data.prepared import PreparedText, load_prepared
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sources import binary_labels, read_labelled

ABSENT = "absent"


@dataclass(frozen=True, eq=False)
class CachedCorpus:
    """A prepared corpus, and what should be said of it."""

    prepared: PreparedText
    notes: tuple[str, ...] = ()


def find_corpus(
    name: str, *, substitute: bool, cache: Path | None = None, progress: Callable[[str], None] | None = None
) -> CachedCorpus:
    """A dataset of paper A through its pipeline, from the cache.

    **Arguments**
    - `name`: `imdb` or `yelp`, put into the cache by `tokenmargin data get`.
    - `substitute`: whether generated sentences may stand in for a dataset that is not there; a note then says so.

    BERT's vocabulary is used when it is in the cache; otherwise tokens are stems, and a note says so.
    """
    folder = cache or cache_folder()
    source = folder / "datasets" / f"{name}.parquet"
    if not source.is_file():
        if not substitute:
            raise DatasetError(f"{name} is not in the cache: tokenmargin data get {name}")
        made = make_sentences(4000, np.random.default_rng(0), sentences=6, verdicts=2)
        note = f"{name} is not in the cache (tokenmargin data get {name}): generated sentences stand in for it"
        return CachedCorpus(prepare(made.texts, binary_labels(made.labels), replace(PLAIN, stop_words="nltk")), (note,))
    vocabulary = folder / "datasets" / "bert-vocabulary.txt"
    notes: tuple[str, ...] = ()
    pipeline = replace(PAPER, vocabulary=vocabulary)
    if not vocabulary.is_file():
        pipeline = PAPER
        notes = ("tokens are stems, not WordPieces: tokenmargin data get bert-vocabulary",)
    kept = folder / "prepared" / f"{name}-{_key(source, pipeline)}.safetensors"
    if not kept.is_file():
        table = read_labelled(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        prepare(table.texts, binary_labels(table.labels), pipeline, progress=progress).save(kept)
    return CachedCorpus(load_prepared(kept), notes)


def corpus_inputs(name: str, *, cache: Path | None = None) -> dict[str, str]:
    """The files that `find_corpus` reads, with a digest of each, or "absent"."""
    folder = (cache or cache_folder()) / "datasets"
    files = {name: folder / f"{name}.parquet", "bert-vocabulary": folder / "bert-vocabulary.txt"}
    return {known: file_digest(path)[:16] if path.is_file() else ABSENT for known, path in files.items()}


def _key(source: Path, pipeline: Pipeline) -> str:
    """Part of a file name: another one when the dataset or a choice of the pipeline is another."""
    stamp = source.stat()
    return json_digest([pipeline.describe(), stamp.st_size, stamp.st_mtime_ns])[:12]
