"""What a tracker's state says beyond its basis: eigenvalues, error bars, order, events."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from bracketflow.core import Array, State, diagonal, to_host
from bracketflow.sharding import row_count
from bracketflow.tracker import average, full
from bracketflow.tracker.gain import Alarm, Gain
from bracketflow.tracker.span import Span, ritz_values

LONGEST = 1e6  # squared: any error bar so long says that nothing is known


class Reading(NamedTuple):
    """Figures of a state, as NumPy arrays, one entry (the last axis) a column of the basis."""

    eigenvalues: np.ndarray
    """Averaged, less their mean: add `probe.background` for the spectrum of C itself."""
    eigenvalue_errors: np.ndarray
    """|error| of an eigenvalue stays below this with the chosen probability."""
    vector_errors: np.ndarray
    """‖x_i − u_i‖ stays below this with the chosen probability, while the signal stands still."""
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
    codimension: int
    gain: Gain
    alarm: Alarm


def read(state: State, coverage: float) -> Reading:
    """The reading of a state; see `EigenTracker.read`."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
    spread, values = _spread(state), eigenvalues(state)
    k = values.shape[-1]
    noise = np.asarray(spread.gain.noise)[..., None]
    own = np.diagonal(spread.variance, axis1=-2, axis2=-1)
    return Reading(
        values,
        NormalDist().inv_cdf(0.5 + 0.5 * coverage) * np.sqrt(own * noise),
        _radius(spread, noise, k, coverage),
        np.argsort(-values, axis=-1, kind="stable"),
        np.asarray(spread.gain.memory),
        np.asarray(spread.alarm.jumps),
        np.asarray(spread.alarm.jumped_at),
    )


def eigenvalues(state: State) -> np.ndarray:
    """The averaged eigenvalues of the columns, less their mean."""
    k = state.basis.shape[-1]
    values = (_frame_values if k == row_count(state.basis) else _leading_values)(state)[..., :k]
    return np.asarray(values - values.mean(axis=-1, keepdims=True))


def _frame_values(state: State) -> np.ndarray:
    mean = full.restored(state.memory).mean
    return to_host(diagonal(mean)).astype(float)


def _leading_values(state: State) -> np.ndarray:
    """Of the k columns as averaged, and of the others as the mean keeps them."""
    memory, span, _ = state.memory
    mean, span = average.restored(memory), Span(*span)
    values = to_host(mean.values).astype(float)
    ritz = ritz_values(span) if span.turn.shape[-1] else mean.ritz
    values[..., : state.basis.shape[-1]] = to_host(ritz)
    return np.asarray(values - to_host(mean.bulk)[..., None])


def _spread(state: State) -> _Spread:
    square = state.basis.shape[-1] == row_count(state.basis)
    return _of_frame(state) if square else _of_leading(state)


def _of_frame(state: State) -> _Spread:
    frame = full.restored(state.memory)
    values = _frame_values(state)
    variance = to_host(frame.variance).astype(float)
    return _Spread(values, variance, 0 * values, 1, frame.gain, frame.alarm)


def _of_leading(state: State) -> _Spread:
    mean = average.restored(state.memory[0])
    n, values = row_count(state.basis), _leading_values(state)
    variance, power = to_host(mean.variance).astype(float), to_host(mean.power).astype(float)
    return _Spread(values, variance, power, n - values.shape[-1], mean.gain, mean.alarm)


def _radius(spread: _Spread, noise: Array, k: int, coverage: float) -> np.ndarray:
    """Quantile of ‖x_i − u_i‖: a weighted sum of χ², matched in mean and variance."""
    tiny = np.finfo(float).tiny
    gaps = spread.values[..., :k, None] - spread.values[..., None, :]
    gaps[..., np.arange(k), np.arange(k)] = np.inf
    with np.errstate(over="ignore"):  # equal eigenvalues: the bar is as long as it can be
        inside = spread.variance * noise[..., None] / np.maximum(gaps**2, tiny)
        outside = spread.power * noise / np.maximum(spread.values[..., :k] ** 2, tiny)
    inside, outside = np.minimum(inside, LONGEST), np.minimum(outside, LONGEST)
    mean = inside.sum(axis=-1) + outside
    square = (inside**2).sum(axis=-1) + outside**2 / max(spread.codimension, 1)
    ratio = 2 / 9 * square / np.maximum(mean**2, tiny)
    # Wilson and Hilferty: the cube root of χ² is nearly normal.
    root = 1 - ratio + NormalDist().inv_cdf(coverage) * np.sqrt(ratio)
    return np.asarray(np.minimum(np.sqrt(mean * np.maximum(root, 0.0) ** 3), 2**0.5))
