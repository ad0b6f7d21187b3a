"""The program: `tokenmargin` and `python -m tokenmargin`."""

import os
import sys


def program() -> int:
    """Run the command of the command line; Ctrl-C is answered in one line, also while modules are loaded."""
    _open_standard_streams()
    try:
        from tokenmargin.cli import main

        return main()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


def _open_standard_streams() -> None:
    """Streams that the caller has closed (`>&-`) lead nowhere.

    The lowest free descriptor is taken, which is the closed one: no file that is opened later can take its place, and
    be written to by whoever prints.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(program())
