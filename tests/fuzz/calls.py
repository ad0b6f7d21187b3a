"""The functions of the front door with arguments that do not fit: refused by a sentence of ours, or answered."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from tests.fuzz.harness import FLOATS, INTEGERS, TEXTS, Generator, WrongAnswer, check_clear, pick, strange_array
from tests.fuzz.samples import Samples

import tokenmargin as tm
from tokenmargin.classifier import what_if
from tokenmargin.data.pipeline import Pipeline
from tokenmargin.dynamics import Adam, MirrorDescent, Momentum, cone_path, method_named, ridge_path
from tokenmargin.margin import selected_pairs
from tokenmargin.norms import LpNorm, SchattenNorm
from tokenmargin.objective.embedding import gaussian_embeddings
from tokenmargin.objective.single_location import SingleLocation
from tokenmargin.problem.geometry import Coordinates, Gram
from tokenmargin.problem.next_token import next_token_windows
from tokenmargin.selection import saturation, select

Call = tuple[Callable[..., Any], dict[str, Any]]
BOUNDED = {"steps", "every", "n", "T", "d", "m", "k", "length", "repeats", "count", "budget", "draws", "resolution",
           "starts", "L", "size", "heads"}  # fmt: skip
"""Who asks for a billion starts waits for them, or has no memory for them."""
ANYTHING = {"TokenProblem.of", "TokenProblem.of head", "Coordinates", "Coordinates.of", "Gram", "ClassProblem",
            "RegressionProblem", "with_matrix", "self_attention", "cross_attention", "max_margin",
            "evolve PromptObjective", "flow"}  # fmt: skip
"""What takes whatever can be made an array."""
WITHOUT = {"figure1b", "three_limits", "optimal_tokens", "ExponentialLoss", "LogisticLoss", "LogLoss", "Sparsemax",
           "Limit", "CLAIMS", "load_model", "load_prepared", "load_problem"}  # fmt: skip
"""What nobody can call wrongly, and the readers of files, to which other surfaces give damaged ones."""


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
    matrix = p.with_matrix(vectors[:2])
    classes = tm.ClassProblem.of(keys, [0, 1], head=rng.normal(size=(2, 2)))
    values = tm.RegressionProblem.of(keys, head, head=head)
    small = tm.TrainingConfig(dimension=2, epochs=1, rate=0.1, batch=4, seed=0)
    bent = tm.NonlinearHead(lambda x: np.tanh(x).sum(axis=-1), lambda x: 1 - np.tanh(x) ** 2)
    model = tm.TokenSelectionClassifier(exponent=1.0).fit(words, signs)
    return {
        "TokenProblem.of": (tm.TokenProblem.of, {"keys": keys, "labels": labels, "scores": scores, "mask": mask}),
        "TokenProblem.of head": (tm.TokenProblem.of, {"keys": keys, "labels": labels, "head": head, "values": keys}),
        "Coordinates": (Coordinates, {"vectors": vectors, "index": index}),
        "Coordinates.of": (Coordinates.of, {"tokens": keys, "mask": mask}),
        "Gram": (Gram, {"matrix": vectors @ vectors.T, "index": index}),
        "ClassProblem": (tm.ClassProblem.of, {"keys": keys, "classes": np.array([0, 1]),
                                              "head": rng.normal(size=(2, 2))}),
        "RegressionProblem": (tm.RegressionProblem.of, {"keys": keys, "labels": head, "head": head}),
        "with_matrix": (p.with_matrix, {"queries": vectors[:2]}),
        "self_attention": (tm.self_attention, {"tokens": keys, "labels": labels, "head": head}),
        "cross_attention": (tm.cross_attention, {"tokens": keys, "queries": vectors[:2], "labels": labels,
                                                 "head": head}),
        "max_margin": (tm.max_margin, {"problem": p, "selected": best, "norm": "l2"}),
        "max_margin gram": (tm.max_margin, {"problem": p.as_gram(), "selected": best}),
        "max_margin matrix": (tm.max_margin, {"problem": matrix, "selected": best, "norm": "nuclear"}),
        "max_margin_batch": (tm.max_margin_batch, {"keys": keys[None], "selected": best[None]}),
        "class_margin": (tm.class_margin, {"problem": p, "selection": np.array([[1, 1, 0], [0, 1, 0]], bool)}),
        "choice_margin": (tm.choice_margin, {"problem": p, "optimal": np.array([[1, 1, 0], [0, 1, 0]], bool)}),
        "label_margin": (tm.label_margin, {"problem": p, "selected": best}),
        "relaxed_max_margin": (tm.relaxed_max_margin, {"problem": p, "selected": best, "norm": "l1"}),
        "joint_phases": (tm.joint_phases, {"problem": p, "selected": best}),
        "corpus_margin": (tm.corpus_margin, {"vectors": rng.normal(size=(3, 2)), "gap": 1e-7, "norm": "l2",
                                             "pairs": selected_pairs(corpus, np.array([0, 2])), "start": head}),
        "limit_direction": (tm.limit_direction, {"problem": p, "selected": best}),
        "atlas": (tm.atlas, {"problem": p, "budget": 10, "norm": "l2"}),
        "evolve PromptObjective": (tm.evolve, {"objective": prompt, "method": "ngd", "steps": 3, "start": head,
                                             "every": 1}),
        "evolve JointObjective": (tm.evolve, {"objective": joint, "method": tm.GradientDescent(0.1), "steps": 3}),
        "evolve batch": (tm.evolve, {"objective": prompt, "method": "adam", "steps": 3, "batch": 1,
                                     "rng": np.random.default_rng(0)}),
        "evolve_many": (tm.evolve_many, {"problems": [p], "starts": [vectors], "steps": 3,
                                         "method": tm.NormalizedGradientDescent(0.1)}),
        "flow": (tm.flow, {"objective": prompt, "start": head, "until_norm": 3.0}),
        "limit_of": (tm.limit_of, {"problem": p, "start": head}),
        "rates": (_rates, {"start": head, "until_norm": 100.0}),
        "NextTokenProblem next_token_limit": (_next_token_limit, {
            "sequences": [[1, 0], [2, 1, 0], [2, 1, 0]], "labels": [1, 1, 2], "embeddings": rng.normal(size=(3, 4)),
            "vocabulary": ["a", "b", "c"]}),
        "regularisation_path": (tm.regularisation_path, {"objective": prompt, "radii": np.array([1.0, 2.0]),
                                                         "starts": 2, "rng": np.random.default_rng(0)}),
        "ridge_path": (ridge_path, {"objective": joint, "radii": [(1.0, 1.0)], "starts": 2,
                                       "rng": np.random.default_rng(0)}),
        "cone_path": (cone_path, {"objective": prompt, "direction": head, "radii": np.array([1.0, 2.0]), "width": 0.5,
                                  "starts": 2, "rng": np.random.default_rng(0)}),
        "FactoredObjective": (_descended, {"kind": tm.FactoredObjective, "problem": matrix, "rank": 1,
                                           "base": rng.normal(size=(2, 2)), "start": rng.normal(size=4)}),
        "DiagonalObjective": (_descended, {"kind": tm.DiagonalObjective.of, "problem": p, "start": np.ones(4)}),
        "MultiHeadObjective": (_descended, {"kind": tm.MultiHeadObjective.of, "heads": [p, p], "start": np.ones(4)}),
        "HeadObjective NonlinearHead": (_descended, {"kind": tm.HeadObjective, "problem": p, "head": bent,
                                                     "start": head}),
        "MapObjective Softmax": (_descended, {"kind": _softened, "problem": p, "temperature": 0.5, "start": head}),
        "ClassObjective": (_descended, {"kind": tm.ClassObjective, "problem": classes, "start": head}),
        "SquareObjective": (_descended, {"kind": tm.SquareObjective, "problem": values, "start": head}),
        "CustomLoss": (tm.CustomLoss, {"function": np.exp, "derivative": np.exp, "lipschitz": 1.0, "bound": 1.0}),
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
        "SteepestDescent": (tm.SteepestDescent, {"norm": "l1", "step": 0.1, "momentum": 0.5}),
        "NormalizedGradientDescent": (tm.NormalizedGradientDescent, {"step": 0.1}),
        "method_named": (method_named, {"name": "ngd", "step": 0.1, "decay": 0.5}),
        "Adam": (Adam, {"step": 0.1}),
        "Momentum": (Momentum, {"step": 0.1}),
        "MirrorDescent": (MirrorDescent, {"p": 1.5, "step": 0.1}),
        "Entmax": (tm.Entmax, {"alpha": 1.5}),
        "Sigmoid": (tm.Sigmoid, {"bias": 1.5}),
        "TokenCorpus.of": (tm.TokenCorpus.of, {"sequences": [["a", "b"], ["b"]], "labels": labels}),
        "k_level_corpus": (tm.k_level_corpus, {"n": 4, "T": 3, "rng": np.random.default_rng(0)}),
        "selective_corpus": (tm.selective_corpus, {"n": 4, "T": 3, "irrelevant": 2, "rng": np.random.default_rng(0)}),
        "gaussian_embeddings": (gaussian_embeddings, {"corpus": corpus, "d": 4, "rng": np.random.default_rng(0)}),
        "first_step": (tm.first_step, {"embeddings": gaussian_embeddings(corpus, 4, rng=rng), "eta": 1.0}),
        "next_token_windows": (next_token_windows, {"tokens": np.array([0, 0, 1, 0, 1]), "lengths": np.array([5]),
                                                      "vocabulary": ["a", "b", "c"], "window": 2}),
        "prepare": (tm.prepare, {"texts": words, "labels": [1, -1] * 8}),
        "Pipeline": (Pipeline, {"minimum_count": 2, "punctuation": "split"}),
        "TokenSelectionClassifier": (_fitted, {"texts": words, "labels": signs, "sample_weight": np.ones(16),
                                               "ngrams": 1, "min_count": 1}),
        "TokenSelectionClassifier settings": (_fitted, {
            "texts": words, "labels": signs, "sample_weight": None, "max_words": 4, "attention": "counted",
            "start_power": 0.5, "loss": "log", "value_penalty": 0.3, "logit_penalty": 30.0, "tol": 1e-5,
            "validation_fraction": 0.1, "max_texts": 16, "random_state": 0}),
        "TokenSelectionClassifier buckets": (_fitted, {"texts": words, "labels": signs, "sample_weight": None,
                                                       "buckets": 8}),
        "TokenSelectionClassifier words": (_fitted, {"texts": words, "labels": signs, "sample_weight": None,
                                                     "vocabulary": ["good", "bad"]}),
        "what_if": (what_if, {"model": model, "text": "a good film", "delete": ["good"], "replace": {"film": "day"}}),
        "claim": (tm.claim, {"name": "B.lemma1"}),
        "verify": (tm.verify, {"name": "B.lemma10", "instance": p}),
        "SingleLocation": (SingleLocation, {"d": 4, "L": 3}),
        "TrainingConfig": (tm.TrainingConfig, {"dimension": 2, "epochs": 1, "rate": 0.1, "batch": 2, "seed": 0}),
        "train": (tm.train, {"data": tm.prepare(words, [1, -1] * 8, Pipeline(minimum_count=1)), "config": small,
                             "checkpoint_every": 60.0, "stop_loss": 0.0, "budget": 9.0, "chunk": 4}),
    }  # fmt: skip


def called() -> set[str]:
    """The names of the front door that are called."""
    return {word.partition(".")[0] for name in _calls() for word in name.split()}


def _rates(start: Any, until_norm: Any) -> Any:
    problem = tm.TokenProblem.of([[[1.0, 0.0], [0.0, 1.0]]], [1], head=[1.0, 0.0])
    return tm.rates(tm.flow(problem, start=start, until_norm=until_norm))


def _next_token_limit(**given: Any) -> Any:
    return tm.next_token_limit(tm.NextTokenProblem.of(given.pop("sequences"), given.pop("labels"), **given))


def _softened(problem: Any, temperature: Any) -> Any:
    return tm.MapObjective(problem, attention=tm.Softmax(temperature))


def _descended(kind: Callable[..., Any], start: Any, **given: Any) -> Any:
    """A few steps of descent on an objective: its risk and its gradient are computed."""
    path = tm.evolve(kind(**given), tm.GradientDescent(0.1), steps=3, start=start)
    if not np.isfinite(path.final).all():
        raise WrongAnswer(f"descent ends at {path.final}")
    return path


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
