"""What tests compare, against what they allow: `python -m benchmarks.tolerances tests/margin [--rows 20]`.

Every `approx`, `assert_allclose`, `assert_close` and every `<` or `<=` inside an `assert` whose right side is small is
watched while the tests run: for every line, the largest error as a share of its tolerance. A share near 1 may be above
1 on another processor; one far below it, of a tolerance that is not small itself, would let a defect pass. Other
kernels are asked for by the environment, as `.ci/portable` does. What oracles compare counts for the test that asks.
"""

from __future__ import annotations

import ast
import linecache
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import pytest
from cyclopts import Parameter

from benchmarks.tools import run_main

TESTS = str(Path(__file__).parents[1] / "tests")
ORACLES = TESTS + "/oracles/"
NEAR, FAR, WIDE = 0.1, 1e-4, 1e-9
NOTED = "tolerance_is_noted"
SMALL = 0.01  # the right side of a comparison that is taken for a tolerance


class Seen(NamedTuple):
    share: float
    error: float
    allowed: float


class Watch:
    """The largest share that was seen of every line that compares."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], Seen] = {}

    def note(self, found: Any, expected: Any, rel: float, off: Any) -> None:
        """Keep the largest error of this comparison, as a share of what is allowed, if it is its line's largest."""
        sides = (np.asarray(found, dtype=float), np.asarray(expected, dtype=float), np.asarray(off, dtype=float))
        one, other, off = np.broadcast_arrays(*sides)
        known = np.isfinite(one) & np.isfinite(other)
        if not known.any():
            return
        errors, allowed = np.abs(one[known] - other[known]), off[known] + rel * np.abs(other[known])
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(errors == 0, 0.0, errors / allowed)
        k = int(shares.argmax())
        at, seen = _place(), Seen(float(shares[k]), float(errors[k]), float(allowed[k]))
        if at is not None and seen.share >= self.lines.get(at, Seen(-1, 0, 0)).share:
            self.lines[at] = seen

    def start(self, patch: pytest.MonkeyPatch) -> None:
        """Stand in for the functions that compare, and pass on what they say."""
        import torch

        kind = type(pytest.approx(1.0))
        equal, allclose, close = kind.__eq__, np.testing.assert_allclose, torch.testing.assert_close

        def of_approx(self_: Any, found: object) -> bool:
            if isinstance(found, int | float | np.number) and np.isfinite(self_.expected):
                self.note(found, self_.expected, 0.0, self_.tolerance)
            return bool(equal(self_, found))

        def of_numpy(found: Any, expected: Any, rtol: float = 1e-7, atol: float = 0, **more: Any) -> None:
            self.note(found, expected, rtol, atol)
            allclose(found, expected, rtol=rtol, atol=atol, **more)

        def of_torch(found: Any, expected: Any, *, rtol: float, atol: float, **more: Any) -> None:
            self.note(found.detach().cpu(), expected.detach().cpu(), rtol, atol)
            close(found, expected, rtol=rtol, atol=atol, **more)

        patch.setattr(kind, "__eq__", of_approx)
        patch.setattr(np.testing, "assert_allclose", of_numpy)
        patch.setattr(torch.testing, "assert_close", of_torch)
        self._read_into(patch)

    def _read_into(self, patch: pytest.MonkeyPatch) -> None:
        """Let the comparisons inside the asserts of tests that are imported from now on go by here."""
        import builtins

        read = SourceFileLoader.get_code

        def code(loader: SourceFileLoader, name: str) -> Any:
            if not loader.path.startswith(TESTS):
                return read(loader, name)
            tree = ast.fix_missing_locations(Compared().visit(ast.parse(loader.get_data(loader.path))))
            return compile(tree, loader.path, "exec", dont_inherit=True)

        patch.setattr(builtins, NOTED, self.below, raising=False)
        patch.setattr(SourceFileLoader, "get_code", code)

    def below(self, found: Any, most: Any, strict: bool) -> Any:
        """What `found < most` or `found <= most` says, noted where `most` can be a tolerance."""
        if all(isinstance(one, int | float | np.number | np.ndarray) for one in (found, most)):
            errors, allowed = (np.asarray(one, dtype=float) for one in (found, most))
            if errors.size and allowed.size and (errors >= 0).all() and ((allowed > 0) & (allowed < SMALL)).all():
                self.note(errors, 0.0, 0.0, allowed)
        return found < most if strict else found <= most


class Compared(ast.NodeTransformer):
    """Writes `below(a, b, strict)` for every `a < b` and `a <= b` inside an assert."""

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        for inner in ast.walk(node.test):
            for name, value in ast.iter_fields(inner):
                if isinstance(value, list):
                    value[:] = [self.seen(one) for one in value]
                else:
                    setattr(inner, name, self.seen(value))
        node.test = self.seen(node.test)
        return node

    def seen(self, node: Any) -> Any:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Lt | ast.LtE):
            return node
        strict = ast.Constant(isinstance(node.ops[0], ast.Lt))
        call = ast.Call(ast.Name(NOTED, ast.Load()), [node.left, node.comparators[0], strict], [])
        return ast.copy_location(call, node)


def _place() -> tuple[str, int] | None:
    """The innermost line of a test that led here, or else of an oracle."""
    frame, oracle = sys._getframe(1), None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(ORACLES):
            oracle = oracle or (file, frame.f_lineno)
        elif file.startswith(TESTS):
            return file, frame.f_lineno
        frame = frame.f_back
    return oracle


def table(lines: dict[tuple[str, int], Seen]) -> str:
    """A row for every line, the largest share first."""
    rows = [f"{'share':>8} {'error':>8} {'allowed':>8}"]
    for (file, line), seen in sorted(lines.items(), key=lambda one: -one[1].share):
        where = f"{file.removeprefix(TESTS + '/')}:{line}"
        text = linecache.getline(file, line).strip()[:70]
        rows.append(f"{seen.share:8.1e} {seen.error:8.1e} {seen.allowed:8.1e}  {where:<44} {text}")
    return "\n".join(rows)


def main(*tests: Annotated[str, Parameter(allow_leading_hyphen=True)], rows: int = 20) -> int:
    """Watch these tests (files, folders, single tests, options of pytest); at most so many rows in each table."""
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        watch.start(patch)
        code = pytest.main(["-q", "-p", "no:cacheprovider", "--assert=plain", *tests])
    near = {at: seen for at, seen in watch.lines.items() if seen.share > NEAR}
    far = {at: seen for at, seen in watch.lines.items() if seen.share < FAR and seen.allowed > WIDE}
    print(f"\n{len(watch.lines)} lines compare")
    for title, some in ((f"{len(near)} use more than a tenth of what they allow", near),
                        (f"{len(far)} allow more than {WIDE:g} and use less than {FAR:g} of it", far)):  # fmt: skip
        print(f"\n{title}\n{table(dict(sorted(some.items(), key=lambda one: -one[1].share)[:rows]))}")
    return int(code)


if __name__ == "__main__":
    run_main(main, __doc__)
