"""The transitive_reduction relation against a search over all chains, and cycles against their sum."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmargin.margin import RowPairs
from tokenmargin.margin.corpus.pairs import transitive_reduction

ROWS = 9


def as_pairs(edges: set[tuple[int, int]], ties: tuple[tuple[int, int], ...] = ()) -> RowPairs:
    ordered = sorted(edges)
    heads = sorted({head for head, _ in ordered})
    counts = [sum(head == h for head, _ in ordered) for h in heads]
    return RowPairs(
        selected=np.array(heads, dtype=np.intp),
        starts=np.concatenate([[0], np.cumsum(counts, dtype=np.intp)]),
        rivals=np.array([rival for _, rival in ordered], dtype=np.int32),
        ties=np.array(ties, dtype=np.intp).reshape(-1, 2),
        occurrences=len(ordered),
    )


def edges_of(pairs: RowPairs, numbers: np.ndarray) -> set[tuple[int, int]]:
    return set(zip(pairs.plus(numbers).tolist(), pairs.rivals[numbers].tolist(), strict=True))


def reachable(edges: set[tuple[int, int]]) -> np.ndarray:
    """Whether a chain of edges leads from row to row (Warshall)."""
    chain = np.zeros((ROWS, ROWS), dtype=bool)
    for head, rival in edges:
        chain[head, rival] = True
    for through in range(ROWS):
        chain |= np.outer(chain[:, through], chain[through])
    return chain


graphs = st.sets(
    st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1)).filter(lambda e: e[0] != e[1]), min_size=1
)


@given(graphs)
def test_covering_pairs_are_those_no_chain_replaces_and_cycles_close(edges: set[tuple[int, int]]) -> None:
    pairs = as_pairs(edges)
    cover = transitive_reduction(pairs, ROWS)
    found = edges_of(pairs, cover.numbers)
    chain = reachable(edges)
    assert cover.cyclic == chain.diagonal().any()
    if cover.cyclic:
        assert found <= edges
        incidence = np.zeros(ROWS)
        for head, rival in found:
            incidence[head] += 1
            incidence[rival] -= 1
        assert not incidence.any()
    else:
        expected = {(s, u) for s, u in edges if not any(chain[s, t] and chain[t, u] for t in range(ROWS))}
        assert found == expected
        np.testing.assert_array_equal(reachable(found), chain)


def test_a_total_order_is_a_chain() -> None:
    pairs = as_pairs({(i, j) for i, j in itertools.combinations(range(ROWS), 2)})
    assert edges_of(pairs, transitive_reduction(pairs, ROWS).numbers) == {(i, i + 1) for i in range(ROWS - 1)}


def test_tied_rows_count_as_one() -> None:
    pairs = as_pairs({(0, 1), (2, 3), (0, 3)}, ties=((1, 2),))  # 0 before 1 = 2 before 3
    assert edges_of(pairs, transitive_reduction(pairs, ROWS).numbers) == {(0, 1), (2, 3)}
    both = as_pairs({(0, 3), (1, 3)}, ties=((0, 1),))
    assert len(transitive_reduction(both, ROWS).numbers) == 1


@pytest.mark.parametrize(
    ("edges", "ties"), [({(0, 1)}, ((0, 1),)), ({(0, 1), (2, 3)}, ((1, 2), (0, 3))), ({(0, 1), (1, 0), (0, 2)}, ())]
)
def test_cycles_through_ties_are_found(edges: set[tuple[int, int]], ties: tuple[tuple[int, int], ...]) -> None:
    pairs = as_pairs(edges, ties)
    cover = transitive_reduction(pairs, ROWS)
    assert cover.cyclic
    assert edges_of(pairs, cover.numbers) <= edges
