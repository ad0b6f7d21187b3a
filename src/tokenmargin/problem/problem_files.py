"""Problems in files, `.npz` or `.json`: read, checked, and never executed. `TokenProblem.save` writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from tokenmargin._files import read_arrays
from tokenmargin.problem.token_problem import TokenProblem

FIELDS = ("keys", "values", "labels", "targets", "head", "scores", "mask", "keep_unused", "queries")
LARGEST_FILE = 4 << 30  # bytes that a problem may take in memory: a zip bomb is refused before it is read
COPIES = 4  # how often each number is in memory as a double while a problem is made: at most 3.6 times as measured


class ProblemFileError(ValueError):
    """A problem file that cannot be read, with the file and what is wrong in the message."""


def load_problem(path: str | Path) -> TokenProblem:
    """Read a problem from `.npz` or `.json`: keys (n,T,d), values, labels (n), head (d) or scores (n,T), mask.

    With queries (n,q) or (q) it is the problem of training W, as `with_matrix` poses it.

    Nothing in the file is ever executed: pickled objects are refused.
    """
    path = Path(path)
    if not path.is_file():
        raise ProblemFileError(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
    match path.suffix:
        case ".npz":
            arrays = _read_npz(path)
        case ".json":
            return parse_problem(path.read_bytes(), source=str(path))
        case suffix:
            raise ProblemFileError(f"{path}: a problem file ends in .npz or .json, got {suffix!r}")
    return _build_problem(arrays, str(path))


def parse_problem(content: str | bytes, *, source: str = "problem") -> TokenProblem:
    """A problem from the text of a `.json` problem file; `source` names it in error messages.

    >>> parse_problem('{"keys": [[[0, 1], [1, 0]]], "labels": [1], "scores": [[0, 1]]}').scores
    array([[0., 1.]])
    """
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ProblemFileError(f"{source}: not valid JSON ({error})") from error
    if not isinstance(fields, dict):
        raise ProblemFileError(f"{source}: a problem is a JSON object with {', '.join(FIELDS)}")
    return problem_of(fields, source=source)


def problem_of(fields: Mapping[str, Any], *, source: str = "problem") -> TokenProblem:
    """A problem from the fields of a problem file, as lists; `source` names it in error messages."""
    arrays = {}
    for name, value in fields.items():
        try:
            arrays[name] = np.asarray(value)
        except ValueError as error:
            raise ProblemFileError(
                f"{source}: {name} is not a rectangular array; pad short inputs and give a mask"
            ) from error
    return _build_problem(arrays, source)


def _build_problem(arrays: dict[str, Array], source: str) -> TokenProblem:
    """Check the names of the fields and build the problem."""
    unknown = sorted(set(arrays) - set(FIELDS))
    missing = [
        name for name in ("keys", "labels") if name not in arrays and not (name == "labels" and "targets" in arrays)
    ]
    if unknown or missing:
        what = f"unknown field {unknown[0]!r}" if unknown else f"no field {missing[0]!r}"
        raise ProblemFileError(f"{source}: {what}; a problem has {', '.join(FIELDS)}")
    if "mask" in arrays and arrays["mask"].dtype != bool:
        arrays["mask"] = _as_mask(source, arrays["mask"])
    queries = arrays.pop("queries", None)
    try:
        problem = _of_fields(arrays)
        return problem if queries is None else problem.with_matrix(_numbers("queries", queries))
    except (TypeError, ValueError) as error:
        raise ProblemFileError(f"{source}: {error}") from error


def _of_fields(arrays: dict[str, Array]) -> TokenProblem:
    """The kind of problem that the fields describe: by real targets, by a head of several columns, or plain."""
    from tokenmargin.problem.label_problems import (
        ClassProblem,  # it loads scipy, which few files need
        RegressionProblem,
    )

    keys = arrays.pop("keys")
    if "targets" in arrays:
        if "labels" in arrays:
            raise ValueError("give labels (classes) or targets (real numbers), not both")
        return RegressionProblem.of(keys, arrays.pop("targets"), **arrays)
    labels, several = arrays.pop("labels"), {"head": 2, "scores": 3}
    if any(name in arrays and arrays[name].ndim == axes for name, axes in several.items()):
        unused = bool(arrays.pop("keep_unused", False))
        class_logits = arrays.pop("scores", None)
        return ClassProblem.of(keys, labels, class_logits=class_logits, keep_unused=unused, **arrays)
    return TokenProblem.of(keys, labels, **arrays)


def _numbers(name: str, value: Array) -> Float[Array, "..."]:
    if value.dtype.kind not in "fiub":
        raise ValueError(f"{name} must be numbers, got {value.dtype}")
    return value.astype(np.float64)


def _as_mask(source: str, mask: Array) -> Array:
    if mask.dtype.kind not in "iuf" or not np.isin(mask, (0, 1)).all():
        raise ProblemFileError(f"{source}: mask must hold booleans (or 0 and 1), got dtype {mask.dtype}")
    return mask.astype(bool)


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        return read_arrays(path, largest=LARGEST_FILE, copies=COPIES)
    except ValueError as error:
        raise ProblemFileError(
            f"{path}: not a readable .npz of plain arrays ({error}); write it with TokenProblem.save"
        ) from error
