"""The tables of trained embeddings in the documentation say what the files of their runs hold."""

import csv
import math
import re
from pathlib import Path

import pytest

from tokenmargin.experiments import experiment_named

DOCS = Path(__file__).parents[2] / "docs"
READINGS = (DOCS / "training-readings.md").read_text()
NOTES = (DOCS / "training-notes.md").read_text()
WHOLE_CORPUS = 50_000


def runs(name):
    """The rows of a file of runs, numbers as numbers."""
    with (DOCS / "results" / f"{name}.csv").open() as file:
        return [{key: number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def number(text):
    try:
        return float(text)
    except ValueError:
        return text


def rounds_to(value, printed):
    """Whether a value of five digits is printed so: within half a unit of the last digit."""
    digits, _, exponent = printed.partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    return abs(value - float(printed)) <= (0.5 + 1e-6) * unit


def is_printed_as(row, words):
    return all(rounds_to(row[key], word) for key, word in zip(("loss", "rho_v", "rho_p"), words, strict=True))


def test_every_loss_with_its_two_correlations_is_a_run():
    rows = [row for name in ("training-readings", "training-padded", "training-phase") for row in runs(name)]
    triples = re.findall(r"(?<![\d.])(\d[\d.]*(?:e-\d+)?)\**[ |]+(-?\.\d\d)[ |]+(-?\.\d\d)(?!\d)", READINGS)
    assert len(triples) > 50
    assert [words for words in triples if not any(is_printed_as(row, words) for row in rows)] == []


def span(words):
    """The least and the largest of `a to b`, `a, b` or `a`."""
    ends = re.split(r" to |, ", words)
    return ends[0], ends[-1]


def test_the_table_of_the_phase_diagram():
    """Losses by reviews per token and by rate times sqrt(d), from the least run to the largest."""
    found = re.findall(r"^\| (\d\.\d (?:IMDB|Yelp).*) \|$", READINGS, re.MULTILINE)
    lines = [line.split(" | ") for line in found]
    sizes = [(1200,), (4000,), (11086, 12000), (WHOLE_CORPUS,)]
    columns = [(0.011, 0.023, 0.034), (0.045, 0.068), (0.113,), (0.136,), (0.226,), (0.453,)]
    assert len(lines) == len(sizes)
    for texts, (_, *cells) in zip(sizes, lines, strict=True):
        for steps, cell in zip(columns, cells, strict=True):
            losses = [
                run["loss"]
                for run in runs("training-phase")
                if run["texts"] in texts and round(run["rate"] * math.sqrt(run["dimension"]), 3) in steps
            ]
            least, largest = span(cell)
            assert rounds_to(min(losses), least), (texts, steps, cell)
            assert rounds_to(max(losses), largest), (texts, steps, cell)


def seen(row):
    """A loss of at most 1e-4 and a picture within the bounds of our figures."""
    return row["loss"] <= 1e-4 and row["rho_v"] >= 0.5 and row["rho_p"] >= 0.3 and row["sign"] >= 0.8


def test_what_is_counted_over_the_runs():
    phase, readings, padded = (runs(f"training-{name}") for name in ("phase", "readings", "padded"))
    words = " ".join(READINGS.split())
    assert f"{sum(map(seen, phase))} of the {len(phase)} runs" in words
    small = [run for run in readings if run["epochs"] == 200]
    assert f"in {sum(map(seen, small))} of these {len(small)} runs" in words
    closer = [sum(run[f"rho_{of}"] > run[f"alpha_{of}"] for run in readings) for of in "vp"]
    assert f"than alpha_s in {closer[0]} (" in words
    assert f"more closely in {closer[1]} (" in words
    assert all(run[f"rho_{of}"] > run[f"alpha_{of}"] for run in phase for of in "vp")
    more, of = len(phase) + len(readings), " ".join((DOCS / "training.md").read_text().split())
    assert f"in {closer[0] + len(phase)} of {more} runs" in of
    assert f"and {closer[1] + len(phase)} of {more} for" in of
    both = [run for run in (*phase, *readings, *padded) if run["texts"] > 11_000]
    # "Loss of order 1e-5" with the picture, as the paper prints of two layers: no run of a whole corpus has both.
    assert not any(run["loss"] <= 1.5e-5 and run["rho_p"] > 0.4 for run in both)
    everything = len(readings) + len(phase) + len(padded) + 4  # the four of the best reading have a table of their own
    assert f"in any of these {everything} runs" in words
    assert f"; {everything} runs say" in (DOCS / "measured.md").read_text()


SETTINGS = {"epochs": "epochs", "decay": "decay", "scale": "embedding_scale", "rate": "rate"}
STUDY = [line for line in NOTES.splitlines() if re.match(r"\| (one|two)-layer \| .* \| rate=", line)]


@pytest.mark.parametrize("line", STUDY, ids=lambda line: " ".join(line.split("|")[1:4]))
def test_the_study_of_settings(line):
    """Final loss and correlations of every setting, and where rho_p is largest along the way."""
    model, data, settings, *finals, best = [cell.strip() for cell in line.strip("|").split("|")]
    data = {"IMDB": "imdb", "Yelp, balanced": "yelp-balanced"}[data]
    given = {SETTINGS[key]: float(value) for key, value in re.findall(r"(\w+)=([\d.e-]+)", settings)}
    expected = {"decay": 1e-8, "embedding_scale": 1.0, "seed": 0, "dataset": data, "model": model} | given
    cut = "" if "no milestones" in settings else "100 200"
    (row,) = (
        run
        for run in runs("training-runs")
        if all(run[key] == value for key, value in expected.items()) and run["milestones"] == cut
    )
    assert all(rounds_to(row[key], word) for key, word in zip(("loss", "rho_v", "rho_p", "sign"), finals, strict=True))
    named = re.sub(r"scale=(\d[\d.]*)", r"embedding_scale=\1 prompt_scale=\1", settings)
    name = f"{data} {model} {named.replace(' no milestones', ' milestones=()')}"
    along = [run for run in runs("training-curves") if run["run"] == name]
    top = max(along, key=lambda run: run["rho_p"])
    epoch, *words = best.split(", ")
    assert top["epoch"] == int(epoch)
    assert is_printed_as(top, words)


@pytest.mark.parametrize("line", re.findall(r"^\| (A\d.*) \|$", NOTES, re.MULTILINE)[:5])
def test_figures_say_what_their_quick_settings_give(line):
    """The line of `reproduce --list` has the correlations of the table."""
    name, _, *means = line.split(" | ")
    words = experiment_named(name.partition(",")[0]).__doc__ or ""
    for key, cell in zip(("rho_v", "rho_p"), means, strict=False):
        assert rounds_to(float(cell.split(" ± ")[0]), re.search(rf"{key} (\d\.\d\d)", words)[1])
