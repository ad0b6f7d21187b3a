"""Which tokens softmax attention selects, and with what margin.

Names are loaded on first use, so that importing the package costs nothing. `__init__.pyi` beside this file says the
same to type checkers and editors; a test holds the two together.
"""

from __future__ import annotations

from importlib import import_module

from tokenmargin._version import __version__

_EXPORTS = {
    "tokenmargin.norms": ("CustomNorm", "LpNorm", "SchattenNorm", "norm_named"),
    "tokenmargin.problem.token_problem": ("TokenProblem",),
    "tokenmargin.problem.problem_files": ("ProblemFileError", "load_problem"),
    "tokenmargin.problem.geometry": ("Coordinates", "Gram"),
    "tokenmargin.problem.bilinear": ("bilinear",),
    "tokenmargin.problem.attention_problems": ("cross_attention", "self_attention"),
    "tokenmargin.problem.class_problem": ("ClassProblem",),
    "tokenmargin.problem.regression_problem": ("RegressionProblem",),
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
    "tokenmargin.problem.corpus": ("TokenCorpus",),
    "tokenmargin.problem.next_token": ("NextTokenProblem", "next_token_windows"),
    "tokenmargin.problem.corpus_generators": ("k_level_corpus", "selective_corpus"),
    "tokenmargin.objective.losses": ("CorrelationLoss", "CustomLoss", "ExponentialLoss", "LogLoss", "LogisticLoss"),
    "tokenmargin.objective.attention": ("JointObjective", "PromptObjective"),
    "tokenmargin.objective.local_scores": ("ClassObjective", "SquareObjective"),
    "tokenmargin.objective.attention_maps": (
        "AttentionMap",
        "Entmax",
        "MapObjective",
        "Sigmoid",
        "Softmax",
        "Sparsemax",
    ),
    "tokenmargin.objective.nonlinear_heads": ("HeadObjective", "NonlinearHead", "optimal_sets"),
    "tokenmargin.objective.factored": ("FactoredObjective",),
    "tokenmargin.objective.multi_head": ("MultiHeadObjective",),
    "tokenmargin.objective.embedding": (
        "EmbeddingObjective",
        "Embeddings",
        "gaussian_embeddings",
        "wishart_embeddings",
    ),
    "tokenmargin.objective.first_step": ("first_step",),
    "tokenmargin.objective.class_first_step": ("class_first_step",),
    "tokenmargin.objective.single_location": ("SingleLocation",),
    "tokenmargin.selection": ("angle", "attention_weights", "cosine", "optimal_tokens", "saturation", "select"),
    "tokenmargin.margin": (
        "Atlas",
        "LimitDirection",
        "MarginBatch",
        "MarginSolution",
        "atlas",
        "choice_margin",
        "class_margin",
        "corpus_margin",
        "joint_phases",
        "label_margin",
        "limit_direction",
        "max_margin",
        "max_margin_batch",
        "relaxed_max_margin",
    ),
    "tokenmargin.dynamics": (
        "Adam",
        "FlowPath",
        "FlowSettings",
        "GradientDescent",
        "MirrorDescent",
        "Momentum",
        "NormalizedGradientDescent",
        "Polyak",
        "Schedule",
        "SteepestDescent",
        "Trajectory",
        "cone_path",
        "evolve",
        "evolve_many",
        "flow",
        "regularisation_path",
        "ridge_path",
    ),
    "tokenmargin.limits": (
        "Basins",
        "Limit",
        "MethodLimit",
        "Rates",
        "basin_map",
        "basins",
        "NextTokenLimit",
        "limit_constants",
        "limit_of",
        "next_token_limit",
        "random_starts",
        "rates",
    ),
    "tokenmargin.theory": ("CLAIMS", "Claim", "claim", "verify"),
    "tokenmargin.data.pipeline": ("Pipeline", "prepare"),
    "tokenmargin.data.prepared": ("PreparedText", "load_prepared"),
    "tokenmargin.training.config": ("TrainingConfig",),
    "tokenmargin.training.trainer": ("TrainingRun", "train"),
    "tokenmargin.classifier": ("TokenSelectionClassifier", "load_model"),
}
_HOME = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tokenmargin' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
