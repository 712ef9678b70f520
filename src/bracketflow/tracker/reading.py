"""What a tracker's state says beyond its basis: eigenvalues, error bars, order, memory."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

from bracketflow.core import State
from bracketflow.sharding import row_count
from bracketflow.tracker import ladder as ladders
from bracketflow.tracker.block import Block
from bracketflow.tracker.ladder import Ladder
from bracketflow.tracker.members import members_of
from bracketflow.tracker.whole import Fresh, Whole

LAGGING = 1.5
"""Squared error over that of the noise alone at the best memory for a steady drift: of
a·g + b/g², smallest in g, the second term is half of the first."""


class Spread(NamedTuple):
    """How the entries of fresh observations scatter, and since when columns hold their vector."""

    squares: np.ndarray
    """Mean squares of the entries of XᵀNX for one unit of weight, as in `Fresh`."""
    quotients: np.ndarray
    """The same of the absolute Rayleigh quotients of the k columns, (k,)."""
    observed: np.ndarray
    """Turns in these means, ()."""
    late: np.ndarray
    """Of the last observations those recognised late as louder than all others together, ()."""
    came: np.ndarray
    """Step at which the vector in each column came in, (k,)."""

    @classmethod
    def start(cls, mean: Whole | Block, k: int) -> Spread:
        """Nothing seen."""
        rows = (len(mean.values) + 1, k)
        if isinstance(mean, Whole):
            rows = mean.window.shape[1:] if mean.means else (len(mean.values), k)
        none = np.zeros((), dtype=np.int64)
        return cls(np.zeros(rows), np.zeros(k), none, none, np.zeros(k, dtype=np.int64))

    def after(self, fresh: Fresh, ladder: Ladder) -> Spread:
        """With what the observations that wait say.

        They and the mean together scatter by 1/weight + variance, in units of the usual noise.
        Where one turns out to have been so loud that it outweighs all others here, the means start
        anew.
        """
        waits, remembered = ladder.awaited, max(ladder.memory / ladder.awaited, ladders.KEPT)
        known_late = ladder.loud * ladder.counted / ladder.weight  # 1 but where it was not known
        late = int(np.sum(known_late > remembered))
        count = 1 if late > self.late else int(self.observed) + 1
        unit = 1 / waits + float(ladder.variance[ladder.chosen])
        rate = 1 / min(count, remembered)
        return self._replace(
            squares=self.squares + rate * (fresh.entries**2 / unit - self.squares),
            quotients=self.quotients + rate * (fresh.quotients**2 / unit - self.quotients),
            observed=self.observed * 0 + count,
            late=self.late * 0 + late,
        )

    def entered(self, kept: np.ndarray, steps: Any) -> Spread:
        """Note the columns whose vector has come in from outside of the old k."""
        return self._replace(came=np.where(kept < 0.5, int(steps) + 1, self.came))


class Memory(NamedTuple):
    """All that a tracker carries beside its basis."""

    mean: Whole | Block
    ladder: Ladder
    spread: Spread


class Reading(NamedTuple):
    """Figures of a state, as NumPy arrays, one entry (the last axis) a column of the basis."""

    eigenvalues: np.ndarray
    """Averaged, background included: signal and background are averaged alike."""
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
    loudness: np.ndarray
    """Noise of the last observation over the usual one, 1 for an ordinary one: it counted the
    inverse of this."""


def read(state: State, coverage: float) -> Reading:
    """The reading of a state; see `EigenTracker.read`."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be between 0 and 1, got {coverage!r}")
    parts = [_of_member(member, coverage) for member in members_of(state)]
    ensemble = tuple(state.basis.shape[:-2])
    columns = [np.array(column) for column in zip(*parts, strict=True)]
    return Reading(*(c.reshape((*ensemble, *c.shape[1:])) for c in columns))


def eigenvalues(state: State) -> np.ndarray:
    """Averaged eigenvalues of the columns, background included, (..., k)."""
    return _each(state, _values_of_member)


def background(state: State) -> np.ndarray:
    """Averaged level outside of the columns, (...)."""
    return _each(state, _background_of_member)


def _each(state: State, figure: Any) -> np.ndarray:
    found = np.array([figure(member) for member in members_of(state)])
    return found.reshape((*state.basis.shape[:-2], *found.shape[1:]))


def _values_of_member(state: State) -> np.ndarray:
    mean, ladder, _ = Memory(*state.memory)
    values, level = mean.figures(ladder)
    return np.asarray(values[: state.basis.shape[-1]] + level)


def _background_of_member(state: State) -> float:
    (mean, ladder, _), k = Memory(*state.memory), state.basis.shape[-1]
    n, (values, level) = row_count(state.basis), mean.figures(ladder)
    others = values[k:] if k < n else values
    return float(level + np.sum(others) / max(n - k, 1))


def _of_member(state: State, coverage: float) -> tuple[Any, ...]:
    mean, ladder, spread = Memory(*state.memory)
    k = state.basis.shape[-1]
    values = _values_of_member(state)
    known = min(int(spread.observed), 2 * ladders.KEPT)
    of_values, of_vectors = np.full(k, np.inf), np.full(k, 2**0.5)
    if known > 0:
        variance = 1 / ladder.memory
        if len(ladder.variance) > 2 and ladder.chosen < len(ladder.variance) - 1:
            variance = LAGGING * variance
        quantile = stdtrit(known, 0.5 + 0.5 * coverage)
        of_values = quantile * np.sqrt(variance * spread.quotients)
        estimated = (quantile / NormalDist().inv_cdf(0.5 + 0.5 * coverage)) ** 2
        angles, codimension = _angles(mean, spread, k, row_count(state.basis))
        with np.errstate(over="ignore"):  # of columns without a gap: as long as can be
            squares = variance * estimated * angles
        of_vectors = _radius(squares, codimension, coverage)
    return (
        values,
        of_values,
        of_vectors,
        np.argsort(-values, kind="stable"),
        ladder.memory,
        int(ladder.jumps),
        int(ladder.restarted) - 1,
        float(ladder.loudness),
    )


def _angles(mean: Whole | Block, spread: Spread, k: int, n: int) -> tuple[np.ndarray, int]:
    """Mean square angles of column i to first order, N_ai²/(λ_i − λ_a)², for one unit of variance.

    Rows a, columns i, (·, k); the last row of a block is all that lies outside of it, at level 0
    in as many directions as the second result says.
    """
    values, squares = mean.values, spread.squares
    if isinstance(mean, Block):
        values, codimension = np.append(values, 0.0), n - len(values)
    else:
        codimension = 1
        if mean.means:  # the entries of the window stand for all
            squares = np.full((n, k), np.mean(squares))
    gaps = values[:k] - values[:, None]
    gaps[np.arange(k), np.arange(k)] = np.inf
    with np.errstate(over="ignore"):
        return squares / np.maximum(gaps**2, ladders.TINY), codimension


def _radius(angles: np.ndarray, codimension: int, coverage: float) -> np.ndarray:
    """Quantile of ‖x_i − u_i‖: a weighted sum of χ², matched in mean and variance."""
    angles = np.minimum(angles, 2.0)  # unit vectors with the sign that fits are no farther apart
    freedom = np.ones(len(angles))
    freedom[-1] = codimension
    mean = angles.sum(axis=0)
    ratio = 2 / 9 * (angles**2 / freedom[:, None]).sum(axis=0) / np.maximum(mean**2, ladders.TINY)
    # Wilson and Hilferty: the cube root of χ² is nearly normal.
    root = 1 - ratio + NormalDist().inv_cdf(coverage) * np.sqrt(ratio)
    return np.asarray(np.minimum(np.sqrt(mean * np.maximum(root, 0.0) ** 3), 2**0.5))
