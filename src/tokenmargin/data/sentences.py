"""Generate labelled sentences, short reviews from a small grammar, for demonstrations and tests.

Most words say nothing about the label. A few opinion words do, with known strengths, so it is known which tokens a
trained model should select.
"""

from __future__ import annotations

import numpy as np

from tokenmargin._statistics import Rng, generator
from tokenmargin.data.sources import LabelledText

THINGS = {
    "kettle": ("handle", "lid", "spout", "switch"),
    "novel": ("plot", "ending", "narrator", "prose"),
    "hotel": ("lobby", "pillow", "view", "breakfast"),
    "bicycle": ("saddle", "chain", "brake", "bell"),
    "concert": ("drummer", "encore", "lighting", "crowd"),
    "garden": ("pond", "path", "hedge", "bench"),
    "bakery": ("crust", "counter", "queue", "coffee"),
    "ferry": ("deck", "captain", "cabin", "timetable"),
}
PLACES = (
    "in spring",
    "on a Tuesday",
    "after work",
    "near the harbour",
    "with my cousin",
    "at noon",
    "by train",
    "twice",
)
FILLERS = (
    "We went there {place}.",
    "My neighbour had told me about the {thing}.",
    "I looked at the {part} first, then at the {other}.",
    "The {part} is made of what you would expect.",
    "It was raining {place}, as it does.",
    "Somebody asked about the {part} and nobody answered.",
    "They say every {thing} has a {part}.",
)
VERDICTS = (
    "The {part} was {word}.",
    "I found the {other} {word}, {degree}.",
    "What a {word} {thing}!",
    "{degree}, the whole {thing} seemed {word} to me.",
)
DEGREES = ("honestly", "to be fair", "all in all", "in the end", "frankly")
OPINIONS = {
    "delightful": 0.98,
    "splendid": 0.95,
    "charming": 0.9,
    "reliable": 0.8,
    "tidy": 0.7,
    "ordinary": 0.5,
    "noisy": 0.3,
    "clumsy": 0.2,
    "dreary": 0.1,
    "shoddy": 0.05,
    "dreadful": 0.02,
}
"""Opinion words, each with the probability that a sentence with it is positive, other things being equal."""


def make_sentences(n: int, rng: Rng, *, sentences: int = 4, verdicts: int = 1) -> LabelledText:
    """Short reviews with labels -1 and +1: neutral sentences around `verdicts` of opinion.

    >>> made = make_sentences(2, np.random.default_rng(0), sentences=2)
    >>> len(made.texts), set(made.labels) <= {"-1", "1"}
    (2, True)
    """
    rng = generator(rng)
    if n < 1 or not 0 < verdicts <= sentences:
        raise ValueError(f"need n >= 1 and 0 < verdicts <= sentences, got n={n}, {verdicts} of {sentences}")
    words = list(OPINIONS)
    positive = np.array(list(OPINIONS.values()))
    law = {1: positive / positive.sum(), -1: (1 - positive) / (1 - positive).sum()}
    things = list(THINGS)
    texts, labels = [], []
    for _ in range(n):
        label = 1 if rng.random() < 0.5 else -1
        thing = things[rng.integers(len(things))]
        forms = [VERDICTS[rng.integers(len(VERDICTS))] for _ in range(verdicts)]
        forms += [FILLERS[rng.integers(len(FILLERS))] for _ in range(sentences - verdicts)]
        written = []
        for place in rng.permutation(len(forms)):
            part, other = rng.choice(THINGS[thing], 2, replace=False)
            sentence = forms[place].format(
                thing=thing,
                part=part,
                other=other,
                word=words[rng.choice(len(words), p=law[label])],
                place=PLACES[rng.integers(len(PLACES))],
                degree=DEGREES[rng.integers(len(DEGREES))],
            )
            written.append(sentence[0].upper() + sentence[1:])
        texts.append(" ".join(written))
        labels.append(str(label))
    return LabelledText(texts, labels)
