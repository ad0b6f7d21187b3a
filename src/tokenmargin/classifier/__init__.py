"""The classifier that says which tokens decide: a scikit-learn estimator, its explanations, its files."""

from tokenmargin.classifier.classifier import TokenSelectionClassifier
from tokenmargin.classifier.evaluation import Validation
from tokenmargin.classifier.explanation import Explanation, Explanations, WordPart
from tokenmargin.classifier.files import ModelFileError, load_model, save_model
from tokenmargin.classifier.importance import TokenTable
from tokenmargin.classifier.token_model import TokenModel

__all__ = [
    "Explanation",
    "Explanations",
    "ModelFileError",
    "TokenModel",
    "TokenSelectionClassifier",
    "TokenTable",
    "Validation",
    "WordPart",
    "load_model",
    "save_model",
]
