"""Run a function in several processes that form a process group, and get what each returns."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from tokenmargin.training.ranks import join_ranks


def together(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`work(ranks, *arguments)` on `size` ranks; what they return, in order of rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tokenmargin.training.trainer"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        environment = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(context.Process(target=_member, args=(theirs, environment, work, arguments)))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return results


def _member(pipe: Connection, environment: dict[str, object], work: Callable[..., Any], arguments: tuple[Any]) -> None:
    os.environ |= {name: str(value) for name, value in environment.items()}
    torch.set_num_threads(1)
    with join_ranks() as ranks:
        pipe.send(work(ranks, *arguments))
