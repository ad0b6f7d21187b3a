"""Stacks of small systems by numba, whose compiled code is kept on disk beside its module or in the user's cache.

An installation that nobody may write, run by a user without a home, has neither, and numba would refuse to compile.
There the code is kept for as long as the process lives. numba notices a change in a function's own file alone, and
cannot read what it kept of a class that has moved: whatever is older than any of our sources is removed.
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
