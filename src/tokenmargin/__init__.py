"""Which tokens softmax attention selects, and with what margin.

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

from tokenmargin._version import __version__

_EXPORTS = {
    "tokenmargin.objective.attention": (
        "CorrelationLoss",
        "CustomLoss",
        "ExponentialLoss",
        "JointObjective",
        "LogisticLoss",
        "PromptObjective",
    ),
    "tokenmargin.limits.shares": ("basin_map", "basins", "random_starts"),
    "tokenmargin.problem.corpus_generators": ("k_level_corpus", "selective_corpus"),
    "tokenmargin.problem.corpus": ("TokenCorpus",),
    "tokenmargin.dynamics": (
        "FlowPath",
        "FlowSettings",
        "GradientDescent",
        "NormalizedGradientDescent",
        "Trajectory",
        "cone_path",
        "evolve",
        "evolve_many",
        "first_step",
        "flow",
        "regularisation_path",
        "ridge_path",
    ),
    "tokenmargin.objective.nonlinear_heads": ("HeadObjective", "NonlinearHead", "optimal_sets"),
    "tokenmargin.objective.embedding": (
        "EmbeddingObjective",
        "Embeddings",
        "gaussian_embeddings",
        "wishart_embeddings",
    ),
    "tokenmargin.problem.geometry": ("Coordinates", "Gram", "bilinear"),
    "tokenmargin.problem.instances": (
        "NAMED_PROBLEMS",
        "figure1a",
        "figure1b",
        "figure1c",
        "figure3a",
        "figure3b",
        "figure5",
        "figure8",
        "random_problem",
        "shared_vocabulary_problem",
        "three_limits",
    ),
    "tokenmargin.limits.limit": ("Limit", "limit_of"),
    "tokenmargin.margin": (
        "Atlas",
        "MarginBatch",
        "MarginSolution",
        "atlas",
        "choice_margin",
        "class_margin",
        "corpus_margin",
        "label_margin",
        "max_margin",
        "max_margin_batch",
        "relaxed_max_margin",
    ),
    "tokenmargin.problem.token_problem": ("ProblemFileError", "TokenProblem", "load_problem"),
    "tokenmargin.data.pipeline": ("Pipeline", "prepare"),
    "tokenmargin.data.prepared": ("PreparedText", "load_prepared"),
    "tokenmargin.training.vision.sparsity": ("attention_entropy", "key_query_norms", "soft_sparsity", "top_mass"),
    "tokenmargin.training.vision.attention_probe": ("measure_attention", "recorded_attention"),
    "tokenmargin.training.trainer": ("TrainingConfig", "TrainingRun", "train"),
    "tokenmargin.selection": ("angle", "attention_weights", "cosine", "optimal_tokens", "saturation", "select"),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tokenmargin' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
