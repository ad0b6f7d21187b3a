"""Every command in a terminal of 80 columns: no line is longer, so that no word and no number is cut."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unicodedata

import pytest

from tokenmargin.cli import VERBS

pty = pytest.importorskip("pty", reason="there are no pseudo-terminals here")

WIDTH = 80
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COMMANDS = """
solve three-limits
solve three-limits --select A3,B1
atlas three-limits
evolve three-limits --steps 50
evolve fig3b --train joint --steps 20 --start=-1,0,0,-1
evolve fig1b --method flow --until-norm 100
basins fig8 --starts 20
verify A.lemma2
verify B.theorem3 --list
fit sentences --out model
explain model "What a dreadful ferry, but the deck was tidy, and nobody on board minded the rain at all!"
explain model "zzz"
reproduce fig1a --list
reproduce fig1a --steps 20 --out kept
runs --out kept
runs show fig1a --out kept
data list
explore --out page.html
playground --port 70000
predict model rows.csv --out told.csv
report model --out report.html
sweep fig1a --over steps=5,10 --jobs 1 --out swept
prepare rows.csv --out rows.safetensors
train rows.safetensors --out trained --dimension 8 --epochs 1
graph toy.json
"""
DRIVER = """
import shlex, sys
from tokenmargin.cli import main
for line in sys.argv[1].strip().splitlines():
    print("$", line[:70], flush=True)
    main(shlex.split(line))
    sys.stdout.flush(), sys.stderr.flush()
"""


def in_terminal(code: str, argument: str, folder) -> str:
    """What a program writes to a terminal of 80 columns."""
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, b"\x18\x00" + bytes([WIDTH, 0, 0, 0, 0, 0]))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    running = subprocess.Popen(
        [sys.executable, "-c", code, argument], stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder,
        env=environment | {"TERM": "xterm-256color"},
    )  # fmt: skip
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux says so when the program has ended
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert running.wait() == 0, written.decode()[-3000:]
    return written.decode()


def lines_of(written: str) -> list[str]:
    """Lines as they stand at last: without colours, and without what was overwritten (progress bars)."""
    plain = CONTROLS.sub("", written.replace("\r\n", "\n"))
    return [line.rsplit("\r", 1)[-1] for line in plain.split("\n")]


def columns_of(line: str) -> int:
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in line)


def test_answers_fit(tmp_path):
    """Of every verb but `demo`, whose parts are here and whose own lines `tests/cli/test_cli.py` reads."""
    asked = {line.split()[0] for line in COMMANDS.strip().splitlines()}
    assert {verb.__name__ for verbs in VERBS.values() for verb in verbs} - asked == {"demo"}
    rows = "".join(f"a fine tidy ferry {k},1\na dull late ferry {k},-1\n" for k in range(20))
    (tmp_path / "rows.csv").write_text("text,label\n" + rows)
    (tmp_path / "toy.json").write_text('{"sequences": [[0, 1, 2], [1, 2, 0], [2, 1, 1]], "next": [1, 2, 1]}')
    shown = lines_of(in_terminal(DRIVER, COMMANDS, tmp_path))
    assert sum(line.startswith("$ ") for line in shown) == len(COMMANDS.strip().splitlines())
    assert not [line for line in shown if "Traceback" in line]
    for line in shown:
        # A path or an address is one word: it is written whole, so that it can be copied.
        assert columns_of(line.rstrip()) <= WIDTH or len(line.split()) <= 2, line
    text = "\n".join(shown)
    for words in (
        "A1 B1",
        "GMM",
        "dreadful",
        "contribution",
        "measured",
        "(base rate)",
        "no known word",
        "(+ speaks for",
    ):
        assert words in text, words
    assert not re.search(r"token \d of input", text)


def test_help_fits(tmp_path):
    verbs = [verb.__name__ for verbs in VERBS.values() for verb in verbs]
    shown = lines_of(in_terminal(DRIVER, "\n".join(f"{verb} --help" for verb in verbs) + "\n--help", tmp_path))
    assert sum(line.startswith("$ ") for line in shown) == len(verbs) + 1
    assert max(columns_of(line.rstrip()) for line in shown) <= WIDTH
