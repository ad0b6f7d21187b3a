"""Hostile files: problems, tables of texts, model folders, prepared ids, checkpoints, records, kept runs.

What was damaged by accident is refused, or read as it was written: checksums see to that. What was forged with right
checksums is refused, or gives answers that are numbers.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from tests.fuzz.harness import (
    FLOATS,
    ODD,
    TEXTS,
    Generator,
    WrongAnswer,
    check_clear,
    command,
    damaged,
    pick,
    strange,
    strange_array,
)
from tests.fuzz.samples import PROBE, Samples

from tokenmargin._files import file_digest
from tokenmargin.classifier import load_model
from tokenmargin.data.prepared import ARRAYS, load_prepared
from tokenmargin.margin import max_margin
from tokenmargin.problem.problem_files import load_problem
from tokenmargin.selection import optimal_tokens
from tokenmargin.training.checkpoint import load_checkpoint


def problem_files(rng: Generator, samples: Samples) -> bool:
    """A problem file with something wrong in it, solved; an optimal answer is checked in rational numbers."""
    fields = pick(rng, samples.problems)
    path = samples.place("problem" + (suffix := pick(rng, (".json", ".json", ".npz"))))
    if suffix == ".json":
        text = json.dumps(strange(rng, fields), default=str).encode("utf-8", "replace")
        path.write_bytes(damaged(rng, text) if rng.random() < 0.3 else text)
    else:
        name = pick(rng, list(fields))
        arrays = {**fields, name: strange_array(rng, np.array(fields[name])) if rng.random() < 0.7 else fields[name]}
        try:
            np.savez(path, **{key: np.asarray(value) for key, value in arrays.items()})
        except ValueError:  # numpy itself does not make such an array
            return False
        if rng.random() < 0.5:
            path.write_bytes(damaged(rng, path.read_bytes()))
    norm, select = pick(rng, ("l2", "l2", "l2", "l1", "lp:1.5")), pick(rng, (None, None, None, None, *TEXTS))
    if rng.random() < COMMANDS:
        flags = () if select is None else ("--select", select.replace("\0", "0"))
        code, out, _ = command("solve", path, "--json", "--norm", norm, *flags)
        if code == 2:
            return False
        answer = json.loads(out)
    elif (found := _solved(path, norm)) is None:
        return False
    else:
        answer = found
    if answer["status"] == "optimal" and norm == "l2":
        _check_margins(path, answer)
    return True


COMMANDS = 0.2
"""Share of problem files that go through the command; reading its flags takes four times as long as the rest."""


def _solved(path: Path, norm: str) -> dict[str, Any] | None:
    """What the command does, by the functions it calls; None where the problem is refused clearly."""
    try:
        problem = load_problem(path)
        selected = optimal_tokens(problem).argmax(axis=1)
        solution = max_margin(problem, selected, norm=norm)
    except ValueError as error:
        check_clear(error)
        return None
    return {"status": solution.status, "selected": selected.tolist(), "vector": solution.vector.tolist()}


def _check_margins(path: Path, answer: dict[str, Any]) -> None:
    """Every margin of an optimal answer, in rational numbers: at least 1 but for the documented 1e-10."""
    problem = load_problem(path)
    if problem.keys.matrix_shape is not None:
        return
    p = [Fraction(x) for x in answer["vector"]]
    for tokens, mask, chosen in zip(
        problem.keys.tokens.tolist(), problem.mask.tolist(), answer["selected"], strict=True
    ):
        for t, (token, seen) in enumerate(zip(tokens, mask, strict=True)):
            if t == chosen or not seen:
                continue
            margin = sum((Fraction(a) - Fraction(b)) * x for a, b, x in zip(tokens[chosen], token, p, strict=True))
            if margin < 1 - Fraction(1, 10**10):
                raise WrongAnswer(f"a margin of {float(margin)} in {answer}")


def degenerate_problems(rng: Generator, samples: Samples) -> bool:
    """A readable problem with ties, copies, zeros and extreme scales, given to every command that takes problems."""
    n, T, d = (int(rng.integers(1, most)) for most in (4, 4, 4))
    keys = rng.integers(-2, 3, (n, T, d)) * 10.0 ** rng.choice([0, 0, 0, 1, -8, 8, -150, 150, -300, 300])
    scores = rng.integers(-1, 2, (n, T)) * 10.0 ** rng.choice([0, 0, 0, -8, 8, 150, -150])
    mask = rng.random((n, T)) < 0.8
    mask[:, 0] = True
    path = samples.place("degenerate.json")
    fields = {"keys": keys, "labels": rng.choice([-1, 1], n), "scores": scores, "mask": mask}
    if rng.random() < 0.2:
        fields["queries"] = rng.integers(-1, 2, (n, 2))
    path.write_text(json.dumps({name: array.tolist() for name, array in fields.items()}))
    norm = pick(rng, ("l2", "l1", "linf", "lp:1.5", "lp:8", "nuclear", "spectral"))
    method = pick(rng, ("ngd", "gd", "adam", "sign", "polyak", "momentum", "mirror:1.5", "coordinate", "heavy-ball"))
    arguments = pick(rng, (
        ("solve", path, "--norm", norm), ("solve", path), ("atlas", path, "--budget", 50),
        ("atlas", path, "--budget", 20, "--norm", norm, "--json"),
        ("evolve", path, "--steps", 20, "--method", method, "--rates"),
        ("evolve", path, "--steps", 20, "--method", method, "--train", "joint"),
        ("evolve", path, "--method", "flow", "--until-norm", pick(rng, (10, 1e4))),
        ("evolve", path, "--steps", 5, "--attention", pick(rng, ("sparsemax", "entmax=1.5", "sigmoid"))),
        ("basins", path, "--starts", 3, "--steps", 20, "--method", method),
        ("verify", pick(rng, ("B.theorem1", "B.lemma1", "B.theorem3", "B.assumptionA")), path),
    ))  # fmt: skip
    code, out, _ = command(*arguments)
    if arguments[0] != "verify" and code != 2 and "nan" in out.replace("nan)", ""):
        raise WrongAnswer(f"{arguments}: not a number in the answer: {out[:400]}")
    return code != 2


def tables(rng: Generator, samples: Samples) -> bool:
    """Texts with labels in a damaged or strange table, prepared, predicted or fitted."""
    kind = pick(rng, ("csv", "jsonl", "parquet"))
    path = samples.place(f"rows.{kind}")
    if rng.random() < 0.6:
        path.write_bytes(damaged(rng, getattr(samples, kind).read_bytes()))
    else:
        _write_strange_rows(rng, samples, kind, path)
    which = rng.random()
    if which < 0.5:
        arguments: tuple[object, ...] = ("prepare", path, "--out", samples.place("ids.safetensors"))
    elif which < 0.9:
        arguments = ("predict", samples.model, path, "--out", samples.place("said.csv"))
    elif which < 0.95:
        arguments = ("graph", path)
    else:
        arguments = ("fit", path, "--out", samples.place("model"))
    code, _, _ = command(*arguments)
    if code == 0 and arguments[0] == "predict":
        _check_predictions(Path(str(arguments[-1])))
    return code == 0


def _write_strange_rows(rng: Generator, samples: Samples, kind: str, path: Path) -> None:
    rows = [dict(row) for row in samples.rows]
    for _ in range(3):
        rows[int(rng.integers(len(rows)))][pick(rng, ("text", "label"))] = pick(rng, (*TEXTS, *ODD, *FLOATS))
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = {name: pa.array([_encodable(row[name]) for row in rows]) for name in ("text", "label")}
        if rng.random() < 0.3:
            columns["label"] = pa.array(pick(rng, (
                list(range(len(rows))), [None] * len(rows), [b"\xff"] * len(rows), [[1]] * len(rows),
                [{"a": 1}] * len(rows), [k % 2 == 0 for k in range(len(rows))], [1e300, -0.0] * (len(rows) // 2),
            )))  # fmt: skip
        pq.write_table(pa.table(columns), path)
    elif kind == "csv":
        quote = pick(rng, ('"', '"', "", "'"))
        lines = [f"{quote}{row['text']}{quote},{row['label']}" for row in rows]
        path.write_bytes("\n".join([pick(rng, ("text,label", "label,text", "text,label,label", "a,b")), *lines])
                         .encode("utf-8", "surrogatepass"))  # fmt: skip
    else:
        path.write_bytes("\n".join(json.dumps(row, default=str) for row in rows).encode("utf-8", "surrogatepass"))


def _encodable(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _check_predictions(path: Path) -> None:
    import csv

    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if name and name.startswith("p(") and value and not 0 <= float(value) <= 1:
                    raise WrongAnswer(f"a probability of {value}")


def model_folders(rng: Generator, samples: Samples) -> bool:
    """A model folder, damaged by accident or forged with right checksums: refused, or it decides as it must."""
    folder = samples.place("model")
    shutil.copytree(samples.model, folder)
    forged = rng.random() < 0.5
    (_forge if forged else _damage_one)(rng, folder)
    try:
        model = load_model(folder)
        said = model.predict_proba(PROBE)
    except ValueError as error:
        check_clear(error)
        return False
    if not np.isfinite(said).all() or (said < 0).any() or (np.abs(said.sum(axis=1) - 1) > 1e-9).any():
        raise WrongAnswer(f"probabilities {said}")
    if (
        not forged
        and not _unread(samples.model, folder)
        and (said != load_model(samples.model).predict_proba(PROBE)).any()
    ):
        raise WrongAnswer("a damaged model was read as another")
    if rng.random() < 0.1:
        model.explain(PROBE)
    return True


def _unread(whole: Path, folder: Path) -> bool:
    """Whether the damage is where nothing is compared: the settings, which have no checksum but decide nothing read."""
    return (folder / "config.json").read_bytes() != (whole / "config.json").read_bytes()


def _damage_one(rng: Generator, folder: Path) -> None:
    path = pick(rng, sorted(folder.iterdir()))
    if rng.random() < 0.1:
        path.unlink()
    elif rng.random() < 0.1:
        path.write_bytes(pick(rng, sorted(folder.iterdir())).read_bytes())
    else:
        path.write_bytes(damaged(rng, path.read_bytes()))


def _forge(rng: Generator, folder: Path) -> None:
    """Change arrays, words or settings, and the checksums with them."""
    from safetensors.numpy import load_file, save_file

    config = json.loads((folder / "config.json").read_text())
    match int(rng.integers(4)):
        case 0 | 1:
            arrays = load_file(folder / "model.safetensors")
            name = pick(rng, sorted(arrays))
            changed = strange_array(rng, arrays[name])
            if (
                not isinstance(changed, np.ndarray)
                or changed.dtype.kind not in "fiub"
                or changed.dtype == np.complex128
            ):
                changed = arrays[name][::-1]
            save_file({**arrays, name: np.ascontiguousarray(changed)}, folder / "model.safetensors")
        case 2:
            words = json.loads((folder / "tokenizer.json").read_text())
            (folder / "tokenizer.json").write_text(json.dumps(strange(rng, words), default=str))
        case _:
            config = strange(rng, config)
    if isinstance(config, dict) and isinstance(config.get("sha256"), dict):
        config["sha256"] |= {name: file_digest(folder / name) for name in ("model.safetensors", "tokenizer.json")}
    (folder / "config.json").write_text(json.dumps(config, default=str))


def prepared_ids(rng: Generator, samples: Samples) -> bool:
    """Prepared ids, damaged: refused, or read as they were written; forged: refused, or trained on."""
    path, whole = samples.place("ids.safetensors"), samples.ids
    if rng.random() < 0.2:
        return _train_on_forged(rng, samples, path)
    path.write_bytes(damaged(rng, whole.read_bytes()))
    try:
        found, was = load_prepared(path), load_prepared(whole)
    except ValueError as error:
        check_clear(error)
        return False
    if found.vocabulary != was.vocabulary or any((getattr(found, k) != getattr(was, k)).any() for k in ARRAYS):
        raise WrongAnswer("damaged ids were read as others")
    return True


def _train_on_forged(rng: Generator, samples: Samples, path: Path) -> bool:
    from dataclasses import replace

    was = load_prepared(samples.ids)
    name = pick(rng, ("ids", "offsets", "labels", "vocabulary"))
    if name == "vocabulary":
        replace(was, vocabulary=was.vocabulary[: int(rng.integers(3))]).save(path)
    else:
        array = np.array(getattr(was, name))
        array[int(rng.integers(len(array)))] = int(pick(rng, (-1, 0, 2, 100, 127)))
        replace(was, **{name: array}).save(path)
    code, _, _ = command("train", path, "--out", samples.place("out"), "--epochs", 1, "--dimension", 2)
    return code == 0


def shards(rng: Generator, samples: Samples) -> bool:
    """A folder of shards with one damaged file: refused, or trained on as if whole."""
    folder = samples.place("shards")
    shutil.copytree(samples.shards, folder)
    path = pick(rng, sorted(p for p in folder.iterdir() if not p.name.startswith(".")))
    path.write_bytes(damaged(rng, path.read_bytes()))
    from tokenmargin.data.sharded.slices import load_sharded

    was = load_sharded(samples.shards)
    try:
        found = load_sharded(folder)
        pairs = list(zip(found.shards, was.shards, strict=True))
    except ValueError as error:
        check_clear(error)
        return False
    same = found.vocabulary == was.vocabulary and all(
        (getattr(a, k) == getattr(b, k)).all() for a, b in pairs for k in ("ids", "offsets", "labels")
    )
    if not same:
        raise WrongAnswer("a damaged shard was read as another")
    return True


def checkpoints(rng: Generator, samples: Samples) -> bool:
    """A folder of checkpoints with one damaged file: an older one, none, or the same."""
    folder = samples.place("trained")
    shutil.copytree(samples.trained, folder)
    path = pick(rng, sorted(folder.glob("step-*")))
    path.write_bytes(damaged(rng, path.read_bytes()))
    found, was = load_checkpoint(folder), load_checkpoint(samples.trained)
    assert was is not None
    if found is not None and found.record["step"] == was.record["step"]:
        if found.record != was.record or any((found.tensors[k] != t).any() for k, t in was.tensors.items()):
            raise WrongAnswer("a damaged checkpoint was read as another")
        return True
    return False


def resumed(rng: Generator, samples: Samples) -> bool:
    """Training goes on from a folder with a damaged file, and ends where it must."""
    folder = samples.place("trained")
    shutil.copytree(samples.trained, folder)
    path = pick(rng, sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith(".")))
    path.write_bytes(damaged(rng, path.read_bytes()))
    code, _, _ = command("train", samples.ids, "--out", folder, "--epochs", 2, "--dimension", 2, "--batch", 9)
    if code == 0:
        found, was = load_checkpoint(folder), load_checkpoint(samples.trained)
        assert found is not None
        assert was is not None
        if any((found.tensors[k] != t).any() for k, t in was.tensors.items()):
            raise WrongAnswer("a resumed run ended elsewhere")
    return code == 0


def kept_runs(rng: Generator, samples: Samples) -> bool:
    """A kept run, damaged, and gone on with."""
    path = samples.place("kept.npz")
    path.write_bytes(damaged(rng, samples.kept.read_bytes()))
    code, _, _ = command("evolve", "fig1b", "--steps", 20, "--resume", path)
    return code == 0


def records(rng: Generator, samples: Samples) -> bool:
    """A folder of runs with a damaged file: it is named."""
    folder = samples.place("runs")
    shutil.copytree(samples.runs, folder)
    (run,) = (path for path in folder.iterdir() if not path.name.startswith("."))
    path = pick(rng, [run / "run.json", *sorted((run / "tables").iterdir())])
    was = path.read_bytes()
    path.write_bytes(damaged(rng, was))
    action = pick(
        rng, (("check",), ("list",), ("show", run.name), ("show", run.name, "--table", "limits"), ("list", "--json"))
    )
    code, out, _ = command("runs", *action, "--out", folder)
    if action == ("check",) and (path.read_bytes() != was) and code == 0 and not _same_json(path, was):
        raise WrongAnswer(f"{path.name} is not what it was, and `runs check` says: {out}")
    return code == 0


def _same_json(path: Path, was: bytes) -> bool:
    try:
        return path.suffix == ".json" and json.loads(path.read_bytes()) == json.loads(was)
    except ValueError:
        return False


SURFACES: dict[str, tuple[Callable[[Generator, Samples], bool], int]] = {
    "problem files": (problem_files, 30000),
    "degenerate problems": (degenerate_problems, 1000),
    "tables of texts": (tables, 5000),
    "model folders": (model_folders, 12000),
    "prepared ids": (prepared_ids, 4000),
    "shards": (shards, 1000),
    "checkpoints": (checkpoints, 4000),
    "resumed training": (resumed, 200),
    "kept runs": (kept_runs, 1000),
    "records": (records, 1500),
}
"""What is fuzzed, with the number of inputs of a whole run."""
