"""Losses, heads, attention maps, norms, methods, experiments and claims by name: our own, and what other packages add.

Another package adds something by naming it in its `pyproject.toml`, under an entry point group of this package:

    [project.entry-points."tokenmargin.losses"]
    hinge = "my_package:SmoothHinge"

Other packages are looked for only when something is asked for by name, and a package is imported only when the name is
its own. What cannot be loaded is left out with a warning of one line, which names the package and the reason;
everything else goes on working. A name of ours cannot be taken, and a name that two packages add goes to neither.
`MODULE:OBJECT` names an object of any module that can be imported, also from the current folder.
"""

from __future__ import annotations

import inspect
import os
import sys
import warnings
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

OWN = {
    "losses": {
        "logistic": "tokenmargin.objective.losses:LogisticLoss",
        "exponential": "tokenmargin.objective.losses:ExponentialLoss",
        "correlation": "tokenmargin.objective.losses:CorrelationLoss",
    },
    "heads": {},
    "attention_maps": {
        "softmax": "tokenmargin.objective.attention_maps:Softmax",
        "sparsemax": "tokenmargin.objective.attention_maps:Sparsemax",
        "entmax": "tokenmargin.objective.attention_maps:Entmax",
        "sigmoid": "tokenmargin.objective.attention_maps:Sigmoid",
    },
    "norms": {
        "l2": "tokenmargin.norms:L2",
        "l1": "tokenmargin.norms:L1",
        "linf": "tokenmargin.norms:LINF",
        "nuclear": "tokenmargin.norms:NUCLEAR",
        "spectral": "tokenmargin.norms:SPECTRAL",
    },
    "methods": {
        "ngd": "tokenmargin.dynamics.methods:NormalizedGradientDescent",
        "gd": "tokenmargin.dynamics.methods:GradientDescent",
        "momentum": "tokenmargin.dynamics.methods:momentum",
        "heavy-ball": "tokenmargin.dynamics.methods:Momentum",
        "nesterov": "tokenmargin.dynamics.methods:nesterov",
        "sign": "tokenmargin.dynamics.methods:sign",
        "coordinate": "tokenmargin.dynamics.methods:coordinate",
        "spectral": "tokenmargin.dynamics.methods:spectral",
        "muon": "tokenmargin.dynamics.methods:muon",
        "adam": "tokenmargin.dynamics.methods:Adam",
        "adamw": "tokenmargin.dynamics.methods:adamw",
        "polyak": "tokenmargin.dynamics.methods:Polyak",
        "mirror": "tokenmargin.dynamics.methods:MirrorDescent",
        "steepest": "tokenmargin.dynamics.methods:SteepestDescent",
    },
}
"""The one list of our own names, by group; the figures and the claims are listed in their rooms."""

KIND = {
    "losses": "tokenmargin.objective.losses:AbstractLoss",
    "heads": "tokenmargin.objective.local_scores:NonlinearHead",
    "attention_maps": "tokenmargin.objective.attention_maps:AttentionMap",
    "norms": "tokenmargin.norms:AbstractNorm",
    "methods": "tokenmargin.dynamics.methods:AbstractMethod",
    "experiments": "tokenmargin.experiments.experiment:AbstractExperiment",
    "claims": "tokenmargin.theory.claim:Claim",
}
"""What a group holds: of methods and experiments the classes (of methods also functions that make one), of the others
the objects."""

CLASSES = ("methods", "experiments")
NAMED_BY = {"experiments": "figure", "claims": "name"}  # where an object says its own name


class PluginError(ValueError):
    """A name that nothing answers to, or something added that cannot be used; the message says which and why."""


class PluginWarning(UserWarning):
    """Something that another package adds was left out."""


def names(group: str) -> tuple[str, ...]:
    """Every name of a group, ours first; nothing is loaded."""
    own = OWN.get(group, {})
    return (*own, *(name for name in added_names(group) if name.lower() not in own))


def own_objects(group: str) -> tuple[tuple[str, Any], ...]:
    """What is ours in a group, by name, without a look at other packages."""
    return tuple((name, _as_kind(group, _import_place(place), name)) for name, place in OWN[group].items())


def added_names(group: str) -> tuple[str, ...]:
    """The names that other packages add to a group, whether or not they can be loaded."""
    return tuple(sorted({entry.name for entry in _entries(group)}, key=str.lower))


def find(group: str, name: str) -> Any:
    """What a name stands for: one of ours, one that a package adds, or `MODULE:OBJECT`."""
    if ":" in name:
        return _load_place(group, name)
    asked = [entry for entry in _entries(group) if entry.name.lower() == name.lower()]
    if (place := OWN.get(group, {}).get(name)) is not None:
        for entry in asked:
            _warn(group, _name_is_taken(entry))
        return _as_kind(group, _import_place(place), name)
    if not asked:
        known = ", ".join(names(group)) or "none so far"
        raise PluginError(f"there is no {name!r} among the {group}; choose from {known}, or give MODULE:OBJECT")
    return _load(group, asked)


def load_added(group: str, taken: Iterable[str] = ()) -> dict[str, Any]:
    """All that other packages add to a group, by name; what cannot be used is left out with a warning of one line."""
    ours, found = {name.lower() for name in taken}, {}
    asked: dict[str, list[EntryPoint]] = {}
    for entry in _entries(group):
        asked.setdefault(entry.name.lower(), []).append(entry)
    for name, entries in sorted(asked.items()):
        try:
            if name in ours:
                raise _name_is_taken(entries[0])
            found[entries[0].name] = _load(group, entries)
        except PluginError as error:
            _warn(group, error)
    return found


def _warn(group: str, reason: PluginError) -> None:
    warnings.warn(f"left out of the {group}: {reason}", PluginWarning, stacklevel=3)


def _name_is_taken(entry: EntryPoint) -> PluginError:
    return PluginError(f"{_package_of(entry)}: tokenmargin has a {entry.name!r} of its own; choose another name")


def _entries(group: str) -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # milliseconds that importing tokenmargin shall not cost

    return tuple(entry_points(group=f"tokenmargin.{group}"))


def _load(group: str, entries: list[EntryPoint]) -> Any:
    """The object behind the one entry of its name; any failure names the package."""
    if len(entries) > 1:
        owners = " and ".join(sorted(_package_of(entry) for entry in entries))
        raise PluginError(f"{owners} both add {entries[0].name!r}; uninstall one of them")
    (entry,) = entries
    try:
        return _as_kind(group, entry.load(), entry.name)
    except Exception as error:
        raise PluginError(f"{_package_of(entry)}: {entry.name!r} ({entry.value}): {_in_a_line(error)}") from error


def _load_place(group: str, place: str) -> Any:
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        return _as_kind(group, _import_place(place), None)
    except Exception as error:
        raise PluginError(f"{place}: {_in_a_line(error)}") from error


def _import_place(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _as_kind(group: str, found: Any, name: str | None) -> Any:
    """The object, or what its class or function makes, after a check that kind and name are right."""
    kind = _import_place(KIND[group])
    if group in CLASSES:
        fits = isinstance(found, type) and issubclass(found, kind) and not inspect.isabstract(found)
        wanted = f"a subclass of {kind.__name__} without abstract methods"
        if group == "methods":
            fits, wanted = fits or inspect.isfunction(found), f"{wanted}, or a function that makes one"
    else:
        found = found() if not isinstance(found, kind) and callable(found) else found
        fits, wanted = (
            isinstance(found, kind),
            f"of type {kind.__name__}, or what makes one when called without arguments",
        )
    if not fits:
        raise TypeError(f"must be {wanted}, got {kind_in_words(found)}")
    called = getattr(found, NAMED_BY[group], name) if group in NAMED_BY else name
    if name is not None and called != name:
        raise ValueError(f"calls itself {called!r}; the entry point must have that name")
    return found


def kind_in_words(found: object) -> str:
    """What kind of object it is, in words for a message."""
    return f"the class {found.__name__}" if isinstance(found, type) else f"an object of type {type(found).__name__}"


def _package_of(entry: EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else "a package"


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
