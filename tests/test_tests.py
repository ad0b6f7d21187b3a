"""The tests themselves: none returns before its end, none reaches for a private name, tolerances are derived."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.tolerances import Watch, table

TESTS = Path(__file__).parent
FILES = sorted(set(TESTS.rglob("*.py")) - {Path(__file__)})
OWN = {"self", "cls", "super()"}  # a class of the test may have private names of its own
STANDARD = {"_fields", "_replace", "_asdict", "_repr_html_"}  # of named tuples and notebooks
WHY = {"training/test_kernels.py": "Triton's interpreter captures no graph, so the launches are made one by one"}


CLOSE = {"approx", "assert_allclose", "allclose", "isclose", "assert_close"}


def programs(tree: ast.AST) -> Iterator[ast.AST]:
    """The module, and the programs in its strings that other processes run."""
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import tokenmargin" in node.value:
            try:
                yield ast.parse(node.value)
            except SyntaxError:
                continue


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in STANDARD


def reached(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and ast.unparse(node.value) not in OWN:
            yield f"line {node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tokenmargin"):
            yield from (f"line {node.lineno}: {alias.name}" for alias in node.names if private(alias.name))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".setattr"):
            names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (f"line {node.lineno}: {name}" for name in names if private(name.rpartition(".")[2]))


def returns(function: ast.AST) -> Iterator[int]:
    """Lines of a function's own returns, without those of functions inside it; an expected refusal may end one."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.Return):
            yield child.lineno
        elif not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.ExceptHandler
        ):
            yield from returns(child)


def bare(text: str) -> Iterator[int]:
    """Lines of comparisons whose tolerance is a number, or numpy's or pytest's own, without a comment about it."""
    said = {t.start[0] for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT}
    for statement in (
        node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert | ast.Expr | ast.Assign)
    ):
        near = set(range(statement.lineno - 2, (statement.end_lineno or statement.lineno) + 1))
        if near & said:
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLOSE:
                given = [k.value for k in node.keywords if k.arg in ("rel", "abs", "rtol", "atol", None)]
                if not given or any(_is_small(x) or (isinstance(x, ast.Constant) and x.value) for x in given):
                    yield node.lineno
            elif isinstance(statement, ast.Assert) and isinstance(node, ast.Compare) and _is_below_a_number(node):
                yield node.lineno


def _is_below_a_number(node: ast.Compare) -> bool:
    """Whether something is to be less than a small number, or what is asked is moved by one, such as `1 - 1e-9`."""
    most = (x for op, x in zip(node.ops, node.comparators, strict=True) if isinstance(op, ast.Lt | ast.LtE))
    sums = (x for x in ast.walk(node) if isinstance(x, ast.BinOp) and isinstance(x.op, ast.Add | ast.Sub))
    return any(map(_is_small, most)) or any(_is_small(part) for x in sums for part in (x.left, x.right))


def _is_small(node: ast.AST) -> bool:
    """Whether a number of at most a hundredth is part of it."""
    numbers = (x.value for x in ast.walk(node) if isinstance(x, ast.Constant))
    return any(isinstance(x, float) and 0 < x <= 0.01 for x in numbers)


def added(tree: ast.AST) -> Iterator[int]:
    """Lines of comparisons that are wider than they say: what is not given is 1e-12 in pytest, 1e-7 or 1e-5 in numpy.

    pytest's `abs` alone means no `rel`; its `rel` alone comes with an `abs` of 1e-12. numpy's `atol` alone comes with
    an `rtol`, and `allclose` and `isclose` have both.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name, given = ast.unparse(node.func).rpartition(".")[2], {k.arg for k in node.keywords}
            needed = {"approx": {"abs"}, "assert_allclose": {"rtol"}}.get(name, {"rtol", "atol"})
            if name in CLOSE and None not in given and not needed <= given:
                yield node.lineno


def alike(tree: ast.AST) -> Iterator[int]:
    """Lines on which a thing is compared with itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            said = [ast.unparse(x.args[0] if _is_approx(x) else x) for x in sides]  # type: ignore[attr-defined]
            if len(set(said)) < len(said) and any(isinstance(x, ast.Call) for side in sides for x in ast.walk(side)):
                yield node.lineno


def _is_approx(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("approx") and bool(node.args)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_tolerances_are_derived(file):
    """Every tolerance is computed, or says beside it where it is from; none is wider than it says."""
    text = file.read_text()
    assert not list(bare(text))
    assert not list(added(ast.parse(text)))
    assert not list(alike(ast.parse(text)))


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(TESTS)))
def test_tests_go_by_the_front_and_to_the_end(file):
    tree = ast.parse(file.read_text())
    found = [line for program in programs(tree) for line in reached(program)]
    assert not found or str(file.relative_to(TESTS)) in WHY, found
    early = {
        node.name: lines
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and (lines := list(returns(node)))
    }
    assert not early, f"a test that returns early says nothing; use pytest.skip(reason): {early}"


def test_errors_are_seen_beside_what_is_allowed():
    watch = Watch()
    with pytest.MonkeyPatch.context() as patch:
        watch.start(patch)
        assert pytest.approx(1, abs=0.5) == 1.25
        np.testing.assert_allclose([1.0, 3.0, np.inf], [1.0, 2.0, np.inf], rtol=0, atol=4.0)
        torch.testing.assert_close(torch.tensor(8.0), torch.tensor(8.0), rtol=0, atol=1.0)
    assert [seen.share for seen in watch.lines.values()] == [0.5, 0.25, 0.0]
    assert "tests/" not in table(watch.lines)
    assert "test_tests.py" in table(watch.lines)


def test_these_rules_see_what_they_forbid():
    bad = ast.parse("import tokenmargin as tm\ndef test_a():\n    if tm._ROOMS:\n        return\n    assert 1")
    assert list(reached(bad)) == ["line 3: tm._ROOMS"]
    assert list(returns(bad.body[1])) == [4]
    patched = ast.parse('monkeypatch.setattr("tokenmargin.norms._EPS", 1)')
    assert list(reached(patched)) == ["line 1: tokenmargin.norms._EPS"]
    assert list(bare("assert x == pytest.approx(1, rel=1e-9)\nassert x == pytest.approx(1)")) == [1, 2]
    assert list(bare("assert off < 1e-9\nassert (x >= 1 - 1e-9 * y).all()\nassert x == approx(1, abs=1e-9 * y)")) == [
        1,
        2,
        3,
    ]
    assert not list(bare("assert off < small\nassert x < 0.5 - y\nassert x > 1e-9"))
    assert not list(added(ast.parse("assert x == approx(1, abs=a)\nassert_allclose(x, y, rtol=r)")))
    wide = "approx(1, rel=r)\nassert_allclose(x, y, atol=a)\nnp.isclose(x, y, rtol=0)\ntorch.testing.assert_close(x, y)"
    assert list(added(ast.parse(wide))) == [1, 2, 3, 4]
    assert list(alike(ast.parse("assert f(x) == approx(f(x), rel=1, abs=0)\nassert x == f(x)"))) == [1]
    assert not list(
        bare("assert x == pytest.approx(1, rel=1e-9)  # promised\ny = 0\nassert x == pytest.approx(1, rel=r)")
    )
