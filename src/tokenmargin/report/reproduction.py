"""The reproduction report: one page that a reviewer reads, with every figure, its verdict, and how to get it again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tokenmargin.experiments import AbstractExperiment, Run, command
from tokenmargin.report.figures import draw
from tokenmargin.report.page import PageTable, Section, findings_table, inline_svg, page_table, write_page


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
    sections = [_overview(runs, details), _where(details)]
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


def _where(details: Sequence[dict[str, Any]]) -> Section:
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
