"""TokenSelectionClassifier: softmax attention over the tokens of a text, as a scikit-learn estimator."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy import ndarray as Array
from sklearn.utils import compute_sample_weight
from threadpoolctl import threadpool_limits

from tokenmargin.classifier.decisions import FittedClassifier
from tokenmargin.classifier.fitting import (
    CHOSEN,
    Fit,
    FitSettings,
    KeptTexts,
    Validation,
    distinct_texts,
    fit_and_validate,
    fit_from,
)
from tokenmargin.classifier.hashing import HashedVocabulary
from tokenmargin.classifier.importance import token_statistics
from tokenmargin.classifier.input_checks import check_documents, check_labels, check_seed, check_settings
from tokenmargin.classifier.model_choice import FitChoice
from tokenmargin.classifier.solver import LabelledTexts
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.tokenizers import Tokenizer, read_tokens
from tokenmargin.classifier.vocabulary import EncodedTexts, Vocabulary
from tokenmargin.data.words import Words


class TokenSelectionClassifier(FittedClassifier):
    """Classify texts by attention over their tokens, and say which tokens decided.

    The decision on a text is `f = b_0 + sum_s e^{a_s} b_s / (e^c + sum_s e^{a_s})^g` over its distinct tokens. It comes
    from embeddings E, prompt p and head v through `a = <E, p>` and `b = <E, v>` alone. Two classes share one column of
    values; more share the attention and have a column each. Settings that are `auto` are chosen on folds of the
    training texts, by log loss; the probabilities are calibrated on the same folds.

    **Arguments**
    - `tokenizer`: `words` (lower case, with numbers, hashtags and emoji; single characters of scripts without blanks),
        `paper` (stop words dropped, stems), a callable from a text to a list of strings, or a Hugging Face
        `tokenizers.Tokenizer`. Lists of tokens are taken as they are.
    - `ngrams`: the longest n-gram that is a token.
    - `min_count`: how often a word must occur to be known; n-grams must occur twice, and at least `min_count` times.
    - `max_words`: how many words are known at most, the most frequent ones; None for no bound.
    - `vocabulary`: the words that are known, spelled as the tokenizer does, instead of those that occur often enough.
    - `buckets`: instead of words, the numbers that they hash to are known, so many for words and for n-grams of each
        length: `partial_fit` then needs no words in advance. Tokens that share a number are one token to the model.
    - `exponent`: g. 1 is the papers' softmax attention with a sink, 0 a linear model, in which evidence adds up.
    - `attention`: `counted` (logits are naive Bayes': how well a token tells the classes apart), `learned` (the same
        as a start, then trained), or `uniform` (equal for all tokens: the baseline to compare with).
    - `start_power`: how much less the ridge holds back a token that tells the classes apart (0: not at all).
    - `loss`: `log` (logistic or multinomial) or `hinge` (squared; each class against the rest).
    - `repeats`: whether a token counts as often as it stands in a text, or once.
    - `value_penalty`: ridge on the values, beside the sum of the losses; features of a text have length 1 on average.
    - `logit_penalty`: ridge that holds learned attention to its start.
    - `max_iter`, `tol`: iterations of L-BFGS at most; they end when one saves less than `tol` of the base rate's loss.
    - `class_weight`: None, `balanced`, or a dictionary from class to weight.
    - `validation_fraction`: the share of texts that is first held out to measure the accuracy (`validation_`); 0 for
        none.
    - `warm_start`: keep the vocabulary of the last fit and start training from it.
    - `max_texts`: how many texts `partial_fit` keeps, a random sample of those met; None for all.
    - `random_state`: chooses the texts held out.
    - `n_jobs`: threads that read texts and decide them (-1: one per core).
    - `verbose`: 1 says what was chosen and how well it does, on standard error.
    - `progress`: called with the iteration and the loss.

    **Attributes**: `classes_`, `vocabulary_`, `token_model_`, `chosen_` (what `auto` became), `n_iter_`, `loss_curve_`,
    `validation_`, `n_texts_`, `n_texts_kept_` (by `partial_fit`), `n_duplicates_`, `token_statistics_`,
    `token_importance_`.

    >>> texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    >>> model = TokenSelectionClassifier().fit(texts, ["good", "good", "bad", "bad"] * 5)
    >>> model.predict(["fine", "so dull"]).tolist(), model.explain(["a fine film"])[0].selected
    (['good', 'bad'], 'fine')
    """

    validation_: Validation | None
    loss_curve_: list[float]
    _fit: Fit
    _seen: KeptTexts

    def __init__(
        self,
        tokenizer: Tokenizer = "words",
        *,
        ngrams: int = 1,
        min_count: int = 2,
        max_words: int | None = None,
        vocabulary: Sequence[str] | None = None,
        buckets: int | None = None,
        exponent: float | str = "auto",
        attention: str = "counted",
        start_power: float | str = "auto",
        loss: str = "auto",
        repeats: bool | str = "auto",
        value_penalty: float | str = "auto",
        logit_penalty: float = 30.0,
        max_iter: int = 100,
        tol: float = 1e-5,
        class_weight: str | dict[Any, float] | None = None,
        validation_fraction: float = 0.1,
        warm_start: bool = False,
        max_texts: int | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
        progress: Callable[[int, float], None] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.ngrams = ngrams
        self.min_count = min_count
        self.max_words = max_words
        self.vocabulary = vocabulary
        self.buckets = buckets
        self.exponent = exponent
        self.attention = attention
        self.start_power = start_power
        self.loss = loss
        self.repeats = repeats
        self.value_penalty = value_penalty
        self.logit_penalty = logit_penalty
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.warm_start = warm_start
        self.max_texts = max_texts
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.progress = progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TokenSelectionClassifier:
        """Learn from texts (or lists of tokens) and their labels; a text of weight 2 counts as two texts."""
        check_settings(self)
        self.__dict__.pop("_seen", None)
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
            self.vocabulary_, encoded = self._learn_words(words, None if sample_weight is None else weight)
        self.classes_ = classes
        if self.class_weight is not None:
            weight = weight * compute_sample_weight(self.class_weight, labels)
            if not weight.sum() > 0:
                raise ValueError("class_weight gives every text the weight zero; one class needs a positive weight")
        counts = encoded.presence(len(self.vocabulary_), repeats=True)
        data = self._with_classes(counts, codes, weight)
        data = data if self.repeats else data.with_counts(False)
        seed = check_seed(self.random_state).randint(2**31)
        with threadpool_limits(1, user_api="blas"):  # long thin vectors: more threads only wait for each other
            texts, self.n_duplicates_ = distinct_texts(documents, data, seed)
            before = getattr(self, "_fit", None) if again else None
            fit, self.chosen_, self.validation_ = fit_and_validate(texts, self._settings(), before=before)
        if self.verbose:
            print(f"{self.chosen_}\n{self.validation_ or 'no texts held out'}", file=sys.stderr)
        self._set_fitted(fit, counts, codes)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> TokenSelectionClassifier:
        """Learn from more texts, starting from the last fit.

        The first call fixes the vocabulary (unless its words are given, or hashed into `buckets`), the classes and the
        chosen settings, and measures `validation_`. If its texts lack a class, nothing is chosen. The token numbers of
        `max_texts` texts are kept, not the texts; training uses all of them, however they came in parts.

        **Arguments**
        - `classes`: all classes, if the first texts do not have them all.
        """
        documents = check_documents(X)
        labels, weight = check_labels(y, sample_weight, len(documents))
        if not hasattr(self, "_seen"):
            if hasattr(self, "token_model_"):
                warnings.warn(
                    "partial_fit begins anew: this model was fitted whole, or loaded, and its texts are not kept; to "
                    "learn from those too, give them to partial_fit",
                    stacklevel=2,
                )
            known = np.unique(labels if classes is None else np.asarray(classes))
            if len(np.unique(labels)) == len(known):
                self.fit(documents, labels, sample_weight)
                self._seen = self._texts_to_keep(documents, labels, weight)
                self.n_texts_kept_ = len(self._seen.chance)
                return self
            check_settings(self)
            self.vocabulary_, _ = self._learn_words(read_tokens(documents, self.tokenizer), None)
            self.chosen_ = FitChoice(**self._settings().given)
            self.classes_, self.validation_, self.loss_curve_, self.n_duplicates_ = known, None, [], 0
            seen, changes = self._texts_to_keep(documents, labels, weight), tuple[TokenModel, ...]()
        else:
            seen = self._seen.plus(self._texts_to_keep(documents, labels, weight), self.max_texts)
            changes = self._fit.changes
        data, before = seen.data, self.vocabulary_
        if isinstance(before, HashedVocabulary):
            met = before.with_words(read_tokens(documents, self.tokenizer))
            self.vocabulary_ = now = met.counted_on(data)
            changes = tuple(now.change_in_own_rows(change, before) for change in changes)
            data = data.of_tokens(now.known)
        self._seen = seen
        if self.class_weight is not None:
            data = replace(
                data, weight=data.weight * compute_sample_weight(self.class_weight, self.classes_[data.codes])
            )
        with threadpool_limits(1, user_api="blas"):
            fit = fit_from(data, self.chosen_, self._settings(), changes, self.max_iter)
        self._set_fitted(fit._replace(losses=[*self.loss_curve_, *fit.losses]), data.matrix, data.codes, seen.times)
        self.n_texts_, self.n_texts_kept_, self.n_duplicates_ = seen.met, len(seen.chance), seen.copies
        return self

    def _learn_words(self, words: Words, weight: Array | None) -> tuple[Vocabulary | HashedVocabulary, EncodedTexts]:
        if self.buckets is not None:
            hashed = HashedVocabulary.empty(self.buckets, ngrams=self.ngrams, minimum=self.min_count)
            hashed = hashed.with_words(words, weight)
            return hashed, hashed.encode(words)
        return Vocabulary.learn(
            words, ngrams=self.ngrams, minimum=self.min_count, minimum_gram=max(2, self.min_count),
            most=self.max_words, weight=weight, known=self.vocabulary,
        )  # fmt: skip

    def _with_classes(self, counts: sp.csr_matrix, codes: Array, weight: Array) -> LabelledTexts:
        return LabelledTexts(counts, codes, weight, len(self.classes_), counted=True)

    def _check_classes(self, labels: Array) -> None:
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            shown = repr(unknown.tolist()[0])
            raise ValueError(f"the label {shown} is none of the classes; give all classes in the first partial_fit")

    def _texts_to_keep(self, documents: Sequence[Any], labels: Array, weight: Array) -> KeptTexts:
        """The texts as `partial_fit` keeps them; hashed ones in all buckets, since more may become known later."""
        self._check_classes(labels)
        words, vocabulary = read_tokens(documents, self.tokenizer), self.vocabulary_
        if isinstance(vocabulary, HashedVocabulary):
            counts = vocabulary.in_buckets(words).presence(len(vocabulary.counts), repeats=True)
        else:
            counts = vocabulary.encode(words).presence(len(vocabulary), repeats=True)
        data = self._with_classes(counts, np.searchsorted(self.classes_, labels), weight)
        return KeptTexts.of(documents, data, self.max_texts)

    def _settings(self) -> FitSettings:
        given = {name: getattr(self, name) for name in CHOSEN}
        plain = {"loss": str, "repeats": bool}
        fixed = {name: plain.get(name, float)(value) for name, value in given.items() if value != "auto"}
        least = self.min_count if self.vocabulary is None else 0
        return FitSettings(
            fixed, self.attention, self.logit_penalty, self.max_iter, self.tol, self.validation_fraction, least,
            self.progress,
        )  # fmt: skip

    def _set_fitted(self, fit: Fit, counts: sp.csr_matrix, codes: Array, times: Array | None = None) -> None:
        """Set the attributes that every fit sets, given how often each text holds each token, and the texts' copies."""
        self.token_model_, self.loss_curve_, self._fit = fit.model, fit.losses, fit
        self.n_iter_, self.n_texts_ = len(fit.losses), len(codes)
        self.token_statistics_ = token_statistics(counts, codes, len(self.classes_), fit.model, times)
        self.__dict__.pop("token_importance_", None)
