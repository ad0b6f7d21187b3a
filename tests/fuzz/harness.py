"""Hostile inputs, many and cheap: each is given in this process, and what came of it is counted.

An input is drawn by a generator of its own, from the seed and its number, so that each can be given again alone.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import math
import resource
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

import tokenmargin
from tokenmargin import cli

Generator = np.random.Generator
HANG_SECONDS = 30
MEMORY = 4 << 30
HOME = str(Path(tokenmargin.__file__).parent)

INTEGERS = (0, 1, 2, 3, -1, -2, 7, 2**31, 2**63, -(2**63), 10**30)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-300, 5e-324, 1e300, 1.8e308, math.inf, -math.inf, math.nan, 1e-17, 1e16)
TEXTS = ("", " ", "x", "-1", "nan", "0", "A1", "a:b", ":", "\x00", "\ud800", "é" * 3, "=cmd|' /C'!A0", "\x1b[2J",
         "<script>", "a" * 5000, "../x", "l2", "1e999", "{}", "[]", "\n", "٣", "0x10")  # fmt: skip
ODD = (None, True, "x", [], {}, [[]], 1e400, 10**400, -(2**63), {"a": 1}, [1, [2]], "1", "nan", math.nan, 1 + 0j)


class WrongAnswer(AssertionError):
    """An input was accepted, and the answer is not right."""


class Unclear(AssertionError):
    """An input was refused, by a message that is not ours."""


class Hang(BaseException):
    """An input takes too long."""


FAULTS = {Hang: "hangs", WrongAnswer: "wrong", Unclear: "unclear", MemoryError: "memory"}  # others are tracebacks

Surface = Callable[[Generator, Any], bool]
"""Draws one input and gives it: true when it was accepted, false when it was refused with a line of our own."""


@dataclass
class Tally:
    """What became of the inputs of one surface; `faults` has an example of each kind of fault by where it happened."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    tracebacks: int = 0
    unclear: int = 0
    hangs: int = 0
    memory: int = 0
    wrong: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        return self.tracebacks + self.unclear + self.hangs + self.memory + self.wrong

    def note(self, number: int, error: BaseException) -> None:
        where = f"{type(error).__name__} at {_site(error)}"
        self.faults[where] += 1
        self.examples.setdefault(where, (number, str(error)[:300]))


def fuzz(surface: Surface, samples: Any, *, seed: int, count: int, first: int = 0, seconds: float = 1e9) -> Tally:
    """Give `count` inputs to a surface, or as many as fit into `seconds`."""
    tally, began = Tally(), time.perf_counter()
    for number in range(first, first + count):
        if time.perf_counter() - began > seconds:
            break
        tally.inputs += 1
        give(surface, samples, seed, number, tally)
    tally.seconds = time.perf_counter() - began
    return tally


def give(surface: Surface, samples: Any, seed: int, number: int, tally: Tally) -> None:
    """Give one input and count what became of it."""
    before = _peak()
    try:
        with _alarm(HANG_SECONDS), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if surface(np.random.default_rng([seed, number]), samples):
                tally.accepted += 1
            else:
                tally.refused += 1
    except (Hang, Exception, SystemExit) as error:
        counted = next((name for kind, name in FAULTS.items() if isinstance(error, kind)), "tracebacks")
        setattr(tally, counted, getattr(tally, counted) + 1)
        tally.note(number, error)
    if _peak() - before > MEMORY:
        tally.memory += 1


def command(*arguments: object) -> tuple[int, str, str]:
    """A command in this process: its exit code, what it printed, and what it said; its refusals are checked."""
    out, err, refusals = io.StringIO(), io.StringIO(), []

    def listen(message: str) -> None:
        import sys

        refusals.append(sys.exc_info()[1])
        said(message)

    said, cli.print_error = cli.print_error, listen
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main([str(argument) for argument in arguments])
    finally:
        cli.print_error = said
    if code not in (0, 1, 2):
        raise WrongAnswer(f"exit code {code}: {err.getvalue()}")
    if "Traceback" in err.getvalue():
        raise WrongAnswer(err.getvalue())
    if code and not (err.getvalue().strip() or out.getvalue().strip()):
        raise WrongAnswer(f"exit code {code} without a word")
    for refusal in refusals:
        if isinstance(refusal, MemoryError):
            raise refusal
        if refusal is not None and not isinstance(refusal, OSError):
            check_clear(refusal)
    return code, out.getvalue(), err.getvalue()


def check_clear(error: BaseException) -> None:
    """Whether a refusal is a sentence that the package wrote: raised by a statement of its own."""
    place, line, function = _frame(error)
    if function == "usage_errors" and error.__cause__ is not None:  # it passes on what the library said
        place, line, function = _frame(error.__cause__)
    if not place.startswith(HOME) or not linecache.getline(place, line).strip().startswith("raise"):
        raise Unclear(f"{type(error).__name__}: {error}") from error


@contextlib.contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang("no end")

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of this process, whatever else the machine does
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak() -> int:
    """Bytes that this process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _frame(error: BaseException) -> tuple[str, int, str]:
    """File, line and function of the innermost frame."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return "", 0, ""
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_code.co_name


def _site(error: BaseException) -> str:
    """The innermost line of the package on the way to a fault."""
    told = error.__cause__ or error
    ours = [f for f in traceback.extract_tb(told.__traceback__) if f.filename.startswith(HOME)]
    if not ours:
        return str(error)[:60]
    return f"{Path(ours[-1].filename).relative_to(HOME)}:{ours[-1].lineno}"


# What is done to inputs


def pick(rng: Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def damaged(rng: Generator, content: bytes) -> bytes:
    """The same bytes with some of them changed, left out, repeated or put elsewhere."""
    data = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 8]))):
        if not data:
            return b"\0"
        at, length = int(rng.integers(len(data))), int(rng.integers(1, 40))
        match int(rng.integers(7)):
            case 0:
                data[at] ^= 1 << int(rng.integers(8))
            case 1:
                data[at] = int(rng.integers(256))
            case 2:
                del data[at:]
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = data[at : at + length]
            case 5:
                data[at:at] = rng.bytes(length)
            case _:
                data[at : at + 8] = int(pick(rng, (0, 1, 2**31, 2**63, 2**64 - 1))).to_bytes(8, "little")
    return bytes(data)


def strange(rng: Generator, tree: Any) -> Any:
    """A JSON value with one or two places changed into something odd, removed or repeated."""
    for _ in range(int(rng.choice([1, 1, 2]))):
        tree = _changed(rng, tree)
    return tree


def _changed(rng: Generator, tree: Any) -> Any:
    if isinstance(tree, dict) and tree and rng.random() < 0.9:
        key = pick(rng, list(tree))
        if rng.random() < 0.1:
            return {name: value for name, value in tree.items() if name != key}
        if rng.random() < 0.05:
            return {**tree, str(pick(rng, TEXTS)): pick(rng, ODD)}
        return {**tree, key: _changed(rng, tree[key])}
    if isinstance(tree, list) and tree and rng.random() < 0.85:
        at, copy = int(rng.integers(len(tree))), list(tree)
        if rng.random() < 0.1:
            del copy[at]
        elif rng.random() < 0.1:
            copy.insert(at, copy[at])
        else:
            copy[at] = _changed(rng, copy[at])
        return copy
    return pick(rng, (*ODD, *FLOATS, *INTEGERS, *TEXTS))


def strange_array(rng: Generator, array: np.ndarray) -> Any:
    """An array with other numbers, another shape or kind, or something that is no array."""
    array = np.array(array)
    match int(rng.integers(12)):
        case 0 | 1 if array.size:
            changed = array.astype(float)
            changed.flat[int(rng.integers(array.size))] = pick(rng, FLOATS)
            return changed
        case 2:
            return array.astype(float) * pick(rng, (0.0, 1e-300, 1e-160, 1e160, 1e300, np.inf, np.nan, -1.0))
        case 3:
            return array[:-1] if array.ndim else array
        case 4:
            return array[..., None]
        case 5:
            return np.zeros(tuple(rng.integers(0, 3, size=array.ndim).tolist()))
        case 6:
            return array.astype(pick(rng, (np.float32, np.int8, bool, complex, object, str, np.uint64)))
        case 7:
            return array.T
        case 8:
            return array.tolist()
        case 9:
            return np.concatenate([array, array]) if array.ndim else array
        case 10:
            return pick(rng, ODD)
        case _:
            return array.astype(float) + rng.integers(-3, 4, size=array.shape)
