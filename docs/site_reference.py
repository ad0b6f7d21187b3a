"""The reference: public names by task, arguments as tables with their shapes, and the example that the tests run."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any

import docstring_parser

import tokenmargin as tm

__all__ = ["TASKS", "Task", "task_text"]

BESIDE = {
    "tokenmargin.norms": ("CustomNorm", "LpNorm", "SchattenNorm"),
    "tokenmargin.problem.problem_files": ("ProblemFileError",),
    "tokenmargin.problem.geometry": ("Coordinates", "Gram"),
    "tokenmargin.problem.matrix_geometry": ("bilinear",),
    "tokenmargin.problem.instances": (
        "NAMED_PROBLEMS",
        "figure1a",
        "figure1c",
        "figure3a",
        "figure3b",
        "figure5",
        "figure8",
        "shared_vocabulary_problem",
    ),
    "tokenmargin.problem.next_token": ("next_token_windows",),
    "tokenmargin.objective.losses": ("CorrelationLoss",),
    "tokenmargin.objective.local_scores": ("optimal_sets",),
    "tokenmargin.objective.attention_maps": ("AttentionMap",),
    "tokenmargin.objective.embedding": (
        "EmbeddingObjective",
        "Embeddings",
        "class_first_step",
        "gaussian_embeddings",
        "wishart_embeddings",
    ),
    "tokenmargin.objective.single_location": ("SingleLocation",),
    "tokenmargin.selection": ("saturation", "select"),
    "tokenmargin.margin": ("Atlas", "LimitDirection", "MarginBatch", "MarginSolution"),
    "tokenmargin.dynamics": (
        "Adam",
        "FlowPath",
        "FlowSettings",
        "MirrorDescent",
        "Momentum",
        "Polyak",
        "Schedule",
        "Trajectory",
        "cone_path",
        "ridge_path",
    ),
    "tokenmargin.limits": ("Basins", "MethodLimit", "Rates", "NextTokenLimit"),
    "tokenmargin.theory": ("Claim",),
    "tokenmargin.data.pipeline": ("Pipeline",),
    "tokenmargin.data.prepared": ("PreparedText",),
    "tokenmargin.training.trainer": ("TrainingRun",),
}
"""Names that are no part of the front door, by the modules to import them from; the reference has them too."""
_HOME = tm._ROOMS | {name: module for module, names in BESIDE.items() for name in names}


@dataclass(frozen=True)
class Task:
    """A page of the reference: its place, its title, a sentence, and the names on it."""

    place: str
    title: str
    what: str
    names: tuple[str, ...]


ROOMS = (
    ("problems", "Pose a problem", "tokens, labels and scores; corpora; the papers' own instances.", ("problem",)),
    ("objectives", "Say what is minimised", "losses, heads, objectives and their first step.", ("objective",)),
    ("tokens", "Ask which tokens", "weights, selections, angles.", ("selection",)),
    ("margins", "Find max-margin directions", "one selection, all of them, many problems, a corpus.", ("margin",)),
    ("norms", "Choose a norm", "in which a direction is short, or a step is steep.", ("norms",)),
    ("motion", "Follow training", "descent, flow, many runs at once, regularisation paths.", ("dynamics",)),
    ("limits", "Name the limit", "where training goes, and from where.", ("limits",)),
    ("theorems", "Check a theorem", "the papers' statements as claims to run.", ("theory",)),
    ("texts", "Texts and models", "a classifier that says which words decide; trained embeddings.",
     ("classifier", "data", "training")),
)  # fmt: skip


USUAL = {
    "problem": "tokens, labels and what scores them",
    "keys": "how the tokens are known: `problem.keys`",
    "geometry": "how vectors are known: `problem.keys`",
    "p": "the prompt, or many of them along the leading axes",
    "q": "as `p`",
    "selected": "the token of each input, counted from 0",
    "objective": "what is minimised, such as `PromptObjective(problem)`",
    "loss": "logistic unless given",
    "rng": "a generator, or a seed",
    "norm": "Euclidean unless given",
    "progress": "called with how much is done",
}
"""What an argument of this name is wherever its docstring has no words for it."""


def _tasks() -> tuple[Task, ...]:
    left = dict.fromkeys(name for name in _HOME if name != "__version__")
    tasks = []
    for place, title, what, rooms in ROOMS:
        here = (name for name in left if _HOME[name].split(".")[1] in rooms)
        tasks.append(Task(place, title, what, tuple(sorted(here, key=str.lower))))
    return tuple(tasks)


def _value(name: str) -> Any:
    return getattr(import_module(_HOME[name]), name)


TASKS = _tasks()


def task_text(task: Task) -> str:
    """The page of a task: a table of names, then each of them."""
    rows = "\n".join(f"| [`{name}`](#{name}) | {_cell(_first(_value(name)))} |" for name in task.names)
    head = f"# {task.title}\n\n{task.what.capitalize()}\n\n| name | what it is |\n|---|---|\n{rows}"
    return "\n\n".join([head, *(_entry(name, _value(name)) for name in task.names)]) + "\n"


def _entry(name: str, value: Any) -> str:
    parts = [f"## {name} {{ #{name} }}"]
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return "\n\n".join(
            [*parts, f"A constant of `{_HOME[name]}`: `{type(value).__name__}` of {len(value)} entries."]
        )
    shapes = _annotations(value)
    if shapes is not None:
        parts.append(f"```python\n{_signature(name, value)}\n```")
    doc = f"{inspect.getdoc(value) or ''}{_attributes(value)}"
    text, tables, example = _read(doc if inspect.isclass(value) else _with_all(doc, list(shapes or ())), shapes or {})
    parts += [text, *tables]
    if inspect.isclass(value):
        parts += _members(value)
    if example:
        parts.append(f"```pycon\n{example}\n```")
    return "\n\n".join(part for part in parts if part)


def _with_all(doc: str, names: list[str]) -> str:
    """A docstring whose list of arguments has those that need no words too: their types are in the table."""
    words, arrow, example = doc.partition("\n>>> ")
    head, mark, listed = words.rstrip().partition("**Arguments**\n")
    told = [bool(re.search(rf"^- [^:\n]*`{name}`", listed, re.M)) for name in names]
    first = told.index(True) if any(told) else len(names)
    before, after = (
        [f"- `{name}`: {USUAL.get(name, '')}" for name, known in part if not known]
        for part in (list(zip(names, told, strict=True))[:first], list(zip(names, told, strict=True))[first:])
    )
    if not (mark or before or after):
        return doc
    # What follows the list in another paragraph stays below it.
    items, gap, rest = listed.partition("\n\n")
    rows = "\n".join([*before, *([items] if items else []), *after])
    return f"{head.rstrip()}\n\n**Arguments**\n{rows}{gap}{rest}\n{arrow}{example}"


def _attributes(value: Any) -> str:
    """The sentences below the fields of a dataclass, as the list that other docstrings have."""
    if not is_dataclass(value):
        return ""
    rows = [(one.arg_name, one.description) for one in docstring_parser.parse_from_object(value).params]
    listed = "\n".join(f"- `{name}`: {words}" for name, words in rows if words)
    return f"\n\n**Attributes**\n{listed}" if listed else ""


def _signature(name: str, value: Callable[..., Any]) -> str:
    """A call with every argument and its default; shapes are in the table."""
    told = []
    parameters = list(inspect.signature(value).parameters.values())
    for k, one in enumerate(parameters):
        if one.kind is one.KEYWORD_ONLY and not any(p.kind is p.KEYWORD_ONLY for p in parameters[:k]):
            told.append("*")
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f"={_default(one.default)}"
        told.append(f"{prefix}{one.name}{default}")
    place = "tm." if name in tm.__all__ else f"from {_HOME[name]} import {name}\n"
    line = f"{place}{name}({', '.join(told)})"
    return line if len(line.split("\n")[-1]) <= 88 else f"{place}{name}(\n    " + ", ".join(told) + ",\n)"


def _default(value: Any) -> str:
    return getattr(value, "__name__", None) or re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _annotations(value: Any) -> dict[str, tuple[str, str]] | None:
    """Type and default of every argument, or None where there is no signature."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return None
    return {
        one.name: (
            "" if one.annotation is one.empty else _shape(str(one.annotation)),
            "" if one.default is one.empty else _default(one.default),
        )
        for one in parameters
    }


def _shape(annotation: str) -> str:
    """`Float[Array, 'n T']` as `array (n, T)` of floats; the rest as it is written, without modules."""
    kinds = {"Float": "floats", "Int": "integers", "Bool": "booleans", "Shaped": "values"}

    def read(found: re.Match[str]) -> str:
        axes = found[2].split()
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 and axes[0] != '...' else ''})"
        return f"{kinds[found[1]]} {shape}"

    text = re.sub(r"(Float|Int|Bool|Shaped)\[Array, ['\"]\s*([^'\"]*)['\"]\]", read, annotation.strip("'\""))
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text)
    return text.replace("Callable[[float], None]", "function").replace("Callable[[int], None]", "function")


def _read(doc: str, shapes: dict[str, tuple[str, str]]) -> tuple[str, list[str], str]:
    """The words of a docstring, its lists of arguments or attributes as tables, and its example."""
    words, _, example = doc.partition("\n>>> ")
    example, _, after = (f">>> {example}" if example else "").partition("\n\n")
    text: list[str] = []
    tables: list[str] = []
    for paragraph in f"{words}\n\n{after}".strip().split("\n\n"):
        head, *lines = paragraph.split("\n")
        if re.fullmatch(r"\*\*(Arguments|Attributes)\*\*", head):
            tables.append(_table(head.strip("*"), "\n".join(lines), shapes))
        elif paragraph.startswith("- `") and re.match(r"- `[\w`, ]+`.*?:", head):
            tables.append(_table("Attributes", paragraph, shapes))
        else:
            text.append(paragraph)
    return "\n\n".join(text), tables, example.rstrip()


def _table(title: str, items: str, shapes: dict[str, tuple[str, str]]) -> str:
    rows = []
    for item in re.split(r"^- ", items, flags=re.M)[1:]:
        names, _, meaning = item.rstrip().partition(":")
        known = [shapes.get(name) for name in re.findall(r"`(\w+)`", names)]
        kind = "; ".join(dict.fromkeys(one[0] for one in known if one and one[0]))
        default = "; ".join(dict.fromkeys(one[1] for one in known if one and one[1]))
        cells = (names.strip(), f"`{kind}`" if kind else "", f"`{default}`" if default else "", meaning)
        rows.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return f"| {title.lower()} | shape or type | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)


def _members(value: type) -> list[str]:
    """Methods and properties of a class, a line each."""
    rows = []
    for name, member in sorted(inspect.getmembers(value)):
        kind = inspect.getattr_static(value, name)
        own = any(name in vars(base) for base in value.__mro__ if base.__module__.startswith("tokenmargin"))
        if (
            name.startswith("_")
            or not own
            or not (callable(member) or isinstance(kind, property) or hasattr(kind, "func"))
        ):
            continue
        shown = f"`.{name}()`" if callable(member) else f"`.{name}`"
        rows.append(
            f"| {shown} | {_cell(_first(kind.fget if isinstance(kind, property) else getattr(kind, 'func', member)))} |"
        )
    return ["| members | |\n|---|---|\n" + "\n".join(rows)] if rows else []


def _first(value: Any) -> str:
    """The first sentence of a docstring."""
    if not (inspect.isclass(value) or callable(value)):
        return "a constant"
    return re.sub(r"\s+", " ", (inspect.getdoc(value) or "").split("\n\n")[0])


def _cell(text: str) -> str:
    """Text for a cell of a table: a bar would end the cell, but not inside code."""
    parts = re.sub(r"\s+", " ", text).strip().split("`")
    return "`".join(part if k % 2 else part.replace("|", "\\|") for k, part in enumerate(parts))
