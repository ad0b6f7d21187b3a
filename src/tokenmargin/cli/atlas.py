"""`tokenmargin atlas`: every selection to which attention can converge, for one problem, with its direction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import UsageError, emit_json, progress_bar, read_problem

if TYPE_CHECKING:
    from tokenmargin.margin import Atlas
    from tokenmargin.problem.token_problem import TokenProblem

__all__ = ["atlas"]


def atlas(problem: str, /, *, budget: int | None = None, limit: int = 20, json: bool = False) -> int:
    """List the selections to which attention can converge, each with its certified direction.

    Tokens of equal score need not be told apart, and copies of one key are
    selected together, as in 0+2. Exit code 0 when the atlas is complete, 1 when the budget ran out or a
    selection could not be decided.

    Examples:

        tokenmargin atlas fig1b
        tokenmargin atlas problem.npz --budget 100000 --json

    Parameters
    ----------
    problem:
        A .npz or .json file, or the name of a figure, such as fig1c.
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
    with progress_bar("selections", math.prod(distinct.sum(axis=1).tolist())) as progress:
        found = chart(data, budget=budget, progress=progress)
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
    import numpy as np

    from tokenmargin.selection import spelled

    print(f"selections   {found.selections}: {found.feasible} feasible, {found.infeasible} infeasible")
    if not found.complete:
        print(f"PARTIAL      others may be missing: {found.unsearched}")
    print(f"limits       {len(found.limits)}")
    for entry in found.limits[:limit]:
        gap = entry.gaps.min()
        with np.printoptions(precision=6, suppress=True, threshold=8):
            print(
                f"{entry.kind}  tokens {spelled(entry.chosen, ',')}  "
                f"margin {entry.solution.margin:.6g}  score gap {gap:.4g}  neighbours {int(entry.neighbours.sum())}  "
                f"direction {entry.solution.vector}"
            )
    if len(found.limits) > limit:
        print(f"... and {len(found.limits) - limit} more (--limit, --json)")
