"""The name of a token, the same in every table, picture and command: A1 is the first token of the first input."""

from __future__ import annotations

import re

import numpy as np
from jaxtyping import Int, Shaped
from numpy import ndarray as Array


def input_name(i: int) -> str:
    """The letters of an input: A to Z, then AA, AB, as the columns of a spreadsheet.

    >>> [input_name(i) for i in (0, 25, 26, 702)]
    ['A', 'Z', 'AA', 'AAA']
    """
    letters = ""
    i += 1
    while i:
        i, last = divmod(i - 1, 26)
        letters = chr(65 + last) + letters
    return letters


def token_name(i: int, t: int) -> str:
    """The name of token `t` of input `i`, both counted from 0.

    >>> token_name(1, 0)
    'B1'
    """
    return f"{input_name(i)}{t + 1}"


def token_names(inputs: Int[Array, " k"], positions: Int[Array, " k"]) -> Shaped[Array, " k"]:
    """The names of many tokens.

    >>> token_names(np.array([0, 1]), np.array([2, 0])).tolist()
    ['A3', 'B1']
    """
    known = {i: input_name(i) for i in np.unique(inputs).tolist()}
    return np.array([f"{known[i]}{t + 1}" for i, t in zip(inputs.tolist(), positions.tolist(), strict=True)], dtype=str)


def parse_token(name: str) -> tuple[int, int]:
    """The input and the position that a name means, both counted from 0.

    >>> parse_token("b12")
    (1, 11)
    """
    found = re.fullmatch(r"([A-Za-z]{1,6})([1-9]\d{0,11})", name.strip())
    if found is None:
        raise ValueError(f"a token is named like A1 or B12 (letters of the input, number from 1), got {name!r}")
    i = 0
    for letter in found[1].upper():
        i = 26 * i + ord(letter) - 64
    return i - 1, int(found[2]) - 1
