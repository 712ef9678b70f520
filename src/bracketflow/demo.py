"""What `bracketflow demo` shows: a background that swings a thousandfold, and who notices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bracketflow.baselines import QROja
from bracketflow.core import Probe, State
from bracketflow.driver import Method, Monitor, run
from bracketflow.flows import BrockettFlow
from bracketflow.geometry import random_basis, subspace_error
from bracketflow.monitor import Recorder
from bracketflow.tracker import EigenTracker


@dataclass(frozen=True)
class Scene:
    """C_t = C_sig + σ_t² I + E_t with σ_t² swinging over 0 … 2000 and impulses to 1e6."""

    signal: np.ndarray
    truth: np.ndarray
    background: np.ndarray
    noise: float
    seed: int

    def observations(self) -> Any:
        """The stream: one symmetric matrix a step, the same for every method."""
        rng = np.random.default_rng(self.seed)
        n = len(self.signal)
        for level in self.background:
            g = rng.standard_normal((n, n))
            yield self.signal + level * np.eye(n) + self.noise * (g + g.T) / (2 * n**0.5)


def scene(n: int = 60, k: int = 3, steps: int = 600, seed: int = 0) -> Scene:
    """Leading eigenvalues 10, 8, 6 over a bulk in [0, 2]."""
    rng = np.random.default_rng(seed)
    values = np.concatenate([10 - 2.0 * np.arange(k), np.sort(rng.uniform(0, 2, n - k))[::-1]])
    q = random_basis(n, rng=rng)
    signal = (q * values) @ q.T
    t = np.arange(steps)
    background = 1000 * (1 + np.sin(2 * np.pi * t / 150))
    background[rng.random(steps) < 0.02] = 1e6
    return Scene(0.5 * (signal + signal.T), q[:, :k], background, 0.1, seed + 1)


CONTENDERS: dict[str, Method] = {
    "bracketflow: EigenTracker": EigenTracker(),
    "bracketflow: BrockettFlow": BrockettFlow(weights=(3, 2, 1)),
    "raw Oja + QR": QROja(),
}


def follow(problem: Scene, method: Method, monitors: Sequence[Monitor] = ()) -> Recorder:
    """`method` along the scene from the common start; its record holds the error by step."""

    def error(state: State, probe: Probe) -> Any:
        return subspace_error(state.basis, problem.truth)

    recorder = Recorder(measures={"error": error})
    start = random_basis(*problem.truth.shape, rng=problem.seed)
    run(method, problem.observations(), method.init(start), monitors=[recorder, *monitors])
    return recorder


def draw(problem: Scene, recorders: dict[str, Recorder], path: Path) -> None:
    """Error of each contender over the background that it had to bear."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("the plot needs matplotlib: pip install 'bracketflow[cli]'") from None
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    for (name, recorder), colour in zip(
        recorders.items(), ("#1f5fb0", "#0b6e4f", "#c1440e"), strict=True
    ):
        upper.semilogy(recorder.column("step"), recorder.column("error"), label=name, color=colour)
    upper.set_ylabel("subspace error")
    upper.set_title("Same observations, same start: who sees the background?")
    upper.legend(frameon=False)
    lower.semilogy(np.maximum(problem.background, 1), color="#555", linewidth=0.8)
    lower.set_ylabel("σ²")
    lower.set_xlabel("step (one block product each)")
    for axes in (upper, lower):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
