"""`tokenmargin prepare`: labelled text to token ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenmargin.cli.common import UsageError, emit_json, needs_extra, say, usage_errors

if TYPE_CHECKING:
    from tokenmargin.text.prepared import PreparedText
    from tokenmargin.text.sources import LabelledText

__all__ = ["prepare"]

SHOWN = 5


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
    json: bool = False,
) -> int:
    """Turn labelled text into token ids that remember their place in the text.

    Rows that cannot be used are reported with their line numbers and set aside.

    Examples:

        tokenmargin prepare reviews.csv --out reviews.safetensors
        tokenmargin prepare imdb --pipeline paper --vocabulary vocab.txt --out imdb.safetensors
        tokenmargin prepare hf:stanfordnlp/imdb --out imdb.safetensors

    Parameters
    ----------
    source:
        A .csv, .tsv, .jsonl or .parquet file, a folder of text files, hf:owner/name, `imdb` or `yelp` once they are in
        the cache, or `sentences` for 4000 generated ones.
    out:
        File to write: .safetensors, or .npz for ids alone.
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
    json:
        Write one JSON object to standard output.
    """
    with needs_extra("text"):
        from tokenmargin.text.pipeline import PAPER, PLAIN
        from tokenmargin.text.pipeline import prepare as run
        from tokenmargin.text.sources import binary_labels
    if out.suffix not in (".safetensors", ".npz"):
        raise UsageError(f"--out writes a .safetensors or .npz file, got {out.name!r}")
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
        found = _read(source, text, label)
        prepared = run(found.texts, binary_labels(found.labels, positive=positive), chosen, progress=say)
    out.parent.mkdir(parents=True, exist_ok=True)
    (prepared.save_ids if out.suffix == ".npz" else prepared.save)(out)
    if json:
        emit_json(_report(prepared, found))
    else:
        _print(prepared, found, out)
    return 0


def _read(source: str, text: str, label: str) -> LabelledText:
    import numpy as np

    from tokenmargin.text.datasets import DATASETS, cache_folder
    from tokenmargin.text.sentences import make_sentences
    from tokenmargin.text.sources import read_labelled

    if source == "sentences":
        return make_sentences(4000, np.random.default_rng(0))
    if source in DATASETS and not Path(source).exists():
        path = cache_folder() / "datasets" / f"{source}.parquet"
        if not path.is_file():
            raise UsageError(f"{source} is not in the cache: tokenmargin data get {source}")
        return read_labelled(path)
    return read_labelled(source, text=text, label=label)


def _report(prepared: PreparedText, found: LabelledText) -> dict[str, Any]:
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


def _print(prepared: PreparedText, found: LabelledText, out: Path) -> None:
    print(f"{'step':32} {'tokens':>12} {'distinct':>10}")
    for step in prepared.steps:
        print(f"{step.name:32} {step.after:12,} {step.distinct_after:10,}")
    share = float((prepared.labels > 0).mean())
    print(f"{prepared.n:,} texts ({share:.1%} positive), {len(prepared.ids) / prepared.n:.1f} tokens each, in {out}")
    if found.rejected:
        say(f"{len(found.rejected)} rows set aside:")
        for row in found.rejected[:SHOWN]:
            say(f"  {row.place}: {row.reason}")
        if len(found.rejected) > SHOWN:
            say(f"  and {len(found.rejected) - SHOWN} more (see them all with --json)")
