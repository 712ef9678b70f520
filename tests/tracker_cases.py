"""Streams that the tests of EigenTracker share."""

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.tracker import EigenTracker

EPS = np.finfo(np.float64).eps

# All columns; leading ones of a small problem, which keeps all n; and a block of 6k columns.
SHAPES = [
    pytest.param(12, None, id="full"),
    pytest.param(12, 3, id="leading"),
    pytest.param(150, 3, id="block"),
]


def spectrum(n):
    """Three eigenvalues above an even bulk, gaps of 4 and more between them."""
    return np.concatenate([[24.0, 19, 14], np.linspace(8, 0, n - 3)])


def signal(basis, values=None):
    values = np.arange(basis.shape[-1], 0, -1.0) if values is None else np.asarray(values)
    matrix = (basis * values) @ basis.mT
    return 0.5 * (matrix + matrix.mT)


def symmetric_noise(rng, n, size, ensemble=()):
    """Of Frobenius norm `size`."""
    noise = rng.standard_normal((*ensemble, n, n))
    noise = noise + noise.mT
    return noise * (size / np.linalg.norm(noise, axis=(-2, -1), keepdims=True))


def stream(rng, matrix, size, steps, top=2000.0):
    """A still signal, noise, and another background up to `top` in every observation."""
    n = matrix.shape[-1]
    for _ in range(steps):
        yield matrix + symmetric_noise(rng, n, size) + rng.uniform(0, top) * np.eye(n)


def rotation(rng, n, angle):
    """A turn of R^n by `angle` in all, its generator of unit Frobenius norm."""
    skew = rng.standard_normal((n, n))
    return bf.cayley(np.eye(n), angle * (skew - skew.T) / np.linalg.norm(skew - skew.T))


def followed(observations, state, tracker=None):
    tracker = EigenTracker() if tracker is None else tracker
    for observed in observations:
        state, _ = tracker.step(observed, state)
    return state


def leading(matrix, k=None):
    """The k leading eigenvectors, by eigh."""
    return np.linalg.eigh(matrix)[1][..., ::-1][..., :k]


def angles(basis, truth):
    """‖x_i − u_i‖ with the sign that fits."""
    sign = np.sign(np.sum(basis * truth, axis=-2, keepdims=True))
    return np.linalg.norm(basis - sign * truth, axis=-2)


def parts(memory):
    """All arrays and numbers of nested tuples."""
    if isinstance(memory, tuple):
        return [leaf for part in memory for leaf in parts(part)]
    return [memory]


def same(a, b):
    return all(
        np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True) if x is not None else y is None
        for x, y in zip(parts(a), parts(b), strict=True)
    )


def eventful(rng, n, k):
    """Noise, an outlier, noise, a jump; a start; and the basis at the end."""
    noise = 0.3 if n == 12 else 8.0
    truth, other = bf.random_basis(n, rng=rng), bf.random_basis(n, rng=rng)
    before, after = signal(truth, spectrum(n)), signal(other, spectrum(n))
    observations = [before + symmetric_noise(rng, n, noise) for _ in range(30)]
    observations += [before + symmetric_noise(rng, n, 1e3 * noise)]
    observations += [before + symmetric_noise(rng, n, noise) for _ in range(30)]
    observations += [after + symmetric_noise(rng, n, noise) for _ in range(30)]
    return observations, bf.random_basis(n, k, rng=rng), other


def observed_by(tracker, observations, start, weight=1.0):
    """The last state, its reading, and the kinds of events on the way."""
    state, kinds = tracker.init(start), []
    for observed in observations:
        operator = bf.as_operator(observed).derived(weight=weight)
        following, _ = tracker.step(operator, state)
        kinds += [event.kind for event in tracker.events(state, following)]
        state = following
    return state, tracker.read(state), kinds
