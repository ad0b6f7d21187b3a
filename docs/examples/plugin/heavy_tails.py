"""A package that adds to tokenmargin: a loss, a head, an attention map, a norm, a method, an experiment, a claim."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

import tokenmargin as tm
from tokenmargin.dynamics import AbstractMethod
from tokenmargin.experiments import AbstractExperiment, Curves, Finding, Result
from tokenmargin.margin import TOLERANCE
from tokenmargin.norms import CustomNorm
from tokenmargin.objective.attention_maps import AttentionMap
from tokenmargin.objective.losses import AbstractLoss
from tokenmargin.theory import Claim, Findings, ProblemInstance
from tokenmargin.theory.claim import NO_SUBJECT, equal, true


@dataclass(frozen=True)
class HyperbolicLoss(AbstractLoss):
    """`sqrt(1 + u^2) - u = exp(-arsinh u)`: decreasing, with a tail like `1 / (2 u)`."""

    def value(self, u):
        return np.exp(-np.arcsinh(u))

    def log_slope(self, u):
        return -np.arcsinh(u) - np.log(np.hypot(1.0, u))

    def log_slope_derivative(self, u):
        return -1 / np.hypot(1.0, u) - u / (1 + u * u)

    def constants(self, low, high):  # loss'' = (1 + u^2)^(-3/2) is largest nearest to zero
        return float(np.hypot(1.0, np.clip(0.0, low, high)) ** -3), float(np.exp(self.log_slope(low)))


TANH = tm.NonlinearHead(lambda x: np.tanh(x).sum(-1), lambda x: np.cosh(x) ** -2.0)


@dataclass(frozen=True)
class SoftplusAttention(AttentionMap):
    """`log(1 + exp(z))` over its sum: however far ahead a token is, the weight of the others falls like 1 / z only."""

    def weights(self, logits):
        rates = np.logaddexp(0.0, logits)
        return rates / rates.sum(axis=-1, keepdims=True)

    def vjp(self, logits, scores):
        slopes = 1 / (1 + np.exp(-logits)) / np.logaddexp(0.0, logits).sum(axis=-1, keepdims=True)
        return slopes * (scores - (self.weights(logits) * scores).sum(axis=-1, keepdims=True))


def steepest(g):
    """The unit ball has two kinds of vertices: a coordinate's unit vector, and signs times one half."""
    return np.sign(g) * (0.5 if np.abs(g).max() < np.abs(g).sum() / 2 else np.arange(len(g)) == np.abs(g).argmax())


def shortest(rows, bound):
    """The sum of the two largest is the least `2 t + sum(u)` with `u >= |x| - t` and `u >= 0`: a linear program in
    (x, u, t), x of any sign."""
    k, d = rows.shape
    eye, over = np.eye(d), np.full((d, 1), -1.0)
    most = np.block([[-rows, np.zeros((k, d + 1))], [eye, -eye, over], [-eye, -eye, over]])
    cost, room = np.r_[np.zeros(d), np.ones(d), 2.0], np.r_[-bound, np.zeros(2 * d)]
    found = linprog(cost, most, room, bounds=[(None, None)] * d + [(0, None)] * (d + 1))
    return found.x[:d], -found.ineqlin.marginals[:k]


TWO_LARGEST = CustomNorm("two-largest", lambda x: np.sort(np.abs(x))[-2:].sum(),
    lambda g: max(np.abs(g).max(), np.abs(g).sum() / 2), steepest, shortest)  # fmt: skip


@dataclass(frozen=True)
class ClippedDescent(AbstractMethod):
    """Gradient descent whose steps are at most `longest` long."""

    step: float = 10.0
    longest: float = 0.1

    def advance(self, theta, descent, value, t, state):
        length = np.minimum(self.step * np.exp(descent.log_norm), self.longest)
        return theta + length * descent.direction, state


@dataclass(frozen=True)
class HeavyTails(AbstractExperiment):
    """Descent on Figure 1b with a loss of heavy tails: the direction is that of the logistic loss."""

    figure = "heavy-tails"
    source = "an example"
    title = "A loss with a heavy tail"
    curves = Curves("path", "step", ("angle",), log="y")

    steps: int = 1000

    def run(self, progress=None):
        objective = tm.PromptObjective(problem := tm.figure1b(), HyperbolicLoss())
        path = tm.evolve(objective, ClippedDescent(), steps=self.steps, keep=("point",), every=10)
        angles = tm.angle(problem.keys, path["point"][1:], tm.max_margin(problem, path.selected).vector)
        findings = (Finding("angle to the max-margin direction", float(angles[-1]), 0.0, 0.1),)
        return Result(self, {"path": {"step": path.at[1:], "angle": angles}}, findings)


def scaling(instance: ProblemInstance) -> Findings:
    """Keys that are twice as long have twice the margin."""
    problem = instance.problem
    twice = tm.TokenProblem.of(2 * problem.keys.tokens, problem.labels, scores=problem.scores, mask=problem.mask)
    once, double = (tm.max_margin(posed, instance.alpha) for posed in (problem, twice))
    ratio = double.margin / (once.margin or 1.0)  # of two numbers that are right to TOLERANCE, relatively
    conclusion = (equal("margin over margin", ratio, 2.0, tolerance=5 * TOLERANCE),) if once.is_optimal else ()
    return Findings((true("the tokens can be selected", once.is_optimal),), conclusion)


SCALING = Claim("heavy.scaling", scaling, "bounded", about="the margin is proportional to the keys",
    example=lambda: ProblemInstance(tm.figure1b(), "Figure 1b"),
    unneeded={"the tokens can be selected": NO_SUBJECT})  # fmt: skip
