"""Files that are whole or absent: what stands at the place, failures, and digests."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tokenmargin
from tokenmargin._files import (
    atomic_folder,
    atomic_path,
    file_digest,
    json_digest,
    plain,
    read_arrays,
    read_plain,
    read_table,
    remove_leftovers,
    write_arrays,
    write_json,
)
from tokenmargin.data.prepared import load_prepared
from tokenmargin.data.sharded.slices import load_sharded
from tokenmargin.experiments.records import Run
from tokenmargin.problem.next_token import load_next_token
from tokenmargin.problem.problem_files import load_problem
from tokenmargin.training.checkpoint import load_checkpoint


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "file.txt"
    with atomic_path(place) as beside:
        beside.write_text("old")
    with contextlib.suppress(RuntimeError), atomic_path(place) as beside:
        beside.write_text("half of the n")
        assert place.read_text() == "old"
        raise RuntimeError
    assert place.read_text() == "old"
    assert os.listdir(place.parent) == ["file.txt"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_path(link) as beside:
        beside.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    dangling = tmp_path / "later.txt"
    dangling.symlink_to(tmp_path / "not yet.txt")
    with atomic_path(dangling) as beside:
        beside.write_text("now")
    assert dangling.is_symlink()
    assert (tmp_path / "not yet.txt").read_text() == "now"


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with atomic_path(pipe) as beside:
        beside.write_text("through")
    reader.join(timeout=60)
    assert read == ["through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.fixture
def null_device(tmp_path: Path) -> Path:
    """A null device of our own where we may make one: root could lose the machine's own to a test that fails."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.stat("/dev/null").st_rdev)
        device.write_bytes(b"")
    except PermissionError:  # not root, or a folder in which devices do not work
        return Path("/dev/null")
    return device


def test_a_device_stays_a_device(null_device: Path) -> None:
    with atomic_path(null_device) as beside:
        beside.write_text("nothing")
    assert stat.S_ISCHR(null_device.stat().st_mode)


def test_what_the_disk_refuses_is_said_of_the_place_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file") as refused:
        write_json(Path("/proc/x.json"), {})
    assert refused.value.filename == "/proc/x.json"
    with pytest.raises(OSError, match="No space left") as refused:
        write_json(Path("/dev/full"), {})
    assert refused.value.filename == "/dev/full"
    with pytest.raises(FileNotFoundError) as refused, atomic_folder(Path("/proc/model")):
        raise AssertionError("no folder can be made there")
    assert refused.value.filename == "/proc/model"


READERS = (
    file_digest,
    partial(read_arrays, largest=1 << 20),
    read_plain,
    read_table,
    load_next_token,
    load_prepared,
    load_problem,
    load_sharded,
)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_waits_for_a_pipe(tmp_path: Path, reader) -> None:
    for name in ("corpus.json", "one.json"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="not a plain file"):
        reader(tmp_path if reader is load_sharded else tmp_path / "one.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes")
def test_records_and_checkpoints_that_are_pipes_are_damaged(tmp_path: Path) -> None:
    for name in ("run.json", "step-000000001.json"):
        os.mkfifo(tmp_path / name)
    assert Run(tmp_path).damage() == ["run.json"]
    assert load_checkpoint(tmp_path) is None


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="is a folder and cannot be written to"), atomic_path(tmp_path):
        pytest.fail("the folder was offered for writing")


def test_files_are_as_open_as_others(tmp_path: Path) -> None:
    plainly = tmp_path / "plain"
    plainly.touch()
    with atomic_path(tmp_path / "ours") as beside:
        beside.unlink()
        os.close(os.open(beside, os.O_CREAT | os.O_WRONLY, 0o600))  # as some writers do
    assert (tmp_path / "ours").stat().st_mode == plainly.stat().st_mode


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    place = tmp_path / "model"
    for content in ("first", "second"):
        with atomic_folder(place) as beside:
            (beside / "file").write_text(content)
        assert (place / "file").read_text() == content
    with contextlib.suppress(RuntimeError), atomic_folder(place) as beside:
        (beside / "file").write_text("third")
        raise RuntimeError
    assert (place / "file").read_text() == "second"
    assert os.listdir(tmp_path) == ["model"]


def test_leftovers_of_the_dead_go(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".unfinished-0123.npz").touch()
    (tmp_path / ".unfinished-4567").mkdir()  # of a model folder
    (tmp_path / ".unfinished-4567" / ".unfinished-89ab.json").touch()
    (tmp_path / "kept.npz").touch()
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "kept.npz"]


def test_what_a_killed_writer_left_goes_with_the_next_file_there_and_a_living_one_keeps_its_own(tmp_path: Path) -> None:
    target = tmp_path / "kept.npz"
    write = "from tokenmargin._files import atomic_path\nwith atomic_path({!r}) as beside:\n    {}"
    killed = write.format(str(target), "import os; os.kill(os.getpid(), 9)")
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_path(target) as ours:
        assert list(tmp_path.iterdir()) == [ours]
        subprocess.run([sys.executable, "-c", write.format(str(target), "beside.write_text('theirs')")], check=True)
        assert sorted(tmp_path.iterdir()) == sorted([ours, target])
        ours.write_text("ours")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["ours"]


def test_digests(tmp_path: Path) -> None:
    content = os.urandom(100_000)
    (tmp_path / "x").write_bytes(content)
    assert file_digest(tmp_path / "x") == hashlib.sha256(content).hexdigest()
    assert json_digest({"b": [1, 2], "a": None}) == hashlib.sha256(b'{"a": null, "b": [1, 2]}').hexdigest()


def test_json_holds_what_json_can_write(tmp_path: Path) -> None:
    data = {"a": np.float64("inf"), 1: np.arange(2), "b": (np.bool_(True), "x", float("nan"))}
    write_json(tmp_path / "x.json", data)
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": None, "1": [0, 1], "b": [True, "x", None]}
    assert plain(data) == json.loads((tmp_path / "x.json").read_text())


def test_no_text_is_read_or_written_by_the_locale() -> None:
    """A program under LC_ALL=C, or in a country with an encoding of its own, reads the same files."""
    package = Path(tokenmargin.__file__).parent
    calls = (
        (path.name, node)
        for path in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("read_text", "write_text")
    )
    bare = [f"{name}:{node.lineno}" for name, node in calls if "encoding" not in {k.arg for k in node.keywords}]
    assert not bare


@pytest.mark.parametrize("compressed", [True, False])
def test_arrays_are_written_as_numpy_writes_them(tmp_path: Path, compressed: bool) -> None:
    arrays = {"keys": np.arange(6.0).reshape(2, 3), "words": np.array(["a", "b\u00e9"]), "whole": np.array(3)}
    write_arrays(tmp_path / "ours.npz", arrays, compressed=compressed)
    (np.savez_compressed if compressed else np.savez)(tmp_path / "theirs.npz", **arrays)
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "theirs.npz").read_bytes()
