"""Rayleigh quotients of the leading columns, of observations that had no say in them yet.

However noisy, they tell the truth: they grow while the columns are learned and fall when the signal
has left them. One number a column, (..., k), on the host, at the level of the reference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SURE = 15.0  # log-likelihood ratio at which a column has lost its eigenvalue
MOST = 5.0  # of it from a single observation
LEAK = 4.0  # times as fast as the mean forgets, which is no better known: evidence is forgotten
SUSPECT = 1.0  # from here on an observation may be of another signal


class Quotients(NamedTuple):
    """Averaged quotients, and the evidence that they are so no more."""

    mean: Any
    variance: Any
    """Of a single observation of weight 1."""
    loss: Any
    """Page's cumulative sum of log-likelihood ratios: all of the height is lost, or nothing."""


def start(ensemble: tuple[int, ...], k: int) -> Quotients:
    """Nothing seen."""
    zero = np.zeros((*ensemble, k))
    return Quotients(zero, zero, zero)


def watched(
    quotients: Quotients,
    fresh: Any,
    weight: float,
    *,
    g: Any,
    rate: Any,
    ready: Any,
    rounding: Any,
) -> Quotients:
    """After an observation, which moves the mean by g of the difference, the variance by `rate`.

    For a column of height h above the bulk that is lower by f than usual, the log-likelihood ratio
    is h(f − h/2)/σ²: so only what takes half of the height can ever be taken for a loss.
    """
    mean, variance, loss = quotients
    g, rate, ready, rounding = (np.asarray(part)[..., None] for part in (g, rate, ready, rounding))
    change = fresh - mean
    height = np.maximum(mean, 0.0)
    noise = variance + weight * rounding**2 + np.finfo(float).tiny
    odds = -weight * height * (change + 0.5 * height) / noise
    kept = np.maximum(1 - LEAK * g, 0.0)
    square = weight * (1 - g) * change**2
    return Quotients(
        mean + g * change,
        variance + (loss < SUSPECT) * rate * (square - variance),
        ready * np.maximum(kept * loss + np.minimum(odds, MOST), 0.0),
    )


def lost(quotients: Quotients) -> Any:
    """Members of which a column has lost its eigenvalue."""
    return np.any(quotients.loss > SURE, axis=-1)
