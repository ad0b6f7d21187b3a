"""`tokenmargin basins`: which share of the starts goes to which limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli.common import UsageError, emit_json, needs_extra, progress_bar, read_problem, say, usage_errors

if TYPE_CHECKING:
    from tokenmargin.basins import Basins

__all__ = ["basins"]


def basins(
    problem: str,
    /,
    *,
    starts: int = 1000,
    radius: float = 3.0,
    steps: int = 10_000,
    seed: int = 0,
    picture: Path | None = None,
    extent: float = 4.0,
    resolution: int = 101,
    json: bool = False,
) -> int:
    """Run many starts and count how many reach each certified direction.

    Examples:

        tokenmargin basins fig8
        tokenmargin basins fig8 --picture basins.png --json

    Parameters
    ----------
    problem:
        A .npz or .json file, or the name of a figure, such as fig8.
    starts:
        Number of random starts, uniform on the sphere in the span of the tokens.
    radius:
        Length of the starts.
    steps:
        Limit on the steps of a run (normalised descent, step 0.1); it ends when softmax saturates.
    seed:
        Of the random starts.
    picture:
        Also draw a map of the basins in the plane of the first two coordinates, into this .png, .svg or .pdf file.
    extent:
        The map covers -extent to extent on both axes.
    resolution:
        Points of the map along each axis.
    json:
        Write one JSON object to standard output.
    """
    import numpy as np

    from tokenmargin.basins import basins as run
    from tokenmargin.basins import random_starts

    data = read_problem(problem)
    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--picture writes a .png, .svg or .pdf file, got {picture.name!r}")
    if starts < 1 or resolution < 2:
        raise UsageError(f"--starts must be at least 1 and --resolution at least 2, got {starts} and {resolution}")
    with usage_errors(), progress_bar(f"{starts} starts", 100) as progress:
        points = random_starts(data, starts, radius=radius, rng=np.random.default_rng(seed))
        found = run(data, points, steps=steps, progress=lambda share: progress(round(100 * share)))
    if picture is not None:
        _draw(data, picture, extent, resolution)
    if json:
        emit_json(_report(found))
    else:
        _print(found)
    return 1 if found.interrupted else 0


def _draw(problem: Any, picture: Path, extent: float, resolution: int) -> None:
    from tokenmargin.basins import basin_map

    with needs_extra("report"):
        from tokenmargin.report.figures import save_basin_map
    with usage_errors(), progress_bar(f"map of {resolution}x{resolution} starts", 100) as progress:
        found = basin_map(
            problem, extent=extent, resolution=resolution, progress=lambda share: progress(round(100 * share))
        )
    save_basin_map(found, picture)
    say(f"wrote {picture}")


def _report(found: Basins) -> dict[str, Any]:
    return {
        "starts": len(found.labels),
        "unsettled": found.unsettled,
        "interrupted": found.interrupted,
        "basins": [
            {
                "selected": basin.selected,
                "kind": basin.kind,
                "count": basin.count,
                "share": basin.share,
                "interval": basin.interval,
                "vector": basin.solution.vector if basin.solution.is_optimal else None,
                "margin": basin.solution.margin,
            }
            for basin in found.basins
        ],
    }


def _print(found: Basins) -> None:
    print(f"{'share':>7}  {'95% interval':>15}  {'kind':<20} selected")
    for basin in found.basins:
        low, high = basin.interval
        name = " ".join(map(str, basin.selected))
        print(f"{basin.share:7.3f}  {low:7.3f}..{high:.3f}  {basin.kind:<20} {name}")
    print(f"{found.unsettled:7.3f}  bounded, or not settled within the steps")
