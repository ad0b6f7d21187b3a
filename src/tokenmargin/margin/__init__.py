"""The max-margin problems whose solutions are the limits of attention, solved with certificates."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from tokenmargin.margin.atlas import atlas as atlas
from tokenmargin.margin.batch import MarginBatch as MarginBatch
from tokenmargin.margin.batch import max_margin_batch as max_margin_batch
from tokenmargin.margin.certificate import TOLERANCE as TOLERANCE
from tokenmargin.margin.constraints import Constraints as Constraints
from tokenmargin.margin.constraints import (
    attention_constraints,
    class_constraints,
    label_constraints,
    relaxed_constraints,
)
from tokenmargin.margin.corpus.pairs import RowPairs as RowPairs
from tokenmargin.margin.corpus.pairs import argmax_pairs as argmax_pairs
from tokenmargin.margin.corpus.pairs import selected_pairs as selected_pairs
from tokenmargin.margin.corpus.solve import corpus_margin as corpus_margin
from tokenmargin.margin.held_ties import HeldTies as HeldTies
from tokenmargin.margin.held_ties import held_ties as held_ties
from tokenmargin.margin.held_ties import tie_of_equals as tie_of_equals
from tokenmargin.margin.joint_phase import JointPhases as JointPhases
from tokenmargin.margin.joint_phase import Phase as Phase
from tokenmargin.margin.joint_phase import joint_phases as joint_phases
from tokenmargin.margin.joint_phase import label_room as label_room
from tokenmargin.margin.limit_directions import limit_constraints as limit_constraints
from tokenmargin.margin.limit_directions import limit_direction as limit_direction
from tokenmargin.margin.limit_directions import tied_direction as tied_direction
from tokenmargin.margin.limit_results import Atlas as Atlas
from tokenmargin.margin.limit_results import Kind as Kind
from tokenmargin.margin.limit_results import LimitDirection as LimitDirection
from tokenmargin.margin.normed.solve import GAP as GAP
from tokenmargin.margin.normed.solve import MATRIX_GAP as MATRIX_GAP
from tokenmargin.margin.normed.solve import solve_in_norm as solve_in_norm
from tokenmargin.margin.plane import Arc as Arc
from tokenmargin.margin.plane import is_planar as is_planar
from tokenmargin.margin.plane import selection_arcs as selection_arcs
from tokenmargin.margin.several_optima import choice_margin as choice_margin
from tokenmargin.margin.single.solver import solve as solve
from tokenmargin.margin.solution import Certificate as Certificate
from tokenmargin.margin.solution import MarginSolution as MarginSolution
from tokenmargin.norms import AbstractNorm
from tokenmargin.problem.token_problem import TokenProblem, checked_problem
from tokenmargin.selection import Selection


def max_margin(problem: TokenProblem, selected: Selection, *, norm: AbstractNorm | str = "l2") -> MarginSolution:
    """The shortest p that separates the selected token of every input from the others by 1 (ATT-SVM).

    "Short" is meant in the `norm`: "l2", "l1", "linf", "lp:1.5", of a problem for a matrix also "nuclear" and
    "spectral", or one of `tokenmargin.norms`.

    >>> from tokenmargin.problem.instances import figure1b
    >>> max_margin(figure1b(), [0]).vector.round(4) + 0.0
    array([-0.099 ,  0.9901,  0.    ])
    >>> max_margin(figure1b(), [0], norm="l1").vector.round(4) + 0.0
    array([0., 1., 0.])
    """
    return solve_in_norm(attention_constraints(checked_problem(problem, "max_margin"), selected), norm)


def class_margin(
    problem: TokenProblem, selection: Bool[Array, "n T"], *, norm: AbstractNorm | str = "l2"
) -> MarginSolution:
    """The max-margin vector of a selection with ties: (9) of *Attention with Trained Embeddings*.

    >>> tied = TokenProblem.of([[[1.0, 1.0], [1.0, -1.0], [0.0, 0.0]]], [1], scores=[[1.0, 1.0, 0.0]])
    >>> class_margin(tied, np.array([[True, True, False]])).vector.round(6) + 0.0
    array([1., 0.])
    """
    return solve_in_norm(class_constraints(checked_problem(problem, "class_margin"), selection), norm)


def label_margin(problem: TokenProblem, selected: Selection, *, norm: AbstractNorm | str = "l2") -> MarginSolution:
    """The max-margin head on the selected tokens: the shortest v with `Y_i <v, x_{i alpha_i}> >= 1` (SVM).

    >>> from tokenmargin.problem.instances import figure3a
    >>> label_margin(figure3a(), [1, 1, 1]).vector.round(6) + 0.0
    array([0., 1.])
    """
    return solve_in_norm(label_constraints(checked_problem(problem, "label_margin"), selected), norm)


def support_inputs(problem: TokenProblem, selected: Selection) -> Bool[Array, " n"]:
    """Inputs whose selected token is a support vector of the max-margin head: `Y_i <v, x_{i alpha_i}> = 1`."""
    return np.asarray(label_room(problem, selected)[1] == 0)


def relaxed_max_margin(
    problem: TokenProblem, selected: Selection, *, norm: AbstractNorm | str = "l2"
) -> MarginSolution:
    """The relaxed problem (10): margin 1 only where the selected token is a support vector of the max-margin head.

    The `norm` is that of p; the head is the Euclidean one.

    >>> from tokenmargin.problem.instances import figure3b
    >>> relaxed_max_margin(figure3b(), [1, 1, 1]).vector.round(6) + 0.0
    array([1., 0.])
    """
    problem = checked_problem(problem, "relaxed_max_margin")
    return solve_in_norm(relaxed_constraints(problem, selected, support_inputs(problem, selected)), norm)
