"""`tokenmargin basins`: which share of the starts goes to which limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import (
    Json,
    Problem,
    Seed,
    UsageError,
    check_picture,
    emit_json,
    end_code,
    needs_extra,
    print_message,
    print_table,
    read_problem,
    share_bar,
    usage_errors,
)
from tokenmargin.cli._kept_runs import MEMORY, Settings, load_run, problem_digest, run_file, save_run

if TYPE_CHECKING:
    from numpy import ndarray as Array

    from tokenmargin.dynamics import AbstractMethod
    from tokenmargin.limits.shares import Basins
    from tokenmargin.problem.token_problem import TokenProblem


def basins(
    problem: Problem,
    /,
    *,
    starts: int = 1000,
    radius: float = 3.0,
    method: str = "ngd",
    step: float | None = None,
    steps: int = 10_000,
    seed: Seed = 0,
    picture: Path | None = None,
    extent: float = 4.0,
    resolution: int = 101,
    save: Path | None = None,
    resume: Path | None = None,
    json: Json = False,
) -> int:
    """Run many starts and count how many go to each certified direction.

    A run ends when gradient flow from where it stands is proven to converge
    (for methods of other norms: when softmax saturates).

    Tokens that are selected together, copies of one key, are joined by a plus.

    Examples:

        tokenmargin basins fig8
        tokenmargin basins fig8 --picture basins.png --json
        tokenmargin basins fig8 --method sign --step 0.03
        tokenmargin basins problem.npz --starts 100000 --save starts.npz    (Ctrl-C keeps what was reached)
        tokenmargin basins problem.npz --starts 100000 --resume starts.npz

    Parameters
    ----------
    starts:
        Number of random starts, uniform on the sphere in the span of the tokens.
    radius:
        Length of the starts.
    method:
        Method of descent, as in `tokenmargin evolve`; the directions are those of its own norm.
    step:
        Its step size; 0.1 for normalised descent (ngd).
    steps:
        Limit on the steps of a run; what is not settled by then is followed by gradient flow.
    seed:
        Of the random starts.
    picture:
        Also draw a map of the basins in the plane of the first two coordinates, into this .png, .svg or .pdf file.
    extent:
        The map covers -extent to extent on both axes.
    resolution:
        Points of the map along each axis.
    save:
        Write starts, ends, steps taken and basin of every run to this .npz file.
    resume:
        Go on with the runs in this .npz file, and write them there.
    """
    from tokenmargin.dynamics import method_named

    data = read_problem(problem)
    file = run_file(save, resume)
    check_picture(picture)
    if starts < 1 or resolution < 2:
        raise UsageError(f"--starts must be at least 1 and --resolution at least 2, got {starts} and {resolution}")
    settings: Settings = {"problem": problem_digest(data), "starts": starts, "radius": radius, "seed": seed}
    settings = {**settings, "method": None if method == "ngd" else method, "step": step}
    before = None if resume is None else load_run(resume, settings)
    with usage_errors():
        rule = method_named(method, step)
    found = _run_starts(data, rule, starts, radius=radius, seed=seed, steps=steps, before=before)
    if file is not None:
        ends = {"starts": found.starts, "finals": found.finals, "steps": found.runs.steps[0], "labels": found.labels}
        save_run(file, ends | {f"{MEMORY}{name}": array for name, array in found.runs.memory[0].items()}, settings)
    if picture is not None:
        _draw_basin_map(data, rule, picture, extent, resolution)
    if json:
        emit_json(_basins_as_data(found))
    else:
        _print_basins(found)
    return end_code(interrupted=found.interrupted)


def _run_starts(
    problem: TokenProblem,
    method: AbstractMethod,
    starts: int,
    *,
    radius: float,
    seed: int,
    steps: int,
    before: dict[str, Array] | None,
) -> Basins:
    """Run the starts, or go on with those of before."""
    from dataclasses import replace

    import numpy as np

    from tokenmargin.limits.shares import basins as run
    from tokenmargin.limits.shares import random_starts

    with usage_errors(), share_bar(f"{starts} starts") as progress:
        if before is None:
            points = random_starts(problem, starts, radius=radius, rng=np.random.default_rng(seed))
            return run(problem, points, method=method, steps=steps, progress=progress)
        begun = run(problem, before["starts"], method=method, steps=0)
        memory = {name.removeprefix(MEMORY): array for name, array in before.items() if name.startswith(MEMORY)}
        before_runs = replace(begun.runs, finals=[before["finals"]], steps=before["steps"][None], memory=[memory])
        return replace(begun, runs=before_runs).resume(steps=steps, progress=progress)


def _draw_basin_map(problem: Any, method: AbstractMethod, picture: Path, extent: float, resolution: int) -> None:
    from tokenmargin.limits.shares import basin_map

    with needs_extra("report"):
        from tokenmargin.report.figures import axes_for_file
        from tokenmargin.report.objects import draw_object
    with usage_errors(), share_bar(f"map of {resolution}x{resolution} starts") as progress:
        found = basin_map(problem, extent=extent, resolution=resolution, method=method, progress=progress)
    with axes_for_file(picture) as axes:
        draw_object(found, axes)
    print_message(f"wrote {picture}")


def _basins_as_data(found: Basins) -> dict[str, Any]:
    return {
        "starts": len(found.labels),
        "unsettled": found.unsettled,
        "interrupted": found.interrupted,
        "basins": [
            {
                "selected": basin.named.names,
                "kind": basin.kind,
                "count": basin.count,
                "share": basin.share,
                "interval": basin.interval,
                "vector": basin.solution.vector if basin.solution.is_optimal else None,
                "margin": basin.solution.margin,
                "norm": basin.solution.norm.name,
            }
            for basin in found.basins
        ],
    }


def _print_basins(found: Basins) -> None:
    from tokenmargin.selection import selection_text

    rows: list[tuple[str, str, str, str]] = [
        (
            f"{one.share:.3f}",
            f"{one.interval[0]:.3f}..{one.interval[1]:.3f}",
            one.kind,
            selection_text(one.named.chosen),
        )
        for one in found.basins
    ]
    rows.append((f"{found.unsettled:.3f}", "", "bounded, a finite part, or not settled", ""))
    print_table((("share", ">"), ("95% interval", ">"), ("kind", "<"), ("selected", "<")), rows)
