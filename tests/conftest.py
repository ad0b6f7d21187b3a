"""Shapes in annotations are checked while testing: jaxtyping and beartype wrap every function of the exact rooms."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import jaxtyping
import pytest

# What a script starts in the background ignores Ctrl-C, and so would the programs that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test fails for being slow.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

ROOMS = (
    "problem",
    "selection",
    "objective",
    "margin",
    "dynamics",
    "_statistics",
    "classifier.attribution",
    "classifier.fitting",
    "classifier.explanation",
    "classifier.importance",
    "classifier.solver",
    "classifier.token_model",
    "classifier.vocabulary",
    "classifier.what_if",
)
jaxtyping.install_import_hook([f"tokenmargin.{room}" for room in ROOMS], "beartype.beartype")


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """For runs of many steps: checking shapes would take most of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def ray_cluster() -> Iterator[Callable[[int], tuple[Any, list[Any]]]]:
    """Start a ray cluster on this computer: a head and so many nodes that can be taken away."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})

    def start(count: int) -> tuple[Any, list[Any]]:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(count)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        # On a busy machine we may be connected to one of them, which then cannot be taken away: it comes last.
        ours = ray.get_runtime_context().get_node_id()
        return cluster, sorted(nodes, key=lambda node: node.node_id == ours)

    yield start
    ray.shutdown()
    cluster.shutdown()
