"""Texts on the command line: reading them and models of them, and what paper A's theory reads off a corpus."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmargin.cli._common import UsageError, needs_extra, print_answer, print_message, share_bar, usage_errors

if TYPE_CHECKING:
    from tokenmargin.classifier import TokenSelectionClassifier
    from tokenmargin.data.sources import LabelledText
    from tokenmargin.problem.corpus import TokenCorpus

SHOWN = 5
"""Rows left out of which the reason is said."""
MOST_SHOWN = 20
"""Tokens and offending sequences shown to people; JSON has them all."""
CLASSES = {1: "positive", 0: "irrelevant", -1: "negative"}


def read_rows(
    source: str, *, text: str, label: str, encoding: str | None = None, delimiter: str | None = None
) -> LabelledText:
    """Labelled texts of a file, a folder, a Hugging Face dataset, a public dataset, or the built-in `sentences`."""
    with needs_extra("text"):
        import numpy as np

        from tokenmargin.data.datasets import DatasetError
        from tokenmargin.data.sentences import make_sentences
        from tokenmargin.data.sources import read_labelled
    if source == "sentences":
        return make_sentences(2000, np.random.default_rng(0))
    if source in ("imdb", "yelp") and not Path(source).exists():
        try:
            source, text, label = str(fetch_dataset(source)), "text", "label"
        except DatasetError as error:
            raise UsageError(str(error)) from error
    with usage_errors():
        found = read_labelled(source, text=text, label=label, encoding=encoding, delimiter=delimiter)
    print_rejected([f"{row.place}: {row.reason}" for row in found.rejected], len(found.rejected))
    if len(found.rejected) > len(found.texts):
        raise UsageError(
            f"{source}: more rows are unusable ({len(found.rejected)}) than usable ({len(found.texts)}); "
            "look at its quotes, its columns, its --encoding (UTF-8 is expected) and its --delimiter"
        )
    return found


def print_rejected(reasons: Sequence[str], count: int) -> None:
    """How many rows were left out, and why the first of them were."""
    if count:
        print_message(f"{count} rows left out:")
        for reason in reasons[:SHOWN]:
            print_message(f"  {reason}")
        if count > SHOWN:
            print_message(f"  and {count - SHOWN} more")


def fetch_dataset(name: str, *, local: Path | None = None) -> Path:
    """A public dataset in the cache, fetched with a progress bar where it is not there yet."""
    with needs_extra("text"):
        from tokenmargin.data.datasets import get_dataset
    with needs_extra("text"), share_bar(f"getting {name}") as advance:
        return get_dataset(name, local=local, progress=lambda done, total: advance(done / max(total, done)))


def open_model(folder: Path) -> TokenSelectionClassifier:
    """A model folder, or a message that says what is wrong with it."""
    with needs_extra("classify"):
        from tokenmargin.classifier import load_model
    with usage_errors():
        return load_model(folder)


def require_two_classes(model: TokenSelectionClassifier, folder: Path | None) -> None:
    """Refuse a model that a page cannot show word by word."""
    if len(model.classes_) != 2:
        raise UsageError(
            f"{folder}: the page shows models of two classes, this one has {len(model.classes_)}; "
            "use tokenmargin explain or tokenmargin report"
        )


def data_hash(texts: list[str], labels: list[str]) -> str:
    """A checksum of what was read, the same for any file that holds the same rows."""
    digest = hashlib.sha256()
    for text, label in zip(texts, labels, strict=True):
        digest.update(f"{label}\0{text}\0".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def command_line() -> str:
    """The command that is running, for the record."""
    return shlex.join(["tokenmargin", *sys.argv[1:]])


def package_versions() -> str:
    """Versions of what the numbers depend on."""
    import platform

    import numpy
    import scipy
    import sklearn

    from tokenmargin._version import __version__

    return (
        f"tokenmargin {__version__}, Python {platform.python_version()}, numpy {numpy.__version__}, "
        f"scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"
    )


def read_corpus(source: str) -> TokenCorpus:
    """Labelled text, its words cut at blanks, or ids written by `tokenmargin prepare`.

    The labels are two, and the later of them in the alphabet counts as +1 (`neg` and `pos`, `0` and `1`, `-1` and `1`).
    """
    from tokenmargin.problem.corpus import TokenCorpus

    with needs_extra("text"):
        from tokenmargin.data.prepared import load_prepared
        from tokenmargin.data.sources import binary_labels, read_labelled
    with usage_errors():
        if Path(source).suffix == ".safetensors":
            return load_prepared(source).corpus()
        read = read_labelled(source)
        print_rejected([f"{row.place}: {row.reason}" for row in read.rejected], len(read.rejected))
        return TokenCorpus.of([text.split() for text in read.texts], binary_labels(read.labels))


def corpus_statistics(corpus: TokenCorpus) -> dict[str, Any]:
    """(3), (37), Definition 1 and Assumption 4 of a corpus, as plain data; tokens by falling |alpha_s|."""
    import numpy as np

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
                "class": ("completely " if corpus.sole_label[s] else "") + CLASSES[int(corpus.token_class[s])],
            }
            for s in order.tolist()
        ],
    }


def print_corpus(statistics: dict[str, Any]) -> None:
    """For people: the tokens of largest |alpha_s|, and the sequences that break Assumption 4."""
    low, high = statistics["lengths"]
    length = f"{high}" if low == high else f"{low} to {high}"
    print_answer(
        f"{statistics['sequences']} sequences of {length} tokens, {statistics['tokens']} in all, "
        f"vocabulary of {statistics['vocabulary']}\n"
    )
    print(f"{'token':16} {'+1':>5} {'-1':>5} {'alpha (3)':>10} {'share':>10} {'(37)':>7}  class")
    for word in statistics["words"][:MOST_SHOWN]:
        print(
            f"{word['token'][:16]:16} {word['positive']:>5} {word['negative']:>5} {word['signed_frequency']:>+10.4f} "
            f"{word['signed_share']:>+10.4f} {word['posterior_difference']:>+7.3f}  {word['class']}"
        )
    _print_rest(len(statistics["words"]), "tokens")
    offending = statistics["offending"]
    print(f"\nAssumption 4 {'holds' if not offending else f'is broken by {len(offending)} sequences'}")
    for row in offending[:MOST_SHOWN]:
        print_answer(f"  sequence {row['sequence']}: {row['reason']}")
    _print_rest(len(offending), "sequences")
    if low != high:
        print_message(
            "\nThe paper's sequences have one length: (3) counts occurrences, the share weighs each text the same."
        )


def _print_rest(number: int, what: str) -> None:
    if number > MOST_SHOWN:
        print(f"  ... and {number - MOST_SHOWN} more {what} (--json has all)")
