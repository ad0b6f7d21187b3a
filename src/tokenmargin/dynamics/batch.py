"""evolve_many: thousands of descents at once, over problems and over starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from tokenmargin._notebook import Tabular
from tokenmargin._statistics import Rng, generator
from tokenmargin.dynamics.batch_state import BatchState, Tokens
from tokenmargin.dynamics.events import note_interrupt
from tokenmargin.dynamics.methods import AbstractMethod, AbstractStepLength, State, as_method
from tokenmargin.dynamics.span import Span
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import AbstractLoss, LogisticLoss
from tokenmargin.problem.abstract_geometry import as_array, check_finite
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.names import token_name
from tokenmargin.problem.token_problem import TokenProblem, checked_problem, with_fixed_scores

MEMORY = 256 << 20  # bytes of token products held at once
_MANY_STARTS = 32  # with so many starts or more, the runs of a problem share one matrix
_LOOK = 25  # steps between two looks at which runs are finished


@dataclass(frozen=True, eq=False)
class BatchResult(Tabular):
    """Where every run of every problem ended.

    **Attributes**
    - `problems`, `method`, `loss`: what was run.
    - `finals`: one array (starts, D) of parameters per problem.
    - `selected`: token of largest weight, shape (problems, starts, n).
    - `saturation`: mean selected softmax weight, shape (problems, starts); tokens of equal score count together.
    - `steps`: steps taken by each run.
    - `interrupted`: whether Ctrl-C stopped it; runs not reached have taken 0 steps and stand at their starts.
    - `memory`: what the method remembers of the runs of each problem, for `resume`.
    - `batch`, `rng`: inputs per step, and what draws them.
    """

    problems: Sequence[TokenProblem]
    method: AbstractMethod
    loss: AbstractLoss
    finals: list[Array]
    selected: Int[Array, "problems starts n"]
    saturation: Float[Array, "problems starts"]
    steps: Int[Array, "problems starts"]
    interrupted: bool = False
    memory: list[State] = field(default_factory=list)
    batch: int | None = None
    rng: np.random.Generator | None = None

    @property
    def norms(self) -> Float[Array, "problems starts"]:
        """Length of every final parameter."""
        return np.stack([pose.keys.norm(final) for pose, final in zip(self.problems, self.finals, strict=True)])

    def __repr__(self) -> str:
        problems, starts = self.steps.shape
        settled = f"mean selected weight {self.saturation.min():.4g}..{self.saturation.max():.4g}"
        return f"BatchResult({problems} problems x {starts} starts, {self.method!r}, {settled})"

    def _columns(self) -> dict[str, Array]:
        problems, starts = np.indices(self.steps.shape)
        tokens = [
            " ".join(token_name(i, t) for i, t in enumerate(row))
            for row in self.selected.reshape(problems.size, -1).tolist()
        ]
        return {
            "problem": problems.ravel(), "start": starts.ravel(), "steps": self.steps.ravel(),
            "norm": self.norms.ravel(), "saturation": self.saturation.ravel(), "selected": np.array(tokens, dtype=str),
        }  # fmt: skip

    def resume(
        self,
        *,
        steps: int | Int[Array, "problems starts"],
        until_saturation: float | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> BatchResult:
        """Go on until every run has taken `steps` steps in all; runs that have are left as they are."""
        return _run_to_budget(self, np.broadcast_to(steps, self.steps.shape), until_saturation, progress)


def evolve_many(
    problems: Sequence[TokenProblem],
    method: AbstractMethod | str,
    *,
    steps: int | Int[Array, "problems starts"],
    starts: Sequence[Float[Array, "starts D"]] | None = None,
    loss: AbstractLoss | None = None,
    until_saturation: float | None = None,
    batch: int | None = None,
    rng: Rng | None = None,
    progress: Callable[[float], None] | None = None,
) -> BatchResult:
    """Run `method` on every problem from each of its starts; the steps of `evolve` to rounding, all runs at once.

    **Arguments**
    - `problems`: all with the same number of inputs; any dimension, either geometry, shorter inputs masked.
    - `method`: descent or normalised descent, or the name of a method. One that is more than a length along the
      gradient (signs, momentum, Adam, ...) needs coordinates, of one dimension for all problems.
    - `steps`: for every run, or one number per run.
    - `starts`: for each problem an array (starts, D), equally many; zero by default.
    - `loss`: logistic by default.
    - `until_saturation`: a run is finished, and leaves the batch, once its mean selected weight is this (looked at
      every 25 steps).
    - `batch`, `rng`: size of the minibatches that gradients are taken of, drawn anew for every step and run.
    - `progress`: called with the share of the work that is done.

    Memory stays bounded: runs are taken in chunks. Ctrl-C ends early and returns what was reached.

    >>> from tokenmargin.dynamics.methods import NormalizedGradientDescent
    >>> from tokenmargin.problem.instances import random_problem
    >>> rng = np.random.default_rng(0)
    >>> runs = evolve_many(
    ...     [random_problem(4, 6, 100, rng=rng) for _ in range(3)], NormalizedGradientDescent(1.0), steps=200
    ... )
    >>> runs.saturation.shape, bool((runs.saturation > 0.9999).all())
    ((3, 1), True)
    """
    remedy = "run them one by one, with evolve or limit_of"
    if not isinstance(problems, Iterable):
        raise TypeError(f"evolve_many takes a list of problems, [problem] for one; got {type(problems).__name__}")
    problems = [with_fixed_scores(checked_problem(one, "evolve_many"), "evolve_many", remedy) for one in problems]
    loss = LogisticLoss() if loss is None else loss
    firsts = _checked_starts(problems, starts)
    shape, n, rule = (len(problems), len(firsts[0])), problems[0].n, as_method(method)
    if not isinstance(rule, AbstractStepLength):
        _check_points(problems, rule)
    if batch is not None and not (1 <= batch <= n and rng is not None):
        raise ValueError(f"batch must be from 1 to the number of inputs {n}, with rng, a seed such as 0; got {batch}")
    result = BatchResult(
        problems, rule, loss, [first.copy() for first in firsts],
        np.zeros((*shape, n), dtype=np.intp), np.zeros(shape), np.zeros(shape, dtype=int),
        memory=[dict(rule.initial(first)) for first in firsts],
        batch=batch, rng=None if rng is None else generator(rng),
    )  # fmt: skip
    budget = np.broadcast_to(np.asarray(steps, dtype=int), shape)
    return _run_to_budget(result, budget, until_saturation, progress)


def _run_to_budget(
    begun: BatchResult,
    budget: Int[Array, "problems starts"],
    until_saturation: float | None,
    progress: Callable[[float], None] | None,
) -> BatchResult:
    """Go on until every run has taken as many steps in all as its budget says."""
    result = replace(
        begun,
        finals=[final.copy() for final in begun.finals],
        selected=begun.selected.copy(),
        saturation=begun.saturation.copy(),
        steps=begun.steps.copy(),
        memory=[{name: array.copy() for name, array in state.items()} for state in begun.memory],
    )
    done, work, interrupted = 0, max(int(np.maximum(budget - begun.steps, 0).sum()), 1), False
    for chunk in _chunks_in_memory(result.problems, budget.shape[1], max(pose.T for pose in result.problems)):
        group = _Group.of(result, chunk)
        left = np.maximum(budget - begun.steps, 0)[chunk[0]][:, chunk[1]].ravel()
        if not interrupted:
            base = done
            tell = None if progress is None else lambda part, base=base: progress((base + part) / work)
            interrupted = group.run(left, until_saturation, tell)
        done += int(left.sum())
        group.store(result, chunk)
    return replace(result, interrupted=interrupted)


Chunk = tuple[slice, slice]


def _checked_starts(
    problems: Sequence[TokenProblem], starts: Sequence[Float[Array, "starts D"]] | None
) -> list[Float[Array, "starts D"]]:
    if not problems or any(pose.n != problems[0].n for pose in problems):
        raise ValueError("problems must be a non-empty list, all with the same number of inputs; group them by n")
    if starts is None:
        return [pose.keys.zero()[None] for pose in problems]
    firsts = [np.atleast_2d(as_array("starts", start, float)) for start in starts]
    if len(firsts) != len(problems) or not len(firsts[0]) or any(len(first) != len(firsts[0]) for first in firsts):
        raise ValueError(
            f"starts must hold one array (starts, D) for each of the {len(problems)} problems, with equally many starts"
        )
    for pose, first in zip(problems, firsts, strict=True):
        if first.ndim != 2 or first.shape[1] != pose.keys.dimension:
            raise ValueError(f"starts must have shape (starts, {pose.keys.dimension}), got {first.shape}")
        check_finite("starts", first)
    return firsts


def _check_points(problems: Sequence[TokenProblem], method: AbstractMethod) -> None:
    """A method that moves points, and not only along the gradient, needs them in coordinates of one space."""
    shapes = {pose.keys.matrix_shape or (pose.keys.dimension,) for pose in problems}
    if len(shapes) > 1 or not all(isinstance(pose.keys, Coordinates) for pose in problems):
        raise ValueError(
            f"{type(method).__name__} moves points in coordinates: give problems in coordinates, all of one dimension "
            "(group them), or run them one by one with evolve"
        )


def _chunks_in_memory(problems: Sequence[TokenProblem], count: int, T: int) -> Iterator[Chunk]:
    """Which problems and starts go together: as many as the memory allows."""
    tokens = problems[0].n * T
    if count >= _MANY_STARTS:  # one problem at a time, its matrix shared by all its starts
        lanes = max(MEMORY // (8 * 12 * tokens), 1)
        for j in range(len(problems)):
            for begin in range(0, count, lanes):
                yield slice(j, j + 1), slice(begin, begin + lanes)
        return
    width = max(min(pose.keys.dimension, 8 * tokens) for pose in problems)
    together = max(MEMORY // (8 * tokens * (tokens + width + 12) * count), 1)
    for begin in range(0, len(problems), together):
        yield slice(begin, begin + together), slice(0, count)


@dataclass(eq=False)
class _Group:
    """The runs of one chunk: those in progress (`lanes`), and the ends of those that have finished."""

    lanes: BatchState
    ends: BatchState
    methods: tuple[AbstractMethod, ...]
    steps: Int[Array, " runs"]

    @classmethod
    def of(cls, result: BatchResult, chunk: Chunk) -> _Group:
        """The runs of a chunk where they stand: problem after problem, and within one its starts in order."""
        here, loss, method = result.problems[chunk[0]], result.loss, result.method
        begin = [first[chunk[1]] for first in result.finals[chunk[0]]]
        count, T = len(begin[0]), max(pose.T for pose in result.problems)
        along = isinstance(method, AbstractStepLength)
        tokens = _lay_out(here, T, coordinates=not along)
        logits = np.full((here[0].n, T, len(here) * count), -np.inf)
        for j, (pose, first) in enumerate(zip(here, begin, strict=True)):
            logits[:, : pose.T, j * count : (j + 1) * count] = np.moveaxis(pose.keys.logits(first), 0, -1)
        prepared = [method.for_objective(PromptObjective(pose, loss)) for pose in here]
        same = all(rule == prepared[0] for rule in prepared)
        if not (same or along):
            raise ValueError(
                f"{type(method).__name__} differs from problem to problem; run them one by one with evolve"
            )
        methods = (prepared[0],) if same else tuple(rule for rule in prepared for _ in range(count))
        if len(here) > 1 and count > 1:
            tokens = tokens.subset(np.repeat(np.arange(len(here)), count))
        taken = result.steps[chunk].flatten()
        ends = BatchState(tokens, loss, logits, np.zeros_like(logits), taken, batch=result.batch, rng=result.rng)
        if not along:
            ends.points = np.concatenate(begin)
            states = result.memory[chunk[0]]
            ends.memory = {name: np.concatenate([state[name][chunk[1]] for state in states]) for name in states[0]}
        return cls(ends.subset(np.ones(len(taken), dtype=bool)), ends, methods, np.zeros(len(taken), int))

    def run(self, budget: Int[Array, " runs"], until: float | None, tell: Callable[[int], None] | None) -> bool:
        """Advance until every run is finished; True when interrupted."""
        active = np.arange(len(budget))
        try:
            while active.size:
                finished = self.steps[active] >= budget[active]
                if until is not None:
                    finished |= self.lanes.saturation >= until
                if finished.any():
                    self._retire_runs(active, finished)
                    active = active[~finished]
                    continue
                for _ in range(min(_LOOK, int((budget - self.steps)[active].min()))):
                    self.lanes.advance(self.methods)
                    self.steps[active] += 1
                if tell is not None:
                    tell(int(np.where(np.isin(np.arange(len(budget)), active), self.steps, budget).sum()))
        except KeyboardInterrupt:
            self._retire_runs(active, np.ones(active.size, dtype=bool))
            return note_interrupt()
        return False

    def _retire_runs(self, active: Int[Array, " lanes"], finished: Bool[Array, " lanes"]) -> None:
        self.ends.write_ends(active[finished], self.lanes.subset(finished))
        self.lanes = self.lanes.subset(~finished)
        if len(self.methods) > 1:
            self.methods = tuple(rule for rule, gone in zip(self.methods, finished, strict=True) if not gone)

    def store(self, result: BatchResult, chunk: Chunk) -> None:
        """Write the ends of the runs into the result."""
        shape, ends = result.saturation[chunk].shape, self.ends
        result.selected[chunk] = ends.selected.reshape(*shape, -1)
        result.saturation[chunk] = ends.saturation.reshape(shape)
        result.steps[chunk] = ends.taken.reshape(shape)
        places = np.arange(ends.taken.size).reshape(shape)
        for runs, j in zip(places, range(chunk[0].start, chunk[0].start + len(places)), strict=True):
            pose = result.problems[j]
            if ends.points is None:
                added = np.moveaxis(ends.weights[..., runs], -1, 0)
                result.finals[j][chunk[1]] += pose.keys.pullback(added[..., : pose.T])
                continue
            result.finals[j][chunk[1]] = ends.points[runs]
            for name, array in ends.memory.items():
                result.memory[j][name][chunk[1]] = array[runs]


def _lay_out(problems: Sequence[TokenProblem], T: int, *, coordinates: bool) -> Tokens:
    """All tokens padded to one shape, in coordinates; of problems in Gram space, in those of their spans."""
    n = problems[0].n
    found = [
        (pose.keys if isinstance(pose.keys, Coordinates) else Span.of(pose.keys).tokens).tokens for pose in problems
    ]
    vectors = np.zeros((len(problems), n, T, max(tokens.shape[-1] for tokens in found)))
    scores = np.zeros((len(problems), n, T))
    for j, (pose, tokens) in enumerate(zip(problems, found, strict=True)):
        vectors[j, :, : pose.T, : tokens.shape[-1]] = tokens
        scores[j, :, : pose.T] = pose.shared_scores
    tied = any(pose.has_ties for pose in problems)
    return Tokens.of(vectors.reshape(len(problems), n * T, -1), scores, tied=tied, coordinates=coordinates)
