"""Shapes in annotations are checked while testing: jaxtyping and beartype wrap every function of the exact rooms."""

from collections.abc import Iterator

import jaxtyping
import pytest

ROOMS = (
    "geometry",
    "problem",
    "instances",
    "selection",
    "attention",
    "margin",
    "dynamics",
    "corpus",
    "corpora",
    "embedding",
)
jaxtyping.install_import_hook([f"tokenmargin.{room}" for room in ROOMS], "beartype.beartype")


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """For runs of many steps: checking shapes would take most of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
