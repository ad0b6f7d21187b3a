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

import hashlib
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.forked_commands import child, child_through_pipe, obey_permissions, preload, spawn, wait
from benchmarks.tools import line, print_table, run_main
from tokenmargin._files import LEFTOVER, file_digest
from tokenmargin.data.prepared import load_prepared
from tokenmargin.experiments import Curves, Finding, Table
from tokenmargin.experiments.figures.prompt_paths import Figure1b
from tokenmargin.problem.instances import figure1b
from tokenmargin.problem.token_problem import TokenProblem

COLUMNS = ("tried", "same", "refused", "silent", "raw", "leftover")
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


def make_inputs(folder: Path) -> None:
    rng = random.Random(0)
    words = [f"word{k}" for k in range(40)]
    texts = (" ".join([*rng.choices(words, k=8), "good" if k % 2 else "bad"]) for k in range(160))
    rows = [{"text": text, "label": k % 2} for k, text in enumerate(texts)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, said = child(["prepare", str(folder / "rows.jsonl"), "--out", str(folder / "ids.safetensors")])
    assert code == 0, said


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

    def fresh_for(self, work: Work) -> Path:
        """An empty folder for a disturbed run; what the command makes undisturbed is known before."""
        if work.name not in self.digests:
            place = self.fresh("whole")
            began = time.monotonic()
            code, said = child(work.command(place))
            self.seconds[work.name] = time.monotonic() - began
            assert code == 0, said
            self.digests[work.name] = work.digest(place / work.made)
        return self.fresh("cut")

    def fresh(self, name: str) -> Path:
        place = self.folder / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def rerun(self, work: Work, place: Path, tally: Counter[str]) -> None:
        """Run the command again, undisturbed, and compare."""
        code, said = child(work.command(place))
        self.compare(work, place, code, said, tally)
        tally["leftover"] += bool(leftovers(place))

    def compare(self, work: Work, place: Path, code: int, said: str, tally: Counter[str]) -> None:
        """Count an end: the same as without a fault, refused in words, or neither."""
        if code == 0 and work.digest(place / work.made) == self.digests[work.name]:
            tally["same"] += 1
            return
        kind = "silent"
        if "Traceback" in said or code in (99, -99) or (code < 0 and code != -signal.SIGKILL):
            kind = "raw"
        elif code and said.strip():
            kind = "refused"
        tally[kind] += 1
        print(f"{kind}: {work.name}: {code} {said.strip()[-1500:]}", file=sys.stderr)

    def check_words(
        self, work: Work, place: Path, code: int, said: str, tally: Counter[str], codes: tuple[int, ...]
    ) -> None:
        """Count an end that is raw: a traceback, another exit code, an error without a word; and what it left over."""
        if "Traceback" in said or code not in codes or (code and not said.strip()):
            tally["raw"] += 1
            print(f"raw: {work.name}: {code} {said[-1500:]}", file=sys.stderr)
        tally["leftover"] += bool(leftovers(place))

    def kill(self, work: Work, place: Path, rng: random.Random, tally: Counter[str]) -> None:
        """SIGKILL one to three times, each at any moment; then to the end."""
        for _ in range(rng.randint(1, 3)):
            child(work.command(place), send=signal.SIGKILL, after=rng.uniform(0, self.seconds[work.name]))
        self.rerun(work, place, tally)

    def interrupt(self, work: Work, place: Path, rng: random.Random, tally: Counter[str]) -> None:
        """Ctrl-C at any moment: 130 with a line, or the end had been reached; nothing half-written; then to the end."""
        code, said = child(work.command(place), send=signal.SIGINT, after=rng.uniform(0, self.seconds[work.name]))
        kept = code == 130 and "this is what was reached" in said
        self.check_words(work, place, code, said, tally, (0, 130))
        if kept and work.name in ("evolve", "basins"):
            work = replace(work, arguments=(*work.arguments[:-2], "--resume", work.arguments[-1]))
        code, said = child(work.command(place))
        if code == 0 and kept:
            tally["same"] += 1  # of a kept run the points in between are others, by design
        else:
            self.compare(work, place, code, said, tally)

    def full(self, work: Work, place: Path, rng: random.Random, tally: Counter[str]) -> None:
        """No file can grow beyond some size: one line; then to the end."""
        most = max(path.stat().st_size for path in self.given.parent.rglob("*") if path.is_file())
        size = int(most ** rng.random())

        def prepare() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        self.check_words(work, place, *child_through_pipe(work.command(place), prepare), tally, (0, 1, 2))
        self.rerun(work, place, tally)

    def readonly(self, work: Work, place: Path, rng: random.Random, tally: Counter[str]) -> None:
        """A folder that may not be written: one line, and nothing in it."""
        place.chmod(0o555)
        code, said = child(work.command(place), obey_permissions)
        place.chmod(0o755)
        if any(place.iterdir()) or code == 0:
            tally["silent"] += 1
        else:
            self.compare(work, place, code, said, tally)

    def twice(self, work: Work, place: Path, rng: random.Random, tally: Counter[str]) -> None:
        """Two at once on one folder: each ends well or says that the other is there; then to the end."""
        said = [self.folder / f"said{k}" for k in range(2)]
        pids = []
        for path in said:
            pids.append(spawn(work.command(place), path)[0])
            time.sleep(rng.uniform(0, 0.3 * self.seconds[work.name]))
        for pid, path in zip(pids, said, strict=True):
            self.check_words(work, self.given, wait(pid), path.read_text(errors="replace"), tally, (0, 1))
        self.rerun(work, place, tally)

    def clock(self, work: Work, place: Path, rng: random.Random, tally: Counter[str]) -> None:
        """A clock that jumps by years, both ways, at every look."""
        seed = rng.random()

        def prepare() -> None:
            jumps, real = random.Random(seed), time.time
            time.time = lambda: real() + jumps.choice((-1e9, -60, 0, 3600, 1e9))

        self.compare(work, place, *child(work.command(place), prepare), tally)

    def damage(self, name: str, rng: random.Random, tally: Counter[str]) -> None:
        """A file torn, cut, flipped or swapped: named, or done again."""
        command, pattern, stop = DAMAGED[name]
        work = self.works[command]
        place = self.fresh_for(work)
        child(
            work.command(place), send=signal.SIGKILL if stop else 0, after=stop * rng.random() * self.seconds[command]
        )
        paths = sorted((place / work.made).rglob(pattern))
        if not paths:  # killed before anything was there, or finished
            tally["tried"] -= 1
            return
        hurt(rng.choice(paths), paths, rng)
        self.rerun(work, place, tally)

    def apply(self, kind: str, names: Sequence[str], rng: random.Random, tally: Counter[str]) -> None:
        """A fault of some kind to one of the commands named."""
        work = self.works[rng.choice(names)]
        getattr(self, kind)(work, self.fresh_for(work), rng, tally)


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
    each = [(f"{kind} {name}", kind, (name,)) for kind in ("kill", "interrupt") for name in resumable]
    some = [(kind, kind, sorted(bench.works)) for kind in ("full", "readonly", "twice", "clock")]
    rows = {title: partial(bench.apply, kind, names) for title, kind, names in (*each, *some)}
    return rows | {f"damaged {name}": partial(bench.damage, name) for name in DAMAGED}


def main(*, count: int = 50, what: list[str] | None = None, seed: int = 0) -> int:
    """So many faults of each row, or of the rows whose names begin so."""
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        print_table(("fault", *COLUMNS), (), numbers=len(COLUMNS))
        for name, case in cases(bench).items():
            if what and not any(name.startswith(one) for one in what):
                continue
            tally: Counter[str] = Counter()
            for k in range(40 * count):  # some find nothing to damage, and do not count
                if tally["tried"] == count:
                    break
                tally["tried"] += 1
                case(random.Random(f"{name} {seed} {k}"), tally)
            print(line(name, *(tally[column] for column in COLUMNS)), flush=True)
            bad += tally["silent"] + tally["raw"] + tally["leftover"]
    return int(bad > 0)


if __name__ == "__main__":
    run_main(main, __doc__)
