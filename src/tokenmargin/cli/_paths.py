"""Paths of training on the command line: the report of one, and runs kept in a file (`--save`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import UsageError, print_facts, print_message, vector_text

if TYPE_CHECKING:
    from numpy import ndarray as Array

    from tokenmargin.dynamics import FlowPath, Trajectory
    from tokenmargin.margin import MarginSolution
    from tokenmargin.problem.abstract_geometry import AbstractGeometry
    from tokenmargin.problem.token_problem import TokenProblem


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

    from tokenmargin.problem.names import token_name

    direction, facts = report["direction"], []
    with np.printoptions(precision=6, suppress=True, threshold=12):
        facts += [
            ("final", vector_text(report["final"], keys)),
            ("norm", f"{report['norm']:.6g} after {report['steps']} steps"),
        ]
        facts.append(("loss", f"{report['loss']:.6g}"))
        if "stop" in report:
            when = f"exp({report['log_time']:.6g})" if np.isfinite(report["log_time"]) else "0"
            facts.append(("flow", f"stopped by {report['stop']} at time {when}"))
            if report["unfinished"]:
                facts.append(("", report["unfinished"]))
            if report["finite_part"] is not None:
                held = "the limit is a direction and a finite part"
                if report["stop"] != "norm" or not report["finite_part_curvature"] > 0:
                    held = "followed as a direction and a finite part, which is not settled"
                facts.append(("", f"{held}: {report['finite_part']}"))
            if report["decided_by_rounding"]:
                facts.append(("", "decided by rounding: the path was unstable (an axis of symmetry, say)"))
        sets = [np.atleast_1d(tokens).tolist() for tokens in report["selected"]]
        tokens = " ".join("+".join(token_name(i, t) for t in row) for i, row in enumerate(sets))
        facts.append(("selected", f"{tokens} (mean weight {report['saturation']:.6f})"))
        if (exact := report["exact_weights"]) is not None:
            shortest = exact["shortest_norm"]
            can = "" if shortest is None else f"; |p| = {shortest:.6g} can do"
            facts.append(
                ("exact", f"one weight per input: ahead by {exact['ahead']:.6g}, {exact['needed']:g} needed{can}")
            )
        if report.get("stop") == "stationary" and report["exact_weights"] is None:
            facts.append(("direction", "none: p is at rest, at a stationary point"))
        elif report["angle"] is None:
            optimal = direction["status"] == "optimal"
            why = (
                "every p selects these tokens"
                if optimal and not np.any(direction["vector"])
                else ("p is zero" if optimal else f"the selection is {direction['status']}")
            )
            facts.append(("direction", f"none to compare with: {why}"))
        else:
            kind = "" if direction["kind"] is None else f"{direction['kind']}, "
            evidence = f"{direction['problem']}, {kind}certified, margin {direction['margin']:.6g}"
            facts.append(("direction", f"{vector_text(direction['vector'], keys)} ({evidence})"))
            if direction["norm"] != "l2" and direction["share"] is not None:
                facts.append(("margin", f"{direction['share']:.6f} of the largest in the norm {direction['norm']}"))
            facts.append(("angle", f"{report['angle']:.3e} rad (cosine {report['cosine']:.8f})"))
        print_facts((name, str(value)) for name, value in facts)


LARGEST = 4 << 30  # bytes of a run in memory: a small file cannot ask for more
MEMORY = "memory_"  # what the method remembers stands in a kept run under such names
Settings = Mapping[str, str | int | float | None]


def problem_digest(problem: TokenProblem) -> str:
    """A name for the content of a problem."""
    from tokenmargin._files import arrays_digest

    return arrays_digest(problem.fields())[:16]


def run_file(save: Path | None, resume: Path | None) -> Path | None:
    """Where a run is kept: the file of `--save`, or that of `--resume`."""
    file = resume if save is None else save
    if file is not None and file.suffix != ".npz":
        raise UsageError(f"a run is kept in a .npz file, got {file.name!r}")
    return file


def save_run(path: Path, arrays: Mapping[str, Array], settings: Settings) -> None:
    """Write arrays and settings as a `.npz` file, whole or not at all."""
    import numpy as np

    from tokenmargin._files import arrays_digest, seal_record, write_arrays

    record = json.dumps(seal_record({**settings, "sha256": arrays_digest(arrays)}))
    write_arrays(path, {**arrays, "settings": np.array(record)})
    print_message(f"wrote {path}")


def load_run(path: Path, settings: Settings) -> dict[str, Array]:
    """The arrays of a kept run, refused when it was another problem's or made with other settings."""
    from tokenmargin._files import arrays_digest, open_sealed, read_arrays

    if not path.is_file():
        raise UsageError(f"{path}: no such file; --resume goes on with a run that was kept with --save")
    try:
        arrays = read_arrays(path, largest=LARGEST)
        kept = open_sealed(json.loads(str(arrays.pop("settings"))))
        if kept["sha256"] != arrays_digest(arrays):
            raise ValueError("its checksum differs")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: not a run kept with --save, or damaged ({error})") from error
    for name, ours in settings.items():
        if kept.get(name) != ours:
            raise UsageError(
                f"{path} is a run with {name} = {kept.get(name)!r}, not {ours!r}; give the same, or start anew"
            )
    return arrays
