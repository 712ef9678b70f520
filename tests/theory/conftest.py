"""Random problems, saddles and one way of saying "not above"."""

from typing import NamedTuple

import numpy as np
import pytest

from bracketflow import theory

SIZES, TRIALS = (2, 3, 5, 10), 600  # 2,400 trials for every inequality
ROUNDING = 1e3 * np.finfo(float).eps  # sums of at most n³ = 1,000 products of order one


class Problems(NamedTuple):
    """A stack of operators with a Haar basis each."""

    operator: np.ndarray
    basis: np.ndarray
    rotated: np.ndarray
    norm: np.ndarray
    n: int


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def haar(rng):
    """Haar on SO(n), as a stack."""

    def draw(trials, n):
        q, r = np.linalg.qr(rng.standard_normal((trials, n, n)))
        q = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[:, None, :]
        q[:, :, 0] *= np.linalg.det(q).round()[:, None]
        return q

    return draw


@pytest.fixture
def symmetric(rng):
    """Gaussian symmetric matrices of very different sizes."""

    def draw(trials, n):
        g = rng.standard_normal((trials, n, n))
        return 10 ** rng.uniform(-2, 2, (trials, 1, 1)) * (g + g.swapaxes(-1, -2)) / 2

    return draw


@pytest.fixture
def skew(rng):
    """Gaussian skew matrices of very different sizes."""

    def draw(trials, n):
        g = rng.standard_normal((trials, n, n))
        return 10 ** rng.uniform(-2, 1, (trials, 1, 1)) * (g - g.swapaxes(-1, -2)) / 2

    return draw


@pytest.fixture
def problems(haar, symmetric):
    """2,400 problems of four sizes."""
    out = []
    for n in SIZES:
        operator, basis = theory.trace_free(symmetric(TRIALS, n)), haar(TRIALS, n)
        rotated = theory.rotated_operator(operator, basis)
        out.append(Problems(operator, basis, rotated, theory.trace_free_norm(operator), n))
    return out


@pytest.fixture
def near_minimum(rng, skew):
    """2,400 problems close to a minimiser: gaps of order one, small rotations."""
    out = []
    for n in SIZES:
        gaps = rng.uniform(0.5, 2, (TRIALS, n))
        operator = theory.trace_free(np.cumsum(gaps, -1)[..., None] * np.eye(n))
        turn = skew(TRIALS, n)
        size = rng.uniform(0.001, 0.1, (TRIALS, 1, 1)) / n / frobenius(turn)[:, None, None]
        basis = theory.cayley(size * turn)
        rotated = theory.rotated_operator(operator, basis)
        out.append(Problems(operator, basis, rotated, theory.trace_free_norm(operator), n))
    return out


@pytest.fixture
def saddle(rng):
    """Rotated operator of a non-optimal critical point: blocks of equal diagonal."""

    def draw(blocks=(2, 3)):
        n, start = sum(blocks), 0
        rotated = np.zeros((n, n))
        for level, size in enumerate(blocks):
            g = rng.standard_normal((size, size))
            stop = start + size
            rotated[start:stop, start:stop] = np.triu(g, 1) + np.triu(g, 1).T + level * np.eye(size)
            start = stop
        return rotated

    return draw


def frobenius(matrix):
    return np.sqrt(np.sum(np.abs(matrix) ** 2, axis=(-2, -1)))


@pytest.fixture(name="frobenius")
def frobenius_fixture():
    return frobenius


@pytest.fixture
def not_above():
    """Assert small ≤ large everywhere, up to rounding relative to large (or to scale)."""

    def check(small, large, scale=None):
        slack = ROUNDING * np.abs(large if scale is None else scale)
        excess = np.asarray(small) - np.asarray(large) - slack
        assert np.all(excess <= 0), f"{np.sum(excess > 0)} violations, worst {excess.max():.3g}"

    return check


@pytest.fixture
def equal():
    """Assert equality up to rounding relative to the largest entry (or to scale)."""

    def check(first, second, scale=None):
        size = np.max(np.abs(second)) if scale is None else scale
        error = np.max(np.abs(np.asarray(first) - np.asarray(second)))
        assert error <= ROUNDING * size, f"{error:.3g} against {size:.3g}"

    return check
