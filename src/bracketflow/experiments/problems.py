"""Seeded problems of the paper: C = Q diag(n … 1)·gap Qᵀ, Haar starts, trace-free noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bracketflow import theory
from bracketflow.geometry import random_basis

Matrix = NDArray[np.float64]

PAPER_SEED = 42
"""Recovered by search: the paper's generators are `default_rng(42 + s)`."""


def eigenvalues(n: int, gap: float = 1.0) -> Matrix:
    """gap · (n, n−1, …, 1)."""
    return gap * np.arange(n, 0, -1.0)


def signal(n: int, rng: np.random.Generator, gap: float = 1.0) -> Matrix:
    """C = Q diag(gap·(n … 1)) Qᵀ, Q Haar; exactly symmetric."""
    return from_frame(random_basis(n, rng=rng), gap)


def from_frame(frame: Matrix, gap: float = 1.0) -> Matrix:
    """The signal with the columns of `frame` as eigenvectors, largest first."""
    matrix = (frame * eigenvalues(frame.shape[-1], gap)) @ frame.mT
    return np.asarray(0.5 * (matrix + matrix.mT))


def norm(n: int, gap: float = 1.0) -> float:
    """‖C_e‖₂ = gap (n − 1)/2."""
    return gap * (n - 1) / 2


def printed_constant(n: int, gap: float = 1.0) -> float:
    """L_C = (4√n + 8)‖C_e‖₂², the paper's smoothness constant."""
    return float(theory.descent_constant(norm(n, gap), n))


def pairs(seeds: Iterable[int], n: int, gap: float = 1.0) -> tuple[Matrix, Matrix, list[Any]]:
    """One (C, M₀, generator) a seed, stacked: each stream draws Q, then M₀, then goes on."""
    generators = [np.random.default_rng(seed) for seed in seeds]
    drawn = [(signal(n, rng, gap), random_basis(n, rng=rng)) for rng in generators]
    matrices, starts = (np.stack(part) for part in zip(*drawn, strict=True))
    return matrices, starts, generators


def shared_signal(starts: int, n: int) -> tuple[Matrix, Matrix]:
    """ONE C from seed 42 and starts from seeds 43, 44, …: what the paper calls "seeds"."""
    matrix = signal(n, np.random.default_rng(PAPER_SEED))
    bases = [random_basis(n, rng=PAPER_SEED + 1 + s) for s in range(starts)]
    return matrix, np.stack(bases)


def fresh(count: int, n: int, rng: np.random.Generator, gap: float = 1.0) -> tuple[Matrix, Matrix]:
    """`count` independent (C, M₀) from one generator."""
    frames = random_basis(n, rng=rng, ensemble=(count,))
    return from_frame(frames, gap), random_basis(n, rng=rng, ensemble=(count,))


def trace_free_noise(gaussian: Matrix, size: Any = 1.0) -> Matrix:
    """E = (G + Gᵀ)/2, trace removed, scaled to ‖E‖_F = `size`."""
    noise = theory.trace_free(0.5 * (gaussian + gaussian.mT))
    scale = size / np.linalg.norm(noise, axis=(-2, -1))
    return np.asarray(noise * scale[..., None, None])


def noise_stream(generators: Sequence[np.random.Generator], n: int) -> Iterator[Matrix]:
    """Endless unit noise (members, n, n), one generator a member."""
    while True:
        gaussian = np.stack([rng.standard_normal((n, n)) for rng in generators])
        yield trace_free_noise(gaussian)


def with_backgrounds(matrices: Matrix, backgrounds: Sequence[float]) -> Matrix:
    """C + σ²I for all σ² side by side: (σ², …, n, n)."""
    levels = np.reshape(np.asarray(backgrounds, dtype=float), (-1,) + (1,) * matrices.ndim)
    return np.asarray(matrices + levels * np.eye(matrices.shape[-1]))
