"""What the commands share: options, reading problems and numbers, speaking to people and to machines."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeAlias, TypeVar

from cyclopts import Parameter, validators

from tokenmargin.plugins import PluginWarning

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from tokenmargin.engines import AbstractEngine
    from tokenmargin.problem.abstract_geometry import AbstractGeometry
    from tokenmargin.problem.token_problem import TokenProblem


INTERRUPTED = 130  # as shells have it: 128 and the signal's number
UNBOUNDED = 1 << 14  # columns of a file
Number = TypeVar("Number", int, float)
Seed = Annotated[int, Parameter(validator=validators.Number(gte=0, lt=2**32))]
"""A seed on the command line."""
Json: TypeAlias = Annotated[bool, Parameter(help="Write one JSON object to standard output.")]
ModelFolder: TypeAlias = Annotated[Path, Parameter(help="A model folder, written by tokenmargin fit or train.")]
TextColumn: TypeAlias = Annotated[str, Parameter(help="The column with the texts.")]
LabelColumn: TypeAlias = Annotated[str, Parameter(help="The column with the labels.")]
Encoding: TypeAlias = Annotated[
    str | None, Parameter(help="Of a .csv or .tsv file, if it is not UTF-8: utf-16, latin-1, cp1252.")
]
Delimiter: TypeAlias = Annotated[str | None, Parameter(help="Of a .csv or .tsv file, if it is not a comma or a tab.")]
Problem: TypeAlias = Annotated[str, Parameter(help="A .npz or .json file, or the name of a figure, such as fig1c.")]
Jobs: TypeAlias = Annotated[int, Parameter(help="Processes of the local engine; -1 for one per core.")]
Address: TypeAlias = Annotated[str | None, Parameter(help="The ray cluster, for --engine ray: auto, or host:port.")]
RunsFolder: TypeAlias = Annotated[Path, Parameter(help="Folder of all runs.")]


class UsageError(Exception):
    """Something the user gave cannot be used; the message says what and how to mend it."""


def print_message(message: str = "", *, markup: bool = False) -> None:
    """A message for people, on standard error; brackets in it (of paths, say) are colours only where `markup`."""
    if markup:
        for line in message.split("\n"):
            print_hanging(console_for(sys.stderr), line)
    else:
        print(_wrap(message, sys.stderr), file=sys.stderr)


def console_for(stream: TextIO) -> Console:
    """A console that wraps lines at the width of a terminal, and does not wrap them in a file or a pipe."""
    from rich.console import Console

    return Console(file=stream, highlight=False, width=None if stream.isatty() else UNBOUNDED)


def print_hanging(console: Console, markup: str) -> None:
    """Print a line; if it is too long, the rest is indented as far as the indent, the first word and its gap reach."""
    from rich.text import Text

    text = Text.from_markup(markup, emoji=False)
    gap = re.match(r" *(?:\S+ {2,})?", text.plain)
    assert gap is not None  # it matches the empty text
    first, *rest = text.wrap(console, console.width - gap.end(), tab_size=8) or [text]
    console.print(first)
    for part in rest:
        console.print(Text(" " * gap.end()) + part)


def without_unused_coordinates(vector: Any, keys: AbstractGeometry) -> Any:
    """A parameter without zeros at the end where every key has zeros, as those of a planar problem in space have."""
    import numpy as np

    from tokenmargin.problem.geometry import Coordinates

    if not isinstance(keys, Coordinates) or np.shape(vector) != (keys.dimension,):
        return np.asarray(vector)
    seen = np.flatnonzero(keys.vectors.any(axis=0) | (np.asarray(vector) != 0))
    return np.asarray(vector)[: seen.max(initial=0) + 1]


def vector_text(vector: Any, keys: AbstractGeometry | None = None) -> str:
    """A vector in six figures; of a parameter of these `keys` its `without_unused_coordinates`.

    >>> import numpy as np
    >>> vector_text(np.array([-1e-17, 0.5, 0.0])), vector_text(np.array([2e-12, 1e-12]))
    ('[0.  0.5 0. ]', '[2.e-12 1.e-12]')
    """
    import numpy as np

    shown = np.asarray(vector) if keys is None else without_unused_coordinates(vector, keys)
    plain = bool(np.abs(shown).max(initial=0.0) >= 1e-3)  # shorter vectors keep their powers of ten
    with np.printoptions(precision=6, suppress=plain, threshold=12):
        return str(np.where(np.abs(shown) < 5e-7, 0.0, shown) if plain else shown)


def signed_text(x: float) -> str:
    """A part of a decision with its sign, in two decimals; what rounds to zero has none.

    >>> signed_text(0.5), signed_text(-0.004)
    ('+0.50', '0.00')
    """
    return f"{x:+.2f}" if abs(x) >= 0.005 else "0.00"


def print_answer(message: str) -> None:
    """A line of an answer, on standard output, wrapped between words."""
    print(_wrap(message, sys.stdout))


def _wrap(message: str, stream: TextIO) -> str:
    """The message with lines wrapped for a terminal, between words only; wrapped lines keep their indent."""
    if not stream.isatty():
        return message
    width = console_for(stream).width
    lines = []
    for line in message.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        parts = textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
        )
        lines += parts or [""]
    return "\n".join(lines)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names and values in two columns; a long value goes on under itself."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name), Text(printable(str(value))))
    _print_grid(grid)


def print_table(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
    """A table on standard output; a column is its name and "<" for words, "<<" for words and
    ">" for numbers that are never broken."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, show_edge=False, header_style="bold")
    for name, side in columns:
        grid.add_column(name, justify="right" if side == ">" else "left", no_wrap=side != "<", overflow="fold")
    for row in rows:
        grid.add_row(*(value if isinstance(value, Text) else Text(printable(str(value))) for value in row))
    _print_grid(grid)


def _print_grid(grid: Table) -> None:
    """Print a table without trailing blanks."""
    console = console_for(sys.stdout)
    with console.capture() as captured:
        console.print(grid)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def printable(text: str) -> str:
    """A text that cannot steer a terminal: every control character becomes a mark of the same length.

    >>> printable("a\\x1b[2Jb")
    'a\ufffd[2Jb'
    """
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" and c not in "\n\t" else c for c in text)


def print_error(message: str) -> None:
    """An error for people, in one line; plain, so that it survives any terminal and any brackets in the message."""
    print(f"error: {printable(' '.join(message.splitlines()))}", file=sys.stderr)


def system_line(error: OSError) -> str:
    """What the system refused, and of which place."""
    if error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)


def end_code(*, interrupted: bool) -> int:
    """The exit code of a command that keeps its results when Ctrl-C ends it; if it did, an error line says so."""
    if interrupted:
        print_error("interrupted: this is what was reached")
    return INTERRUPTED if interrupted else 0


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Turn errors that the library raises about the user's input into `UsageError`."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if type(error).__name__ == "LinAlgError":  # numpy's, and its words are for those who called it
            raise UsageError(
                "a system of equations of this problem has no answer in double precision; give keys and scores of "
                "ordinary sizes"
            ) from None
        raise UsageError(str(error)) from error


@contextlib.contextmanager
def plugin_lines() -> Iterator[None]:
    """Print each warning about a plugin that cannot be used as one line on standard error."""

    def print_one(message: Warning | str, category: type[Warning], *where: Any, **also: Any) -> None:
        if issubclass(category, PluginWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            otherwise(message, category, *where, **also)

    with warnings.catch_warnings():
        otherwise, warnings.showwarning = warnings.showwarning, print_one
        warnings.simplefilter("always", PluginWarning)
        yield


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a missing optional dependency into a message that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(f"this needs {error.name}: install it with pip install 'tokenmargin[{extra}]'") from error


def read_problem(source: str) -> TokenProblem:
    """A problem from a file, or a figure's problem by its name."""
    from tokenmargin.problem.instances import NAMED_PROBLEMS
    from tokenmargin.problem.problem_files import load_problem

    if source in NAMED_PROBLEMS:
        return NAMED_PROBLEMS[source]()
    if not Path(source).suffix:
        raise UsageError(f"{source}: give a .npz or .json file, or one of {', '.join(NAMED_PROBLEMS)}")
    with usage_errors():
        return load_problem(source)


def choose_engine(name: str, *, jobs: int, address: str | None) -> AbstractEngine:
    """The engine that `--engine`, `--jobs` and `--address` ask for."""
    from tokenmargin.engines import NO_CLUSTER, LocalEngine, RayEngine, SerialEngine

    if name == "ray":
        if address is None:
            raise UsageError(f"--engine ray without --address: {NO_CLUSTER}")
        return RayEngine(address)
    if address is not None:
        raise UsageError("--address is for --engine ray")
    if jobs == 0 or jobs < -1:
        raise UsageError(f"--jobs must be a positive number, or -1 for one per core, got {jobs}")
    return SerialEngine() if name == "here" else LocalEngine(jobs)


def parse_numbers(text: str, kind: Callable[[str], Number], option: str) -> list[Number]:
    """The numbers of a text such as `1,2,3`."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option} must be numbers separated by commas, got {text!r}") from error


def parse_selection(text: str) -> list[int]:
    """The token of each input, from `A1,B3` or from positions counted from 0, `0,2`."""
    from tokenmargin.problem.names import parse_token

    if not any(letter.isalpha() for letter in text):
        return parse_numbers(text, int, "--select")
    try:
        named = dict(parse_token(part) for part in text.split(","))
    except ValueError:
        named = {}
    if sorted(named) != list(range(len(text.split(",")))):
        raise UsageError(f"--select names one token of every input, A1,B3 or from 0 on 0,2; got {text!r}")
    return [named[i] for i in range(len(named))]


def emit_json(data: object) -> None:
    """One JSON document on standard output; numbers that JSON cannot write become null."""
    from tokenmargin._files import plain

    print(json.dumps(plain(data), allow_nan=False))


@contextlib.contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar on standard error for people; nothing when standard error is a file.

    The function given takes the steps done and, to change what stands before the bar, a new label.
    """
    if not sys.stderr.isatty():
        yield lambda done, label=label: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done, label=label: bar.update(task, completed=done, description=label)


@contextlib.contextmanager
def share_bar(label: str) -> Iterator[Callable[[float], None]]:
    """A `progress_bar` for work that tells which share of it is done, from 0 to 1."""
    with progress_bar(label, 100) as advance:
        yield lambda share: advance(round(100 * min(max(share, 0.0), 1.0)))


def check_picture(path: Path | None) -> None:
    """Refuse a picture in a format that is not drawn."""
    if path is not None and path.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--picture writes a .png, .svg or .pdf file, got {path.name!r}")
