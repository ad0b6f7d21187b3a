"""What a trained model selects, by plain numpy, and the problem that its embeddings pose."""

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array

from tokenmargin.problem.corpus import TokenCorpus
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.token_problem import TokenProblem
from tokenmargin.training.parameters import State


def selected(logits: Float[Array, " m"], corpus: TokenCorpus) -> Int[Array, " n"]:
    """The token of largest logit `<E_s, p>` in each sequence; the first of them when there are several."""
    values = logits[corpus.tokens]
    begin = np.concatenate([[0], np.cumsum(corpus.lengths)[:-1]])
    best = np.repeat(np.maximum.reduceat(values, begin), corpus.lengths)
    place = np.flatnonzero(values == best)
    _, first = np.unique(corpus.sequence[place], return_index=True)
    return corpus.tokens[place[first]]


def as_problem(state: State, corpus: TokenCorpus, rows: Int[Array, " r"]) -> TokenProblem:
    """Some sequences with the trained embeddings as a TokenProblem: keys and values E, head v. The parameter is p."""
    geometry = Coordinates(state.embeddings.detach().cpu().double().numpy(), corpus.index[rows], corpus.mask[rows])
    return TokenProblem(geometry, corpus.labels[rows], head=state.head.detach().cpu().double().numpy())
