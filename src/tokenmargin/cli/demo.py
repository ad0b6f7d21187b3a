"""`tokenmargin demo`: a guided run of a minute at most."""

from __future__ import annotations

from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmargin.cli._common import emit_json, needs_extra, say, share_bar

if TYPE_CHECKING:
    from tokenmargin.experiments import Result

SENTENCE = "What a dreadful ferry, but the deck was tidy!"


def demo(*, out: Path = Path("out/demo"), json: bool = False) -> int:
    """A guided run: a page to play with, one problem with all its limits, a classifier and its report.

    Example:

        tokenmargin demo --out out/demo

    Parameters
    ----------
    out:
        Folder for the pages, the figure and the tables.
    json:
        Write the findings as one JSON object to standard output.
    """
    from tokenmargin.dynamics import whole_runs
    from tokenmargin.experiments.figures.prompt_paths import Demo
    from tokenmargin.experiments.records import describe_findings, write_result

    with needs_extra("report"):
        from tokenmargin.report.explore.page import write_explore_page
        from tokenmargin.report.figures import draw_figures
        from tokenmargin.report.page import write_demo_page

    experiment = Demo.quick()
    counts = experiment.selection_counts(experiment.problem())
    with share_bar(f"descent from {experiment.circle} starts") as progress, whole_runs():
        result = experiment.run(progress)
    _tell(result, counts)
    write_result(result, out)
    draw_figures(result, out / "figures")
    write_explore_page(out / "explore.html")
    pages = [
        ("explore.html", "see attention choose: drag anything (start here)"),
        ("index.html", "the problem above: picture, limits, proofs"),
    ]
    if find_spec("sklearn") is not None:
        _read_texts(out)
        pages.append(("report.html", "the words that decide, and how far to trust them"))
    write_demo_page(result, out / "index.html", counts=counts, pages=[name for name, _ in pages])
    if json:
        emit_json(describe_findings(result))
    say("\nOpen in a browser:")
    for name, what in pages:
        say(f"  {out / name}  {what}")
    return 0 if result.holds else 1


def _tell(result: Result, counts: dict[str, int]) -> None:
    """What was found, in a line a limit."""
    directions, limits = result.tables["directions"], result.tables["limits"]
    reached = Counter(limits["selected"].tolist())
    say(
        f"{result.experiment.title}.\nOf {counts['all']} ways to pick one token per input, {counts['infeasible']} are "
        f"proven impossible, and {counts['limits']} are limits of training:"
    )
    rows = zip(*(directions[name].tolist() for name in ("direction", "selected", "margin")), strict=True)
    for kind, tokens, margin in rows:
        starts = f"reached from {reached[tokens]} of {len(limits['selected'])} starts"
        say(f"  {kind}  {tokens}  margin {margin:.4f}  {starts}")
    off, proof = float(limits["angle"].max()), float(limits["residual"].max())
    words = "All as the theory says" if result.holds else "NOT as expected, see the page"
    say(f"{words}: runs end within {off:.2g} rad of their certified directions, whose residuals are up to {proof:.0e}.")


def _read_texts(out: Path) -> None:
    """A classifier of short reviews, what it says of a sentence, and its report."""
    import contextlib
    import io

    from tokenmargin.cli._texts import open_model
    from tokenmargin.cli.fit import fit
    from tokenmargin.cli.report import report

    # Their own lines would fill the screen; what they found is told below, and whole on the page.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit("sentences", out=out / "model")
        report(out / "model", "sentences", out=out / "report.html")
    classifier = open_model(out / "model")
    (one,) = classifier.explain([SENTENCE])
    word = max(one.words, key=lambda part: abs(part.contribution))
    check = classifier.validation_
    told = f"{check.accuracy:.1%} of {check.texts} held-out texts right" if check else "accuracy not measured"
    say(
        f"\nA classifier of 2000 short reviews: {told}.\n"
        f"  {SENTENCE!r} is {one.label} ({one.probability:.1%}):\n"
        f"  {one.text[word.start : word.end]!r} has {word.contribution:+.2f} of the decision {one.decision:+.2f}"
    )
