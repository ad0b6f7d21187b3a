"""Ranks that meet in a store full of what dead ranks have left there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from tokenmargin.training.ranks import rendezvous


def gather(store: HashStore, size: int) -> list[str]:
    """All ranks meet, each leaves its mark for the others; what each reads of the last rank's."""

    def member(rank: int) -> str:
        ours = rendezvous(store, rank, size, timeout=20.0)
        ours.set(f"mark/{rank}", f"{rank} of this attempt")
        ours.wait([f"mark/{size - 1}"])
        return ours.get(f"mark/{size - 1}").decode()

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


def test_every_attempt_has_keys_of_its_own():
    store = HashStore()
    for size in (3, 3, 2, 4):  # the second finds the tokens, answers and agreements of the first, and so on
        assert gather(store, size) == [f"{size - 1} of this attempt"] * size
        store.set("token/1", "of a rank that died before it was answered")


def test_a_rank_that_does_not_come_is_named():
    with pytest.raises(
        TimeoutError, match="the ranks did not meet in time: 0 of 1 other ranks came; do all of them run"
    ):
        rendezvous(HashStore(), 0, 2, timeout=0.05)
    with pytest.raises(TimeoutError, match="the first rank did not answer"):
        rendezvous(HashStore(), 1, 2, timeout=0.05)
