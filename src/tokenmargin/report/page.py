"""Self-contained HTML pages of text, tables and pictures, without script or network.

Among them the page of the demonstration, and the reproduction report: one page that a reviewer reads, with every
figure, its verdict, and how to get it again.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from tokenmargin._files import atomic_path
from tokenmargin._notebook import table_cell
from tokenmargin._version import __version__
from tokenmargin.experiments import AbstractExperiment, Result, Run, Table, Verdict, command
from tokenmargin.report.figures import draw


@dataclass(frozen=True)
class PageTable:
    """A small table of strings; a cell found in `links` leads to that anchor of the page."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    links: Mapping[str, str] = field(default_factory=dict)
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A titled part of a page: paragraphs, a picture, tables, a listing; each optional."""

    title: str
    paragraphs: Sequence[str] = ()
    svg: Markup | None = None
    tables: Sequence[PageTable] = ()
    code: str = ""
    anchor: str = ""
    verdict: str = ""
    points: Sequence[str] = ()
    links: Sequence[tuple[str, str]] = ()
    files: Sequence[str] = ()  # beside the page


def write_page(path: Path, *, title: str, lead: str, sections: Sequence[Section], command: str) -> Path:
    """Render the page and write it."""
    verdicts = get_args(Verdict)
    shown = {"title": title, "lead": lead, "sections": sections, "command": command, "verdicts": verdicts}
    return write_template(path, "page.html", shown | {"version": __version__})


def write_template(path: Path, name: str, shown: Mapping[str, object]) -> Path:
    """Fill a template of this room and write it, whole or not at all."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tokenmargin.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["marked"] = marked
    text = environment.get_template(name).render(shown)
    with atomic_path(path) as beside:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def marked(text: str) -> Markup:
    """The text as HTML, with `p^mm` raised and products such as `<E,p>` in angle brackets."""
    raised = re.sub(r"\b([pv])\^(mm|relax)\b", r"\1<sup>\2</sup>", str(escape(text)))
    return Markup(re.sub(r"&lt;(\w+), ?(\w+)&gt;", r"&lang;\1,\2&rang;", raised))


def inline_svg(figure: Figure, prefix: str) -> Markup:
    """The figure as SVG to put into a page; `prefix` keeps the ids of several figures apart."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\b(id="|xlink:href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    return Markup(svg)  # our own drawing, not input


def page_table(table: Table, columns: Sequence[str] | None = None) -> PageTable:
    """A result table for the page: all its columns, or some."""
    names = list(table) if columns is None else list(columns)
    rows = zip(*(table[name].tolist() for name in names), strict=True)
    return PageTable([name.replace("_", " ") for name in names], [[table_cell(value) for value in row] for row in rows])


def findings_table(result: Result) -> PageTable:
    """Expected beside measured."""
    return PageTable(
        ("what", "measured", "expected", "verdict", "bounds from", "because"),
        [(f.what, f"{f.measured:.6g}", f.expected, f.verdict, f.bounds_from, f.source) for f in result.findings],
    )


NEXT = """\
tokenmargin solve three-limits --select A1,B1   # one certified direction
tokenmargin evolve fig1b --start 0,-1,0         # a start that reaches a local limit
tokenmargin reproduce fig3b                     # a figure of the paper, expected beside measured
tokenmargin --help"""


WHAT = {
    "explore.html": "See attention choose: drag tokens, starts and scores in this picture",
    "report.html": "The same for words: a classifier of short reviews, and how far to trust it",
}


def write_demo_page(result: Result, path: Path, *, counts: dict[str, int], pages: Sequence[str] = ()) -> Path:
    """Write the demonstration's page and return its path; `pages` are those beside it."""
    tokens, limits, directions = (result.tables[name] for name in ("tokens", "limits", "directions"))
    figure = draw(result)
    assert figure is not None, "the demonstration has a drawing"
    picture = Section(
        "Twelve starts, three places to settle",
        (
            "Left: training moves p from each ring to infinity, the rim; its colour is the certified direction it "
            "reaches. Right: in the end its angle to that direction falls like one over its norm.",
        ),
        svg=inline_svg(figure, "demo"),
        links=[(name, WHAT[name]) for name in pages if name in WHAT],
    )
    atlas = Section(
        "Where can it converge?",
        (
            f"There are {counts['all']} ways to pick one token per input. {counts['infeasible']} of them no direction "
            "can pick: a combination of the constraints is proven to be zero. "
            f"{counts['limits']} are locally optimal: descent that starts far out near one of these directions "
            f"converges to it (Theorem 3). The other {counts['all'] - counts['infeasible'] - counts['limits']} can be "
            "picked, but a token on the margin scores higher there, and training leaves them. GMM is the globally "
            "optimal one, LMM a locally optimal one; A1 is the first token of the first input. The residual is how "
            "far the certificate is from an exact proof.",
        ),
        tables=(page_table(directions, ("direction", "selected", "x", "y", "margin", "residual")),),
    )
    runs = Section(
        "Where did it converge?",
        (
            "Normalised gradient descent from a ring of starts: the tokens that each run selects, its angle (in "
            "radians) to their certified direction, and the norm it has grown to.",
        ),
        tables=(page_table(limits, ("start_x", "start_y", "selected", "limit", "angle", "norm")),),
    )
    expected = Section("As expected?", tables=(findings_table(result),))
    problem = Section(
        "The problem",
        (
            "Each input is a handful of tokens in the plane. Attention gives token t of input i the weight "
            "softmax(⟨k_it, p⟩), and training moves p to lower the loss. A star marks the token of highest score.",
        ),
        tables=(page_table(tokens, ("name", "x", "y", "score", "optimal")),),
    )
    return write_page(
        path,
        title="Attention selects tokens with a margin",
        lead=result.experiment.title + ".",
        sections=(picture, atlas, runs, expected, problem, Section("What to try next", code=NEXT)),
        command="tokenmargin demo",
    )


@dataclass(frozen=True)
class NotRun:
    """An experiment that is not on the page, and why."""

    experiment: AbstractExperiment
    reason: str
    failed: bool


def write_reproduction(
    path: Path, runs: Sequence[tuple[AbstractExperiment, Run]], *, left_out: Sequence[NotRun] = (), command: str
) -> Path:
    """Write the page of these runs and return its path; what was left out is named with its reason."""
    details = [run.details() for _, run in runs]
    sections = [_overview(runs, details), _code_and_machine(details)]
    if left_out:
        points = [f"{skipped.experiment.figure}: {skipped.reason}" for skipped in left_out]
        sections.append(Section("Not run", points=points))
    sections += [
        _figure(experiment, run, facts, beside=path.parent)
        for (experiment, run), facts in zip(runs, details, strict=True)
    ]
    return write_page(path, title="Reproduction report", lead=_lead(details), sections=sections, command=command)


def _lead(details: Sequence[dict[str, Any]]) -> str:
    verdicts = [facts["verdict"] for facts in details]
    findings = sum(len(facts["findings"]) for facts in details)
    seconds = sum(facts["timing"]["seconds"] for facts in details)
    counts = ", ".join(
        f"{verdicts.count(verdict)} {verdict}"
        for verdict in ("as expected", "explained", "stand-in", "not as expected")
        if verdict in verdicts
    )
    return (
        f"{len(details)} experiments with {findings} numbers: {counts}. Computing them took {seconds:.0f} s. "
        "'Explained' means that a value differs and the cause is known and named; 'stand-in' that data of our own "
        "stand in for the paper's, which judges nothing. Every bound says where it comes from: printed in the paper, "
        "read off its figure, a theorem, or ours."
    )


def _overview(runs: Sequence[tuple[AbstractExperiment, Run]], details: Sequence[dict[str, Any]]) -> Section:
    rows: dict[str, list[tuple[str, ...]]] = {}
    for (experiment, _), facts in zip(runs, details, strict=True):
        judged = [finding for finding in facts["findings"] if finding["verdict"] != "measured"]
        good = sum(finding["verdict"] == "as expected" for finding in judged)
        rows.setdefault(experiment.source, []).append(
            (
                experiment.figure,
                facts["title"],
                facts["verdict"],
                f"{good} of {len(judged)}" if judged else "",
                f"{facts['timing']['seconds']:.1f} s",
            )
        )
    header = ("figure", "what", "verdict", "inside bounds", "time")
    links = {experiment.figure: experiment.figure for experiment, _ in runs}
    tables = tuple(PageTable(header, body, links=links, caption=source) for source, body in rows.items())
    return Section("Overview", tables=tables)


def _code_and_machine(details: Sequence[dict[str, Any]]) -> Section:
    """The machine and the code; when runs were made on several, each is listed."""
    rows = []
    for facts in details:
        code, machine = facts["code"], facts["environment"]
        commit = f", commit {code['commit'][:12]}" if code["commit"] else ""
        packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        accelerator = f", {machine['accelerator']}" if machine["accelerator"] else ""
        modified = " (modified)" if code["modified"] else ""
        row = (
            f"tokenmargin {code['version']}, sources {code['digest']}{commit}{modified}",
            f"python {machine['python']}, {packages}",
            f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB{accelerator}",
        )
        if row not in rows:
            rows.append(row)
    return Section("Code and machine", tables=(PageTable(("code", "packages", "machine"), rows),))


def _figure(experiment: AbstractExperiment, run: Run, facts: dict[str, Any], *, beside: Path) -> Section:
    result = run.result(experiment)
    kept = [*sorted(run.folder.glob("figures/*")), *sorted(run.folder.glob("tables/*")), run.folder / "run.json"]
    figure = draw(result)
    explained = [f"{f.what}: {f.explanation}" for f in result.findings if f.verdict == "explained"]
    differences = [*experiment.differences, *explained, *result.notes]
    return Section(
        title=f"{experiment.figure}: {result.title}",
        anchor=experiment.figure,
        verdict=result.verdict,
        paragraphs=(
            f"The paper: {experiment.shows}",
            f"Source: {experiment.source}. Run {run.id}, {facts['timing']['seconds']:.1f} s.",
            "Differences from the paper:" if differences else "No differences from the paper's setting.",
        ),
        points=differences,
        svg=None if figure is None else inline_svg(figure, experiment.figure),
        tables=(findings_table(result), *(page_table(result.table(name)) for name in experiment.shown_tables)),
        files=[quote(os.path.relpath(place, beside).replace(os.sep, "/")) for place in kept],
        code=command(experiment),
    )
