"""Images: the halves of a set, damaged files refused by name, stand-ins that say so."""

import numpy as np
import pytest

from tokenmargin.data.datasets import DatasetError, cached_digests
from tokenmargin.data.images import (
    ImageSet,
    find_images,
    load_images,
    make_glyphs,
)


@pytest.fixture(name="archive")
def small_archive(tmp_path):
    made = make_glyphs(120, rng=np.random.default_rng(0))
    path = tmp_path / "cache" / "datasets" / "cifar10.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, images=made.images, labels=made.labels)
    return path


def test_the_first_images_are_those_of_either_half(archive):
    whole = load_images(archive)
    assert whole.held_out == 20
    assert whole.notes == ("100 training and 20 test images, which are not all of CIFAR-10",)
    some = whole.first_images(training=30, test=5)
    assert (some.training[0] == whole.images[:30]).all()
    assert (some.test[1] == whole.labels[100:105]).all()


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_archive_is_named_and_refused(archive, place):
    content = bytearray(archive.read_bytes())
    content[int(place * len(content))] ^= 255
    archive.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match=r"cifar10\.npz: not readable as images .*tokenmargin data get cifar10"):
        load_images(archive)


def test_the_cache_is_used_and_a_stand_in_says_so(archive, tmp_path, monkeypatch):
    monkeypatch.setenv("TOKENMARGIN_CACHE", str(tmp_path / "cache"))
    assert find_images(substitute=False).digest == load_images(archive).digest
    assert len(cached_digests("cifar10")["cifar10"]) == 16
    monkeypatch.setenv("TOKENMARGIN_CACHE", str(tmp_path / "empty"))
    assert cached_digests("cifar10") == {"cifar10": "absent"}
    with pytest.raises(DatasetError, match="cifar10 is not in the cache: tokenmargin data get cifar10"):
        find_images(substitute=False)
    found = find_images(substitute=True)
    assert "generated images stand in for it" in found.notes[0]
    assert np.bincount(found.labels).tolist() == [600] * 10


@pytest.mark.parametrize(
    ("images", "labels", "held_out", "message"),
    [
        (np.zeros((2, 4, 4, 3)), np.zeros(2, int), 1, "images must be bytes"),
        (np.zeros((2, 4, 4, 3), np.uint8), np.zeros(3, int), 1, "2 images, 3 labels and 1 held out do not match"),
        (np.zeros((2, 4, 4, 3), np.uint8), np.array([0, -1]), 1, "labels count from 0, got -1"),
    ],
)
@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_set_of_images(images, labels, held_out, message):
    with pytest.raises(DatasetError, match=message):
        ImageSet(images, labels, held_out)
