"""Commands of the program in forked children of this process, which has loaded what they load: they start at once."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tokenmargin.cli

__all__ = ["child", "child_through_pipe", "obey_permissions", "preload", "spawn", "wait"]

Prepare = Callable[[], None]
PATIENCE = 120  # seconds until a command is taken to hang


def preload() -> None:
    """Load what the commands load, so that a child begins to work at once."""
    for name in ("cli", "training.trainer", "training.checkpoint", "experiments.records", "experiments.figures",
                 "data.prepared", "data.sharded", "classifier", "margin.compiled.stack", "limits", "theory",
                 "report.figures"):  # fmt: skip
        importlib.import_module(f"tokenmargin.{name}")
    for command in Path(tokenmargin.cli.__file__).parent.glob("[a-z]*.py"):
        importlib.import_module(f"tokenmargin.cli.{command.stem}")
    for name in ("torch", "pyarrow.parquet", "safetensors.torch", "tokenizers", "numba", "sklearn.linear_model"):
        importlib.import_module(name)


def spawn(arguments: list[str], said: Path, prepare: Prepare | None = None) -> tuple[int, int]:
    """Start a command in a forked child; its process, and a pipe that is readable once it begins."""
    begun, begins = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begins)
        return pid, begun
    code = 99
    try:
        out = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        from tokenmargin import engines
        from tokenmargin.cli import main

        engines.LocalEngine = lambda _: engines.SerialEngine()  # type: ignore[assignment,misc]  # no processes of a fork
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if prepare is not None:
            prepare()
        os.write(begins, b"x")
        code = main(arguments)
    except KeyboardInterrupt:  # it came before the command began: as the program itself answers it
        os.write(2, b"error: interrupted\n")
        code = 130
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def child(
    arguments: list[str], prepare: Prepare | None = None, *, send: int = 0, after: float = 0.0
) -> tuple[int, str]:
    """Run a command to its end, or send it a signal; its exit code (negative: the signal) and all it said."""
    with tempfile.NamedTemporaryFile() as said:
        Path(said.name).chmod(0o666)
        pid, begun = spawn(arguments, Path(said.name), prepare)
        os.read(begun, 1)
        os.close(begun)
        if send:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, send)
        code = wait(pid)
        return code, Path(said.name).read_text(errors="replace")


def wait(pid: int) -> int:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -99


def obey_permissions() -> None:
    """Give up root's right to pass over permissions (CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH), where we have it."""
    libc, header, rights = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, rights)
    rights[0] &= ~0b110
    libc.capset(header, rights)


def child_through_pipe(arguments: list[str], prepare: Prepare) -> tuple[int, str]:
    """As `child`, for who may not write files: what it says goes through a pipe."""
    reader, writer = os.pipe()
    pid, begun = spawn(arguments, Path(f"/dev/fd/{writer}"), prepare)
    os.close(writer)
    os.close(begun)
    with os.fdopen(reader, errors="replace") as file:
        said = file.read()
    return wait(pid), said
