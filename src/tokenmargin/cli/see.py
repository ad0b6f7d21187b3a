"""`tokenmargin demo`, `explore` and `playground`: a guided run; the explorable article, as a file and served."""

from __future__ import annotations

import os
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenmargin.cli._common import UsageError, emit_json, needs_extra, print_message, share_bar
from tokenmargin.cli._texts import open_model, require_two_classes

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
    _print_limits(result, counts)
    write_result(result, out)
    draw_figures(result, out / "figures")
    write_explore_page(out / "explore.html")
    pages = [
        ("explore.html", "see attention choose: drag anything (start here)"),
        ("index.html", "the problem above: picture, limits, proofs"),
    ]
    if find_spec("sklearn") is not None:
        _classify_texts(out)
        pages.append(("report.html", "the words that decide, and how far to trust them"))
    write_demo_page(result, out / "index.html", counts=counts, pages=[name for name, _ in pages])
    if json:
        emit_json(describe_findings(result))
    print_message("\nOpen in a browser:")
    wide = max(len(str(out / name)) for name, _ in pages)
    for name, what in pages:
        print_message(f"  {out / name!s:<{wide}}  {what}")
    return 0 if result.holds else 1


def _print_limits(result: Result, counts: dict[str, int]) -> None:
    """Print what was found, one line for each limit."""
    directions, limits = result.tables["directions"], result.tables["limits"]
    reached = Counter(limits["selected"].tolist())
    left = counts["all"] - counts["infeasible"] - counts["limits"]
    print_message(
        f"{result.experiment.title}.\nOf {counts['all']} ways to pick one token per input, {counts['infeasible']} are "
        f"proven impossible, training leaves {left}, and {counts['limits']} are limits of training:"
    )
    rows = zip(*(directions[name].tolist() for name in ("direction", "selected", "margin")), strict=True)
    for kind, tokens, margin in rows:
        starts = f"reached from {reached[tokens]} of {len(limits['selected'])} starts"
        print_message(f"  {kind}  {tokens}  margin {margin:.4f}  {starts}")
    off, proof = float(limits["angle"].max()), float(limits["residual"].max())
    words = "All as the theory says" if result.holds else "NOT as expected, see the page"
    print_message(
        f"{words}: runs end within {off:.2g} rad of their certified directions, whose residuals are up to {proof:.0e}."
    )


def _classify_texts(out: Path) -> None:
    """A classifier of short reviews, what it says of a sentence, and its report."""
    import contextlib
    import io

    from tokenmargin.cli._texts import open_model
    from tokenmargin.cli.fit import fit, report
    from tokenmargin.report.word_model import class_names

    # Their own lines would fill the screen; what they found is told below, and whole on the page.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit("sentences", out=out / "model")
        report(out / "model", "sentences", out=out / "report.html")
    classifier = open_model(out / "model")
    (one,) = classifier.explain([SENTENCE])
    called = dict(zip(classifier.classes_.tolist(), class_names(classifier), strict=True))
    word = max(one.words, key=lambda part: abs(part.contribution))
    check = classifier.validation_
    told = f"{check.accuracy:.1%} of {check.texts} held-out texts right" if check else "accuracy not measured"
    print_message(
        f"\nA classifier of 2000 short reviews: {told}.\n"
        f"  {SENTENCE!r} is {called[one.label]} ({one.probability:.1%}):\n"
        f"  {one.text[word.start : word.end]!r} has {word.contribution:+.2f} of the decision {one.decision:+.2f}"
    )


def playground(
    *,
    port: int = 0,
    host: str = "127.0.0.1",
    model: Path | None = None,
    no_browser: Annotated[bool, Parameter(name="--no-browser")] = False,
) -> int:
    """Serve the playground and open it in the browser. Ctrl-C ends it.

    The server listens on this computer alone unless another address is asked for with --host.

    Examples:

        tokenmargin playground
        tokenmargin playground --port 8017 --no-browser
        tokenmargin playground --model model

    Parameters
    ----------
    port:
        Port to listen on; 0 takes a free one.
    host:
        Address to listen on. Anything but loopback lets other computers in.
    model:
        A model folder of two classes to explain texts with, written by tokenmargin fit or train.
    no_browser:
        Do not open the page.
    """
    # Threads of the linear algebra library only wait for each other on arrays this small; numpy reads this once.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    with needs_extra("playground"):
        from tokenmargin.report.playground.guard import LOOPBACK
        from tokenmargin.report.playground.server import create_app, listen, serve

    if not 0 <= port <= 65535:
        raise UsageError(f"--port must lie in 0..65535, got {port}")
    loaded = None if model is None else open_model(model)
    if loaded is not None:
        require_two_classes(loaded, model)
    try:
        listener = listen(host, port)
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port} ({error.strerror}); choose another --port") from error
    bracketed = f"[{host}]" if ":" in host else host
    address = f"http://{bracketed}:{listener.getsockname()[1]}/"
    if host not in LOOPBACK:
        print_message(f"[yellow]listening on {host}: other computers can open this page[/yellow]", markup=True)
    print_message(f"The playground is at {address} (Ctrl-C ends it)")
    if not no_browser:
        import webbrowser

        webbrowser.open(address)
    serve(create_app(loaded, host=host), listener)
    return 0


def explore(
    *,
    out: Path = Path("explore.html"),
    model: Path | None = None,
    open_it: Annotated[bool, Parameter(name="--open")] = False,
) -> int:
    """Write the explorable article: one page in which attention can be seen to choose.

    One HTML file that needs no server, no network and nothing installed: open it, send it, put it on any site.

    Examples:

        tokenmargin explore
        tokenmargin explore --out page.html --open
        tokenmargin explore --model english --out page.html

    Parameters
    ----------
    out:
        The file to write.
    model:
        A model folder of two classes, written by tokenmargin fit or train, that goes into the page and decides the
        reader's own words; without one, a small example of 112 words does.
    open_it:
        Open the page in the browser.
    """
    from tokenmargin.report.explore.page import write_explore_page

    page = write_explore_page(out, model=None if model is None else _page_model(model))
    print_message(f"The page: {page} (one file; open it in a browser)")
    if open_it:
        import webbrowser

        webbrowser.open(page.resolve().as_uri())
    return 0


def _page_model(folder: Path) -> dict[str, Any]:
    """The model of a folder as the page reads it."""
    model = open_model(folder)
    with needs_extra("classify"):
        from tokenmargin.classifier.files import model_notes
        from tokenmargin.report.word_model import can_be_read_by_pages, explore_model
    require_two_classes(model, folder)
    if not can_be_read_by_pages(model):
        raise UsageError(
            f"{folder}: its tokenizer ({model.tokenizer}) does not run in a page; fit with --tokenizer words, or open "
            "it with tokenmargin playground --model"
        )
    return explore_model(model, data=Path(str(model_notes(folder).get("data", ""))).name)
