"""The dual active-set method for larger systems, compiled, where few of many constraints hold the solution.

As in `active_set`, the worst violated constraint joins a working set, and constraints whose multipliers would turn
negative leave it. Here the *inverse* of the working set's inner products is kept, its lower half. A constraint joins or
leaves by one update of that half, and the direction of the multipliers after a departure follows from the one before.
Three levels keep the cost down: all rows are looked at rarely, the least satisfied are in play, and between two looks
at these the most violated ones compete. A few sweeps of coordinate ascent come first, and find most of the constraints
that will hold.

The inverse loses digits faster than a factor would. That does no harm, because the result is a proposal.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray as Array
from scipy.linalg.lapack import dpotrf, dpotri

from tokenmargin.margin.compiled.active_set import DEPENDENT, SATISFIED, summing

_SWEEPS, _WHOLE = 20, 5  # of coordinate ascent; all rows in play take part in one of so many
_FILLED = 0.9  # of the dimensions: as many constraints at most are taken from the sweeps
_SHARE = 0.5  # of the worst violation at the last look, down to which its worst constraints compete
_RIVALS = 48  # of which there are so many
_PIVOTS = 40  # changes of the working set per dimension after which the search gives up
_PLAY, _FALL = 3, 0.05  # rows in play at a time per dimension, until the worst violation has fallen to this share
_REFINEMENTS = 2


class WorkingSet(NamedTuple):
    """The constraints that hold as equations, the first `size[0]` entries of `work`, and what the search keeps of them.

    `u` are their multipliers, `inverse` that of their inner products (row i up to column i), `y` the vector that they
    build; the others are memory for a step.
    """

    size: Int[Array, " 1"]
    work: Int[Array, " s"]
    u: Float[Array, " s"]
    inverse: Float[Array, "s s"]
    y: Float[Array, " r"]
    products: Float[Array, " s"]
    aim: Float[Array, " s"]

    @classmethod
    def empty(cls, r: int) -> WorkingSet:
        """No constraint holds yet; at most r will."""
        size, work = np.zeros(1, dtype=np.intp), np.zeros(r, dtype=np.intp)
        return cls(size, work, np.zeros(r), np.empty((r, r)), np.zeros(r), np.zeros(r), np.zeros(r))


def propose_by_exchange(rows: Float[Array, "k r"], bound: Float[Array, " k"]) -> Float[Array, " k"] | None:
    """Multipliers of `min |y|, rows y >= bound`; None where the search finds no solution.

    >>> propose_by_exchange(np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 3.0]]), np.ones(3)).round(6) + 0.0
    array([0.25, 1.  , 0.  ])
    """
    space = _first_working_set(rows, bound, _least_satisfied(rows @ (bound @ rows), rows.shape[1]))
    if not _search_all(rows, bound, space) or not np.isfinite(space.u).all():
        return None
    a, multipliers = space.size[0], np.zeros(len(rows))
    multipliers[space.work[:a]] = np.maximum(space.u[:a], 0.0)
    return multipliers


def _least_satisfied(slack: Float[Array, " k"], r: int) -> Int[Array, " c"]:
    """The rows of least slack: those in play."""
    return np.argpartition(slack, _PLAY * r)[: _PLAY * r] if len(slack) > _PLAY * r else np.arange(len(slack))


def _first_working_set(rows: Float[Array, "k r"], bound: Float[Array, " k"], play: Int[Array, " c"]) -> WorkingSet:
    """A working set to begin with, by some sweeps of coordinate ascent over the rows `play`; empty if dependent."""
    r = rows.shape[1]
    space, rough = WorkingSet.empty(r), np.zeros(len(play))
    _ascend_coordinates(rows, bound, play, rough, space.y)
    held = rough.nonzero()[0]
    if len(held) > _FILLED * r:
        held = held[np.argpartition(-rough[held], int(_FILLED * r))[: int(_FILLED * r)]]
    a, kept = len(held), rows[play[held]]
    gram = kept @ kept.T
    factor, dependent = dpotrf(gram.T) if a else (gram, 1)
    inverse = gram if dependent else dpotri(factor, overwrite_c=True)[0].T
    # A diagonal entry of the inverse is one over the squared distance of its row from the span of the others.
    if dependent or (inverse.diagonal() * gram.diagonal()).max() * DEPENDENT >= 1:
        return WorkingSet.empty(r)
    space.size[0], space.work[:a], space.u[:a], space.inverse[:a, :a] = a, play[held], rough[held], inverse
    _meet_bounds(rows, bound, space)
    return space


@summing
@no_type_check
def _ascend_coordinates(rows, bound, play, multipliers, y):
    """Coordinate ascent in the dual: rough multipliers of the rows `play`; `y` is theirs."""
    for sweep in range(_SWEEPS):
        for i in range(len(play)):
            if sweep % _WHOLE and multipliers[i] == 0:
                continue
            row = rows[play[i]]
            reached = own = 0.0
            for t in range(len(y)):
                reached += row[t] * y[t]
                own += row[t] * row[t]
            better = max(0.0, multipliers[i] + (bound[play[i]] - reached) / own) if own > 0 else 0.0
            change = better - multipliers[i]
            if change != 0:
                multipliers[i] = better
                for t in range(len(y)):
                    y[t] += change * row[t]


@summing
@no_type_check
def _multiply_rows(rows, which, a, x, out):
    """`out = rows[which[:a]] x`, two rows at a time."""
    for i in range(0, a, 2):
        beside = min(i + 1, a - 1)
        first, second = rows[which[i]], rows[which[beside]]
        p = q = 0.0
        for t in range(len(x)):
            p += first[t] * x[t]
            q += second[t] * x[t]
        out[beside] = q
        out[i] = p


@summing
@no_type_check
def _combine_rows(rows, which, a, u, y):
    """`y = rows[which[:a]]' u`, two rows at a time."""
    for t in range(len(y)):
        y[t] = 0.0
    for i in range(0, a, 2):
        beside = min(i + 1, a - 1)
        first, second = rows[which[i]], rows[which[beside]]
        p, q = u[i], u[beside] if beside > i else 0.0
        for t in range(len(y)):
            y[t] += p * first[t] + q * second[t]


@summing
@no_type_check
def _multiply_inverse(inverse, a, x, out):
    """`out = inverse x`, from the lower half."""
    for i in range(a):
        line, weight, total = inverse[i, :i], x[i], 0.0
        for t in range(len(line)):
            total += line[t] * x[t]
            out[t] += weight * line[t]
        out[i] = total + inverse[i, i] * weight


@summing
@no_type_check
def _add_square(inverse, a, x, share):
    """`inverse += share x x'`, the lower half."""
    for i in range(a):
        line, weight = inverse[i, : i + 1], share * x[i]
        for t in range(len(line)):
            line[t] += weight * x[t]


@summing
@no_type_check
def _leave(space, i):
    """Constraint i of the working set leaves, the last takes its place, and the aim becomes that of the others."""
    work, u, inverse, aim, column = space.work, space.u, space.inverse, space.aim, space.products
    last = space.size[0] - 1
    for t in range(last + 1):
        column[t] = inverse[i, t] if t <= i else inverse[t, i]
    # Without row i the inverse is what it was less column column' over its diagonal entry; the aim with constraint i
    # given up follows from the old one, since only its own equation is dropped.
    step = aim[i] / column[i]
    _add_square(inverse, last + 1, column, -1 / column[i])
    for t in range(last + 1):
        aim[t] -= step * column[t]
    work[i], u[i], aim[i] = work[last], u[last], aim[last]
    for t in range(i + 1):
        inverse[i, t] = inverse[last, t]
    inverse[i, i] = inverse[last, last]
    for t in range(i + 1, last):
        inverse[t, i] = inverse[last, t]
    space.size[0] = last


@summing
@no_type_check
def _meet_bounds(rows, bound, space):
    """Move the multipliers to those that meet the bounds as equations; constraints in the way leave."""
    u, aim, a = space.u, space.aim, space.size[0]
    for i in range(a):
        space.products[i] = bound[space.work[i]]
    _multiply_inverse(space.inverse, a, space.products, aim)
    while True:
        a, length, blocking = space.size[0], 1.0, -1
        for i in range(a):
            if aim[i] < 0 and u[i] < length * (u[i] - aim[i]):
                length, blocking = u[i] / (u[i] - aim[i]), i
        for i in range(a):
            u[i] += length * (aim[i] - u[i])
        if blocking < 0:
            break
        _leave(space, blocking)
    _combine_rows(rows, space.work, a, u, space.y)


@summing
@no_type_check
def _enter(rows, space, j, short):
    """Let constraint j join, which `y` misses by `short`: the changes that took, or 0 if nothing lets it."""
    u, inverse, aim = space.u, space.inverse, space.aim
    row, a = rows[j], space.size[0]
    own = 0.0
    for t in range(len(row)):
        own += row[t] * row[t]
    _multiply_rows(rows, space.work, a, row, space.products)
    _multiply_inverse(inverse, a, space.products, aim)
    # `aim` is the combination of the working set that comes nearest to the row: adding the row to y and taking so much
    # of the combination away keeps the other equations, and `left` is the squared length of what remains of the row.
    left = own
    for i in range(a):
        left -= aim[i] * space.products[i]
    gained, changes = 0.0, 1
    while True:
        length, blocking = short / left if left > DEPENDENT * own and a < len(u) else np.inf, -1
        for i in range(a):
            if aim[i] > 0 and u[i] < length * aim[i]:
                length, blocking = u[i] / aim[i], i
        if length == np.inf:
            return 0
        for i in range(a):
            u[i] -= length * aim[i]
        gained += length
        if blocking < 0:
            break
        # A constraint has reached zero and leaves. The row keeps what that one alone covered of it.
        short -= length * max(left, 0.0)
        left += aim[blocking] * aim[blocking] / inverse[blocking, blocking]
        _leave(space, blocking)
        a -= 1
        changes += 1
    # The inverse with one more row: `left` is its Schur complement.
    _add_square(inverse, a, aim, 1 / left)
    for i in range(a):
        inverse[a, i] = -aim[i] / left
    inverse[a, a] = 1 / left
    space.work[a], u[a] = j, gained
    space.size[0] = a + 1
    _combine_rows(rows, space.work, a + 1, u, space.y)
    return changes


@summing
@no_type_check
def _refine_multipliers(rows, bound, space):
    """Multipliers that meet the bounds of the working set to the last digits."""
    a = space.size[0]
    for _ in range(_REFINEMENTS):
        _multiply_rows(rows, space.work, a, space.y, space.products)
        for i in range(a):
            space.products[i] = bound[space.work[i]] - space.products[i]
        _multiply_inverse(space.inverse, a, space.products, space.aim)
        for i in range(a):
            space.u[i] += space.aim[i]
        _combine_rows(rows, space.work, a, space.u, space.y)


@summing
@no_type_check
def _most_violated(bound, play, slack, least, rivals):
    """The constraints in play that are violated most, compared with the worst; how many there are."""
    share, count = _SHARE, _RIVALS + 1
    while count > _RIVALS and share < 0.99:  # too many: only those that are worse
        count = 0
        for i in range(len(play)):
            if slack[i] - bound[play[i]] <= share * least and count <= _RIVALS:
                rivals[count] = play[i]
                count += 1
        share += 0.25 * (1 - share)
    return count


@summing
@no_type_check
def _exchange_in_play(rows, bound, play, space, until):
    """Exchange until no row of `play` is violated by more than `until`; returns the changes, or -1: no solution."""
    rivals, slack = np.empty(_RIVALS + 1, dtype=np.intp), np.empty(len(play))
    changes = 0
    while True:
        _multiply_rows(rows, play, len(play), space.y, slack)
        least = 0.0
        for i in range(len(play)):
            least = min(least, slack[i] - bound[play[i]])
        if least >= -until:
            return changes
        count, level = _most_violated(bound, play, slack, least, rivals), min(_SHARE * least, -until)
        while True:
            worst, least = -1, level
            _multiply_rows(rows, rivals, count, space.y, slack)
            for i in range(count):
                if slack[i] - bound[rivals[i]] < least:
                    worst, least = rivals[i], slack[i] - bound[rivals[i]]
            if worst < 0:
                break
            more = _enter(rows, space, worst, -least)
            if not more:
                return -1
            changes += more


def _search_all(rows: Float[Array, "k r"], bound: Float[Array, " k"], space: WorkingSet) -> bool:
    """Bring the working set to the solution; False where there seems to be none, or after many changes.

    All rows are looked at whenever the worst violation has fallen to a share; the least satisfied are then in play.
    """
    r = rows.shape[1]
    left = _PIVOTS * r
    while left > 0:
        slack = rows @ space.y
        slack -= bound
        worst = -slack.item(slack.argmin())
        if worst <= SATISFIED:
            _refine_multipliers(rows, bound, space)
            return True
        changes = _exchange_in_play(rows, bound, _least_satisfied(slack, r), space, max(_FALL * worst, SATISFIED / 2))
        if changes < 0:
            return False
        left -= max(changes, 1)
    return False
