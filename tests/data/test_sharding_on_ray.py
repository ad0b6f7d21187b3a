"""Counting on a ray cluster, a node of which is killed on the way: nothing lost, nothing counted twice."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tokenmargin.data.pipeline import prepare
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sharded.prepare import prepare_sharded
from tokenmargin.data.sources import binary_labels
from tokenmargin.engines import RayEngine

ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'tokenmargin[cluster]')")


# Ray leaves handles of its own open when it shuts down.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_node_killed_while_counting(ray_cluster, tmp_path: Path) -> None:
    machines, nodes = ray_cluster(1)
    made = make_sentences(3000, np.random.default_rng(0))
    source = tmp_path / "source.parquet"
    pl.DataFrame({"text": made.texts, "label": made.labels}).write_parquet(source)
    killed = threading.Event()
    passes = []

    def kill_a_node(step: str, done: int, of: int) -> None:
        passes.append((step, done, of))
        if done == 3 and not killed.is_set():
            killed.set()
            machines.remove_node(nodes[0], allow_graceful=False)

    found = prepare_sharded(source, tmp_path / "out", engine=RayEngine(), slice_bytes=20_000, progress=kill_a_node)
    whole = prepare(made.texts, binary_labels(made.labels))
    assert killed.is_set()
    assert passes[2][0] == "counting"
    assert passes[2][2] > 10
    assert found.vocabulary == whole.vocabulary
    assert found.steps == whole.steps
    np.testing.assert_array_equal(found.counts, whole.corpus().counts)
    for name in ("ids", "labels", "rows"):
        ours = np.concatenate([getattr(shard, name) for shard in found.shards])
        np.testing.assert_array_equal(ours, getattr(whole, name))
