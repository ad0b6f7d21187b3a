"""`tokenmargin verify`: the papers' lemmas and theorems, checked on their own instances or on yours."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from tokenmargin.cli._common import (
    Seed,
    UsageError,
    console_for,
    emit_json,
    parse_numbers,
    parse_selection,
    print_hanging,
    print_message,
    progress_bar,
    read_problem,
    usage_errors,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding

    from tokenmargin.problem.token_problem import TokenProblem
    from tokenmargin.theory import Claim, Report, Slack

_KINDS = {
    "example": "inside the hypotheses",
    "outside": "outside a hypothesis, and the conclusion fails",
    "refutation": "the hypotheses as printed are met, and the conclusion fails",
    "given": "on what was given",
}
_LEGEND = """\
A claim is a lemma or theorem of paper A (Attention with Trained Embeddings
Provably Selects Important Tokens) or B (Max-Margin Token Selection in
Attention Mechanism), a statement of C (Transformers as Support Vector
Machines) or D (Mechanics of Next-Token Prediction with Self-Attention), a
result of our own (R), or one that another package adds: if its hypotheses are
true, so is its conclusion.
  holds      hypotheses and conclusion are true here, as far as the evidence
             goes
  vacuous    a hypothesis is not, so the claim says nothing; where the
             conclusion fails too and no other hypothesis is broken, the
             hypothesis is needed
  fails      the hypotheses are proven and the conclusion is refuted: the claim
             is wrong as printed
  undecided  what was computed cannot tell; "open" lines say what was seen and
             what would decide it
Each line is one inequality: what was measured, the bound it is held against,
and the slack, negative where broken; after +- stands by how much the measured
number can be off, where the slack is within that. "if" lines are hypotheses
(here only those not met), "then" lines the conclusion. tokenmargin verify CLAIM
says more.
"""
_EVIDENCE = {
    "exact": "exact. The quantities are computed to rounding.",
    "bounded": "bounded. The quantities rest on a certificate, such as the residuals of a max-margin solution.",
    "sampled": "sampled. A limit is followed to a finite norm, or a statement about all points is tried on some.",
}
_COLOURS = {"holds": "green", "fails": "red", "vacuous": "yellow", "undecided": "cyan"}


def verify(
    claim: str | None = None,
    problem: str | None = None,
    /,
    *,
    corpus: str | None = None,
    n: int | None = None,
    T: Annotated[int | None, Parameter(name="--T")] = None,
    d: float | None = None,
    eta: float | None = None,
    delta: float | None = None,
    draws: int | None = None,
    seed: Seed = 0,
    select: str | None = None,
    q: str | None = None,
    list_: bool = False,
    json: bool = False,
) -> int:
    """Check the papers' lemmas and theorems: each number beside its bound.

    Without arguments every claim is checked on the instances it ships with: one
    within its hypotheses; one outside them, on which the conclusion fails; and,
    where the printed statement is wrong, one that shows it. The verdict is
    "holds"; "fails", which needs proof; "vacuous" when a hypothesis is not met;
    or "undecided" when what was computed cannot tell.

    Exit code 0 when every verdict is as documented and no given instance breaks
    its claim, 1 otherwise.

    Examples:

        tokenmargin verify
        tokenmargin verify A.theorem5 --n 4 --T 3
        tokenmargin verify A.lemma2 --n 8 --T 4 --d 1e6 --delta 0.05
        tokenmargin verify A.theorem5 --corpus reviews.csv
        tokenmargin verify --corpus reviews.csv
        tokenmargin verify B.theorem3 fig1b --select 1
        tokenmargin verify B.theorem4 problem.npz --q 1,0.5
        tokenmargin verify B.lemma4 problem.npz --json

    Parameters
    ----------
    claim:
        Which claim, such as A.theorem5 (trained embeddings) or B.lemma7 (max-margin token selection), one that another
        package adds, or MODULE:OBJECT.
    problem:
        For claims about a problem (papers B and C, and our own): a problem file, or a figure's name.
    corpus:
        For claims about a corpus (paper A): labelled text (.csv, .tsv, .jsonl, .parquet, or a folder for each label;
        words are cut at blanks), or ids written by tokenmargin prepare. Without a claim: its frequencies (3), the
        classes of Definition 1, and whether Assumption 4 holds.
    n:
        For claims of paper A: number of sequences of a random corpus (even).
    T:
        Their length.
    d:
        The dimension, up to 1e300; by default the smallest that Theorem 5 allows.
    eta:
        Size of the first step; by default the smallest that Theorem 5 allows.
    delta:
        Probability the statement may fail with; 0.25 by default.
    draws:
        How many random starts; by default as many as can show a probability of at most delta.
    seed:
        Of the corpus and the starts.
    select:
        For claims of paper B: the selected token of each input, A1,B3 or 0,2; by default those of highest score. For
        claims of paper A about what a vector selects (Lemmas 3, 9, 10 and 20): random, tied, important or everything.
    q:
        For claims of paper B about a direction q (theorems 4 and 7, lemmas 8 and 10): its coordinates, such as 1,0.5.
    list_:
        List the claims and what they say.
    json:
        Write a JSON list to standard output.
    """
    from tokenmargin import theory
    from tokenmargin.dynamics import whole_runs
    from tokenmargin.theory.evidence import enough_draws

    with usage_errors():
        chosen = theory.CLAIMS if claim is None else (theory.claim(claim),)
    if list_:
        _print_list(chosen, json=json)
        return 0
    if claim is None and corpus is not None:
        _print_corpus_facts(corpus, json=json)
        return 0
    if d is not None and not 1 <= d < float("inf"):
        raise UsageError(f"--d must be a finite dimension of 1 or more, got {d:g}")
    size = {"corpus": corpus, "n": n, "T": T, "d": d, "eta": eta}
    given = any(value is not None for value in (problem, *size.values()))
    if not given:
        options = {"--delta": delta, "--draws": draws, "--select": select, "--q": q}
        if idle := [name for name, value in options.items() if value is not None]:
            raise UsageError(f"{idle[0]} is for a given instance: name a problem, --corpus, or --n and --T")
        with whole_runs():
            reports = tuple(_check_own_instances(chosen))
    elif claim is None:
        raise UsageError("say which claim to check on it: tokenmargin verify CLAIM ...")
    else:
        with usage_errors(), whole_runs():
            delta = 0.25 if delta is None else delta
            number = enough_draws(delta) if draws is None else draws
            instance = _given_instance(chosen[0], problem, size, select, q, delta=delta, draws=number, seed=seed)
            reports = (chosen[0].on(instance),)
    if json:
        emit_json([report.as_dict() for report in reports])
    else:
        _print_reports(reports, full=claim is not None)
    return 0 if all(report.as_expected and (not given or report.verdict != "fails") for report in reports) else 1


def _print_corpus_facts(corpus: str, *, json: bool) -> None:
    from tokenmargin.cli._texts import corpus_statistics, print_corpus, read_corpus

    statistics = corpus_statistics(read_corpus(corpus))
    emit_json(statistics) if json else print_corpus(statistics)


def _check_own_instances(claims: tuple[Claim, ...]) -> Iterator[Report]:
    with progress_bar("checking", len(claims)) as progress:
        for done, claim in enumerate(claims):
            yield from claim.own()
            progress(done + 1)


def _given_instance(
    claim: Claim, problem: str | None, size: dict[str, Any], select: str | None, q: str | None, **options: Any
) -> Any:
    """A given instance: a problem for claims like those of paper B, sizes for claims like those of paper A."""
    from tokenmargin.theory import EmbeddingInstance, ProblemInstance

    example = claim.example()
    if not isinstance(example, ProblemInstance | EmbeddingInstance):
        raise UsageError(
            f"{claim.name} is about a {type(example).__name__}, which this command cannot make; leave it out"
        )
    if isinstance(example, ProblemInstance):
        if problem is None:
            raise UsageError(f"{claim.name} is about a problem: give a file, or a figure's name such as fig1b")
        if any(value is not None for value in size.values()):
            raise UsageError(f"{claim.name} is about a problem: leave out --corpus, --n, --T, --d and --eta")
        chosen = None if select is None else tuple(parse_selection(select))
        given = read_problem(problem)
        return ProblemInstance(given, problem, selected=chosen, q=_parse_direction(q, given), seed=options["seed"])
    if q is not None:
        raise UsageError(f"{claim.name} is about a corpus and has no direction q: leave --q out")
    if problem is not None:
        raise UsageError(f"{claim.name} is about a corpus: give --corpus, or --n and --T, instead of {problem}")
    options |= {"dimension": None if size["d"] is None else int(size["d"]), "step": size["eta"]}
    options["selection"] = example.selection if select is None else _selection(claim, select)
    if size["corpus"] is not None:
        if size["n"] is not None or size["T"] is not None:
            raise UsageError("--n and --T draw a corpus, and --corpus gives one: leave out one or the other")
        from tokenmargin.cli._texts import read_corpus

        return EmbeddingInstance.with_corpus(read_corpus(size["corpus"]), name=size["corpus"], **options)
    return EmbeddingInstance.of(size["n"] or example.corpus.n, size["T"] or example.corpus.T, **options)


def _selection(claim: Claim, select: str) -> str:
    """What the vector of a claim of paper A selects."""
    from typing import get_args

    from tokenmargin.theory.paper_a import ABOUT_A_SELECTION
    from tokenmargin.theory.settings import Selection

    if claim.name not in ABOUT_A_SELECTION:
        raise UsageError(f"{claim.name} is not about the selection of any vector: leave --select out")
    if select not in get_args(Selection):
        raise UsageError(f"--select of a claim about a corpus: {', '.join(get_args(Selection))}; got {select}")
    return select


def _parse_direction(q: str | None, problem: TokenProblem) -> Any:
    """A direction of the keys' space, from its coordinates."""
    if q is None:
        return None
    import numpy as np

    values = np.array(parse_numbers(q, float, "--q"))
    if len(values) != problem.keys.dimension or not np.isfinite(values).all() or not values.any():
        raise UsageError(
            f"--q must be {problem.keys.dimension} finite numbers, not all zero, one per key dimension; got {q}"
        )
    return values


def _print_reports(reports: tuple[Report, ...], *, full: bool) -> None:
    """For people: one line per inequality. In the short form, hypotheses appear only where they are not met."""
    from rich.markup import escape

    console = console_for(sys.stdout)
    if not full:
        console.print(_LEGEND)
    for claim, checks in groupby(reports, lambda report: report.claim):
        console.print()
        print_hanging(console, f"[bold]{claim.name}[/]  {escape(claim.about)}")
        for report in checks:
            _print_check(console, report, full=full)
    if full:
        _print_claim(console, reports[0].claim)
    counts = ", ".join(f"{sum(r.verdict == verdict for r in reports)} {verdict}" for verdict in _COLOURS)
    odd = sum(not report.as_expected for report in reports)
    print_message(f"\n{len(reports)} check{'s' * (len(reports) != 1)}: {counts}; {odd or 'none'} other than documented")


def _print_check(console: Console, report: Report, *, full: bool) -> None:
    """The verdict on one instance, the inequalities behind it, and what is open."""
    from rich.markup import escape

    verdict = f"[{_COLOURS[report.verdict]}]{report.verdict}[/]" + ("" if report.as_expected else " [red]?[/]")
    print_hanging(console, f"  {verdict}:  {_KINDS[report.kind]}; [dim]{escape(str(report.instance))}[/]")
    unmet = (slack for slack in report.findings.hypotheses if full or not slack.holds)
    console.print(_inequalities([*(("if", s) for s in unmet), *(("then", s) for s in report.findings.conclusion)]))
    for slack in report.findings.open:
        console.print(f"      [cyan]open[/] {escape(slack.name)}: decided by {escape(slack.decide)}")


def _print_claim(console: Console, claim: Claim) -> None:
    """The statement, how strong its evidence is, and what is known of its hypotheses."""
    from rich.markup import escape

    spared = "\n".join(f'Not shown to be needed, "{name}": {why}' for name, why in claim.unneeded.items())
    statement = "\n\n".join(" ".join(paragraph.split()) for paragraph in claim.statement.split("\n\n"))
    for words in (statement, f"Evidence: {_EVIDENCE[claim.evidence]}", claim.unconditional, spared, claim.note):
        if words:
            console.print(f"\n{escape(words)}")


def _inequalities(slacks: list[tuple[str, Slack]]) -> Padding:
    """A row an inequality: `then  |p| reached   1e5  >= 1e5   0`; red where it is broken."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column("", no_wrap=True)
    grid.add_column("", overflow="fold", max_width=76)
    grid.add_column("measured", justify="right", no_wrap=True)
    grid.add_column("bound", no_wrap=True)
    grid.add_column("slack", justify="right", no_wrap=True)
    for role, slack in slacks:
        room = (
            f"{slack.slack:.1g} +- {slack.tolerance:.1g}" if slack.holds and slack.slack < 0 else f"{slack.slack:.3g}"
        )
        numbers_ = (f"{slack.measured:.6g}", f"{slack.relation:>2} {slack.bound:.6g}", room)
        style = "" if slack.holds else "red"
        grid.add_row(role, Text(slack.name), *(Text(number, style=style) for number in numbers_))
    return Padding(grid, (0, 0, 0, 4), expand=False)


def _print_list(claims: tuple[Claim, ...], *, json: bool) -> None:
    if json:
        names = ("about", "evidence", "statement", "unconditional", "unneeded", "note")
        emit_json([{"claim": c.name, **{name: getattr(c, name) for name in names}} for c in claims])
        return
    from rich.padding import Padding
    from rich.text import Text

    console = console_for(sys.stdout)
    for known in claims:
        console.print(f"[bold]{known.name}[/] ({known.evidence})")
        # The statements are wrapped for the source; in a terminal their lines run on.
        for paragraph in (*known.statement.split("\n\n"), *([f"Note: {known.note}"] if known.note else [])):
            console.print(Padding(Text(" ".join(paragraph.split())), (0, 0, 0, 4), expand=False))
