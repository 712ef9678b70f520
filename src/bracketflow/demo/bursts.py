"""Noise bursts: a signal that stands still, and batches of which some are far noisier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.geometry import random_basis, subspace_error
from bracketflow.oracles import gram
from bracketflow.tracker import EigenTracker

PLAIN, INCREMENTAL = "PCA of all rows", "IncrementalPCA"
KNOWN, TRACKER = "mean, noise of each batch known", "EigenTracker"
LOUD, PART = 10.0, 0.3  # how much stronger the noise is, in which part of the batches
SIGNAL = np.linspace(3, 2, 4)  # standard deviations of the sources beside noise of 1
MOST = 300  # batches: enough to see where each way ends


@dataclass(frozen=True)
class Bursts:
    """The stream, and how far each way is from the signal's subspace."""

    noise: np.ndarray
    """Standard deviation of the noise in each batch, (steps,)."""
    errors: Mapping[str, np.ndarray]
    """‖(I − XXᵀ)U‖_F/√k after each batch, (steps,) a way."""

    def late(self, name: str) -> float:
        """Mean error over the last quarter."""
        errors = self.errors[name]
        return float(np.mean(errors[-max(len(errors) // 4, 1) :]))


def run_bursts(steps: int = MOST, seed: int = 0, n: int = 60, rows: int = 50) -> Bursts:
    """Every way along the same batches of `rows` rows with n columns."""
    rng = np.random.default_rng([seed, 2])
    truth = random_basis(n, len(SIGNAL), rng=rng)
    noise = np.where(rng.random(steps) < PART, LOUD, 1.0)
    batches = [
        rng.standard_normal((rows, len(SIGNAL))) * SIGNAL @ truth.T
        + level * rng.standard_normal((rows, n))
        for level in noise
    ]
    ways = {
        PLAIN: _averaged(batches, np.ones(steps)),
        INCREMENTAL: _incremental(batches),
        KNOWN: _averaged(batches, noise**-4),  # the noise of a covariance has the variance σ⁴
        TRACKER: _tracked(batches, seed),
    }
    found = {name: np.array([subspace_error(x, truth) for x in way]) for name, way in ways.items()}
    return Bursts(noise, {name: e / len(SIGNAL) ** 0.5 for name, e in found.items() if len(e)})


def _averaged(batches: list[Any], weights: np.ndarray) -> Iterator[np.ndarray]:
    """Leading eigenvectors of the running covariance, each batch with its weight."""
    total = np.zeros(())
    for rows, weight in zip(batches, weights, strict=True):
        total = total + weight * (rows.T @ rows)
        yield np.linalg.eigh(total)[1][:, -len(SIGNAL) :]


def _incremental(batches: list[Any]) -> Iterator[np.ndarray]:
    """scikit-learn's; nothing where it is not installed."""
    try:
        from sklearn.decomposition import IncrementalPCA
    except ImportError:
        return
    estimator = IncrementalPCA(n_components=len(SIGNAL))
    for rows in batches:
        yield estimator.partial_fit(rows).components_.T


def _tracked(batches: list[Any], seed: int) -> Iterator[np.ndarray]:
    method = EigenTracker(len(SIGNAL))
    state = method.init(random_basis(batches[0].shape[1], len(SIGNAL), rng=seed))
    for rows in batches:
        state, _ = method.step(gram(rows), state)
        yield state.basis
