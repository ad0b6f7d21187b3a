"""Every flag of every command, read off the commands themselves, with values nobody should give."""

from __future__ import annotations

import os
import types
import typing
import webbrowser
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.harness import FLOATS, Generator, command, pick
from tests.fuzz.harness import TEXTS as ANY_TEXTS
from tests.fuzz.samples import Samples

from tokenmargin.cli import app

COUNTS = {"--steps", "--starts", "--epochs", "--resolution", "--n", "--T", "--draws", "--jobs", "--circle"}
"""Who asks for a billion steps waits for them: such flags get no large values."""
SMALL = ("0", "1", "2", "3", "-1", "-7", "1.5", "nan", "x", "", "2e0", "1_0", "٣", " 1")
TEXTS = tuple(text.replace("\0", "0").replace("\ud800", "\udcff") for text in ANY_TEXTS)  # what a shell can give
LARGE = (str(2**31), str(2**63), str(10**30), str(-(2**63)), "1e9")
NAMES = ("l1", "linf", "lp:1.5", "lp:1", "lp:", "lp:nan", "nuclear", "ngd", "flow", "adam", "mirror:0", "steepest:x",
         "schatten:2", "json:loads", "nosuch:Thing", "a:b:c", "logistic", "exponential", "entmax=9", "softmax=0",
         "sigmoid=nan", "sparsemax=1", "0,1", "1,1,1", "A1", "A1,B9", "0,0,nan", "1e400,0,0", "auto", "cpu", "cuda",
         "meta", "cuda:99", "utf-16", "latin-1", "no-such-encoding", ";", "ab", "good", "film=day", "limits",
         "steps=1..3", "steps=3..1", "steps=", "=", "seed=0..1", "steps=1,x", "steps=0..99999999999")  # fmt: skip


@cache
def flags_of(verb: str) -> tuple[tuple[str, Any], ...]:
    """The flags of a command with the type each takes."""
    found = app[verb].assemble_argument_collection()
    return tuple((argument.names[0], argument.hint) for argument in found if argument.names[0].startswith("--"))


def bases(samples: Samples) -> dict[str, tuple[tuple[object, ...], float]]:
    """A quick and valid call of each command, and how often to choose it: what is slow, seldom."""
    out = samples.folder / "out"
    sweep = ("sweep", "fig1b", "--over", "steps=2,3", "--jobs", "1", "--table", "limits", "--out", out / "sweeps")
    return {
        "solve": (("solve", samples.problem), 6),
        "atlas": (("atlas", samples.problem, "--budget", 20), 4),
        "evolve": (("evolve", samples.problem, "--steps", 3), 8),
        "basins": (("basins", samples.problem, "--starts", 2, "--steps", 3, "--resolution", 2), 4),
        "graph": (("graph", samples.jsonl), 4),
        "verify": (("verify", "A.lemma2", "--n", 8, "--T", 4, "--d", 8, "--draws", 1), 4),
        "fit": (("fit", samples.jsonl, "--out", out / "model", "--min-count", 1), 1),
        "explain": (("explain", samples.model, "a good film"), 5),
        "predict": (("predict", samples.model, samples.csv), 5),
        "report": (("report", samples.model, "--out", out / "report.html"), 0.3),
        "reproduce": (("reproduce", "fig1b", "--steps", 2, "--list"), 4),
        "sweep": (sweep, 0.5),
        "runs": (("runs", "list", "--out", samples.runs), 4),
        "data": (("data", "list"), 2),
        "prepare": (("prepare", samples.jsonl, "--out", out / "ids.safetensors", "--minimum-count", 1), 4),
        "train": (("train", samples.ids, "--out", out / "trained", "--epochs", 1, "--dimension", 2), 3),
        "playground": (("playground", "--no-browser"), 2),
        "explore": (("explore", "--out", out / "explore.html"), 1),
        "demo": (("demo", "--out", samples.csv / "no-folder"), 0.05),
    }


def flags(rng: Generator, samples: Samples) -> bool:
    """A valid call with one to three flags changed or added, or an argument replaced."""
    from tokenmargin.report.playground import server

    server.serve = lambda *_: None
    webbrowser.open = lambda *_: True
    os.environ["XDG_CACHE_HOME"] = str(samples.folder / "cache")
    choices = bases(samples)
    weights = [weight for _, weight in choices.values()]
    verb = str(rng.choice(list(choices), p=[weight / sum(weights) for weight in weights]))
    arguments = [str(part) for part in choices[verb][0]]
    if verb == "train":
        samples.place("../out/trained")
    os.chdir(samples.folder)
    if rng.random() < 0.1 and len(arguments) > 1:
        arguments[1] = _word(rng, samples)
    for _ in range(int(rng.choice([1, 1, 2, 3]))):
        name, hint = pick(rng, flags_of(verb))
        if name == "--[KEYWORD]":
            name = pick(rng, ("--steps", "--seed", "--no-such", "--circle"))
            hint = int
        if name == "--jobs" or (verb in ("sweep", "reproduce") and name == "--scale"):
            continue
        arguments += [name] if hint is bool else [name, _value(rng, samples, name, hint)]
    code, _, _ = command(*arguments)
    return code == 0


def _value(rng: Generator, samples: Samples, name: str, hint: Any) -> str:
    kinds = set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
    if rng.random() < 0.15:
        return _word(rng, samples)
    if int in kinds:
        return str(pick(rng, SMALL if name in COUNTS else (*SMALL, *LARGE)))
    if float in kinds:
        return str(pick(rng, (*SMALL, *FLOATS)))
    if Path in kinds:
        return _word(rng, samples)
    if typing.get_origin(hint) is typing.Literal:
        return str(pick(rng, (*typing.get_args(hint), "x", "")))
    return str(pick(rng, (*NAMES, *TEXTS)))


def _word(rng: Generator, samples: Samples) -> str:
    """A path: to nothing, a folder, a file of another kind, a place where nothing can be written; or any text."""
    nowhere = ("/dev/full", "/proc/self/mem", "/no/such/place", "/", ".", "/proc/x.npz", "/dev/full/x.png")
    made: Sequence[object] = (samples.csv, samples.ids, samples.model, samples.kept, samples.problem, samples.runs,
                              samples.shards, samples.jsonl, samples.parquet, samples.folder / "out" / "x.npz",
                              samples.folder / "out" / "x.png", samples.folder / "out" / "[red]x.svg")  # fmt: skip
    return str(pick(rng, (*nowhere, *made, *TEXTS)))
