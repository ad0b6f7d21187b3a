"""The program: `tokenmargin` and `python -m tokenmargin`."""

import sys


def program() -> int:
    """Run the command of the command line; Ctrl-C is answered in one line, also while modules are loaded."""
    try:
        from tokenmargin.cli import main

        return main()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(program())
