"""What an installation brings along: `python -m benchmarks.dependencies [--extra NAME ...] [--out sbom.json]`.

Prints every distribution that the base install (and the extras named, or `--extra all`) needs and that is installed,
with version and licence as its metadata states them. `--out` writes the same as a CycloneDX document, in which what the
base install needs is required and the rest optional.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks.tools import run_main

__all__ = ["COPYLEFT", "closure", "document", "licence"]

COPYLEFT = ("GPL", "AGPL", "LGPL", "GNU ", "EUPL", "SSPL", "MPL")
"""Words in the name of a licence that asks something of those who distribute the whole."""
_NAMES = re.compile(r"(GNU (Lesser |Affero )?General|Mozilla|Eclipse) Public License", re.IGNORECASE)


def closure(name: str, extras: Sequence[str] = ()) -> dict[str, metadata.Distribution]:
    """The installed distributions that `name` needs, itself included, by canonical name."""
    found: dict[str, metadata.Distribution] = {}
    left: list[tuple[str, tuple[str, ...]]] = [(name, tuple(extras))]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while left:
        here, wanted = left.pop()
        if (here, wanted) in seen:
            continue
        seen.add((here, wanted))
        try:
            found[canonicalize_name(here)] = distribution = metadata.distribution(here)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for line in distribution.requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in ("", *wanted)):
                left.append((requirement.name, tuple(sorted(requirement.extras))))
    return dict(sorted(found.items()))


def licence(distribution: metadata.Distribution) -> str:
    """The licence as the metadata names it: the expression, the classifiers, the first that the field's text names, or
    its first line."""
    about = distribution.metadata
    if expression := about.get("License-Expression"):
        return expression
    classes = [line.split("::")[-1].strip() for line in about.get_all("Classifier") or () if "License ::" in line]
    text = about.get("License") or "not stated"
    named = _NAMES.search(text)
    return ", ".join(classes) or (named.group() if named else text.splitlines()[0])


def document(distributions: dict[str, metadata.Distribution]) -> dict[str, object]:
    """The bill of materials, in CycloneDX's form."""
    base = closure("tokenmargin")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": name,
                "version": found.version,
                "scope": "required" if name in base else "optional",
                "purl": f"pkg:pypi/{name}@{quote(found.version)}",
                "licenses": [{"license": {"name": licence(found)}}],
            }
            for name, found in distributions.items()
        ],
    }


def main(*, extra: list[str] | None = None, out: Path | None = None) -> None:
    every = metadata.metadata("tokenmargin").get_all("Provides-Extra") or []
    found = closure("tokenmargin", every if extra == ["all"] else extra or ())
    for name, distribution in found.items():
        print(f"{name:24} {distribution.version:14} {licence(distribution)}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(document(found), indent=1) + "\n")
        print(f"written to {out}")


if __name__ == "__main__":
    run_main(main, __doc__)
