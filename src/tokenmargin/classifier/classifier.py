"""TokenSelectionClassifier: softmax attention over the tokens of a text, as a scikit-learn estimator."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy import ndarray as Array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import TransformerTags, check_random_state, compute_sample_weight
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from tokenmargin.classifier.attribution import attribute, in_chunks, join_attributions, token_parts
from tokenmargin.classifier.explanation import Explanations, TokenPart
from tokenmargin.classifier.fitting import (
    CHOSEN,
    Fit,
    FitSettings,
    Validation,
    distinct_texts,
    fit_and_judge,
    lower_loss,
)
from tokenmargin.classifier.importance import TokenStatistics, TokenTable, token_statistics, token_table
from tokenmargin.classifier.input_checks import check_documents, check_labels, check_settings
from tokenmargin.classifier.model_choice import FitChoice
from tokenmargin.classifier.solver import LabelledTexts, join_labelled, ones_like
from tokenmargin.classifier.token_model import TokenModel, decided_classes, probabilities
from tokenmargin.classifier.tokenizers import Tokenizer, join_tokens, read_tokens
from tokenmargin.classifier.vocabulary import EncodedTexts, Vocabulary
from tokenmargin.data.words import Words


class TokenSelectionClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
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
    - `exponent`: g. 1 is the papers' softmax attention with a sink, 0 a linear model; between them evidence adds up in
        part.
    - `attention`: `counted` (logits are naive Bayes': how well a token tells the classes apart), `learned` (the same
        as a start, then trained), or `uniform` (equal for all tokens: the baseline to compare with).
    - `start_power`: how much easier a token that tells the classes apart gets a value (0: rarity alone counts).
    - `loss`: `log` (logistic or multinomial) or `hinge` (squared; each class against the rest).
    - `repeats`: whether a token counts as often as it stands in a text, or once.
    - `value_penalty`: ridge on the values, beside the sum of the losses; features of a text have length 1 on average.
    - `logit_penalty`: ridge that holds learned attention to its start.
    - `max_iter`, `tol`: iterations of L-BFGS, and the part of the base rate's loss an iteration must save to go on.
    - `class_weight`: None, `balanced`, or a dictionary from class to weight.
    - `validation_fraction`: the part held out to measure accuracy (`validation_`) first; 0 for none.
    - `warm_start`: keep the vocabulary of the last fit and go on from its answer.
    - `random_state`: chooses the texts held out.
    - `n_jobs`: threads that read texts and decide them (-1: one per core).
    - `verbose`: 1 says what was chosen and how well it does, on standard error.
    - `progress`: called with the iteration and the loss.

    **Attributes**: `classes_`, `vocabulary_`, `token_model_`, `chosen_` (what `auto` became), `n_iter_`, `loss_curve_`,
    `validation_`, `n_texts_`, `n_duplicates_`, `token_statistics_`, `token_importance_`.

    >>> texts = ["a fine film", "fine acting", "a dull film", "dull acting"] * 5
    >>> model = TokenSelectionClassifier().fit(texts, ["good", "good", "bad", "bad"] * 5)
    >>> model.predict(["fine", "so dull"]).tolist(), model.explain(["a fine film"])[0].selected
    (['good', 'bad'], 'fine')
    """

    classes_: Array
    vocabulary_: Vocabulary
    token_model_: TokenModel
    token_statistics_: TokenStatistics
    validation_: Validation | None
    loss_curve_: list[float]
    _fit: Fit
    _seen: list[LabelledTexts]

    def __init__(
        self,
        tokenizer: Tokenizer = "words",
        *,
        ngrams: int = 1,
        min_count: int = 2,
        max_words: int | None = None,
        vocabulary: Sequence[str] | None = None,
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
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.progress = progress

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags = TransformerTags()
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TokenSelectionClassifier:
        """Learn from texts (or lists of tokens) and their labels; a text of weight 2 counts as two, of 0 as none."""
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
        data = self._labelled_texts(encoded, codes, weight)
        seed = check_random_state(self.random_state).randint(2**31)
        with threadpool_limits(1, user_api="blas"):  # long thin vectors: more threads only wait for each other
            texts, self.n_duplicates_ = distinct_texts(documents, data, seed)
            before = getattr(self, "_fit", None) if again else None
            fit, self.chosen_, self.validation_ = fit_and_judge(texts, self._settings(), before=before)
        if self.verbose:
            print(f"{self.chosen_}\n{self.validation_ or 'no texts held out'}", file=sys.stderr)
        self._keep(fit, data, encoded.occurrences(len(self.vocabulary_), codes, len(classes)))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> TokenSelectionClassifier:
        """Learn from some texts more, going on from the last answer.

        The first call fixes vocabulary (give `vocabulary` to fix its words before), classes and what is chosen, and
        measures `validation_`. The token numbers of all texts are kept (the texts are not), so the answer is that of
        all of them, whatever the parts.

        **Arguments**
        - `classes`: all classes, if the first texts do not have them all.
        """
        documents = check_documents(X)
        labels, weight = check_labels(y, sample_weight, len(documents))
        known = np.unique(labels if classes is None else np.asarray(classes))
        if not hasattr(self, "_seen") and len(np.unique(labels)) == len(known):
            self.fit(documents, labels, sample_weight)
            self._seen = [self._part(documents, labels, weight)]
            return self
        if not hasattr(self, "_seen"):
            self._begin(documents, known)
        part = self._part(documents, labels, weight)
        self._seen = [*self._seen, part]
        data = join_labelled(self._seen)
        before = getattr(self, "_fit", None)
        with threadpool_limits(1, user_api="blas"):
            fit = lower_loss(
                data, self.chosen_, self._settings(), () if before is None else before.changes, self.max_iter
            )
        counts = np.stack([data.presence.T @ (data.codes == code) for code in range(data.k)], axis=1).astype(np.int64)
        self._keep(fit._replace(losses=[*self.loss_curve_, *fit.losses]), data, counts)
        return self

    def _begin(self, documents: Sequence[Any], classes: Array) -> None:
        """A vocabulary, without training: some classes have not been seen yet."""
        check_settings(self)
        self.vocabulary_, _ = self._learn_words(read_tokens(documents, self.tokenizer), None)
        self.chosen_ = FitChoice(**self._settings().given)
        self.classes_, self.validation_, self.loss_curve_, self.n_duplicates_ = classes, None, [], 0
        self._seen = []
        self.__dict__.pop("_fit", None)  # of another vocabulary

    def _learn_words(self, words: Words, weight: Array | None) -> tuple[Vocabulary, EncodedTexts]:
        return Vocabulary.learn(
            words,
            ngrams=self.ngrams,
            minimum=self.min_count,
            minimum_gram=max(2, self.min_count),
            most=self.max_words,
            weight=weight,
            known=self.vocabulary,
        )

    def _labelled_texts(self, encoded: EncodedTexts, codes: Array, weight: Array) -> LabelledTexts:
        counts = encoded.presence(len(self.vocabulary_), repeats=True)
        return LabelledTexts(ones_like(counts), codes, weight, len(self.classes_), counts if self.repeats else None)

    def _part(self, documents: Sequence[Any], labels: Array, weight: Array) -> LabelledTexts:
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            shown = repr(unknown.tolist()[0])
            raise ValueError(f"the label {shown} is none of the classes; give all classes in the first partial_fit")
        codes = np.searchsorted(self.classes_, labels)
        return self._labelled_texts(self._encode(documents), codes, weight)

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """The spelling of every token, in the order of the columns of `transform`."""
        check_is_fitted(self, "token_model_")
        return np.array(self.vocabulary_.names, dtype=object)

    def transform(self, X: Any, *, target: Any = None) -> sp.csr_matrix:
        """The contribution of every token to f: with two classes of the second, else of `target` or the class decided.

        Rows add up to `decision_function` less where a text starts (`token_model_.intercept`).
        """
        check_is_fitted(self, "token_model_")
        documents, model = check_documents(X), self.token_model_
        presence = self._encode(documents).presence(len(self.vocabulary_), repeats=model.repeats)
        column = np.zeros(len(documents), int)
        if model.values.shape[1] > 1:
            chosen = None if target is None else self._class_number(target)
            column = model.decide(presence).argmax(1) if chosen is None else np.full(len(documents), chosen)
        return model.contributions(presence, column)

    @property
    def coef_(self) -> Array:
        """Weights of the tokens, classes in rows, where the model is linear: with exponent 0 only."""
        if not hasattr(self, "token_model_") or self.token_model_.exponent != 0:
            raise AttributeError("coef_ is defined for exponent=0 only, where the model is linear; see transform")
        return (np.exp(self.token_model_.logits)[:, None] * self.token_model_.values).T

    def _settings(self) -> FitSettings:
        given = {name: getattr(self, name) for name in CHOSEN}
        plain = {"loss": str, "repeats": bool}
        fixed = {name: plain.get(name, float)(value) for name, value in given.items() if value != "auto"}
        least = self.min_count if self.vocabulary is None else 0
        return FitSettings(
            fixed, self.attention, self.logit_penalty, self.max_iter, self.tol, self.validation_fraction, least,
            self.progress,
        )  # fmt: skip

    def _keep(self, fit: Fit, data: LabelledTexts, occurrences: Array) -> None:
        """The attributes that every fit leaves."""
        self.token_model_, self.loss_curve_, self._fit = fit.model, fit.losses, fit
        self.n_iter_, self.n_texts_ = len(fit.losses), len(data.codes)
        presence = data.with_counts(fit.model.repeats).matrix
        self.token_statistics_ = token_statistics(presence, occurrences, data.codes, fit.model)
        self.__dict__.pop("token_importance_", None)

    def _encode(self, documents: Sequence[Any]) -> EncodedTexts:
        return self.vocabulary_.encode(read_tokens(documents, self.tokenizer))

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self, "token_model_")
        m, model = len(self.vocabulary_), self.token_model_

        def work(chunk: Sequence[Any]) -> Array:
            return model.decide(self._encode(chunk).presence(m, repeats=model.repeats))

        return np.concatenate(in_chunks(check_documents(X), work, self.n_jobs))

    def decision_function(self, X: Any) -> Array:
        """f for each text: positive for the second of two classes, else one column for each class."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict_proba(self, X: Any) -> Array:
        """Probability of each class."""
        return probabilities(self._outputs(X))

    def predict(self, X: Any) -> Array:
        """The class of each text."""
        outputs = self._outputs(X)
        return self.classes_[decided_classes(outputs)]

    def explain(self, X: Any, *, target: Any = None) -> Explanations:
        """Contribution of every word and what its deletion would change, the selected token and its margin.

        **Arguments**
        - `target`: the class to explain, for all texts ("why not this one?"); None for the class decided on.
        """
        check_is_fitted(self, "token_model_")
        documents = check_documents(X)
        asked = None if target is None else self._class_number(target)
        column = None if len(self.classes_) == 2 else asked

        def work(chunk: Sequence[Any]) -> tuple[Array, dict[str, Array]]:
            return attribute(self._encode(chunk), self.token_model_, column)

        outputs, arrays = join_attributions(in_chunks(documents, work, self.n_jobs))
        decided = decided_classes(outputs) if asked is None else np.full(len(documents), asked)
        return Explanations(
            texts=[join_tokens(document) for document in documents],
            names=self.vocabulary_.names,
            labels=self.classes_[decided],
            probabilities=probabilities(outputs)[np.arange(len(outputs)), decided],
            tokens_of=self.token_parts,
            documents=documents,
            **arrays,
        )

    def token_parts(self, document: str | Sequence[str], label: Any) -> tuple[TokenPart, ...]:
        """The tokens of one text, n-grams whole and with all their characters, in their part of the f of a class."""
        number = self._class_number(label)
        return token_parts(self._encode([document]), self.token_model_, self.vocabulary_.names, number)

    def _class_number(self, label: Any) -> int:
        found = np.flatnonzero(self.classes_ == label)
        if not len(found):
            known = ", ".join(map(repr, self.classes_[:6].tolist()))
            raise ValueError(f"target must be one of the classes ({known}), got {label!r}")
        return int(found[0])

    @cached_property
    def token_importance_(self) -> TokenTable:
        """All tokens, those that move decisions most first.

        Columns: `token`; `count` (texts that hold it); `occurrences`; `signed_frequency` (occurrences in texts of its
        class less those in others, over the occurrences of all tokens: (3) of paper A) and `posterior_difference` (the
        same over its own occurrences: (37)); `attention_logit` <E, p>; `value` <E, v>; `selected` (texts in which it
        has the largest logit); `attention` (mean weight over all texts); `contribution` (mean over all texts);
        `influence` (the spread of its contribution over texts). With two classes its class is the second; with more,
        `class` names the one that stands out most among the texts that hold it.
        """
        check_is_fitted(self, "token_model_")
        if not hasattr(self, "token_statistics_"):
            raise AttributeError(
                "this model was saved light, without the statistics of its tokens; fit it without --light to have them"
            )
        return token_table(self.vocabulary_.names, self.token_statistics_, self.token_model_, self.classes_)
