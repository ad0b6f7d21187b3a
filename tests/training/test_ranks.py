"""Training by several processes: equal to one process, equal among themselves, and the bytes they exchange."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.cluster_tools import together
from tests.oracles.rounding import NOISE, of_training
from tests.training.conftest import make_ragged

from tokenmargin.training.batches import epoch_order
from tokenmargin.training.checkpoint import whole_steps
from tokenmargin.training.config import TrainingConfig
from tokenmargin.training.parameters import initial_state
from tokenmargin.training.ranks import AbstractSplit, ByDimension, ByTexts, Ranks
from tokenmargin.training.trainer import train

CONFIG = TrainingConfig(dimension=11, epochs=4, batch=6, rate=0.02, milestones=(3,), decay=1e-3, dtype="float64")
STEPS = 4 * 7  # 37 rows: seven batches an epoch, the last of one row
SPLITS = {"texts": ByTexts, "dimension": ByDimension}


def outcome(split: AbstractSplit, **settings: Any) -> dict[str, Any]:
    run = train(make_ragged(), CONFIG, split=split, chunk=3, **settings)
    moved = dict(split.ranks.moved)
    return {
        "tensors": {name: tensor.numpy() for name, tensor in run.model.state.tensors().items()},
        "scores": run.model.scores().numpy(),
        "metrics": run.metrics,
        "moved": moved,
    }


def train_every_way(ranks: Ranks, folder: Path) -> dict[str, Any]:
    """One launch for all: both splits, twice, and a run that is stopped and resumed."""
    found = {}
    for name, split in SPLITS.items():
        found[name] = outcome(split(replace(ranks, moved={})))
        found[f"{name} again"] = outcome(split(replace(ranks, moved={})))
        place = folder / name
        train(make_ragged(), CONFIG, split=split(ranks), chunk=3, folder=place, budget=0.0)
        ranks.wait_for_all()
        if name == "dimension" and ranks.is_first:  # this rank got one checkpoint further than the others
            steps = whole_steps(place / f"columns-0-of-{ranks.size}")
            source = place / f"columns-0-of-{ranks.size}" / f"step-{steps[0]:09d}"
            for suffix in (".json", ".safetensors"):
                content = source.with_suffix(suffix).read_bytes()
                source.with_name("step-000000099").with_suffix(suffix).write_bytes(content)
        ranks.wait_for_all()
        found[f"{name} resumed"] = outcome(split(replace(ranks, moved={})), folder=place)
    return found


def largest(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    return max(float(abs(ours[name] - theirs[name]).max()) for name in theirs)


def of_order() -> float:
    """What another order of sums over 20 tokens and 11 dimensions can do to parameters, scores and losses."""
    more = 1 + NOISE
    ends = [
        train(make_ragged(), config, chunk=3)
        for config in (CONFIG, replace(CONFIG, embedding_scale=more, prompt_scale=more, head_scale=more))
    ]
    seen = [
        np.concatenate([
            *(tensor.numpy().ravel() for tensor in end.model.state.tensors().values()),
            end.model.scores().numpy().ravel(),
            [row["loss"] for row in end.metrics],
        ])
        for end in ends
    ]  # fmt: skip
    return of_training(*seen, STEPS, 20 + CONFIG.dimension)


def joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Columns of all ranks, side by side."""
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def same_bits(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    return all(ours[name].tobytes() == theirs[name].tobytes() for name in theirs)


@pytest.mark.parametrize("size", [2, 4])
def test_ranks_equal_one_process(size, tmp_path):
    """Sums are taken in another order; AdamW's quotients answer to rounding as to noise in the start."""
    alone, off = outcome(ByTexts()), of_order()
    assert alone["moved"] == {}
    found = together(size, train_every_way, tmp_path)
    whole = {
        "texts": found[0]["texts"]["tensors"],
        "dimension": joined([part["dimension"]["tensors"] for part in found]),
    }
    for name in SPLITS:
        assert largest(whole[name], alone["tensors"]) <= off
        for rank in found:
            assert abs(rank[name]["scores"] - alone["scores"]).max() <= off
            assert rank[name]["scores"].tobytes() == found[0][name]["scores"].tobytes()
            losses = [row["loss"] for row in rank[name]["metrics"]]
            assert losses == pytest.approx([row["loss"] for row in alone["metrics"]], abs=off)
            assert rank[name]["metrics"] == found[0][name]["metrics"]
            for other in (f"{name} again", f"{name} resumed"):
                assert same_bits(rank[other]["tensors"], rank[name]["tensors"])
                assert rank[other]["metrics"] == rank[name]["metrics"]
    assert all(same_bits(rank["texts"]["tensors"], found[0]["texts"]["tensors"]) for rank in found)


def test_bytes_are_those_of_the_model(tmp_path):
    """By texts: c and e, 2 m numbers a step. By dimension: two scores for each distinct token of the batch."""
    data = make_ragged()
    found = together(2, train_every_way, tmp_path)[0]
    chunks = CONFIG.epochs * 3  # seven batches in chunks of three
    assert found["texts"]["moved"] == {"vectors": STEPS * 2 * data.m * 8, "scalars": chunks * 8, "flags": chunks * 12}
    distinct = 0
    for epoch in range(CONFIG.epochs):
        order = torch.as_tensor(epoch_order(data.n, seed=CONFIG.seed, epoch=epoch))
        distinct += sum(len(set(data.batch(rows).ids.tolist())) for rows in order.split(CONFIG.batch))
    assert found["dimension"]["moved"] == {"vectors": distinct * 2 * 8, "flags": chunks * 12}
    dense = 8 * (data.m * CONFIG.dimension + 2 * CONFIG.dimension)
    assert found["texts"]["moved"]["vectors"] / STEPS < 2.01 / CONFIG.dimension * dense


def test_columns_are_those_of_one_draw():
    whole = initial_state(50, 11, seed=3, dtype=torch.float64)
    parts = [initial_state(50, 11, seed=3, dtype=torch.float64, columns=Ranks(r, 3).own_part(11)) for r in range(3)]
    assert torch.equal(torch.cat([part.embeddings for part in parts], 1), whole.embeddings)
    assert torch.equal(torch.cat([part.heads for part in parts], 1), whole.heads)


@pytest.mark.parametrize(("m", "d"), [(1, 3), (40, 1), (1031, 4096), (16, 70_000), (33, 65_536)])
def test_a_draw_in_blocks_is_one_large_draw(m, d):
    rng = torch.Generator().manual_seed(5)
    embeddings = torch.randn(m, d, generator=rng, dtype=torch.float64) * (1 / math.sqrt(d))
    prompt = torch.randn(d, generator=rng, dtype=torch.float64) * (1 / math.sqrt(d))
    state = initial_state(m, d, seed=5, dtype=torch.float64)
    assert torch.equal(state.embeddings, embeddings)
    assert torch.equal(state.prompt, prompt)


def test_what_cannot_be_split_is_said(tmp_path):
    with pytest.raises(ValueError, match="a dimension of 11 cannot be split over 12 ranks; use fewer ranks"):
        ByDimension(Ranks(0, 12)).own_columns(11)
    with pytest.raises(ValueError, match="the two-layer model trains in one process"):
        train(make_ragged(), replace(CONFIG, model="two-layer"), split=ByTexts(Ranks(0, 2)))
    (tmp_path / "columns-0-of-3").mkdir()
    for split in (ByDimension(), ByTexts()):
        with pytest.raises(
            ValueError, match=r"holds columns-0-of-3, of a run that was split in another way .* as it was"
        ):
            split.load(tmp_path)


def test_one_process_goes_on_with_what_ranks_have_begun(tmp_path):
    """By texts a checkpoint knows nothing of the ranks: their number may change, and the result only by rounding."""
    together(2, partly, tmp_path)
    run = train(make_ragged(), CONFIG, folder=tmp_path)
    alone = outcome(ByTexts())
    assert run.model.state.step == STEPS
    tensors = {name: tensor.numpy() for name, tensor in run.model.state.tensors().items()}
    assert largest(tensors, alone["tensors"]) <= of_order()


def partly(ranks: Ranks, folder: Path) -> None:
    train(make_ragged(), CONFIG, split=ByTexts(ranks), chunk=3, folder=folder, budget=0.0)
