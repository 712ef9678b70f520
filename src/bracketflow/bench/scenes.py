"""The scenes: streams with a known answer, the same for every contender."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import expm

from bracketflow.geometry import random_basis
from bracketflow.oracles import as_operator, gram, shifted

LEADING = (10.0, 8.0, 6.5, 5.0)


@dataclass(frozen=True)
class Problem:
    """One draw of a scene."""

    start: np.ndarray
    observations: Callable[[], Iterator[tuple[Any, np.ndarray | None]]]
    """Yields (operator, rows or None), the same sequence every time it is called."""
    truth: Callable[[int], np.ndarray]
    """The eigenvectors behind observation t."""
    reference: np.ndarray | None = None
    """What all data together give: the statistical limit, where there is one."""


@dataclass(frozen=True)
class Scene:
    """A family of problems and how long to watch them."""

    title: str
    words: str
    steps: int
    draw: Callable[[np.random.Generator, int], Problem]
    """Problem from a generator and a number of steps."""
    full: bool
    """Whether the whole basis is tracked."""
    static: bool = False
    """Whether solvers that multiply many times with one observation may take part."""
    rows: bool = False
    """Whether the observations are rows of data, so that IncrementalPCA may take part."""


def backgrounds(rng: np.random.Generator, steps: int) -> np.ndarray:
    """σ_t² swinging over 0 … 2000, and impulses to 1e6 in one step of fifty."""
    levels = 1000 * (1 + np.sin(2 * np.pi * np.arange(steps) / 97))
    levels[rng.random(steps) < 0.02] = 1e6
    return levels


def symmetric_noise(rng: np.random.Generator, n: int, size: float) -> np.ndarray:
    """Trace-free symmetric E with ‖E‖_F = size."""
    g = rng.standard_normal((n, n))
    e = g + g.T
    e -= np.trace(e) / n * np.eye(n)
    return np.asarray(size * e / np.linalg.norm(e))


def _seeded(seed: int, make: Callable[[np.random.Generator], Iterator[Any]]) -> Callable[[], Any]:
    return lambda: make(np.random.default_rng(seed))


def _full(n: int, noise: float, drift: float = 0.0, jump: int | None = None) -> Any:
    """C_t = Q_t diag(n … 1) Q_tᵀ + σ_t²I + E_t, Q_t turning by `drift` a step or redrawn once."""

    def draw(rng: np.random.Generator, steps: int) -> Problem:
        frames = [random_basis(n, rng=rng), random_basis(n, rng=rng)]
        xi = rng.standard_normal((n, n))
        turn = expm(drift * (xi - xi.T) / np.linalg.norm(xi - xi.T))
        levels, seed = backgrounds(rng, steps), int(rng.integers(1 << 62))
        path = [frames[0]]
        for t in range(1, steps + 1):
            path.append(frames[1] if t == jump else path[-1] @ turn if drift else path[-1])

        def observations(own: np.random.Generator) -> Iterator[Any]:
            for t in range(steps):
                signal = (path[t] * np.arange(n, 0, -1.0)) @ path[t].T
                extra = symmetric_noise(own, n, noise) if noise else 0.0
                observed = signal + levels[t] * np.eye(n) + extra
                yield 0.5 * (observed + observed.T), None

        start = random_basis(n, rng=rng)
        return Problem(start, _seeded(seed, observations), lambda t: path[t])

    return draw


def _rows(n: int, deviations: tuple[float, ...], sigma: float, batch: int) -> Any:
    """Rows U diag(deviations) z + σ e in batches; the operator is their Gram matrix plus σ_t²I."""

    def draw(rng: np.random.Generator, steps: int) -> Problem:
        k = len(deviations)
        u = random_basis(n, k, rng=rng)
        levels, seed = backgrounds(rng, steps), int(rng.integers(1 << 62))

        def batches(own: np.random.Generator) -> Iterator[np.ndarray]:
            for _ in range(steps):
                signal = (own.standard_normal((batch, k)) * deviations) @ u.T
                yield signal + sigma * own.standard_normal((batch, n))

        def observations(own: np.random.Generator) -> Iterator[Any]:
            for level, rows in zip(levels, batches(own), strict=True):
                yield shifted(gram(rows), level), rows

        total = np.zeros((n, n))
        for rows in batches(np.random.default_rng(seed)):
            total += rows.T @ rows
        everything = np.linalg.eigh(total)[1][:, ::-1][:, :k]
        start = random_basis(n, k, rng=rng)
        return Problem(start, _seeded(seed, observations), lambda t: u, everything)

    return draw


def _leading(drift: float, n: int = 300) -> Any:
    """Eigenvalues 10, 8, 6.5, 5 over a bulk in [0, 3]; σ² drawn anew for every block product."""

    def draw(rng: np.random.Generator, steps: int) -> Problem:
        k = len(LEADING)
        values = np.concatenate([LEADING, np.sort(rng.uniform(0, 3, n - k))[::-1]])
        frame = random_basis(n, rng=rng)
        xi = rng.standard_normal((n, n))
        xi = xi - xi.T
        turn = expm(drift * xi / np.linalg.norm(xi, 2)) if drift else np.eye(n)
        seed = int(rng.integers(1 << 62))
        path = [frame]
        for _ in range(steps if drift else 0):
            path.append(turn @ path[-1])

        def observations(own: np.random.Generator) -> Iterator[Any]:
            for t in range(steps):
                q = path[min(t, len(path) - 1)]

                def product(block: np.ndarray, q: np.ndarray = q) -> np.ndarray:
                    level = own.uniform(0, 1e4)
                    return np.asarray((q * values) @ (q.T @ block) + level * block)

                yield as_operator(product, n), None

        start = random_basis(n, k, rng=rng)
        return Problem(
            start,
            _seeded(seed, observations),
            lambda t: path[min(t, len(path) - 1)][:, :k],
        )

    return draw


SWINGING = "σ² swings over 0 … 2000 with impulses to 1e6."
SCENES: dict[str, Scene] = {
    "static": Scene(
        "A fixed matrix, full basis",
        f"n = 50, eigenvalues 50 … 1, no noise. {SWINGING}",
        60,
        _full(50, 0.0),
        full=True,
    ),
    "noise": Scene(
        "Stationary noise, full basis",
        f"n = 20, ‖E‖_F = 1 in every observation. {SWINGING}",
        2000,
        _full(20, 1.0),
        full=True,
    ),
    "drift": Scene(
        "Drift, full basis",
        f"n = 12, ‖E‖_F = 0.1, the basis turns by 1e-3 a step. {SWINGING}",
        1500,
        _full(12, 0.1, 1e-3),
        full=True,
    ),
    "jump": Scene(
        "A jump, full basis",
        f"n = 12, ‖E‖_F = 0.1, the basis is drawn anew at step 500. {SWINGING}",
        560,
        _full(12, 0.1, jump=500),
        full=True,
    ),
    "rows": Scene(
        "Rows with a spiked covariance",
        "n = 1000, k = 10, standard deviations 5 … 2, noise σ = 3, batches of 100. IncrementalPCA "
        f"gets the rows without the background; for the others {SWINGING}",
        200,
        _rows(1000, tuple(np.linspace(5, 2, 10)), 3.0, 100),
        full=False,
        rows=True,
    ),
    "features": Scene(
        "Fifty noisy features",
        f"signal variances 10, 7, 5, noise variance 10, 400 batches of 100. {SWINGING}",
        400,
        _rows(50, tuple(np.sqrt([10.0, 7.0, 5.0])), 10**0.5, 100),
        full=False,
        rows=True,
    ),
    "products": Scene(
        "Another background in every product",
        "n = 300, k = 4, eigenvalues 10, 8, 6.5, 5 over a bulk in [0, 3]; σ² = U(0, 1e4), drawn "
        "anew for every block product. Solvers may multiply as often as they like.",
        60,
        _leading(0.0),
        full=False,
        static=True,
    ),
    "turning": Scene(
        "Drift of the leading four",
        "The same spectrum, turning by 2e-3 a step (spectral norm); σ² = U(0, 1e4).",
        600,
        _leading(2e-3),
        full=False,
    ),
}
