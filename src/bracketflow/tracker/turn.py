"""How the columns of a running mean turn: singular vectors from small matrices, places kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from bracketflow.core import (
    Array,
    column_inner,
    epsilon,
    frobenius_squared,
    identity_like,
    namespace,
    to_host,
)
from bracketflow.geometry import taken
from bracketflow.sharding import over_rows
from bracketflow.tracker.gain import per_member
from bracketflow.tracker.identity import continued

DEFECT = 32  # of XᵀX, in roundings, that is taken off
EVEN = (0.05, 0.1)  # part of the mean that is new: none and all of the extra columns are evened
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
    xp = namespace(within)
    values = xp.linalg.eigvalsh(within)
    lowest = values[..., :1]
    bulk = lowest if bulk is None else bulk[..., None]
    tiny = float(xp.finfo(within.dtype).smallest_normal) ** 0.5
    margin = LEAST * (values[..., -1:] - lowest) + tiny
    return (bulk - raised(bulk - lowest) - margin)[..., None], bulk


def evened(values: Array, bulk: Array, k: int, share: Any) -> Array:
    """Λ with that of the noisy extra columns made equal where much of the mean is new.

    Columns that follow noise at unequal rates let roundings grow; in a long mean they do not.
    """
    xp = namespace(values)
    even = per_member(np.clip((share - EVEN[0]) / (EVEN[1] - EVEN[0]), 0.0, 1.0), values)[..., 0]
    extra = values[..., k:] - bulk
    middle = extra.shape[-1] // 2
    noise = extra <= PLAIN * xp.sort(extra, axis=-1)[..., middle : middle + 1]
    count = xp.sum(xp.astype(noise, extra.dtype), axis=-1, keepdims=True)
    mean = xp.sum(xp.where(noise, extra, 0 * extra), axis=-1, keepdims=True) / count
    extra = xp.where(noise, extra + even * (mean - extra), extra)
    return xp.concat([values[..., :k], bulk + extra], axis=-1)


def singular(within: Array, gram: Array, k: int) -> tuple[Array, Array, Array]:
    """Σ and T, descending, with ZT = U of Z = UΣVᵀ, and the Ritz values of M in the leading k.

    `within` is A = XᵀZ, Z = XA + R, and `gram` ZᵀZ; M is taken to vanish outside of span[X, R], so
    that ZᵀMZ = A ZᵀZ + RᵀR A.
    """
    xp = namespace(gram)
    squares, vectors = xp.linalg.eigh(gram)
    squares, vectors = xp.flip(squares, axis=-1), xp.flip(vectors, axis=-1)
    least = squares[..., :1] * (epsilon(gram) * gram.shape[-1])
    values = xp.sqrt(xp.where(squares > least, squares, least))
    turn = vectors / values[..., None, :]
    leading = turn[..., :k]
    inside = within @ leading
    mapped = within @ (gram @ leading) + gram @ inside - within @ (within @ inside)
    return values, turn, column_inner(leading, mapped)


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
    squares = anchor * anchor
    left = xp.sum(squares[..., k:], axis=-1) > 0.5
    gap = values[..., :k] - xp.max(values[..., k:], axis=-1, keepdims=True)
    lost = xp.sum(squares, axis=-1) < 0.5
    renewed = left | lost | (gap > APART * values[..., :k])
    return xp.where(renewed[..., None], places(values, k), anchor), to_host(left)


def identified(
    values: Array, ritz: Array, inside: Array, turn: Array, settled: bool
) -> tuple[Array, Array, Array, Array]:
    """The leading k in the places, and with the signs, of the columns they continue."""
    k = ritz.shape[-1]
    order, sign = continued(inside[..., :k, :k], values.shape[-1], settled=settled)
    if order is not None:
        ritz = taken(ritz, order[..., :k])
        values, inside, turn = (taken(part, order) for part in (values, inside, turn))
    sign = sign[..., None, :]
    return values, ritz, inside * sign, turn * sign
