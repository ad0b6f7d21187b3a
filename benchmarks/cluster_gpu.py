"""Ranks on GPUs: `python -m benchmarks.cluster_gpu`, or `torchrun --nproc-per-node N -m benchmarks.cluster_gpu`.

Each rank trains both ways and compares with the same steps taken alone. Ranks that outnumber the GPUs share them and
exchange through the host (gloo); otherwise they speak NCCL. Started alone, one rank goes through NCCL by itself, which
shows what the exchange adds to a step.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.cluster_training import SETTINGS, Case
from tokenmargin.training.batches import TokenData
from tokenmargin.training.one_layer import OneLayer
from tokenmargin.training.one_layer_cuda import OneLayerCuda
from tokenmargin.training.parameters import initial_state
from tokenmargin.training.ranks import AbstractSplit, ByDimension, ByTexts, Ranks, join_ranks

WARM = 16
WAYS: tuple[tuple[str, Any, type[AbstractSplit], torch.dtype], ...] = (
    ("by texts, our kernels, float32", OneLayerCuda, ByTexts, torch.float32),
    ("by texts, torch's kernels, float64", OneLayer, ByTexts, torch.float64),
    ("by dimension, torch's kernels, float64", OneLayer, ByDimension, torch.float64),
    ("by dimension, torch's kernels, float32", OneLayer, ByDimension, torch.float32),
)


@dataclass(frozen=True, eq=False)
class Talkative(Ranks):
    """One rank that exchanges with itself."""

    @property
    def is_alone(self) -> bool:
        return False


def steps_of(case: Case, model_class: Any, split: AbstractSplit, dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    """The embeddings after some steps, and milliseconds a step afterwards."""
    device, plain = split.ranks.device, case.data()
    data = TokenData(plain.ids.to(device), plain.offsets.to(device), plain.labels.to(device), plain.m).cast(dtype)
    columns = split.own_columns(case.d)
    state = initial_state(case.m, case.d, seed=0, dtype=dtype, device=device, columns=columns)
    model = model_class(data, state, SETTINGS, split=split)
    order = torch.arange(data.n, device=device)
    model.run(order, case.batch, first=0, last=WARM, rate=SETTINGS.rate)
    after = state.embeddings.clone()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    model.run(order, case.batch, first=WARM, last=case.steps, rate=SETTINGS.rate)
    torch.cuda.synchronize()
    return after, (time.perf_counter() - begun) / (case.steps - WARM) * 1e3


def compare(ranks: Ranks) -> None:
    for case in (Case(500, 64, batch=37, steps=32), Case(8000, 2048, steps=80)):
        for name, model_class, split_class, dtype in WAYS:
            split = split_class(replace(ranks, moved={}))
            ours, ms = steps_of(case, model_class, split, dtype)
            whole, alone = steps_of(case, model_class, ByTexts(Ranks(device=ranks.device)), dtype)
            apart = float((ours - whole[:, split.own_columns(case.d)]).abs().max())
            differing = len(set(ranks.from_all(float(ours.double().sum())))) if split_class is ByTexts else 1
            if ranks.is_first:
                vectors = split.ranks.moved["vectors"] / case.steps / 1e6
                print(
                    f"m = {case.m}, d = {case.d}, {name}: {ms:.3f} ms ({alone:.3f} alone), apart {apart:.1e}, "
                    f"{vectors:.3f} MB a step, {'all ranks alike' if differing == 1 else 'RANKS DIFFER'}",
                    flush=True,
                )


def main() -> None:
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        with join_ranks("cuda") as ranks:
            if ranks.is_first:
                print(f"{ranks.size} ranks on {torch.cuda.device_count()} GPUs, {dist.get_backend()}")
            compare(ranks)
        return
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29531", "RANK": "0", "WORLD_SIZE": "1"}
    dist.init_process_group("nccl")
    print("one rank, NCCL")
    compare(Talkative(0, 1, torch.device("cuda", 0)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
