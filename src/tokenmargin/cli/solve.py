"""`tokenmargin solve` and `atlas`: the certified max-margin direction of one selection, and of all."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenmargin.cli._common import (
    Json,
    Problem,
    UsageError,
    emit_json,
    parse_selection,
    print_answer,
    print_facts,
    print_table,
    progress_bar,
    read_problem,
    usage_errors,
    vector_text,
    without_unused_coordinates,
)

if TYPE_CHECKING:
    from numpy import ndarray as Array

    from tokenmargin.margin import Atlas, MarginSolution
    from tokenmargin.problem.abstract_geometry import AbstractGeometry
    from tokenmargin.problem.token_problem import TokenProblem

MOST = 3  # coordinates of a direction that are printed


def solve(
    problem: Problem,
    /,
    *,
    select: Annotated[str | None, Parameter(name=["--select", "-s"])] = None,
    norm: str = "l2",
    json: Json = False,
) -> int:
    """Find the shortest p that separates the selected tokens, with a certificate.

    Exit code 0 when the answer is proven (optimal or infeasible), 1 when it is
    inaccurate.

    Examples:

        tokenmargin solve fig1b --select 1
        tokenmargin solve problem.npz --select A1,B3,C2 --json
        tokenmargin solve fig1b --select 1 --norm l1

    Parameters
    ----------
    problem:
        A .npz or .json file with keys (n,T,d), labels (n), head (d) or scores (n,T), and optionally values and mask;
        or the name of a figure, such as fig1c.
    select:
        The selected token of each input: A1,B3,C2, or positions counted from 0, such as 0,2,1.
        By default the tokens of highest score.
    norm:
        In which p is shortest: l2, l1, linf, lp:1.5 (any P above 1); of a problem for a matrix W also nuclear and
        spectral; one that a package adds, or MODULE:OBJECT.
    """
    from tokenmargin.margin import max_margin
    from tokenmargin.selection import optimal_tokens

    data = read_problem(problem)
    chosen = optimal_tokens(data).argmax(axis=1).tolist() if select is None else parse_selection(select)
    with usage_errors():
        solution = max_margin(data, chosen, norm=norm)
    report = solution_report(data, chosen, solution)
    if json:
        emit_json(report)
    else:
        _print_solution(report, data.keys)
    return 1 if solution.status == "inaccurate" else 0


def solution_report(problem: TokenProblem, selected: list[int], solution: MarginSolution) -> dict[str, Any]:
    """Everything about one solution, in plain types."""
    import numpy as np

    from tokenmargin.selection import is_globally_optimal, is_locally_optimal, neighbours, tokens_of_equal_score

    solved = solution.status == "optimal"
    near = np.argwhere(neighbours(problem, solution.vector, selected)) if solved else np.zeros((0, 2), dtype=int)
    return {
        "status": solution.status,
        "selected": list(selected),
        "norm": solution.norm.name,
        "vector": solution.vector if solution.status != "infeasible" else None,
        "matrix": None if solution.shape is None or solution.status == "infeasible" else solution.matrix,
        "margin": solution.margin,
        "gap": solution.certificate.gap,
        "explanation": solution.explanation,
        "residual": solution.certificate.residual,
        "active": solution.tokens[solution.active],
        "multipliers": solution.multipliers[solution.active],
        "neighbours": near,
        "equals": np.argwhere(
            tokens_of_equal_score(problem, np.asarray(selected)) & (np.arange(problem.T) != np.c_[selected])
        ),
        "locally_optimal": solved and is_locally_optimal(problem, solution.vector, selected),
        "globally_optimal": is_globally_optimal(problem, selected),
        "farkas": solution.farkas,
        "seconds": solution.seconds,
    }


def _print_solution(report: dict[str, Any], keys: AbstractGeometry) -> None:
    import numpy as np

    from tokenmargin.problem.names import token_name

    chosen = " ".join(token_name(i, t) for i, t in enumerate(report["selected"]))
    facts = [("status", f"{report['status']} (residual {report['residual']:.1e})"), ("", report["explanation"]),
             ("selected", chosen)]  # fmt: skip
    if report["vector"] is not None:
        if (matrix := report["matrix"]) is None:
            facts.append(("vector", vector_text(report["vector"], keys)))
        else:
            facts.append(("matrix", f"{' x '.join(map(str, np.shape(matrix)))}\n{vector_text(matrix)}"))
        in_norm = "" if report["norm"] == "l2" else f" ({report['norm']})"
        facts += [
            ("margin", f"{report['margin']:.8g}{in_norm}"),
            ("neighbours", _token_names(report["neighbours"])),
            ("locally optimal", "yes" if report["locally_optimal"] else "no"),
        ]
    facts.append(
        ("optimal tokens", "yes" if report["globally_optimal"] else "no, another token of an input scores higher")
    )
    if len(report["equals"]):
        told = "as good in training, copies with their mean score, so it need not leave these behind: see `atlas`"
        facts.append(("alike", f"{_token_names(report['equals'])}: {told}"))
    print_facts(facts)


def _token_names(tokens: Any) -> str:
    from tokenmargin.problem.names import token_name

    shown = " ".join(token_name(i, t) for i, t in tokens[:16].tolist())
    return (shown or "none") + (f" and {len(tokens) - 16} more" if len(tokens) > 16 else "")


def atlas(
    problem: Problem, /, *, norm: str = "l2", budget: int | None = None, limit: int = 20, json: bool = False
) -> int:
    """List the selections to which attention can converge, each with its certified direction.

    Tokens of equal score need not be told apart, and copies of one key are
    selected together, as in A1+A3. Exit code 0 when every selection was decided, 1 when the budget ran out or one
    could not be. Limits with a finite part, where tokens of different scores keep their weights, are no selections.

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
        emit_json(found.to_dict() | _arcs_as_data(data))
    else:
        _print_atlas(found, limit, data.keys)
    return 0 if found.complete else 1


def _arcs_as_data(problem: TokenProblem) -> dict[str, Any]:
    """The arcs of the circle by selection, when the keys lie in the plane."""
    from tokenmargin.margin import is_planar, selection_arcs
    from tokenmargin.selection import copies_of, named_sets

    if not is_planar(problem):
        return {}
    arcs = [(arc, named_sets(copies_of(problem, arc.selected))) for arc in selection_arcs(problem)]
    return {"arcs": [{"start": arc.start, "stop": arc.stop, "selected": names} for arc, names in arcs]}


def _print_atlas(found: Atlas, limit: int, keys: AbstractGeometry) -> None:
    from tokenmargin.selection import selection_text

    several = "s" if found.selections > 1 else ""
    print_answer(f"{found.selections} selection{several}: {found.feasible} feasible, {found.infeasible} infeasible")
    if found.complete:
        print_answer("every selection decided (limits with a finite part are no selections: evolve --method flow)")
    else:
        print_answer(f"PARTIAL: others may be missing: {found.unsearched}")
    names = ("kind", "tokens", "margin", "score gap", "residual", "direction")
    columns = tuple(zip(names, ("<", "<", ">", ">", ">", "<"), strict=True))
    rows = [
        (
            entry.kind, selection_text(entry.chosen), f"{entry.solution.margin:.6g}", f"{entry.gaps.min():.4g}",
            f"{entry.solution.certificate.residual:.0e}", _short_direction(entry.solution.vector, keys),
        )
        for entry in found.limits[:limit]
    ]  # fmt: skip
    if rows:
        print_table(columns, rows)
    else:
        print_answer("no limits")
    if len(found.limits) > limit:
        print_answer(f"... and {len(found.limits) - limit} more (--limit, --json)")


def _short_direction(vector: Array, keys: AbstractGeometry) -> str:
    """The first of its `without_unused_coordinates`."""
    seen = without_unused_coordinates(vector, keys)
    shown = ", ".join(f"{x:.4g}" for x in seen[:MOST].tolist())
    return f"({shown}{', ...' if len(seen) > MOST else ''})"
