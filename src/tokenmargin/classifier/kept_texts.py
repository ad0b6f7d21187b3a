"""The texts that `partial_fit` has met: the token numbers of all, or of a random sample that does not grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import UInt64
from numpy import ndarray as Array

from tokenmargin.classifier.fitting import draw
from tokenmargin.classifier.solver import Labelled, join_labelled


@dataclass(frozen=True, eq=False)
class KeptTexts:
    """Texts, each once for each of its labels, and how many were met in all.

    A text has a random number that depends on what it says alone. Of more texts than may be kept, those of the smallest
    numbers are: a sample in which every distinct text has the same chance, whatever the order of the parts. One that is
    dropped never comes back, since the bound only falls; so the weights of those kept are those of all their copies.
    """

    data: Labelled
    chance: UInt64[Array, " n"]
    met: int

    @staticmethod
    def of(documents: Sequence[Any], data: Labelled, most: int | None) -> KeptTexts:
        """The texts of one part."""
        return KeptTexts(data, draw(documents, 0), len(documents))._thinned(most)

    def plus(self, other: KeptTexts, most: int | None) -> KeptTexts:
        """The texts of both parts, at most so many."""
        chance = np.concatenate([self.chance, other.chance])
        return KeptTexts(join_labelled([self.data, other.data]), chance, self.met + other.met)._thinned(most)

    def _thinned(self, most: int | None) -> KeptTexts:
        order = np.lexsort((self.data.codes, self.chance))
        chance, codes = self.chance[order], self.data.codes[order]
        new = np.ones(len(order), bool)
        new[1:] = (chance[1:] != chance[:-1]) | (codes[1:] != codes[:-1])
        first, number = order[new], np.cumsum(new) - 1
        weight = np.bincount(number, self.data.weight[order], len(first))
        rows = np.sort(first[:most])  # in the order in which they came
        place = np.empty(len(self.chance), np.int64)
        place[first] = np.arange(len(first))
        return replace(self, data=replace(self.data.part(rows), weight=weight[place[rows]]), chance=self.chance[rows])
