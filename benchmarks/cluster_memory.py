"""A corpus larger than the memory that the process may use: prepared, trained on, and the peak reported.

The limit is a memory cgroup (page cache counts too, and is reclaimed) where this user may make one; otherwise the
limit is on the process's own data, which leaves out mapped files.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.cluster_corpus import write_corpus
from benchmarks.cluster_tools import megabytes

LIMIT = 400 << 20
TEXTS = 900_000  # of 100 words: 1.3 times the limit as text, 2.7 times as shards
GROUPS = Path("/sys/fs/cgroup")


class Group:
    """A memory cgroup of either version, or none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        first, second = GROUPS / "memory", GROUPS
        self.place: Path | None = None
        for root, file in ((first, "memory.limit_in_bytes"), (second, "memory.max")):
            place = root / f"tokenmargin-{os.getpid()}"
            try:
                place.mkdir()
                (place / file).write_text(str(limit))
            except OSError:
                continue
            self.place, self.version = place, 1 if root == first else 2
            return

    def enter(self) -> None:
        """Called in the child before it runs."""
        if self.place is None:
            resource.setrlimit(resource.RLIMIT_DATA, (self.limit, self.limit))
        else:
            (self.place / "cgroup.procs").write_text(str(os.getpid()))

    def anonymous(self) -> int:
        """Bytes in use that are no file's, now."""
        if self.place is None:
            return 0
        fields = dict(line.split() for line in (self.place / "memory.stat").read_text().splitlines())
        return int(fields["total_rss" if self.version == 1 else "anon"])

    def close(self) -> None:
        if self.place is not None:
            self.place.rmdir()


def under_a_limit() -> None:
    """Prepare and train by the command line, as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        size = write_corpus(place / "texts.jsonl", TEXTS, 20_000)
        print(f"limit {megabytes(LIMIT)} MB; corpus of {TEXTS:,} texts, {megabytes(size)} MB")
        prepare = ["prepare", str(place / "texts.jsonl"), "--out", str(place / "shards"), "--slice-megabytes", "8"]
        _run("prepare", prepare)
        shards = sum(path.stat().st_size for path in (place / "shards").glob("shard-*"))
        for path in (place / "shards").glob("shard-*"):
            _forget(path)
        train = ["train", str(place / "shards"), "--out", str(place / "run"), "--dimension", "32", "--epochs", "1"]
        _run(f"train on {megabytes(shards)} MB of shards", [*train, "--batch", "512", "--device", "cpu"])


def _forget(path: Path) -> None:
    """Put a file onto the disk and out of the page cache, where it would not count against the limit."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _run(name: str, command: list[str]) -> None:
    group = Group(LIMIT)
    begun, peak = time.perf_counter(), 0
    whole = [sys.executable, "-m", "tokenmargin", *command]
    child = subprocess.Popen(whole, preexec_fn=group.enter, stdout=subprocess.DEVNULL)
    while not (ended := os.wait4(child.pid, os.WNOHANG))[0]:
        peak = max(peak, group.anonymous())
        time.sleep(0.05)
    seconds = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(ended[1])
    used = ended[2].ru_maxrss * 1024
    kind = "data limit" if group.place is None else f"cgroup v{group.version}"
    print(
        f"{name}: exit {child.returncode}, {seconds:.0f} s, {kind}; peak resident {megabytes(used)} MB "
        f"with mapped files, {megabytes(peak)} MB without",
        flush=True,
    )
    group.close()
