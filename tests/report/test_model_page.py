"""The report in a real browser: it renders without a network, and search, brush and download work."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from tokenmargin.classifier import TokenSelectionClassifier
from tokenmargin.classifier.confined_tokens import ConfinedToken, TokenShares, parts_by_length
from tokenmargin.classifier.evaluation import run_trust_tests
from tokenmargin.data.sentences import make_sentences
from tokenmargin.report.figures import save_figure
from tokenmargin.report.model_evidence import (
    PartsFound,
    compared_rows,
    example,
    in_plain_words,
    mix_ups,
    part_rows,
    sure_examples,
    trust_rows,
)
from tokenmargin.report.model_page import ModelReport, model_figures, write_model_report

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip


@pytest.fixture(scope="module")
def report():
    made = make_sentences(300, np.random.default_rng(0))
    texts = [*made.texts, "call 4711 zebra", "call 4711, zebra!", "</script><b>bold</b> dreadful"]
    labels = [*made.labels, "1", "1", "-1"]
    model = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    trust = run_trust_tests(model, texts, labels, rng=np.random.default_rng(0))
    told = ConfinedToken(
        "dreadful", "one-sided", "up to 9 words", "-1", TokenShares(9, 1.0, 0.4), TokenShares(20, 0.5, 0.5), 0.1
    )
    rare = ConfinedToken(
        "zebra", "confined", "up to 9 words", "1", TokenShares(2, 1.0, 0.5), TokenShares(0, np.nan, 0.5), 0.1
    )
    return ModelReport(
        model, trust, list(model.explain(texts[-4:])), labels[-4:], texts,
        parts=PartsFound(parts_by_length(texts), [told, rare]), provenance={"data": "sentences"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def page_path(report, tmp_path_factory):
    return write_model_report(report, tmp_path_factory.mktemp("report") / "report.html")


def test_one_file_and_no_address(page_path):
    text = page_path.read_text(encoding="utf-8")
    assert "http://" not in text
    assert "https://" not in text
    assert "<b>bold</b>" not in text
    assert [path.name for path in page_path.parent.iterdir()] == ["report.html"]


def test_no_texts(report, tmp_path):
    page = write_model_report(ModelReport(report.model, report.trust, private=True), tmp_path / "private.html")
    text = page.read_text(encoding="utf-8")
    assert "neighbour had told" not in text
    data = json.loads(text.split('id="model">')[1].split("</script>")[0])
    table = report.model.token_importance_
    counts = dict(zip(table["token"], table["count"], strict=True))
    tokens = data["tokens"].split("\n")
    assert 0 < len(tokens) < len(counts)
    assert all(counts[token] >= 10 and not any(c.isdigit() for c in token) for token in tokens)


def test_parts(report, page_path, tmp_path):
    """The texts and the right decisions of the parts add up; a rare word is not told where texts are private."""
    rows = part_rows(report.trust, report.parts)
    assert sum(int(row[1]) for row in rows) == len(report.texts)
    section = page_path.read_text(encoding="utf-8").split('<section id="parts">')[1].split("</section>")[0]
    assert "<td>100% of 9, without it 40%</td><td>50% of 20, without it 50%</td>" in section
    assert "<td>zebra</td>" in section
    private = ModelReport(report.model, report.trust, parts=report.parts, private=True)
    text = write_model_report(private, tmp_path / "private.html").read_text(encoding="utf-8")
    assert "<td>dreadful</td>" in text
    assert "<td>zebra</td>" not in text


def test_all_models_are_judged_on_the_same_texts(report):
    """The page's comparison: one split's accuracies, recomputed from the probabilities it keeps."""
    trust = report.trust
    held = trust.held
    assert [len(one.accuracies) for one in trust.models] == [3, 3, 3]
    right = held.probabilities.argmax(1) == held.truths
    # A share of counts, by one division.
    assert trust.models[0].accuracies[0] == pytest.approx(right.mean(), rel=1e-15, abs=0)
    assert held.confusion.trace() == right.sum()
    assert held.confusion.sum() == len(held.rows)
    gap, half = trust.models[0].lead_over(trust.models[2])
    # A mean of three differences of shares, or a difference of means.
    assert gap == pytest.approx(trust.models[0].accuracy - trust.models[2].accuracy, abs=1e-15)
    assert half >= 0
    assert not set(held.surest_errors(5)) & set(np.flatnonzero(right))


def test_copies_are_held_out_together_and_count_once():
    """Random labels on texts that stand many times, some with both labels: none is learned from and tested on."""
    rng = np.random.default_rng(2)
    some = [" ".join(rng.choice([f"w{k}" for k in range(9)], 4)) for _ in range(30)]
    rows = np.r_[np.repeat(np.arange(30), rng.integers(1, 9, 30)), np.arange(10)]
    texts, labels = [some[row] for row in rows], rng.integers(0, 2, len(rows)).astype(str)
    model = TokenSelectionClassifier(random_state=0).fit(texts, labels)
    for seed in range(3):
        trust = run_trust_tests(model, texts, labels, rng=np.random.default_rng(seed))
        held = [(texts[row], labels[row]) for row in trust.held.rows]
        assert len(held) == len(set(held)) > 0
        words = {text for text, _ in held}
        assert trust.held.model.n_texts_ == sum(text not in words for text in texts)
        assert sum(label == "0" for text, label in set(zip(texts, labels, strict=True)) if text in words) == (
            trust.held.confusion[0].sum()
        )
    two = ["good film"] * 20 + ["bad film"] * 20
    model = TokenSelectionClassifier().fit(two, ["x"] * 20 + ["y"] * 20)
    with pytest.raises(ValueError, match="2 distinct texts are too few"):
        run_trust_tests(model, two, ["x"] * 20 + ["y"] * 20, rng=rng)


def test_a_lead_of_five_texts_is_no_lead(report):
    """Splits that happen to agree have no spread; of ten texts a lead of five may be chance all the same."""
    ours, *_, usual = report.trust.models
    ours = replace(ours, accuracies=np.array([0.9, 0.9, 0.9]), texts=10)
    usual = replace(usual, accuracies=np.array([0.4, 0.4, 0.4]), texts=10)
    gap, half = ours.lead_over(usual)
    assert half == gap == 0.5
    told = in_plain_words(replace(report.trust, models=(ours, usual)), ("negative", "positive"))
    assert "level with the usual method" in told
    assert "that may be chance" in told
    many = replace(ours, texts=1000)
    told = in_plain_words(replace(report.trust, models=(many, usual)), ("negative", "positive"))
    assert "better than the usual method" in told
    absent = replace(usual, accuracies=np.full(3, np.nan), losses=np.full(3, np.nan))
    rows = compared_rows(replace(report.trust, models=(ours, absent)))
    assert rows[1][1] == "not fitted"
    assert "nan" not in str(rows)
    assert "nan" not in str(trust_rows(replace(report.trust, importance_agreement=np.nan)))


def test_words_for_uneven_and_for_many_classes(report):
    """The verdict tells of the rarest class where classes are uneven, and what is mixed up where there are many."""
    rng = np.random.default_rng(1)
    counts = np.array([[950, 10, 0], [4, 26, 0], [6, 0, 4]])
    truths, decided = (np.repeat(codes.ravel(), counts.ravel()) for codes in np.indices((3, 3)))
    said = np.full((len(truths), 3), 0.1)
    said[np.arange(len(truths)), decided] = 0.8
    held = replace(report.trust.held, truths=truths, probabilities=said, rows=rng.permutation(len(truths)))
    trust = replace(report.trust, held=held, majority=0.96)
    told = in_plain_words(trust, ("ham", "spam", "other"))
    assert "1,000 texts were kept aside" in told
    assert "Of the 10 texts of the rarest class, other, it found 4, and 4 of the 4 that it called so were." in told
    assert "rarest" not in in_plain_words(replace(trust, majority=0.5), ("ham", "spam", "other"))
    assert "NO SIGNAL" not in told
    guessed = replace(trust, held=replace(held, probabilities=rng.permutation(said)))
    assert "NO SIGNAL: this is not distinguishable from guessing" in in_plain_words(guessed, ("ham", "spam", "other"))
    assert mix_ups(trust, ("ham", "spam", "other")) == [
        "10 of 960 texts of ham were taken for spam",
        "6 of 10 texts of other were taken for ham",
        "4 of 30 texts of spam were taken for ham",
    ]
    assert mix_ups(report.trust, ("negative", "positive")) == []


def test_a_long_text_is_cut_to_what_it_says(report):
    filler = "We went there by train. " * 60
    text = f"{filler}<br />What a dreadful ferry &amp; cabin! {filler}"
    shown = example(report.model.explain([text])[0], "-1", {"-1": "bad", "1": "good"})
    said = "".join(part["text"] for part in shown["parts"])
    assert "What a dreadful ferry & cabin" in said
    assert said.startswith("\u2026 ")
    assert said.endswith(" \u2026")
    assert sum("note" in part for part in shown["parts"]) == 90
    short = example(report.model.explain(["A <i>tidy</i> deck"])[0], "1", {"-1": "bad", "1": "good"})
    assert "".join(part["text"] for part in short["parts"]).split() == ["A", "tidy", "deck"]


def test_three_texts_are_lit_though_all_are_long(report):
    texts = [f"{text} " + "We went there by train. " * 30 for text in report.texts]
    assert len(sure_examples(report.trust, texts)) == 3


def test_deletion_beats_chance(report):
    deletion = report.trust.deletion
    assert deletion.top[0] == deletion.random[0] == 1.0
    assert (deletion.top[1:] < deletion.random[1:] - 0.1).all()


def test_figures(report, tmp_path):
    for name, figure in model_figures(report).items():
        assert all(path.stat().st_size > 0 for path in save_figure(figure, tmp_path, name))


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as session:
        running = session.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1100), ("dark", 1100), ("light", 390)])
def test_in_a_browser(browser, report, page_path, scheme, width):
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True)
    page, complaints = context.new_page(), []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    rows = page.locator("#tokens tbody tr")
    page.fill("#search", "dreadful")
    assert rows.count() == 1
    assert rows.first.inner_text().startswith("dreadful")
    assert page.locator("#map circle.hit").count() == 2  # the same token in both plots
    page.click("#clear")
    page.fill("#typed", "A dreadful, dreadful #late day")
    said = page.locator("#typed-bars span").all_inner_texts()
    chance = report.model.predict_proba(["A dreadful, dreadful #late day"])[0].max()
    # Seven digits of each number are in the page, and one after the point of a percentage is shown.
    assert float(said[1].rstrip("%")) == pytest.approx(100 * chance, abs=0.051)
    page.locator("#typed-words mark").nth(1).click()
    page.locator("#typed-words mark").nth(2).click()
    assert page.locator("#typed-bars span").nth(1).inner_text() != said[1]
    page.locator("#map svg").first.scroll_into_view_if_needed()
    box = page.locator("#map svg").first.bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 0.8 * box["height"], steps=4)
    page.mouse.up()
    shown = page.locator("#shown").inner_text()
    assert 0 < int(shown.split()[0]) < int(shown.split()[2])
    with page.expect_download() as download:
        page.click("#csv")
    content = download.value.path().read_text(encoding="utf-8").splitlines()
    assert content[0].startswith("token,texts")
    assert len(content) == 1 + int(shown.split()[0])
    assert complaints == []
    context.close()
