"""The program: `tokenmargin` and `python -m tokenmargin`."""

import io
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
    """Open the null device in place of streams that the caller has closed (`>&-`).

    It gets the lowest free descriptor, which is that of the closed stream. Otherwise a file opened later could get it,
    and what is printed would be written into that file.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # the name of a file may be no text


if __name__ == "__main__":
    sys.exit(program())
