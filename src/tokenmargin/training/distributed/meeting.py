"""How ranks find each other again after a restart.

`torchrun` lets the ranks of all attempts share one store of keys, so a new rank can read what a dead one left there and
wait for it for ever. Here every process proves that it is alive: each puts down a token of its own, the first rank
answers with all of them and a name for the attempt, and each accepts only an answer to its own token.
"""

from __future__ import annotations

import json
import secrets
import time

from torch.distributed.distributed_c10d import PrefixStore, Store

__all__ = ["rendezvous"]

PAUSE = 0.01


def rendezvous(store: Store, rank: int, size: int, *, timeout: float) -> Store:
    """A store that only the living ranks of this attempt use."""
    deadline = time.monotonic() + timeout
    name = _invite(store, size, deadline) if rank == 0 else _answer(store, rank, deadline)
    return PrefixStore(name, store)


def _invite(store: Store, size: int, deadline: float) -> str:
    """Answer to the tokens that are there, again when one changes, until every rank has agreed to our name."""
    name, said = secrets.token_hex(8), ""
    others = range(1, size)
    while not store.check([f"agreed/{name}/{rank}" for rank in others]):
        known = [rank for rank in others if store.check([f"token/{rank}"])]
        answer = json.dumps([name, {str(rank): store.get(f"token/{rank}").decode() for rank in known}])
        if answer != said:
            store.set("answer", answer)
            said = answer
        _pause(deadline, f"{len(known)} of {size - 1} other ranks came")
    return name


def _answer(store: Store, rank: int, deadline: float) -> str:
    """Put down a token and wait for the answer to it."""
    token = secrets.token_hex(8)
    store.set(f"token/{rank}", token)
    while True:
        if store.check(["answer"]):
            name, tokens = json.loads(store.get("answer"))
            if tokens.get(str(rank)) == token:
                store.set(f"agreed/{name}/{rank}", "")
                return str(name)
        _pause(deadline, "the first rank did not answer")


def _pause(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"the ranks did not meet in time: {what}; do all of them run, and reach the same address?")
    time.sleep(PAUSE)
