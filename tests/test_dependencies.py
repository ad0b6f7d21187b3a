"""What the base install brings along."""

import email
import importlib.metadata as metadata
import re

import pytest
from benchmarks.dependencies import COPYLEFT, closure, document, licence


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


def test_a_licence_is_found_in_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    about = email.message_from_string("License: Solver 1.3\n  is under the GNU GENERAL PUBLIC LICENSE\n  version 3\n\n")
    monkeypatch.setattr(metadata.PathDistribution, "metadata", property(lambda _: about))
    assert licence(metadata.distribution("numpy")) == "GNU GENERAL PUBLIC LICENSE"


def test_an_extra_brings_its_own() -> None:
    assert "scikit-learn" in closure("tokenmargin", ["classify"])
    assert "scikit-learn" not in closure("tokenmargin")


def test_the_bill_of_materials_says_what_is_optional() -> None:
    found = closure("tokenmargin", ["classify"])
    components = document(found)["components"]
    assert isinstance(components, list)
    scopes = {component["name"]: component["scope"] for component in components}
    assert scopes.keys() == found.keys()
    assert (scopes["numpy"], scopes["scikit-learn"]) == ("required", "optional")
    assert all(component["licenses"][0]["license"]["name"] != "not stated" for component in components)
