"""The local convergence of *Transformers as Support Vector Machines*, by its public code and by ours, on one machine.

    git clone https://github.com/umich-sota/TF-as-SVM
    python -m benchmarks.svm_peer TF-as-SVM --peer-runs 3 --runs 100 --json

The peer's part is its notebook `local_converge.ipynb` itself: its cells up to the drawings, with fewer runs. For every
seed it trains W and then (K, Q) for 2000 steps, and solves the max-margin problem of the selected tokens in the
Frobenius and in the nuclear norm for each. Ours does the same for all seeds at once. Both are given in CPU seconds per
seed. It needs torch and cvxpy.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from benchmarks.tools import run_main
from tokenmargin.dynamics import NormalizedGradientDescent, evolve, evolve_many
from tokenmargin.experiments.figures.svm_local import SvmKQ, SvmW
from tokenmargin.margin import max_margin
from tokenmargin.objective.factored import ManyFactored
from tokenmargin.selection import select

NOTEBOOK = "local_converge.ipynb"
Json = Annotated[bool, Parameter(name="--json")]


def peer(checkout: Path, runs: int) -> dict[str, Any]:
    """The notebook's names after its training cells, with `RUN` set."""
    cells = json.loads((checkout / NOTEBOOK).read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {}
    sys.path.insert(0, str(checkout))
    for source in sources:
        if "plt.figure" in source:
            break
        exec(re.sub(r"(?m)^RUN = \d+", f"RUN = {runs}", source), names)
    return names


def ours(runs: int) -> dict[str, Any]:
    """The same work: both trainings, both problems for both selections, and the correlations at the end."""
    experiment = SvmW(runs=runs)
    problems, method = experiment.problems, NormalizedGradientDescent(experiment.step)
    starts = [start[None] for start in experiment.starts(experiment.d**2)]
    matrices = np.concatenate(evolve_many(problems, method, steps=experiment.steps, starts=starts).finals)
    many = ManyFactored.of(problems)
    factors = evolve(many, method, steps=experiment.steps, start=SvmKQ(runs=runs).starts(many.dimension)).final
    found: dict[str, list[float]] = {name: [] for name in ("W l2", "W nuclear", "KQ l2", "KQ nuclear")}
    proven = 0
    for trained, ends in (("W", matrices), ("KQ", many.prompt(factors))):
        for problem, W in zip(problems, ends, strict=True):
            for norm in ("l2", "nuclear"):
                solution = max_margin(problem, select(problem.keys, W), norm=norm)
                proven += solution.is_optimal
                cosine = W @ solution.vector / np.linalg.norm(W) / np.linalg.norm(solution.vector)
                found[f"{trained} {norm}"].append(float(cosine))
    return {name: float(np.mean(values)) for name, values in found.items()} | {"proven": proven, "solved": 4 * runs}


def main(checkout: Path, /, *, peer_runs: int = 3, runs: int = 100, as_json: Json = False) -> None:
    if not (checkout / NOTEBOOK).is_file():
        sys.exit(f"{checkout} holds no {NOTEBOOK}; give a checkout of umich-sota/TF-as-SVM")
    ours(1)  # compiled code is loaded before the clock starts
    peer(checkout, 0)
    seconds, answers = {}, {}
    began = time.process_time()
    answers["ours"] = ours(runs)
    seconds["ours"] = (time.process_time() - began) / runs
    began = time.process_time()
    names = peer(checkout, peer_runs)
    seconds["peer"] = (time.process_time() - began) / peer_runs
    answers["peer"] = {
        f"{trained} {norm}": float(names[array][k, :, -1].mean())
        for k, trained in enumerate(("W", "KQ"))
        for norm, array in (("l2", "W_fro_corrs"), ("nuclear", "W_nuc_corrs"))
    }
    ratio = seconds["peer"] / seconds["ours"]
    if as_json:
        print(json.dumps({"seconds_per_seed": seconds, "ratio": ratio, "correlations": answers}))
        return
    print(f"{'CPU seconds per seed':24} {'peer':>10} {'ours':>10} {'ratio':>8}")
    print(f"{'':24} {seconds['peer']:10.3f} {seconds['ours']:10.4f} {ratio:8.1f}")
    for name in ("W l2", "W nuclear", "KQ l2", "KQ nuclear"):
        print(f"{'correlation, ' + name:24} {answers['peer'][name]:10.4f} {answers['ours'][name]:10.4f}")
    print(f"max-margin problems proven: {answers['ours']['proven']} of {answers['ours']['solved']}")


if __name__ == "__main__":
    run_main(main, __doc__)
