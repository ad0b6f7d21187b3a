"""What a command says of where a path of training went: its direction, the certified one, and how fast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmargin.dynamics import FlowPath, Trajectory
    from tokenmargin.margin import MarginSolution

__all__ = ["path_report", "print_report"]


def _compared(path: Trajectory | FlowPath) -> tuple[MarginSolution, dict[str, str | float | None], Any]:
    """What the end of a path is compared with: a solution, what it is, and its tokens."""
    import numpy as np

    from tokenmargin.dynamics import FlowPath
    from tokenmargin.limits.by_method import margin_share
    from tokenmargin.margin import label_margin, limit_direction, max_margin, relaxed_max_margin, tied_direction
    from tokenmargin.norms import L2
    from tokenmargin.objective.attention import JointObjective
    from tokenmargin.objective.nonlinear_heads import HeadObjective

    problem, selected = path.objective.local_problem(path.final), path.selected
    if isinstance(path.objective, JointObjective) and label_margin(problem, selected).is_optimal:
        return relaxed_max_margin(problem, selected), {"problem": "relaxed", "kind": None, "share": None}, selected
    if isinstance(path.objective, HeadObjective):  # its scores are not the problem's, which name the kinds
        return max_margin(problem, selected), {"problem": "att-svm", "kind": None, "share": None}, selected
    norm = L2 if isinstance(path, FlowPath) else path.method.margin_norm
    named = limit_direction(problem, selected, loss=path.objective.loss, norm=norm)
    if isinstance(path, FlowPath) and path.finite_part is not None:
        named = tied_direction(problem, path.finite_part.tied)
    share = margin_share(problem, path.prompt, named)
    found = {"problem": "att-svm", "kind": named.kind, "share": None if np.isnan(share) else share}
    return named.solution, found, named.names


def path_report(path: Trajectory | FlowPath) -> dict[str, Any]:
    """What a command says of a path, as plain values."""
    from tokenmargin.dynamics import FlowPath
    from tokenmargin.selection import angle, cosine

    problem = path.objective.problem
    solution, kind, selected = _compared(path)
    aligned = solution.is_optimal and problem.keys.norm(path.prompt) > 0
    flow_only = (
        {
            "stop": path.stop,
            "arc": float(path.arcs[-1]),
            "log_time": float(path.log_time[-1]),
            "log_gradient": path.log_gradient,
            "decided_by_rounding": path.decided_by_rounding,
            "finite_part": None if path.finite_part is None else path.finite_part.point,
            "selection_changes": [{"arc": c.arc, "before": c.before, "after": c.after} for c in path.crossings],
        }
        if isinstance(path, FlowPath)
        else {}
    )
    return {
        "final": path.final,
        "norm": float(problem.keys.norm(path.prompt)),
        "loss": float(path.objective.value(path.final)),
        "selected": selected,
        "saturation": float(path.saturation),
        "angle": float(angle(problem.keys, path.prompt, solution.vector)) if aligned else None,
        "cosine": float(cosine(problem.keys, path.prompt, solution.vector)) if aligned else None,
        "direction": {
            **kind,
            "status": solution.status,
            "vector": solution.vector if solution.is_optimal else None,
            "margin": solution.margin,
            "norm": solution.norm.name,
        },
        "steps": path.steps,
        "interrupted": path.interrupted,
        **flow_only,
    }


def print_report(report: dict[str, Any]) -> None:
    """The same for people."""
    import numpy as np

    direction = report["direction"]
    with np.printoptions(precision=6, suppress=True, threshold=12):
        print(f"final       {report['final']}")
        print(f"norm        {report['norm']:.6g} after {report['steps']} steps, loss {report['loss']:.6g}")
        if "stop" in report:
            print(f"flow        stopped by {report['stop']} at time exp({report['log_time']:.6g})")
            if report["finite_part"] is not None:
                print(f"            the limit is a direction and a finite part: {report['finite_part']}")
            if report["decided_by_rounding"]:
                print("            decided by rounding: the path was unstable (an axis of symmetry, say)")
        tokens = ", ".join("+".join(map(str, np.atleast_1d(token))) for token in report["selected"])
        print(f"selected    {tokens} (mean weight {report['saturation']:.6f})")
        if report["angle"] is None:
            print(f"direction   none to compare with: the selection is {direction['status']}")
        else:
            kind = "" if direction["kind"] is None else f"{direction['kind']}, "
            evidence = f"{direction['problem']}, {kind}certified, margin {direction['margin']:.6g}"
            print(f"direction   {direction['vector']} ({evidence})")
            if direction["norm"] != "l2":
                print(f"margin      {direction['share']:.6f} of the largest in the norm {direction['norm']}")
            print(f"angle       {report['angle']:.3e} rad (cosine {report['cosine']:.8f})")
