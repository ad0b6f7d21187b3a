"""rates: how fast a path converges, as fitted to it, beside what the theory says.

Close to a limit direction p^ training is at `p = p^ log t + w + o(1)` (`docs/results/constants.md`). So `|p|` grows by
1 over the margin for every unit of `log t`, the angle and what is missing of the margin fall like `1 / |p|`, and the
weight that is not selected like `exp(-margin |p|)`. Everything is known as a logarithm, to any norm.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import logsumexp
from scipy.stats import t as student

from tokenmargin._files import plain
from tokenmargin._notebook import Tabular
from tokenmargin.dynamics import FlowPath, Trajectory, evolve, methods
from tokenmargin.dynamics.methods.method import step_at
from tokenmargin.limits.by_method import margin_share, size_in
from tokenmargin.limits.constants import limit_constants
from tokenmargin.limits.limit import ROUNDING, direction_of_flow
from tokenmargin.margin import LimitDirection, limit_direction
from tokenmargin.norms import L2, AbstractNorm
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.forward import attend
from tokenmargin.plugins import kind_in_words
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.selection import angle, tokens_of_equal_score

POINTS = 60  # of a path that are fitted, at most
DECADES = 3.0  # of the norm of a flow that are fitted
FEWEST = 4  # points that a fit needs
SMALL = 0.1  # larger angles and shares are not yet those of a limit


@dataclass(frozen=True)
class Rate:
    """One fitted slope.

    **Attributes**
    - `quantity`: what was fitted against what.
    - `fitted`, `interval`: the slope by least squares, with its 95% interval for errors that are independent. Those of
      a path are not: it says how straight the line is, and no more.
    - `theorem`: what the theory says; NaN where it is silent.
    - `window`: the norms between which it was fitted.
    """

    quantity: str
    fitted: float
    interval: tuple[float, float]
    theorem: float
    window: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Rates(Tabular):
    """How fast a path approaches its limit.

    **Attributes**
    - `named`: the limit direction that it is compared with, certified, in the method's norm.
    - `rates`: the fitted slopes.
    - `constant`: `angle |p|` at the end; NaN where the norm is not Euclidean.
    - `predicted`: its limit in closed form, from the multipliers, the scores and the loss; NaN where there is none.
    - `reason`: why something is missing.
    """

    named: LimitDirection
    rates: tuple[Rate, ...]
    constant: float
    predicted: float
    reason: str

    def __getitem__(self, quantity: str) -> Rate:
        for rate in self.rates:
            if rate.quantity == quantity:
                return rate
        raise KeyError(f"no rate of {quantity!r}; there are {', '.join(rate.quantity for rate in self.rates)}")

    def __repr__(self) -> str:
        lines = [f"{'quantity':<34} {'fitted':>12}  {'95% interval':>23}  {'theory':>6}"]
        for rate in self.rates:
            low, high = rate.interval
            fitted, interval = (
                _number_cell(rate.fitted, "12.8f"),
                _number_cell(low, "11.7f") + _number_cell(high, "12.7f"),
            )
            lines.append(f"{rate.quantity:<34} {fitted}  {interval}  {_number_cell(rate.theorem, '6.3g')}")
        if np.isfinite(self.constant):
            closed = "" if np.isnan(self.predicted) else f"  closed form {self.predicted:.8f}"
            lines.append(f"{'angle |p| at the end':<34} {self.constant:12.8f}{closed}")
        return "\n".join(lines + ([self.reason] if self.reason else []))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, for JSON; None where a number is not known."""
        numbers = {"constant": self.constant, "predicted": self.predicted, "reason": self.reason}
        told: dict[str, Any] = plain({"fits": [asdict(rate) for rate in self.rates], **numbers})
        return told

    def _columns(self) -> dict[str, Array]:
        """A row a rate."""
        return {
            "quantity": np.array([rate.quantity for rate in self.rates]),
            "fitted": np.array([rate.fitted for rate in self.rates]),
            "low": np.array([rate.interval[0] for rate in self.rates]),
            "high": np.array([rate.interval[1] for rate in self.rates]),
            "theorem": np.array([rate.theorem for rate in self.rates]),
        }


def _number_cell(value: float, form: str) -> str:
    """A number in its column; a dash where it is not known."""
    return format("-", f">{form.split('.')[0]}") if np.isnan(value) else format(value, form)


@dataclass(frozen=True, eq=False)
class _Samples:
    """Points of a path far out, and when it was there.

    - `method`: None for flow.
    - `log_time`: logarithm of the time of flow, or of the steps.
    - `logarithmic`: whether the norm grows with the logarithm of time, and not with a power of it.
    """

    method: methods.AbstractMethod | None
    log_time: Float[Array, " k"]
    points: Float[Array, "k D"]

    @property
    def logarithmic(self) -> bool:
        plain = isinstance(self.method, methods.MirrorDescent) and not self.method.normalized
        return plain or self.method is None or isinstance(self.method, methods.GradientDescent | methods.Momentum)


def rates(path: FlowPath | Trajectory) -> Rates:
    """Fit how fast a path approaches its limit direction, beside what the theory says.

    **Arguments**
    - `path`: of `flow`, or one run of `evolve(..., keep=("point",))`. Of a flow the last three decades of the norm are
      fitted; of a run the steps from the square root of the last one on.

    >>> from tokenmargin.dynamics import flow
    >>> from tokenmargin.problem.instances import figure1b
    >>> found = rates(flow(PromptObjective(figure1b()), until_norm=1e6))
    >>> round(found["|p| against log t, times margin"].fitted, 6), round(found["log angle against log |p|"].fitted, 4)
    (1.0, -1.0)
    """
    if not isinstance(path, FlowPath | Trajectory):
        raise TypeError(f"rates takes a path, of flow(problem) or evolve(problem); got {kind_in_words(path)}")
    if isinstance(path, Trajectory) and (path.final.ndim != 1 or "point" not in path.kept or path.at[-1] < 1):
        raise ValueError('rates are fitted along one run that kept its points: evolve(..., keep=("point",))')
    objective = path.objective
    problem = objective.local_problem(path.final)
    norm: AbstractNorm = L2
    if isinstance(path, FlowPath):
        named, at_rest = direction_of_flow(path), path.stop == "stationary"
    else:
        norm, at_rest = path.method.margin_norm, not path.prompt.any()
        named = limit_direction(problem, path.selected, loss=objective.loss, norm=norm)
    margin = named.solution.margin
    if at_rest or not (named.solution.is_optimal and 0 < margin < np.inf):
        status = "every p selects these tokens" if named.solution.is_optimal else named.solution.status
        why = f"p is at rest, at |p| = {float(problem.keys.norm(path.prompt)):.6g}" if at_rest else status
        return Rates(named, (), np.nan, np.nan, f"there is no direction to compare with: {why}")
    samples = _samples_of_flow(path) if isinstance(path, FlowPath) else _samples_of_steps(path)
    prompts = objective.prompt(samples.points)
    sizes = size_in(norm, problem, prompts)
    far = _FittedNorms(np.log(sizes), sizes)
    angles = (
        np.asarray(angle(problem.keys, prompts, named.solution.vector)) if norm == L2 else np.full(len(sizes), np.nan)
    )
    short = np.array([1 - margin_share(problem, p, named) for p in prompts])
    log_left = _log_unselected(problem, prompts, named)
    expected = -1.0 if norm == L2 else np.nan
    asked = [
        _norm_growth(samples, far, margin),
        far.fit_slope("log angle against log |p|", far.log_sizes, _log_of_small(angles, ROUNDING), -1.0),
        far.fit_slope(
            "log missing margin against log |p|", far.log_sizes, _log_of_small(short, 1e3 * ROUNDING), expected
        ),
        far.fit_slope("log unselected against margin |p|", margin * sizes, log_left, -1.0),
        _fall_of_unselected(samples, far, log_left, named),
    ]
    found = tuple(rate for rate in asked if rate is not None)
    constant, predicted, reason = (
        _constant_and_closed_form(path, problem, named) if norm == L2 else (np.nan, np.nan, "")
    )
    return Rates(named, found, constant, predicted, reason)


class _FittedNorms(NamedTuple):
    """Norms of the points that are fitted."""

    log_sizes: Float[Array, " k"]
    sizes: Float[Array, " k"]

    def fit_slope(self, quantity: str, x: Float[Array, " k"], y: Float[Array, " k"], theorem: float) -> Rate | None:
        """The slope of y in x where both are known; None where that is on too few points."""
        known = np.isfinite(x) & np.isfinite(y)
        x, y, sizes = x[known], y[known], self.sizes[known]
        if len(x) < FEWEST:
            return None
        spread = x - x.mean()
        if not 0 < spread @ spread < np.inf:  # none, or one whose square doubles do not hold
            return None
        slope = float(spread @ (y - y.mean()) / (spread @ spread))
        left = y - y.mean() - slope * spread
        error = float(np.sqrt(left @ left / (len(x) - 2) / (spread @ spread)) * student.ppf(0.975, len(x) - 2))
        return Rate(quantity, slope, (slope - error, slope + error), theorem, (float(sizes[0]), float(sizes[-1])))


def _log_of_small(values: Float[Array, " k"], least: float) -> Float[Array, " k"]:
    """The logarithm where a value is more than rounding and already small; else NaN."""
    return np.log(np.where((values > least) & (values < SMALL), values, np.nan))


def _norm_growth(samples: _Samples, far: _FittedNorms, margin: float) -> Rate | None:
    if samples.logarithmic:
        return far.fit_slope("|p| against log t, times margin", samples.log_time, far.sizes * margin, 1.0)
    return far.fit_slope("log |p| against log t", samples.log_time, far.log_sizes, _norm_exponent(samples.method))


def _fall_of_unselected(
    samples: _Samples, far: _FittedNorms, log_left: Float[Array, " k"], named: LimitDirection
) -> Rate | None:
    """How the unselected weight falls: like `1 / t` where the norm grows with log t, else by a fixed factor a step."""
    if samples.logarithmic:
        return far.fit_slope("log unselected against log t", samples.log_time, log_left, -1.0)
    pace = _fall_per_step(samples.method, named)
    return far.fit_slope("log unselected against steps", np.exp(samples.log_time), log_left, -pace)


def _samples_of_flow(path: FlowPath) -> _Samples:
    """Knots over the last decades of the norm."""
    lengths = np.linalg.norm(path.objective.norms(path(path.arcs)), axis=-1)
    late = np.flatnonzero((lengths >= lengths[-1] / 10**DECADES) & np.isfinite(path.log_time))
    if not len(late):
        raise ValueError(
            f"rates are fitted along a path that moves; this one stays at its start (it stopped by {path.stop})"
        )
    knots = late[np.unique(np.linspace(0, len(late) - 1, POINTS).astype(int))]
    return _Samples(None, path.log_time[knots], path(path.arcs[knots]))


def _samples_of_steps(path: Trajectory) -> _Samples:
    """Kept points from the square root of the last step on."""
    late = np.flatnonzero(path.at >= max(np.sqrt(path.at[-1]), 1))
    logs = np.log(path.at[late])
    chosen = np.unique(late[np.searchsorted(logs, np.linspace(logs[0], logs[-1], POINTS) - 1e-9)])
    return _Samples(path.method, _log_time(path.method, path.at[chosen]), path["point"][chosen])


def _log_time(method: methods.AbstractMethod, at: Int[Array, " k"]) -> Float[Array, " k"]:
    """Logarithm of the number of steps; of plain descent whose steps change, of the sum of their sizes."""
    step = getattr(method, "step", None)
    if not callable(step) or not isinstance(method, methods.GradientDescent | methods.Momentum | methods.MirrorDescent):
        return np.log(at)
    sizes = np.cumsum([step_at(step, t) for t in range(int(at[-1]))])
    return np.asarray(np.log(sizes[at - 1]))


def _norm_exponent(method: methods.AbstractMethod | None) -> float:
    """The power of the number of steps with which the norm grows; NaN where it is not known."""
    step = getattr(method, "step", None)
    if isinstance(step, methods.Schedule):
        return max(1 - step.power, 0.0)
    return 1.0 if isinstance(step, float | int) else np.nan


def _fall_per_step(method: methods.AbstractMethod | None, named: LimitDirection) -> float:
    """By how much the logarithm of the unselected weight falls in a late step; NaN where it is not known."""
    step = getattr(method, "step", None)
    if not isinstance(step, float | int):
        return np.nan
    if isinstance(method, methods.Polyak):
        return step if named.is_global else np.nan  # steps of 1 / margin; elsewhere the infimum is never near
    return (
        step * named.solution.margin
        if isinstance(method, methods.NormalizedGradientDescent | methods.SteepestDescent)
        else np.nan
    )


def _log_unselected(problem: TokenProblem, prompts: Float[Array, "k D"], named: LimitDirection) -> Float[Array, " k"]:
    """Logarithm of the mean weight on tokens other than the selected and their equals."""
    logits = problem.keys.logits(prompts)
    log_weights = attend(logits, np.zeros(logits.shape)).log_weights
    others = problem.mask & ~named.chosen & ~tokens_of_equal_score(problem, named.selected)
    return np.asarray(logsumexp(log_weights[:, others], axis=-1) - np.log(problem.n))


def _constant_and_closed_form(
    path: FlowPath | Trajectory, problem: TokenProblem, named: LimitDirection
) -> tuple[float, float, str]:
    """`angle |p|` at the end, its limit in closed form, and why there is none, or why it is not reached."""
    p = path.prompt
    constant = float(angle(problem.keys, p, named.solution.vector) * problem.keys.norm(p))
    if type(path.objective) is not PromptObjective:
        return constant, np.nan, "the closed form of the constant is for a prompt alone"
    known = limit_constants(problem, named.selected, loss=path.objective.loss)
    if (known.named.chosen != named.chosen).any():
        return constant, np.nan, "no constant: the closed form is for tokens that do not stay tied"
    if known.reason:
        return constant, np.nan, f"no constant: {known.reason}"
    longest = 0.0
    if isinstance(path, Trajectory):
        after = evolve(path.objective, path.method, steps=1, start=p, memory=path.memory).final
        longest = float(problem.keys.norm(after - p))
    back_and_forth = f"a step is {longest:.3g} long; beyond {known.critical_step:.3g} descent goes back and forth"
    return constant, known.of_flow(p), back_and_forth if longest > known.critical_step else ""
