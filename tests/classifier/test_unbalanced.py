"""One text in a hundred: the defaults find them, and the report says how well that is known."""

from __future__ import annotations

import numpy as np
import pytest

from tokenmargin.classifier import TokenSelectionClassifier, load_model, save_model
from tokenmargin.classifier.fitting import validate

FILLER = [f"w{i}" for i in range(300)]


def letters(n, rng):
    """Texts of fifteen words; one in a hundred is bad and mostly says so, and a few good ones do as well."""
    bad = rng.random(n) < 0.01
    texts = []
    for rare in bad:
        words = rng.choice(FILLER, 15).tolist()
        if rng.random() < (0.9 if rare else 0.002):
            words[3] = str(rng.choice(["fraud", "scam", "swindle"])) if rare else "fraud"
        texts.append(" ".join(words))
    return texts, np.where(bad, "bad", "good")


@pytest.fixture(scope="module")
def fitted():
    return TokenSelectionClassifier(random_state=0).fit(*letters(5000, np.random.default_rng(1)))


def test_the_rare_class_is_found(fitted):
    texts, labels = letters(10_000, np.random.default_rng(2))
    decided = fitted.predict(texts)
    # What can be known: the three words are in 90% of the bad texts, and 0.2% of the good ones lie.
    assert (decided[labels == "bad"] == "bad").mean() > 0.8
    assert (labels[decided == "bad"] == "bad").mean() > 0.7
    assert set(fitted.token_importance_.head(3)["token"]) == {"fraud", "scam", "swindle"}


def test_the_report_speaks_of_the_rare_class(fitted, tmp_path):
    check = fitted.validation_
    assert check.signal
    assert check.rarest == 5  # a tenth of 48
    assert f"rarest class: {check.rarest_found:.0%} of its 5 held-out texts (95%: " in str(check)
    assert load_model(save_model(fitted, tmp_path / "model")).validation_ == check


def test_noise_is_called_noise():
    texts, labels = letters(3000, np.random.default_rng(1))
    model = TokenSelectionClassifier(random_state=0).fit(texts, np.random.default_rng(3).permutation(labels))
    assert "NO SIGNAL" in str(model.validation_)
    assert "0% of its 3 held-out texts" in str(model.validation_)
    assert (model.predict(texts) == "good").mean() > 0.99


def test_always_the_frequent_class_is_no_success():
    codes = np.repeat([0, 1], [990, 10])
    check = validate(np.full((1000, 1), -1.0), codes, codes)
    assert (check.accuracy, check.balanced_accuracy, check.rarest, check.rarest_found) == (0.99, 0.5, 10, 0.0)
    assert not check.signal
