"""Images: packed and unpacked, damaged files refused by name, stand-ins that say so."""

import numpy as np
import pytest
from benchmarks.image_codec import load_packed, main, pack_images, unpack_images
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tokenmargin.data.datasets import DatasetError, cached_digests
from tokenmargin.data.images import (
    ImageSet,
    find_images,
    load_images,
    make_glyphs,
)


@given(arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.just(3))))
def test_packing_keeps_every_pixel(images: np.ndarray) -> None:
    labels = np.arange(len(images))
    again, found = unpack_images(pack_images(images, labels))
    assert (again == images).all()
    assert (found == labels).all()


@pytest.fixture(name="archive")
def small_archive(tmp_path):
    made = make_glyphs(120, rng=np.random.default_rng(0))
    path = tmp_path / "cache" / "datasets" / "cifar10.npz"
    path.parent.mkdir(parents=True)
    np.savez(path, images=made.images, labels=made.labels)
    return path


def test_parts_give_the_images_back(archive, tmp_path, capsys):
    main([str(archive), str(tmp_path / "parts")])
    whole, parts = load_images(archive), load_packed(tmp_path / "parts")
    assert capsys.readouterr().out == f"120 images in {tmp_path / 'parts'}, sha256 {whole.digest}\n"
    assert parts.digest == whole.digest
    assert parts.held_out == whole.held_out == 20
    assert parts.notes == ("100 training and 20 test images, which are not all of CIFAR-10",)
    some = parts.first_images(training=30, test=5)
    assert (some.training[0] == whole.images[:30]).all()
    assert (some.test[1] == whole.labels[100:105]).all()


@pytest.mark.parametrize("damage", ["a byte", "cut", "not ours", "header"])
def test_a_damaged_part_is_named_and_refused(archive, tmp_path, damage):
    main([str(archive), str(tmp_path / "parts")])
    path = tmp_path / "parts" / "train-00000.packed"
    content = bytearray(path.read_bytes())
    match damage:
        case "a byte":
            content[-100] ^= 1
        case "cut":
            content = content[:-7]
        case "not ours":
            content = bytearray(b"PK" + bytes(content))
        case "header":
            content[30] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match=r"train-00000\.packed: (damaged|not a file of packed images)"):
        load_packed(tmp_path / "parts")
    path.unlink()
    with pytest.raises(DatasetError, match=r"needs files train-\*\.packed and test-\*\.packed"):
        load_packed(tmp_path / "parts")


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_a_damaged_archive_is_named_and_refused(archive, place):
    content = bytearray(archive.read_bytes())
    content[int(place * len(content))] ^= 255
    archive.write_bytes(bytes(content))
    with pytest.raises(DatasetError, match=r"cifar10\.npz: not readable as images .*tokenmargin data get cifar10"):
        load_images(archive)


def test_the_cache_is_used_and_a_stand_in_says_so(archive, tmp_path):
    assert (find_images(substitute=False, cache=tmp_path / "cache").digest) == load_images(archive).digest
    assert len(cached_digests("cifar10", cache=tmp_path / "cache")["cifar10"]) == 16
    empty = tmp_path / "empty"
    assert cached_digests("cifar10", cache=empty) == {"cifar10": "absent"}
    with pytest.raises(DatasetError, match="cifar10 is not in the cache: tokenmargin data get cifar10"):
        find_images(substitute=False, cache=empty)
    found = find_images(substitute=True, cache=empty)
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
