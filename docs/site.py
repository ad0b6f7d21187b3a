"""What the site says of itself: pages made from the code, mathematics, and the navigation over what there is.

Made here: a page per experiment and the gallery (from `docs/gallery/`), the public names by task, the rooms, the
tutorials and examples (scripts with cells, run while the site is built). A page that nobody placed is placed by its
folder.
"""

from __future__ import annotations

import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent
LONG_FORMULA = 45  # characters of a formula in the text that may not fit a phone: there it scrolls by itself
sys.path.insert(0, str(HERE))

from gallery import BY_HAND  # noqa: E402
from site_cells import cells_of, notebook_of, run_cells  # noqa: E402
from site_modules import modules_text  # noqa: E402
from site_plots import plots  # noqa: E402
from site_reference import TASKS, task_text  # noqa: E402

import tokenmargin  # noqa: E402
from tokenmargin.experiments import EXPERIMENTS, AbstractExperiment, command  # noqa: E402
from tokenmargin.report.explore.page import explore_page  # noqa: E402
from tokenmargin.report.page import marked  # noqa: E402

TUTORIALS = ("zero_to_theorem", "csv_to_report", "theorem_sweep_figure")
USE = ("guide.md", "choose.md", "questions.md", "glossary.md")
SUBJECTS = (
    "classifier.md", "norms.md", "methods.md", "matrix-attention.md", "next-token.md", "classes-and-labels.md",
    "attention-maps.md", "playground.md", "experiments.md", "extending.md",
)  # fmt: skip
MEASURED = (
    "margin.md", "dynamics.md", "limits.md", "theory.md", "figures.md", "training.md", "training-notes.md",
    "training-readings.md", "cluster.md", "faults.md", "vision.md", "vision-results.md", "vision-printed-results.md",
)  # fmt: skip
PROJECT = ("checked.md", "changes.md", "map.md", "modules.md", "contributing.md")


def on_config(config: Any) -> Any:
    """The navigation: what is there, in order; a page nobody placed is a subject, or in `results` a result."""
    written = {path.relative_to(HERE).as_posix() for path in HERE.rglob("*.md")}
    placed = {*USE, *SUBJECTS, *MEASURED, *PROJECT, "index.md", "explore.md", "measured.md"}
    results = sorted(page for page in written - placed if page.startswith("results/"))
    subjects = [*(page for page in SUBJECTS if page in written), *sorted(written - placed - set(results))]
    config.nav = [
        {"Home": "index.md"},
        {"Learn": ["explore.md", *(f"tutorials/{name}.md" for name in TUTORIALS),
                   {"Examples": [f"examples/{path.stem}.md" for path in _scripts("examples")]}]},
        {"Gallery": ["gallery.md", *({_label(experiment): _figure_page(experiment)} for experiment in EXPERIMENTS)]},
        {"Use": [*USE, {"Subjects": subjects}]},
        {"Reference": ["reference/index.md", *(f"reference/{task.place}.md" for task in TASKS),
                       {"Rooms inside": [{name: f"api/{name}.md"} for name in _rooms()]}]},
        {"Measured": ["measured.md", *({"Results of our own": results} for _ in results[:1]),
                      *(page for page in MEASURED if page in written)]},
        {"Project": list(PROJECT)},
    ]  # fmt: skip
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from the code."""
    pages: dict[str, str | bytes] = {_figure_page(experiment): figure_text(experiment) for experiment in EXPERIMENTS}
    pages["gallery.md"] = gallery_text()
    pages |= plots()
    pages |= {f"api/{name}.md": _room_text(name) for name in _rooms()}
    pages |= {f"reference/{task.place}.md": task_text(task) for task in TASKS}
    pages["reference/index.md"] = reference_index()
    pages["modules.md"] = modules_text()
    pages["changes.md"] = (HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8")
    pages["contributing.md"] = _from_root((HERE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    for folder, names in (("tutorials", [HERE / "tutorials" / f"{name}.py" for name in TUTORIALS]),
                          ("examples", _scripts("examples"))):  # fmt: skip
        for path in names:
            text, pictures = example_text(path)
            pages[f"{folder}/{path.stem}.md"] = text
            pages[f"{folder}/{path.stem}.ipynb"] = json.dumps(notebook_of(path.read_text(encoding="utf-8")))
            pages |= {f"{folder}/{name}": svg for name, svg in pictures.items()}
    pages["explore/index.html"] = explore_page(picture="../explore.png")
    for place, content in pages.items():
        files.append(File.generated(config, place, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Mathematics between dollars becomes MathML, now, so that no script and no network is needed to read it."""
    page.formulas = []
    parts = _outside_code(markdown)
    return "".join(part if fenced else _set_aside(part, page.formulas) for fenced, part in parts)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The formulas, in the places that were kept for them. A product such as `<E, p>` is no tag, and must be seen."""
    html = re.sub(r"<([A-Za-z]\w*), ?(\w+)>", r"&lang;\1, \2&rang;", html)
    return re.sub(
        r"(?:<p>)?FORMULA(\d+)BLOCK(?:</p>)?|FORMULA(\d+)INLINE", lambda f: page.formulas[int(f[1] or f[2])], html
    )


def on_post_page(output: str, **_: Any) -> str:
    """Nothing is asked of the network: in place of the theme's worker for files there is `site_search.js`."""
    return output.replace('<script src="https://unpkg.com/iframe-worker/shim"></script>', "")


def _outside_code(markdown: str) -> Iterator[tuple[bool, str]]:
    """Pieces of a page, and whether each is code."""
    at = 0
    for code in re.finditer(r"^( *)(```|~~~).*?^\1\2[^\n]*$|`[^`\n]+`", markdown, re.M | re.S):
        yield False, markdown[at : code.start()]
        yield True, code[0]
        at = code.end()
    yield False, markdown[at:]


def _spaced(formula: str) -> str:
    """MathML with the spaces that TeX sets: none inside bars or behind a sign, a thin one beside a function's name."""
    opening = (
        r'<mo stretchy="false">(?:&#x00028;|\[|&#x0007B;)</mo>|<mo>(?:&#x0002C;|&#x0003D;|&#x02264;|&#x02265;)</mo>'
    )
    formula = re.sub(rf"({opening})<mo>(?=&#x0221[23];)", r'\1<mo form="prefix" lspace="0" rspace="0">', formula)
    formula = re.sub(
        r'<mo stretchy="false">(&#x0007C;|&#x02016;|&#x02225;)',
        r'<mo stretchy="false" lspace="0" rspace="0">\1',
        formula,
    )
    name = r"<mi>(?:log|exp|cos|arcsin)</mi>"
    formula = re.sub(rf"(</m(?:i|n|over|sub|sup|subsup)>)(?={name})", r'\1<mspace width="0.17em" />', formula)
    unless = "".join(f"(?<!<{parent}>)" for parent in ("msub", "msup", "munder", "msubsup"))
    return re.sub(rf"{unless}({name})(?=<m(?:i|n|over|sub|sup|subsup)\b)", r'\1<mspace width="0.17em" />', formula)


def _set_aside(text: str, formulas: list[str]) -> str:
    """Each formula is converted and kept; a word stands in its place while the markdown is read."""

    def keep(display: str, kind: str) -> Any:
        def kept(found: re.Match[str]) -> str:
            formula = _spaced(convert(found[1].strip(), display=display))
            long = display == "inline" and len(found[1]) > LONG_FORMULA
            formulas.append(f'<span class="long">{formula}</span>' if long else formula)
            return f"FORMULA{len(formulas) - 1}{kind}"

        return kept

    text = re.sub(r"\$\$(.+?)\$\$", keep("block", "BLOCK"), text, flags=re.S)
    inline = r"(?<![\\$\w])\$(?=\S)([^$\n]+?(?:\n[^$\n]+?)?)(?<=\S)\$(?![\w$])"
    return re.sub(inline, keep("inline", "INLINE"), text)


def figure_text(experiment: type[AbstractExperiment]) -> str:
    """The page of one experiment: its picture, expected beside measured, how to run it."""
    quick, paper = asdict(experiment.quick()), asdict(experiment.paper())
    rows = [f"| `--{name.replace('_', '-')}` | `{quick[name]}` | `{paper[name]}` |" for name in quick]
    doc = re.sub(r"\s*\n\s*", " ", experiment.__doc__ or "")
    picture, about = _picture(experiment)
    parts = [
        f"# {experiment.figure}: {experiment.title}",
        f"*{experiment.source}*",
        *([f"![{experiment.title}](../{picture}){{ .figure }}"] if picture else []),
        *([about] if about else []),
        f"**What is shown**: {experiment.shows}",
        *_findings(experiment),
        *(
            ["**Differences**", "\n".join(f"- {one}" for one in experiment.differences)]
            if experiment.differences
            else []
        ),
        "**To run it**",
        f"```sh\n{command(experiment.quick())}\ntokenmargin reproduce {experiment.figure} --scale paper\n```",
        doc,
        *_times(experiment),
        *([f"Needs `pip install 'tokenmargin[{','.join(experiment.needs)}]'`."] if experiment.needs else []),
        *(["**Settings**", "| flag | quick | paper |\n|---|---|---|\n" + "\n".join(rows)] if rows else []),
    ]
    return "\n\n".join(parts) + "\n"


OURS = "Results and studies of our own"


def gallery_text() -> str:
    """Every figure as a thumbnail, by paper, with what was expected and found."""
    parts = [
        "# Gallery",
        "Every figure that we reproduce, from a run of ours: click one for what the paper shows, what was "
        "measured beside what was expected, and the command. `tokenmargin reproduce` makes them all, as SVG, PDF and "
        "PNG; `python docs/gallery.py` makes these small ones.",
    ]
    groups: dict[str, list[type[AbstractExperiment]]] = {}
    for experiment in EXPERIMENTS:
        group = OURS if "of our own" in experiment.source else experiment.source
        groups.setdefault(group, []).append(experiment)
    for source in sorted(groups, key=OURS.__eq__):  # ours last
        cards = []
        for experiment in groups[source]:
            picture, _ = _picture(experiment)
            page = _figure_page(experiment).replace(".md", ".html")
            seen = f'<img src="{picture}" alt="{experiment.title}" loading="lazy">' if picture else "<i>a table</i>"
            cards.append(
                f'<a class="card" href="{page}">{seen}<b>{experiment.figure}</b> {experiment.title}'
                f"<small>{_summary(experiment)}</small></a>"
            )
        parts += [f"## {source}", f'<div class="cards">{"".join(cards)}</div>']
    return "\n\n".join(parts) + "\n"


def _picture(experiment: type[AbstractExperiment]) -> tuple[str, str]:
    """Where the picture of a figure is, and a word on where it comes from."""
    name = experiment.figure
    if (HERE / "gallery" / f"{name}.png").is_file():
        larger = (
            f"At the quick scale; [a larger run, and what was found](../{BY_HAND[name][1]})." if name in BY_HAND else ""
        )
        return f"gallery/{name}.png", larger
    if name in BY_HAND:
        picture, page = BY_HAND[name]
        return picture, f"From a larger run than the quick one: [what was run, and what was found](../{page})."
    if (HERE / "figures" / f"{name}.svg").is_file():
        return f"figures/{name}.svg", ""
    return "", ""


def _recorded(experiment: type[AbstractExperiment]) -> list[dict[str, str]]:
    path = HERE / "gallery" / f"{experiment.figure}.json"
    return json.loads(path.read_text(encoding="utf-8"))["findings"] if path.is_file() else []


def _findings(experiment: type[AbstractExperiment]) -> list[str]:
    rows = [
        f"| {marked(one['what'])} | {one['measured']} | {one['expected']} | {one['verdict']} |"
        for one in _recorded(experiment)
    ]
    return ["| what | measured | expected | verdict |\n|---|---|---|---|\n" + "\n".join(rows)] if rows else []


def _summary(experiment: type[AbstractExperiment]) -> str:
    verdicts = [one["verdict"] for one in _recorded(experiment)]
    counts = ", ".join(f"{verdicts.count(name)} {name}" for name in dict.fromkeys(verdicts))
    return f"{counts}" if counts else "larger run" if experiment.figure in BY_HAND else "run it to see"


def _times(experiment: type[AbstractExperiment]) -> list[str]:
    named = zip(("at the quick scale", "at the paper's"), experiment.seconds, strict=True)
    known = [f"about {seconds:g} s {name}" for name, seconds in named if seconds is not None]
    return [f"On two cores {', '.join(known)}."] if known else []


def example_text(path: Path) -> tuple[str, dict[str, bytes]]:
    """A script with cells as a page, with what each cell prints and draws; the pictures by their names."""
    folder = path.parent.name
    note = f"*Run while this site was built, from `docs/{folder}/{path.name}`; [as a notebook]({path.stem}.ipynb).*"
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for kind, body, shown in run_cells(cells_of(path.read_text(encoding="utf-8"))):
        if kind == "markdown":
            parts.append(body)
            if len(parts) == 1:
                parts.append(note)
            continue
        parts.append(f"```python\n{body}\n```")
        if shown.printed:
            parts.append(f"```text {{ .output }}\n{shown.printed}\n```")
        if shown.html:
            parts.append(f'<div class="output">{shown.html}</div>')
        for svg in shown.pictures:
            name = f"{path.stem}-{len(pictures)}.svg"
            pictures[name] = svg
            parts.append(f"![drawn by the cell above]({name}){{ .drawn }}")
    return "\n\n".join(parts) + "\n", pictures


def reference_index() -> str:
    """What `import tokenmargin as tm` gives, by task."""
    parts = [
        "# Reference",
        "What `import tokenmargin as tm` gives, by task. Inside the package there is more, room by room "
        "(*Rooms inside*), but these names are the ones that we keep.",
    ]
    for task in TASKS:
        names = ", ".join(f"[`{name}`]({task.place}.md#{name})" for name in task.names)
        parts.append(f"**[{task.title}]({task.place}.md)**: {task.what}\n\n{names}")
    return "\n\n".join(parts) + "\n"


def _from_root(text: str) -> str:
    """Links of a file at the root of the repository, as seen from here."""
    return re.sub(r"\]\(docs/([\w./-]+)\)", r"](\1)", text)


def _scripts(folder: str) -> list[Path]:
    return sorted((HERE / folder).glob("*.py"))


def _label(experiment: type[AbstractExperiment]) -> str:
    return f"{experiment.figure}: {experiment.title}"


def _figure_page(experiment: type[AbstractExperiment]) -> str:
    return f"figures/{experiment.figure.lower()}.md"


def _rooms() -> list[str]:
    """Modules and folders of the package, in the order of the alphabet."""
    found = pkgutil.iter_modules(tokenmargin.__path__)
    return [module.name for module in found if not module.name.startswith("_") and module.name != "cli"]


def _room_text(name: str) -> str:
    """All modules of a room; the search of a served site puts what is written for readers before it."""
    return (
        f"---\nsearch:\n  boost: 0.3\n---\n\n# {name}\n\n"
        + "\n\n".join(f"::: tokenmargin.{module}" for module in _public_modules(name))
        + "\n"
    )


def _public_modules(name: str) -> Iterator[str]:
    """The room itself, or for a folder its modules."""
    room = import_module(f"tokenmargin.{name}")
    if not hasattr(room, "__path__"):
        yield name
        return
    for module in pkgutil.walk_packages(room.__path__, f"{name}."):
        if not any(part.startswith("_") for part in module.name.split(".")) and not module.ispkg:
            yield module.name
