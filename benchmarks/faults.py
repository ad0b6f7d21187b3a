"""What goes wrong outside the program: kills, full disks, damaged files, Ctrl-C, clocks that jump; each fifty times.

    python -m benchmarks.faults [--count 50] [--what kill-train ...]

Commands run in forked children of this process, which has loaded what they load; sweeps run in that child alone. After
each fault the same command is run again, undisturbed, and what it has made is compared, to the bit, with what
it makes without a fault. A row counts

- same: the end is the same to the bit (times and file dates aside);
- refused: the fault was named in one line, and nothing was made of it;
- silent: another result without a word; raw: a traceback; leftover: files half-written that nobody removes. All three
  must be 0.

A disk is full by the kernel's own limit on file sizes (RLIMIT_FSIZE: writes beyond it fail with EFBIG). A read-only
folder is one without permission to write, which root obeys here too. The clock is `time.time`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tokenmargin.cli
from tokenmargin._files import LEFTOVER, file_digest
from tokenmargin.data.prepared import load_prepared
from tokenmargin.experiments import Curves, Finding, Table
from tokenmargin.experiments.figures.prompt_paths import Figure1b
from tokenmargin.problem.instances import figure1b
from tokenmargin.problem.token_problem import TokenProblem

Prepare = Callable[[], None]
COLUMNS = ("tried", "same", "refused", "silent", "raw", "leftover")
PATIENCE = 120
FIGURE = "benchmarks.faults:Descents"


class Descents(Figure1b):
    """The descents of Figure 1(b) as one curve: without the flows and its drawing, most of a second."""

    figure, title, shows = "descents", "Six descents", ""
    followed = False
    curves = Curves("paths", "step", ("norm",))

    def problem(self) -> TokenProblem:
        return figure1b()

    def findings(self, limits: Table, paths: Table) -> tuple[Finding, ...]:
        return ()


@dataclass(frozen=True)
class Work:
    """A command with what it writes, and a digest of what it has made, without times."""

    name: str
    arguments: tuple[str, ...]
    made: str
    digest: Callable[[Path], str]

    def command(self, folder: Path) -> list[str]:
        return [part.replace("OUT", str(folder)) for part in self.arguments]


def of_files(*patterns: str) -> Callable[[Path], str]:
    def digest(place: Path) -> str:
        paths = sorted(path for pattern in patterns for path in place.glob(pattern))
        assert paths, place
        return " ".join(f"{path.name}:{file_digest(path)[:12]}" for path in paths)

    return digest


def of_prepared(place: Path) -> str:
    """Checksums of the content: the order of the notes in a header is another every time."""
    paths = sorted(place.glob("shard-*")) if place.is_dir() else [place]
    found = [str(load_prepared(path).ids.sum()) + _checksum_of(path) for path in paths]
    return " ".join(found) + (of_files("corpus.json", "vocabulary.parquet")(place) if place.is_dir() else "")


def _checksum_of(path: Path) -> str:
    with path.open("rb") as file:
        return str(json.loads(file.read(int.from_bytes(file.read(8), "little")))["__metadata__"]["sha256"])


def of_training(place: Path) -> str:
    from tokenmargin.training.checkpoint import load_checkpoint

    found = load_checkpoint(place)
    assert found is not None
    content = b"".join(name.encode() + t.numpy().tobytes() for name, t in sorted(found.tensors.items()))
    return f"{found.record['step']} {hashlib.sha256(content).hexdigest()}"


def of_kept_run(place: Path) -> str:
    with np.load(place) as file:
        return hashlib.sha256(b"".join(name.encode() + file[name].tobytes() for name in sorted(file))).hexdigest()


def works(given: Path) -> dict[str, Work]:
    """The commands that write, at sizes of about half a second."""
    ids, rows = str(given / "ids.safetensors"), str(given / "rows.jsonl")
    train = ("train", ids, "--out", "OUT/t", "--epochs", "60", "--dimension", "8", "--batch", "16")
    sweep = ("sweep", FIGURE, "--over", "steps=3..8", "--jobs", "1", "--table", "limits", "--out", "OUT/s")
    return {
        "train": Work("train", (*train, "--checkpoint-every", "0.02"), "t", of_training),
        "sweep": Work("sweep", sweep, "s", of_files("*/tables/*.parquet")),
        "reproduce": Work("reproduce", ("reproduce", FIGURE, "--steps", "300", "--out", "OUT/r"), "r",
                          of_files("*/tables/*.parquet")),
        "prepare": Work("prepare", ("prepare", rows, "--out", "OUT/p", "--slice-megabytes", "0.002"), "p",
                        of_prepared),
        "prepare-file": Work("prepare-file", ("prepare", rows, "--out", "OUT/i.safetensors"), "i.safetensors",
                             of_prepared),
        "evolve": Work("evolve", ("evolve", "fig1b", "--steps", "3000", "--save", "OUT/e.npz"), "e.npz", of_kept_run),
        "fit": Work("fit", ("fit", rows, "--out", "OUT/m", "--min-count", "1"), "m",
                    of_files("model.safetensors", "tokenizer.json")),
        "basins": Work("basins", ("basins", "fig8", "--starts", "60", "--save", "OUT/b.npz"), "b.npz", of_kept_run),
    }  # fmt: skip


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


def make_inputs(folder: Path) -> None:
    rng = random.Random(0)
    words = [f"word{k}" for k in range(40)]
    texts = (" ".join([*rng.choices(words, k=8), "good" if k % 2 else "bad"]) for k in range(160))
    rows = [{"text": text, "label": k % 2} for k, text in enumerate(texts)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = child(["prepare", str(folder / "rows.jsonl"), "--out", str(folder / "ids.safetensors")])
    assert code == 0, said


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


def leftovers(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(f"{LEFTOVER}*")]


class Bench:
    """The undisturbed results, and one method per kind of fault."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.given = folder / "given"
        self.given.mkdir()
        preload()
        make_inputs(self.given)
        self.works = works(self.given)
        self.digests: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def whole(self, work: Work) -> str:
        """What the command makes without a fault."""
        if work.name not in self.digests:
            place = self.fresh("whole")
            began = time.monotonic()
            code, said = child(work.command(place))
            self.seconds[work.name] = time.monotonic() - began
            assert code == 0, said
            self.digests[work.name] = work.digest(place / work.made)
        return self.digests[work.name]

    def fresh(self, name: str) -> Path:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def again(self, work: Work, place: Path, tally: Counter[str]) -> None:
        """Run the command again, undisturbed, and compare."""
        code, said = child(work.command(place))
        if code == 0 and work.digest(place / work.made) == self.digests[work.name]:
            tally["same"] += 1
        else:
            self.judge(code, said, tally)
        tally["leftover"] += bool(leftovers(place))

    def judge(self, code: int, said: str, tally: Counter[str]) -> None:
        """Count an end that is not the same."""
        if "Traceback" in said or code in (99, -99) or (code < 0 and code != -signal.SIGKILL):
            tally["raw"] += 1
            print(said[-1500:], file=sys.stderr)
        elif code and said.strip():
            tally["refused"] += 1
            print(f"refused: {said.strip()[-300:]}", file=sys.stderr)
        else:
            tally["silent"] += 1
            print(f"silent: {code} {said[-500:]}", file=sys.stderr)

    def kill(self, work: Work, rng: random.Random, tally: Counter[str]) -> None:
        """SIGKILL one to three times, each at any moment; then to the end."""
        self.whole(work)
        place = self.fresh("cut")
        for _ in range(rng.randint(1, 3)):
            child(work.command(place), send=signal.SIGKILL, after=rng.uniform(0, self.seconds[work.name]))
        self.again(work, place, tally)

    def interrupt(self, work: Work, rng: random.Random, tally: Counter[str]) -> None:
        """Ctrl-C at any moment: 130 with a line, or the end had been reached; nothing half-written; then to the end."""
        self.whole(work)
        place = self.fresh("cut")
        code, said = child(work.command(place), send=signal.SIGINT, after=rng.uniform(0, self.seconds[work.name]))
        kept = code == 130 and "this is what was reached" in said
        if "Traceback" in said or code not in (0, 130) or not said.strip():
            tally["raw"] += 1
            print(f"{work.name}: {code} {said[-1500:]}", file=sys.stderr)
        tally["leftover"] += bool(leftovers(place))
        if kept and work.name in ("evolve", "basins"):
            work = Work(work.name, (*work.arguments[:-2], "--resume", work.arguments[-1]), work.made, work.digest)
        code, said = child(work.command(place))
        if code == 0 and (kept or work.digest(place / work.made) == self.digests[work.name]):
            tally["same"] += 1  # of a kept run the points in between are others, by design
        else:
            self.judge(code, said, tally)

    def full(self, work: Work, rng: random.Random, tally: Counter[str]) -> None:
        """No file can grow beyond some size: one line; then to the end."""
        self.whole(work)
        place = self.fresh("cut")
        most = max(path.stat().st_size for path in self.given.parent.rglob("*") if path.is_file())
        size = int(most ** rng.random())

        def prepare() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        code, said = child_through_pipe(work.command(place), prepare)
        if "Traceback" in said or code not in (0, 1, 2) or (code and not said.strip()):
            tally["raw"] += 1
            print(f"{work.name} {size}: {code} {said[-1500:]}", file=sys.stderr)
        tally["leftover"] += bool(leftovers(place))
        self.again(work, place, tally)

    def readonly(self, work: Work, rng: random.Random, tally: Counter[str]) -> None:
        """A folder that may not be written: one line, and nothing in it."""
        place = self.fresh("cut")
        place.chmod(0o555)
        code, said = child(work.command(place), obey_permissions)
        place.chmod(0o755)
        if any(place.iterdir()) or code == 0:
            tally["silent"] += 1
        else:
            self.judge(code, said, tally)

    def twice(self, work: Work, rng: random.Random, tally: Counter[str]) -> None:
        """Two at once on one folder: each ends well or says that the other is there; then to the end."""
        self.whole(work)
        place = self.fresh("cut")
        said = [self.folder / f"said{k}" for k in range(2)]
        pids = []
        for path in said:
            pids.append(spawn(work.command(place), path)[0])
            time.sleep(rng.uniform(0, 0.3 * self.seconds[work.name]))
        for pid, path in zip(pids, said, strict=True):
            code, text = wait(pid), path.read_text(errors="replace")
            if "Traceback" in text or code not in (0, 1):
                tally["raw"] += 1
                print(f"{work.name}: {code} {text[-1500:]}", file=sys.stderr)
        self.again(work, place, tally)

    def clock(self, work: Work, rng: random.Random, tally: Counter[str]) -> None:
        """A clock that jumps by years, both ways, at every look."""
        self.whole(work)
        place, seed = self.fresh("cut"), rng.random()

        def prepare() -> None:
            jumps, real = random.Random(seed), time.time
            time.time = lambda: real() + jumps.choice((-1e9, -60, 0, 3600, 1e9))

        code, said = child(work.command(place), prepare)
        if code == 0 and work.digest(place / work.made) == self.digests[work.name]:
            tally["same"] += 1
        else:
            self.judge(code, said, tally)

    def damage(self, name: str, rng: random.Random, tally: Counter[str]) -> None:
        """A file torn, cut, flipped or swapped: named, or done again."""
        work, pattern, stop = DAMAGED[name]
        task = self.works[work]
        self.whole(task)
        place = self.fresh("cut")
        child(task.command(place), send=signal.SIGKILL if stop else 0, after=stop * rng.random() * self.seconds[work])
        paths = sorted(path for path in (place / task.made).rglob(pattern)) if pattern else [place / task.made]
        if not paths:  # killed before anything was there, or finished
            tally["tried"] -= 1
            return
        hurt(rng.choice(paths), paths, rng)
        self.again(task, place, tally)


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


def hurt(path: Path, all_paths: list[Path], rng: random.Random) -> None:
    """Cut a file, flip a bit of it, tear it (the end is zeros), or put another in its place."""
    content = bytearray(path.read_bytes())
    others = [other for other in all_paths if other != path and other.read_bytes() != content]
    kind = rng.choice(("cut", "flip", "tear", "swap") if others else ("cut", "flip", "tear"))
    at = rng.randrange(max(len(content), 1))
    if kind == "swap":
        content = bytearray(rng.choice(others).read_bytes())
    elif kind == "cut":
        del content[at:]
    elif kind == "tear":
        content[at:] = bytes(len(content) - at)
    elif content:
        content[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))


DAMAGED = {
    "checkpoint": ("train", "step-*.safetensors", 0.0),
    "checkpoint record": ("train", "step-*.json", 0.0),
    "metrics": ("train", "metrics.parquet", 0.0),
    "part of a sweep": ("sweep", "parts/*.parquet", 0.9),
    "table of a sweep": ("sweep", "tables/*.parquet", 0.0),
    "record": ("reproduce", "run.json", 0.0),
    "table": ("reproduce", "tables/*.parquet", 0.0),
    "shard": ("prepare", "shard-*", 0.0),
    "corpus record": ("prepare", "corpus.json", 0.0),
    "vocabulary": ("prepare", "vocabulary.parquet", 0.0),
}
"""What is damaged, by the command that writes it and reads it again, and when to kill that command first."""


def cases(bench: Bench) -> dict[str, Callable[[random.Random, Counter[str]], None]]:
    """Every row of the table."""
    resumable = ("train", "sweep", "reproduce", "prepare", "evolve")
    rows = {}
    for kind in ("kill", "interrupt"):
        for name in resumable:
            rows[f"{kind} {name}"] = lambda rng, tally, kind=kind, name=name: getattr(bench, kind)(
                bench.works[name], rng, tally
            )
    for kind in ("full", "readonly", "twice", "clock"):
        rows[kind] = lambda rng, tally, kind=kind: getattr(bench, kind)(
            bench.works[rng.choice(sorted(bench.works))], rng, tally
        )
    for name in DAMAGED:
        rows[f"damaged {name}"] = lambda rng, tally, name=name: bench.damage(name, rng, tally)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--what", nargs="*", help="rows, by the beginning of their names; all by default")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        print(f"| fault | {' | '.join(COLUMNS)} |\n|---|{'---:|' * len(COLUMNS)}")
        for name, case in cases(bench).items():
            if given.what and not any(name.startswith(one) for one in given.what):
                continue
            tally: Counter[str] = Counter()
            for k in range(40 * given.count):  # some find nothing to damage, and do not count
                if tally["tried"] == given.count:
                    break
                tally["tried"] += 1
                case(random.Random(f"{name} {given.seed} {k}"), tally)
            print(f"| {name} | {' | '.join(str(tally[column]) for column in COLUMNS)} |", flush=True)
            bad += tally["silent"] + tally["raw"] + tally["leftover"]
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
