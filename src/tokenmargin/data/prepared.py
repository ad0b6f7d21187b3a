"""PreparedText: token ids of labelled texts, with the vocabulary and the characters each token came from.

It is kept in a file whose arrays are mapped, so that only what is used is read. The file holds a checksum of its arrays
and notes, which is compared before anything of it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin._files import arrays_digest, atomic_path, check_plain, json_digest, write_arrays
from tokenmargin.problem.corpus import TokenCorpus

ARRAYS = ("ids", "offsets", "labels", "starts", "ends", "rows")
BLOCK = 1 << 22  # bytes read at a time for the checksum
DTYPES = {"I8": np.int8, "I32": np.int32, "I64": np.int64}


class PreparedFileError(ValueError):
    """A prepared file that cannot be read, with the file and what is wrong in the message."""


@dataclass(frozen=True)
class Step:
    """How many tokens and distinct tokens there are before and after one step."""

    name: str
    before: int
    after: int
    distinct_before: int
    distinct_after: int


@dataclass(frozen=True, eq=False)
class PreparedText:
    """Token ids of `n` labelled texts, ragged.

    **Attributes**
    - `ids`: the tokens of all texts, end to end; those of text `i` are `ids[offsets[i]:offsets[i + 1]]`.
    - `labels`: -1 or +1.
    - `vocabulary`: the tokens, the most frequent first.
    - `starts`, `ends`: the characters of the whole word that each token came from.
    - `rows`: the number of each text among the texts given to `prepare`.
    - `steps`, `choices`: how many tokens each step left, and the settings of the pipeline.
    """

    ids: Int[Array, " tokens"]
    offsets: Int[Array, " n_plus_1"]
    labels: Int[Array, " n"]
    vocabulary: tuple[str, ...]
    starts: Int[Array, " tokens"]
    ends: Int[Array, " tokens"]
    rows: Int[Array, " n"]
    steps: tuple[Step, ...] = ()
    choices: Mapping[str, object] | None = None

    def __repr__(self) -> str:
        return f"PreparedText({self.n} texts, {len(self.ids)} tokens, vocabulary of {len(self.vocabulary)})"

    @property
    def n(self) -> int:
        """Number of texts."""
        return len(self.labels)

    @property
    def m(self) -> int:
        """Size of the vocabulary."""
        return len(self.vocabulary)

    def sequence(self, i: int) -> Int[Array, " t"]:
        """The tokens of text `i`."""
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def spans(self, i: int) -> Int[Array, "t 2"]:
        """The characters (start, end) in the original text of each token of text `i`."""
        where = slice(self.offsets[i], self.offsets[i + 1])
        return np.stack([self.starts[where], self.ends[where]], axis=1)

    def corpus(self) -> TokenCorpus:
        """The texts as sequences of tokens, whose statistics can be asked for."""
        return TokenCorpus(np.array(self.ids), np.diff(self.offsets), self.labels.astype(float), self.vocabulary)

    def save_ids(self, path: str | Path) -> None:
        """Write a small `.npz` to train from elsewhere: ids, lengths and labels, without words and characters."""
        small = np.uint16 if self.m <= 1 << 16 else np.uint32
        lengths = np.diff(self.offsets).astype(np.uint32)
        kept = {
            "ids": self.ids.astype(small),
            "lengths": lengths,
            "labels": self.labels,
            "vocabulary": np.array(self.m),
        }
        write_arrays(path, kept)

    def save(self, path: str | Path) -> str:
        """Write one `.safetensors` file, whole or not at all; returns its checksum."""
        from safetensors.numpy import save_file

        notes = {
            "vocabulary": json.dumps(self.vocabulary),
            "steps": json.dumps([vars(step) for step in self.steps]),
            "choices": json.dumps(self.choices, default=str),
        }
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAYS}
        checksum = _checksum(arrays_digest(arrays), notes)
        with atomic_path(path) as beside:
            save_file(arrays, beside, metadata={**notes, "sha256": checksum})
        return checksum


def _checksum(arrays: str, notes: Mapping[str, str]) -> str:
    return json_digest([arrays, dict(notes)])


def load_prepared(path: str | Path, *, check: bool = True, expected: str | None = None) -> PreparedText:
    """Open a file written by `PreparedText.save`; its arrays are read from the disk when they are used.

    **Arguments**
    - `check`: whether to read the file once and compare it with its checksum.
    - `expected`: the checksum that it must have, if another file says so.
    """
    path = Path(path)
    try:
        check_plain(path)
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > path.stat().st_size:
                raise ValueError("its header is longer than the file")
            header = json.loads(file.read(length))
        notes = dict(header.pop("__metadata__"))
        claimed = notes.pop("sha256", None)
        arrays = {}
        for name in ARRAYS:
            entry = header[name]
            (begin, end), dtype, shape = entry["data_offsets"], np.dtype(DTYPES[entry["dtype"]]), tuple(entry["shape"])
            if end - begin != dtype.itemsize * int(np.prod(shape)) or 8 + length + end > path.stat().st_size:
                raise ValueError(f"the array {name} is cut short")
            arrays[name] = (
                np.memmap(path, dtype, "r", 8 + length + begin, shape) if end > begin else np.zeros(shape, dtype)
            )
        if check:
            _check_checksum(path, 8 + length, header, arrays, notes, claimed, expected)
        steps = tuple(Step(**step) for step in json.loads(notes["steps"]))
        return PreparedText(
            vocabulary=tuple(json.loads(notes["vocabulary"])),
            steps=steps,
            choices=json.loads(notes["choices"]),
            **arrays,
        )
    except FileNotFoundError as error:
        raise PreparedFileError(f"{path}: no such file") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise PreparedFileError(
            f"{path}: not a prepared text ({error}); write it with PreparedText.save or `tokenmargin prepare`"
        ) from error


def _check_checksum(
    path: Path,
    first: int,
    header: Mapping[str, dict[str, tuple[int, int]]],
    arrays: Mapping[str, Array],
    notes: Mapping[str, str],
    claimed: str | None,
    expected: str | None,
) -> None:
    """Raise unless a file, whose arrays begin at byte `first`, has the checksum that it claims and is expected.

    The file is read, not mapped, so that no more than one block of it is in memory.
    """

    def blocks(name: str) -> Iterator[bytes]:
        begin, end = header[name]["data_offsets"]
        with path.open("rb") as file:
            file.seek(first + begin)
            for at in range(begin, end, BLOCK):
                yield file.read(min(BLOCK, end - at))

    if claimed is None:
        raise ValueError("it has no checksum: it was written by an earlier version")
    if claimed != _checksum(arrays_digest(arrays, read=blocks), notes):
        raise ValueError("damaged: its checksum differs")
    if expected is not None and claimed != expected:
        raise ValueError("it belongs to another corpus: its checksum is not the one that the folder names")
