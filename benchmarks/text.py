"""The text pipeline on a corpus: `python -m benchmarks.text reviews.parquet [--vocabulary vocab.txt]`.

Time, memory, and what each step did, beside a plain script (one regular expression and one dictionary look-up per word,
without offsets) that does the same steps.
"""

from __future__ import annotations

import re
import resource
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

from benchmarks.tools import run_main
from tokenmargin.data.pipeline import PAPER, prepare
from tokenmargin.data.sources import binary_labels, read_labelled


def plain_script(texts: list[str], vocabulary: Path | None) -> int:
    """The same steps word by word; the number of tokens it keeps."""
    import Stemmer
    from bm25s.stopwords import STOPWORDS_EN_PLUS
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import WhitespaceSplit

    stops = {part for word in STOPWORDS_EN_PLUS for part in re.findall(r"\w+", word)}
    stemmer, markup, word = Stemmer.Stemmer("english"), re.compile(r"<[^<>]+>|&\w+;"), re.compile(r"[^\W_]+")
    stemmed = []
    for text in texts:
        words = [found for found in word.findall(markup.sub(" ", text).lower()) if found not in stops]
        stemmed.append(stemmer.stemWords(words))
    if vocabulary is None:
        tokens = stemmed
    else:
        ids = {line: number for number, line in enumerate(vocabulary.read_text(encoding="utf-8").split("\n")) if line}
        tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        encoded = tokenizer.encode_batch([" ".join(words) for words in stemmed], add_special_tokens=False)
        tokens = [coding.tokens for coding in encoded]
    counts = Counter(token for row in tokens for token in row)
    return sum(count for count in counts.values() if count >= PAPER.minimum_count)


def main(source: str, /, *, vocabulary: Path | None = None) -> None:
    """The source is labelled text, in any form that `tokenmargin prepare` reads."""
    table = read_labelled(source)
    labels = binary_labels(table.labels)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    prepared = prepare(table.texts, labels, replace(PAPER, vocabulary=vocabulary))
    ours = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"{'step':32} {'tokens before':>14} {'after':>12} {'distinct':>10}")
    for step in prepared.steps:
        print(f"{step.name:32} {step.before:14,} {step.after:12,} {step.distinct_after:10,}")
    memory = f"peak memory {peak / 1e6:.2f} GB, {base / 1e6:.2f} GB before"
    print(f"{prepared.n} texts, with offsets: {ours:.1f} s, {memory}")
    begun = time.perf_counter()
    kept = plain_script(table.texts, vocabulary)
    print(f"plain script, without offsets: {time.perf_counter() - begun:.1f} s, {kept:,} tokens")


if __name__ == "__main__":
    run_main(main, __doc__)
