"""A sweep killed with SIGKILL at random moments, resumed each time, against the same sweep undisturbed.

    python -m benchmarks.sweep_kills --kills 50

The sweep is `fig1b` over its step and number of steps, through the command line. Each round starts it, kills it at a
moment drawn uniformly from its expected life, and looks whether everything it left can be read. When all kills are done
it runs to its end. The two result tables must have the same bytes.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenmargin._files import file_digest
from tokenmargin.experiments.records import Run, runs_in
from tokenmargin.experiments.sweep_rows import PartFolder


def command(out: Path, cells: int) -> list[str]:
    axes = ["--over", "step=0.05,0.1,0.2,0.4", "--over", f"steps=100..{99 + cells // 4}"]
    return [sys.executable, "-m", "tokenmargin", "sweep", "fig1b", *axes, "--table", "limits", "--out", str(out)]


def done(out: Path, cells: int) -> int:
    """How many cells are on disk; reads every part."""
    return sum(int(PartFolder(run.folder / "parts").done(cells).sum()) for run in runs_in(out) if not run.finished)


def finished(out: Path) -> Run:
    (run,) = runs_in(out)
    assert run.finished
    assert not run.damage()
    return run


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--longest", type=float, default=8.0, help="seconds until the latest kill")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        subprocess.run(command(whole, chosen.cells), check=True, **quiet)  # type: ignore[call-overload]
        kills, rounds = 0, 0
        while kills < chosen.kills:
            rounds += 1
            process = subprocess.Popen(command(cut, chosen.cells), **quiet)  # type: ignore[call-overload]
            time.sleep(rng.uniform(0, chosen.longest))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.wait()
            if any(run.finished for run in runs_in(cut)):  # it was faster than the killer: begin anew
                assert file_digest(finished(cut).table_path("limits")) == file_digest(
                    finished(whole).table_path("limits")
                )
                print(f"after {kills} kills the sweep was done, the same bit for bit; begun anew", flush=True)
                finished(cut).remove()
            else:
                print(f"kill {kills}: {done(cut, chosen.cells)} of {chosen.cells} cells on disk", flush=True)
        subprocess.run(command(cut, chosen.cells), check=True, **quiet)  # type: ignore[call-overload]
        tables = [finished(place).details()["tables"] for place in (whole, cut)]
        assert tables[0] == tables[1], tables
        print(f"{kills} kills in {rounds} rounds; {tables[1]['limits']['rows']} rows, the same bit for bit")


if __name__ == "__main__":
    main()
