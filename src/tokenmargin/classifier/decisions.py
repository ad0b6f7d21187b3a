"""What a fitted classifier of texts does: decide, explain, and give its contributions and the table of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy import ndarray as Array
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import TransformerTags
from sklearn.utils.validation import check_is_fitted

from tokenmargin.classifier.attribution import attribute_texts, join_attributions, map_chunks, token_parts
from tokenmargin.classifier.explanation import Explanations, TokenPart
from tokenmargin.classifier.hashing import HashedVocabulary
from tokenmargin.classifier.importance import TokenStatistics, TokenTable, token_table
from tokenmargin.classifier.input_checks import check_documents
from tokenmargin.classifier.token_model import TokenModel, decided_classes, probabilities
from tokenmargin.classifier.tokenizers import Tokenizer, join_tokens, read_tokens
from tokenmargin.classifier.vocabulary import EncodedTexts, Vocabulary


class FittedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc, unused-ignore]
    """The methods of `TokenSelectionClassifier` that need a model, however it was made."""

    classes_: Array
    vocabulary_: Vocabulary | HashedVocabulary
    token_model_: TokenModel
    token_statistics_: TokenStatistics
    tokenizer: Tokenizer
    n_jobs: int | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.transformer_tags = TransformerTags()
        return tags

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
            column = decided_classes(model.decide(presence)) if chosen is None else np.full(len(documents), chosen)
        return model.contributions(presence, column)

    @property
    def coef_(self) -> Array:
        """Weights of the tokens, classes in rows, where the model is linear: with exponent 0 only."""
        if not hasattr(self, "token_model_") or self.token_model_.exponent != 0:
            raise AttributeError("coef_ is defined for exponent=0 only, where the model is linear; see transform")
        return (np.exp(self.token_model_.logits)[:, None] * self.token_model_.values).T

    def _encode(self, documents: Sequence[Any]) -> EncodedTexts:
        return self.vocabulary_.encode(read_tokens(documents, self.tokenizer))

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self, "token_model_")
        m, model = len(self.vocabulary_), self.token_model_

        def work(chunk: Sequence[Any]) -> Array:
            return model.decide(self._encode(chunk).presence(m, repeats=model.repeats))

        return np.concatenate(map_chunks(check_documents(X), work, self.n_jobs))

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
            return attribute_texts(self._encode(chunk), self.token_model_, column)

        outputs, arrays = join_attributions(map_chunks(documents, work, self.n_jobs))
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
        class less those in others, over the occurrences of all known tokens: (3) of paper A) and `posterior_difference`
        (the same over its own occurrences: (37)); `attention_logit` <E, p>; `value` <E, v>; `selected` (texts in which
        it has the largest logit, or the first of the largest); `attention` (mean weight over all texts); `contribution`
        (mean over all texts); `influence` (the spread over texts of its average contribution, there or not). With two
        classes its class is the second; with more, `class` names the one that stands out most among the texts that hold
        it.
        """
        check_is_fitted(self, "token_model_")
        if not hasattr(self, "token_statistics_"):
            raise AttributeError(
                "this model was saved light, without the statistics of its tokens; fit it without --light to have them"
            )
        return token_table(self.vocabulary_.names, self.token_statistics_, self.token_model_, self.classes_)
