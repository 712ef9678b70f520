"""Centring as rows come in: operators whose weighted mean is the covariance of all rows so far."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bracketflow.core import Array, namespace
from bracketflow.oracles import Operator, gram


class Moments(NamedTuple):
    """Rows seen so far: how many, and their mean."""

    rows: int = 0
    mean: Any = None
    """(n,) in float64 whatever the rows are; None before the first batch."""


class Covariance(NamedTuple):
    """What one batch of rows adds to the covariance of all of them."""

    operator: Operator
    total: float
    """Its trace, the total variance."""
    moments: Moments
    """Of all rows up to and with this batch."""


def covariance(rows: Any, seen: Moments) -> Covariance:
    """What `rows` add to a covariance around the running mean.

    With N rows of mean m before and b rows of mean m_b now,

        C = [ Σ (x − m_b)(x − m_b)ᵀ + N b/(N + b) (m_b − m)(m_b − m)ᵀ ] / b,    weight b.

    The weighted mean of all C is exactly Σ (x − m̄)(x − m̄)ᵀ/N around the mean m̄ of all rows,
    however they were batched.
    """
    b = int(rows.shape[0])
    wide = rows if sparse.issparse(rows) else _double(rows)
    mean = column_means(wide)
    before = 0 * mean if seen.mean is None else seen.mean
    shift, total = mean - before, seen.rows + b
    moments = Moments(total, before + shift * (b / total))
    shift = shift * (seen.rows * b / total) ** 0.5
    if sparse.issparse(rows):
        return _of_sparse(rows, mean, shift, moments)
    xp = namespace(rows)
    centred = xp.concat([wide - mean, shift[None, :]], axis=0)
    mean_square = gram(xp.astype(centred, rows.dtype, copy=False))  # of b + 1 rows
    operator = mean_square.derived(
        product=lambda block: (mean_square @ block) * ((b + 1) / b), weight=float(b)
    )
    return Covariance(operator, power(centred) / b, moments)


def second_moment(rows: Any, seen: Moments) -> Covariance:
    """What `rows` add to Σ xxᵀ/N, nothing taken out: `gram(rows)`."""
    b = int(rows.shape[0])
    return Covariance(gram(rows), power(rows) / b, Moments(seen.rows + b))


def _of_sparse(rows: Any, mean: Array, shift: Array, moments: Moments) -> Covariance:
    """The same with the mean taken out of the product, so that the rows stay sparse."""
    raw, b = gram(rows), int(rows.shape[0])

    def product(block: Array) -> Array:
        about_mean = mean[:, None] * (mean @ block) - shift[:, None] * (shift @ block) / b
        return (raw @ block) - about_mean.astype(block.dtype)

    total = (power(rows) + float(shift @ shift)) / b - float(mean @ mean)
    return Covariance(raw.derived(product=product), total, moments)


def _double(rows: Array) -> Array:
    xp = namespace(rows)
    return xp.astype(rows, xp.float64, copy=False)


def column_means(rows: Any) -> Array:
    """Mean of the rows; of sparse ones in float64."""
    if sparse.issparse(rows):
        return np.asarray(rows.mean(axis=0, dtype=np.float64)).ravel()
    return namespace(rows).mean(rows, axis=0)


def power(rows: Any) -> float:
    """Sum of all squares, in float64."""
    entries = _double(rows.data if sparse.issparse(rows) else rows).reshape(-1)
    return float(entries @ entries)
