"""`tokenmargin evolve`: train on a problem and compare where it went with the certified direction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from cyclopts import Parameter

from tokenmargin.cli._common import (
    Json,
    Problem,
    Seed,
    UsageError,
    emit_json,
    end_code,
    parse_numbers,
    progress_bar,
    read_problem,
    share_bar,
    usage_errors,
)
from tokenmargin.cli._kept_runs import MEMORY, load_run, problem_digest, run_file, save_run
from tokenmargin.cli._path_report import path_report, print_report
from tokenmargin.plugins import OWN

if TYPE_CHECKING:
    from numpy import ndarray as Array
    from numpy.random import Generator

    from tokenmargin.dynamics import AbstractMethod, FlowPath, Memory, Trajectory
    from tokenmargin.limits.rates import Rates
    from tokenmargin.objective.attention import AbstractObjective

KEPT_POINTS = 1000
_ATTENTION_HELP = (
    f"How logits become weights: {', '.join(OWN['attention_maps'])}; with a number, entmax=1.25 (its alpha), "
    "softmax=0.5 (its temperature), sigmoid=-2 (its bias); one that another package adds, or MODULE:OBJECT."
)
_LOSS_HELP = (
    f"The loss of the margin: {', '.join(OWN['losses'])}, one that another package adds, or MODULE:OBJECT. Default: "
    "logistic, which for several classes is the cross-entropy; real labels have the square loss."
)


def evolve(
    problem: Problem,
    /,
    *,
    method: str = "ngd",
    step: float | None = None,
    decay: float | None = None,
    batch: int | None = None,
    seed: Seed = 0,
    steps: int = 1000,
    until_norm: float | None = None,
    start: str | None = None,
    train: Literal["prompt", "joint"] = "prompt",
    loss: Annotated[str | None, Parameter(help=_LOSS_HELP)] = None,
    head: str | None = None,
    attention: Annotated[str, Parameter(help=_ATTENTION_HELP)] = "softmax",
    save: Path | None = None,
    resume: Path | None = None,
    rates: bool = False,
    json: Json = False,
) -> int:
    """Train attention and name the direction it reached.

    The final direction is compared with the certified max-margin direction
    of the tokens it selects (for joint training, with the relaxed one).

    Examples:

        tokenmargin evolve fig1b --start 0,-1,0
        tokenmargin evolve problem.npz --method gd --steps 100000 --json
        tokenmargin evolve fig1b --method sign --step 0.3 --decay 0.5
        tokenmargin evolve fig1b --method mirror:1.5 --json
        tokenmargin evolve fig1c --method flow --until-norm 1e8 --rates
        tokenmargin evolve fig1b --attention sparsemax
        tokenmargin evolve fig1b --steps 100000 --save run.npz    (Ctrl-C keeps what was reached)
        tokenmargin evolve fig1b --steps 100000 --resume run.npz

    Parameters
    ----------
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
        Length of the parameter at which the flow stops; 1e8 by default, for very long or short keys over their length.
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
    rates:
        Also fit how fast the norm grows, the angle falls and softmax sparsifies, beside what the theory says.
    """
    import numpy as np

    data = read_problem(problem)
    file = run_file(save, resume)
    if resume is not None and start is not None:
        raise UsageError("a resumed run starts where it ended; leave out --start or --resume")
    settings = {"problem": problem_digest(data), "method": method, "step": step, "train": train}
    settings |= {"loss": "logistic" if loss is None else loss}
    settings |= {"head": head, "decay": decay, "batch": batch, "seed": None if batch is None else seed}
    settings |= {} if attention == "softmax" else {"attention": attention}
    before = {} if resume is None else load_run(resume, settings)
    with usage_errors():
        objective = _objective_named(data, train, loss, head, attention)
        first = None if start is None else np.array(parse_numbers(start, float, "--start"))
        first = before["point"][-1] if before else first
        path: Trajectory | FlowPath
        if method == "flow":
            if decay is not None or batch is not None:
                raise UsageError("gradient flow has no steps: leave out --decay and --batch, or choose another method")
            path, kept = _follow_flow(objective, first, until_norm, keep=file is not None)
        else:
            rule, draws = _method_with_step(method, step, decay), _BatchDraws(batch, seed)
            path, kept = _follow_descent(objective, rule, steps, first, draws, before, keep=file is not None or rates)
    if file is not None:
        save_run(file, _append_run(before, kept), settings)
    report = path_report(path)
    speeds = _fit_rates(path) if rates else None
    if json:
        emit_json(report if speeds is None else {**report, "rates": speeds.to_dict()})
    else:
        print_report(report, path.objective.problem.keys)
        if speeds is not None:
            print(speeds)
    return end_code(interrupted=path.interrupted)


def _fit_rates(path: Trajectory | FlowPath) -> Rates:
    from tokenmargin.limits.rates import rates

    with usage_errors():
        return rates(path)


class _BatchDraws(NamedTuple):
    """How the inputs of a step are drawn."""

    batch: int | None
    seed: int

    def generator_after(self, t: int, n: int) -> Generator | None:
        """The generator in the state that it has after `t` steps."""
        import numpy as np

        if self.batch is None:
            return None
        rng = np.random.default_rng(self.seed)
        for _ in range(t if self.batch <= n else 0):
            rng.choice(n, size=self.batch, replace=False)
        return rng


def _follow_descent(
    objective: AbstractObjective,
    method: AbstractMethod,
    steps: int,
    start: Array | None,
    draws: _BatchDraws,
    before: dict[str, Array],
    *,
    keep: bool,
) -> tuple[Trajectory, dict[str, Array]]:
    import numpy as np

    from tokenmargin.dynamics import evolve as run

    if steps < 0:
        raise ValueError(f"--steps must be at least 0, got {steps}")
    memory = _memory_of(before, len(objective.blocks))
    taken = 0 if memory is None else memory.t
    left = max(steps - taken, 0)
    with progress_bar(f"descent, {left} steps", left) as progress, np.errstate(over="ignore", invalid="ignore"):
        path = run(
            objective,
            method,
            steps=left,
            start=start,
            keep=("point", "norm", "loss", "saturation") if keep else (),
            every=max(left // KEPT_POINTS, 1),
            batch=draws.batch,
            rng=draws.generator_after(taken, objective.problem.n),
            memory=memory,
            progress=progress,
        )
    states = {
        f"{MEMORY}{k}_{name}": array for k, state in enumerate(path.memory.states) for name, array in state.items()
    }
    return path, {"at": path.at, **path.kept, **states}


def _memory_of(before: dict[str, Array], blocks: int) -> Memory | None:
    """What the method remembers at the end of a kept run (momentum, say), to continue it."""
    from tokenmargin.dynamics import Memory

    if not before:
        return None
    states: list[dict[str, Array]] = [{} for _ in range(blocks)]
    for name, array in before.items():
        if name.startswith(MEMORY):
            block, _, called = name.removeprefix(MEMORY).partition("_")
            states[int(block)][called] = array
    return Memory(int(before["at"][-1]), tuple(states))


def _follow_flow(
    objective: AbstractObjective, start: Array | None, until_norm: float | None, *, keep: bool
) -> tuple[FlowPath, dict[str, Array]]:
    import numpy as np

    from tokenmargin.dynamics import SelectionChanged, flow

    decades = max(np.log10(max(until_norm or 1e8, 1e-300)), 1.0)
    with share_bar("flow" if until_norm is None else f"flow to norm {until_norm:g}") as progress:
        path = flow(
            objective,
            start=start,
            until_norm=until_norm,
            events=(SelectionChanged(),),
            progress=lambda norm: progress(np.log10(max(norm, 1e-300)) / decades),
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


def _append_run(before: dict[str, Array], after: dict[str, Array]) -> dict[str, Array]:
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


def _objective_named(problem: Any, train: str, loss: str | None, head: str | None, attention: str) -> AbstractObjective:
    from tokenmargin.objective.attention import JointObjective, PromptObjective
    from tokenmargin.objective.attention_maps import MapObjective, attention_named
    from tokenmargin.objective.local_scores import HeadObjective, head_named, prompt_objective
    from tokenmargin.objective.losses import loss_named
    from tokenmargin.problem.label_problems import RegressionProblem

    if head is not None and train == "joint":
        raise UsageError("a nonlinear head is not trained: leave out --head or --train joint")
    objective: AbstractObjective
    if head is not None:
        objective = HeadObjective(problem, loss_named(loss or "logistic"), head=head_named(head))
    elif train == "joint":
        objective = JointObjective(problem, loss_named(loss or "logistic"))
    else:
        own = loss is None and isinstance(problem, RegressionProblem)
        objective = prompt_objective(problem, None if own else loss_named(loss or "logistic"))
    if attention == "softmax":
        return objective
    if not isinstance(objective, PromptObjective):
        raise UsageError(
            "attention maps other than softmax are for p alone, labels -1 and +1 and the problem's own head; "
            "leave out --attention"
        )
    return MapObjective(objective.problem, objective.loss, attention=attention_named(attention))


def _method_with_step(method: str, step: float | None, decay: float | None) -> AbstractMethod:
    from tokenmargin.dynamics import method_named
    from tokenmargin.plugins import names

    if ":" not in method and method not in names("methods"):
        known = ", ".join((*names("methods"), "flow"))
        raise UsageError(f"there is no method {method!r}; choose from {known}, or give MODULE:CLASS")
    return method_named(method, step, decay=decay or 0.0)
