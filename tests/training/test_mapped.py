"""Training data that stays on the disk: the batches of data in memory, and a corpus larger than the memory allowed."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.oracles.trained_models import selected

from tokenmargin.data.prepared import PreparedText
from tokenmargin.training.batches import MappedSequences, TokenData
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.parameters import AdamW, initial_state
from tokenmargin.training.probe import evaluate


def shard(ids: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> PreparedText:
    rows = np.arange(len(labels))
    return PreparedText(ids.astype(np.int32), offsets, labels.astype(np.int8), (), ids, ids, rows)


def in_shards(data: TokenData, cuts: list[int]) -> MappedSequences:
    marks = [0, *sorted(cuts), data.n]
    parts = []
    for first, last in pairwise(marks):
        offsets = data.offsets[first : last + 1].numpy()
        ids = data.ids[offsets[0] : offsets[-1]].numpy()
        parts.append(shard(ids, offsets - offsets[0], data.labels[first:last].numpy()))
    return MappedSequences.of(parts, m=data.m)


@given(cuts=st.lists(st.integers(0, 37), max_size=4), rows=st.lists(st.integers(0, 36), max_size=9))
def test_batches_are_those_of_data_in_memory(cuts, rows):
    from tests.training.conftest import make_ragged

    data = make_ragged()
    ours = in_shards(data, cuts).cast(torch.float64).batch(torch.tensor(rows, dtype=torch.long))
    theirs = data.batch(torch.tensor(rows, dtype=torch.long))
    assert torch.equal(ours.ids, theirs.ids)
    assert torch.equal(ours.segment, theirs.segment)
    assert torch.equal(ours.labels, theirs.labels)


def test_evaluation_over_shards_is_that_in_memory(ragged):
    from tokenmargin.problem.corpus import TokenCorpus

    data = ragged()
    model = OneLayer(data, initial_state(data.m, 5, seed=2, scales=(3.0, 3.0, 1.0), dtype=torch.float64), AdamW())
    corpus = TokenCorpus(
        data.ids.numpy(), np.diff(data.offsets.numpy()), data.labels.numpy(), tuple(map(str, range(data.m)))
    )
    found = evaluate(model, in_shards(data, [5, 20]), batch=7)
    margins = corpus.labels * model.outputs(torch.arange(data.n)).numpy()
    # Sums of some twenty losses, of some hundred products.
    assert found.loss == pytest.approx(np.log1p(np.exp(-margins)).mean(), rel=1e-13, abs=0)
    assert found.accuracy == (margins > 0).mean()
    counts = np.bincount(selected(model.scores()[0].numpy(), corpus), minlength=data.m)
    np.testing.assert_array_equal(found.selected, counts)


def test_a_model_that_has_diverged_has_no_loss(ragged):
    data = ragged()
    model = OneLayer(data, initial_state(data.m, 5, seed=2, dtype=torch.float64), AdamW())
    model.tensors()["scores"][0, 3] = torch.inf
    found = evaluate(model, data)
    assert np.isnan([found.loss, found.accuracy]).all()
    assert not found.selected.any()


def test_no_text_is_said():
    with pytest.raises(ValueError, match="there is no text in the shards; prepare some with a token in them"):
        MappedSequences.of([shard(np.zeros(0, np.int32), np.zeros(1, np.int64), np.zeros(0))], m=3)


TEXTS, LENGTH, LIMIT = 2_000_000, 550, 400 << 20

TRAIN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]),) * 2)
from pathlib import Path
import numpy as np
from tokenmargin.data.prepared import load_prepared
from tokenmargin.training.batches import MappedSequences
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.trainer import train
text = load_prepared(sys.argv[1], check=False)  # 4.4 GB of nothing, written without a checksum
data = MappedSequences.of([text], m=10)
try:
    np.array(text.ids)
except MemoryError:
    print("does not fit")
run = train(data, TrainingConfig(dimension=4, epochs=1, batch=64), budget=0.0, chunk=20)
anonymous = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
print(data.n, run.model.state.step, int(anonymous.split()[1]) * 1024)
"""


def write_sparse(path: Path) -> None:
    """A prepared file of 4.4 GB, nearly all of it a hole: every token is the first of the vocabulary."""
    tokens = TEXTS * LENGTH
    small = {
        "offsets": ("I64", np.arange(TEXTS + 1, dtype=np.int64) * LENGTH),
        "labels": ("I8", np.resize(np.array([1, -1], np.int8), TEXTS)),
        "rows": ("I64", np.zeros(0, np.int64)),
        "starts": ("I32", np.zeros(0, np.int32)),
        "ends": ("I32", np.zeros(0, np.int32)),
    }
    header: dict[str, object] = {"__metadata__": {"vocabulary": "[]", "steps": "[]", "choices": "{}"}}
    at = 4 * tokens
    header["ids"] = {"dtype": "I32", "shape": [tokens], "data_offsets": [0, at]}
    for name, (dtype, array) in small.items():
        header[name] = {"dtype": dtype, "shape": [len(array)], "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    content = json.dumps(header).encode().ljust(1024)
    with path.open("wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        file.seek(4 * tokens, 1)
        for _, array in small.values():
            file.write(array.tobytes())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits the data of a process, mapped files apart")
def test_a_corpus_larger_than_the_memory_limit_is_trained_on(tmp_path):
    path = tmp_path / "large.safetensors"
    write_sparse(path)
    assert path.stat().st_size > 10 * LIMIT
    run = subprocess.run(
        [sys.executable, "-c", TRAIN, str(path), str(LIMIT)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    unfit, counts = run.stdout.splitlines()
    assert unfit == "does not fit"
    texts, steps, anonymous = map(int, counts.split())
    assert (texts, steps) == (TEXTS, 20)
    assert anonymous < LIMIT
