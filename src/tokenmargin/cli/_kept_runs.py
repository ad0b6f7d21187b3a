"""Runs kept in a file: `--save` writes them, `--resume` goes on with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmargin.cli._common import UsageError, print_message

if TYPE_CHECKING:
    from numpy import ndarray as Array

    from tokenmargin.problem.token_problem import TokenProblem

LARGEST = 4 << 30  # bytes of a run in memory: a small file cannot ask for more
MEMORY = "memory_"  # what the method remembers stands in a kept run under such names
Settings = Mapping[str, str | int | float | None]


def problem_digest(problem: TokenProblem) -> str:
    """A name for the content of a problem."""
    from tokenmargin._files import arrays_digest

    return arrays_digest(problem.fields())[:16]


def run_file(save: Path | None, resume: Path | None) -> Path | None:
    """Where a run is kept: the file of `--save`, or that of `--resume`."""
    file = resume if save is None else save
    if file is not None and file.suffix != ".npz":
        raise UsageError(f"a run is kept in a .npz file, got {file.name!r}")
    return file


def save_run(path: Path, arrays: Mapping[str, Array], settings: Settings) -> None:
    """Write arrays and settings as a `.npz` file, whole or not at all."""
    import numpy as np

    from tokenmargin._files import arrays_digest, seal_record, write_arrays

    record = json.dumps(seal_record({**settings, "sha256": arrays_digest(arrays)}))
    write_arrays(path, {**arrays, "settings": np.array(record)})
    print_message(f"wrote {path}")


def load_run(path: Path, settings: Settings) -> dict[str, Array]:
    """The arrays of a kept run, refused when it was another problem's or made with other settings."""
    from tokenmargin._files import arrays_digest, open_sealed, read_arrays

    if not path.is_file():
        raise UsageError(f"{path}: no such file; --resume goes on with a run that was kept with --save")
    try:
        arrays = read_arrays(path, largest=LARGEST)
        kept = open_sealed(json.loads(str(arrays.pop("settings"))))
        if kept["sha256"] != arrays_digest(arrays):
            raise ValueError("its checksum differs")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: not a run kept with --save, or damaged ({error})") from error
    for name, ours in settings.items():
        if kept.get(name) != ours:
            raise UsageError(
                f"{path} is a run with {name} = {kept.get(name)!r}, not {ours!r}; give the same, or start anew"
            )
    return arrays
