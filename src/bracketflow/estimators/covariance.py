"""The covariance of all rows so far, about their mean: q columns and a level for the rest.

Rows stay in reach while they are absorbed, so there is no need to make do with one product as
`EigenTracker` must: the next columns are an SVD of the old ones and the new rows. What the columns
do not hold is not dropped but counted as a level, so that a background turns no column.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bracketflow.core import Array
from bracketflow.geometry import upright


class Covariance(NamedTuple):
    """C̄ = level·I + Σ_i spread_i² x_i x_iᵀ, exact for q = n columns; O(nq) memory."""

    vectors: Array
    """The x_i as rows, (q, n), by descending eigenvalue, largest entry positive."""
    spread: Array
    level: float
    """Mean eigenvalue of the directions outside the columns; for q = n the lowest of all, so that
    a background is not rounded again with every batch."""
    fourth: Array
    """Mean fourth power of the rows along each column."""
    mean: Array
    variance: Array
    """The diagonal of C̄."""
    seen: Array
    """Weight of the entries that were there, one number a feature."""
    weight: float
    """Weight of all rows; the newest has 1."""
    noise: float
    """Σw²/(Σw)²: one over the number of rows that count."""

    @property
    def values(self) -> Array:
        """Eigenvalues of the columns."""
        return self.level + self.spread.astype(float) ** 2

    @property
    def errors(self) -> Array:
        """Standard errors of the eigenvalues, from the scatter of the squares of the rows."""
        return np.sqrt(np.maximum(self.fourth - self.values**2, 0.0) * self.noise)


def nothing(columns: int, features: int, dtype: np.dtype) -> Covariance:
    """No rows yet."""
    zero = np.zeros(features)
    return Covariance(
        vectors=np.eye(columns, features, dtype=dtype),
        spread=np.zeros(columns, dtype=dtype),
        level=0.0,
        fourth=np.zeros(columns),
        mean=zero,
        variance=zero,
        seen=zero,
        weight=0.0,
        noise=0.0,
    )


def absorbed(past: Covariance, rows: Array, *, keep: float = 1.0, kept: float = 1.0) -> Covariance:
    """C̄ after more rows (b, n), where NaN marks an entry that is missing and counts as the mean.

    With w_i = keep^(b−1−i), W the weight of the past times `kept`, and m′ the new mean,

        (W + Σw_i) C̄′ = W (C̄ + δδᵀ) + Σ w_i (x_i − m′)(x_i − m′)ᵀ,    δ = m − m′;

    for kept = keep^b it does not matter how the rows were cut.
    """
    weights = keep ** np.arange(len(rows) - 1, -1, -1.0)
    weight = kept * past.weight + weights.sum()
    share, shares = kept * past.weight / weight, weights / weight
    present = ~np.isnan(rows)
    before = kept * past.seen
    seen = before + weights @ present
    centred = np.where(present, rows - past.mean, 0.0)
    shift = weights @ centred / np.where(seen > 0, seen, 1.0)
    centred = np.where(present, centred - shift, 0.0)
    correction = np.sqrt(before / weight) * shift
    variance = share * past.variance + shares @ centred**2 + correction**2
    parts = [
        np.sqrt(share) * past.spread[:, None] * past.vectors,
        np.sqrt(shares)[:, None] * centred,
        correction[None, :],
    ]
    vectors, squares = _leading(np.concatenate(parts, dtype=past.vectors.dtype), len(past.spread))
    values = share * past.level + squares
    level = _unseen_level(variance, values)
    return Covariance(
        vectors=vectors,
        spread=np.sqrt(values - level).astype(vectors.dtype),
        level=level,
        fourth=share * past.fourth + shares @ (centred @ vectors.T) ** 4,
        mean=past.mean + shift,
        variance=variance,
        seen=seen,
        weight=float(weight),
        noise=float(share**2 * past.noise + shares @ shares),
    )


def _leading(stack: Array, columns: int) -> tuple[Array, Array]:
    """Leading right singular vectors of the stack, as rows, and the squares of its values."""
    _, singular, vectors = np.linalg.svd(stack, full_matrices=False)
    return upright(vectors[:columns].T).T, singular[:columns].astype(float) ** 2


def _unseen_level(variance: Array, values: Array) -> float:
    """Mean of the eigenvalues beside `values`, from the trace, or the lowest of these.

    The latter where there are no others, or where rounding puts their mean above it.
    """
    unseen = len(variance) - len(values)
    if unseen == 0:
        return float(values[-1])
    return float(np.clip((variance.sum() - values.sum()) / unseen, 0.0, values[-1]))
