"""TokenSelectionClassifier: softmax attention over the tokens of a text, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from tokenmargin.classifier.attribution import attribute, in_chunks, join_attributions
from tokenmargin.classifier.evaluation import Validation, split_held_out, validate
from tokenmargin.classifier.explanation import Explanations
from tokenmargin.classifier.importance import TokenStatistics, TokenTable, token_statistics, token_table
from tokenmargin.classifier.input_checks import check_documents, check_labels
from tokenmargin.classifier.solver import Penalty, TokenObjective, fit_token_model, start_model
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import Tokenizer, join_tokens, read_tokens
from tokenmargin.classifier.vocabulary import Encoded, Vocabulary

__all__ = ["TokenSelectionClassifier"]

ITERATIONS_AFTER_CHECK = 6  # on all texts, from the answer on those not held out


@dataclass(frozen=True, eq=False)
class _Labelled:
    """Which text holds which token, the class of each text (of `k`), and as how many texts it counts."""

    presence: sp.csr_matrix
    codes: Int[Array, " n"]
    weight: Float[Array, " n"]
    k: int

    def part(self, rows: Array) -> _Labelled:
        """Some of the texts."""
        return _Labelled(self.presence[rows], self.codes[rows], self.weight[rows], self.k)


LONGEST_NGRAM = 100


class TokenSelectionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """Classify texts by softmax attention over their tokens, and say which tokens decided.

    The decision on a text is `f = sum_s softmax(a)_s b_s` over its distinct tokens and a sink. It depends on embeddings
    E, prompt p and head v through `a = <E, p>` and `b = <E, v>` alone, and these are trained. Two classes share one
    column of values; more share the attention and have a column each, with a multinomial loss.

    **Arguments**
    - `tokenizer`: `words` (lower case; single characters of scripts without blanks), `paper` (stop words dropped,
        stems), a callable from a text to a list of strings, or a Hugging Face `tokenizers.Tokenizer`. Lists of tokens
        are taken as they are.
    - `ngrams`: the longest n-gram that is a token.
    - `min_count`: how often a word must occur to be known; n-grams must occur twice, and at least `min_count` times.
    - `attention`: `learned`, or `uniform` (equal for all tokens: the baseline to compare with).
    - `logit_penalty`, `value_penalty`: ridges that hold the attention to its naive Bayes start and the values to zero,
        beside the sum of the losses of all texts.
    - `max_iter`, `tol`: iterations of L-BFGS, and the change of the loss at which it stops.
    - `class_weight`: None, `balanced`, or a dictionary from class to weight.
    - `validation_fraction`: the part held out to measure accuracy (`validation_`) first; 0 for none.
    - `warm_start`: keep the vocabulary of the last fit and go on from its answer.
    - `random_state`: chooses the texts held out.
    - `progress`: called with the iteration and the loss.

    **Attributes**: `classes_`, `vocabulary_`, `token_model_`, `n_iter_`, `loss_curve_`, `validation_`, `n_texts_`,
    `token_statistics_`, `token_importance_`.

    >>> texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    >>> model = TokenSelectionClassifier().fit(texts, ["good", "good", "bad", "bad"] * 5)
    >>> model.predict(["fine", "so dull"]).tolist(), model.explain(["a fine film"])[0].selected
    (['good', 'bad'], 'fine')
    """

    classes_: Array
    vocabulary_: Vocabulary
    token_model_: TokenModel
    token_statistics_: TokenStatistics

    def __init__(
        self,
        tokenizer: Tokenizer = "words",
        *,
        ngrams: int = 1,
        min_count: int = 2,
        attention: str = "learned",
        logit_penalty: float = 4.0,
        value_penalty: float = 4.0,
        max_iter: int = 100,
        tol: float = 1e-4,
        class_weight: str | dict[Any, float] | None = None,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        random_state: Any = None,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.ngrams = ngrams
        self.min_count = min_count
        self.attention = attention
        self.logit_penalty = logit_penalty
        self.value_penalty = value_penalty
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.random_state = random_state
        self.progress = progress

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TokenSelectionClassifier:
        """Learn from texts (or lists of tokens) and their labels; a text of weight 2 counts as two, of 0 as none."""
        self._check_settings()
        documents = check_documents(X)
        labels, weight = check_labels(y, sample_weight, len(documents))
        if not weight.all():
            documents = [document for document, kept in zip(documents, weight > 0, strict=True) if kept]
            labels, weight = labels[weight > 0], weight[weight > 0]
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"the labels hold one class only ({classes[0]!r}): a classifier needs texts of at least two classes"
            )
        again = self.warm_start and hasattr(self, "token_model_") and np.array_equal(self.classes_, classes)
        words = read_tokens(documents, self.tokenizer)
        if again:
            encoded = self.vocabulary_.encode(words)
        else:
            self.vocabulary_, encoded = Vocabulary.learn(
                words,
                ngrams=self.ngrams,
                minimum=self.min_count,
                minimum_gram=max(2, self.min_count),
                weight=None if sample_weight is None else weight,
            )
        self.classes_ = classes
        if self.class_weight is not None:
            weight = weight * compute_sample_weight(self.class_weight, labels)
            if not weight.sum() > 0:
                raise ValueError("class_weight gives every text the weight zero; one class needs a positive weight")
        data = _Labelled(encoded.presence(len(self.vocabulary_)), codes, weight, len(classes))
        with threadpool_limits(1, user_api="blas"):  # long thin vectors: more threads only wait for each other
            self._train(data, again)
        occurrences = encoded.occurrences(len(self.vocabulary_), codes, len(classes))
        self.n_texts_ = len(codes)
        self.token_statistics_ = token_statistics(data.presence, occurrences, codes, self.token_model_)
        self.__dict__.pop("token_importance_", None)
        return self

    def _train(self, data: _Labelled, again: bool) -> None:
        """Train on the texts not held out, judge on those held out, and go on with all."""
        held = split_held_out(data.codes, self.validation_fraction, check_random_state(self.random_state))
        n, iterations = float(data.weight.sum()), self.max_iter
        logit_penalty = np.inf if self.attention == "uniform" else self.logit_penalty / n
        penalty = Penalty(logit_penalty, self.value_penalty / n)
        change = getattr(self, "_change", None) if again else None
        losses: list[float] = []
        self.validation_: Validation | None = None
        if held is not None:
            found, change, losses = self._lower(data.part(~held), penalty, change, iterations)
            self.validation_ = validate(found.decide(data.presence[held]), data.codes[held], data.codes)
            iterations = min(ITERATIONS_AFTER_CHECK, iterations)
        self.token_model_, self._change, more = self._lower(data, penalty, change, iterations)
        self.loss_curve_ = losses + more
        self.n_iter_ = len(self.loss_curve_)

    def _lower(
        self, data: _Labelled, penalty: Penalty, change: TokenModel | None, iterations: int
    ) -> tuple[TokenModel, TokenModel, list[float]]:
        """The model after so many iterations, its change since the start that the ridge holds it to, and the losses."""
        uniform = self.attention == "uniform"
        origin = start_model(data.presence, data.codes, data.weight, data.k, uniform=uniform)
        objective = TokenObjective(data.presence, data.codes, data.weight, origin=origin, penalty=penalty)
        start = origin.with_change(change)
        found, losses = fit_token_model(
            objective, start, iterations=iterations, tolerance=self.tol, progress=self.progress
        )
        return found, found.change_since(origin), losses

    def _check_settings(self) -> None:
        for name, least in (("ngrams", 1), ("min_count", 1), ("max_iter", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.ngrams > LONGEST_NGRAM:
            raise ValueError(f"ngrams must be at most {LONGEST_NGRAM}, got {self.ngrams}: longer ones hardly repeat")
        if self.attention not in ("learned", "uniform"):
            raise ValueError(f"attention must be 'learned' or 'uniform', got {self.attention!r}")
        for name in ("logit_penalty", "value_penalty", "tol"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)!r}")
        if not 0 <= self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must be in [0, 1), got {self.validation_fraction!r}")

    def _encode(self, documents: Sequence[Any]) -> Encoded:
        return self.vocabulary_.encode(read_tokens(documents, self.tokenizer))

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self, "token_model_")
        m = len(self.vocabulary_)
        parts = in_chunks(check_documents(X), lambda chunk: self.token_model_.decide(self._encode(chunk).presence(m)))
        return np.concatenate(parts)

    def decision_function(self, X: Any) -> Array:
        """f for each text: positive for the second of two classes, else one column for each class."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict_proba(self, X: Any) -> Array:
        """Probability of each class."""
        return _probabilities(self._outputs(X))

    def predict(self, X: Any) -> Array:
        """The class of each text."""
        outputs = self._outputs(X)
        return self.classes_[_decided(outputs)]

    def explain(self, X: Any) -> Explanations:
        """Attention weight and contribution of every word, the selected token and its margin, for each text."""
        check_is_fitted(self, "token_model_")
        documents = check_documents(X)

        def work(chunk: Sequence[Any]) -> tuple[Array, dict[str, Array]]:
            return attribute(self._encode(chunk), self.token_model_)

        outputs, arrays = join_attributions(in_chunks(documents, work))
        decided = _decided(outputs)
        return Explanations(
            texts=[join_tokens(document) for document in documents],
            names=self.vocabulary_.names,
            labels=self.classes_[decided],
            probabilities=_probabilities(outputs)[np.arange(len(outputs)), decided],
            **arrays,
        )

    @cached_property
    def token_importance_(self) -> TokenTable:
        """All tokens, those with the largest part in the decisions first.

        Columns: `token`; `count` (texts that hold it); `occurrences`; `signed_frequency` (occurrences in texts of its
        class less those in others, over the occurrences of all tokens: (3) of paper A) and `posterior_difference` (the
        same over its own occurrences: (37)); `attention_logit` <E, p>; `value` <E, v>; `selected` (texts in which it
        has the largest logit); `attention` (mean weight over all texts); `contribution` (mean over all texts). With
        two classes its class is the second; with more, `class` names the one it speaks for most.
        """
        check_is_fitted(self, "token_model_")
        return token_table(self.vocabulary_.names, self.token_statistics_, self.token_model_, self.classes_)


def _probabilities(outputs: Array) -> Array:
    if outputs.shape[1] == 1:
        positive = expit(outputs[:, 0])
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(softmax(outputs, axis=1))


def _decided(outputs: Array) -> Array:
    return (outputs[:, 0] > 0).astype(int) if outputs.shape[1] == 1 else outputs.argmax(1)
