"""The classifier that says which tokens decide: a scikit-learn estimator, its explanations, its files."""

from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.explanation import Explanation, Explanations, TokenPart, WordPart
from tokenmargin.classifier.files import ModelFileError, load_model, save_model
from tokenmargin.classifier.fitting import Validation
from tokenmargin.classifier.importance import TokenTable
from tokenmargin.classifier.token_model import TokenModel
from tokenmargin.classifier.what_if import EditedText, what_if

__all__ = [
    "EditedText",
    "Explanation",
    "Explanations",
    "ModelFileError",
    "TokenModel",
    "TokenPart",
    "TokenSelectionClassifier",
    "TokenTable",
    "Validation",
    "WordPart",
    "load_model",
    "save_model",
    "what_if",
]
