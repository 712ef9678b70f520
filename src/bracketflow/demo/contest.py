"""Who follows the sources: the tracker and its rivals on the same snapshots."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow.baselines import ExponentialAverage, QROja
from bracketflow.demo.array import directions
from bracketflow.demo.bursts import MOST, Bursts, run_bursts
from bracketflow.demo.scene import Scene, scene
from bracketflow.driver import Method
from bracketflow.geometry import random_basis, subspace_error
from bracketflow.oracles import gram, shifted
from bracketflow.tracker import EigenTracker, Reading

OURS, OJA, AVERAGE, PCA = "EigenTracker", "raw Oja", "average + eigh", "IncrementalPCA"
STEPS = (0.03, 0.1, 0.3, 1.0, 3.0)
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
Announce = Callable[[str], None]


@dataclass(frozen=True)
class Track:
    """What one contender made of the stream."""

    bases: np.ndarray
    """Its k leading columns after each batch, (steps, n, k)."""
    seconds: float
    products: int = 0
    """Columns multiplied with an observation; 0 for a method that reads the rows instead."""
    levels: np.ndarray | None = None
    """Mean of xᵀC_t x over the columns x that it had before batch t, (steps,)."""
    readings: tuple[Reading, ...] = ()
    """Eigenvalues and error bars after each batch, where the method gives them."""
    setting: str = ""

    @property
    def angles(self) -> np.ndarray:
        """Directions in degrees, ascending, (steps, k)."""
        return directions(self.bases)


@dataclass(frozen=True)
class Contest:
    """The outcome of the demonstration."""

    scene: Scene
    tracks: Mapping[str, Track]
    drowned: Mapping[str, Track]
    """The tracker and Oja again, with an exact background up to 1e6·I added."""
    bursts: Bursts
    """Another scene: a signal at rest, and noise that comes in bursts."""
    absent: str = ""
    """What could not take part, and why."""

    def subspace_errors(self, name: str) -> np.ndarray:
        """‖(I − XXᵀ)U‖_F/√k by batch: 0 for the true subspace, 1 for one orthogonal to it."""
        return _subspace_errors(self.tracks[name], self.scene)

    def angle_errors(self, name: str) -> np.ndarray:
        """The worst of the k angles by batch, in degrees."""
        return _angle_errors(self.tracks[name], self.scene)

    @property
    def floor(self) -> np.ndarray:
        """Our estimate of σ_t²: the mean eigenvalue outside the tracked subspace, (steps,)."""
        n, k = self.tracks[OURS].bases.shape[-2:]
        powers = [np.vdot(rows, rows) / len(rows) for rows in self.scene.batches()]
        return np.asarray((powers - k * self.tracks[OURS].levels) / (n - k))

    @property
    def vector_errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Distance of the tracker's vectors from the true eigenvectors, and its bars, (steps, k).

        By descending eigenvalue; the bars are said to hold with probability 0.95.
        """
        track, truth = self.tracks[OURS], self.scene.signal_eigenvectors
        order = np.stack([reading.order for reading in track.readings])
        bases = np.take_along_axis(track.bases, order[:, None, :], axis=-1)
        cosines = abs(np.sum(bases * truth, axis=-2))
        bars = np.stack([reading.vector_errors[reading.order] for reading in track.readings])
        return np.sqrt(np.maximum(2 - 2 * cosines, 0.0)), bars

    @property
    def change(self) -> float:
        """By how many degrees the exact background changed the tracker's angles, at most."""
        return float(np.max(abs(self.drowned[OURS].angles - self.tracks[OURS].angles)))


def run_demo(steps: int = 600, seed: int = 0, announce: Announce = lambda name: None) -> Contest:
    """All contenders along one scene; rivals with a setting at their best one, chosen afterwards.

    `announce` is told the name of each contender when its turn comes.
    """
    problem = scene(steps, seed)
    tracks, absent = {}, ""
    tracker = EigenTracker(problem.angles.shape[-1])
    announce(OURS)
    tracks[OURS] = follow(tracker, problem)
    announce(OJA)
    tried: dict[Any, Track] = {step: follow(QROja(step), problem) for step in STEPS}
    step = _best(tried, problem)
    tracks[OJA] = replace(tried[step], setting=f"step {step:g}")
    announce(AVERAGE)
    tried = {rate: follow(ExponentialAverage(rate), problem, full=True) for rate in RATES}
    rate = _best(tried, problem)
    tracks[AVERAGE] = replace(tried[rate], setting=f"rate {rate:g}")
    announce(PCA)
    try:
        tracks[PCA] = follow_rows(problem)
    except ImportError:
        absent = f"{PCA} did not take part: pip install 'bracketflow[sklearn]'"
    announce("under 1e6·I")
    background = exact_background(len(problem.floor), seed)
    drowned = {
        OURS: follow(tracker, problem, background=background),
        OJA: follow(QROja(step), problem, background=background),
    }
    announce("noise bursts")
    bursts = run_bursts(min(len(problem.floor), MOST), seed)
    return Contest(problem, tracks, drowned, bursts, absent)


def exact_background(steps: int, seed: int = 0) -> np.ndarray:
    """α_t of a multiple of the identity: a swing over 0 … 2000, impulses to 1e6."""
    levels = 1000 * (1 + np.sin(np.arange(steps) / 24))
    levels[np.random.default_rng(seed).random(steps) < 0.05] = 1e6
    return np.asarray(levels)


def follow(
    method: Method, problem: Scene, *, full: bool = False, background: np.ndarray | None = None
) -> Track:
    """`method` along the scene, one block product a batch; `full` starts it with all n columns.

    `background` adds α_t I, exactly, to every observation.
    """
    k = problem.angles.shape[-1]
    start = random_basis(problem.sensors, problem.sensors if full else k, rng=problem.seed)
    state = method.init(start)
    bases, levels, readings, seconds = [], [], [], 0.0
    for t, rows in enumerate(problem.batches()):
        operator = gram(rows) if background is None else shifted(gram(rows), background[t])
        begin = time.perf_counter()
        state, probe = method.step(operator, state)
        seconds += time.perf_counter() - begin
        bases.append(state.basis[:, :k])
        levels.append(probe.background)
        if isinstance(method, EigenTracker):
            readings.append(method.read(state))
    return Track(np.stack(bases), seconds, int(state.matvecs), np.asarray(levels), tuple(readings))


def follow_rows(problem: Scene) -> Track:
    """scikit-learn's IncrementalPCA along the scene, one `partial_fit` a batch."""
    from sklearn.decomposition import IncrementalPCA

    estimator = IncrementalPCA(n_components=problem.angles.shape[-1])
    bases, seconds = [], 0.0
    for rows in problem.batches():
        begin = time.perf_counter()
        estimator.partial_fit(rows)
        seconds += time.perf_counter() - begin
        bases.append(estimator.components_.T)
    return Track(np.stack(bases), seconds)


def _best(tried: Mapping[Any, Track], problem: Scene) -> Any:
    """The setting with the smallest mean subspace error."""
    return min(tried, key=lambda setting: _subspace_errors(tried[setting], problem).mean())


def _subspace_errors(track: Track, problem: Scene) -> np.ndarray:
    k = problem.angles.shape[-1]
    return np.asarray(subspace_error(track.bases, problem.truth) / k**0.5)


def _angle_errors(track: Track, problem: Scene) -> np.ndarray:
    return np.asarray(np.max(abs(track.angles - problem.angles), axis=-1))
