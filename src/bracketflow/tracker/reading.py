"""What a tracker's state says beyond its basis: eigenvalues, error bars, order, events."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from bracketflow.core import Array, State, diagonal, to_host
from bracketflow.sharding import row_count
from bracketflow.tracker import full, running
from bracketflow.tracker.gain import Alarm, Gain
from bracketflow.tracker.quotients import risen
from bracketflow.tracker.span import Span, rayleigh_of_basis, restored, ritz_values

LOST = 20  # observations whose word on the vectors is lost while the columns have yet to find them
FARTHEST = 2**0.5  # of a unit vector, with the sign that fits best
HIDING = 3  # residuals around a Ritz value in which there may be eigenvalues, seen and unseen
NARROWEST = 0.05
CLEAR = 4  # residuals of a vector that fit into its gap, or it may still be another one
BESIDE = 3  # columns beside the k that a span must hold before it tells one vector from another
LONGEST = 1e6  # squared: any error bar so long says that nothing is known


class Reading(NamedTuple):
    """Figures of a state, as NumPy arrays, one entry (the last axis) a column of the basis."""

    eigenvalues: np.ndarray
    """Averaged, less their mean: add `probe.background` for the spectrum of C itself."""
    eigenvalue_errors: np.ndarray
    """|error| of an eigenvalue stays below this with the chosen probability; inf if not known."""
    vector_errors: np.ndarray
    """‖x_i − u_i‖ stays below this with the chosen probability, while the vectors stand still."""
    order: np.ndarray
    """Permutation that sorts the columns by descending eigenvalue: it changes at a crossing."""
    memory: np.ndarray
    """Weight of the running mean against the next observation."""
    jumps: np.ndarray
    """Jumps of the signal found so far."""
    jumped_at: np.ndarray
    """Step of the last of them, −1 for none."""


class _Spread(NamedTuple):
    """Values above the bulk, and variances of the entries of H and R for one unit of weight."""

    values: np.ndarray
    variance: np.ndarray
    power: np.ndarray
    bulk: np.ndarray
    """Variance of the eigenvalues outside."""
    codimension: int
    gain: Gain
    alarm: Alarm
    risen: np.ndarray | float = 0.0
    """Mean square error of what was added to values that rise."""


def read(state: State, coverage: float) -> Reading:
    """The reading of a state; see `EigenTracker.read`."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
    spread, span = _spread(state), _span(state)
    of_values, of_vectors = _of_noise(spread, coverage) if span is None else _of_residuals(span)
    return Reading(
        eigenvalues(state),
        of_values,
        of_vectors,
        ranking(state),
        np.asarray(spread.gain.memory),
        np.asarray(spread.alarm.jumps),
        np.asarray(spread.alarm.jumped_at),
    )


def _of_noise(spread: _Spread, coverage: float) -> tuple[np.ndarray, np.ndarray]:
    """Error bars of averages; as long as can be before two observations have told of the noise."""
    k = spread.variance.shape[-2]
    noise = np.asarray(spread.gain.noise)[..., None]
    own = np.diagonal(spread.variance, axis1=-2, axis2=-1)
    of_values = NormalDist().inv_cdf(0.5 + 0.5 * coverage) * np.sqrt(own * noise + spread.risen)
    unknown = np.asarray(spread.gain.count)[..., None] < 2
    return (
        np.where(unknown, np.inf, of_values),
        np.where(unknown, FARTHEST, _radius(spread, noise, k, coverage)),
    )


def _of_residuals(span: Span) -> tuple[np.ndarray, np.ndarray]:
    """Error bars of Ritz pairs in a span, where there is no noise: r, and r over the gap.

    An eigenvalue lies within a residual of every Ritz value, which may be next to that of another
    one, but hardly ever closer than a NARROWEST part of what they are apart. Vectors are not known
    before their gaps are several residuals wide, in a span that holds more than them.
    """
    k = span.turn.shape[-1]
    if span.fresh.shape[-2]:
        return np.full(k, np.inf), np.full(k, FARTHEST)
    coupling = to_host(span.coupling).T
    _, gram = rayleigh_of_basis(span)
    residuals = np.sqrt(np.diagonal(to_host(gram))) + span.floor
    values, vectors = np.linalg.eigh(to_host(span.rayleigh))
    apart = np.abs(to_host(ritz_values(span))[:, None] - values)
    around = HIDING * np.linalg.norm(coupling @ vectors, axis=0) + span.floor
    gaps = np.maximum(apart - around, NARROWEST * apart)
    gaps[np.arange(k), np.argmin(apart, axis=-1)] = np.inf
    gap = np.min(gaps, axis=-1)
    known = (gap > CLEAR * residuals) & (span.size >= k + BESIDE)
    return residuals, np.where(known, residuals / np.where(known, gap, 1.0), FARTHEST)


def eigenvalues(state: State) -> np.ndarray:
    """The averaged eigenvalues of the columns, less their mean."""
    values = _averaged(state)
    return np.asarray(values - values.mean(axis=-1, keepdims=True))


def ranking(state: State) -> np.ndarray:
    """The permutation that sorts the columns by descending eigenvalue."""
    return np.argsort(-_averaged(state), axis=-1, kind="stable")


def values_changed(before: State, after: State) -> bool:
    """Whether what the eigenvalues are read off has changed in a step."""
    if before.order is None or before.basis.shape[-1] == row_count(before.basis):
        return True
    former, mean = (running.restored(state.memory[0]) for state in (before, after))
    same = former.ritz is mean.ritz and former.rise is mean.rise
    return not same or before.memory[1] is not after.memory[1]


def _averaged(state: State) -> np.ndarray:
    """The eigenvalues of the columns, above a level of their own."""
    if state.basis.shape[-1] == row_count(state.basis):
        values = diagonal(full.restored(state.memory).mean)
    else:
        span, mean = _span(state), running.restored(state.memory[0])
        if span is None:
            added, _ = risen(mean.rise)
            return np.asarray(to_host(mean.ritz) + added, dtype=float)
        values = ritz_values(span)
    return to_host(values).astype(float)


def _span(state: State) -> Span | None:
    """The span of a signal that stands still."""
    if state.basis.shape[-1] == row_count(state.basis):
        return None
    span = restored(state.memory[1])
    return span if span.turn.shape[-1] else None


def _spread(state: State) -> _Spread:
    square = state.basis.shape[-1] == row_count(state.basis)
    return _of_frame(state) if square else _of_leading(state)


def _of_frame(state: State) -> _Spread:
    frame = full.restored(state.memory)
    values = _averaged(state)
    variance = to_host(frame.variance).astype(float)
    return _Spread(values, variance, 0 * values, 0 * values, 1, frame.gain, frame.alarm)


def _of_leading(state: State) -> _Spread:
    mean = running.restored(state.memory[0])
    n, k = row_count(state.basis), state.basis.shape[-1]
    values = to_host(mean.values).astype(float)  # of the other columns as the mean keeps them
    values[..., :k] = _averaged(state)
    values -= to_host(mean.bulk)[..., None]
    variance, power = to_host(mean.variance).astype(float), to_host(mean.power).astype(float)
    bulk = to_host(mean.spread).astype(float)[..., None]
    codimension = n - values.shape[-1]
    if codimension == 0:
        power = 0 * power  # what it holds is rounding
    lost = 1 + LOST / np.maximum(np.asarray(mean.gain.count), 1)[..., None]
    power = lost * power
    variance = variance * np.where(np.eye(k, values.shape[-1]) > 0, 1.0, lost[..., None])
    _, added = risen(mean.rise)
    added = added + added.sum(axis=-1, keepdims=True) / k**2  # they are read less their mean
    return _Spread(values, variance, power, bulk, codimension, mean.gain, mean.alarm, added)


def _radius(spread: _Spread, noise: Array, k: int, coverage: float) -> np.ndarray:
    """Quantile of ‖x_i − u_i‖: a weighted sum of χ², matched in mean and variance."""
    tiny = np.finfo(float).tiny
    gaps = spread.values[..., :k, None] - spread.values[..., None, :]
    gaps[..., np.arange(k), np.arange(k)] = np.inf
    with np.errstate(over="ignore"):  # equal eigenvalues: the bar is as long as it can be
        inside = spread.variance * noise[..., None] / np.maximum(gaps**2, tiny)
        # The mean of 1/(h − ξ)² over ξ of variance v is (1 + 3v/h²)/h², and more.
        inverse = 1 / np.maximum(spread.values[..., :k] ** 2, tiny)
        outside = spread.power * noise * inverse * (1 + 3 * spread.bulk * inverse)
    inside, outside = np.minimum(inside, LONGEST), np.minimum(outside, LONGEST)
    mean = inside.sum(axis=-1) + outside
    square = (inside**2).sum(axis=-1) + outside**2 / max(spread.codimension, 1)
    ratio = 2 / 9 * square / np.maximum(mean**2, tiny)
    # Wilson and Hilferty: the cube root of χ² is nearly normal.
    root = 1 - ratio + NormalDist().inv_cdf(coverage) * np.sqrt(ratio)
    return np.asarray(np.minimum(np.sqrt(mean * np.maximum(root, 0.0) ** 3), FARTHEST))
