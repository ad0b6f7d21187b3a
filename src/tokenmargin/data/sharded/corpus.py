"""A prepared corpus in a folder: shards of ids that are mapped as they are used, and statistics of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin._files import file_digest, unsealed
from tokenmargin.data.prepared import PreparedFileError, PreparedText, Step, WithVocabulary, load_prepared
from tokenmargin.problem.corpus import CountedByLabel

FORMAT = 3
MANIFEST, STATISTICS = "corpus.json", "vocabulary.parquet"


@dataclass(frozen=True, eq=False)
class ShardedText(CountedByLabel, WithVocabulary):
    """What `PreparedText` holds, for a corpus that need not fit into memory.

    **Attributes**
    - `vocabulary`: the tokens, the most frequent first.
    - `counts`: occurrences of each token in negative (row 0) and in positive (row 1) texts.
    - `signed_share`: the mean over texts of label times share of the token.
    - `texts`: how many texts each shard holds.
    - `checksums`: of each shard.
    - `steps`, `choices`: what the pipeline did, and its settings.
    - `source`: the labels that count as -1 and +1, and the rows that could not be used.
    """

    folder: Path
    vocabulary: tuple[str, ...]
    counts: Int[Array, "2 m"]
    signed_share: Float[Array, " m"]
    texts: tuple[int, ...]
    checksums: tuple[str, ...]
    steps: tuple[Step, ...]
    choices: Mapping[str, object]
    source: Mapping[str, Any]

    @property
    def n(self) -> int:
        """Number of texts."""
        return sum(self.texts)

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return int(self.counts.sum())

    @cached_property
    def shards(self) -> tuple[PreparedText, ...]:
        """The shards, compared with their checksums and mapped; their vocabularies are empty, since they share one."""
        shards = tuple(
            load_prepared(shard_path(self.folder, i), expected=checksum) for i, checksum in enumerate(self.checksums)
        )
        for i, (shard, texts) in enumerate(zip(shards, self.texts, strict=True)):
            if shard.n != texts:
                raise PreparedFileError(f"{shard_path(self.folder, i)}: {shard.n} texts where {MANIFEST} says {texts}")
        return shards


def shard_path(folder: Path, i: int) -> Path:
    """Where shard `i` is."""
    return folder / f"shard-{i:06d}.safetensors"


def load_sharded(folder: str | Path) -> ShardedText:
    """Open a folder written by `prepare_sharded`; the shards are mapped when they are first used."""
    import pyarrow.parquet as pq

    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        if isinstance(manifest, dict) and manifest.get("format") != FORMAT:
            raise ValueError(f"its format is {manifest.get('format')}, this version reads {FORMAT}")
        manifest = unsealed(manifest)
        if file_digest(folder / STATISTICS) != manifest["statistics"]:
            raise ValueError(f"the checksum of {STATISTICS} differs")
        table = pq.read_table(folder / STATISTICS)
        return ShardedText(
            folder=folder,
            vocabulary=tuple(table["token"].to_pylist()),
            counts=np.stack([table[name].to_numpy() for name in ("negative", "positive")]),
            signed_share=table["signed share"].to_numpy(),
            texts=tuple(manifest["texts"]),
            checksums=tuple(manifest["checksums"]),
            steps=tuple(Step(**step) for step in manifest["steps"]),
            choices=manifest["choices"],
            source=manifest["source"],
        )
    except FileNotFoundError as error:
        raise PreparedFileError(
            f"{folder}: no {Path(error.filename).name} in it; write the folder with `tokenmargin prepare`"
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PreparedFileError(f"{folder}: not a prepared corpus ({error}); prepare it again") from error
