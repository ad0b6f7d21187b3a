"""What an installation brings along: `python -m benchmarks.dependencies [--extra NAME ...] [--out sbom.json]`.

Prints every distribution that the base install (and the extras named) needs, with version and licence as its metadata
states them; `--out` writes the same as a CycloneDX document.
"""

from __future__ import annotations

import argparse
import importlib.metadata as metadata
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["COPYLEFT", "closure", "licence"]

COPYLEFT = ("GPL", "AGPL", "LGPL", "GNU ", "EUPL", "SSPL", "MPL")
"""Words in the name of a licence that asks something of those who distribute the whole."""


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
    """The licence as the metadata names it: the expression, else the classifiers, else the first line of the field."""
    about = distribution.metadata
    if expression := about.get("License-Expression"):
        return expression
    classes = [line.split("::")[-1].strip() for line in about.get_all("Classifier") or () if "License ::" in line]
    return ", ".join(classes) or (about.get("License") or "not stated").splitlines()[0]


def document(distributions: dict[str, metadata.Distribution]) -> dict[str, object]:
    """The bill of materials, in CycloneDX's form."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "components": [
            {
                "type": "library",
                "name": name,
                "version": found.version,
                "purl": f"pkg:pypi/{name}@{found.version}",
                "licenses": [{"license": {"name": licence(found)}}],
            }
            for name, found in distributions.items()
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--extra", nargs="*", default=(), help="extras beside the base install")
    parser.add_argument("--out", type=Path, help="file for the CycloneDX document")
    options = parser.parse_args()
    found = closure("tokenmargin", options.extra)
    for name, distribution in found.items():
        print(f"{name:24} {distribution.version:14} {licence(distribution)}")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(document(found), indent=1) + "\n")
        print(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
