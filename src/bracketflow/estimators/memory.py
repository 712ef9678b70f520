"""How fast to forget, learned by an `EigenTracker` that watches the same rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import Array, State
from bracketflow.estimators.covariance import Covariance, absorbed
from bracketflow.geometry import random_basis
from bracketflow.oracles import gram
from bracketflow.tracker import EigenTracker
from bracketflow.tracker.reading import Memory

TRACKER = EigenTracker()


class Watch(NamedTuple):
    """The tracker, the covariance it has judged, and the rows that wait to be judged.

    Rows are judged in groups of one size, so that it does not matter how they were cut.
    """

    tracker: State
    judged: Covariance
    waiting: Array


def start(past: Covariance, columns: int, seed: Any) -> Watch:
    """A watch over the leading columns, or more, of a covariance that has no rows yet."""
    n = len(past.mean)
    if len(past.spread) == n:
        # A quarter of all: with its extra columns the tracker then sees every direction.
        columns = min(max(columns, -(-n // 4)), max(n - 1, 1))
    # In double precision, whatever the rows are: the tracker squares their covariance.
    basis = random_basis(n, columns, rng=seed)
    return Watch(TRACKER.init(basis), past, np.empty((0, n), past.vectors.dtype))


def watched(watch: Watch, rows: Array, group: int) -> tuple[Watch, Covariance]:
    """The watch after more rows, and the covariance of the judged and the waiting ones."""
    rows = np.concatenate([watch.waiting, rows])
    while len(rows) >= group:
        watch = _judged(watch, rows[:group])
        rows = rows[group:]
    watch = watch._replace(waiting=rows.copy())
    return watch, absorbed(watch.judged, rows) if len(rows) else watch.judged


def _judged(watch: Watch, rows: Array) -> Watch:
    """The watch after a group: it has the share in the covariance that the tracker gave it."""
    past = watch.judged
    missing = np.isnan(rows)
    mean = past.mean if past.weight else _column_means(rows, missing)
    centred = np.where(missing, 0.0, rows - mean).astype(float)
    tracker, _ = TRACKER.step(gram(centred), watch.tracker)
    ladder = Memory(*tracker.memory).ladder
    share = float(ladder.shares[ladder.chosen, -1])
    kept = (1 / share - 1) * len(rows) / past.weight if past.weight else 1.0
    return Watch(tracker, absorbed(past, rows, kept=kept), watch.waiting)


def _column_means(rows: Array, missing: Array) -> Array:
    count = np.maximum(np.sum(~missing, axis=0), 1)
    return np.sum(np.where(missing, 0.0, rows), axis=0) / count
