"""Small ragged data for the training tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tokenmargin.training.batches import TokenData


def make_ragged(n: int = 37, m: int = 50, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> TokenData:
    """Ragged sequences with many repeated tokens and lengths from 1 on."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, n)
    ids = (m * rng.random(lengths.sum()) ** 2).astype(int)
    return TokenData.of(ids, np.append(0, lengths.cumsum()), rng.choice([-1, 1], n), m=m, dtype=dtype)


@pytest.fixture
def ragged() -> Callable[..., TokenData]:
    return make_ragged
