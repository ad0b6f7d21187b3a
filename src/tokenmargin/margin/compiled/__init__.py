"""Stacks of small systems by numba, whose compiled code is kept on disk beside its module or in the user's cache.

An installation that nobody may write, run by a user without a home, has neither, and numba would refuse to compile.
There the code is kept for as long as the process lives. numba notices a change in a function's own file alone, and
cannot read what it kept of a class that has moved: whatever is older than any of our sources is removed.
`StackBuffers` are the arrays into which many systems are answered at once; they need no compiler.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

UNDECIDED, SOLVED, INFEASIBLE, OUT_OF_RANGE, RAY = 0, 1, 2, 3, 4
"""What is known of a system; out of range are rows whose squared length is no ordinary number.

A ray is a Farkas vector that only exact arithmetic can judge: its rows span less than the whole space.
"""


class StackBuffers(NamedTuple):
    """What is written for each problem: multipliers and vector, or a Farkas vector of sum 1, with the residuals.

    The first four columns of `residuals` are those of `ResidualTable`, the last is of the Farkas vector: 0 if proven.
    """

    codes: Int[Array, " B"]
    vectors: Float[Array, "B r"]
    norms: Float[Array, " B"]
    multipliers: Float[Array, "B k"]
    farkas: Float[Array, "B k"]
    residuals: Float[Array, "B 5"]

    @classmethod
    def empty(cls, B: int, k: int, r: int) -> StackBuffers:
        """Nothing decided yet: zeros, and infinite residuals."""
        return cls(
            codes=np.full(B, UNDECIDED, dtype=np.intp),
            vectors=np.zeros((B, r)),
            norms=np.zeros(B),
            multipliers=np.zeros((B, k)),
            farkas=np.zeros((B, k)),
            residuals=np.full((B, 5), np.inf),
        )


def keep_somewhere(folder: Path, environment: MutableMapping[str, str]) -> str | None:
    """A private folder for compiled code, named in the environment, where numba has no other; None where it has."""
    home = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if "NUMBA_CACHE_DIR" in environment or _writable(folder) or _writable(Path(home)):
        return None
    found = environment["NUMBA_CACHE_DIR"] = tempfile.mkdtemp(prefix="tokenmargin-")
    if "numba" in sys.modules:  # it has read its environment already
        sys.modules["numba"].config.CACHE_DIR = found
    return found


def forget_older(*folders: Path) -> None:
    """Remove compiled code that is older than any source of these folders, as after an upgrade or a change."""
    newest = max((source.stat().st_mtime_ns for folder in folders for source in folder.glob("*.py")), default=0)
    for folder in folders:
        for kept in (folder / "__pycache__").glob("*.nb[ci]"):
            with contextlib.suppress(OSError):  # it is gone already, or not ours to remove
                if kept.stat().st_mtime_ns < newest:
                    kept.unlink()


def _writable(folder: Path) -> bool:
    """Whether a folder can be written, or made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


forget_older(Path(__file__).parent, Path(__file__).parents[1] / "normed")
_kept = keep_somewhere(Path(__file__).parent / "__pycache__", os.environ)
if _kept is not None:
    atexit.register(shutil.rmtree, _kept, ignore_errors=True)
