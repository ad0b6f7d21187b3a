"""`tokenmargin solve`: the max-margin direction of one selection, with its certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenmargin.cli._common import Json, Problem, emit_json, read_problem, selected_tokens, show_facts, usage_errors

if TYPE_CHECKING:
    from tokenmargin.margin import MarginSolution
    from tokenmargin.problem.token_problem import TokenProblem


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
    chosen = optimal_tokens(data).argmax(axis=1).tolist() if select is None else selected_tokens(select)
    with usage_errors():
        solution = max_margin(data, chosen, norm=norm)
    report = solution_report(data, chosen, solution)
    if json:
        emit_json(report)
    else:
        _print(report)
    return 1 if solution.status == "inaccurate" else 0


def solution_report(problem: TokenProblem, selected: list[int], solution: MarginSolution) -> dict[str, Any]:
    """Everything about one solution, in plain types."""
    import numpy as np

    from tokenmargin.selection import equals, is_globally_optimal, is_locally_optimal, neighbours

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
        "equals": np.argwhere(equals(problem, np.asarray(selected)) & (np.arange(problem.T) != np.c_[selected])),
        "locally_optimal": solved and is_locally_optimal(problem, solution.vector, selected),
        "globally_optimal": is_globally_optimal(problem, selected),
        "farkas": solution.farkas,
        "seconds": solution.seconds,
    }


def _print(report: dict[str, Any]) -> None:
    import numpy as np

    from tokenmargin.problem.names import token_name

    chosen = " ".join(token_name(i, t) for i, t in enumerate(report["selected"]))
    facts = [("status", f"{report['status']} (residual {report['residual']:.1e})"), ("", report["explanation"]),
             ("selected", chosen)]  # fmt: skip
    if report["vector"] is not None:
        with np.printoptions(precision=6, suppress=True, threshold=12):
            matrix = report["matrix"]
            size = "" if matrix is None else f"{' x '.join(map(str, np.shape(matrix)))}\n"
            facts.append(("vector", str(report["vector"])) if matrix is None else ("matrix", f"{size}{matrix}"))
        in_norm = "" if report["norm"] == "l2" else f" ({report['norm']})"
        facts += [
            ("margin", f"{report['margin']:.8g}{in_norm}"),
            ("neighbours", _names(report["neighbours"])),
            ("locally optimal", "yes" if report["locally_optimal"] else "no"),
        ]
    facts.append(
        ("optimal tokens", "yes" if report["globally_optimal"] else "no, another token of an input scores higher")
    )
    if len(report["equals"]):
        facts.append(("equal scores", f"{_names(report['equals'])}: training need not leave these behind, see `atlas`"))
    show_facts(facts)


def _names(tokens: Any) -> str:
    from tokenmargin.problem.names import token_name

    shown = " ".join(token_name(i, t) for i, t in tokens[:16].tolist())
    return (shown or "none") + (f" and {len(tokens) - 16} more" if len(tokens) > 16 else "")
