"""Next tokens: a corpus of a million tokens, and the two ways to a limit compared on random problems.

    python -m benchmarks.next_token corpus reviews.safetensors [--tokens 1000000] [--window 32] [--steps 300]
    python -m benchmarks.next_token model reviews.safetensors [--tokens 5000] [--window 8] [--steps 3000]
    python -m benchmarks.next_token audit [--count 40] [--first 0]

`corpus` times graphs and both parts of the limit on ids written by `tokenmargin prepare`, and follows normalised
descent on the table of logits: the cosine to the certified direction, and the loss above its certified infimum. `model`
trains one layer of attention in torch on the first tokens (one-hot embeddings, weights from zero, all sequences at
every step) by gradient descent, by normalised descent and by Adam, and compares its W with the certified limit. `audit`
draws problems from the families of the claims' audit, solves the limit without training, and follows gradient flow from
two starts to |W| = 1e8: both parts must agree.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Literal

import numpy as np

from benchmarks.claims_families_d import FAMILIES, other_head, other_loss
from benchmarks.tools import run_main
from tokenmargin.data.prepared import load_prepared
from tokenmargin.limits import Limit, NextTokenLimit, limit_of, next_token_limit
from tokenmargin.limits.tied_choice import tied_choice
from tokenmargin.objective.losses import LogLoss
from tokenmargin.problem.next_token import NextTokenProblem, next_token_windows

ANGLE, DISTANCE = 1e-6, 1e-6
"""Largest angle between the two directions, and distance of the two finite parts over their length plus one."""


def first_tokens(path: str, tokens: int, window: int) -> NextTokenProblem:
    """The windows over the whole texts among the first so many tokens."""
    read = load_prepared(path).corpus()
    lengths = read.lengths[: int(np.searchsorted(np.cumsum(read.lengths), tokens, side="right"))]
    return next_token_windows(read.tokens[: int(lengths.sum())], lengths, read.vocabulary, window=window)


def corpus(path: str, tokens: int, window: int, steps: int) -> int:
    clock = [time.process_time()]
    problem = first_tokens(path, tokens, window)
    clock.append(time.process_time())
    print(problem, f"of {tokens} tokens at most, {len(problem.tokens)} in all sequences")
    print(problem.graph)
    clock.append(time.process_time())
    limit = next_token_limit(problem)
    clock.append(time.process_time())
    print(limit)
    finite = limit.finite
    print(f"certified: {limit.is_certified}; residual {limit.direction.certificate.residual:.1e}, gradient "
          f"{finite.gradient:.1e}, within {finite.distance:.1e}; infimum of the loss {finite.risk:.6f}")  # fmt: skip
    spent = dict(zip(("reading, sequences", "graphs", "limit"), np.diff(clock).round(1).tolist(), strict=True))
    print(f"CPU seconds: {spent}, {clock[-1] - clock[0]:.1f} in all")
    if steps:
        _descend(limit, steps)
    return 0 if limit.is_certified else 1


def _descend(limit: NextTokenLimit, steps: int) -> None:
    """Normalised descent on the logits of all nodes: steps of half the length of W_mm at first, falling as 1/sqrt."""
    _, queries = np.unique(limit.graph.last, return_inverse=True)
    whole = tied_choice(limit.problem, replace(limit.graph, component=queries))
    target, logits = limit.direction.vector, np.zeros(limit.graph.nodes)
    # Sequences of one distinct token teach nothing, and are not among the choices.
    for step in range(1, steps + 1):
        shares, losses = whole.shares(logits)
        pull = whole.pull(shares)
        logits = logits + np.linalg.norm(target) / 2 / np.sqrt(step) * pull / np.linalg.norm(pull)
        if step in (1, 10, 30, 100, 300, 1000, 3000) or step == steps:
            cosine = float(logits @ target / np.linalg.norm(logits) / np.linalg.norm(target))
            off = limit.finite.logits - logits
            mean = (np.bincount(limit.graph.component, off) / np.bincount(limit.graph.component))[limit.graph.component]
            tied = float(np.linalg.norm(off - mean) / np.linalg.norm(limit.finite.logits))
            above = float(losses.sum()) / limit.problem.n - limit.finite.risk
            print(f"step {step}: |W| = {np.linalg.norm(logits):.0f}, cosine {cosine:.5f}, loss above its infimum "
                  f"{above:.2e}, finite part off by {tied:.3f} of its length")  # fmt: skip


def model(path: str, tokens: int, window: int, steps: int) -> int:
    """One layer of attention on the first tokens of a corpus, by torch's own gradients and optimisers."""
    import torch

    problem = first_tokens(path, tokens, window)
    limit = next_token_limit(problem)
    graph = limit.graph
    print(problem, graph, f"certified: {limit.is_certified}, infimum of the loss {limit.finite.risk:.6f}", sep="\n")
    # The entries of W that some sequence looks at, in the order of the graph's nodes; the others have no gradient.
    size = len(problem.vocabulary)
    order = np.argsort(graph.last * size + graph.token)
    rows = np.split(problem.tokens, np.cumsum(problem.lengths)[:-1])
    seen, ahead = np.zeros((problem.n, window), dtype=np.int64), np.full((problem.n, window), -np.inf)
    right = np.zeros((problem.n, window), dtype=bool)
    for i, row in enumerate(rows):
        wanted = row[-1] * size + row
        place = np.searchsorted((graph.last * size + graph.token)[order], wanted).clip(max=graph.nodes - 1)
        known = (graph.last * size + graph.token)[order[place]] == wanted
        seen[i, : len(row)], ahead[i, : len(row)] = order[place], 0.0
        right[i, : len(row)] = row == problem.labels[i]
        ahead[i, : len(row)][~known] = 0.0  # a sequence of one distinct token: its logits do not matter
    at, mask, next_one = (torch.from_numpy(array) for array in (seen, ahead, right))
    for name in ("descent", "normalised", "adam"):
        W = torch.zeros(graph.nodes, dtype=torch.float64, requires_grad=True)
        rate = {"descent": 0.02 * problem.n, "normalised": 1.0, "adam": 0.05}[name]
        optimiser = torch.optim.Adam([W], lr=rate) if name == "adam" else torch.optim.SGD([W], lr=rate)
        for step in range(1, steps + 1):
            optimiser.zero_grad()
            attended = torch.log_softmax(W[at] + mask, dim=1)
            loss = -torch.logsumexp(attended.masked_fill(~next_one, -torch.inf), dim=1).mean()
            loss.backward()
            if name == "normalised" and W.grad is not None:
                W.grad *= float(np.linalg.norm(limit.direction.vector)) / 2 / step**0.5 / W.grad.norm()
            optimiser.step()
            if step in (10, 100, 1000) or step == steps:
                now, target = W.detach().numpy(), limit.direction.vector
                length = float(np.linalg.norm(now))
                cosine = float(now @ target) / length / float(np.linalg.norm(target))
                above = float(loss.detach()) - limit.finite.risk
                print(
                    f"{name:10} step {step:5}: |W| = {length:6.1f}, cosine {cosine:.4f}, loss above infimum {above:.1e}"
                )
    return 0 if limit.is_certified else 1


def audit(count: int, first: int) -> int:
    families = [family for family in FAMILIES if family not in (other_head, other_loss)]
    outcomes, misses, angle, distance = Counter[str](), 0, 0.0, 0.0
    for k in range(first, first + count):
        rng = np.random.default_rng([19, k])
        x = families[k % len(families)](rng)
        limit = next_token_limit(x.problem)
        if not limit.is_certified:
            outcomes["not certified"] += 1
            continue
        for start in (None, rng.standard_normal(x.objective.dimension)):
            found = limit_of(x.objective.problem, start, loss=LogLoss())
            outcomes[found.outcome] += 1
            if found.outcome not in ("direction", "finite part", "bounded"):
                print(f"draw {k}, {x}: {found.outcome}: {found.reason}")
                continue
            off, apart = _compared(limit, found)
            angle, distance = max(angle, off), max(distance, apart)
            if not (off <= ANGLE and apart <= DISTANCE):
                misses += 1
                print(f"MISS draw {k}, {x}: angle {off:.1e}, finite part off by {apart:.1e} ({found.outcome})")
    print(f"{count} problems: {dict(outcomes)}; misses {misses}; largest angle {angle:.1e}, distance {distance:.1e}")
    return 1 if misses else 0


def _compared(limit: NextTokenLimit, found: Limit) -> tuple[float, float]:
    """Angle of the direction that the flow settled at to W_mm, and distance of its end in the tied span to W_fin."""
    basis = tied_choice(limit.problem, limit.graph).basis
    assert basis is not None, "the families have embeddings"
    apart = float(np.linalg.norm(basis @ (found.point - limit.finite.point)))
    diverges = np.isfinite(limit.direction.margin)
    if diverges != (found.outcome != "bounded"):
        return np.inf, apart
    if not diverges:
        return 0.0, apart / (1 + float(np.linalg.norm(limit.finite.point)))
    unit, target = (vector / np.linalg.norm(vector) for vector in (found.solution.vector, limit.direction.vector))
    off = float(2 * np.arcsin(min(np.linalg.norm(unit - target) / 2, 1.0)))
    return off, apart / (1 + float(np.linalg.norm(limit.finite.point)))


def main(
    kind: Literal["corpus", "model", "audit"],
    path: str = "",
    /,
    *,
    tokens: int | None = None,
    window: int | None = None,
    steps: int | None = None,
    count: int = 40,
    first: int = 0,
) -> int:
    """Unless given: a million tokens, windows of 32 and no steps for `corpus`; 5,000, 8 and 3,000 for `model`."""
    if kind == "audit":
        return audit(count, first)
    work, usual = {"corpus": (corpus, (1_000_000, 32, 0)), "model": (model, (5_000, 8, 3_000))}[kind]
    given = (tokens, window, steps)
    return work(path, *(own if asked is None else asked for asked, own in zip(given, usual, strict=True)))


if __name__ == "__main__":
    run_main(main, __doc__)
