"""The command line: one module per verb, loaded when it is called.

Data goes to standard output, messages to standard error. Exit codes: 0 fine, 1 the work failed, 2 bad usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from tokenmargin._version import __version__
from tokenmargin.cli.common import UsageError, complain

__all__ = ["VERBS", "app", "main"]

VERBS = (
    ("demo", "A guided run: one problem, all its limits, and which start reaches which."),
    ("solve", "The max-margin direction of one selection, with its certificate."),
    ("evolve", "Train attention on a problem and name the direction it reached."),
    ("reproduce", "The papers' figures: table, picture, and expected against measured."),
    ("sweep", "An experiment on a grid of settings, on this machine or on a cluster."),
    ("runs", "List, show, compare, check and remove recorded runs."),
)
"""The commands; each lives in the module of its name, in a function of its name."""

app = App(
    name="tokenmargin",
    help="Which tokens softmax attention selects, and with what margin.",
    version=__version__,
    help_format="markdown",
    default_parameter=Parameter(negative=()),
)
for _verb, _summary in VERBS:
    app.command(f"tokenmargin.cli.{_verb}:{_verb}", name=_verb, help=_summary)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        code = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:  # cyclopts has printed what is wrong
        return 2
    except UsageError as error:
        complain(str(error))
        return 2
    except KeyboardInterrupt:
        complain("interrupted")
        return 1
    except BrokenPipeError:  # the reader (head, less) has left
        sys.stdout = None
        return 0
    return code if isinstance(code, int) else 0
