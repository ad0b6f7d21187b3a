"""The functions of the front door with arguments that do not fit: refused by a sentence of ours, or answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from tests.fuzz.harness import FLOATS, INTEGERS, TEXTS, Generator, WrongAnswer, check_clear, pick, strange_array
from tests.fuzz.samples import Samples

import tokenmargin as tm
from tokenmargin.data.pipeline import Pipeline
from tokenmargin.dynamics import Adam, MirrorDescent, Momentum, ridge_path
from tokenmargin.norms import LpNorm, SchattenNorm
from tokenmargin.objective.embedding import gaussian_embeddings
from tokenmargin.objective.single_location import SingleLocation
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.next_token import next_token_windows
from tokenmargin.selection import saturation, select

Call = tuple[Callable[..., Any], dict[str, Any]]
BOUNDED = {"steps", "every", "n", "T", "d", "m", "k", "length", "repeats", "count", "budget", "draws", "resolution",
           "starts", "L", "size"}  # fmt: skip
"""Who asks for a billion starts waits for them, or has no memory for them."""
ANYTHING = {"TokenProblem.of", "TokenProblem.of head", "Coordinates", "Coordinates.of", "Gram", "ClassProblem",
            "RegressionProblem", "with_matrix", "self_attention", "cross_attention", "max_margin", "evolve",
            "flow"}  # fmt: skip
"""What takes whatever can be made an array."""


@cache
def _calls() -> dict[str, Call]:
    """Valid calls; the fuzzer changes one or two of the arguments."""
    rng = np.random.default_rng(0)
    keys, labels, head = rng.normal(size=(2, 3, 2)), np.array([1.0, -1.0]), rng.normal(size=2)
    scores, mask = rng.normal(size=(2, 3)), np.ones((2, 3), dtype=bool)
    p = tm.TokenProblem.of(keys, labels, head=head)
    best = np.array([0, 1])
    prompt, joint = tm.PromptObjective(p, tm.LogisticLoss()), tm.JointObjective(p, tm.LogisticLoss())
    corpus = tm.TokenCorpus.of([["a", "b"], ["c", "b"]], [1, -1])
    words, signs = ["a good film", "a bad film"] * 8, ["pos", "neg"] * 8
    vectors, index = rng.normal(size=(4, 2)), np.array([[0, 1], [2, 3]])
    return {
        "TokenProblem.of": (tm.TokenProblem.of, {"keys": keys, "labels": labels, "scores": scores, "mask": mask}),
        "TokenProblem.of head": (tm.TokenProblem.of, {"keys": keys, "labels": labels, "head": head, "values": keys}),
        "Coordinates": (Coordinates, {"vectors": vectors, "index": index}),
        "Coordinates.of": (Coordinates.of, {"tokens": keys, "mask": mask}),
        "Gram": (Gram, {"matrix": vectors @ vectors.T, "index": index}),
        "ClassProblem": (tm.ClassProblem.of, {"keys": keys, "classes": np.array([0, 2]),
                                              "head": rng.normal(size=(2, 3))}),
        "RegressionProblem": (tm.RegressionProblem.of, {"keys": keys, "labels": head, "head": head}),
        "with_matrix": (p.with_matrix, {"queries": vectors[:2]}),
        "self_attention": (tm.self_attention, {"tokens": keys, "labels": labels, "head": head}),
        "cross_attention": (tm.cross_attention, {"tokens": keys, "queries": vectors[:2], "labels": labels,
                                                 "head": head}),
        "max_margin": (tm.max_margin, {"problem": p, "selected": best, "norm": "l2"}),
        "max_margin gram": (tm.max_margin, {"problem": p.as_gram(), "selected": best}),
        "max_margin_batch": (tm.max_margin_batch, {"keys": keys[None], "selected": best[None]}),
        "class_margin": (tm.class_margin, {"problem": p, "selection": np.array([[1, 1, 0], [0, 1, 0]], bool)}),
        "choice_margin": (tm.choice_margin, {"problem": p, "optimal": np.array([[1, 1, 0], [0, 1, 0]], bool)}),
        "label_margin": (tm.label_margin, {"problem": p, "selected": best}),
        "relaxed_max_margin": (tm.relaxed_max_margin, {"problem": p, "selected": best, "norm": "l1"}),
        "limit_direction": (tm.limit_direction, {"problem": p, "selected": best}),
        "atlas": (tm.atlas, {"problem": p, "budget": 10, "norm": "l2"}),
        "evolve": (tm.evolve, {"objective": prompt, "method": "ngd", "steps": 3, "start": head, "every": 1}),
        "evolve gd": (tm.evolve, {"objective": joint, "method": tm.GradientDescent(0.1), "steps": 3}),
        "evolve batch": (tm.evolve, {"objective": prompt, "method": "adam", "steps": 3, "batch": 1,
                                     "rng": np.random.default_rng(0)}),
        "evolve_many": (tm.evolve_many, {"problems": [p], "starts": [vectors], "steps": 3,
                                         "method": tm.NormalizedGradientDescent(0.1)}),
        "flow": (tm.flow, {"objective": prompt, "start": head, "until_norm": 3.0}),
        "limit_of": (tm.limit_of, {"problem": p, "start": head}),
        "regularisation_path": (tm.regularisation_path, {"objective": prompt, "radii": np.array([1.0, 2.0]),
                                                         "starts": 2, "rng": np.random.default_rng(0)}),
        "ridge_path": (ridge_path, {"objective": joint, "radii": [(1.0, 1.0)], "starts": 2,
                                       "rng": np.random.default_rng(0)}),
        "basins": (tm.basins, {"problem": p, "starts": vectors, "steps": 3}),
        "basin_map": (tm.basin_map, {"problem": p, "extent": 2.0, "resolution": 3}),
        "random_starts": (tm.random_starts, {"problem": p, "count": 3, "radius": 1.0, "rng": np.random.default_rng(0)}),
        "random_problem": (tm.random_problem, {"n": 2, "T": 3, "d": 2, "rng": np.random.default_rng(0)}),
        "limit_constants": (tm.limit_constants, {"problem": p, "selected": best}),
        "select": (select, {"keys": p.keys, "p": head}),
        "attention_weights": (tm.attention_weights, {"keys": p.keys, "p": head}),
        "saturation": (saturation, {"keys": p.keys, "p": head, "scores": scores}),
        "angle": (tm.angle, {"geometry": p.keys, "p": head, "q": vectors[0]}),
        "cosine": (tm.cosine, {"geometry": p.keys, "p": head, "q": vectors[0]}),
        "norm_named": (tm.norm_named, {"name": "lp:1.5"}),
        "LpNorm": (LpNorm, {"p": 1.5}),
        "SchattenNorm": (SchattenNorm, {"p": 1.5}),
        "GradientDescent": (tm.GradientDescent, {"step": 0.1}),
        "Adam": (Adam, {"step": 0.1}),
        "Momentum": (Momentum, {"step": 0.1}),
        "MirrorDescent": (MirrorDescent, {"p": 1.5, "step": 0.1}),
        "Entmax": (tm.Entmax, {"alpha": 1.5}),
        "Sigmoid": (tm.Sigmoid, {"bias": 1.5}),
        "TokenCorpus.of": (tm.TokenCorpus.of, {"sequences": [["a", "b"], ["b"]], "labels": labels}),
        "k_level_corpus": (tm.k_level_corpus, {"n": 4, "T": 3, "rng": np.random.default_rng(0)}),
        "gaussian_embeddings": (gaussian_embeddings, {"corpus": corpus, "d": 4, "rng": np.random.default_rng(0)}),
        "first_step": (tm.first_step, {"embeddings": gaussian_embeddings(corpus, 4, rng=rng), "eta": 1.0}),
        "next_token_windows": (next_token_windows, {"tokens": np.array([0, 0, 1, 0, 1]), "lengths": np.array([5]),
                                                      "vocabulary": ["a", "b", "c"], "window": 2}),
        "prepare": (tm.prepare, {"texts": words, "labels": [1, -1] * 8}),
        "Pipeline": (Pipeline, {"minimum_count": 2, "punctuation": "split"}),
        "classifier": (_fitted, {"texts": words, "labels": signs, "sample_weight": np.ones(16), "ngrams": 1,
                                 "min_count": 1}),
        "SingleLocation": (SingleLocation, {"d": 4, "L": 3}),
        "TrainingConfig": (tm.TrainingConfig, {"dimension": 2, "epochs": 1, "rate": 0.1, "batch": 2, "seed": 0}),
    }  # fmt: skip


def _fitted(texts: Any, labels: Any, sample_weight: Any, **settings: Any) -> Any:
    model = tm.TokenSelectionClassifier(exponent=1.0, **settings).fit(texts, labels, sample_weight=sample_weight)
    said = model.predict_proba(["a good day"])
    if not np.isfinite(said).all():
        raise WrongAnswer(f"probabilities {said}")
    return said


def calls(rng: Generator, _: Samples) -> bool:
    """A valid call with one or two arguments changed; an optimal answer has finite numbers."""
    name = pick(rng, sorted(_calls()))
    function, valid = _calls()[name]
    arguments = dict(valid)
    if "rng" in arguments:
        arguments["rng"] = np.random.default_rng(0)
    changeable = [key for key, value in valid.items() if isinstance(value, np.ndarray | int | float | str | list)]
    for key in rng.choice(changeable, size=min(len(changeable), int(rng.choice([1, 1, 2]))), replace=False):
        arguments[key] = _strange(rng, key, valid[key], anything=name in ANYTHING)
    try:
        answer = function(**arguments)
    except (ValueError, TypeError) as error:
        check_clear(error)
        return False
    if getattr(answer, "status", "") == "optimal" and not np.isfinite(answer.vector).all():
        raise WrongAnswer(f"{name}: optimal with {answer.vector}")
    return True


def _strange(rng: Generator, key: str, value: Any, *, anything: bool) -> Any:
    """Another value of the annotated type; of what takes anything like an array, anything."""
    if isinstance(value, np.ndarray):
        changed = strange_array(rng, value)
        numbers = isinstance(changed, np.ndarray) and changed.dtype.kind in "fiub"
        return changed if anything or numbers else value * pick(rng, FLOATS)
    if isinstance(value, list):
        return pick(rng, ([], value[:-1], [*value, value[0]], value[::-1], value * 2))
    if isinstance(value, str):
        return pick(rng, (*TEXTS, "l1", "nuclear", "flow", "lp:1e308"))
    if isinstance(value, int):
        return pick(rng, [number for number in INTEGERS if abs(number) < 100] if key in BOUNDED else INTEGERS)
    return pick(rng, FLOATS)
