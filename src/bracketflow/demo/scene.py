"""The scene: three moving sources under a noise floor that swings by 30 dB, with impulses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bracketflow.core import whole_number
from bracketflow.demo.array import real_rows, real_steering, steering

QUIET, HIGHEST, IMPULSE = 0.1, 100.0, 1e4  # σ² beside the power of the strongest source, 1
IMPULSES = 0.02  # part of the batches


@dataclass(frozen=True)
class Scene:
    """Snapshots z = A(θ_t)s + σ_t e of a uniform linear array, in batches."""

    angles: np.ndarray
    """θ_t in degrees, ascending, (steps, k)."""
    floor: np.ndarray
    """σ_t², (steps,)."""
    powers: np.ndarray
    """E|s_i|², (k,)."""
    jump: int
    """The batch at which the first source is elsewhere."""
    sensors: int
    snapshots: int
    """Complex snapshots in a batch."""
    seed: int

    def batches(self) -> Iterator[np.ndarray]:
        """Real rows (2b, n), batch by batch, the same at every call."""
        rng = np.random.default_rng([self.seed, 1])
        amplitudes = np.sqrt(self.powers)
        for angles, level in zip(self.angles, self.floor, strict=True):
            waves = _gaussian(rng, self.snapshots, len(angles)) * amplitudes
            noise = _gaussian(rng, self.snapshots, self.sensors)
            yield real_rows(waves @ steering(self.sensors, angles).T + level**0.5 * noise)

    @property
    def truth(self) -> np.ndarray:
        """Orthonormal bases of the signal subspaces, (steps, n, k)."""
        return np.linalg.qr(real_steering(self.sensors, self.angles))[0]

    @property
    def signal_eigenvalues(self) -> np.ndarray:
        """Eigenvalues of A diag(powers) Aᴴ, descending, (steps, k)."""
        scaled = real_steering(self.sensors, self.angles) * np.sqrt(self.powers)
        return np.linalg.svd(scaled, compute_uv=False) ** 2

    @property
    def signal_eigenvectors(self) -> np.ndarray:
        """Eigenvectors that belong to them, (steps, n, k)."""
        scaled = real_steering(self.sensors, self.angles) * np.sqrt(self.powers)
        return np.linalg.svd(scaled, full_matrices=False).U

    @property
    def hidden(self) -> np.ndarray:
        """Batches that alone cannot show all sources: λ_k below σ²√(n/2b), (steps,).

        Under that level an eigenvector of the batch's covariance is nearly random.
        """
        threshold = self.floor * (self.sensors / (2 * self.snapshots)) ** 0.5
        return np.asarray(self.signal_eigenvalues[:, -1] < threshold)


def _gaussian(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Circular complex Gaussian, E|z|² = 1."""
    return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)) / 2**0.5


def scene(steps: int = 600, seed: int = 0, sensors: int = 32, snapshots: int = 100) -> Scene:
    """One source drifts and jumps; two approach to 3°, under one beam width, and part again.

    They are closest while the floor is highest.
    """
    steps = whole_number(steps, "steps", at_least=10)
    time = np.arange(steps) / steps
    jump = int(0.6 * steps)
    wanderer = -50 + 25 * time - 20 * (np.arange(steps) >= jump)
    approach = 10.5 * np.sin(np.pi * time) ** 2
    swing = 0.5 - 0.5 * np.cos(6 * np.pi * time)
    floor = QUIET * (HIGHEST / QUIET) ** swing
    floor[np.random.default_rng([seed, 0]).random(steps) < IMPULSES] = IMPULSE
    return Scene(
        angles=np.stack([wanderer, 10 + approach, 34 - approach], axis=-1),
        floor=floor,
        powers=np.array([1.0, 0.8, 0.6]),
        jump=jump,
        sensors=sensors,
        snapshots=snapshots,
        seed=seed,
    )
