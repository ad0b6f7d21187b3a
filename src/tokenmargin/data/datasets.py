"""The public datasets of the papers, and the corpora that the figures make of them, kept in a cache.

A dataset comes from its public source, whose checksum is known, or from your own copy.
"""

from __future__ import annotations

import os
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np

from tokenmargin._files import atomic_path, file_digest, json_digest, write_arrays
from tokenmargin.data.pipeline import PAPER, PLAIN, Pipeline, prepare
from tokenmargin.data.prepared import PreparedText, load_prepared
from tokenmargin.data.sentences import make_sentences
from tokenmargin.data.sources import LabelledText, binary_labels, read_labelled
from tokenmargin.data.table_files import SourceError

YELP_SIZE = 50_000
BytesProgress = Callable[[int, int], None]


class DatasetError(RuntimeError):
    """A dataset that is not available; the message says what to do."""


@dataclass(frozen=True)
class RemoteFile:
    """A file at its public source."""

    url: str
    sha256: str
    terms: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rpartition("/")[2]


DATASETS = {
    "imdb": RemoteFile(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
        "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
        "Large Movie Review Dataset (Maas et al., ACL 2011): cite the paper; the reviews are from IMDb.",
    ),
    "yelp": RemoteFile(
        "https://s3.amazonaws.com/fast-ai-nlp/yelp_review_full_csv.tgz",
        "56006b0a17a370f1e366504b1f2c3e3754e4a3dda17d3e718a885c552869a559",
        "Yelp reviews (Zhang, Zhao and LeCun, NeurIPS 2015): Yelp's terms allow academic use, not redistribution.",
    ),
    "cifar10": RemoteFile(
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        "CIFAR-10 (Krizhevsky, 2009): cite the report.",
    ),
    "bert-vocabulary": RemoteFile(
        "https://huggingface.co/google-bert/bert-base-uncased/resolve/main/vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        "WordPiece vocabulary of bert-base-uncased (Devlin et al., NAACL 2019): Apache-2.0.",
    ),
}


def cache_folder() -> Path:
    """The folder of datasets: `$TOKENMARGIN_CACHE`, or by default the platform's cache folder."""
    if place := os.environ.get("TOKENMARGIN_CACHE"):
        return Path(place)
    from platformdirs import user_cache_path

    return Path(user_cache_path("tokenmargin"))


def dataset_path(name: str) -> Path:
    """The file of a dataset in the cache, whether or not it is there."""
    return cache_folder() / "datasets" / f"{name}{SUFFIXES.get(name, '.parquet')}"


def cached_digests(*names: str) -> dict[str, str]:
    """A digest of each of these datasets in the cache, or "absent"."""
    files = {name: dataset_path(name) for name in names}
    return {name: file_digest(path)[:16] if path.is_file() else "absent" for name, path in files.items()}


def get_dataset(name: str, *, local: str | Path | None = None, progress: BytesProgress | None = None) -> Path:
    """The dataset as one file in the cache: `.parquet` with text and label, `.npz` for images, `.txt` for a vocabulary.

    **Arguments**
    - `name`: one of `DATASETS`.
    - `local`: your own copy: the archive of the source, or for text anything `read_labelled` reads (Yelp: with a column
        `stars` from 1 to 5).
    - `progress`: called with the bytes received and expected.
    """
    if name not in DATASETS:
        raise DatasetError(f"no dataset {name!r}; there are {', '.join(DATASETS)}")
    target = dataset_path(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    if local is None and target.is_file():
        return target
    source = Path(local) if local is not None else download(DATASETS[name], target.parent, progress)
    if not source.exists():
        raise DatasetError(f"{source}: no such file or folder")
    try:
        CONVERTERS[name](source, target)
    except (SourceError, tarfile.TarError, KeyError, OSError) as error:
        raise DatasetError(f"{source}: not a copy of {name} ({error})") from error
    return target


def select_yelp_reviews(texts: Iterable[str], stars: Iterable[int], *, size: int = YELP_SIZE) -> LabelledText:
    """Paper A, appendix E: 1000 to 1500 characters, 1/2 stars are -1, 4/5 are +1, 3 dropped, subsampled to `size`.

    >>> select_yelp_reviews(["x" * 1000, "y" * 999, "z" * 1500], [1, 5, 4]).labels
    ['-1', '1']
    """
    kept = [
        (text, "1" if star > 3 else "-1")
        for text, star in zip(texts, stars, strict=True)
        if 1000 <= len(text) <= 1500 and star in (1, 2, 4, 5)
    ]
    if len(kept) > size:
        chosen = np.sort(np.random.default_rng(0).choice(len(kept), size, replace=False))
        kept = [kept[i] for i in chosen]
    return LabelledText([text for text, _ in kept], [label for _, label in kept])


def download(file: RemoteFile, folder: Path, progress: BytesProgress | None) -> Path:
    """Fetch a file and compare its checksum; on failure nothing is left."""
    target = folder / file.name
    if target.is_file() and file_digest(target) == file.sha256:
        return target
    with atomic_path(target) as beside:
        _fetch(file.url, beside, progress)
        if (found := file_digest(beside)) != file.sha256:
            raise DatasetError(f"{file.url}: sha256 is {found}, expected {file.sha256}; the source has changed")
    return target


def _fetch(url: str, target: Path, progress: BytesProgress | None) -> None:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer, target.open("wb") as out:
            expected = int(answer.headers.get("Content-Length", 0))
            received = 0
            while block := answer.read(1 << 20):
                out.write(block)
                received += len(block)
                if progress is not None:
                    progress(received, expected)
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DatasetError(
            f"could not reach {url} ({getattr(error, 'reason', error)}); "
            "fetch it on a machine with a network and give the copy with --from PATH"
        ) from error


def _archive_files(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    """The wanted files of an archive, read in memory, so that no name in the archive can touch the disk."""
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile() and wanted(member.name) and (content := archive.extractfile(member)) is not None:
                yield member.name, content


def _is_archive(path: Path) -> bool:
    return path.is_file() and tarfile.is_tarfile(path)


def _convert_imdb(source: Path, target: Path) -> None:
    """Write all 50,000 labelled reviews, the training half first, in the order of their numbers."""
    if not _is_archive(source):
        table = read_labelled(source)
        return _write_texts(target, table.texts, binary_labels(table.labels).tolist())
    found = []
    for name, content in _archive_files(source, lambda name: name.endswith(".txt") and name.count("/") == 3):
        _, split, label, file = name.split("/")
        if label in ("pos", "neg"):
            number = int(file.partition("_")[0])
            found.append((split != "train", number, label == "neg", content.read().decode("utf-8")))
    found.sort()
    if not found:
        raise SourceError("no reviews in the archive")
    return _write_texts(target, [row[3] for row in found], [-1 if row[2] else 1 for row in found])


def _convert_yelp(source: Path, target: Path) -> None:
    """Write the reviews that paper A's rules select."""
    if _is_archive(source):
        import csv
        import io

        texts, stars = [], []
        for _, content in _archive_files(source, lambda name: name.endswith("train.csv")):
            for row in csv.reader(io.TextIOWrapper(content, encoding="utf-8", newline="")):
                stars.append(int(row[0]))
                texts.append(row[1].replace("\\n", "\n").replace('\\"', '"'))
        chosen = select_yelp_reviews(texts, stars)
    else:
        table = read_labelled(source, label="stars")
        chosen = select_yelp_reviews(table.texts, [round(float(label)) for label in table.labels])
    if not chosen.texts:
        raise SourceError("no review of 1000 to 1500 characters with 1, 2, 4 or 5 stars")
    _write_texts(target, chosen.texts, [int(label) for label in chosen.labels])


def _convert_cifar10(source: Path, target: Path) -> None:
    """Write the images as bytes (60000, 32, 32, 3) with labels; the last 10,000 are the test half."""
    batches = {name: content.read() for name, content in _archive_files(source, lambda name: name.endswith(".bin"))}
    rows = np.frombuffer(b"".join(batches[name] for name in sorted(batches)), np.uint8)  # data_batch_1..5, test_batch
    if rows.size == 0 or rows.size % 3073:
        raise SourceError("its batches are not made of 3073-byte records")
    rows = rows.reshape(-1, 3073)
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    write_arrays(target, {"images": images, "labels": rows[:, 0].astype(np.int64)}, compressed=False)


def _write_texts(target: Path, texts: list[str], labels: list[int]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": pa.array(texts, pa.large_string()), "label": pa.array(labels, pa.int8())})
    with atomic_path(target) as beside:
        pq.write_table(table, beside, compression="zstd")


def _copy_vocabulary(source: Path, target: Path) -> None:
    """Copy the vocabulary if it is the published one."""
    if (found := file_digest(source)) != DATASETS["bert-vocabulary"].sha256:
        raise SourceError(f"sha256 is {found}")
    with atomic_path(target) as beside:
        beside.write_bytes(source.read_bytes())


SUFFIXES = {"cifar10": ".npz", "bert-vocabulary": ".txt"}
CONVERTERS: dict[str, Callable[[Path, Path], None]] = {
    "imdb": _convert_imdb,
    "yelp": _convert_yelp,
    "cifar10": _convert_cifar10,
    "bert-vocabulary": _copy_vocabulary,
}


def find_corpus(name: str, *, substitute: bool) -> tuple[PreparedText, tuple[str, ...]]:
    """A dataset of paper A through its pipeline, from the cache, and notes for the reader of a figure.

    **Arguments**
    - `name`: `imdb` or `yelp`; `tokenmargin data get` puts them into the cache.
    - `substitute`: whether generated sentences may take the place of a missing dataset; a note then says so.

    BERT's vocabulary is used if it is in the cache; else tokens are stems, and a note says so.
    """
    source, vocabulary = dataset_path(name), dataset_path("bert-vocabulary")
    if not source.is_file():
        if not substitute:
            raise DatasetError(f"{name} is not in the cache: tokenmargin data get {name}")
        made = make_sentences(4000, np.random.default_rng(0), sentences=6, verdicts=2)
        note = f"{name} is not in the cache (tokenmargin data get {name}): generated sentences stand in for it"
        return prepare(made.texts, binary_labels(made.labels), replace(PLAIN, stop_words="nltk")), (note,)
    notes: tuple[str, ...] = ()
    pipeline = replace(PAPER, vocabulary=vocabulary)
    if not vocabulary.is_file():
        pipeline = PAPER
        notes = ("tokens are stems, not WordPieces: tokenmargin data get bert-vocabulary",)
    kept = cache_folder() / "prepared" / f"{name}-{_preparation_key(source, pipeline)}.safetensors"
    if not kept.is_file():
        table = read_labelled(source)
        kept.parent.mkdir(parents=True, exist_ok=True)
        prepare(table.texts, binary_labels(table.labels), pipeline).save(kept)
    return load_prepared(kept), notes


def _preparation_key(source: Path, pipeline: Pipeline) -> str:
    """Part of a file name that changes with the dataset and with the choices of the pipeline."""
    stamp = source.stat()
    return json_digest([pipeline.describe(), stamp.st_size, stamp.st_mtime_ns])[:12]
