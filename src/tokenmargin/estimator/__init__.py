"""The classifier that says which tokens decide: a scikit-learn estimator, its explanations, its files."""

from tokenmargin.estimator.classifier import TokenSelectionClassifier
from tokenmargin.estimator.explanation import Explanation, Explanations, WordPart
from tokenmargin.estimator.files import ModelFileError, load_model, save_model
from tokenmargin.estimator.importance import TokenTable
from tokenmargin.estimator.validation import Validation

__all__ = [
    "Explanation",
    "Explanations",
    "ModelFileError",
    "TokenSelectionClassifier",
    "TokenTable",
    "Validation",
    "WordPart",
    "load_model",
    "save_model",
]
