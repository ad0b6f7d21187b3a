"""Labelled images: CIFAR-10 from the cache, or generated images."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray as Array

from tokenmargin._statistics import Rng, generator
from tokenmargin.data.datasets import DatasetError, dataset_path

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_SHA256 = "795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69"
"""Digest of the 60,000 images and labels in the released order."""
TEST_SIZE = 10_000


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as bytes with their labels; the last `held_out` are the test half."""

    images: UInt8[Array, "n H W 3"]
    labels: Int[Array, " n"]
    held_out: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise DatasetError(
                f"images must be bytes of shape (n, height, width, 3), got {images.dtype} {images.shape}"
            )
        if len(labels) != len(images) or not 0 <= self.held_out < len(images):
            raise DatasetError(f"{len(images)} images, {len(labels)} labels and {self.held_out} held out do not match")
        if len(labels) and labels.min() < 0:
            raise DatasetError(f"labels count from 0, got {labels.min()}")

    @property
    def digest(self) -> str:
        """SHA-256 of the pixels and labels, whatever file they came from."""
        content = hashlib.sha256(np.ascontiguousarray(self.images).data)
        content.update(self.labels.astype(np.uint8).tobytes())
        return content.hexdigest()

    @property
    def training(self) -> tuple[Array, Array]:
        """Images and labels to train on."""
        size = len(self.images) - self.held_out
        return self.images[:size], self.labels[:size]

    @property
    def test(self) -> tuple[Array, Array]:
        """Images and labels held out."""
        size = len(self.images) - self.held_out
        return self.images[size:], self.labels[size:]

    def first_images(self, *, training: int | None = None, test: int | None = None) -> ImageSet:
        """The first so many training and test images."""
        total = len(self.images)
        size = total - self.held_out
        first = size if training is None else min(training, size)
        held_out = self.held_out if test is None else min(test, self.held_out)
        kept = np.r_[:first, size : size + held_out]
        return ImageSet(self.images[kept], self.labels[kept], held_out, self.notes)


def find_images(*, substitute: bool) -> ImageSet:
    """CIFAR-10 from the cache; if it is not there and `substitute` is true, generated images."""
    path = dataset_path("cifar10")
    if path.is_file():
        return load_images(path)
    if not substitute:
        raise DatasetError("cifar10 is not in the cache: tokenmargin data get cifar10")
    note = "cifar10 is not in the cache (tokenmargin data get cifar10): generated images stand in for it"
    made = make_glyphs(6000, rng=np.random.default_rng(0))
    return ImageSet(made.images, made.labels, 1000, (note,))


def load_images(path: Path) -> ImageSet:
    """The images of a file such as `tokenmargin data get cifar10` writes; a note says if they are not CIFAR-10.

    DatasetError names a file that is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"].astype(np.int64)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(
            f"{path}: not readable as images ({error}); remove it and run tokenmargin data get cifar10"
        ) from error
    found = ImageSet(images, labels, held_out=min(TEST_SIZE, len(images) // 6))
    if found.digest == CIFAR10_SHA256:
        return found
    sizes = f"{len(images) - found.held_out} training and {found.held_out} test images"
    return replace(found, notes=(f"{sizes}, which are not all of CIFAR-10",))


def make_glyphs(n: int, *, rng: Rng) -> ImageSet:
    """Images of ten classes: each has a small glyph at a random place, on a background that says nothing.

    The glyph is 8 pixels wide; its shape (of five) and its colour (of two) are the class.
    """
    rng, size = generator(rng), 32
    coarse = rng.integers(40, 216, (n, size // 8, size // 8, 3))
    images = np.kron(coarse, np.ones((1, 8, 8, 1), dtype=np.int64)) + rng.integers(-25, 26, (n, size, size, 3))
    labels = np.arange(n) % 10
    row, column = rng.integers(0, size // 4 - 1, (2, n)) * 4  # whole patches of 4
    shapes = _glyph_shapes()
    for i in range(n):
        paint = np.array([250, 230, 40] if labels[i] % 2 else [30, 240, 250])
        window = images[i, row[i] : row[i] + 8, column[i] : column[i] + 8]
        window[shapes[labels[i] // 2]] = paint
    return ImageSet(images.clip(0, 255).astype(np.uint8), labels, 0)


def _glyph_shapes() -> Array:
    """Five shapes on a grid of 8 by 8: square, cross, bars, and the two diagonals."""
    y, x = np.mgrid[:8, :8]
    edge = (y < 2) | (y > 5) | (x < 2) | (x > 5)
    cross = (abs(y - 3.5) < 1) | (abs(x - 3.5) < 1)
    return np.stack([edge, cross, y % 4 < 2, abs(y - x) < 2, abs(y + x - 7) < 2])
