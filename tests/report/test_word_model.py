"""A classifier inside a page decides as the library does; a light folder and a bounded vocabulary keep it small."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks.explore_plane import NODE

from tokenmargin.classifier import TokenSelectionClassifier, load_model, save_model
from tokenmargin.classifier.what_if import decide_by_words
from tokenmargin.data.sentences import make_sentences
from tokenmargin.report.explore.page import EXAMPLE, STATIC
from tokenmargin.report.playground.server import SENTENCES
from tokenmargin.report.word_model import explore_model, page_model

ODD = [
    *(
        "",
        "and",
        "xqzt",
        "A DREADFUL, dreadful ferry!",
        "naïve ﬁne tidy's",
        "42 hotels",
        "tidy<br />deck &amp; hotel; <b>",
    ),
    *("#tidy 😀😀 deck", "a#tidy ##tidy #", "👩‍👩‍👧 👍🏽❤️ ferry", "ไม่ดี ferry", "日本 hotel 東京deck"),
]
SCRIPT = """
import { openModel, readWords, decideOn, abstains } from "%s";
const { model, texts } = JSON.parse(await new Response(process.stdin).text());
const open = openModel(model);
console.log(JSON.stringify(texts.map((text) => {
  const words = readWords(open, text), decision = decideOn(open, words);
  const characters = (at) => [...text.slice(0, at)].length;
  const cut = words.map(({ start, raw }) => [start, start + raw.length].map(characters));
  return { f: decision.f[0], silent: abstains(decision), cut };
})));
"""


def in_the_page(model: TokenSelectionClassifier, texts: list[str]) -> list[dict]:
    asked = json.dumps({"model": page_model(model), "texts": texts})
    command = [NODE, "--input-type=module", "-e", SCRIPT % (STATIC / "wordmodel.js").as_uri()]
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def rows() -> tuple[list[str], list[str]]:
    found = make_sentences(400, np.random.default_rng(3))
    return found.texts, found.labels


@pytest.mark.skipif(NODE is None, reason="node is not on the PATH: install Node.js 18 or newer")
@pytest.mark.parametrize(("exponent", "ngrams", "repeats"), [(1.0, 1, False), (0.5, 2, True), (0.0, 1, True)])
def test_a_page_decides_as_the_library(
    rows: tuple[list[str], list[str]], exponent: float, ngrams: int, repeats: bool
) -> None:
    texts, labels = rows
    model = TokenSelectionClassifier(exponent=exponent, ngrams=ngrams, repeats=repeats, random_state=0)
    model.fit(texts[:300], labels[:300])
    asked = [*texts[300:], *ODD]
    decisive = 0
    for text, page in zip(asked, in_the_page(model, asked), strict=True):
        ours = decide_by_words(model, text)
        told = sum(abs(word.contribution) for word in ours.words)
        # A number of 32 bits is wrong by 2^-24 of itself: a logit a moves its weight, and Z, by |a| 2^-24 each.
        slack = told * 2.0**-24 * (2 * float(np.abs(model.token_model_.logits).max()) + 2) + 1e-12
        assert page["f"] == pytest.approx(ours.output, abs=slack)
        assert page["cut"] == [[word.start, word.end] for word in ours.words]
        if abs(abs(ours.output - ours.start) - np.log(2)) > slack:
            assert page["silent"] == ours.abstains
        decisive += not ours.abstains
    assert 20 < decisive < len(asked)


def test_the_example_in_the_package_is_the_model_of_its_sentences() -> None:
    model = load_model(SENTENCES)
    kept = json.loads(EXAMPLE.read_text())
    made = explore_model(model, data="generated sentences, a small example")
    assert kept == json.loads(json.dumps(made))
    assert [decide_by_words(model, text).abstains for text in kept["examples"]] == [False, False, True]
    assert [one.abstains for one in model.explain(kept["examples"])] == [False, False, True]


def test_a_light_folder_decides_alike_and_says_what_it_lacks(rows: tuple[list[str], list[str]], tmp_path: Path) -> None:
    texts, labels = rows
    model = TokenSelectionClassifier(max_words=60, random_state=0).fit(texts, labels)
    whole, light = (
        load_model(save_model(model, tmp_path / name, light=name == "light")) for name in ("whole", "light")
    )
    assert len(light.vocabulary_) == 60
    assert light.max_words == 60
    f = whole.decision_function(texts)
    told = np.asarray(abs(whole.transform(texts)).sum(1)).ravel()
    slack = told * 2.0**-24 * (2 * np.abs(model.token_model_.logits).max() + 2) + 1e-12
    assert (np.abs(light.decision_function(texts) - f) <= slack).all()
    assert whole.token_importance_ is not None
    with pytest.raises(AttributeError, match="without --light"):
        _ = light.token_importance_
    bytes_of = {name: (tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "light")}
    assert bytes_of["light"] < bytes_of["whole"] / 4


def test_the_most_frequent_words_are_kept() -> None:
    texts = ["b b a c"] * 3 + ["b a d"] * 2
    model = TokenSelectionClassifier(max_words=2, min_count=1).fit(texts, [0, 1, 0, 1, 1])
    assert model.vocabulary_.words == ("a", "b")
    with pytest.raises(ValueError, match="max_words must be None or a whole number"):
        TokenSelectionClassifier(max_words=0).fit(texts, [0, 1, 0, 1, 1])


@pytest.mark.skipif(NODE is None, reason="node is not on the PATH: install Node.js 18 or newer")
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([], "No word of this sentence is known to the model."),
        ([3.0, -2.9], "Undecided: “0” and “1” cancel."),
        ([3.0, -2.9, 0.1], "Undecided: “0”, “1” and the others cancel."),
        ([0.1, -0.2], "No word here that decides: together they do not even double the odds."),
    ],
)
def test_an_undecided_sentence_names_what_cancels_and_no_others(parts: list[float], words: str) -> None:
    tokens = json.dumps([{"name": str(k), "parts": [part]} for k, part in enumerate(parts)])
    place = (STATIC / "wordmodel.js").as_uri()
    script = f'import {{ abstainWords }} from "{place}"; console.log(abstainWords({{ tokens: {tokens} }}, ["a"]));'
    done = subprocess.run([NODE, "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == words
