"""`tokenmargin train` under torchrun: a rank killed in the middle of an epoch, and the same result in the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch
from benchmarks.cluster_tools import together

from tokenmargin.cli import main
from tokenmargin.data.pipeline import PLAIN, prepare
from tokenmargin.data.prepared import load_prepared
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sources import binary_labels
from tokenmargin.training.batches import TokenData
from tokenmargin.training.checkpoint import load_checkpoint
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.ranks import ByDimension, ByTexts, Ranks
from tokenmargin.training.trainer import train

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc")
TEXTS, BATCH, EPOCHS = 800, 8, 5
PER_EPOCH = TEXTS // BATCH
SPLITS = {"texts": ByTexts, "dimension": ByDimension}


def undisturbed(ranks: Ranks, prepared: Path, folder: Path, split: str) -> None:
    torch.set_num_threads(1)
    text = load_prepared(prepared)
    data = TokenData.of(text.ids, np.asarray(text.offsets), text.labels, m=text.m)
    config = TrainingConfig(dimension=8, epochs=EPOCHS, batch=BATCH, rate=0.01, milestones=(), dtype="float64")
    train(data, config, folder=folder, split=SPLITS[split](ranks))


@contextlib.contextmanager
def launched(command: list[str], log: IO[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A launcher, which takes its ranks with it when the test ends before it does."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=log, stderr=log, env=environment) as launcher:
        try:
            yield launcher
        finally:
            if launcher.poll() is None:
                launcher.terminate()


def ranks_of(launcher: int) -> dict[int, int]:
    """Process ids of the ranks that a launcher has started, by rank."""
    found = {}
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        try:
            environment = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found |= {int(value[5:]): int(child) for value in environment if value.startswith(b"RANK=")}
    return found


def first_columns(folder: Path, split: str) -> Path:
    return folder / "columns-0-of-2" if split == "dimension" else folder


def middle_of_an_epoch(folder: Path) -> bool:
    steps = [int(note.stem.removeprefix("step-")) for note in folder.glob("step-*.json")]
    return any(step > PER_EPOCH and step % PER_EPOCH for step in steps)


@pytest.mark.parametrize("split", SPLITS)
def test_a_rank_killed_in_mid_epoch(split, tmp_path):
    prepared = tmp_path / "sentences.safetensors"
    made = make_sentences(TEXTS, np.random.default_rng(0))
    prepare(made.texts, binary_labels(made.labels), PLAIN).save(prepared)
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["--max-restarts", "2", "-m", "tokenmargin", "train", str(prepared), "--out", str(out)]
    command += ["--dimension", "8", "--epochs", str(EPOCHS), "--batch", str(BATCH), "--rate", "0.01"]
    command += ["--dtype", "float64", "--checkpoint-every", "0", "--split", split, "--device", "cpu"]
    with (tmp_path / "log").open("w") as log, launched(command, log) as launcher:
        while not middle_of_an_epoch(first_columns(out, split)):
            assert launcher.poll() is None, (tmp_path / "log").read_text()
            time.sleep(0.002)
        victim = ranks_of(launcher.pid)[1]
        os.kill(victim, signal.SIGKILL)
        assert launcher.wait(timeout=600) == 0, (tmp_path / "log").read_text()
    said = (tmp_path / "log").read_text()
    assert f"(pid: {victim})" in said  # the launcher saw it die
    assert "2 ranks; bytes exchanged by each: " in said
    together(2, undisturbed, prepared, tmp_path / "whole", split)
    wanted = load_checkpoint(first_columns(tmp_path / "whole", split))
    found = load_checkpoint(first_columns(out, split))
    assert wanted is not None
    assert found is not None
    assert found.record["step"] == wanted.record["step"] == EPOCHS * PER_EPOCH
    assert all(torch.equal(found.tensors[name], wanted.tensors[name]) for name in wanted.tensors)
    losses = [[row["loss"] for row in run.record["position"]["metrics"]] for run in (found, wanted)]
    assert losses[0] == losses[1]


def test_shards_train_to_the_bits_of_the_file(tmp_path, capsys):
    """The same corpus as one file in memory and as shards on the disk; both through the command line."""
    import polars as pl

    made = make_sentences(300, np.random.default_rng(1))
    source = tmp_path / "texts.parquet"
    pl.DataFrame({"text": made.texts, "label": made.labels}).write_parquet(source)
    for out in ("whole.safetensors", "shards"):
        assert main(["prepare", str(source), "--out", str(tmp_path / out), "--slice-megabytes", "0.01"]) == 0
        run = ["train", str(tmp_path / out), "--out", str(tmp_path / f"run-{out}"), "--dimension", "8", "--epochs", "2"]
        assert main([*run, "--device", "cpu"]) == 0
    assert len(list((tmp_path / "shards").glob("shard-*"))) > 2
    whole, shards = (load_checkpoint(tmp_path / f"run-{out}") for out in ("whole.safetensors", "shards"))
    assert whole is not None
    assert shards is not None
    assert all(torch.equal(whole.tensors[name], shards.tensors[name]) for name in whole.tensors)
    said = capsys.readouterr().out.split("step  ")
    assert said[1].splitlines()[-30:-1] == said[2].splitlines()[-30:-1]
