"""Many runs at once give what each run gives alone."""

import numpy as np
import pytest
from tests.oracles.rounding import of_path

from tokenmargin.dynamics import GradientDescent, NormalizedGradientDescent, batch, evolve, evolve_many
from tokenmargin.dynamics.evolve import on_inputs
from tokenmargin.objective.attention import PromptObjective
from tokenmargin.objective.losses import LOSSES
from tokenmargin.problem.instances import figure1b, random_problem
from tokenmargin.problem.token_problem import TokenProblem

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def problems() -> list[TokenProblem]:
    """Few and many coordinates, a Gram geometry, and shorter inputs, all with four inputs."""
    rng = np.random.default_rng(0)
    mask = rng.random((4, 5)) < 0.7
    mask[:, 0] = True
    plain = [random_problem(4, 6, d, rng=rng) for d in (3, 10, 40)]
    masked = TokenProblem.of(rng.standard_normal((4, 5, 7)), [1, 1, -1, -1], head=rng.standard_normal(7), mask=mask)
    return [*plain, plain[2].as_gram(), masked]


METHODS = [NormalizedGradientDescent(0.3), GradientDescent(), GradientDescent(0.5)]


@pytest.mark.parametrize("method", METHODS, ids=["normalised", "by the smoothness", "fixed"])
@pytest.mark.parametrize("starts", [1, 3, 40])
def test_each_run_is_that_of_evolve(method, starts) -> None:
    poses, rng = problems(), np.random.default_rng(1)
    firsts = [rng.standard_normal((starts, pose.keys.dimension)) for pose in poses]
    runs = evolve_many(poses, method, steps=30, starts=firsts)
    for b, pose in enumerate(poses):
        alone = evolve(PromptObjective(pose), method, steps=30, start=firsts[b])
        here = pose.mask
        apart = of_path(
            PromptObjective(pose), method, 30, firsts[b], lambda p, pose=pose, here=here: pose.keys.logits(p)[:, here]
        )
        np.testing.assert_allclose(
            pose.keys.logits(runs.finals[b])[:, here], pose.keys.logits(alone.final)[:, here], rtol=0, atol=apart
        )
        np.testing.assert_array_equal(runs.selected[b], alone.selected)
        # Weights move by twice what their logits do, as a share of themselves.
        np.testing.assert_allclose(runs.saturation[b], alone.saturation, rtol=0, atol=2 * apart)
    assert (runs.steps == 30).all()


@pytest.mark.parametrize(("name", "loss"), LOSSES)
def test_every_loss_is_taken(name, loss) -> None:
    pose = figure1b()
    runs = evolve_many([pose, pose], NormalizedGradientDescent(0.1), steps=100, loss=loss)
    alone = evolve(PromptObjective(pose, loss), NormalizedGradientDescent(0.1), steps=100)
    apart = of_path(PromptObjective(pose, loss), NormalizedGradientDescent(0.1), 100)
    np.testing.assert_allclose(runs.finals[0][0], alone.final, rtol=0, atol=apart)


def test_finished_runs_leave_and_the_others_go_on() -> None:
    rng = np.random.default_rng(0)
    poses = [random_problem(4, 6, d, rng=rng) for d in (2, 100, 3, 200)]
    runs = evolve_many(poses, NormalizedGradientDescent(1.0), steps=400, until_saturation=1 - 1e-5)
    settled = runs.saturation[:, 0] >= 1 - 1e-5
    assert settled[1]
    assert settled[3]
    assert (runs.steps[~settled] == 400).all()
    assert (runs.steps[settled] < 400).all()
    method, steps = NormalizedGradientDescent(1.0), int(runs.steps[0, 0])
    full = evolve_many([poses[0]], method, steps=steps)
    apart = of_path(PromptObjective(poses[0]), method, steps)
    np.testing.assert_allclose(runs.finals[0], full.finals[0], rtol=0, atol=apart)


def test_memory_is_bounded_by_chunks(monkeypatch) -> None:
    poses = [random_problem(2, 3, 5, rng=np.random.default_rng(k)) for k in range(7)]
    whole = evolve_many(poses, NormalizedGradientDescent(0.5), steps=20)
    monkeypatch.setattr(batch, "MEMORY", 1)
    seen: list[float] = []
    parts = evolve_many(poses, NormalizedGradientDescent(0.5), steps=20, progress=seen.append)
    for pose, a, b in zip(poses, whole.finals, parts.finals, strict=True):
        apart = of_path(PromptObjective(pose), NormalizedGradientDescent(0.5), 20)
        np.testing.assert_allclose(a, b, rtol=0, atol=apart)
    assert len(seen) == 7
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_interruption_keeps_what_was_reached_and_resumes_to_the_same_end(monkeypatch) -> None:
    poses = [random_problem(2, 3, 5, rng=np.random.default_rng(k)) for k in range(4)]
    monkeypatch.setattr(batch, "MEMORY", 1)  # one problem a chunk

    def interrupt(share: float) -> None:
        if share > 0.4:
            raise KeyboardInterrupt

    part = evolve_many(poses, NormalizedGradientDescent(0.5), steps=100, progress=interrupt)
    assert part.interrupted
    assert part.steps[0, 0] == 100
    assert part.steps[3, 0] == 0
    done = part.resume(steps=100)
    whole = evolve_many(poses, NormalizedGradientDescent(0.5), steps=100)
    assert not done.interrupted
    assert (done.steps == 100).all()
    for pose, a, b in zip(poses, done.finals, whole.finals, strict=True):
        apart = of_path(PromptObjective(pose), NormalizedGradientDescent(0.5), 100)
        np.testing.assert_allclose(a, b, rtol=0, atol=apart)


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([np.zeros((1, 3))], "one array"),
        ([np.zeros((1, 3)), np.zeros((1, 4))], r"starts must have shape \(starts, 3\), got \(1, 4\)"),
        ([np.zeros((1, 3)), np.full((1, 3), np.nan)], "must be finite"),
    ],
)
def test_bad_starts_are_named(starts, message) -> None:
    with pytest.raises(ValueError, match=message):
        evolve_many([figure1b(), figure1b()], NormalizedGradientDescent(), steps=1, starts=starts)


def test_problems_must_match() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="group them by n"):
        evolve_many([random_problem(n, 3, 3, rng=rng) for n in (2, 3)], NormalizedGradientDescent(), steps=1)


@pytest.mark.parametrize("d", [2, 30], ids=["coordinates", "gram matrix"])
def test_equal_scores_far_out_move_as_one_at_a_time(d: int) -> None:
    """Two tokens of equal scores: at |p| = 700 and beyond, weights and leads underflow in turn."""
    keys = np.zeros((1, 3, d))
    keys[0, :2, 0], keys[0, :2, 1] = 1.0, (0.5, -0.5)
    problem = TokenProblem.of(keys, [1], scores=[[1.0, 1.0, 0.0]])
    starts = np.zeros((3, d))
    starts[:, 0], starts[:, 1] = (5.0, 700.0, 2000.0), 0.7
    method = NormalizedGradientDescent(1.0)
    together = evolve_many([problem], method, steps=20, starts=starts[None]).finals[0]
    apart = evolve(PromptObjective(problem), method, steps=20, start=starts).final
    np.testing.assert_allclose(together, apart, rtol=0, atol=of_path(PromptObjective(problem), method, 20, starts))
    assert (together[:, 0] > starts[:, 0] + 10).all()


@pytest.mark.parametrize("method", [NormalizedGradientDescent(0.3), "adam"])
@pytest.mark.parametrize("tied", [False, True])
def test_minibatches_are_steps_on_the_inputs_drawn(method, tied) -> None:
    poses = [random_problem(4, 3, 5, rng=np.random.default_rng(seed)) for seed in range(2)]
    if tied:
        scores = np.round(poses[0].scores)
        poses[0] = TokenProblem(poses[0].keys, poses[0].labels, scores=scores - scores.max(axis=1, keepdims=True))
    runs = evolve_many(poses, method, steps=6, batch=2, rng=7).resume(steps=9)
    drawn = np.random.default_rng(7)
    alone = [evolve(pose, method, steps=0) for pose in poses]
    each: list[list] = [[], []]
    for _ in range(9):
        order = drawn.random((4, 2)).argsort(axis=0)
        for b in range(2):
            each[b].append(on_inputs(PromptObjective(poses[b]), np.flatnonzero(order[:, b] < 2), 4))
            alone[b] = evolve(each[b][-1], method, steps=1, start=alone[b].final, memory=alone[b].memory)
    for b in range(2):
        apart = of_path(each[b], method, 9)
        np.testing.assert_allclose(runs.finals[b][0], alone[b].final, rtol=0, atol=apart)
    with pytest.raises(ValueError, match="with rng, a seed such as 0; got 2"):
        evolve_many(poses, method, steps=1, batch=2)
