"""The first step with k classes against autograd and the binary code; the multinomial classifier as a problem."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from scipy.special import log_softmax
from tests.oracles.certified import SETTLED, assert_same_vector
from tests.oracles.rounding import rounding

from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.limits import limit_of
from tokenmargin.objective.embedding import Embeddings, class_first_step, class_shares, first_step
from tokenmargin.objective.local_scores import ClassObjective
from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.label_problems import ClassProblem
from tokenmargin.problem.token_problem import TokenProblem


def drawn(seed: int, k: int, d: int = 7, m: int = 9):
    rng = np.random.default_rng(seed)
    sequences = [rng.integers(m, size=rng.integers(1, 6)) for _ in range(3 * k)]
    return sequences, np.arange(3 * k) % k, *rng.standard_normal((2, m, d))[:1], rng.standard_normal((d, k + 1)), rng


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_the_step_is_that_of_autograd(k: int, scale: float) -> None:
    sequences, classes, tokens, columns, _ = drawn(k, k)
    prompt, heads = columns[:, 0] * scale, columns[:, 1:]
    tokens = tokens * scale
    E, p, V = (torch.from_numpy(x.copy()).requires_grad_() for x in (tokens, prompt, heads))
    outputs = [torch.softmax(E[s] @ p, 0) @ (E[s] @ V) for s in sequences]
    loss = torch.nn.functional.cross_entropy(torch.stack(outputs), torch.from_numpy(classes))
    in_tokens, in_prompt = torch.autograd.grad(loss, (E, p))
    step = class_first_step(sequences, classes, tokens, prompt, heads, 0.3)
    # Sums of at most 15 terms of order 10.
    np.testing.assert_allclose(step.tokens, tokens - 0.3 * in_tokens.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(step.prompt, prompt - 0.3 * in_prompt.numpy(), rtol=0, atol=1e-13)
    np.testing.assert_allclose(step.alpha.sum(axis=1), 0.0, rtol=0, atol=rounding(15 + k))
    moved = step.tokens - tokens - 0.3 * step.alpha @ heads.T
    # As above: the terms are those of the step.
    np.testing.assert_allclose(np.linalg.norm(moved, axis=1), step.token_errors, rtol=0, atol=1e-13)


def test_tokens_move_towards_the_heads_of_their_classes() -> None:
    """At a small start the errors are of its size, and what a token learns is where it occurs."""
    sequences = [np.array([c, 3, 3]) for c in range(3) for _ in range(2)]
    rng = np.random.default_rng(0)
    heads, small = np.eye(8)[:, :3], 1e-9
    step = class_first_step(
        sequences, np.repeat(np.arange(3), 2), small * rng.standard_normal((4, 8)), small * rng.standard_normal(8),
        heads, 1.0,
    )  # fmt: skip
    assert step.alpha[:3].argmax(axis=1).tolist() == [0, 1, 2]
    np.testing.assert_allclose(step.alpha[3], 0.0, rtol=0, atol=1e-16)  # a token of all classes goes nowhere
    assert step.token_errors.max() < 10 * small
    assert step.prompt_error < 10 * small
    # The rest is of the size of the overlaps, 1e-9, and known to its own digits: a thousandth start has a thousandth.
    less = class_first_step(
        sequences, np.repeat(np.arange(3), 2), step.tokens * 0 + 1e-12 * np.arange(1, 33).reshape(4, 8),
        np.zeros(8), heads, 1.0,
    )  # fmt: skip
    more = class_first_step(
        sequences, np.repeat(np.arange(3), 2), step.tokens * 0 + 1e-9 * np.arange(1, 33).reshape(4, 8),
        np.zeros(8), heads, 1.0,
    )  # fmt: skip
    # The rest is linear in the overlaps up to their square, (3.2e-8)^2 = 1e-15 at most, here of entries near 1e-10.
    np.testing.assert_allclose(more.rest, 1000 * less.rest, rtol=0, atol=1e-15)
    assert np.abs(more.rest).max() > 1e-11


def test_two_classes_are_the_binary_step() -> None:
    rng = np.random.default_rng(4)
    rows = [["a", "b", "c"], ["d", "b", "c"], ["a", "c", "c"], ["d", "b", "b"]]
    corpus = TokenCorpus.of(rows, [1, -1, 1, -1])
    tokens, prompt, head = rng.standard_normal((4, 6)), rng.standard_normal(6), rng.standard_normal(6)
    binary = first_step(Embeddings.of(corpus, tokens, prompt, head), 0.5)
    sequences = np.split(corpus.tokens, np.cumsum(corpus.lengths)[:-1])
    several = class_first_step(
        sequences, np.array([1, 0, 1, 0]), tokens, prompt, np.stack([-head / 2, head / 2], axis=1), 0.5
    )
    # Shares of 12 tokens; steps of some 12 terms of size ten.
    np.testing.assert_allclose(
        several.alpha[:, 1] - several.alpha[:, 0], corpus.signed_share, rtol=0, atol=rounding(12)
    )
    np.testing.assert_allclose(several.tokens, binary.after.geometry.vectors[:4], rtol=0, atol=rounding(40, 10))
    np.testing.assert_allclose(several.prompt, binary.after.prompt, rtol=0, atol=rounding(40, 10))
    np.testing.assert_allclose(several.token_errors, binary.token_errors(), rtol=0, atol=rounding(40, 10))


def test_sequences_and_classes_that_do_not_fit_get_one_line() -> None:
    one = np.zeros((1, 2))
    with pytest.raises(ValueError, match="class 1 has no example"):
        class_first_step([np.array([0])], np.array([0]), one, one[0], np.eye(2), 1.0)
    with pytest.raises(ValueError, match="a sequence is empty"):
        class_first_step([np.array([0]), np.array([], dtype=int)], np.array([0, 1]), one, one[0], np.eye(2), 1.0)
    assert class_shares([np.array([0])], np.array([0]), 1, 2).tolist() == [[0.5, -0.5]]


@pytest.mark.parametrize("k", [3, 4])
def test_the_multinomial_classifier_of_exponent_one_is_a_class_problem(k: int) -> None:
    """Keys that are unit vectors, one per token and one for the sink; the intercepts are beside all values."""
    rng = np.random.default_rng(k)
    n, m = 4 * k, 6
    present = rng.random((n, m)) < 0.5
    present[:, 0] = True  # a text without any known token gets the prior, which is no attention
    classes, mask = np.arange(n) % k, np.concatenate([present, np.ones((n, 1), dtype=bool)], axis=1)
    model = TokenModel(rng.standard_normal(m), rng.standard_normal((m, k)), 0.3, rng.standard_normal(k), np.zeros(k))
    values = np.concatenate([model.values, np.zeros((1, k))]) + model.intercept
    problem = ClassProblem.of(
        np.broadcast_to(np.eye(m + 1), (n, m + 1, m + 1)), classes,
        class_logits=np.broadcast_to(values, (n, m + 1, k)), mask=mask,
    )  # fmt: skip
    ours, p = ClassObjective(problem), np.append(model.logits, model.sink_logit)

    def loss(p) -> float:
        outputs = replace(model, logits=p[:-1], sink_logit=float(p[-1])).decide(sp.csr_matrix(present.astype(float)))
        return float(-log_softmax(outputs, axis=1)[np.arange(n), classes].mean())

    np.testing.assert_allclose(ours.value(p), loss(p), rtol=rounding(8 * p.size + 4 * n))
    differences = [(loss(p + 1e-5 * e) - loss(p - 1e-5 * e)) / 2e-5 for e in np.eye(m + 1)]
    np.testing.assert_allclose(ours.gradient(p), differences, rtol=0, atol=1e-9)  # h^2, and eps / h


def test_training_p_after_the_first_step_is_the_binary_one_for_two_classes() -> None:
    """Joint training in paper A's order: one step on tokens and prompt, then p alone, named and certified."""
    rng = np.random.default_rng(3)
    sequences = np.array([[0, 1, 2], [0, 3, 4], [5, 1, 4]])
    tokens, prompt = rng.standard_normal((6, 40)) / 40**0.5, rng.standard_normal(40) / 40**0.5
    for k in (2, 3):
        classes, heads = np.arange(3) % k, rng.standard_normal((40, k)) / 40**0.5
        step = class_first_step(list(sequences), classes, tokens, prompt, heads, 30.0)
        problem = ClassProblem.of(step.tokens[sequences], classes, head=heads)
        limit = limit_of(problem, step.prompt)
        assert limit.outcome in ("direction", "finite part")
        assert limit.angle <= SETTLED
        if k == 2:
            signs, head = 2 * classes - 1.0, heads[:, 1] - heads[:, 0]
            binary = limit_of(TokenProblem.of(step.tokens[sequences], signs, head=head), step.prompt)
            np.testing.assert_array_equal(limit.selected, binary.selected)
            # Both are certified vectors of one problem.
            assert_same_vector(limit.solution.vector, binary.solution.vector, limit.solution, binary.solution)
