"""Retractions keep to the manifold and to their order; distances are exact to eps."""

import itertools

import numpy as np
import pytest
from scipy.linalg import expm

import bracketflow as bf
from bracketflow.geometry import check_basis, orthonormalise
from cases import RETRACTIONS

EPS = np.finfo(float).eps


def tangent(rng, basis, size=1.0):
    """Random (K, Z) whose generator has spectral norm `size`."""
    n, k = basis.shape
    rotation = rng.standard_normal((k, k))
    rotation = rotation - rotation.T
    normal = None
    if k < n:
        normal = rng.standard_normal((n, k))
        normal -= basis @ (basis.T @ normal)
    scale = size / np.linalg.norm(ambient(basis, rotation, normal), 2)
    return scale * rotation, None if normal is None else scale * normal


def ambient(basis, rotation, normal):
    """The skew n × n Ω with ΩX = XK + Z."""
    omega = basis @ rotation @ basis.T
    return omega if normal is None else omega + normal @ basis.T - basis @ normal.T


def exponential(basis, rotation, normal):
    return expm(ambient(basis, rotation, normal)) @ basis


def geodesic(basis, rotation, normal):
    """Geodesic of the embedded metric on St(k, n) (Edelman, Arias, Smith 1998)."""
    if normal is None:
        return exponential(basis, rotation, None)
    k = basis.shape[1]
    velocity = basis @ rotation + normal
    block = np.block([[rotation, -velocity.T @ velocity], [np.eye(k), rotation]])
    return np.hstack([basis, velocity]) @ expm(block)[:, :k] @ expm(-rotation)


ORDERS = {  # retraction: the curve it follows, and the order of its error
    "cayley": (exponential, 3),
    "neumann2": (exponential, 3),
    "neumann4": (exponential, 3),
    "polar": (geodesic, 3),
    "qr": (geodesic, 2),
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("k", [2, 5, 8])
def test_retraction_follows_its_curve_to_its_order(name, k, rng):
    exact, order = ORDERS[name]
    basis = bf.random_basis(8, k, rng=rng)
    rotation, normal = tangent(rng, basis)
    error = []
    for t in (1e-1, 1e-2):
        move = (t * rotation, None if normal is None else t * normal)
        error.append(np.linalg.norm(RETRACTIONS[name](basis, *move) - exact(basis, *move)))
    assert abs(np.log10(error[0] / error[1]) - order) < 0.1


@pytest.mark.parametrize("name", RETRACTIONS)
@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("size", [1e-8, 0.1, 0.9])
def test_retracted_basis_is_orthonormal(name, k, size, rng):
    basis = bf.random_basis(8, k, rng=rng)
    moved = RETRACTIONS[name](
        basis, *tangent(rng, basis, size) if k > 1 else (np.zeros((1, 1)), None)
    )
    assert np.linalg.norm(moved.T @ moved - np.eye(k)) <= 50 * EPS


@pytest.mark.parametrize("k", [2, 5])
def test_low_rank_cayley_is_the_dense_one(k, rng):
    basis = bf.random_basis(8, k, rng=rng)
    rotation, normal = tangent(rng, basis, 0.7)
    omega = ambient(basis, rotation, normal)
    dense = np.linalg.solve(np.eye(8) - omega / 2, (np.eye(8) + omega / 2) @ basis)
    assert np.allclose(bf.cayley(basis, rotation, normal), dense, rtol=0, atol=20 * EPS)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("k", [3, 8])
def test_neumann_is_the_truncated_series_made_orthonormal(order, k, rng):
    basis = bf.random_basis(8, k, rng=rng)
    rotation, normal = tangent(rng, basis, 0.2)
    half = ambient(basis, rotation, normal) / 2
    series = sum(np.linalg.matrix_power(half, j) for j in range(order + 1))
    printed = series @ (np.eye(8) + half) @ basis
    moved = bf.neumann(order)(basis, rotation, normal)
    assert np.allclose(moved, orthonormalise(printed), rtol=0, atol=30 * EPS)


def test_even_neumann_orders_miss_orthogonality_far_less_than_the_next_odd_one(rng):
    basis = np.eye(6)
    rotation, _ = tangent(rng, basis, 0.1)
    half = rotation / 2
    rho = np.linalg.norm(half, 2)

    def defect(order):
        factor = sum(np.linalg.matrix_power(half, j) for j in range(order + 1)) @ (basis + half)
        return np.linalg.norm(factor.T @ factor - basis, 2)

    for odd in (1, 3, 5):
        assert np.isclose(defect(odd), 2 * rho ** (odd + 1), rtol=0.1)
        assert defect(odd - 1 or 2) < defect(odd) or odd == 1
    for even in (2, 4):
        assert np.isclose(defect(even), rho ** (2 * even + 2), rtol=0.1, atol=10 * EPS)


@pytest.mark.parametrize("name", RETRACTIONS)
def test_long_walks_stay_orthonormal(name, rng):
    basis = bf.random_basis(6, rng=rng)
    for _ in range(2000):
        basis = RETRACTIONS[name](basis, *tangent(rng, basis, 0.3))
    assert np.linalg.norm(basis.T @ basis - np.eye(6)) <= 1e-13


def test_polar_is_the_nearest_orthonormal_matrix_even_when_steep(rng):
    u, _, vt = np.linalg.svd(rng.standard_normal((9, 4)), full_matrices=False)
    for values in ([2, 1.5, 1, 0.5], [1e4, 1, 1, 1e-2]):
        assert np.allclose(orthonormalise((u * values) @ vt), u @ vt, rtol=0, atol=1e-9)
        q = orthonormalise((u * values) @ vt)
        assert np.linalg.norm(q.T @ q - np.eye(4)) <= 20 * EPS


def test_neumann_needs_a_whole_order_of_at_least_one():
    with pytest.raises(ValueError, match="order must be at least 1, got 0"):
        bf.neumann(0)
    with pytest.raises(TypeError, match=r"order must be a whole number, got 2\.5"):
        bf.neumann(2.5)


# Bases ------------------------------------------------------------------------------------------


def test_random_basis_is_haar(rng):
    bases = bf.random_basis(3, rng=rng, ensemble=(20_000,))
    # Entries of a Haar matrix have mean 0 and variance 1/n; columns carry both determinants.
    sigma = np.sqrt(1 / 3 / 20_000)
    assert np.abs(bases.mean(axis=0)).max() < 5 * sigma
    assert np.abs((bases**2).mean(axis=0) - 1 / 3).max() < 5 * sigma
    assert abs(np.mean(np.linalg.det(bases) > 0) - 0.5) < 5 * 0.5 / np.sqrt(20_000)


def test_random_basis_is_a_function_of_its_seed():
    assert np.array_equal(bf.random_basis(5, 2, rng=3), bf.random_basis(5, 2, rng=3))
    assert bf.random_basis(5, 2, rng=3).flags.c_contiguous


@pytest.mark.parametrize(
    ("k", "error", "match"),
    [
        (6, ValueError, r"k must be at least 1 and at most 5 \(the dimension n\), got 6"),
        (0, ValueError, "got 0"),
        (1.5, TypeError, r"k must be a whole number, got 1\.5"),
        ("2", TypeError, "k must be a whole number, got '2'"),
    ],
)
def test_random_basis_refuses_impossible_k(k, error, match):
    with pytest.raises(error, match=match):
        bf.random_basis(5, k)


@pytest.mark.parametrize(
    ("basis", "error", "match"),
    [
        (np.ones(3), ValueError, r"must be an array \(\.\.\., n, k\), got shape \(3,\)"),
        ("basis", ValueError, "must be an array"),
        (np.ones((3, 3)), ValueError, "not orthonormal.*qr"),
        (np.eye(3)[:, :2].T, ValueError, "k must be from 1 to n"),
        (np.eye(3, dtype=int), TypeError, "float32 or float64"),
        (np.eye(3) * np.nan, ValueError, "not orthonormal"),
    ],
)
def test_bad_start_bases_are_refused(basis, error, match):
    with pytest.raises(error, match=match):
        check_basis(basis)


def test_init_copies_the_basis(rng):
    basis = bf.random_basis(4, rng=rng)
    state = bf.DoubleBracketFlow().init(basis)
    basis[:] = 0
    assert np.linalg.norm(state.basis) == pytest.approx(2)


# Distances --------------------------------------------------------------------------------------


def test_subspace_error_is_the_sine_and_is_accurate_to_eps():
    for angle in (1.0, 1e-4, 1e-12):
        turned = np.array([[np.cos(angle)], [np.sin(angle)]])
        assert bf.subspace_error(turned, np.eye(2)[:, :1]) == pytest.approx(np.sin(angle), rel=1e-4)


def test_basis_error_ignores_order_and_sign_and_nothing_else(rng):
    basis = bf.random_basis(5, rng=rng)
    best = np.inf
    other = bf.random_basis(5, rng=rng)
    for order in itertools.permutations(range(5)):
        distances = np.minimum(
            np.linalg.norm(basis[:, order] - other, axis=0),
            np.linalg.norm(basis[:, order] + other, axis=0),
        )
        best = min(best, np.linalg.norm(distances))
    assert bf.basis_error(basis, other) == pytest.approx(best)
    assert bf.basis_error(basis[:, [3, 1, 0, 4, 2]] * [1, -1, 1, -1, -1], basis) == 0
    tiny = expm(1e-13 * np.array([[0, 1.0], [-1.0, 0]]))
    assert bf.basis_error(tiny, np.eye(2)) == pytest.approx(np.sqrt(2) * 1e-13, rel=1e-2)


def test_distances_of_ensembles_have_their_shape(rng):
    stack = bf.random_basis(4, 2, rng=rng, ensemble=(3, 2))
    assert bf.basis_error(stack, stack[0, 0]).shape == (3, 2)
    assert bf.subspace_error(stack, stack[0, 0]).shape == (3, 2)
