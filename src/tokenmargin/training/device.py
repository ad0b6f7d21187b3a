"""Where to compute: on the GPU that torch sees, or on the processor."""

from __future__ import annotations

import torch


def choose_device(name: str = "auto") -> str:
    """`cpu` or `cuda`; `auto` takes a GPU where there is one.

    >>> choose_device("cpu")
    'cpu'
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name}: torch sees no GPU here; use cpu or auto")
    return name
