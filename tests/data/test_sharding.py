"""A corpus prepared in slices against the same corpus prepared at once, and what is said of bad sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokenmargin.data.pipeline import PAPER, PLAIN, Pipeline, prepare
from tokenmargin.data.prepared import PreparedFileError, PreparedText
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sharded.prepare import prepare_sharded
from tokenmargin.data.sharded.slices import ShardedText, load_sharded
from tokenmargin.data.sources import binary_labels
from tokenmargin.data.table_files import SourceError
from tokenmargin.engines import AbstractEngine, LostTask, SerialEngine

MADE = make_sentences(300, np.random.default_rng(3), sentences=4)
TEXTS = [*MADE.texts, "zweimal", "Étude étude <br/> 雪", "!!!", *MADE.texts[:40]]
LABELS = ["pos" if y == "1" else "neg" for y in [*MADE.labels, "1", "-1", "1", *MADE.labels[:40]]]


@pytest.fixture(name="source")
def mixed_shards(tmp_path) -> Path:
    """Three files of two formats; some lines of one cannot be used."""
    folder = tmp_path / "source"
    folder.mkdir()
    frame = pl.DataFrame({"text": TEXTS, "label": LABELS, "id": range(len(TEXTS))})
    frame[:150].write_parquet(folder / "a.parquet", row_group_size=40)
    lines = [json.dumps(row) for row in frame[150:290].to_dicts()]
    lines = [*lines[:70], "{broken", "", *lines[70:], '{"text": "no label"}', ""]
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n")
    frame[290:].write_parquet(folder / "c.parquet")
    (folder / "README.txt").write_text("not a shard")
    return folder


def assert_equal(sharded: ShardedText, whole: PreparedText) -> None:
    assert sharded.vocabulary == whole.vocabulary
    assert sharded.steps == whole.steps
    assert sharded.choices == json.loads(json.dumps(whole.choices, default=str))
    assert sharded.n == whole.n
    for name in ("ids", "labels", "starts", "ends", "rows"):
        ours = np.concatenate([getattr(shard, name) for shard in sharded.shards])
        np.testing.assert_array_equal(ours, getattr(whole, name))
    lengths = np.concatenate([np.diff(shard.offsets) for shard in sharded.shards])
    np.testing.assert_array_equal(lengths, np.diff(whole.offsets))
    corpus = whole.corpus()
    np.testing.assert_array_equal(sharded.counts, corpus.counts)
    np.testing.assert_array_equal(sharded.posterior_difference, corpus.posterior_difference)
    # Both divide sums of fractions that carry one rounding each; zeros are zeros in both.
    np.testing.assert_allclose(sharded.signed_share, corpus.signed_share, rtol=1e-12, atol=1e-16)
    np.testing.assert_array_equal(sharded.signed_share == 0, corpus.signed_share == 0)
    np.testing.assert_array_equal(sharded.signed_frequency, corpus.signed_frequency)


@pytest.mark.parametrize(
    ("size", "pipeline"),
    [(500, PLAIN), (10**9, PLAIN), (6000, PAPER), (9000, Pipeline(stop_words=("the", "a"), punctuation="join"))],
)
def test_slices_give_what_one_pass_gives(source, tmp_path, size, pipeline):
    found = prepare_sharded(source, tmp_path / "out", pipeline, slice_bytes=size)
    assert_equal(found, prepare(TEXTS, binary_labels(LABELS), pipeline))
    assert found.source["labels"] == {"neg": -1, "pos": 1}
    assert found.source["rejected"] == 2
    places = [row["place"] for row in found.source["reasons"]]
    assert places == ["b.jsonl line 71", "b.jsonl line 143"]
    assert not (tmp_path / "out" / ".work").exists()
    again = load_sharded(tmp_path / "out")
    assert again.vocabulary == found.vocabulary


def test_the_signed_shares_do_not_depend_on_the_cut(source, tmp_path):
    parts = [prepare_sharded(source, tmp_path / str(size), slice_bytes=size) for size in (700, 5_000, 10**8)]
    assert len({part.signed_share.tobytes() for part in parts}) == 1
    assert len({len(part.texts) for part in parts}) == 3


class Unreliable(AbstractEngine):
    """Does each piece twice, and gives up after some pieces."""

    def __init__(self, life: int) -> None:
        self.life = life

    @property
    def workers(self) -> int:
        return 1

    def map(self, task, pieces: Iterator[range]):
        for done, piece in enumerate(pieces):
            if done == self.life:
                yield piece, LostTask("the machine is gone")
                return
            task(piece)
            yield piece, task(piece)


def test_a_stopped_preparation_goes_on_and_counts_nothing_twice(source, tmp_path, monkeypatch):
    with pytest.raises(SourceError, match=r"part 4 of \d+ was lost .*the machine is gone.* run the same command again"):
        prepare_sharded(source, tmp_path / "out", slice_bytes=3000, engine=Unreliable(4))
    assert len(list((tmp_path / "out" / ".work").glob("words-*.json"))) == 4
    from tokenmargin.data.sharded import worker as slice_work

    counted = []
    count = slice_work.write_word_counts
    monkeypatch.setattr(
        slice_work, "write_word_counts", lambda part, *a, **k: counted.append(part) or count(part, *a, **k)
    )
    found = prepare_sharded(source, tmp_path / "out", slice_bytes=3000)
    assert len(counted) == len(found.texts) - 4
    assert_equal(found, prepare(TEXTS, binary_labels(LABELS)))
    assert_equal(
        prepare_sharded(source, tmp_path / "out", slice_bytes=20_000, engine=Unreliable(10**6)),
        prepare(TEXTS, binary_labels(LABELS)),
    )


def test_bad_sources_are_named(tmp_path, source):
    with pytest.raises(SourceError, match=r"slices are cut from \.parquet and \.jsonl files"):
        prepare_sharded(tmp_path / "missing", tmp_path / "out")
    with pytest.raises(SourceError, match="no column 'words'; it has 'text', 'label', 'id'"):
        prepare_sharded(source, tmp_path / "out", columns=("words", "label"))
    with pytest.raises(SourceError, match=r"labels must have exactly two values, got 0, 1, 10, .*; keep two of them"):
        prepare_sharded(source, tmp_path / "out", columns=("text", "id"))
    (tmp_path / "torn.parquet").write_bytes(b"PAR1 torn")
    with pytest.raises(SourceError, match=r"torn\.parquet: not a readable parquet file"):
        prepare_sharded(tmp_path / "torn.parquet", tmp_path / "out")
    with pytest.raises(PreparedFileError, match=r"no corpus\.json in it; write the folder with `tokenmargin prepare`"):
        load_sharded(tmp_path)
    found = prepare_sharded(source, tmp_path / "out", engine=SerialEngine())
    (tmp_path / "out" / "shard-000001.safetensors").write_bytes(
        (tmp_path / "out" / "shard-000000.safetensors").read_bytes()
    )
    with pytest.raises(PreparedFileError, match=r"shard-000001\.safetensors: .*it belongs to another corpus"):
        _ = found.shards
