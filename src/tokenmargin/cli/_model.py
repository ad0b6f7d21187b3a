"""What the classifier's commands share: reading texts and models with clear messages."""

from __future__ import annotations

import hashlib
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmargin.cli._common import UsageError, needs_extra, progress_bar, say

if TYPE_CHECKING:
    from tokenmargin.classifier import TokenSelectionClassifier
    from tokenmargin.data.sources import LabelledText

SHOWN = 3


def read_rows(
    source: str, *, text: str, label: str, encoding: str | None = None, delimiter: str | None = None
) -> LabelledText:
    """Labelled texts of a file, a folder, a Hugging Face dataset, a public dataset, or the built-in `sentences`."""
    with needs_extra("text"):
        import numpy as np

        from tokenmargin.data.datasets import DatasetError
        from tokenmargin.data.sentences import make_sentences
        from tokenmargin.data.sources import SourceError, read_labelled
    if source == "sentences":
        return make_sentences(2000, np.random.default_rng(0))
    if source in ("imdb", "yelp") and not Path(source).exists():
        try:
            source, text, label = str(dataset(source)), "text", "label"
        except DatasetError as error:
            raise UsageError(str(error)) from error
    try:
        found = read_labelled(source, text=text, label=label, encoding=encoding, delimiter=delimiter)
    except SourceError as error:
        raise UsageError(str(error)) from error
    if found.rejected:
        say(f"{len(found.rejected)} rows left out:")
        for row in found.rejected[:SHOWN]:
            say(f"  {row.place}: {row.reason}")
        if len(found.rejected) > len(found.texts):
            raise UsageError(
                f"{source}: more rows are unusable ({len(found.rejected)}) than usable ({len(found.texts)}); "
                "look at its quotes, its columns, its --encoding (UTF-8 is expected) and its --delimiter"
            )
    return found


def dataset(name: str, *, local: Path | None = None) -> Path:
    """A public dataset in the cache, fetched with a progress bar where it is not there yet."""
    with needs_extra("text"):
        from tokenmargin.data.datasets import get_dataset
    with needs_extra("text"), progress_bar(f"getting {name}", 100) as advance:
        return get_dataset(
            name, local=local, progress=lambda done, total: advance(round(100 * done / max(total, done)))
        )


def open_model(folder: Path) -> TokenSelectionClassifier:
    """A model folder, or a message that says what is wrong with it."""
    with needs_extra("classify"):
        from tokenmargin.classifier import ModelFileError, load_model
    try:
        return load_model(folder)
    except ModelFileError as error:
        raise UsageError(str(error)) from error


def two_classes(model: TokenSelectionClassifier, folder: Path | None) -> None:
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


def versions() -> str:
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
