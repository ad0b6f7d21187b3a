"""The origin of a number: the code, the packages and the machine that computed it."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import inspect
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenmargin._version import __version__
from tokenmargin.engines import usable_cores

PACKAGE = Path(__file__).resolve().parents[1]
SHOWN_ONLY = ("cli", "report")  # rooms that show results and compute none
PACKAGES = ("numpy", "scipy", "daqp", "pyarrow", "joblib", "matplotlib", "torch", "tokenizers", "ray")
MODULES = {"text": ("pyarrow", "tokenizers", "Stemmer"), "train": ("pyarrow", "tokenizers", "Stemmer", "torch")}
"""What an extra brings, as far as experiments need it."""
THREAD_SETTINGS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@functools.cache
def code_digest(experiment: type) -> str:
    """A digest of every source file that can change a result.

    These are the files of this package without its command line and pages, and, if the experiment lies elsewhere, its
    module or the package that holds it.
    """
    files = sorted(
        path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in SHOWN_ONLY
    )  # fmt: skip
    home = inspect.getsourcefile(experiment)
    if home is not None and PACKAGE not in Path(home).resolve().parents:
        files += _package_files(Path(home))
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _package_files(module: Path) -> list[Path]:
    """The files of the outermost package that a module belongs to, or the module alone."""
    top = module.parent
    if not (top / "__init__.py").exists():
        return [module]
    while (top.parent / "__init__.py").exists():
        top = top.parent
    return sorted(top.rglob("*.py"))


def missing_extras(needs: Iterable[str]) -> list[str]:
    """The extras of the package, of those needed, whose modules are not installed."""
    return [extra for extra in needs if any(importlib.util.find_spec(name) is None for name in MODULES[extra])]


def code_version(experiment: type) -> dict[str, Any]:
    """Version of the package, digest of its sources, and the commit they were checked out from, if any."""
    return {"version": __version__, "digest": code_digest(experiment), **_commit()}


def environment() -> dict[str, Any]:
    """Python, packages, processor, memory, accelerator, and the settings of threads."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name in PACKAGES if (version := _installed_version(name)) is not None},
        "processor": _processor(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "accelerator": _accelerator(),
        "threads": {name: os.environ[name] for name in THREAD_SETTINGS if name in os.environ},
    }


@functools.cache
def _commit() -> dict[str, Any]:
    """The commit of the sources, when they are files of a git checkout (and not merely installed below one)."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(PACKAGE), *arguments], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return {"commit": git("rev-parse", "HEAD"), "modified": bool(git("status", "--porcelain", "--", "."))}
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "modified": None}


@functools.cache
def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _accelerator() -> str | None:
    torch = sys.modules.get("torch")  # asked only where the experiment has loaded it
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())
