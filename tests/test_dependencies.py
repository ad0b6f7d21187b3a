"""What the base install brings along."""

import re

from benchmarks.dependencies import COPYLEFT, closure, licence


def test_the_base_install_is_permissive() -> None:
    found = closure("tokenmargin")
    assert {"numpy", "scipy", "numba", "daqp"} <= set(found)
    asking = {
        name: licence(distribution)
        for name, distribution in found.items()
        if any(re.search(rf"\b{word.strip()}", licence(distribution)) for word in COPYLEFT)
    }
    assert not asking
    assert "torch" not in found


def test_an_extra_brings_its_own() -> None:
    assert "scikit-learn" in closure("tokenmargin", ["classify"])
    assert "scikit-learn" not in closure("tokenmargin")
