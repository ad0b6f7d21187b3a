"""`tokenmargin evolve`: train on a problem and compare where it went with the certified direction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from tokenmargin.cli._common import UsageError, emit_json, numbers, progress_bar, read_problem, show_facts, usage_errors
from tokenmargin.cli._kept_runs import load_run, problem_digest, save_run
from tokenmargin.plugins import OWN

if TYPE_CHECKING:
    from numpy import ndarray as Array
    from numpy.random import Generator

    from tokenmargin.dynamics import AbstractMethod, FlowPath, Memory, Trajectory
    from tokenmargin.margin import MarginSolution
    from tokenmargin.objective.attention import AbstractObjective

__all__ = ["evolve"]

KEPT_POINTS = 1000
_ATTENTION_HELP = (
    f"How logits become weights: {', '.join(OWN['attention_maps'])}; with a number, entmax=1.25 (its alpha), "
    "softmax=0.5 (its temperature), sigmoid=-2 (its bias); one that another package adds, or MODULE:OBJECT."
)
MEMORY = "memory_"  # what the method remembers stands in a kept run under such names
_LOSS_HELP = (
    f"The loss of the margin: {', '.join(OWN['losses'])}, one that another package adds, or MODULE:OBJECT. Default: "
    "logistic, which for several classes is the cross-entropy; real labels have the square loss."
)


def evolve(
    problem: str,
    /,
    *,
    method: str = "ngd",
    step: float | None = None,
    decay: float | None = None,
    batch: int | None = None,
    seed: int = 0,
    steps: int = 1000,
    until_norm: float = 1e8,
    start: str | None = None,
    train: Literal["prompt", "joint"] = "prompt",
    loss: Annotated[str | None, Parameter(help=_LOSS_HELP)] = None,
    head: str | None = None,
    attention: Annotated[str, Parameter(help=_ATTENTION_HELP)] = "softmax",
    save: Path | None = None,
    resume: Path | None = None,
    json: bool = False,
) -> int:
    """Train attention and name the direction it reached.

    The final direction is compared with the certified max-margin direction
    of the tokens it selects (for joint training, with the relaxed one).

    Examples:

        tokenmargin evolve fig1b --start 0,-1,0
        tokenmargin evolve problem.npz --method gd --steps 100000 --json
        tokenmargin evolve fig1b --method sign --step 0.3 --decay 0.5
        tokenmargin evolve fig1b --method mirror:1.5 --json
        tokenmargin evolve fig1c --method flow --until-norm 1e8 --json
        tokenmargin evolve fig1b --attention sparsemax
        tokenmargin evolve fig1b --steps 100000 --save run.npz    (Ctrl-C keeps what was reached)
        tokenmargin evolve fig1b --steps 100000 --resume run.npz

    Parameters
    ----------
    problem:
        A .npz or .json file, or the name of a figure, such as fig1c.
    method:
        Normalised gradient descent (ngd), gradient descent (gd), gradient flow followed by a stiff solver (flow);
        normalised with momentum (momentum), heavy-ball, nesterov, adam, adamw, polyak; sign, coordinate, and for a
        matrix spectral or muon; steepest:NORM, such as steepest:lp:1.5; mirror:P, such as mirror:1.5; a method that
        another package adds, or MODULE:CLASS.
    step:
        Step size; by default 0.1 for ngd, and for gd one over the smoothness of the risk (no more than L_p of (24)).
    decay:
        Divide step number t = 0, 1, ... by (t + 1)^DECAY: 0.5 for one over the root, 1 for one over t.
    batch:
        Go by the gradient of so many inputs, drawn afresh for every step.
    seed:
        Of the draws.
    steps:
        Number of steps of descent, counted from the beginning of a resumed run.
    until_norm:
        Length of the parameter at which the flow stops.
    start:
        First p, as numbers separated by commas (for joint training: v, then p). Default: zero, and the problem's head.
    train:
        The attention vector alone (prompt), or head and attention vector together (joint).
    head:
        A nonlinear head that another package adds, or MODULE:OBJECT, in place of the problem's own.
    save:
        Write the trajectory (about 1000 points of it) to this .npz file.
    resume:
        Go on from the end of the trajectory in this .npz file, and write the whole of it there.
    json:
        Write one JSON object to standard output.
    """
    import numpy as np

    data = read_problem(problem)
    file = resume if save is None else save
    if file is not None and file.suffix != ".npz":
        raise UsageError(f"a run is kept in a .npz file, got {file.name!r}")
    if resume is not None and start is not None:
        raise UsageError("a resumed run starts where it ended; leave out --start or --resume")
    settings = {"problem": problem_digest(data), "method": method, "step": step, "train": train}
    settings |= {"loss": "logistic" if loss is None else loss}
    settings |= {"head": head, "decay": decay, "batch": batch, "seed": None if batch is None else seed}
    settings |= {} if attention == "softmax" else {"attention": attention}
    before = {} if resume is None else load_run(resume, settings)
    with usage_errors():
        objective = _objective(data, train, loss, head)
        if attention != "softmax":
            objective = _with_attention(objective, attention)
        first = None if start is None else np.array(numbers(start, float, "--start"))
        first = before["point"][-1] if before else first
        path: Trajectory | FlowPath
        if method == "flow":
            if decay is not None or batch is not None:
                raise UsageError(
                    "gradient flow has no steps: leave out --decay and --batch, or choose a method of descent"
                )
            path, kept = _flow(objective, first, until_norm, keep=file is not None)
        else:
            rule, draws = _steps_by(method, step, decay), _Draws(batch, seed)
            path, kept = _descend(objective, rule, steps, first, draws, before, keep=file is not None)
    if file is not None:
        save_run(file, _joined(before, kept), settings)
    report = _report(path)
    if json:
        emit_json(report)
    else:
        _print(report)
    return 1 if path.interrupted else 0


class _Draws(NamedTuple):
    """How the inputs of a step are drawn."""

    batch: int | None
    seed: int

    def after(self, t: int, n: int) -> Generator | None:
        """The generator as it is after `t` steps."""
        import numpy as np

        if self.batch is None:
            return None
        rng = np.random.default_rng(self.seed)
        for _ in range(t if self.batch <= n else 0):
            rng.choice(n, size=self.batch, replace=False)
        return rng


def _descend(
    objective: AbstractObjective,
    method: AbstractMethod,
    steps: int,
    start: Array | None,
    draws: _Draws,
    before: dict[str, Array],
    *,
    keep: bool,
) -> tuple[Trajectory, dict[str, Array]]:
    from tokenmargin.dynamics import evolve as run

    memory = _remembered(before, len(objective.blocks))
    taken = 0 if memory is None else memory.t
    left = max(steps - taken, 0)
    with progress_bar(f"descent, {left} steps", left) as progress:
        path = run(
            objective,
            method,
            steps=left,
            start=start,
            keep=("point", "norm", "loss", "saturation") if keep else (),
            every=max(left // KEPT_POINTS, 1),
            batch=draws.batch,
            rng=draws.after(taken, objective.problem.n),
            memory=memory,
            progress=progress,
        )
    states = {
        f"{MEMORY}{k}_{name}": array for k, state in enumerate(path.memory.states) for name, array in state.items()
    }
    return path, {"at": path.at, **path.kept, **states}


def _remembered(before: dict[str, Array], blocks: int) -> Memory | None:
    """What a kept run remembers, to go on with."""
    from tokenmargin.dynamics import Memory

    if not before:
        return None
    states: list[dict[str, Array]] = [{} for _ in range(blocks)]
    for name, array in before.items():
        if name.startswith(MEMORY):
            block, _, called = name.removeprefix(MEMORY).partition("_")
            states[int(block)][called] = array
    return Memory(int(before["at"][-1]), tuple(states))


def _flow(
    objective: AbstractObjective, start: Array | None, until_norm: float, *, keep: bool
) -> tuple[FlowPath, dict[str, Array]]:
    import numpy as np

    from tokenmargin.dynamics import SelectionChanged, flow

    decades = max(np.log10(max(until_norm, 1e-300)), 1.0)
    with progress_bar(f"flow to norm {until_norm:g}", 100) as progress:
        path = flow(
            objective,
            start=start,
            until_norm=until_norm,
            events=(SelectionChanged(),),
            progress=lambda norm: progress(round(100 * min(max(np.log10(max(norm, 1e-300)) / decades, 0.0), 1.0))),
        )
    if not keep:
        return path, {}
    knots = np.unique(np.linspace(0, path.steps, KEPT_POINTS).astype(int))
    points = path(path.arcs[knots])
    return path, {
        "arc": path.arcs[knots],
        "log_time": path.log_time[knots],
        "point": points,
        "norm": objective.norms(points),
    }


def _joined(before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
    """A trajectory and its continuation, whose first point is the last of the other."""
    import numpy as np

    if not before:
        return after
    shifted = dict(after)
    for name in ("at", "arc"):
        if name in after:
            shifted[name] = after[name] + before[name][-1]
    if "log_time" in after:
        shifted["log_time"] = np.logaddexp(after["log_time"], before["log_time"][-1])
    return {
        name: array if name.startswith(MEMORY) else np.concatenate([before[name], array[1:]])
        for name, array in shifted.items()
    }


def _objective(problem: Any, train: str, loss: str | None, head: str | None) -> AbstractObjective:
    from tokenmargin.objective.attention import JointObjective
    from tokenmargin.objective.local_scores import prompt_objective
    from tokenmargin.objective.losses import loss_named
    from tokenmargin.objective.nonlinear_heads import HeadObjective, head_named
    from tokenmargin.problem.regression_problem import RegressionProblem

    if head is None and train == "prompt":
        own = loss is None and isinstance(problem, RegressionProblem)
        return prompt_objective(problem, None if own else loss_named(loss or "logistic"))
    loss = "logistic" if loss is None else loss
    if head is None:
        return JointObjective(problem, loss_named(loss))
    if train == "joint":
        raise UsageError("a nonlinear head is not trained: leave out --head or --train joint")
    return HeadObjective(problem, loss_named(loss), head=head_named(head))


def _with_attention(objective: AbstractObjective, attention: str) -> AbstractObjective:
    from tokenmargin.objective.attention import PromptObjective
    from tokenmargin.objective.attention_maps import MapObjective, attention_named

    if not isinstance(objective, PromptObjective):
        raise UsageError(
            "attention maps other than softmax are for p alone, labels -1 and +1 and the problem's own head; "
            "leave out --attention"
        )
    return MapObjective(objective.problem, objective.loss, attention=attention_named(attention))


def _steps_by(method: str, step: float | None, decay: float | None) -> AbstractMethod:
    from tokenmargin.dynamics import method_named
    from tokenmargin.plugins import names

    if ":" not in method and method not in names("methods"):
        known = ", ".join((*names("methods"), "flow"))
        raise UsageError(f"there is no method {method!r}; choose from {known}, or give MODULE:CLASS")
    return method_named(method, step, decay=decay or 0.0)


def _compared(path: Trajectory | FlowPath) -> tuple[MarginSolution, dict[str, str | None], Any]:
    """What the end of a path is compared with: a solution, which problem it solves, its kind, and its tokens."""
    from tokenmargin.dynamics import FlowPath
    from tokenmargin.limits.exact_weights import separating_direction
    from tokenmargin.margin import label_margin, limit_direction, max_margin, relaxed_max_margin, tied_direction
    from tokenmargin.objective.attention import JointObjective
    from tokenmargin.objective.attention_maps import MapObjective
    from tokenmargin.objective.nonlinear_heads import HeadObjective

    problem, selected = path.objective.local_problem(path.final), path.selected
    if isinstance(path.objective, MapObjective) and not path.objective.attention.shares:
        named = separating_direction(path.objective, path.prompt)
        return named.solution, {"problem": "separation", "kind": named.kind}, named.names
    if isinstance(path.objective, JointObjective) and label_margin(problem, selected).is_optimal:
        return relaxed_max_margin(problem, selected), {"problem": "relaxed", "kind": None}, selected
    if isinstance(path.objective, HeadObjective):  # its scores are not the problem's, which name the kinds
        return max_margin(problem, selected), {"problem": "att-svm", "kind": None}, selected
    named = limit_direction(problem, selected, loss=path.objective.loss)
    if isinstance(path, FlowPath) and path.finite_part is not None:
        named = tied_direction(problem, path.finite_part.tied)
    return named.solution, {"problem": "att-svm", "kind": named.kind}, named.names


def _report(path: Trajectory | FlowPath) -> dict[str, Any]:
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
        },
        "steps": path.steps,
        "interrupted": path.interrupted,
        "exact_weights": _exact_weights(path, solution),
        **flow_only,
    }


def _exact_weights(path: Trajectory | FlowPath, solution: MarginSolution) -> dict[str, float | None] | None:
    """For maps that give one token all the weight at a finite p, once every input has: how far ahead, and how long."""
    import numpy as np

    from tokenmargin.objective.attention_maps import MapObjective
    from tokenmargin.selection import margins

    objective = path.objective
    if not isinstance(objective, MapObjective) or not np.isfinite(objective.attention.margin):
        return None
    if not objective.has_exact_weights(path.final):
        return None
    ahead = margins(objective.problem, path.prompt, path.selected)
    ahead[np.arange(len(ahead)), path.selected] = np.inf
    shortest = objective.attention.margin / solution.margin if solution.is_optimal else None
    return {"ahead": float(ahead.min()), "needed": objective.attention.margin, "shortest_norm": shortest}


def _print(report: dict[str, Any]) -> None:
    import numpy as np

    from tokenmargin.problem.names import token_name

    direction, facts = report["direction"], []
    with np.printoptions(precision=6, suppress=True, threshold=12):
        facts += [("final", report["final"]), ("norm", f"{report['norm']:.6g} after {report['steps']} steps")]
        facts.append(("loss", f"{report['loss']:.6g}"))
        if "stop" in report:
            facts.append(("flow", f"stopped by {report['stop']} at time exp({report['log_time']:.6g})"))
            if report["finite_part"] is not None:
                facts.append(("", f"the limit is a direction and a finite part: {report['finite_part']}"))
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
        if report["angle"] is None:
            facts.append(("direction", f"none to compare with: the selection is {direction['status']}"))
        else:
            kind = "" if direction["kind"] is None else f"{direction['kind']}, "
            evidence = f"{direction['problem']}, {kind}certified, margin {direction['margin']:.6g}"
            facts.append(("direction", f"{direction['vector']} ({evidence})"))
            facts.append(("angle", f"{report['angle']:.3e} rad (cosine {report['cosine']:.8f})"))
        show_facts((name, str(value)) for name, value in facts)
