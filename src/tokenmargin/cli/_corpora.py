"""Corpora on the command line: read one, and say what paper A's theory reads off it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tokenmargin.cli._common import UsageError, needs_extra, say, show
from tokenmargin.problem.corpus import TokenCorpus

CLASSES = {1: "positive", 0: "irrelevant", -1: "negative"}
SHOWN = 20
"""Tokens and offending sequences shown to people; JSON has them all."""


def read_corpus(source: str) -> TokenCorpus:
    """Labelled text, its words cut at blanks, or ids written by `tokenmargin prepare`.

    The labels are two, and the later of them in the alphabet counts as +1 (`neg` and `pos`, `0` and `1`, `-1` and `1`).
    """
    with needs_extra("text"):
        from tokenmargin.data.prepared import PreparedFileError, load_prepared
        from tokenmargin.data.sources import SourceError, binary_labels, read_labelled
    try:
        if Path(source).suffix == ".safetensors":
            return load_prepared(source).corpus()
        read = read_labelled(source)
        return TokenCorpus.of([text.split() for text in read.texts], binary_labels(read.labels))
    except (SourceError, PreparedFileError, ValueError) as error:
        raise UsageError(str(error)) from error


def corpus_statistics(corpus: TokenCorpus) -> dict[str, Any]:
    """(3), (37), Definition 1 and Assumption 4 of a corpus, as plain data; tokens by falling |alpha_s|."""
    negative, positive = corpus.counts
    order = np.lexsort((-(negative + positive), -np.abs(corpus.signed_frequency)))
    return {
        "sequences": corpus.n,
        "lengths": [int(corpus.lengths.min()), corpus.T],
        "tokens": len(corpus.tokens),
        "vocabulary": corpus.size,
        "assumption4": corpus.assumption4().holds,
        "offending": [{"sequence": i, "reason": reason} for i, reason in corpus.assumption4().offending],
        "words": [
            {
                "token": corpus.vocabulary[s],
                "positive": int(positive[s]),
                "negative": int(negative[s]),
                "signed_frequency": float(corpus.signed_frequency[s]),
                "signed_share": float(corpus.signed_share[s]),
                "posterior_difference": float(corpus.posterior_difference[s]),
                "class": ("completely " if corpus.completely[s] else "") + CLASSES[int(corpus.token_class[s])],
            }
            for s in order.tolist()
        ],
    }


def print_corpus(statistics: dict[str, Any]) -> None:
    """For people: the tokens of largest |alpha_s|, and the sequences that break Assumption 4."""
    low, high = statistics["lengths"]
    length = f"{high}" if low == high else f"{low} to {high}"
    show(
        f"{statistics['sequences']} sequences of {length} tokens, {statistics['tokens']} in all, "
        f"vocabulary of {statistics['vocabulary']}\n"
    )
    print(f"{'token':16} {'+1':>5} {'-1':>5} {'alpha (3)':>10} {'share':>10} {'(37)':>7}  class")
    for word in statistics["words"][:SHOWN]:
        print(
            f"{word['token'][:16]:16} {word['positive']:>5} {word['negative']:>5} {word['signed_frequency']:>+10.4f} "
            f"{word['signed_share']:>+10.4f} {word['posterior_difference']:>+7.3f}  {word['class']}"
        )
    _print_rest(len(statistics["words"]), "tokens")
    offending = statistics["offending"]
    print(f"\nAssumption 4 {'holds' if not offending else f'is broken by {len(offending)} sequences'}")
    for row in offending[:SHOWN]:
        show(f"  sequence {row['sequence']}: {row['reason']}")
    _print_rest(len(offending), "sequences")
    if low != high:
        say("\nThe paper's sequences have one length: (3) counts occurrences, the share weighs each text the same.")


def _print_rest(number: int, what: str) -> None:
    if number > SHOWN:
        print(f"  ... and {number - SHOWN} more {what} (--json has all)")
