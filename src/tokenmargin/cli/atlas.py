"""`tokenmargin atlas`: every selection to which attention can converge, for one problem, with its direction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import (
    Problem,
    UsageError,
    emit_json,
    progress_bar,
    read_problem,
    show,
    show_table,
    usage_errors,
)

if TYPE_CHECKING:
    from numpy import ndarray as Array

    from tokenmargin.margin import Atlas
    from tokenmargin.problem.token_problem import TokenProblem

MOST = 3  # coordinates of a direction that are printed


def atlas(
    problem: Problem, /, *, norm: str = "l2", budget: int | None = None, limit: int = 20, json: bool = False
) -> int:
    """List the selections to which attention can converge, each with its certified direction.

    Tokens of equal score need not be told apart, and copies of one key are
    selected together, as in A1+A3. Exit code 0 when the atlas is complete, 1 when the budget ran out or a
    selection could not be decided.

    Examples:

        tokenmargin atlas fig1b
        tokenmargin atlas problem.npz --budget 100000 --json
        tokenmargin atlas fig1b --norm linf

    Parameters
    ----------
    norm:
        In which the directions are shortest: l2 (gradient descent), l1, linf, lp:1.5, nuclear, spectral, or another.
    budget:
        Largest number of max-margin problems to solve; the answer says when it is partial. Default: no limit.
    limit:
        How many directions to print; --json writes all.
    json:
        Write one JSON object to standard output; with keys in the plane, also the arcs of each selection.
    """
    from tokenmargin.margin import atlas as chart

    data = read_problem(problem)
    if budget is not None and budget < 1:
        raise UsageError(f"--budget must be at least 1, got {budget}")
    distinct = data.mask & (data.keys.first_copies == range(data.T))
    with usage_errors(), progress_bar("selections", math.prod(distinct.sum(axis=1).tolist())) as progress:
        found = chart(data, norm=norm, budget=budget, progress=progress)
    if json:
        emit_json(found.to_dict() | _arcs(data))
    else:
        _print(found, limit)
    return 0 if found.complete else 1


def _arcs(problem: TokenProblem) -> dict[str, Any]:
    """The arcs of the circle by selection, when the keys lie in the plane."""
    from tokenmargin.margin import is_planar, selection_arcs
    from tokenmargin.selection import copies_of, named_sets

    if not is_planar(problem):
        return {}
    arcs = [(arc, named_sets(copies_of(problem, arc.selected))) for arc in selection_arcs(problem)]
    return {"arcs": [{"start": arc.start, "stop": arc.stop, "selected": names} for arc, names in arcs]}


def _print(found: Atlas, limit: int) -> None:
    from tokenmargin.selection import spelled

    show(f"{found.selections} selections: {found.feasible} feasible, {found.infeasible} infeasible")
    if not found.complete:
        show(f"PARTIAL: others may be missing: {found.unsearched}")
    names = ("kind", "tokens", "margin", "score gap", "residual", "direction")
    columns = tuple(zip(names, ("<", "<", ">", ">", ">", "<"), strict=True))
    rows = [
        (
            entry.kind, spelled(entry.chosen), f"{entry.solution.margin:.6g}", f"{entry.gaps.min():.4g}",
            f"{entry.solution.certificate.residual:.0e}", _direction(entry.solution.vector),
        )
        for entry in found.limits[:limit]
    ]  # fmt: skip
    if rows:
        show_table(columns, rows)
    else:
        show("no limits")
    if len(found.limits) > limit:
        show(f"... and {len(found.limits) - limit} more (--limit, --json)")


def _direction(vector: Array) -> str:
    """The first coordinates, without zeros at the end that every planar problem in space has."""
    last = max((k for k, x in enumerate(vector.tolist()) if x), default=0)
    shown = ", ".join(f"{x:.4g}" for x in vector[: min(last + 1, MOST)].tolist())
    return f"({shown}{', ...' if last >= MOST else ''})"
