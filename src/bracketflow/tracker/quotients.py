"""Rayleigh quotients of the columns, of observations that had no say in them yet.

However noisy, they tell the truth: they grow while the columns are learned and fall when the signal
has left them. One number for each of the leading columns, above that of what is outside of them,
(..., k) on the host, and one for all columns of a full basis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

SURE = 15.0  # log-likelihood ratio at which a column has lost its eigenvalue
MOST = 5.0  # of it from a single observation
LEAK = 4.0  # times as fast as the mean forgets, which is no better known: evidence is forgotten
SUSPECT = 1.0  # from here on an observation may be of another signal
BRIEF = 1 / 16  # of the memory of the mean, at most, is averaged to see eigenvalues rise,
BRIEFEST = 2.0  # times the weight of the latest observations at least
LATE = 1.5  # times its variance is the mean square of its error, when it is as late as is best
RISEN = 4.0  # errors of it that are taken for noise
TINY = np.finfo(float).tiny


class Quotients(NamedTuple):
    """Averaged quotients, and the evidence that they are so no more."""

    mean: Any
    variance: Any
    """Of a single observation of weight 1."""
    loss: Any
    """Page's cumulative sum of log-likelihood ratios: all of the height is lost, or nothing."""
    turned: Any
    """The mean as of the last turn."""
    lean: Any
    """How much lower or higher a larger gain would have put it."""


def start(ensemble: tuple[int, ...], k: int) -> Quotients:
    """Nothing seen."""
    zero = np.zeros((*ensemble, k))
    return Quotients(zero, zero, zero, zero, zero)


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
    mean, variance, loss, *_ = quotients
    kept, floor = np.maximum(1 - LEAK * g, 0.0), weight * rounding**2 + TINY
    g, rate, kept, most, floor = np.asarray([g, rate, kept, MOST * ready, floor])[..., None]
    change, height = fresh - mean, np.maximum(mean, 0.0)
    odds = (-weight * height) * (change + 0.5 * height) / (variance + floor)
    square = (weight * (1 - g)) * change**2
    return quotients._replace(
        mean=mean + g * change,
        variance=variance + (loss < SUSPECT) * rate * (square - variance),
        loss=np.maximum(kept * loss + np.minimum(odds, most), 0.0),
    )


def lost(quotients: Quotients) -> Any:
    """Members of which a column has lost its eigenvalue."""
    return (quotients.loss > SURE).any(axis=-1)


def leaning(quotients: Quotients, share: Any, weight: Any) -> tuple[Quotients, Any, Any]:
    """At a turn: <change, lean> of those that have been falling, and its variance.

    The change is the mean one of observations that make up a `share` of all and have this `weight`.
    Those that rise are no evidence: so does every column while it is learned.
    """
    mean, variance, lean = quotients.mean, quotients.variance, quotients.lean
    moved = mean - quotients.turned
    falling = (lean < 0) & (variance > 0)
    scaled = np.where(falling, lean, 0.0) / np.where(falling, variance, 1.0)
    along = np.sum(moved * scaled, axis=-1) / share
    doubt = np.sum(lean * scaled, axis=-1) / weight
    lean = np.asarray(1 - share)[..., None] * lean + moved
    return quotients._replace(turned=mean, lean=lean), along, doubt


class Rise(NamedTuple):
    """How far quotients are above those of the mean, lately.

    Noise that the columns have learned, and vectors that they have not, put them below. So they are
    above only when eigenvalues have risen since; the vectors, which may stay, need not forget.
    """

    ahead: Any
    variance: Any
    """Of a single observation of weight 1."""
    noise: Any
    """Variance of `ahead` when that is 1."""


def flat(ensemble: tuple[int, ...], k: int) -> Rise:
    """Nothing seen."""
    zero = np.zeros((*ensemble, k))
    return Rise(zero, zero, zero)


def rising(rise: Rise, above: Any, weight: Any, *, memory: Any, rate: Any) -> Rise:
    """After observations in which the quotients are so far above those of a mean of `memory`.

    For eigenvalues that rise by v, by a = v·memory since, an average over m is late by vm, of noise
    σ²/2m: the best is m³ = σ²/4v², here with a limit to it.
    """
    weight, memory, rate = np.asarray([weight, memory, rate])[..., None]
    added, _ = risen(rise)
    speed = 4 * memory * added**2 + rise.variance / BRIEF**3 + TINY
    best = memory * np.cbrt(rise.variance / speed)
    g = weight / (np.maximum(best, BRIEFEST * weight) + weight)
    change = above - rise.ahead
    return Rise(
        rise.ahead + g * change,
        rise.variance + rate * (weight * (1 - g) * change**2 - rise.variance),
        (1 - g) ** 2 * rise.noise + g * g / weight,
    )


def risen(rise: Rise) -> tuple[Any, Any]:
    """What the eigenvalues of the mean are to be raised by, and the mean square of its error.

    That is a(1 − (ze/a)⁴), or nothing where it is less, for an average `a` of error e.
    """
    square = LATE * rise.variance * rise.noise
    noise = RISEN * np.sqrt(square)
    clear = rise.ahead > noise
    ahead = np.where(clear, rise.ahead, 1.0)
    return np.where(clear, ahead * (1 - (noise / ahead) ** 4), 0.0), np.where(clear, square, 0.0)
