"""The picture of a problem in the plane: limits, basins, paths and weights, each asked of the library."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.dynamics.batch_state import BatchState, Tokens
from tokenmargin.dynamics.evolve import evolve
from tokenmargin.dynamics.flow import flow
from tokenmargin.dynamics.integrate import FlowSettings
from tokenmargin.dynamics.methods import AbstractMethod, GradientDescent, NormalizedGradientDescent
from tokenmargin.margin import Atlas, LimitDirection, label_margin, plane_atlas, relaxed_max_margin, selection_arcs
from tokenmargin.objective.attention import JointObjective, PromptObjective
from tokenmargin.objective.losses import AbstractLoss, loss_named
from tokenmargin.problem.abstract_geometry import AbstractGeometry
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.report.playground.answers import answer_about
from tokenmargin.report.playground.schema import PlaneRequest
from tokenmargin.report.playground.words import note
from tokenmargin.selection import angle, attention_weights, optimal_tokens

FINE_STARTS, DRAFT_STARTS = 120, 36
DRAWN = 12  # starts whose paths are drawn
FINE_FRAMES, DRAFT_FRAMES = 80, 30  # points kept along a path; a draft takes no more steps than that
DRAFT_SECONDS = 0.012  # for the runs of a draft: their steps end when it is spent
FINE_SECONDS = 2.0
FLOWS, FLOW_NORM = 6, 20.0


@dataclass(frozen=True, eq=False)
class Runs:
    """Training from many starts; the last one is the start that was asked for.

    - `points`: (frames, starts, 2). `weights`: of the last start, (frames, n, T). `at`: the steps of the frames.
    - `selected`: token of largest weight at the end, (starts, n).
    """

    points: Float[Array, "frames starts 2"]
    weights: Float[Array, "frames n T"]
    at: Int[Array, " frames"]
    selected: Int[Array, "starts n"]


def picture(request: PlaneRequest) -> dict[str, Any]:
    """Everything the page draws, in plain types."""
    began = time.perf_counter()
    problem = request.problem()
    found = plane_atlas(problem, loss=_loss(request))
    starts = _starts(request)
    runs = _descend(problem, request, starts)
    basins = _basins(found, runs.selected)
    best = optimal_tokens(problem).argmax(axis=1)
    asked = answer_about(problem, best.tolist() if request.asked is None else request.asked)
    answer: dict[str, Any] = {
        "limits": [_limit(problem, limit) for limit in found.limits],
        "selections": {"all": found.selections, "feasible": found.feasible, "undecided": len(found.undecided)},
        "arcs": [
            {"start": arc.start, "stop": arc.stop, "selected": arc.selected.tolist()} for arc in selection_arcs(problem)
        ],
        "ring": basins[:-1].tolist(),
        "ring_norm": request.ring_norm,
        "paths": _drawn_paths(runs, basins),
        "training": {
            "basin": int(basins[-1]),
            "selected": runs.selected[-1].tolist(),
            "points": _rounded(runs.points[:, -1]),
            "weights": _rounded(runs.weights),
            "at": runs.at.tolist(),
        },
        "optimal": optimal_tokens(problem).tolist(),
        "asked": asked,
    }
    if request.trained == "both":
        # The ring and the paths around it are of the prompt alone, under scores that stay: not of this training.
        both = _both(problem, request, best, deadline=began + FINE_SECONDS)
        answer |= {"both": both, "ring": [-1] * len(answer["ring"]), "paths": []}
    elif request.method == "flow" and not request.draft:
        _follow_flow(answer, problem, request, found, deadline=began + FINE_SECONDS)
    answer["note"] = note(problem, request, answer)
    answer["milliseconds"] = round(1e3 * (time.perf_counter() - began), 2)
    return answer


def _starts(request: PlaneRequest) -> Float[Array, "starts 2"]:
    count = DRAFT_STARTS if request.draft else FINE_STARTS
    turn = 2 * np.pi * np.arange(count) / count
    circle = request.ring_norm * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    return np.vstack([circle, request.start])


def _loss(request: PlaneRequest) -> AbstractLoss:
    return loss_named(request.loss)


def _method(request: PlaneRequest) -> tuple[AbstractMethod, int]:
    """The rule of a step and how many to take. Normalised descent keeps to the path of the flow, and colours its ring.

    A draft goes as far in fewer, longer normalised steps; plain descent, which may not survive a longer step, goes less
    far.
    """
    steps = min(request.steps, DRAFT_FRAMES) if request.draft else request.steps
    if request.method == "descent":
        return GradientDescent(request.step), steps
    return NormalizedGradientDescent(request.step * request.steps / steps), steps


def _descend(problem: TokenProblem, request: PlaneRequest, starts: Float[Array, "starts 2"]) -> Runs:
    """All runs at once, to their last step or to the end of the time they are given."""
    assert isinstance(problem.keys, Coordinates)
    loss, (method, steps) = _loss(request), _method(request)
    tokens = Tokens.of(problem.keys.laid_out.reshape(1, -1, 2), problem.shared_scores[None])
    logits = np.ascontiguousarray(np.moveaxis(problem.keys.logits(starts), 0, -1))
    lanes = BatchState(tokens, loss, logits, np.zeros_like(logits), np.zeros(len(starts), int))
    every = max(steps // FINE_FRAMES, 1)
    deadline = time.perf_counter() + (DRAFT_SECONDS if request.draft else FINE_SECONDS)
    points, at = [starts], [0]
    for step in range(1, steps + 1):
        lanes.advance((method,))
        if step % every == 0 or step == steps:
            points.append(starts + problem.keys.pullback(np.moveaxis(lanes.weights, -1, 0)))
            at.append(step * request.steps // steps)
            if time.perf_counter() > deadline:
                break
    kept = np.stack(points)
    return Runs(kept, attention_weights(problem.keys, kept[:, -1]), np.array(at), lanes.selected)


def _basins(found: Atlas, selected: Int[Array, "starts n"]) -> Int[Array, " starts"]:
    """The limit whose tokens each run has selected; -1 where it is that of no limit, or not yet."""
    basins = np.full(len(selected), -1)
    for number, limit in enumerate(found.limits):
        basins[limit.chosen[np.arange(selected.shape[1]), selected].all(axis=1)] = number
    return basins


def _drawn_paths(runs: Runs, basins: Int[Array, " starts"]) -> list[dict[str, Any]]:
    apart = (len(basins) - 1) // DRAWN
    return [{"basin": int(basins[j]), "points": _rounded(runs.points[:, j])} for j in range(0, len(basins) - 1, apart)]


def _limit(problem: TokenProblem, limit: LimitDirection) -> dict[str, Any]:
    """A limit with its unit vector, and the level of each selected token along it: its bands end there.

    `selected` is one token of each input, to ask about; `chosen` are all of them, as (input, token).
    """
    unit = limit.solution.vector * limit.solution.margin
    levels = problem.keys.logits(unit)[np.arange(problem.n), limit.selected]
    tokens = {"selected": limit.selected.tolist(), "chosen": np.argwhere(limit.chosen).tolist()}
    return limit.to_dict() | tokens | {"unit": unit.tolist(), "levels": levels.tolist()}


def _follow_flow(
    answer: dict[str, Any], problem: TokenProblem, request: PlaneRequest, found: Atlas, *, deadline: float
) -> None:
    """Replace the drawn paths by gradient flow, as many as the time allows, that of the asked start first."""
    objective = PromptObjective(problem, _loss(request))
    turn = 2 * np.pi * np.arange(FLOWS) / FLOWS
    starts = [np.array(request.start), *(request.ring_norm * np.stack([np.cos(turn), np.sin(turn)], axis=1))]
    reach = max(FLOW_NORM, 4 * request.ring_norm)
    traced: list[tuple[Array, int]] = []
    for start in starts:
        settings = FlowSettings(tolerance=1e-5, max_steps=2000)
        path = flow(objective, start=start, until_norm=reach, settings=settings, progress=_interrupt(deadline))
        points = path(np.linspace(0.0, path.arcs[-1], FINE_FRAMES))
        traced.append((points, int(_basins(found, path.selected[None])[0])))
        if time.perf_counter() > deadline:
            break
    points, basin = traced[0]
    answer["training"] |= {
        "basin": basin,
        "points": _rounded(points),
        "weights": _rounded(attention_weights(problem.keys, points)),
        "at": list(range(len(points))),
    }
    answer["paths"] = [{"basin": basin, "points": _rounded(points)} for points, basin in traced[1:]]


def _interrupt(deadline: float) -> Callable[[float], None]:
    """A progress callback that ends a run, as Ctrl-C does, when its time is up."""

    def check(_: float) -> None:
        if time.perf_counter() > deadline:
            raise KeyboardInterrupt

    return check


def _both(problem: TokenProblem, request: PlaneRequest, best: Int[Array, " n"], *, deadline: float) -> dict[str, Any]:
    """Head and prompt trained together, and the directions of Theorems 5 and 6 for the tokens of highest score."""
    head = label_margin(problem, best)
    separable = head.is_optimal
    relaxed = relaxed_max_margin(problem, best) if separable else None
    keys = problem.keys
    joint = TokenProblem(keys, problem.labels, head=np.array(request.head))
    method, steps = _method(request)
    every = max(steps // FINE_FRAMES, 1)
    start = np.concatenate([request.head, request.start])
    path = evolve(
        JointObjective(joint, _loss(request)),
        method,
        steps=steps,
        start=start,
        keep=("point",),
        every=every,
        progress=_interrupt(deadline),
    )
    points = path["point"]
    return {
        "separable": separable,
        "head": _direction(head.vector) if separable else None,
        "relaxed": _direction(relaxed.vector) if relaxed is not None and relaxed.is_optimal else None,
        "head_path": _rounded(points[:, :2]),
        "prompt_path": _rounded(points[:, 2:]),
        "weights": _rounded(attention_weights(keys, points[:, 2:])),
        "at": (path.at * request.steps // steps).tolist(),
        "selected": path.selected.tolist(),
        "best": best.tolist(),
        "steps": int(path.at[-1]) * request.steps // steps,
        "head_degrees": _degrees(keys, points[:, :2], head.vector) if separable else None,
        "prompt_degrees": _degrees(keys, points[:, 2:], relaxed.vector)
        if relaxed is not None and relaxed.is_optimal
        else None,
    }


def _degrees(
    keys: AbstractGeometry, points: Float[Array, "frames 2"], direction: Float[Array, " D"]
) -> list[float] | None:
    """Angle of a path to a direction, half-way and at its end: is it there, and is it still coming nearer?"""
    if not np.linalg.norm(direction) > 0:
        return None
    kept = points[[len(points) // 2, -1]]
    return np.degrees([angle(keys, point, direction) for point in kept]).round(2).tolist()


def _direction(vector: Float[Array, " D"]) -> list[float] | None:
    length = float(np.linalg.norm(vector))
    return (vector / length).tolist() if length > 0 else None


def _rounded(array: Float[Array, "..."]) -> list[Any]:
    """Five decimals: beyond what a screen shows."""
    return array.round(5).tolist()
