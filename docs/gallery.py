"""The pictures of the gallery, remade: `python docs/gallery.py [FIGURE ...]` runs the figures at their quick scale.

Each run leaves a small picture and its findings, expected beside measured, in `docs/gallery/`. What takes a GPU has its
picture from the runs described under *Measured*, listed in `BY_HAND`; A1, A3 and A4 are run here too when they are
named and their data are in the cache (`tokenmargin data get imdb`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenmargin.experiments import EXPERIMENTS, command
from tokenmargin.report.figures import draw

HERE = Path(__file__).parent
FOLDER = HERE / "gallery"
WIDTH = 1000  # pixels: sharp at the width of a page
BY_HAND = {
    "A1": ("img/embeddings-A1.png", "training.md"),
    "A3-imdb": ("img/embeddings-A3-imdb.png", "training.md"),
    "A3-yelp": ("img/embeddings-A3-yelp.png", "training.md"),
    "A4": ("img/embeddings-A4.png", "training.md"),
    "fig6": ("img/vision-fig6.png", "vision-results.md"),
    "fig7": ("img/vision-fig7.png", "vision-results.md"),
}
"""Figures whose picture comes from a larger run: the picture, and the page that describes the run."""


def remake(names: list[str]) -> None:
    """Run the figures named, or all that are not drawn by hand, and write picture and findings."""
    FOLDER.mkdir(exist_ok=True)
    for experiment in EXPERIMENTS:
        name = experiment.figure
        if (names and name not in names) or (not names and name in BY_HAND):
            continue
        settings = experiment.quick()
        result = settings.run()
        facts = {
            "command": command(settings),
            "findings": [
                {"what": one.what, "measured": f"{one.measured:.6g}", "expected": one.expected, "verdict": one.verdict}
                for one in result.findings
            ],
            "notes": list(result.notes),
        }
        (FOLDER / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        picture = draw(result)
        if picture is not None:
            _write_small(picture, FOLDER / f"{name}.png")
        print(f"{name}: {result.verdict}", flush=True)


def _write_small(figure: object, path: Path) -> None:
    """A picture with a palette: a few colours need few bytes."""
    import io

    from PIL import Image

    buffer = io.BytesIO()
    width = figure.get_size_inches()[0]  # type: ignore[attr-defined]
    figure.savefig(buffer, format="png", dpi=WIDTH / max(width, 4.5))  # type: ignore[attr-defined]
    buffer.seek(0)
    Image.open(buffer).convert("RGB").quantize(96).save(path, optimize=True)


if __name__ == "__main__":
    remake(sys.argv[1:])
