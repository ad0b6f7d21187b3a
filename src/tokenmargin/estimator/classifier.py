"""TokenSelectionClassifier: softmax attention over the tokens of a text, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy import ndarray as Array
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from tokenmargin.estimator.attribution import attribute, in_chunks, join_attributions
from tokenmargin.estimator.documents import check_documents, check_labels
from tokenmargin.estimator.encoder import Encoded, Vocabulary
from tokenmargin.estimator.explanation import Explanations
from tokenmargin.estimator.importance import TokenTable, token_statistics
from tokenmargin.estimator.solver import Penalty, decide, fit_weights, start_weights
from tokenmargin.estimator.tokenizers import Tokenizer, join_tokens, read_tokens
from tokenmargin.estimator.validation import Validation, split_held_out, validate
from tokenmargin.estimator.weights import Weights

__all__ = ["TokenSelectionClassifier"]

ITERATIONS_AFTER_CHECK = 6  # on all texts, from the answer on those not held out


class TokenSelectionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """Classify texts by softmax attention over their tokens, and say which tokens decided.

    The decision on a text is `f = sum_s softmax(a)_s b_s` over its distinct tokens and a sink, with `a = <E, p>` and
    `b = <E, v>`: one attention layer. Trained are a and b themselves (an embedding of dimension two or more can hold
    any a and b, so the dimension is no setting). Two classes share one column of values; more share the attention and
    have a column each, with a multinomial loss.

    **Arguments**
    - `tokenizer`: `words` (lower case; single characters of scripts without blanks), `paper` (stop words dropped,
        stems), a callable from a text to a list of strings, or a Hugging Face `tokenizers.Tokenizer`. Lists of tokens
        are taken as they are.
    - `ngrams`: the longest n-gram that is a token.
    - `min_count`: how often a word must occur to be known; n-grams must occur twice, and at least `min_count` times.
    - `attention`: `learned`, or `uniform` (equal for all tokens: the baseline to compare with).
    - `logit_penalty`, `value_penalty`: ridges that hold the attention to its naive Bayes start and the values to zero,
        beside the sum of the losses of all texts.
    - `max_iter`, `tol`: of L-BFGS.
    - `class_weight`: None, `balanced`, or a dictionary from class to weight.
    - `validation_fraction`: the part held out to measure accuracy (`validation_`) before all texts are
        used; 0 for none.
    - `warm_start`: keep the vocabulary of the last fit and go on from its answer.
    - `random_state`: chooses the texts held out.
    - `progress`: called with the iteration and the loss.

    **Attributes**: `classes_`, `vocabulary_`, `weights_`, `n_iter_`, `loss_curve_`, `validation_`, `token_importance_`.

    >>> texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    >>> model = TokenSelectionClassifier().fit(texts, ["good", "good", "bad", "bad"] * 5)
    >>> model.predict(["fine", "so dull"]).tolist(), model.explain(["a fine film"])[0].selected
    (['good', 'bad'], 'fine')
    """

    classes_: Array
    vocabulary_: Vocabulary
    weights_: Weights

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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from texts (or lists of tokens) and their labels."""
        self._check_settings()
        documents = check_documents(X)
        labels, weight = check_labels(y, sample_weight, len(documents))
        classes, codes = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"the labels hold one class only ({classes[0]!r}): a classifier needs texts of at least two classes"
            )
        if self.class_weight is not None:
            weight = weight * compute_sample_weight(self.class_weight, labels)
        if not weight.sum() > 0:
            raise ValueError("sample_weight and class_weight leave no text with a positive weight")
        again = self.warm_start and hasattr(self, "weights_") and np.array_equal(self.classes_, classes)
        words = read_tokens(documents, self.tokenizer)
        if again:
            encoded = self.vocabulary_.encode(words)
        else:
            self.vocabulary_, encoded = Vocabulary.learn(
                words, ngrams=self.ngrams, minimum=self.min_count, minimum_gram=max(2, self.min_count)
            )
        self.classes_ = classes
        with threadpool_limits(1, user_api="blas"):  # long thin vectors: more threads only wait for each other
            self._train(
                encoded, codes, weight / weight.sum(), learned=getattr(self, "_learned", None) if again else None
            )
        return self

    def _train(self, encoded: Encoded, codes: Array, share: Array, *, learned: Weights | None) -> None:
        k, uniform = len(self.classes_), self.attention == "uniform"
        presence = encoded.presence(len(self.vocabulary_))
        penalty = Penalty(np.inf if uniform else self.logit_penalty / len(codes), self.value_penalty / len(codes))
        settings: dict[str, Any] = {"penalty": penalty, "tolerance": self.tol, "progress": self.progress}
        self.validation_: Validation | None = None
        losses: list[float] = []
        iterations = self.max_iter
        held = split_held_out(codes, self.validation_fraction, check_random_state(self.random_state))
        if held is not None:
            kept = ~held
            part = share[kept] / share[kept].sum()
            origin = start_weights(presence[kept], codes[kept], part, k, uniform=uniform)
            found, losses = fit_weights(
                presence[kept], codes[kept], part,
                start=origin.moved(learned), origin=origin, iterations=self.max_iter, **settings,
            )  # fmt: skip
            self.validation_ = validate(decide(presence[held], found), codes[held], codes)
            learned = found.since(origin)
            iterations = min(ITERATIONS_AFTER_CHECK, self.max_iter)
        origin = start_weights(presence, codes, share, k, uniform=uniform)
        self.weights_, more = fit_weights(
            presence, codes, share, start=origin.moved(learned), origin=origin, iterations=iterations, **settings
        )
        self._learned = self.weights_.since(origin)
        self.loss_curve_ = losses + more
        self.n_iter_ = len(self.loss_curve_)
        self._texts = len(codes)
        self._statistics = token_statistics(presence, codes, self.weights_, k)
        self.__dict__.pop("token_importance_", None)

    def _check_settings(self) -> None:
        for name, least in (("ngrams", 1), ("min_count", 1), ("max_iter", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
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
        check_is_fitted(self, "weights_")
        m = len(self.vocabulary_)
        parts = in_chunks(check_documents(X), lambda chunk: decide(self._encode(chunk).presence(m), self.weights_))
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
        return self.classes_[_decided(self._outputs(X))]

    def explain(self, X: Any) -> Explanations:
        """Attention weight and contribution of every word, the selected token and its margin, for each text."""
        check_is_fitted(self, "weights_")
        documents = check_documents(X)

        def work(chunk: Sequence[Any]) -> tuple[Array, dict[str, Array]]:
            encoded = self._encode(chunk)
            return attribute(encoded, self.weights_.scores(encoded))

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

        Columns: `token`; `count` (texts that hold it); `signed_frequency` (those of its class less the others, over all
        texts) and `posterior_difference` (the same over `count`); `attention_logit` <E, p>; `value` <E, v>; `selected`
        (texts in which it has the largest logit); `attention` (mean weight over all texts); `contribution` (mean over
        all texts). With more than two classes, `class` names the one it speaks for most and the numbers are for that.
        """
        check_is_fitted(self, "weights_")
        counts, selected, attention = self._statistics
        total, n = counts.sum(1), max(self._texts, 1)
        values = self.weights_.values
        if values.shape[1] == 1:
            best = np.ones(len(total), int)
            value = values[:, 0]
        else:
            best = values.argmax(1)
            value = values[np.arange(len(total)), best]
        inside = counts[np.arange(len(total)), best] if len(total) else total
        columns = {
            "token": np.array(self.vocabulary_.names, object),
            "count": total.astype(np.int64),
            "signed_frequency": (2 * inside - total) / n,
            "posterior_difference": (2 * inside - total) / np.maximum(total, 1),
            "attention_logit": self.weights_.logits,
            "value": value,
            "selected": selected,
            "attention": attention,
            "contribution": attention * value,
        }
        if values.shape[1] > 1:
            columns["class"] = self.classes_[best]
        order = np.argsort(-np.abs(columns["contribution"]), kind="stable")
        return TokenTable({name: column[order] for name, column in columns.items()})


def _probabilities(outputs: Array) -> Array:
    if outputs.shape[1] == 1:
        positive = expit(outputs[:, 0])
        return np.stack([1 - positive, positive], axis=1)
    return np.asarray(softmax(outputs, axis=1))


def _decided(outputs: Array) -> Array:
    return (outputs[:, 0] > 0).astype(int) if outputs.shape[1] == 1 else outputs.argmax(1)
