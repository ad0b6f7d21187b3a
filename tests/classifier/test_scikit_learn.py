"""scikit-learn's own checks of estimators, all of them, through its own machinery.

They feed tables of numbers. An estimator of texts says by its tags that it takes none, and scikit-learn then has
nothing to feed it. So the checks run on the classifier behind a translation: a row of numbers becomes the list of the
thresholds that each column exceeds. What is tested is the classifier's own fit, predict, parameters, cloning, pickling,
weights and messages; only the validation of the table is scikit-learn's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import check_is_fitted, validate_data

from tokenmargin.classifier import TokenSelectionClassifier

THRESHOLDS = np.arange(-3, 3.01, 0.25)


class OfNumbers(TokenSelectionClassifier):
    """The classifier on tables of numbers."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = False
        tags.input_tags.two_d_array = True
        return tags

    @property
    def transform(self):
        """Hidden: the checks of transformers expect columns of the table, and these are tokens."""
        raise AttributeError("transform")

    def fit(self, X, y, sample_weight=None):
        if hasattr(self, "_translated"):  # called by the first partial_fit
            return super().fit(X, y, sample_weight)
        X, y = validate_data(self, X, y)
        return super().fit(as_tokens(X), y, sample_weight)

    def partial_fit(self, X, y, classes=None):
        X, y = validate_data(self, X, y, reset=not hasattr(self, "n_features_in_"))
        self._translated = True
        try:
            return super().partial_fit(as_tokens(X), y, classes)
        finally:
            del self._translated

    def decision_function(self, X):
        return super().decision_function(tokens_of(self, X))

    def predict_proba(self, X):
        return super().predict_proba(tokens_of(self, X))

    def predict(self, X):
        return super().predict(tokens_of(self, X))


def tokens_of(estimator, X):
    check_is_fitted(estimator)
    return as_tokens(validate_data(estimator, X, reset=False))


def as_tokens(X):
    names = np.array([[f"{column}>{threshold}" for threshold in THRESHOLDS] for column in range(X.shape[1])])
    return [names[row].tolist() for row in X[:, :, None] > THRESHOLDS]


def of_other_arrays(check) -> bool:
    return check.func.__name__ == "check_array_api_input"


def name_of(part) -> str:
    """A check by its function, an estimator by its class."""
    return getattr(getattr(part, "func", part), "__name__", type(part).__name__)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # scikit-learn says that it cannot feed numbers to an estimator of texts
    estimators = (TokenSelectionClassifier(), OfNumbers(), OfNumbers(validation_fraction=0.0))
    checks = [found for estimator in estimators for found in estimator_checks_generator(estimator)]


@pytest.mark.parametrize(("estimator", "check"), checks, ids=name_of)
def test_scikit_learn(estimator, check):
    if of_other_arrays(check) and "SCIPY_ARRAY_API" not in os.environ:
        check = by_another_process
    check(estimator)


def by_another_process(estimator) -> None:
    """scipy decides whether it takes other arrays when it is imported: the same check, in a process of its own."""
    program = "from tests.classifier.test_scikit_learn import run; run({!r}, {!r})"
    arguments = type(estimator).__name__, estimator.get_params()
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program.format(*arguments)],
        env={**os.environ, "SCIPY_ARRAY_API": "1"},
        cwd=Path(__file__).parents[2],
        check=True,
    )


def run(name: str, parameters: dict) -> None:
    """The checks of other arrays, for the other process."""
    estimator = {"OfNumbers": OfNumbers, "TokenSelectionClassifier": TokenSelectionClassifier}[name](**parameters)
    found = [check for one, check in estimator_checks_generator(estimator) if of_other_arrays(check)]
    assert found
    for check in found:
        check(estimator)
