"""The trainer: schedule, resuming to the bit, kills at any moment, damaged checkpoints, early ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import tokenmargin as tm
from tokenmargin._files import locked_folder
from tokenmargin.data.pipeline import Pipeline
from tokenmargin.training.batches import training_data
from tokenmargin.training.checkpoint import load_checkpoint, save_checkpoint
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.trainer import train

CONFIG = TrainingConfig(dimension=8, epochs=6, batch=8, rate=0.02, milestones=(3,), decay=1e-3)


@pytest.fixture(name="data")
def short_data(ragged):
    return ragged(dtype=torch.float32)


def same(ours, theirs) -> bool:
    pairs = zip(ours.model.tensors().values(), theirs.model.tensors().values(), strict=True)
    return ours.metrics == theirs.metrics and all(torch.equal(a, b) for a, b in pairs)


def test_texts_and_corpora_are_trained_on_as_they_are():
    texts = tm.prepare(["a good film", "a bad film", "good tea"] * 4, [1, -1, 1] * 4, Pipeline(minimum_count=1))
    runs = [train(form, CONFIG) for form in (texts, texts.corpus(), training_data(texts))]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])
    with pytest.raises(TypeError, match=r"training needs prepared texts .* got list"):
        train(["a good film"], CONFIG)


def test_schedule_and_metrics(data, tmp_path):
    seen = []
    run = train(
        data,
        CONFIG,
        folder=tmp_path,
        observe=lambda model: {"norm": float(model.state.prompt.norm())},
        progress=seen.append,
    )
    # One product.
    assert [row["rate"] for row in run.metrics] == pytest.approx([0.02] * 3 + [0.002] * 3, rel=1e-15, abs=0)
    assert run.status == "finished"
    assert run.metrics[-1]["loss"] < run.metrics[0]["loss"]
    assert seen[-1].step == seen[-1].steps == 30
    assert seen[-1].loss == run.loss
    table = pq.read_table(tmp_path / "metrics.parquet")
    assert table["loss"].to_pylist() == [row["loss"] for row in run.metrics]
    assert "norm" in table.column_names


@pytest.mark.parametrize("model", ["one-layer", "two-layer"])
def test_resumed_run_equals_an_uninterrupted_one(data, tmp_path, model):
    config = replace(CONFIG, model=model)
    whole = train(data, config)
    part = train(data, config, folder=tmp_path, budget=0.0, chunk=3)  # one chunk, in the middle of an epoch
    assert part.status == "out of time"
    assert part.model.state.step == 3
    train(data, replace(config, epochs=4), folder=tmp_path)
    assert same(train(data, config, folder=tmp_path), whole)


def test_two_runs_of_a_seed_agree_and_seeds_differ(data):
    assert same(train(data, CONFIG), train(data, CONFIG))
    assert not same(train(data, CONFIG), train(data, replace(CONFIG, seed=1)))


def test_damaged_checkpoint_is_passed_over(data, tmp_path):
    whole = train(data, CONFIG)
    train(data, replace(CONFIG, epochs=2), folder=tmp_path)
    train(data, replace(CONFIG, epochs=4), folder=tmp_path)
    newest = sorted(tmp_path.glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    again = train(data, CONFIG, folder=tmp_path)
    assert same(again, whole)
    record = newest.with_suffix(".json").name
    assert again.notes == (f"damaged checkpoint passed over: {record}: the checksum of {newest.name} differs",)


@pytest.mark.parametrize("change", [b"[]", b"", b"[" * 100_000, None], ids=["list", "empty", "nested", "one digit"])
def test_a_damaged_only_checkpoint_is_not_trusted_and_not_silent(data, tmp_path, change):
    whole = train(data, CONFIG)
    train(data, replace(CONFIG, epochs=2), folder=tmp_path)
    for record in tmp_path.glob("step-*.json"):
        content = record.read_bytes()
        record.write_bytes(content.replace(b'"total": 0.0', b'"total": 0.5') if change is None else change)
        assert record.read_bytes() != content
    again = train(data, CONFIG, folder=tmp_path)
    assert same(again, whole)
    assert len(again.notes) == 1
    assert again.notes[0].startswith("damaged checkpoint, so training began anew: ")


def test_two_trainings_in_one_folder_are_refused(data, tmp_path):
    with locked_folder(tmp_path), pytest.raises(OSError, match=r"another process is at work in it; wait for it"):
        train(data, CONFIG, folder=tmp_path)
    train(data, replace(CONFIG, epochs=1), folder=tmp_path)


def test_only_two_checkpoints_are_kept(tmp_path):
    for step in range(5):
        save_checkpoint(tmp_path, step, {"x": torch.ones(2)}, {})
    assert len(list(tmp_path.iterdir())) == 4
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.record["step"] == 4


def test_other_settings_in_the_folder_are_refused(data, tmp_path):
    train(data, replace(CONFIG, epochs=1), folder=tmp_path)
    with pytest.raises(ValueError, match=r"holds a run with rate = 0\.02, not 0\.5; choose another folder"):
        train(data, replace(CONFIG, rate=0.5), folder=tmp_path)


def test_stops_at_a_loss(data):
    run = train(data, replace(CONFIG, epochs=200), stop_loss=0.6)
    assert run.status == "loss reached"
    assert run.loss <= 0.6 < run.metrics[-2]["loss"]


def test_interrupt_ends_after_the_chunk_in_hand_and_can_be_resumed(data, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    run = train(data, replace(CONFIG, epochs=100_000), folder=tmp_path, chunk=1)
    assert run.status == "interrupted"
    assert signal.getsignal(signal.SIGINT) is before
    found = load_checkpoint(tmp_path)
    assert found is not None
    assert found.record["step"] == run.model.state.step


def test_killed_twenty_times_it_still_ends_with_the_same_bits(data, tmp_path):
    """SIGKILL at random moments while a checkpoint is written after every step."""
    config = replace(CONFIG, epochs=80, milestones=(40,))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenmargin.training.trainer"])
    rng = np.random.default_rng(0)
    reached, ends = [], []
    for _ in range(20):
        settings = {"folder": tmp_path, "checkpoint_every": 0.0, "chunk": 1}
        process = context.Process(target=train, args=(data, config), kwargs=settings)
        process.start()
        before = set(tmp_path.glob("*.json"))
        while process.is_alive() and not set(tmp_path.glob("*.json")) - before:  # wait until it writes
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.03))
        process.kill()
        process.join()
        ends.append(process.exitcode)
        found = load_checkpoint(tmp_path)
        reached.append(0 if found is None else found.record["step"])  # 0 where the first one was not whole yet
    assert reached == sorted(reached)
    assert reached[-1] > 0
    assert -signal.SIGKILL in ends  # on a busy machine the last ones may find nothing left to do
    assert set(ends) <= {-signal.SIGKILL, 0}
    assert same(train(data, config, folder=tmp_path), train(data, config))
