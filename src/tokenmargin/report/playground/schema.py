"""What the page may ask: every number finite and bounded, every list short, nothing else accepted."""

from __future__ import annotations

import math
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, field_validator, model_validator

from tokenmargin.objective.losses import loss_named
from tokenmargin.plugins import OWN, names
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem

MOST_INPUTS, MOST_TOKENS, MOST_CHARACTERS = 6, 10, 5000
LARGEST = 1000.0

Coordinate = Annotated[FiniteFloat, Field(ge=-LARGEST, le=LARGEST)]
Place = Annotated[int, Field(ge=0, lt=MOST_TOKENS)]


class Strict(BaseModel):
    """Unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class Token(Strict):
    """A key in the plane and its score `gamma = Y <v, x>`."""

    x: Coordinate
    y: Coordinate
    score: Coordinate


class Input(Strict):
    """The tokens of one input and its label."""

    label: Literal[-1, 1] = 1
    tokens: Annotated[list[Token], Field(min_length=1, max_length=MOST_TOKENS)]


class PlaneRequest(Strict):
    """A problem in the plane, how to train on it, and what is asked about it.

    - `start`: the prompt p that training starts from. The starts of the ring have its norm, so that ring and path
      agree; where it is zero, they have the norm `radius`.
    - `asked`: a selection to certify. `draft`: a quick picture, while something moves.
    """

    inputs: Annotated[list[Input], Field(min_length=1, max_length=MOST_INPUTS)]
    method: Literal["normalized", "descent", "flow"] = "normalized"
    loss: str = "logistic"
    trained: Literal["prompt", "both"] = "prompt"
    step: Annotated[FiniteFloat, Field(gt=0, le=10)] = 0.1
    steps: Annotated[int, Field(ge=1, le=1000)] = 200
    start: tuple[Coordinate, Coordinate] = (0.0, 0.0)
    head: tuple[Coordinate, Coordinate] = (0.0, 0.0)
    radius: Annotated[FiniteFloat, Field(gt=0, le=100)] = 2.0
    asked: Annotated[list[Place], Field(max_length=MOST_INPUTS)] | None = None
    draft: bool = False

    @field_validator("loss")
    @classmethod
    def _loss_is_known(cls, loss: str) -> str:
        if loss in OWN["losses"]:
            return loss
        if ":" in loss or loss not in names("losses"):  # a page may not name modules to import
            raise ValueError(f"the loss must be one of {', '.join(names('losses'))}")
        loss_named(loss)  # one that cannot be loaded is refused here, with the reason
        return loss

    @model_validator(mode="after")
    def _asked_tokens_exist(self) -> PlaneRequest:
        if self.asked is not None and (
            len(self.asked) != len(self.inputs)
            or any(place >= len(row.tokens) for place, row in zip(self.asked, self.inputs, strict=False))
        ):
            raise ValueError("asked must name one existing token of every input")
        return self

    @property
    def ring_norm(self) -> float:
        """The norm of the starts around the circle: that of the start itself."""
        return math.hypot(*self.start) or self.radius

    def problem(self) -> TokenProblem:
        """The problem as the library knows it; values are the keys, for training head and prompt together."""
        n, T = len(self.inputs), max(len(row.tokens) for row in self.inputs)
        keys, scores, mask = np.zeros((n, T, 2)), np.zeros((n, T)), np.zeros((n, T), dtype=bool)
        for i, row in enumerate(self.inputs):
            for t, token in enumerate(row.tokens):
                keys[i, t], scores[i, t], mask[i, t] = (token.x, token.y), token.score, True
        return TokenProblem.of(keys, [float(row.label) for row in self.inputs], scores=scores, mask=mask)


class TextRequest(Strict):
    """A text, and the numbers of the words to decide without."""

    text: Annotated[str, Field(max_length=MOST_CHARACTERS)]
    leave_out: Annotated[list[Annotated[int, Field(ge=0, lt=MOST_CHARACTERS)]], Field(max_length=MOST_CHARACTERS)] = []


def plane_inputs(problem: TokenProblem) -> list[Input]:
    """A problem of the library as inputs of the page; raises ValueError when it does not fit the plane."""
    keys = problem.keys
    if not isinstance(keys, Coordinates) or keys.dimension < 2 or keys.vectors[:, 2:].any():
        raise ValueError("the playground shows keys in the plane: d = 2, or zero beyond the second coordinate")
    if problem.n > MOST_INPUTS or problem.T > MOST_TOKENS:
        raise ValueError(
            f"the playground shows at most {MOST_INPUTS} inputs of {MOST_TOKENS} tokens, got {problem.n} of {problem.T}"
        )
    return [
        Input(
            label=1 if label > 0 else -1,
            tokens=[
                Token(x=float(key[0]), y=float(key[1]), score=float(score))
                for key, score, seen in zip(tokens, scores, mask, strict=True)
                if seen
            ],
        )
        for label, tokens, scores, mask in zip(problem.labels, keys.laid_out, problem.scores, problem.mask, strict=True)
    ]
