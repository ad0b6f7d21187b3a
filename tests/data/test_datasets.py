"""Dataset sources, offline: from archives made here, with checksums, and with the network gone."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error

import numpy as np
import pyarrow.parquet as pq
import pytest

from tokenmargin.data import datasets
from tokenmargin.data.datasets import DatasetError, RemoteFile, cache_folder, get_dataset, select_yelp_reviews


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMARGIN_CACHE", str(tmp_path))


def archive(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def test_imdb_archive_in_order(tmp_path):
    files = {
        "aclImdb/test/pos/0_9.txt": b"late",
        "aclImdb/train/neg/0_2.txt": b"poor",
        "aclImdb/train/pos/1_8.txt": b"fine",
        "aclImdb/train/pos/0_9.txt": b"best",
        "aclImdb/train/unsup/0_0.txt": b"unknown",
        "aclImdb/README": b"-",
    }
    target = get_dataset("imdb", local=archive(tmp_path / "imdb.tgz", files))
    table = pq.read_table(target)
    assert table["text"].to_pylist() == ["best", "poor", "fine", "late"]
    assert table["label"].to_pylist() == [1, -1, 1, 1]
    assert get_dataset("imdb") == target  # from the cache, without a network


def test_yelp_rules_and_both_local_forms(tmp_path):
    good, poor, middling, short = "g" * 1000, "p" * 1500, "m" * 1200, "s" * 999
    lines = [{"text": t, "stars": s} for t, s in ((good, 5.0), (poor, 2.0), (middling, 3.0), (short, 1.0))]
    (tmp_path / "reviews.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    table = pq.read_table(get_dataset("yelp", local=tmp_path / "reviews.jsonl"))
    assert table.to_pylist() == [{"text": good, "label": 1}, {"text": poor, "label": -1}]
    rows = "\n".join(f'"{s}","{t}"' for t, s in ((good, 4), (poor, 1), (middling, 3))).encode()
    source = archive(tmp_path / "y.tgz", {"yelp_review_full_csv/train.csv": rows})
    assert pq.read_table(get_dataset("yelp", local=source)).to_pylist() == table.to_pylist()
    chosen = select_yelp_reviews([good] * 20, [5] * 20, size=7)
    assert len(chosen.texts) == 7


def test_cifar10_records(tmp_path):
    rng = np.random.default_rng(0)
    batches = {
        f"cifar-10-batches-bin/{name}.bin": rng.integers(0, 256, 2 * 3073, np.uint8)
        for name in ("test_batch", "data_batch_1")
    }
    source = archive(tmp_path / "c.tgz", {name: rows.tobytes() for name, rows in batches.items()})
    with np.load(get_dataset("cifar10", local=source)) as data:
        first = batches["cifar-10-batches-bin/data_batch_1.bin"]
        assert data["images"].shape == (4, 32, 32, 3)
        assert data["labels"][0] == first[0]
        assert data["images"][0, 0, 1].tolist() == [first[2], first[2 + 1024], first[2 + 2048]]


class Answer(io.BytesIO):
    headers = {"Content-Length": "7"}  # noqa: RUF012


def test_download_is_checked_and_kept(tmp_path, monkeypatch):
    content = b"payload"
    file = RemoteFile("https://example.org/x.tgz", hashlib.sha256(content).hexdigest(), "none")
    monkeypatch.setattr(datasets.urllib.request, "urlopen", lambda url, timeout: Answer(content))
    seen = []
    assert datasets.download(file, tmp_path, lambda *done: seen.append(done)).read_bytes() == content
    assert seen == [(7, 7)]
    wrong = RemoteFile("https://example.org/y.tgz", "0" * 64, "none")
    with pytest.raises(DatasetError, match="expected 0000"):
        datasets.download(wrong, tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tgz"]


def test_offline_the_remedy_is_named(tmp_path, monkeypatch):
    def fail(url, timeout):
        raise urllib.error.URLError("no route")

    monkeypatch.setattr(datasets.urllib.request, "urlopen", fail)
    with pytest.raises(DatasetError, match=r"could not reach https://ai\.stanford.*no route.*--from PATH"):
        get_dataset("imdb")


def test_vocabulary_must_be_the_published_one(tmp_path):
    (tmp_path / "vocab.txt").write_text("[UNK]\n")
    with pytest.raises(DatasetError, match="not a copy of bert-vocabulary \\(sha256 is "):
        get_dataset("bert-vocabulary", local=tmp_path / "vocab.txt")


def test_errors_name_the_source(tmp_path, monkeypatch):
    with pytest.raises(DatasetError, match="no dataset 'mnist'; there are imdb, yelp, cifar10, bert-vocabulary"):
        get_dataset("mnist")
    with pytest.raises(DatasetError, match="no such file"):
        get_dataset("imdb", local=tmp_path / "none")
    with pytest.raises(DatasetError, match="not a copy of imdb"):
        get_dataset("imdb", local=archive(tmp_path / "e.tgz", {"a/b": b""}))
    monkeypatch.setenv("TOKENMARGIN_CACHE", str(tmp_path / "here"))
    assert cache_folder() == tmp_path / "here"
