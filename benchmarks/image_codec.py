"""Images packed for a machine without a network: files that carry their checksum, read with numpy alone.

    python -m benchmarks.image_codec CIFAR10.npz FOLDER

packs the dataset of `tokenmargin data get cifar10` into parts of 5000 images, a bit over half the size.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import Int, UInt8
from numpy import ndarray as Array

from tokenmargin.data.datasets import DatasetError
from tokenmargin.data.images import ImageSet, load_images, note_unless_cifar10

__all__ = ["load_packed", "pack_images", "unpack_images"]

MAGIC = b"tokenmargin images 1\n"
PART = 5000


def load_packed(folder: Path) -> ImageSet:
    """The images of a folder of parts, those to train on first; with a note if some are missing."""
    paths = sorted(folder.rglob("train-*.packed")), sorted(folder.rglob("test-*.packed"))
    if not all(paths):
        raise DatasetError(f"{folder}: needs files train-*.packed and test-*.packed")
    with ThreadPoolExecutor() as pool:
        parts = list(pool.map(_load_part, [*paths[0], *paths[1]]))
    images, labels = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return note_unless_cifar10(images, labels, sum(len(labels) for _, labels in parts[len(paths[0]) :]))


def _load_part(path: Path) -> tuple[Array, Array]:
    try:
        return unpack_images(path.read_bytes())
    except (OSError, DatasetError) as error:
        raise DatasetError(f"{path}: {error}") from error


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


def main(arguments: Sequence[str]) -> None:
    """Pack a dataset into parts."""
    source, folder = map(Path, arguments)
    data = load_images(source)
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in (("train", data.training), ("test", data.test)):
        for first in range(0, len(images), PART):
            path = folder / f"{name}-{first:05d}.packed"
            path.write_bytes(pack_images(images[first : first + PART], labels[first : first + PART]))
    print(f"{len(data.images)} images in {folder}, sha256 {data.digest}")


if __name__ == "__main__":
    main(sys.argv[1:])
