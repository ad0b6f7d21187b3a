"""Which tokens softmax attention selects, and with what margin.

Names are loaded on first use, so that importing the package costs nothing. `__init__.pyi` beside this file says the
same to type checkers and editors; a test holds the two together.
"""

from __future__ import annotations

from importlib import import_module

from tokenmargin._version import __version__

_EXPORTS = {
    "tokenmargin.norms": ("norm_named",),
    "tokenmargin.problem.token_problem": ("TokenProblem",),
    "tokenmargin.problem.problem_files": ("load_problem",),
    "tokenmargin.problem.attention_problems": ("cross_attention", "self_attention"),
    "tokenmargin.problem.label_problems": ("ClassProblem", "RegressionProblem"),
    "tokenmargin.problem.instances": (
        "figure1b",
        "k_level_corpus",
        "random_problem",
        "selective_corpus",
        "three_limits",
    ),
    "tokenmargin.problem.corpus": ("TokenCorpus",),
    "tokenmargin.problem.next_token": ("NextTokenProblem",),
    "tokenmargin.objective.losses": ("CustomLoss", "ExponentialLoss", "LogLoss", "LogisticLoss"),
    "tokenmargin.objective.attention": ("JointObjective", "PromptObjective"),
    "tokenmargin.objective.local_scores": ("ClassObjective", "SquareObjective"),
    "tokenmargin.objective.attention_maps": ("Entmax", "MapObjective", "Sigmoid", "Softmax", "Sparsemax"),
    "tokenmargin.objective.nonlinear_heads": ("HeadObjective", "NonlinearHead"),
    "tokenmargin.objective.factored": ("FactoredObjective", "MultiHeadObjective"),
    "tokenmargin.objective.products": ("DiagonalObjective",),
    "tokenmargin.objective.first_step": ("first_step",),
    "tokenmargin.selection": ("angle", "attention_weights", "cosine", "optimal_tokens"),
    "tokenmargin.margin": (
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
        "GradientDescent",
        "NormalizedGradientDescent",
        "SteepestDescent",
        "evolve",
        "evolve_many",
        "flow",
        "regularisation_path",
    ),
    "tokenmargin.limits": ("Limit", "limit_constants", "limit_of", "next_token_limit", "rates"),
    "tokenmargin.limits.shares": ("basin_map", "basins", "random_starts"),
    "tokenmargin.theory": ("CLAIMS", "claim", "verify"),
    "tokenmargin.data.pipeline": ("prepare",),
    "tokenmargin.data.prepared": ("load_prepared",),
    "tokenmargin.training.config": ("TrainingConfig",),
    "tokenmargin.training.trainer": ("train",),
    "tokenmargin.classifier": ("TokenSelectionClassifier", "load_model"),
}
# One room further in: found here as well, but no part of the front door; import them from their rooms.
_ROOMS = {
    "tokenmargin.norms": ("CustomNorm", "LpNorm", "SchattenNorm"),
    "tokenmargin.problem.problem_files": ("ProblemFileError",),
    "tokenmargin.problem.geometry": ("Coordinates", "Gram"),
    "tokenmargin.problem.bilinear": ("bilinear",),
    "tokenmargin.problem.instances": (
        "NAMED_PROBLEMS",
        "figure1a",
        "figure1c",
        "figure3a",
        "figure3b",
        "figure5",
        "figure8",
        "shared_vocabulary_problem",
    ),
    "tokenmargin.problem.next_token": ("next_token_windows",),
    "tokenmargin.objective.losses": ("CorrelationLoss",),
    "tokenmargin.objective.nonlinear_heads": ("optimal_sets",),
    "tokenmargin.objective.attention_maps": ("AttentionMap",),
    "tokenmargin.objective.embedding": (
        "EmbeddingObjective",
        "Embeddings",
        "gaussian_embeddings",
        "wishart_embeddings",
    ),
    "tokenmargin.objective.single_location": ("SingleLocation",),
    "tokenmargin.objective.first_step": ("class_first_step",),
    "tokenmargin.selection": ("saturation", "select"),
    "tokenmargin.margin": ("Atlas", "LimitDirection", "MarginBatch", "MarginSolution"),
    "tokenmargin.dynamics": (
        "Adam",
        "FlowPath",
        "FlowSettings",
        "MirrorDescent",
        "Momentum",
        "Polyak",
        "Schedule",
        "Trajectory",
        "cone_path",
        "ridge_path",
    ),
    "tokenmargin.limits": ("Basins", "MethodLimit", "Rates", "NextTokenLimit"),
    "tokenmargin.theory": ("Claim",),
    "tokenmargin.data.pipeline": ("Pipeline",),
    "tokenmargin.data.prepared": ("PreparedText",),
    "tokenmargin.training.trainer": ("TrainingRun",),
}
_HOME = {name: module for listed in (_EXPORTS, _ROOMS) for module, names in listed.items() for name in names}

__all__ = ["__version__", *sorted(name for names in _EXPORTS.values() for name in names)]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tokenmargin' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOME[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
