"""The population risk of single-location regression beside the public code's own formula.

    python -m benchmarks.single_location --peer FOLDER     FOLDER: a checkout (or bare git folder) of
                                                           PierreMarion23/single-location-regression

The public code needs jax and quadax. Its formula is plain array arithmetic, so that it is run here as it stands, with
numpy, scipy's quad and no compilation in their place.
"""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import numpy as np
from scipy import special
from scipy.integrate import quad

from benchmarks.tools import run_main
from tokenmargin.objective.single_location import Overlaps, SingleLocation, overlaps


def stand_ins() -> dict[str, types.ModuleType]:
    """Modules named jax, jax.numpy, jax.scipy.special, jax.random and quadax, of which the formula uses a little."""

    def plain(function=None, **_):
        return function if function is not None else plain

    class Differentiable:
        def __init__(self, function):
            self.function = function

        def __call__(self, *arguments):
            return self.function(*arguments)

        def defjvp(self, rule):
            return rule

    jax, jnp, random = (types.ModuleType(name) for name in ("jax", "jax.numpy", "jax.random"))
    scipy, scs, quadax = (types.ModuleType(name) for name in ("jax.scipy", "jax.scipy.special", "quadax"))
    jnp.__dict__.update({name: getattr(np, name) for name in ("sqrt", "exp", "pi", "inf", "linalg", "concatenate")})
    scs.erf = special.erf
    quadax.quadgk = lambda f, interval, args: quad(f, *interval, args=args, epsabs=1e-13, epsrel=1e-12)
    jax.jit, jax.grad, jax.vmap, jax.value_and_grad = plain, lambda f, *a: f, lambda f, **k: f, lambda f, **k: f
    jax.custom_jvp, jax.numpy, jax.random, jax.scipy, scipy.special = Differentiable, jnp, random, scipy, scs
    return {"jax": jax, "jax.numpy": jnp, "jax.random": random, "jax.scipy": scipy, "jax.scipy.special": scs,
            "quadax": quadax}  # fmt: skip


def source(folder: Path, name: str) -> str:
    if (folder / name).is_file():
        return (folder / name).read_text()
    shown = subprocess.run(["git", f"--git-dir={folder}", "show", f"HEAD:{name}"], capture_output=True, check=True)
    return shown.stdout.decode()


def peer_risk(folder: Path):
    """The function R of the public code and its zeta."""
    sys.modules.update(stand_ins())
    for name in ("utils", "dynamics"):
        module = types.ModuleType(name)
        sys.modules[name] = module
        exec(compile(source(folder, f"{name}.py"), f"{name}.py", "exec"), module.__dict__)
    return sys.modules["dynamics"].R, sys.modules["utils"].zeta_integ


def compare(folder: Path, count: int) -> None:
    risk, zeta = peer_risk(folder)
    rng, worst, largest = np.random.default_rng(0), 0.0, 0.0
    for _ in range(count):
        d, L, gamma, lam = (
            int(rng.integers(2, 500)),
            int(rng.integers(2, 12)),
            rng.uniform(0.1, 1.2),
            rng.uniform(0.05, 2),
        )
        k, v = (x / np.linalg.norm(x) for x in rng.standard_normal((2, d)))
        axes = np.eye(2, d)
        theirs = risk(k, v, axes[0], axes[1], lam, gamma, d, L) + (L - 1) * zeta(0, lam)
        ours = float(SingleLocation(d, L, gamma).excess_risk(Overlaps(*overlaps(k, v)), lam))
        worst, largest = max(worst, abs(theirs - ours) / max(1.0, abs(ours))), max(largest, ours)
    print(f"{count} random points: largest difference {worst:.2e}, relative to the risk where it is above 1 "
          f"(largest risk {largest:.3g})")  # fmt: skip


def main(*, peer: Path, count: int = 200) -> None:
    compare(peer, count)


if __name__ == "__main__":
    run_main(main, __doc__)
