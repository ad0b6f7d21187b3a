"""Next-token problems: sequences of token ids, each with the token that comes next, for one layer of self-attention.

The last token of a sequence is the query, and the layer puts out a mixture of the sequence's own tokens:
`P(next = y) = sum over t with x_t = y of softmax(X W' z)_t`, z being the embedding of the last token. Training
minimises `-log P(next)`, which is convex in W. So the next token must be one of the sequence; where it is not, there is
nothing to attend to.

A priority graph tells, for every last token, which tokens came next although others could have. A sequence that ends in
k and is followed by y adds an edge from y to every other token of it, in the graph of k. Of two tokens on a cycle each
was preferred to the other at some time: they tie, and belong to one strongly connected component. The edges between
components are an order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array
from numpy.typing import ArrayLike

from tokenmargin._files import read_plain
from tokenmargin.problem.abstract_geometry import MaybeArray, as_array, check_finite, read_only
from tokenmargin.problem.corpus import FlatSequences
from tokenmargin.problem.geometry import Coordinates
from tokenmargin.problem.problem_files import ProblemFileError
from tokenmargin.problem.token_problem import TokenProblem


@dataclass(frozen=True, eq=False)
class PriorityGraph:
    """The graphs of all last tokens side by side: a node is a pair of a last token and a token.

    **Attributes**
    - `last`, `token`: of each node.
    - `source`, `target`: nodes of each edge: what came next, and what could have.
    - `count`: how many sequences draw the edge.
    - `component`: of each node; a component has nodes of one last token alone.
    - `vocabulary`: what the tokens stand for.
    """

    last: Int[Array, " nodes"]
    token: Int[Array, " nodes"]
    source: Int[Array, " edges"]
    target: Int[Array, " edges"]
    count: Int[Array, " edges"]
    component: Int[Array, " nodes"]
    vocabulary: tuple[str, ...]

    @classmethod
    def of(
        cls,
        tokens: Int[Array, " N"],
        sequence: Int[Array, " N"],
        last: Int[Array, " n"],
        labels: Int[Array, " n"],
        vocabulary: Sequence[str],
    ) -> PriorityGraph:
        """Collect the edges, merge equal ones, and find the strongly connected components."""
        from scipy.sparse import coo_array  # loaded where a graph needs it
        from scipy.sparse.csgraph import connected_components

        size = len(vocabulary)
        # Pairs are one number each, so that sorting finds equal ones: sequence and token, last token and token (a
        # node), source and target (an edge). An edge counts once per sequence, however often the token occurs in it.
        once = _distinct(sequence * size + tokens)[0]
        row, codes = once // size, last[once // size] * size + once % size
        nodes, node = np.unique(codes, return_inverse=True)
        label = np.searchsorted(nodes, last * size + labels)[row]
        edges, count = _distinct((label * np.int64(len(nodes)) + node)[label != node])
        source, target = edges // len(nodes), edges % len(nodes)
        graph = coo_array((np.ones(len(edges), dtype=np.int8), (source, target)), shape=(len(nodes), len(nodes)))
        _, component = connected_components(graph, directed=True, connection="strong")
        return cls(nodes // size, nodes % size, source, target, count, component.astype(np.int64), tuple(vocabulary))

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.last)

    @property
    def codes(self) -> Int[Array, " nodes"]:
        """Last token and token of each node as one number, ascending."""
        return self.last * len(self.vocabulary) + self.token

    @cached_property
    def sizes(self) -> Int[Array, " components"]:
        """Number of tokens in each component."""
        return np.bincount(self.component)

    @property
    def is_acyclic(self) -> bool:
        """Whether no tokens tie: every component is a single token."""
        return bool((self.sizes == 1).all())

    @cached_property
    def order(self) -> Int[Array, "pairs 2"]:
        """Pairs of components, the first ahead of the second by an edge; each pair once."""
        above, below = self.component[self.source], self.component[self.target]
        apart = above != below
        pairs = _distinct(above[apart] * np.int64(len(self.sizes)) + below[apart])[0]
        return np.stack([pairs // len(self.sizes), pairs % len(self.sizes)], axis=1)

    @cached_property
    def tied(self) -> Int[Array, " edges"]:
        """The edges within a component."""
        return np.flatnonzero(self.component[self.source] == self.component[self.target])

    def graph_of(self, last: int) -> PriorityGraph:
        """The graph of one last token alone."""
        kept = np.flatnonzero(self.last == last)
        if not len(kept):
            raise ValueError(f"no sequence ends in {self.vocabulary[last]}: it has no graph")
        edges = np.flatnonzero(self.last[self.source] == last)
        place = np.full(self.nodes, -1)
        place[kept] = np.arange(len(kept))
        return PriorityGraph(
            self.last[kept], self.token[kept], place[self.source[edges]], place[self.target[edges]], self.count[edges],
            np.unique(self.component[kept], return_inverse=True)[1], self.vocabulary,
        )  # fmt: skip

    def components_of(self, last: int) -> list[list[int]]:
        """The components of a last token's graph as lists of tokens; those that nothing is ahead of come first."""
        graph = self.graph_of(last)
        ranks = graph.ranks
        order = sorted(range(len(graph.sizes)), key=lambda c: (ranks[c], -graph.sizes[c], c))
        return [graph.token[graph.component == c].tolist() for c in order]

    @cached_property
    def ranks(self) -> Int[Array, " components"]:
        """Length of the longest chain of components ahead of each: 0 for those that nothing is ahead of."""
        ranks = np.zeros(len(self.sizes), dtype=np.int64)
        above, below = self.order.T
        while len(above):
            longer = ranks.copy()
            np.maximum.at(longer, below, ranks[above] + 1)
            if (longer == ranks).all():
                break
            ranks = longer
        return ranks

    @cached_property
    def component_counts(self) -> Int[Array, " components"]:
        """The summed counts of the edges that lead from or to each component."""
        ends = (self.component[self.source], self.component[self.target])
        return sum((np.bincount(end, self.count, len(self.sizes)) for end in ends), np.zeros(len(self.sizes))).astype(
            int
        )

    def __repr__(self) -> str:
        cyclic = int((self.sizes > 1).sum())
        return (
            f"PriorityGraph({len(np.unique(self.last))} last tokens, {self.nodes} nodes, {len(self.source)} edges, "
            f"{len(self.sizes)} components, {cyclic} of several tokens)"
        )


def _distinct(codes: Int[Array, " k"]) -> tuple[Int[Array, " d"], Int[Array, " d"]]:
    """The distinct numbers in order, and how often each occurs; by sorting, which is fastest for millions of them."""
    ordered = np.sort(codes)
    first = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])[: len(ordered)])
    return ordered[first], np.diff(np.append(first, len(ordered)))


@dataclass(frozen=True, eq=False)
class NextTokenProblem(FlatSequences):
    """Sequences of token ids and their next tokens.

    **Arguments**
    - `tokens`: the ids of all sequences, end to end.
    - `lengths`: how many tokens each sequence has.
    - `labels`: the next token of each sequence, one of its own tokens.
    - `vocabulary`: what each id stands for.
    - `embeddings`: one row per token of the vocabulary. Without them tokens are orthonormal, as one-hot vectors are: W
      is then a table with one logit for every pair of last token and token, and each last token its own problem.

    >>> problem = NextTokenProblem.of([[1, 2, 0], [1, 2, 0], [2, 0]], [1, 2, 2])
    >>> problem.graph.components_of(0)  # 1 and 2 each come next where the other might: they tie, ahead of 0
    [[1, 2], [0]]
    """

    tokens: Int[Array, " N"]
    lengths: Int[Array, " n"]
    labels: Int[Array, " n"]
    vocabulary: tuple[str, ...]
    embeddings: Float[Array, "K d"] | None = None

    def __post_init__(self) -> None:
        tokens, lengths, labels = (
            as_array(name, getattr(self, name), np.int64) for name in ("tokens", "lengths", "labels")
        )
        if not len(lengths):
            raise ValueError("a next-token problem needs at least one sequence")
        if lengths.min() < 1:
            raise ValueError(f"sequence {int(lengths.argmin())} is empty: it has no last token; leave it out")
        if tokens.shape != (lengths.sum(),) or labels.shape != lengths.shape:
            raise ValueError(
                f"{len(lengths)} sequences of {lengths.sum()} tokens in all need as many next tokens and tokens, "
                f"got {labels.shape} and {tokens.shape}"
            )
        for name, ids in (("tokens", tokens), ("next tokens", labels)):
            if ids.min() < 0 or ids.max() >= self.size:
                raise ValueError(
                    f"{name} must lie in 0..{self.size - 1} (the vocabulary), got {ids.min()}..{ids.max()}"
                )
        for name, array in (("tokens", tokens), ("lengths", lengths), ("labels", labels)):
            object.__setattr__(self, name, read_only(array))
        self._check_labels()
        if self.embeddings is not None:
            object.__setattr__(self, "embeddings", self._checked_embeddings())

    def _check_labels(self) -> None:
        found = np.zeros(self.n, dtype=bool)
        found[self.sequence[self.tokens == self.labels[self.sequence]]] = True
        if not found.all():
            i = int(found.argmin())
            raise ValueError(
                f"sequence {i}: its next token {self.vocabulary[self.labels[i]]} is not one of its tokens, so "
                "attention cannot put it out; leave the sequence out"
            )

    def _checked_embeddings(self) -> Float[Array, "K d"]:
        rows = np.array(self.embeddings, dtype=np.float64)
        if rows.ndim != 2 or len(rows) != self.size or rows.shape[1] < 1:
            raise ValueError(f"embeddings must have one row for each of {self.size} tokens, got shape {rows.shape}")
        check_finite("embeddings", rows)
        return read_only(rows)

    @classmethod
    def of(
        cls,
        sequences: Iterable[ArrayLike],
        labels: ArrayLike,
        *,
        embeddings: MaybeArray = None,
        vocabulary: Sequence[str] | None = None,
    ) -> NextTokenProblem:
        """From lists of ids; the vocabulary is as large as the largest id asks, or as the embeddings."""
        rows = [np.asarray(row, dtype=np.int64).ravel() for row in sequences]
        following = np.asarray(labels)
        if following.shape != (len(rows),) or (rows and following.dtype.kind not in "iu"):
            raise ValueError(
                f"{len(rows)} sequences need as many next tokens, integers, got {following.dtype} {following.shape}"
            )
        flat = np.concatenate([*rows, np.zeros(0, dtype=np.int64)])
        known = None if embeddings is None else np.asarray(embeddings, dtype=np.float64)
        if vocabulary is None:
            largest = int(np.concatenate([flat, following]).max(initial=-1))
            vocabulary = [str(k) for k in range(largest + 1 if known is None else len(known))]
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        return cls(flat, lengths, following.astype(np.int64), tuple(vocabulary), known)

    @cached_property
    def last(self) -> Int[Array, " n"]:
        """The last token of each sequence: the query."""
        return np.asarray(self.tokens[np.cumsum(self.lengths) - 1])

    @cached_property
    def graph(self) -> PriorityGraph:
        """The priority graphs of all last tokens."""
        return PriorityGraph.of(self.tokens, self.sequence, self.last, self.labels, self.vocabulary)

    @cached_property
    def label_node(self) -> Int[Array, " n"]:
        """The node of the graph that each sequence's next token is."""
        return np.searchsorted(self.graph.codes, self.last * self.size + self.labels)

    @cached_property
    def node(self) -> Int[Array, " N"]:
        """The node of the graph that each token is."""
        return np.searchsorted(self.graph.codes, self.last[self.sequence] * self.size + self.tokens)

    @cached_property
    def with_label(self) -> Bool[Array, " N"]:
        """Which tokens are on a cycle with the next token of their sequence, or are that token itself.

        The others are strictly behind it. What is left of a sequence without them, its last token still the query, is
        its part of the *cyclic subdataset*, where another token than the next one is left.

        >>> problem = NextTokenProblem.of([[1, 2, 0], [1, 2, 0], [2, 0]], [1, 2, 2])
        >>> problem.with_label.astype(int)
        array([1, 1, 0, 1, 1, 0, 1, 0])
        """
        component = self.graph.component
        return np.asarray(component[self.node] == component[self.label_node][self.sequence])

    @cached_property
    def cyclic(self) -> Bool[Array, " n"]:
        """Which sequences hold a token on a cycle with their next token: those of the cyclic subdataset."""
        other = self.with_label & (self.tokens != self.labels[self.sequence])
        return np.asarray(np.bincount(self.sequence[other], minlength=self.n) > 0)

    def attention(self, head: Float[Array, "K d"] | None = None) -> TokenProblem:
        """The same as a problem of training W, for flows and descents: scores are 1 for the next token, else 0.

        With `LogLoss` its risk is the mean of `-log P(next)`; a parameter is W flattened row by row, with logits
        `z' W x`. Without embeddings the tokens are unit vectors, so W is a table of K x K.

        **Arguments**
        - `head`: a row c_y for each token, which scores a token x of a sequence followed by y by `<c_y, x>` instead.
        """
        rows = np.eye(self.size) if self.embeddings is None else self.embeddings
        if head is None:
            scores = self.mask & (self.index == self.labels[:, None])
        elif np.shape(head) != rows.shape:
            raise ValueError(f"head must have the shape of the embeddings, {rows.shape}, got {np.shape(head)}")
        else:
            scores = np.where(self.mask, (np.asarray(head) @ rows.T)[self.labels[:, None], self.index], 0.0)
        keys = Coordinates(rows, self.index, self.mask)
        plain = TokenProblem(keys, np.ones(self.n), scores=scores.astype(float))
        return plain.with_matrix(rows[self.last])

    def __repr__(self) -> str:
        space = "orthonormal" if self.embeddings is None else f"d={self.embeddings.shape[1]}"
        return f"NextTokenProblem({self.n} sequences, vocabulary={self.size}, {space})"


def next_token_windows(
    tokens: Int[Array, " N"], lengths: Int[Array, " texts"], vocabulary: Sequence[str], *, window: int = 32
) -> NextTokenProblem:
    """Every position of every text, predicted from the (at most) `window` tokens before it.

    Positions whose token is not among them are left out: attention alone cannot put it out.

    >>> texts = np.array([0, 1, 0, 1, 2])
    >>> next_token_windows(texts, np.array([5]), "abc", window=2)  # a after ab, b after ba
    NextTokenProblem(2 sequences, vocabulary=3, orthonormal)
    """
    if window < 1:
        raise ValueError(f"window must be at least 1, got {window}")
    tokens, lengths = as_array("tokens", tokens, np.int64), as_array("lengths", lengths, np.int64)
    if lengths.ndim != 1 or (lengths < 0).any() or tokens.shape != (lengths.sum(),):
        raise ValueError(f"lengths must be the numbers of tokens of the texts, {tokens.shape} in all, got {lengths}")
    window = min(window, int(lengths.max(initial=1)))
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)  # where the text of each position begins
    places = np.arange(len(tokens))
    sizes = np.minimum(places - begins, window)  # how many tokens of its text are before it, at most `window`
    kept = np.zeros(len(tokens), dtype=bool)
    for back in range(1, window + 1):
        here = places[sizes >= back]
        kept[here] |= tokens[here] == tokens[here - back]
    kept = np.flatnonzero(kept)
    if not len(kept):
        raise ValueError(f"no token occurs among the {window} before it: there is nothing to predict; widen the window")
    sizes = sizes[kept]
    ends = np.cumsum(sizes)
    # The windows end to end: each begins `size` positions before its prediction and goes on one by one.
    flat = np.repeat(kept - sizes, sizes) + np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
    return NextTokenProblem(tokens[flat], sizes, tokens[kept], tuple(vocabulary))


def load_next_token(path: str | Path) -> NextTokenProblem:
    """Read `{"sequences": [[ids]], "next": [ids]}` from a .json file, with `vocabulary` and `embeddings` or not."""
    path = Path(path)
    try:
        fields = json.loads(read_plain(path))
    except FileNotFoundError as error:
        raise ProblemFileError(f"{path}: no such file") from error
    except (ValueError, RecursionError) as error:
        raise ProblemFileError(f"{path}: not valid JSON ({error})") from error
    known = {"sequences", "next", "vocabulary", "embeddings"}
    if not isinstance(fields, dict) or not {"sequences", "next"} <= set(fields) <= known:
        raise ProblemFileError(f"{path}: a next-token file is a JSON object with {', '.join(sorted(known))}")
    try:
        return NextTokenProblem.of(
            fields["sequences"],
            fields["next"],
            embeddings=fields.get("embeddings"),
            vocabulary=fields.get("vocabulary"),
        )
    except (TypeError, ValueError) as error:
        raise ProblemFileError(f"{path}: {error}") from error
