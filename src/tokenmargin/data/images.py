"""Labelled images: CIFAR-10 from the cache, packed files that carry their checksum, and generated stand-ins.

    python -m tokenmargin.data.images CIFAR10.npz FOLDER

packs a dataset into parts of 5000 images, a bit over half the size, for a machine without a network; reading them takes
numpy alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray as Array

from tokenmargin._files import file_digest
from tokenmargin.data.datasets import DatasetError, cache_folder

__all__ = [
    "CIFAR10_CLASSES",
    "CIFAR10_SHA256",
    "ImageSet",
    "find_images",
    "image_inputs",
    "load_images",
    "make_glyphs",
    "pack_images",
    "unpack_images",
]

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR10_SHA256 = "795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69"
"""Digest of the 60,000 images and labels in the released order."""
TEST_SIZE = 10_000
MAGIC = b"tokenmargin images 1\n"
PART = 5000


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

    def limited(self, *, training: int | None = None, test: int | None = None) -> ImageSet:
        """The first so many training and test images."""
        total = len(self.images)
        size = total - self.held_out
        first = size if training is None else min(training, size)
        held_out = self.held_out if test is None else min(test, self.held_out)
        kept = np.r_[:first, size : size + held_out]
        return ImageSet(self.images[kept], self.labels[kept], held_out, self.notes)


def find_images(*, substitute: bool, cache: Path | None = None) -> ImageSet:
    """CIFAR-10 from the cache, or, where that is allowed, generated images in its place."""
    path = (cache or cache_folder()) / "datasets" / "cifar10.npz"
    if path.is_file():
        return load_images(path)
    if not substitute:
        raise DatasetError("cifar10 is not in the cache: tokenmargin data get cifar10")
    note = "cifar10 is not in the cache (tokenmargin data get cifar10): generated images stand in for it"
    made = make_glyphs(6000, rng=np.random.default_rng(0))
    return ImageSet(made.images, made.labels, 1000, (note,))


def image_inputs(*, cache: Path | None = None) -> dict[str, str]:
    """The file that `find_images` reads, with a digest of it, or "absent"."""
    path = (cache or cache_folder()) / "datasets" / "cifar10.npz"
    return {"cifar10": file_digest(path)[:16] if path.is_file() else "absent"}


def load_images(path: Path) -> ImageSet:
    """CIFAR-10 from the file of `tokenmargin data get cifar10`, or from a folder of packed parts.

    A file that is damaged is named and refused. A folder without all parts gives the images that are there, with a
    note; so does a file with other images than the released ones.
    """
    if path.is_dir():
        return _load_parts(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            images, labels = file["images"], file["labels"].astype(np.int64)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise DatasetError(
            f"{path}: not readable as images ({error}); remove it and run tokenmargin data get cifar10"
        ) from error
    return _noted(images, labels, min(TEST_SIZE, len(images) // 6))


def _load_parts(folder: Path) -> ImageSet:
    """Training parts in their order, then the test parts."""
    paths = sorted(folder.rglob("train-*.packed")), sorted(folder.rglob("test-*.packed"))
    if not all(paths):
        raise DatasetError(f"{folder}: needs files train-*.packed and test-*.packed")
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(_load_part, [*paths[0], *paths[1]]))
    images, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return _noted(images, labels, sum(len(labels) for _, labels in parts[len(paths[0]) :]))


def _load_part(path: Path) -> tuple[Array, Array]:
    try:
        return unpack_images(path.read_bytes())
    except (OSError, DatasetError) as error:
        raise DatasetError(f"{path}: {error}") from error


def _noted(images: Array, labels: Array, held_out: int) -> ImageSet:
    found = ImageSet(images, labels, held_out)
    if found.digest == CIFAR10_SHA256:
        return found
    note = f"{len(images) - held_out} training and {held_out} test images, which are not all of CIFAR-10"
    return ImageSet(images, labels, held_out, (note,))


def pack_images(images: UInt8[Array, "n H W 3"], labels: Int[Array, " n"]) -> bytes:
    """Images and labels in few bytes: each pixel less the plane through its neighbours, then Huffman's code."""
    green = images[..., 1:2]
    planes = np.concatenate([green, images[..., :1] - green, images[..., 2:] - green], axis=3).transpose(3, 0, 1, 2)
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    packer = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    body = packer.compress(planes.tobytes()) + packer.flush()
    header = json.dumps(
        {"shape": images.shape, "labels": labels.tolist(), "sha256": hashlib.sha256(body).hexdigest()}
    ).encode()
    return MAGIC + struct.pack("<I", len(header)) + header + body


def unpack_images(content: bytes) -> tuple[Array, Array]:
    """The images and labels that were packed; bytes that are not what was written are refused.

    >>> images = np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    >>> again, labels = unpack_images(pack_images(images, np.array([3, 7])))
    >>> bool((again == images).all()), labels.tolist()
    (True, [3, 7])
    """
    try:
        if not content.startswith(MAGIC):
            raise DatasetError("not a file of packed images")
        start = len(MAGIC) + 4
        (size,) = struct.unpack("<I", content[len(MAGIC) : start])
        header, body = json.loads(content[start : start + size]), content[start + size :]
        if (found := hashlib.sha256(body).hexdigest()) != header["sha256"]:
            raise DatasetError(f"damaged: sha256 is {found}, expected {header['sha256']}; copy it again")
        n, height, width, channels = header["shape"]
        planes = np.frombuffer(zlib.decompress(body), np.uint8).reshape(channels, n, height, width)
    except (struct.error, ValueError, KeyError, zlib.error) as error:
        raise DatasetError(f"damaged ({error}); copy it again") from error
    for axis in (2, 3):
        planes = np.cumsum(planes, axis=axis, dtype=np.uint8)
    green = planes[0]
    images = np.stack([planes[1] + green, green, planes[2] + green], axis=-1)
    return images, np.array(header["labels"], dtype=np.int64)


def make_glyphs(n: int, *, rng: np.random.Generator, size: int = 32, classes: int = 10) -> ImageSet:
    """Images whose class is a small glyph at a place of its own, on a background that says nothing.

    The glyph is 8 pixels wide; five shapes in two colours give ten classes. Attention does well to look there alone.
    """
    coarse = rng.integers(40, 216, (n, size // 8, size // 8, 3))
    images = np.kron(coarse, np.ones((1, 8, 8, 1), dtype=np.int64)) + rng.integers(-25, 26, (n, size, size, 3))
    labels = np.arange(n) % classes
    row, column = rng.integers(0, size // 4 - 1, (2, n)) * 4  # whole patches of 4
    shapes = _glyph_shapes()
    for i in range(n):
        paint = np.array([250, 230, 40] if labels[i] % 2 else [30, 240, 250])
        window = images[i, row[i] : row[i] + 8, column[i] : column[i] + 8]
        window[shapes[labels[i] // 2 % 5]] = paint
    return ImageSet(images.clip(0, 255).astype(np.uint8), labels, 0)


def _glyph_shapes() -> Array:
    """Five shapes on a grid of 8 by 8: square, cross, bars, and the two diagonals."""
    y, x = np.mgrid[:8, :8]
    edge = (y < 2) | (y > 5) | (x < 2) | (x > 5)
    cross = (abs(y - 3.5) < 1) | (abs(x - 3.5) < 1)
    return np.stack([edge, cross, y % 4 < 2, abs(y - x) < 2, abs(y + x - 7) < 2])


def main(arguments: Sequence[str]) -> None:
    """Pack a dataset into parts."""
    source, folder = map(Path, arguments)
    data = load_images(source)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in (("train", data.training), ("test", data.test)):
        for first in range(0, len(images), PART):
            path = folder / f"{name}-{first:05d}.packed"
            partial = path.with_name(f".{path.name}")
            partial.write_bytes(pack_images(images[first : first + PART], labels[first : first + PART]))
            os.replace(partial, path)
    print(f"{len(data.images)} images in {folder}, sha256 {data.digest}")


if __name__ == "__main__":
    main(sys.argv[1:])
