"""The report of a path of training, as plain values and as people read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import print_facts, vector_text

if TYPE_CHECKING:
    from tokenmargin.dynamics import FlowPath, Trajectory
    from tokenmargin.margin import MarginSolution
    from tokenmargin.problem.abstract_geometry import AbstractGeometry


def _compared_direction(path: Trajectory | FlowPath) -> tuple[MarginSolution, dict[str, str | float | None], Any]:
    """What the end of a path is compared with: a max-margin solution, its kind, and its tokens."""
    import numpy as np

    from tokenmargin.dynamics import FlowPath
    from tokenmargin.limits.by_method import margin_share, separating_direction
    from tokenmargin.limits.limit import direction_of_flow
    from tokenmargin.margin import label_margin, limit_direction, max_margin, relaxed_max_margin
    from tokenmargin.objective.attention import JointObjective
    from tokenmargin.objective.attention_maps import MapObjective
    from tokenmargin.objective.local_scores import HeadObjective

    problem, selected = path.objective.local_problem(path.final), path.selected
    if isinstance(path.objective, MapObjective) and not path.objective.attention.shares:
        named = separating_direction(path.objective, path.prompt)
        return named.solution, {"problem": "separation", "kind": named.kind, "share": None}, named.names
    if isinstance(path.objective, JointObjective) and label_margin(problem, selected).is_optimal:
        return relaxed_max_margin(problem, selected), {"problem": "relaxed", "kind": None, "share": None}, selected
    if isinstance(path.objective, HeadObjective):  # its scores are not the problem's, which name the kinds
        return max_margin(problem, selected), {"problem": "att-svm", "kind": None, "share": None}, selected
    named = (
        direction_of_flow(path)
        if isinstance(path, FlowPath)
        else limit_direction(problem, selected, loss=path.objective.loss, norm=path.method.margin_norm)
    )
    share = margin_share(problem, path.prompt, named)
    found = {"problem": "att-svm", "kind": named.kind, "share": None if np.isnan(share) else share}
    return named.solution, found, named.names


def path_report(path: Trajectory | FlowPath) -> dict[str, Any]:
    """The report of a path as plain values."""
    from tokenmargin.dynamics import FlowPath
    from tokenmargin.selection import angle, cosine

    problem = path.objective.problem
    solution, kind, selected = _compared_direction(path)
    aligned = solution.is_optimal and bool(solution.vector.any()) and problem.keys.norm(path.prompt) > 0
    flow_only = (
        {
            "stop": path.stop,
            "unfinished": path.unfinished,
            "arc": float(path.arcs[-1]),
            "log_time": float(path.log_time[-1]),
            "log_gradient": path.log_gradient,
            "decided_by_rounding": path.decided_by_rounding,
            "finite_part": None if path.finite_part is None else path.finite_part.point,
            "finite_part_curvature": None if path.finite_part is None else path.finite_part.curvature,
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
        "selected_weight": _weight_of(path, selected),
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
        "exact_weights": _exact_weights(path, solution),
        **flow_only,
    }


def _weight_of(path: Trajectory | FlowPath, selected: Any) -> float:
    """The weight of the tokens that are named, all of an input together, in the mean over the inputs.

    Where weights are no shares (sigmoid), it is that of each by itself.
    """
    import numpy as np

    from tokenmargin.objective.attention_maps import MapObjective

    named = [
        row[np.atleast_1d(tokens)] for row, tokens in zip(path.objective.weights(path.final), selected, strict=True)
    ]
    if isinstance(path.objective, MapObjective) and not path.objective.attention.shares:
        return float(np.concatenate(named).mean())
    return float(np.mean([row.sum() for row in named]))


def _exact_weights(path: Trajectory | FlowPath, solution: MarginSolution) -> dict[str, float | None] | None:
    """For maps that give one token all the weight at a finite p: by how much it is ahead, and the p that it takes."""
    from math import isfinite

    from tokenmargin.limits.by_method import exact_weights
    from tokenmargin.objective.attention_maps import MapObjective

    objective = path.objective
    if not isinstance(objective, MapObjective) or not isfinite(objective.attention.margin):
        return None
    if not objective.has_exact_weights(path.final):
        return None
    return exact_weights(objective, path.prompt, solution)._asdict()


def print_report(report: dict[str, Any], keys: AbstractGeometry) -> None:
    """Print the report of a path in a problem with these keys."""
    import numpy as np

    with np.printoptions(precision=6, suppress=True, threshold=12):
        facts = [
            ("final", vector_text(report["final"], keys)),
            ("norm", f"{report['norm']:.6g} after {report['steps']} steps"),
            ("loss", f"{report['loss']:.6g}"),
            *(_flow_facts(report) if "stop" in report else []),
            ("selected", f"{_selected_text(report['selected'])} (mean weight {report['selected_weight']:.6f})"),
        ]
        if (exact := report["exact_weights"]) is not None:
            shortest = exact["shortest_norm"]
            can = "" if shortest is None else f"; |p| = {shortest:.6g} can do"
            told = f"one weight per input: ahead by {exact['ahead']:.6g}, {exact['needed']:g} needed{can}"
            facts.append(("exact", told))
        print_facts(facts + _direction_facts(report, keys))


def _flow_facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Why the gradient flow stopped, and what of its end is not settled."""
    from math import isfinite

    when = f"exp({report['log_time']:.6g})" if isfinite(report["log_time"]) else "0"
    facts = [("flow", f"stopped by {report['stop']} at time {when}")]
    if report["unfinished"]:
        facts.append(("", str(report["unfinished"])))
    if report["finite_part"] is not None:
        held = "the limit is a direction and a finite part"
        if report["stop"] != "norm" or not report["finite_part_curvature"] > 0:
            held = "followed as a direction and a finite part, which is not settled"
        facts.append(("", f"{held}: {report['finite_part']}"))
    if report["decided_by_rounding"]:
        facts.append(("", "decided by rounding: the path was unstable (an axis of symmetry, say)"))
    return facts


def _selected_text(selected: Any) -> str:
    """The selected tokens of each input, several of one input joined by `+`."""
    import numpy as np

    from tokenmargin.problem.names import token_name

    sets = [np.atleast_1d(tokens).tolist() for tokens in selected]
    return " ".join("+".join(token_name(i, t) for t in tokens) for i, tokens in enumerate(sets))


def _direction_facts(report: dict[str, Any], keys: AbstractGeometry) -> list[tuple[str, str]]:
    """The direction that the path is compared with, and how far from it the path ends; or why there is none."""
    direction = report["direction"]
    if report.get("stop") == "stationary" and report["exact_weights"] is None:
        return [("direction", "none: p is at rest, at a stationary point")]
    if report["angle"] is None:
        why = f"the selection is {direction['status']}"
        if direction["status"] == "optimal":
            why = "p is zero" if direction["vector"].any() else "every p selects these tokens"
        return [("direction", f"none to compare with: {why}")]
    kind = "" if direction["kind"] is None else f"{direction['kind']}, "
    evidence = f"{direction['problem']}, {kind}certified, margin {direction['margin']:.6g}"
    facts = [("direction", f"{vector_text(direction['vector'], keys)} ({evidence})")]
    if direction["norm"] != "l2" and direction["share"] is not None:
        facts.append(("margin", f"{direction['share']:.6f} of the largest in the norm {direction['norm']}"))
    return [*facts, ("angle", f"{report['angle']:.3e} rad (cosine {report['cosine']:.8f})")]
