"""Files that are whole or absent, their digests, and values that JSON can write.

A file is written under another name in its folder, synced, and renamed. A process that is killed at any moment so
leaves the old file or the new one, never a part. Where the path is no plain file, a link is followed, a device or a
pipe is written to, and anything else is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import socket
import stat
import uuid
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray as Array

if TYPE_CHECKING:
    import pyarrow as pa

LEFTOVER = ".unfinished-"
LOCK = ".lock"
SEAL = "seal"
_SWEPT: set[Path] = set()  # folders from which leftovers of dead processes have been removed


def _temporary_name(target: Path, suffix: str) -> Path:
    """A name for a temporary file beside `target`, with the machine and the process that it belongs to.

    The first call for a folder removes temporary files that processes of this machine have left there and died.
    """
    owner = f"{LEFTOVER}{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"
    if target.parent not in _SWEPT and os.name == "posix":
        _SWEPT.add(target.parent)
        for path in target.parent.glob(f"{owner}*"):
            _remove_if_dead(path, path.name.removeprefix(owner).partition("-")[0])
    return target.with_name(f"{owner}{os.getpid()}-{uuid.uuid4().hex}{suffix}")


def _remove_if_dead(path: Path, process: str) -> None:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        _remove(path)
    except (OSError, ValueError, OverflowError):  # somebody else's, or no name of ours
        return


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path to write to. On success it replaces `path` in one step, on failure it is deleted."""
    target = Path(os.path.realpath(path))  # of a link, what it points to
    kind = stat.S_IFMT(target.stat().st_mode) if target.exists() else stat.S_IFREG
    if kind in (stat.S_IFCHR, stat.S_IFIFO):
        with _errors_naming(path):
            yield target
        return
    if kind != stat.S_IFREG:
        what = "a folder" if kind == stat.S_IFDIR else "no file"
        raise FileExistsError(f"{path} is {what} and cannot be written to; choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = _temporary_name(target, target.suffix)
    try:
        with _errors_naming(path):
            beside.touch()
            mode = stat.S_IMODE(beside.stat().st_mode)
            yield beside
            beside.chmod(mode)  # some writers make files for their owner alone
            _sync(beside)
            os.replace(beside, target)
            _sync(target.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder to fill. On success it replaces `folder` and what that held; on failure it is deleted."""
    folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = _temporary_name(folder, "")
    old = beside.with_suffix(".old")
    try:
        with _errors_naming(folder):
            beside.mkdir()
            yield beside
            for path in beside.iterdir():
                _sync(path)
            if folder.exists():
                os.replace(folder, old)
            os.replace(beside, folder)
            _sync(folder.parent)
    except BaseException:
        if old.exists() and not folder.exists():  # stopped between the two moves
            os.replace(old, folder)
        raise
    finally:
        for path in (beside, old):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _errors_naming(path: str | Path) -> Iterator[None]:
    """Errors of the disk name `path`, and not the temporary file that was written in its place.

    Writers in other languages raise errors of their own kind; the number of the system's error is in their text.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and LEFTOVER not in str(error.filename)):
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
    except Exception as error:
        told = re.search(r"(?:\(os error |\bcode: )(\d+)", str(error))  # how old and new safetensors write it
        if told is None:
            raise
        raise OSError(int(told[1]), os.strerror(int(told[1])), str(path)) from error


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process left half written; the caller must hold the folder's lock."""
    for path in list(folder.rglob(f"{LEFTOVER}*")):
        _remove(path)


def write_json(path: Path, data: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file; numbers that JSON cannot write become null."""
    text = json.dumps(plain(data), indent=indent, allow_nan=False)
    with atomic_path(path) as beside:
        beside.write_text(text + "\n", encoding="utf-8")


def write_table(path: Path, table: Mapping[str, Array]) -> None:
    """Write columns as parquet; the same columns give the same bytes."""
    import pyarrow.parquet as pq

    with atomic_path(path) as beside:
        pq.write_table(arrow_table(table), beside)


def read_plain(path: str | Path) -> bytes:
    """The bytes of a plain file; ValueError where something else stands in its place."""
    check_plain(path)
    return Path(path).read_bytes()


def check_plain(path: str | Path) -> None:
    """ValueError where a device, a pipe or a folder stands: a pipe would be waited for, a device may have no end."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{os.path.basename(path)} is not a plain file but a device, a pipe or a folder")


def read_table(path: Path) -> dict[str, Array]:
    """The columns of a parquet table: numbers as numbers, text as text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_plain(path)
    table, columns = pq.read_table(path), {}
    for name in table.column_names:
        column = table[name]
        text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        columns[name] = np.array(column.to_pylist(), dtype=str) if text else column.to_numpy()
    return columns


def arrow_table(table: Mapping[str, Array]) -> pa.Table:
    """The columns for parquet."""
    import pyarrow as pa

    for name, column in table.items():
        if column.ndim != 1:
            raise ValueError(f"column {name!r} must have one dimension, got shape {column.shape}")
    return pa.table({name: pa.array(column.tolist() if column.dtype.kind == "U" else column)
                     for name, column in table.items()})  # fmt: skip


def write_arrays(path: str | Path, arrays: Mapping[str, Array], *, compressed: bool = True) -> None:
    """Write a `.npz` file, whole or not at all."""
    # By ourselves: numpy 1.26 leaves the archive open where the disk is full, and its end is one more complaint.
    method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with atomic_path(path) as beside, beside.open("wb") as file, zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_arrays(path: str | Path, *, largest: int, copies: int = 0) -> dict[str, Array]:
    """The arrays of a `.npz` file; ValueError where they are no plain arrays, or would take over `largest` bytes.

    The size is read from the headers before anything is unpacked. It includes `copies` of every number as doubles.
    """
    check_plain(path)
    with Path(path).open("rb") as content:
        try:
            with zipfile.ZipFile(content) as archive:
                size = sum(_memory(archive, item, copies) for item in archive.infolist())
            if size > largest:
                raise ValueError(f"it takes {size} bytes in memory, more than the {largest} allowed")
            content.seek(0)
            with np.load(content, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except ValueError:
            raise
        except Exception as error:  # zipfile, zlib and numpy raise a dozen kinds on damaged bytes
            raise ValueError(str(error)) from error
    if strange := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
        raise ValueError(f"{strange[0]!r} is not an array")
    return arrays


def _memory(archive: zipfile.ZipFile, item: zipfile.ZipInfo, copies: int) -> int:
    """Bytes that an array of an archive takes, unpacked and as doubles, told from its first bytes."""
    with archive.open(item) as content:
        version = np.lib.format.read_magic(content)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(content)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(content)
        else:
            raise ValueError(f"{item.filename} has names of fields, it must be a plain array")
    return max(item.file_size, math.prod(shape) * dtype.itemsize) + copies * 8 * math.prod(shape)


def file_digest(path: str | Path) -> str:
    """SHA-256 of a plain file's bytes."""
    check_plain(path)
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_digest(content: object) -> str:
    """SHA-256 of settings and the like, whatever the order of their names.

    >>> json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def arrays_digest(arrays: Mapping[str, Array], *, read: Callable[[str], Iterable[bytes]] | None = None) -> str:
    """SHA-256 of arrays: their names, kinds, shapes and bytes; `read` gives the bytes of one that is not in memory."""
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        for block in [array.tobytes()] if read is None else read(name):
            digest.update(block)
    return digest.hexdigest()


def seal_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record for JSON with a checksum of its own, so that a changed digit is seen."""
    content = json.loads(json.dumps(record))  # as it will be read again: texts for keys, lists for tuples
    return {**content, SEAL: json_digest(content)}


def open_sealed(record: object) -> dict[str, Any]:
    """The content of a sealed record; ValueError when it is not what was sealed.

    >>> open_sealed(seal_record({"step": 3}))
    {'step': 3}
    """
    if not isinstance(record, dict):
        raise ValueError(f"a record is a JSON object, this is a {type(record).__name__}")
    content = {name: value for name, value in record.items() if name != SEAL}
    if SEAL not in record:
        raise ValueError("it has no checksum")
    if record[SEAL] != json_digest(content):
        raise ValueError("its checksum differs")
    return content


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """The folder for this process alone, made if need be; refused while another process has it."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise BlockingIOError(
            f"{folder}: another process is at work in it; wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        lock.release()


def plain(data: Any) -> Any:
    """The same data in lists, dictionaries and numbers that JSON can write; numbers that are not finite become None.

    >>> plain({1: np.array([1.0, np.nan]), "b": (2,)})
    {'1': [1.0, None], 'b': [2]}
    """
    match data:
        case Mapping():
            return {str(key): plain(value) for key, value in data.items()}
        case list() | tuple():
            return [plain(value) for value in data]
        case np.ndarray() | np.generic():
            return plain(data.tolist())
        case float() if not np.isfinite(data):
            return None
        case _:
            return data


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
