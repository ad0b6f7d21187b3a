"""Words that decide in one part only, planted and looked for; the report's command finds them."""

from __future__ import annotations

import csv

import numpy as np

from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.confined_tokens import confined_tokens, parts_by_length, parts_by_value
from tokenmargin.cli import main


def texts_of_two_shops(n, rng, *, planted=True):
    """Random words; `fine` tells the class everywhere. Planted: `asis` only in shop a, where it tells the class;
    `quick` tells it in shop b and nothing in a; `alpha` is a's own word, and a is mostly good: it tells the shop.
    """
    rows = []
    for _ in range(n):
        shop = "ab"[int(rng.integers(2))]
        good = rng.random() < (0.7 if shop == "a" else 0.3)
        words = [f"w{k}" for k in rng.integers(0, 40, 8)]
        words += ["fine"] * int(rng.random() < (0.6 if good else 0.2))
        if planted:
            words += ["asis"] * int(shop == "a" and rng.random() < (0.6 if good else 0.1))
            words += ["quick"] * int(rng.random() < ((0.7 if good else 0.1) if shop == "b" else 0.4))
            words += ["alpha"] * int(rng.random() < (0.8 if shop == "a" else 0.15))
        rows.append((" ".join(rng.permutation(words)), "good" if good else "bad", shop))
    return [list(column) for column in zip(*rows, strict=True)]


def found_in(texts, labels, shops):
    model = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    codes = np.searchsorted(model.classes_, labels)
    return {one.token: one for one in confined_tokens(model, texts, codes, parts_by_value("shop", shops))}


def test_planted_words_are_told_with_their_kind():
    texts, labels, shops = texts_of_two_shops(3000, np.random.default_rng(0))
    found = found_in(texts, labels, shops)
    assert {token: (one.kind, one.part) for token, one in found.items()} == {
        "asis": ("confined", "a"),
        "quick": ("one-sided", "b"),
        "alpha": ("gives away", "a"),
    }
    quick = found["quick"]
    here = [label == "good" for text, label, shop in zip(texts, labels, shops, strict=True)
            if shop == "b" and "quick" in text.split()]  # fmt: skip
    assert (quick.here.texts, quick.here.share) == (len(here), np.mean(here))
    assert quick.here.share - quick.here.without > 0.4
    assert abs(quick.elsewhere.share - quick.elsewhere.without) < 0.1
    assert found["asis"].elsewhere.texts == 0
    assert np.isnan(found["asis"].elsewhere.share)


def test_copies_are_no_evidence():
    """Thirty copies of one text say of its word no more than one."""
    texts = ["dull film"] * 30 + ["good good film"] * 30 + ["good film"] * 20
    labels, shops = ["bad"] * 30 + ["good"] * 50, ["a"] * 30 + ["b"] * 50
    assert found_in(texts, labels, shops) == {}


def test_nothing_is_told_where_nothing_is():
    """Forty words and no plant, five times: at 5% over all words few of five may tell one."""
    told = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        texts, labels, _ = texts_of_two_shops(300, rng, planted=False)
        told += bool(found_in(texts, labels, rng.permutation(["a", "b"] * 150).tolist()))
    assert told <= 2  # of five at 5% each: more has probability 0.001


def test_slices_of_columns_and_lengths():
    slices = parts_by_value("shop", ["a"] * 40 + ["b"] * 30 + ["c"] * 5 + [None, float("nan")])
    assert slices.names == ("a", "b", "others")
    assert np.bincount(slices.of).tolist() == [40, 30, 7]
    lengths = parts_by_length([" ".join(["w"] * (1 + k % 9)) for k in range(90)])
    assert np.bincount(lengths.of).tolist() == [30, 30, 30]
    assert lengths.names == ("up to 3 words", "up to 6 words", "over 6 words")
    assert parts_by_length(["one two"] * 9).names == ("up to 2 words",)
    three = TokenSelectionClassifier(random_state=0).fit(["x one", "y two", "z three"] * 40, ["p", "q", "r"] * 40)
    codes = np.tile([0, 1, 2], 40)
    assert confined_tokens(three, ["x one", "y two", "z three"] * 40, codes, parts_by_value("n", ["a"] * 120)) == []


def test_the_report_lists_them(tmp_path, capsys):
    columns = texts_of_two_shops(500, np.random.default_rng(1))
    path, page = tmp_path / "t.csv", tmp_path / "report.html"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "shop"])
        writer.writerows([*zip(*columns, strict=True), ("", "good", "a")])  # a row that is left out
    assert main(["fit", str(path), "--out", str(tmp_path / "m")]) == 0
    assert main(["report", str(tmp_path / "m"), str(path), "--slice", "shop", "--out", str(page)]) == 0
    html = page.read_text(encoding="utf-8")
    section = html.split('<section id="parts">')[1].split("</section>")[0]
    assert "Parts of the data, by shop" in section
    assert "<td>asis</td><td>stands only there</td><td>a</td><td>good</td>" in section
    assert main(["report", str(tmp_path / "m"), str(path), "--slice", "town", "--out", str(page)]) == 2
    assert "no column 'town' for --slice; it has 'text', 'label', 'shop'" in capsys.readouterr().err
