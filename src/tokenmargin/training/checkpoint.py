"""Checkpoints that are whole or absent: a file of tensors (safetensors), then a record with its checksum.

The record is written last and by renaming, so a process killed at any moment leaves either the new checkpoint or the
one before. It holds a checksum of the tensors and one of itself. The newest checkpoint that agrees with both is read.
Loading executes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tokenmargin._files import atomic_path, file_digest, open_sealed, read_plain, seal_record

KEPT = 2  # checkpoints that stay in a folder


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors and the record of a run at some step; `skipped` names newer checkpoints that are damaged."""

    tensors: dict[str, Tensor]
    record: dict[str, Any]
    skipped: tuple[str, ...] = ()


def save_checkpoint(folder: Path, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write a checkpoint, then remove all but the last two."""
    name = _name(step)
    with atomic_path(folder / f"{name}.safetensors") as beside:
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, beside)
        digest = file_digest(beside)
    with atomic_path(folder / f"{name}.json") as beside:
        beside.write_text(json.dumps(seal_record({**record, "step": step, "sha256": digest})), encoding="utf-8")
    for old in sorted(folder.glob("step-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def whole_steps(folder: Path) -> list[int]:
    """The steps whose checkpoints are whole, the newest first."""
    return [int(note.stem.removeprefix("step-")) for note in _notes(folder) if not _damage(note)]


def damaged_checkpoints(folder: Path) -> tuple[str, ...]:
    """The damaged checkpoints of a folder, also of ranks that hold columns, each with what is wrong."""
    places = (folder, *sorted(folder.glob("columns-*")))
    return tuple(f"{note}: {damage}" for place in places for note in _notes(place) if (damage := _damage(note)))


def load_checkpoint(folder: Path, *, step: int | None = None) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None; with `step`, the newest up to that step."""
    skipped: list[str] = []
    for note in _notes(folder):
        if step is not None and note.stem > _name(step):
            continue
        damage = _damage(note)
        if not damage:
            data = load_file(note.with_suffix(".safetensors"))
            return Checkpoint(data, open_sealed(json.loads(read_plain(note))), tuple(skipped))
        skipped.append(f"{note.name}: {damage}")
    return None


def _name(step: int) -> str:
    return f"step-{step:09d}"


def _notes(folder: Path) -> list[Path]:
    """The records of all checkpoints, the newest first."""
    return sorted(folder.glob("step-*.json"), reverse=True)


def _damage(note: Path) -> str:
    """What is wrong with the checkpoint of a record; empty if it is whole."""
    data = note.with_suffix(".safetensors")
    try:
        record = open_sealed(json.loads(read_plain(note)))
        if file_digest(data) != record["sha256"]:
            raise ValueError(f"the checksum of {data.name} differs")
        with safe_open(data, framework="pt"):
            return ""
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        return str(error)
