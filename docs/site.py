"""What the site says of itself: pages made from the code, and the navigation over what there is.

A page per experiment (what it shows, its settings, how to run it), a page per room of the interface, and the examples,
which are scripts that the tests run.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import tokenmargin
from tokenmargin.experiments import EXPERIMENTS, AbstractExperiment, command
from tokenmargin.report.explore.page import explore_page

HERE = Path(__file__).parent
GUIDE = ("guide.md", "experiments.md", "figures.md", "map.md", "extending.md")


def on_config(config: Any) -> Any:
    """The navigation: what is there, in a sensible order; a page nobody placed goes to the notes."""
    written = {path.relative_to(HERE).as_posix() for path in HERE.rglob("*.md")}
    results = sorted(page for page in written if page.startswith("results/"))
    notes = sorted(written - set(GUIDE) - set(results) - {"index.md", "explore.md"})
    config.nav = [
        {"Home": "index.md"},
        {"See it": "explore.md"},
        {"Guide": [page for page in GUIDE if page in written]},
        {"Examples": [f"examples/{path.stem}.md" for path in _examples()]},
        {"Results": results},
        {"Notes": notes},
        {"Figures": [{_label(experiment): _figure_page(experiment)} for experiment in EXPERIMENTS]},
        {"Interface": [{name: f"api/{name}.md"} for name in _rooms()]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code."""
    pages = {_figure_page(experiment): figure_text(experiment) for experiment in EXPERIMENTS}
    pages |= {f"api/{name}.md": _room_text(name) for name in _rooms()}
    pages |= {f"examples/{path.stem}.md": example_text(path.read_text(), path.name) for path in _examples()}
    pages["explore/index.html"] = explore_page(picture="../explore.png")
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))
    return files


def figure_text(experiment: type[AbstractExperiment]) -> str:
    """The page of one experiment."""
    quick, paper = asdict(experiment.quick()), asdict(experiment.paper())
    rows = [f"| `--{name.replace('_', '-')}` | `{quick[name]}` | `{paper[name]}` |" for name in quick]
    doc = re.sub(r"\s*\n\s*", " ", experiment.__doc__ or "")
    parts = [
        f"# {experiment.figure}: {experiment.title}",
        f"*{experiment.source}*",
        f"**The paper shows** {experiment.shows}",
        *(["**Differences**", *(f"- {difference}" for difference in experiment.differences)]),
        "**To run it**",
        f"```sh\n{command(experiment.quick())}\ntokenmargin reproduce {experiment.figure} --scale paper\n```",
        doc,
        *_times(experiment),
        *([f"Needs `pip install 'tokenmargin[{','.join(experiment.needs)}]'`."] if experiment.needs else []),
        *(["**Settings**", "| flag | quick | paper |\n|---|---|---|\n" + "\n".join(rows)] if rows else []),
    ]
    if not experiment.differences:
        parts = [part for part in parts if part != "**Differences**"]
    return "\n\n".join(parts) + "\n"


def _times(experiment: type[AbstractExperiment]) -> list[str]:
    named = zip(("at the quick scale", "at the paper's"), experiment.seconds, strict=True)
    known = [f"about {seconds:g} s {name}" for name, seconds in named if seconds is not None]
    return [f"On two cores {', '.join(known)}."] if known else []


def example_text(script: str, name: str) -> str:
    """A script with cells (`# %% [markdown]` and `# %%`) as a page."""
    parts = [f"*This page is `docs/examples/{name}`, a script that the tests run.*"]
    for cell in re.split(r"^# %%", script, flags=re.M)[1:]:
        kind, _, body = cell.partition("\n")
        if "[markdown]" in kind:
            parts.insert(len(parts), "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.splitlines()))
        elif body.strip():
            parts.append(f"```python\n{body.strip()}\n```")
    return "\n\n".join([parts[1], parts[0], *parts[2:]]) + "\n"


def _examples() -> list[Path]:
    return sorted((HERE / "examples").glob("*.py"))


def _label(experiment: type[AbstractExperiment]) -> str:
    return f"{experiment.figure}: {experiment.title}"


def _figure_page(experiment: type[AbstractExperiment]) -> str:
    return f"figures/{experiment.figure.lower()}.md"


def _rooms() -> list[str]:
    """Modules and folders of the package, in the order of the alphabet."""
    found = pkgutil.iter_modules(tokenmargin.__path__)
    return [module.name for module in found if not module.name.startswith("_") and module.name != "cli"]


def _room_text(name: str) -> str:
    return f"# {name}\n\n" + "\n\n".join(f"::: tokenmargin.{module}" for module in _public_modules(name)) + "\n"


def _public_modules(name: str) -> Iterator[str]:
    """The room itself, or for a folder its modules."""
    room = importlib.import_module(f"tokenmargin.{name}")
    if not hasattr(room, "__path__"):
        yield name
        return
    for module in pkgutil.walk_packages(room.__path__, f"{name}."):
        if not any(part.startswith("_") for part in module.name.split(".")) and not module.ispkg:
            yield module.name
