"""The command line: a function per verb, near relatives in one module.

Data goes to standard output, messages to standard error. Exit codes: 0 fine, 1 the work failed, 2 bad usage, 130
interrupted.
"""

from __future__ import annotations

import _thread
import contextlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from tokenmargin._version import __version__
from tokenmargin.cli._common import INTERRUPTED, UsageError, plugin_lines, print_error, system_line
from tokenmargin.cli.basins import basins
from tokenmargin.cli.evolve import evolve
from tokenmargin.cli.explain import explain, predict
from tokenmargin.cli.fit import fit, report
from tokenmargin.cli.graph import graph
from tokenmargin.cli.prepare import data, prepare
from tokenmargin.cli.reproduce import reproduce, sweep
from tokenmargin.cli.runs import runs
from tokenmargin.cli.see import demo, explore, playground
from tokenmargin.cli.solve import atlas, solve
from tokenmargin.cli.train import train
from tokenmargin.cli.verify import verify

__all__ = ["VERBS", "app", "main"]

VERBS: dict[str, tuple[Callable[..., int], ...]] = {
    "See": (demo, explore, playground),
    "Theory": (solve, atlas, evolve, basins, graph, verify),
    "Texts": (fit, explain, predict, report),
    "Papers": (reproduce, sweep, runs),
    "Training": (data, prepare, train),
}
"""The commands by what they are for; what is slow is imported when a command runs."""

app = App(
    name="tokenmargin",
    help="Which tokens softmax attention selects, and with what margin.",
    version=__version__,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,
)


def _join_lines(doc: str) -> str:
    """A docstring with each paragraph in one line, so that a terminal of any width can wrap it; examples stay."""
    text, mark, parameters = inspect.cleandoc(doc).partition("\nParameters\n")
    text = re.sub(r"(?m)^\S.*(?:\n\S.*)+", lambda found: found[0].replace("\n", " "), text)
    return (
        text + mark + re.sub(r"(?m)^    \S.*(?:\n    \S.*)+", lambda found: found[0].replace("\n   ", ""), parameters)
    )


for _place, (_purpose, _verbs) in enumerate(VERBS.items()):
    _group = Group(_purpose, sort_key=_place)
    for _verb in _verbs:
        _verb.__doc__ = _join_lines(_verb.__doc__ or "")
        app.command(_verb, group=_group)


@contextlib.contextmanager
def _interrupts_kept() -> Iterator[None]:
    """Send a Ctrl-C again that Python dropped because it arrived while an object was being freed."""
    before = sys.unraisablehook

    def hook(dropped: sys.UnraisableHookArgs) -> None:
        if isinstance(dropped.exc_value, KeyboardInterrupt):
            threading.Timer(0.02, _thread.interrupt_main).start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        with plugin_lines(), _interrupts_kept():
            code = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:  # cyclopts has printed what is wrong
        return 2
    except UsageError as error:
        print_error(str(error))
        return 2
    except KeyboardInterrupt:
        print_error("interrupted: what was not finished is not kept")
        return INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has left
        sys.stdout = None
        return 0
    except SystemExit as left:  # rich's way to say the same
        if not isinstance(left.__context__, BrokenPipeError):
            raise
        return 0
    except MemoryError as error:
        print_error(f"not enough memory{f' ({error})' if str(error) else ''}; ask for less, or use a larger machine")
        return 1
    except OSError as error:  # a full disk, a place where nothing may be written, something in the way
        print_error(system_line(error))
        return 1
    return code if isinstance(code, int) else 0
