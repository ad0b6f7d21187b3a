"""TokenSelectionClassifier: softmax attention over the tokens of a text, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy import ndarray as Array
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from tokenmargin.classifier.attribution import attribute, in_chunks, join_attributions
from tokenmargin.classifier.documents import check_documents, check_labels
from tokenmargin.classifier.explanation import Explanations
from tokenmargin.classifier.fitting import Fitted, Labelled, Settings, fit_one_layer
from tokenmargin.classifier.importance import TokenTable, token_statistics
from tokenmargin.classifier.low_rank import factor
from tokenmargin.classifier.tokenizers import Tokenizer, join_tokens, read_tokens
from tokenmargin.classifier.two_layer import TwoLayerWeights
from tokenmargin.classifier.validation import Validation, split_held_out
from tokenmargin.classifier.vocabulary import Encoded, Vocabulary
from tokenmargin.classifier.weights import Weights

__all__ = ["TokenSelectionClassifier"]


class TokenSelectionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """Classify texts by softmax attention over their tokens, and say which tokens decided.

    The decision on a text is `f = sum_s softmax(a)_s b_s` over its distinct tokens and a sink. With one layer
    `a = <E, p>` and `b = <E, v>`, and a and b themselves are trained. With two, a and b are the products of p and v
    with what the embeddings become after attending to each other, and E, p and v are trained. Two classes share one
    column of values; more share the attention and have a column each, with a multinomial loss.

    **Arguments**
    - `tokenizer`: `words` (lower case; single characters of scripts without blanks), `paper` (stop words dropped,
        stems), a callable from a text to a list of strings, or a Hugging Face `tokenizers.Tokenizer`. Lists of tokens
        are taken as they are.
    - `ngrams`: the longest n-gram that is a token.
    - `min_count`: how often a word must occur to be known; n-grams must occur twice, and at least `min_count` times.
    - `model`: `one-layer`, or `two-layer`, which needs torch for training (`pip install 'tokenmargin[train]'`).
    - `dimension`: of the embeddings. One layer: None for no restriction; embeddings of as many dimensions as there are
        classes attain every a and b, so only a smaller dimension changes the model. Two layers: None for 64.
    - `attention`: `learned`, or `uniform` (equal for all tokens: the baseline to compare with).
    - `logit_penalty`, `value_penalty`: ridges that hold the attention to its naive Bayes start and the values to zero,
        beside the sum of the losses of all texts (one layer).
    - `max_iter`, `tol`: iterations of L-BFGS, and the change of the loss at which it stops; with two layers the number
        of passes over the texts, which held-out texts stop earlier.
    - `class_weight`: None, `balanced`, or a dictionary from class to weight.
    - `validation_fraction`: the part held out to measure accuracy (`validation_`) before all texts are
        used; 0 for none. Two layers: half of it stops the training, the other half measures.
    - `warm_start`: keep the vocabulary of the last fit and go on from its answer.
    - `random_state`: chooses the texts held out, and with two layers the start and the order of the texts.
    - `progress`: called with the iteration and the loss.

    **Attributes**: `classes_`, `vocabulary_`, `weights_`, `n_iter_`, `loss_curve_`, `validation_`, `token_importance_`,
    `embeddings_`.

    >>> texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    >>> model = TokenSelectionClassifier().fit(texts, ["good", "good", "bad", "bad"] * 5)
    >>> model.predict(["fine", "so dull"]).tolist(), model.explain(["a fine film"])[0].selected
    (['good', 'bad'], 'fine')
    """

    classes_: Array
    vocabulary_: Vocabulary
    weights_: Weights | TwoLayerWeights

    def __init__(
        self,
        tokenizer: Tokenizer = "words",
        *,
        ngrams: int = 1,
        min_count: int = 2,
        model: str = "one-layer",
        dimension: int | None = None,
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
        self.model = model
        self.dimension = dimension
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
        again = self.warm_start and hasattr(self, "weights_") and np.array_equal(self.classes_, classes)
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
        presence = encoded.presence(len(self.vocabulary_))
        with threadpool_limits(1, user_api="blas"):  # long thin vectors: more threads only wait for each other
            self._train(Labelled(presence, codes, weight, len(classes)), again)
        return self

    def _train(self, data: Labelled, again: bool) -> None:
        settings = Settings(**{setting.name: getattr(self, setting.name) for setting in fields(Settings)})
        rng = check_random_state(self.random_state)
        held = split_held_out(data.codes, self.validation_fraction, rng)
        fitted: Fitted[Any]
        if self.model == "two-layer":
            try:
                from tokenmargin.classifier.two_layer_training import fit_two_layer
            except ModuleNotFoundError as error:
                needed = "model='two-layer' is trained with torch, which is missing: pip install 'tokenmargin[train]'"
                raise ModuleNotFoundError(needed, name=error.name) from error
            start = self.weights_ if again and isinstance(self.weights_, TwoLayerWeights) else None
            fitted = fit_two_layer(data, settings, held, rng=rng, start=start)
        else:
            fitted = fit_one_layer(data, settings, held, learned=getattr(self, "_learned", None) if again else None)
        self.weights_, self._learned = fitted.weights, fitted.learned
        self.validation_: Validation | None = fitted.validation
        self.loss_curve_ = fitted.losses
        self.n_iter_ = len(self.loss_curve_)
        self._texts = len(data.codes)
        self._statistics = token_statistics(data.presence, data.codes, self.weights_.scores_of(data.presence), k=data.k)
        self.__dict__.pop("token_importance_", None)

    def _check_settings(self) -> None:
        for name, least in (("ngrams", 1), ("min_count", 1), ("max_iter", 1)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name, allowed in (("attention", ("learned", "uniform")), ("model", ("one-layer", "two-layer"))):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be {allowed[0]!r} or {allowed[1]!r}, got {getattr(self, name)!r}")
        if self.dimension is not None and (not isinstance(self.dimension, int | np.integer) or self.dimension < 2):
            raise ValueError(
                f"dimension must be None or a whole number of at least 2, got {self.dimension!r}: in one dimension "
                "attention and value would be the same number"
            )
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
        parts = in_chunks(check_documents(X), lambda chunk: self.weights_.decide(self._encode(chunk).presence(m)))
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

    @property
    def embeddings_(self) -> tuple[Array, Array, Array]:
        """Embeddings E of all tokens, p and v, with `E p` and `E v` the logits and values of the tokens by themselves.

        With two layers they are what was trained. With one layer they are a choice: any rotation serves as well.
        """
        check_is_fitted(self, "weights_")
        weights = self.weights_
        if isinstance(weights, TwoLayerWeights):
            return weights.embeddings[:-1], weights.prompt, weights.heads
        return factor(weights.logits, weights.values, self.dimension or len(self.classes_))

    @cached_property
    def token_importance_(self) -> TokenTable:
        """All tokens, those with the largest part in the decisions first.

        Columns: `token`; `count` (texts that hold it); `signed_frequency` (those of its class less the others, over all
        texts) and `posterior_difference` (the same over `count`); `attention_logit` <E, p>; `value` <E, v>; `selected`
        (texts in which it has the largest logit); `attention` (mean weight over all texts); `contribution` (mean over
        all texts). With more than two classes, `class` names the one it speaks for most and the numbers are for that.
        With two layers <E, p> and <E, v> are those of the token by itself, the last three those within its texts.
        """
        check_is_fitted(self, "weights_")
        found = self._statistics
        total, n = found.counts.sum(1), max(self._texts, 1)
        values = self.weights_.values
        if values.shape[1] == 1:
            best = np.ones(len(total), int)
            column = np.zeros(len(total), int)
        else:
            best = column = values.argmax(1)
        inside = found.counts[np.arange(len(total)), best] if len(total) else total
        columns = {
            "token": np.array(self.vocabulary_.names, object),
            "count": total.astype(np.int64),
            "signed_frequency": (2 * inside - total) / n,
            "posterior_difference": (2 * inside - total) / np.maximum(total, 1),
            "attention_logit": self.weights_.logits,
            "value": values[np.arange(len(total)), column],
            "selected": found.selected,
            "attention": found.attention,
            "contribution": found.contributions[np.arange(len(total)), column],
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
