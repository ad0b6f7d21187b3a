"""Model folders: arrays, settings, vocabulary and a card for people; read without executing anything.

    model/  config.json         format, settings, classes, checksums of the other files
            model.safetensors   logits, values and what all texts share; n-grams; statistics of the tokens
            tokenizer.json      the words, and the tokenizer: its name, or a Hugging Face tokenizer's own description
            README.md           the model card

A folder appears whole or not at all. Each file is checked against its checksum, and a folder of a newer format is
refused.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from tokenmargin._files import atomic_folder, file_digest, plain
from tokenmargin._version import __version__
from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.fitting import Validation
from tokenmargin.classifier.hashing import HashedVocabulary
from tokenmargin.classifier.importance import TokenStatistics
from tokenmargin.classifier.input_checks import check_settings
from tokenmargin.classifier.model_choice import FitChoice, Partner
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import NAMED_TOKENIZERS, Tokenizer, describe_tokenizer
from tokenmargin.classifier.vocabulary import Vocabulary
from tokenmargin.data.pipeline import Pipeline

FORMAT = 6  # of hashed words; 5 has a vocabulary, 4 had neither partners nor counted repeats, 3 no choice of the loss
UNHASHED = 5
OLDEST = 2  # in format 2 the sink had a value; it is read as g = 1, with the same decisions
KIND = "tokenmargin classifier"
LARGEST_LOGARITHM = 700.0  # e^709 is the largest double
FILES = ("model.safetensors", "tokenizer.json", "README.md")
SETTINGS = (
    "ngrams",
    "min_count",
    "max_words",
    "buckets",
    "max_texts",
    "exponent",
    "attention",
    "start_power",
    "loss",
    "repeats",
    "value_penalty",
    "logit_penalty",
    "max_iter",
    "tol",
    "validation_fraction",
)


class ModelFileError(ValueError):
    """A model folder that cannot be used, with the file and what is wrong in the message."""


def save_model(
    model: TokenSelectionClassifier, folder: str | Path, *, notes: Mapping[str, Any] | None = None, light: bool = False
) -> Path:
    """Write a fitted model; `notes` (where the data came from, the command) are kept with it.

    A `light` folder holds the model alone, two numbers of 32 bits per token for two classes: it decides and explains
    as the whole one does, to seven digits, and has no `token_importance_`.

    An older model in the folder is replaced; a folder that holds anything else is refused.
    """
    folder = Path(folder)
    if folder.exists() and not (folder / "config.json").is_file() and (folder.is_file() or any(folder.iterdir())):
        raise ModelFileError(f"{folder} is in the way: it holds something that is not a model; choose another name")
    with atomic_folder(folder) as beside:
        _write(model, beside, dict(notes or {}), light)
    return folder


def _write(model: TokenSelectionClassifier, folder: Path, notes: dict[str, Any], light: bool) -> None:
    from safetensors.numpy import save_file

    arrays = {
        **model.token_model_.tensors(),
        **({} if light else vars(model.token_statistics_)),
        "loss_curve": np.array(model.loss_curve_, float),
        **model.vocabulary_.tensors(),
    }
    if light:
        arrays |= {name: arrays[name].astype(np.float32) for name in ("logits", "values")}
    tensors = folder / "model.safetensors"
    tensors.touch()
    mode = stat.S_IMODE(tensors.stat().st_mode)
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, tensors)
    tensors.chmod(mode)  # safetensors makes files for their owner alone, whatever the umask
    described = json.dumps(_described_tokenizer(model), ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(described, encoding="utf-8")
    # A path in the notes may have bytes that are no UTF-8: they are kept as escapes, which JSON reads as they were.
    (folder / "README.md").write_text(_card(model, notes), encoding="utf-8", errors="backslashreplace")
    digests = {name: file_digest(folder / name) for name in FILES}
    content = json.dumps(_settings_and_notes(model, notes) | {"sha256": digests}, ensure_ascii=False, indent=1) + "\n"
    (folder / "config.json").write_text(content, encoding="utf-8", errors="backslashreplace")


def _described_tokenizer(model: TokenSelectionClassifier) -> dict[str, Any]:
    """The tokenizer and the vocabulary, as JSON can hold them."""
    tokenizer = model.tokenizer
    described: dict[str, Any] = {"kind": describe_tokenizer(tokenizer), **model.vocabulary_.json_content()}
    if hasattr(tokenizer, "to_str"):
        described |= {"kind": "hugging-face", "tokenizer": json.loads(tokenizer.to_str())}
    elif isinstance(tokenizer, Pipeline):
        described |= {"kind": "pipeline", "choices": tokenizer.describe()}
    elif not isinstance(tokenizer, str):
        described["kind"] = f"callable {describe_tokenizer(tokenizer)}"
    return described


def _settings_and_notes(model: TokenSelectionClassifier, notes: dict[str, Any]) -> dict[str, Any]:
    """What `config.json` says beside the digests of the other files."""
    return {
        "kind": KIND,
        "format": FORMAT if model.buckets is not None else UNHASHED,
        "version": __version__,
        "classes": model.classes_.tolist(),
        "class_type": model.classes_.dtype.str if model.classes_.dtype.kind != "O" else "object",
        "settings": {name: value for name in SETTINGS if (value := getattr(model, name)) is not None},
        "chosen": plain(asdict(model.chosen_)),
        "texts": model.n_texts_,
        "duplicates": model.n_duplicates_,
        "validation": asdict(model.validation_) if model.validation_ else None,
        "notes": notes,
    }


def _card(model: TokenSelectionClassifier, notes: Mapping[str, Any]) -> str:
    classes = ", ".join(map(str, model.classes_[:20].tolist()))
    told = "\n".join(f"- {key}: {value}" for key, value in notes.items())
    return f"""---
library_name: tokenmargin
tags: [text-classification, attention, interpretable]
---
# A tokenmargin classifier

One attention layer over the tokens of a text: `f = b_0 + sum_s e^{{a_s}} b_s / (e^c + sum_s e^{{a_s}})^g`, here with
g = {model.token_model_.exponent:g} (1: softmax attention with a sink; 0: a linear model). Read it with
`tokenmargin.classifier.load_model(folder)`; nothing in this folder is executed.

- classes: {classes}
- trained on {model.n_texts_} texts; {len(model.vocabulary_)} tokens, n-grams up to {model.ngrams}
- tokenizer: {describe_tokenizer(model.tokenizer)}
- accuracy while training: {model.validation_ or "not measured"}
{told}

Limits: it knows the words of its training texts and their frequencies there, not their meaning. A word that decides in
this model is evidence about the training texts, not a cause. Texts of another origin or language may be decided badly.
Written by tokenmargin {__version__}.
"""


def load_model(folder: str | Path, *, tokenizer: Tokenizer | None = None) -> TokenSelectionClassifier:
    """Read a model written by `save_model`.

    **Arguments**
    - `tokenizer`: the function the model was trained with, if it was a function: code is not stored.
    """
    folder = _model_folder(Path(folder))
    config = _config(folder)
    try:
        for name in FILES:
            if (folder / name).exists() and not (folder / name).is_file():
                raise ModelFileError(
                    f"{folder / name}: not a plain file but a device, a pipe or a folder; copy it again"
                )
            if file_digest(folder / name) != config["sha256"][name]:
                raise ModelFileError(f"{folder / name}: damaged (its checksum differs from config.json); copy it again")
        return _restore(folder, config, tokenizer)
    except FileNotFoundError as error:
        raise ModelFileError(f"{folder}: incomplete, {Path(error.filename).name} is missing; copy it again") from error
    except ModelFileError:
        raise
    except Exception as error:  # whatever a damaged file makes the readers raise
        raise ModelFileError(f"{folder}: not a readable model ({error}); write it with save_model") from error


def model_notes(folder: str | Path) -> dict[str, Any]:
    """What was noted with a model: data, command, versions."""
    return {**_config(_model_folder(Path(folder))).get("notes", {})}


def _model_folder(folder: Path) -> Path:
    """The folder itself, or the model that `tokenmargin train` has left in its run."""
    inside = folder / "model"
    return inside if not (folder / "config.json").is_file() and (inside / "config.json").is_file() else folder


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if folder.suffix == ".json" or (folder / "token_model.json").is_file():
        raise ModelFileError(
            f"{folder}: a model is a folder written by `tokenmargin fit`; the token_model.json of earlier versions "
            "is not read any more: train again"
        )
    if not path.is_file() and (any(folder.glob("step-*.json")) or (folder / "metrics.parquet").is_file()):
        raise ModelFileError(
            f"{folder}: a run of `tokenmargin train` without a model of texts (it is not finished, has two layers, or "
            "its words were cut into pieces or read from shards); finish it, or use `tokenmargin fit` on the texts"
        )
    if not path.is_file():
        raise ModelFileError(f"{folder}: not a model folder (no config.json); make one with `tokenmargin fit`")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: damaged ({error})") from error
    if not isinstance(config, dict) or config.get("kind") != KIND or not isinstance(config.get("format"), int):
        raise ModelFileError(f"{path}: does not describe a {KIND}")
    if config["format"] < OLDEST:
        raise ModelFileError(
            f"{folder}: written in format {config['format']} by tokenmargin {config.get('version')}; this is "
            f"{__version__}, which reads formats {OLDEST} to {FORMAT}: train again with `tokenmargin fit`"
        )
    if config["format"] > FORMAT:
        raise ModelFileError(
            f"{folder}: written in format {config['format']} by tokenmargin {config.get('version')}; this is "
            f"{__version__}, which reads format {FORMAT}: upgrade with pip install --upgrade tokenmargin"
        )
    return config


def _restore(folder: Path, config: dict[str, Any], tokenizer: Tokenizer | None) -> TokenSelectionClassifier:
    from safetensors.numpy import load_file

    arrays = load_file(folder / "model.safetensors")
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    settings = config["settings"]
    if config["format"] == OLDEST:  # trained with other penalties: what it decides is kept, not how to train it again
        settings = {name: settings[name] for name in ("ngrams", "min_count", "max_iter", "validation_fraction")}
        settings["attention"] = config["settings"]["attention"]
        described |= {"kind": "plain"} if described["kind"] == "words" else {}  # as words were cut then
    model = TokenSelectionClassifier(tokenizer or _tokenizer(folder, described), **settings)
    model.classes_ = _classes(config["classes"], config["class_type"])
    model.vocabulary_ = _vocabulary(model, arrays, described)
    _check_arrays(arrays, len(model.vocabulary_), len(model.classes_))
    model.token_model_ = _in_range(TokenModel.of_tensors(arrays))
    model.chosen_ = _choices_of_file(config)
    model.n_duplicates_ = int(config.get("duplicates", 0))
    if "texts" in arrays:  # else the folder is light
        known = {field.name: arrays[field.name] for field in fields(TokenStatistics)}
        model.token_statistics_ = TokenStatistics(**known)
    model.n_texts_ = int(config["texts"])
    model.loss_curve_ = arrays["loss_curve"].tolist()
    model.n_iter_ = len(model.loss_curve_)
    model.validation_ = Validation(**config["validation"]) if config["validation"] else None
    return model


def _in_range(model: TokenModel) -> TokenModel:
    """The model; ValueError if its sums could leave the range of doubles.

    With `top` the largest logit, each token of a text adds at most the largest |b| times `e^((1 - g) top)` to |f|.
    """
    top = max(float(model.logits.max(initial=0.0)), model.sink_logit)
    size, g = np.log(np.abs(model.values).max(initial=1.0)), model.exponent
    if not (0 <= g <= 1 and (1 - g) * top + size < LARGEST_LOGARITHM):
        raise ValueError("logits and values must be of a size that doubles can add up, and the exponent within 0 and 1")
    return model


def _choices_of_file(config: dict[str, Any]) -> FitChoice:
    """The settings that training used. Format 3 calls the log loss `loss`, and its temperature scales f - prior."""
    found = dict(config.get("chosen", {"exponent": 1.0}))
    if config["format"] == 3:
        found |= {"log_loss": found.pop("loss"), "offset": 1 - found["temperature"]}
    if found.get("log_loss") is None:  # JSON has no NaN
        found["log_loss"] = float("nan")
    partners = tuple(Partner(**one) for one in found.pop("partners", ()))
    return FitChoice(**found, partners=partners)


def _classes(names: list[Any], kind: str) -> Array:
    """The classes in the type they were given in; text gets the width of its longest name, not the folder's."""
    if not isinstance(names, list) or len(names) < 2 or any(isinstance(name, list | dict) for name in names):
        raise ValueError("classes must be a list of two names or more")
    if kind == "object":
        return np.array(names, dtype=object)
    if np.dtype(kind).kind not in "iufbU":
        raise ValueError(f"class_type must be numbers or text, got {kind!r}")
    return np.array(names, dtype=str if np.dtype(kind).kind == "U" else np.dtype(kind))


def _vocabulary(
    model: TokenSelectionClassifier, arrays: Mapping[str, Array], described: Mapping[str, Any]
) -> Vocabulary | HashedVocabulary:
    """The vocabulary of a folder; ValueError if it could not have been written by `save_model`.

    A checksum does not protect against a folder written to do harm: such numbers could cause a hang or NaN later.
    """
    if model.buckets is not None:
        check_settings(model)
        return HashedVocabulary.of_tensors(model.buckets, model.ngrams, model.min_count, arrays, described)
    words = described["words"]
    if not all(isinstance(word, str) for word in words):
        raise ValueError("the words of the vocabulary must be text")
    keys = tuple(arrays[f"grams_{n}"] for n in range(2, model.ngrams + 1))
    for grams in keys:
        if grams.ndim != 1 or grams.dtype.kind != "i" or (grams < 0).any() or (np.diff(grams) <= 0).any():
            raise ValueError("n-grams must be whole numbers that rise, none negative")
    for shorter, grams in zip([len(words), *map(len, keys)], keys, strict=False):
        if len(grams) and grams[-1] >= shorter * len(words):
            raise ValueError("n-grams must be made of words and shorter n-grams of the vocabulary")
    return Vocabulary(tuple(words), keys)


def _check_arrays(arrays: Mapping[str, Array], m: int, classes: int) -> None:
    """Every array finite and of the shape that tokens and classes give it."""
    columns = 1 if classes == 2 else classes
    shapes = {
        "logits": (m,), "values": (m, columns),
        **({"sink": (columns + 1,)} if "sink" in arrays else {"shared": (2 * columns + 2,)}),
        "loss_curve": arrays["loss_curve"].shape[:1],
        **({"repeats": (1,)} if "repeats" in arrays else {}),
    }  # fmt: skip
    if "texts" in arrays:
        shapes |= {"texts": (m, classes), "occurrences": (m, classes)}
        shapes |= {"selected": (m,), "attention": (m,), "contributions": (m, columns)}
    for name, shape in shapes.items():
        array = arrays[name]
        if array.shape != shape or array.dtype.kind not in "fi" or not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite numbers of shape {shape}, got {array.dtype} {array.shape}")


def _tokenizer(folder: Path, described: dict[str, Any]) -> Tokenizer:
    kind = described["kind"]
    if kind in NAMED_TOKENIZERS:
        return kind
    if kind == "pipeline":
        choices = described["choices"]
        stops = choices["stop_words"]
        return Pipeline(**choices | {"stop_words": stops if isinstance(stops, str) else tuple(stops)})
    if kind == "hugging-face":
        from tokenizers import Tokenizer as HuggingFace

        return HuggingFace.from_str(json.dumps(described["tokenizer"]))
    raise ModelFileError(
        f"{folder}: trained with a function as its tokenizer ({kind}), and code is not stored; "
        "give the function: load_model(folder, tokenizer=...)"
    )
