"""How the columns of a running mean turn: singular vectors from small matrices, places kept."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from bracketflow.core import (
    Array,
    any_member,
    column_inner,
    epsilon,
    frobenius_squared,
    identity_like,
    least_squared,
    namespace,
    to_host,
)
from bracketflow.geometry import taken
from bracketflow.sharding import over_rows
from bracketflow.tracker.gain import per_member
from bracketflow.tracker.identity import continued

DEFECT = 32  # of XᵀX, in roundings, that is taken off
EVEN = (0.05, 0.1)  # gains at which none and all of the extra columns are evened
PLAIN = 2.5  # times the median of the extra columns: those above it are more than noise
LEAST = 1e-3  # of the spread: the least that Λ is raised above zero
APART = 0.2  # of its height: a gap below the top k at which a column cannot be leaving


def places(values: Array, k: int) -> Array:
    """The k columns in the frame of all q: [I 0]."""
    return identity_like(values)[:k] + 0 * values[..., None, :]


def levels(within: Array, bulk: Array | None) -> tuple[Array, Array]:
    """μ with XᵀMX − μ positive, and the level of the bulk; both the lowest where there is no bulk.

    Where M falls below the bulk its image must keep its sign, so μ is lower than both.
    """
    xp, identity = namespace(within), identity_like(within)
    if bulk is None:
        bulk = lowest = xp.linalg.eigvalsh(within)[..., :1]
    else:
        bulk = lowest = bulk[..., None]
        if not _positive(within - bulk[..., None] * identity):
            lowest = xp.linalg.eigvalsh(within)[..., :1]
            lowest = xp.where(lowest < bulk, lowest, bulk)
    # Not less than any eigenvalue, and the same for all columns of one span.
    height = frobenius_squared(within - lowest[..., None] * identity) ** 0.5
    return (lowest - LEAST * height[..., None] - least_squared(within))[..., None], bulk


def _positive(matrix: Array) -> bool:
    """Whether a symmetric matrix, all of them in an ensemble, is positive definite."""
    try:
        namespace(matrix).linalg.cholesky(matrix)
    except (ValueError, RuntimeError):  # what NumPy's and torch's LinAlgError are
        return False
    return True


def evened(values: Array, bulk: Array, k: int, g: Any) -> Array:
    """Λ with that of the noisy extra columns made equal where the gain g is large.

    Columns that follow noise at unequal rates let roundings grow; in a long mean they do not.
    """
    xp = namespace(values)
    if not any_member(g > EVEN[0]):
        return values
    even = per_member(np.clip((g - EVEN[0]) / (EVEN[1] - EVEN[0]), 0.0, 1.0), values)[..., 0]
    extra = values[..., k:] - bulk
    middle = extra.shape[-1] // 2
    noise = extra <= PLAIN * xp.sort(extra, axis=-1)[..., middle : middle + 1]
    count = xp.sum(xp.astype(noise, extra.dtype), axis=-1, keepdims=True)
    mean = xp.sum(xp.where(noise, extra, 0 * extra), axis=-1, keepdims=True) / count
    extra = xp.where(noise, extra + even * (mean - extra), extra)
    return xp.concat([values[..., :k], bulk + extra], axis=-1)


def singular(gram: Array) -> tuple[Array, Array]:
    """Σ and T, descending, with ZT = U of Z = UΣVᵀ, from `gram`, which is ZᵀZ."""
    xp = namespace(gram)
    squares, vectors = xp.linalg.eigh(-gram)
    squares = -squares
    least = squares[..., :1] * (epsilon(gram) * gram.shape[-1])
    values = xp.sqrt(xp.where(squares > least, squares, least))
    return values, vectors / values[..., None, :]


def ritz_values(within: Array, gram: Array, turn: Array, inside: Array) -> Array:
    """Ritz values of M in the columns of ZT, T = `turn`.

    `within` is A = XᵀZ, Z = XA + R, `gram` ZᵀZ, and `inside` AT; M is taken to vanish outside of
    span[X, R], so that ZᵀMZ = A ZᵀZ + RᵀR A.
    """
    mapped = within @ (gram @ turn) + gram @ inside - within @ (within @ inside)
    return column_inner(turn, mapped)


def enough(square: Any) -> Any:
    """The square of what is left of a unit vector, inf where that is next to nothing."""
    if isinstance(square, np.floating):
        return square if square > LEAST else square + inf
    return namespace(square).where(square > LEAST, square, square + inf)


def raised(values: Array) -> Array:
    """max(v, 0): a column is never remembered as lower than what was not seen."""
    return namespace(values).where(values > 0, values, 0 * values)


def polished(columns: Array) -> Array:
    """Nearly orthonormal `columns`, made so to rounding: X(3 − XᵀX)/2, which squares the defect."""
    small = (DEFECT * epsilon(columns)) ** 2 * columns.shape[-1]
    for _ in range(4):
        defect = identity_like(columns) - over_rows(columns.mT @ columns)
        square = to_host(frobenius_squared(defect)).max()
        if square <= small:
            break
        columns = columns + columns @ (0.5 * defect)
        if square**2 <= small:
            break
    return columns


def followed(anchor: Array, values: Array) -> tuple[Array, Any]:
    """The anchor for the next turn, and which of its columns now lie outside the top k.

    While a column's value is close to those below the top k, noise may turn it out of them little
    by little; otherwise only a swap can.
    """
    xp = namespace(values)
    k = anchor.shape[-2]
    within, beyond = anchor[..., :k].mT, anchor[..., k:].mT
    outside = column_inner(beyond, beyond)
    left, lost = outside > 0.5, column_inner(within, within) + outside < 0.5
    gap = values[..., :k] - values[..., k : k + 1]  # those beyond k descend
    renewed = left | lost | (gap > APART * values[..., :k])
    return xp.where(renewed[..., None], places(values, k), anchor), to_host(left)


def identified(
    values: Array, inside: Array, turn: Array, k: int, settled: bool
) -> tuple[Array, Array, Array]:
    """The leading k in the places, and with the signs, of the columns they continue."""
    order, sign = continued(inside[..., :k, :k], values.shape[-1], settled=settled)
    if order is not None:
        values, inside, turn = (taken(part, order) for part in (values, inside, turn))
    sign = sign[..., None, :]
    return values, inside * sign, turn * sign
