"""From labelled texts to token ids. The steps are the choices of a `Pipeline`, which is kept with the result.

Lower case, stop words, stems and pieces depend on the word alone, so they are computed once for each distinct word and
then looked up for the whole corpus. Every token keeps the characters of the whole word it came from.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from tokenmargin._files import file_digest
from tokenmargin.data.prepared import PreparedText, Step
from tokenmargin.data.words import PUNCTUATION, Words, find_words

STOP_LISTS = ("none", "nltk")
STEMMERS = ("none", "english", "porter")


@dataclass(frozen=True)
class Pipeline:
    """The choices that turn text into tokens.

    **Arguments**
    - `markup`: whether tags and character references count as blanks.
    - `punctuation`: `split` or `join`, see `find_words`.
    - `stop_words`: `none`, `nltk` (the 179 English words of that list), or your own words.
    - `stemmer`: `none`, or Snowball's `english` (also called Porter 2) or `porter`.
    - `vocabulary`: a WordPiece vocabulary, one token per line, such as BERT's `vocab.txt`; without it tokens are words.
    - `minimum_count`: tokens that occur fewer times in the corpus are dropped.

    >>> Pipeline().describe()["stemmer"]
    'none'
    """

    markup: bool = True
    punctuation: str = "split"
    stop_words: str | tuple[str, ...] = "none"
    stemmer: str = "none"
    vocabulary: Path | None = None
    minimum_count: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.stop_words, str) and self.stop_words not in STOP_LISTS:
            raise ValueError(f"stop_words must be 'none', 'nltk' or a tuple of words, got {self.stop_words!r}")
        if self.punctuation not in PUNCTUATION:
            raise ValueError(f"punctuation must be 'split' or 'join', got {self.punctuation!r}")
        if self.stemmer not in STEMMERS:
            raise ValueError(f"stemmer must be 'none', 'english' or 'porter', got {self.stemmer!r}")
        if self.minimum_count < 1:
            raise ValueError(f"minimum_count must be at least 1, got {self.minimum_count}")

    def describe(self) -> dict[str, object]:
        """The choices as plain values; a vocabulary is named by its file and its checksum."""
        choices = asdict(self)
        if self.vocabulary is not None:
            choices["vocabulary"] = f"{Path(self.vocabulary).name} sha256:{file_digest(self.vocabulary)}"
        return choices


PLAIN = Pipeline(minimum_count=2)
"""Lower-case words seen at least twice."""

PAPER = Pipeline(stop_words="nltk", stemmer="english", minimum_count=50)
"""Paper A, appendix E: no markup, punctuation or stop words; stems; purged below 50. Add BERT's `vocabulary`."""


def prepare(
    texts: Sequence[str],
    labels: Sequence[int] | Array,
    pipeline: Pipeline = PLAIN,
    *,
    progress: Callable[[str], None] | None = None,
) -> PreparedText:
    """The tokens of labelled texts, with the characters each came from, and how many tokens each step left.

    Texts that are left without a token are dropped; `rows` says which texts remain.

    >>> found = prepare(["good, good film", "bad film"], [1, -1], Pipeline(minimum_count=2))
    >>> found.vocabulary, found.sequence(0).tolist(), found.spans(0).tolist()
    (('film', 'good'), [1, 1, 0], [[0, 4], [6, 10], [11, 15]])
    """
    tell = progress or (lambda step: None)
    labels = np.asarray(labels)
    if labels.shape != (len(texts),):
        raise ValueError(f"labels must be one number for each of the {len(texts)} texts, got shape {labels.shape}")
    if not np.isin(labels, (-1, 1)).all():
        raise ValueError(f"labels must be -1 or +1, got {labels[~np.isin(labels, (-1, 1))][0]}")
    tell("finding words")
    words = find_words(texts, punctuation=pipeline.punctuation, markup=pipeline.markup)
    counts = np.bincount(words.codes, minlength=len(words.distinct))
    chosen = choose_tokens([fold_word(word) for word in words.distinct], counts, pipeline, progress=tell)
    tell("numbering tokens")
    numbered = number_tokens(words, labels, chosen.pieces, {name: code for code, name in enumerate(chosen.vocabulary)})
    return replace(numbered, vocabulary=chosen.vocabulary, steps=chosen.steps, choices=pipeline.describe())


@dataclass(frozen=True, eq=False)
class ChosenTokens:
    """The distinct words of some texts as tokens, and the vocabulary of those that are kept.

    **Attributes**
    - `pieces`: the tokens of each word.
    - `vocabulary`: the tokens that are kept, the most frequent first, equally frequent ones by name.
    - `steps`: what each step did to the number of tokens.
    """

    pieces: list[list[str]]
    vocabulary: tuple[str, ...]
    steps: tuple[Step, ...]


def choose_tokens(
    lower: list[str], counts: Array, pipeline: Pipeline, *, progress: Callable[[str], None] | None = None
) -> ChosenTokens:
    """Turn words in lower case into tokens, and keep the tokens that occur often enough; `counts` are of the words."""
    tell = progress or (lambda step: None)
    tell("cutting words into tokens")
    seen = [("words", int(counts.sum()), len(set(lower)))]  # name, tokens and distinct tokens of every step so far
    pieces = _as_pieces(lower)
    for name, pieces in _cutting_steps(lower, pipeline):
        lengths = np.array([len(parts) for parts in pieces], np.int64)
        seen.append((name, int(counts @ lengths), len({piece for parts in pieces for piece in parts})))
    tell("counting")
    names = sorted({piece for parts in pieces for piece in parts})
    code_of = {name: code for code, name in enumerate(names)}
    totals = np.zeros(len(names), np.int64)
    flat = np.array([code_of[piece] for parts in pieces for piece in parts], np.int32)
    np.add.at(totals, flat, np.repeat(counts, [len(parts) for parts in pieces]))
    order = np.lexsort((np.arange(len(names)), -totals))
    order = order[totals[order] >= pipeline.minimum_count]
    seen.append((f"seen at least {pipeline.minimum_count} times", int(totals[order].sum()), len(order)))
    steps = tuple(Step(now[0], was[1], now[1], was[2], now[2]) for was, now in pairwise([seen[0], *seen]))
    return ChosenTokens(pieces, tuple(names[code] for code in order), steps)


def no_token_left(steps: Sequence[Step], pipeline: Pipeline) -> str:
    """The message about a preparation that leaves no token."""
    counts = ", ".join(f"{step.after} after {step.name}" for step in steps[:-1])
    return (
        f"no token is left: none is seen at least {pipeline.minimum_count} times ({counts}); "
        "give more text, or a smaller minimum_count (--minimum-count)"
    )


def cut_words(lower: list[str], pipeline: Pipeline) -> list[list[str]]:
    """The tokens of each word in lower case, whether or not the vocabulary keeps them; none for a stop word.

    >>> cut_words(["the", "walking"], Pipeline(stop_words="nltk", stemmer="english"))
    [[], ['walk']]
    """
    return [_as_pieces(lower), *(pieces for _, pieces in _cutting_steps(lower, pipeline))][-1]


def pieces_in_texts(codes: Int[Array, " words"], lengths: Int[Array, " distinct"]) -> tuple[Array, Array]:
    """For words that are cut into pieces: the row of every piece of a text among the pieces of all distinct words, end
    to end, and how many pieces each word of the text has.

    **Arguments**
    - `codes`: the distinct word of each word. `lengths`: how many pieces each distinct word has.
    """
    # The pieces of distinct word w stand from first[w] on. Each word of a text is replaced by that run: `repeats`
    # entries, of which `within` counts from 0.
    first, repeats = np.cumsum(lengths) - lengths, lengths[codes]
    within = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return np.repeat(first[codes], repeats) + within, repeats


def number_tokens(words: Words, labels: Array, pieces: list[list[str]], rank: Mapping[str, int]) -> PreparedText:
    """The token ids of texts, given their words, the tokens of each distinct word, and the ids of the tokens kept."""
    flat = np.array([rank.get(piece, -1) for parts in pieces for piece in parts], np.int32)
    at, repeats = pieces_in_texts(words.codes, np.array([len(parts) for parts in pieces], np.int64))
    ids = flat[at]
    kept = ids >= 0
    # A text begins where its first word's pieces do, less the pieces dropped before; texts left empty are dropped.
    before = np.concatenate([[0], np.cumsum(repeats)])
    offsets = np.concatenate([[0], np.cumsum(kept)])[before[words.offsets]]
    rows = np.flatnonzero(np.diff(offsets))
    return PreparedText(
        ids=ids[kept],
        offsets=np.append(offsets[rows], offsets[-1]),
        labels=labels[rows].astype(np.int8),
        vocabulary=(),
        starts=np.repeat(words.starts, repeats)[kept],
        ends=np.repeat(words.ends, repeats)[kept],
        rows=rows,
    )


def fold_word(word: str) -> str:
    """Lower case without accents, as BERT's uncased vocabulary expects.

    >>> fold_word("Café")
    'cafe'
    """
    word = word.lower()
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")


def _stop_words(pipeline: Pipeline) -> frozenset[str]:
    """The words to drop, spelled as the pipeline spells words."""
    if pipeline.stop_words == "none":
        return frozenset()
    if pipeline.stop_words == "nltk":
        from bm25s.stopwords import STOPWORDS_EN_PLUS

        stops = tuple(STOPWORDS_EN_PLUS)
    else:
        stops = tuple(pipeline.stop_words)
    found = find_words(stops, punctuation=pipeline.punctuation, markup=False)
    return frozenset(fold_word(word) for word in found.distinct)


def _as_pieces(words: list[str]) -> list[list[str]]:
    return [[word] if word else [] for word in words]


def _cutting_steps(lower: list[str], pipeline: Pipeline) -> Iterator[tuple[str, list[list[str]]]]:
    """Each step that the pipeline asks for: its name, and what the distinct words are after it."""
    words = lower
    if stops := _stop_words(pipeline):
        given = pipeline.stop_words
        words = ["" if word in stops else word for word in words]
        yield f"stop words ({given if isinstance(given, str) else f'{len(given)} given'})", _as_pieces(words)
    if pipeline.stemmer != "none":
        import Stemmer

        words = Stemmer.Stemmer(pipeline.stemmer).stemWords(words)
        yield f"stems ({pipeline.stemmer})", _as_pieces(words)
    if pipeline.vocabulary is not None:
        yield f"WordPiece ({Path(pipeline.vocabulary).name})", _cut_by_vocabulary(words, Path(pipeline.vocabulary))


def _cut_by_vocabulary(words: list[str], vocabulary: Path) -> list[list[str]]:
    """The WordPieces of each word."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer

    lines = vocabulary.read_text(encoding="utf-8").split("\n")
    ids = {token.rstrip("\r"): number for number, token in enumerate(lines) if token}
    if "[UNK]" not in ids:
        raise ValueError(f"{vocabulary}: a WordPiece vocabulary has a line [UNK], this one has none")
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(lowercase=True), BertPreTokenizer()
    distinct = sorted({*words} - {""})
    encoded = tokenizer.encode_batch_fast(distinct, add_special_tokens=False)
    cut = {word: [lines[i].rstrip("\r") for i in coding.ids] for word, coding in zip(distinct, encoded, strict=True)}
    return [cut.get(word, []) for word in words]
