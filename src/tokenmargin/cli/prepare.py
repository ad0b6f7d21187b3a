"""`tokenmargin data` and `prepare`: the public datasets, and labelled text to token ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from tokenmargin.cli._common import (
    Address,
    Jobs,
    Json,
    UsageError,
    choose_engine,
    emit_json,
    needs_extra,
    print_answer,
    print_error,
    print_facts,
    print_message,
    progress_bar,
    usage_errors,
)
from tokenmargin.cli._texts import fetch_dataset, print_rejected

if TYPE_CHECKING:
    from tokenmargin.data.pipeline import Pipeline
    from tokenmargin.data.prepared import PreparedText, Step
    from tokenmargin.data.sources import LabelledText


def prepare(
    source: str,
    /,
    *,
    out: Path,
    pipeline: Literal["plain", "paper"] = "plain",
    text: str = "text",
    label: str = "label",
    positive: str | None = None,
    vocabulary: Path | None = None,
    minimum_count: int | None = None,
    punctuation: Literal["split", "join"] = "split",
    engine: Literal["here", "local", "ray"] = "here",
    jobs: Jobs = -1,
    address: Address = None,
    slice_megabytes: float = 32.0,
    json: Json = False,
) -> int:
    """Turn labelled text into token ids that remember their place in the text.

    Rows that cannot be used are reported with their line numbers and set aside. A folder of .parquet and .jsonl files
    becomes a folder of shards, slice by slice, in bounded memory; stopped, the same command goes on where it was.

    Examples:

        tokenmargin prepare reviews.csv --out reviews.safetensors
        tokenmargin prepare imdb --pipeline paper --vocabulary vocab.txt --out imdb.safetensors
        tokenmargin prepare hf:stanfordnlp/imdb --out imdb.safetensors
        tokenmargin prepare crawl --out shards --engine ray --address auto

    Parameters
    ----------
    source:
        A .csv, .tsv, .jsonl or .parquet file, a folder of text files, hf:owner/name, `imdb` or `yelp` once they are in
        the cache, or `sentences` for 4000 generated ones. For shards: a .jsonl or .parquet file or a folder of them.
    out:
        File to write: .safetensors, or .npz for ids alone. Without such an ending, a folder of shards.
    pipeline:
        Lower-case words (plain), or the paper's stop words, stems and purging (paper).
    text:
        Name of the column with the text.
    label:
        Name of the column with the label.
    positive:
        The label that counts as +1, when it is not plain.
    vocabulary:
        A WordPiece vocabulary such as BERT's vocab.txt; tokens are words without it.
    minimum_count:
        Purge tokens seen fewer times; by default 2 (plain) or 50 (paper).
    punctuation:
        Does punctuation end a word (split), or vanish inside it (join)?
    engine:
        For shards: this process (here), processes on this machine (local), or a ray cluster (ray).
    slice_megabytes:
        For shards: text worked on at a time, which bounds the memory of a worker.
    """
    with needs_extra("text"):
        from tokenmargin.data.pipeline import PAPER, PLAIN, no_token_left
        from tokenmargin.data.pipeline import prepare as run
        from tokenmargin.data.sources import binary_labels
    if out.suffix not in ("", ".safetensors", ".npz"):
        raise UsageError(f"--out writes a .safetensors or .npz file, or a folder of shards, got {out.name!r}")
    if not 2**-20 <= slice_megabytes <= 2**20:
        raise UsageError(f"--slice-megabytes must be positive and at most {2**20} (a terabyte), got {slice_megabytes}")
    if vocabulary is not None and not vocabulary.is_file():
        raise UsageError(f"{vocabulary}: no such file; get BERT's with tokenmargin data get bert-vocabulary")
    base = PAPER if pipeline == "paper" else PLAIN
    with needs_extra("text"), usage_errors():
        chosen = replace(
            base,
            vocabulary=vocabulary,
            punctuation=punctuation,
            minimum_count=base.minimum_count if minimum_count is None else minimum_count,
        )
    if not out.suffix:
        return _prepare_shards(
            _cached_source(source),
            out,
            chosen,
            engine=choose_engine(engine, jobs=jobs, address=address),
            slice_bytes=int(slice_megabytes * 2**20),
            columns=(text, label),
            positive=positive,
            json=json,
        )
    with needs_extra("text"), usage_errors():
        found = _read_source(source, text, label)
        signs = binary_labels(found.labels, positive=positive)
        prepared = run(found.texts, signs, chosen, progress=print_message)
        names = dict(zip(signs.tolist(), found.labels, strict=True))
        prepared = replace(prepared, choices={**(prepared.choices or {}), "classes": (names[-1], names[1])})
    if not prepared.m:
        raise UsageError(no_token_left(prepared.steps, chosen))
    (prepared.save_ids if out.suffix == ".npz" else prepared.save)(out)
    if json:
        emit_json(_prepared_as_data(prepared, found))
    else:
        _print_prepared(prepared, found, out)
    return 0


def _cached_source(source: str) -> str | Path:
    """The file in the cache if the source is the name of a dataset; else the source itself."""
    from tokenmargin.data.datasets import DATASETS, dataset_path

    if source not in DATASETS or Path(source).exists():
        return source
    path = dataset_path(source)
    if not path.is_file():
        raise UsageError(f"{source} is not in the cache: tokenmargin data get {source}")
    return path


def _prepare_shards(source: str | Path, out: Path, pipeline: Pipeline, *, json: bool, **how: Any) -> int:
    """Prepare a large source slice by slice into a folder of shards."""
    with needs_extra("cluster"), usage_errors():
        from tokenmargin.data.sharded.prepare import prepare_sharded

        with progress_bar("counting", 1) as advance:

            def tell(step: str, done: int, of: int) -> None:
                passes = ("counting", "numbering").index(step) + done / of
                advance(passes / 2, f"{step}, {done} of {of} slices")

            found = prepare_sharded(source, out, pipeline, progress=tell, **how)
    if json:
        emit_json(
            {
                "texts": found.n,
                "tokens": found.tokens,
                "vocabulary": found.m,
                "shards": len(found.texts),
                **found.source,
                "steps": [vars(step) for step in found.steps],
                "choices": found.choices,
            }
        )
        return 0
    _print_steps(found.steps)
    print_answer(
        f"{found.n:,} texts, {found.tokens / max(found.n, 1):.1f} tokens each, {len(found.texts)} shards in {out}"
    )
    print_rejected([f"{row['place']}: {row['reason']}" for row in found.source["reasons"]], found.source["rejected"])
    return 0


def _read_source(source: str, text: str, label: str) -> LabelledText:
    import numpy as np

    from tokenmargin.data.sentences import make_sentences
    from tokenmargin.data.sources import read_labelled

    if source == "sentences":
        return make_sentences(4000, np.random.default_rng(0))
    path = _cached_source(source)
    return read_labelled(path, text=text, label=label) if path == source else read_labelled(path)


def _prepared_as_data(prepared: PreparedText, found: LabelledText) -> dict[str, Any]:
    return {
        "texts": prepared.n,
        "tokens": len(prepared.ids),
        "vocabulary": prepared.m,
        "positive": float((prepared.labels > 0).mean()),
        "empty": len(found.texts) - prepared.n,
        "rejected": [vars(row) for row in found.rejected],
        "steps": [vars(step) for step in prepared.steps],
        "choices": prepared.choices,
    }


def _print_prepared(prepared: PreparedText, found: LabelledText, out: Path) -> None:
    _print_steps(prepared.steps)
    share = float((prepared.labels > 0).mean())
    print_answer(
        f"{prepared.n:,} texts ({share:.1%} positive), {len(prepared.ids) / prepared.n:.1f} tokens each, in {out}"
    )
    print_rejected([f"{row.place}: {row.reason}" for row in found.rejected], len(found.rejected))


def _print_steps(steps: tuple[Step, ...]) -> None:
    print(f"{'step':32} {'tokens':>12} {'distinct':>10}")
    for step in steps:
        print(f"{step.name:32} {step.after:12,} {step.distinct_after:10,}")


def data(
    action: Literal["get", "list"],
    name: str | None = None,
    /,
    *,
    from_: Annotated[Path | None, Parameter(name="--from")] = None,
    json: Json = False,
) -> int:
    """Put a dataset into the cache and print where it is.

    Exit code 1 when it cannot be had; the message says how to bring your own copy.

    Examples:

        tokenmargin data list
        tokenmargin data get imdb
        tokenmargin data get yelp --from yelp_review_full_csv.tgz

    Parameters
    ----------
    action:
        Get a dataset, or list them.
    name:
        imdb, yelp, cifar10 or bert-vocabulary.
    from_:
        Your own copy: the archive of the source, or a table of texts with labels (for Yelp: with stars).
    """
    with needs_extra("text"):
        from tokenmargin.data.datasets import DATASETS, DatasetError
    if action == "list":
        for title, file in DATASETS.items():
            print_facts([(title, file.url), ("", file.terms)])
        return 0
    if name is None or name not in DATASETS:
        raise UsageError(f"which dataset? choose from {', '.join(DATASETS)}")
    try:
        path = fetch_dataset(name, local=from_)
    except DatasetError as error:
        print_error(str(error))
        return 1
    print_message(DATASETS[name].terms)
    if json:
        emit_json({"dataset": name, "path": str(path)})
    else:
        print(path)
    return 0
