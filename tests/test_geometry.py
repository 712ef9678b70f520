"""Retractions keep to the manifold and to their order; distances are exact to eps."""

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import bracketflow as bf
from bracketflow.geometry import (
    check_basis,
    initial_state,
    orthonormal_columns,
    orthonormalise,
    taken,
    upright,
)
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
    square = np.zeros(2)
    for _ in range(20):  # the leading term of a single one may happen to vanish
        basis = bf.random_basis(8, k, rng=rng)
        rotation, normal = tangent(rng, basis)
        for i, t in enumerate((1e-1, 1e-2)):
            move = (t * rotation, None if normal is None else t * normal)
            error = RETRACTIONS[name](basis, *move) - exact(basis, *move)
            square[i] += np.sum(error**2)
    assert abs(0.5 * np.log10(square[0] / square[1]) - order) < 0.1


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
    shapes = ([2, 1.5, 1, 0.5], [1e4, 1, 1, 1e-2])
    for values, scale in itertools.product(shapes, (1e-6, 1.0, 1e6)):
        q = orthonormalise(scale * (u * values) @ vt)
        assert np.allclose(q, u @ vt, rtol=0, atol=1e-9)
        assert np.linalg.norm(q.T @ q - np.eye(4)) <= 20 * EPS


def test_members_of_an_ensemble_are_made_orthonormal_each_in_its_own_way(rng):
    u, _, vt = np.linalg.svd(rng.standard_normal((3, 9, 4)), full_matrices=False)
    values = np.array([[2, 1.5, 1, 0.5], [1e4, 1, 1, 1e-2], [1, 1, 1, 1]])
    factor = orthonormalise((u * values[:, None, :]) @ vt)
    alone = np.stack([orthonormalise((u[i] * values[i]) @ vt[i]) for i in range(3)])
    assert np.allclose(factor, alone, rtol=0, atol=20 * EPS)
    # Condition 1e6: the factor is known to a million roundings.
    assert np.allclose(factor, u @ vt, rtol=0, atol=1e6 * 20 * EPS)
    assert np.abs(factor.mT @ factor - np.eye(4)).max() <= 20 * EPS


def test_a_singular_matrix_has_orthonormal_columns_all_the_same():
    assert (
        np.linalg.norm(
            orthonormalise(np.ones((5, 3))).T @ orthonormalise(np.ones((5, 3))) - np.eye(3)
        )
        <= 20 * EPS
    )


@pytest.mark.parametrize("ensemble", [(), (3,)])
def test_qr_has_a_positive_diagonal(ensemble, rng):
    matrix = rng.standard_normal((*ensemble, 7, 4))
    q = orthonormal_columns(matrix)
    r = q.mT @ matrix
    assert np.allclose(r, np.triu(r), rtol=0, atol=20 * EPS)
    assert np.all(r.diagonal(axis1=-2, axis2=-1) > 0)
    assert np.allclose(q @ r, matrix, rtol=0, atol=20 * EPS)


@pytest.mark.parametrize("name", ["cayley", "neumann3", "polar", "qr"])
@pytest.mark.parametrize("k", [3, 8])
def test_members_of_an_ensemble_move_as_if_alone(name, k, rng):
    bases = bf.random_basis(8, k, rng=rng, ensemble=(3,))
    moves = [tangent(rng, basis, size) for basis, size in zip(bases, (1e-9, 0.3, 0.9), strict=True)]
    rotation = np.stack([move[0] for move in moves])
    normal = None if k == 8 else np.stack([move[1] for move in moves])
    together = RETRACTIONS[name](bases, rotation, normal)
    for basis, move, moved in zip(bases, moves, together, strict=True):
        assert np.allclose(RETRACTIONS[name](basis, *move), moved, rtol=0, atol=20 * EPS)


def test_only_the_member_whose_move_overflows_is_lost(rng):
    bases = bf.random_basis(4, rng=rng, ensemble=(2,))
    rotation = np.stack([tangent(rng, bases[0], 0.2)[0], tangent(rng, bases[1], 1e200)[0]])
    moved = bf.neumann(2)(bases, rotation)
    assert np.isnan(moved[1]).all()
    assert np.allclose(moved[0], bf.neumann(2)(bases[0], rotation[0]), rtol=0, atol=1e-3)


def test_a_basis_that_is_a_little_off_is_corrected_and_a_good_one_left_alone(rng):
    basis = bf.random_basis(8, 3, rng=rng)
    still = np.zeros((3, 3))
    assert np.array_equal(bf.cayley(basis, still, np.zeros((8, 3))), basis)
    moved = bf.cayley(basis * (1 + 1e-10), still, np.zeros((8, 3)))
    assert np.allclose(moved, basis, rtol=0, atol=20 * EPS)


def test_neumann_has_order_four_unless_told():
    assert bf.neumann() == bf.neumann(4)
    assert bf.neumann(1).order == 1


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_random_basis_is_like_what_it_is_shown(dtype):
    exact = bf.random_basis(5, 2, rng=3, ensemble=(2,))
    array = bf.random_basis(5, 2, rng=3, ensemble=(2,), like=np.empty(0, dtype))
    tensor = bf.random_basis(5, 2, rng=3, ensemble=(2,), like=torch.from_numpy(array))
    assert array.dtype == dtype
    assert tensor.dtype == torch.from_numpy(array).dtype
    assert np.array_equal(array, exact.astype(dtype))
    assert np.array_equal(tensor, array)


def test_random_basis_needs_a_dimension():
    with pytest.raises(ValueError, match=r"^n must be at least 1, got 0$"):
        bf.random_basis(0)
    assert np.abs(bf.random_basis(1)) == 1
    assert bf.random_basis(3).shape == bf.random_basis(3, 3).shape == (3, 3)


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
        (np.eye(3)[:, :2].T, ValueError, "k = 3 columns of length n = 2: k must be from 1 to n"),
        (np.eye(3)[:, :0], ValueError, "k = 0 columns of length n = 3: k must be from 1 to n"),
        (np.stack([np.eye(3), 3 * np.eye(3)]), ValueError, r"‖XᵀX − I‖_F = 14: "),
        (np.eye(3, dtype=int), TypeError, "float32 or float64"),
        (np.eye(3) * np.nan, ValueError, "not orthonormal"),
    ],
)
def test_bad_start_bases_are_refused(basis, error, match):
    with pytest.raises(error, match=match):
        check_basis(basis)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_start_basis_may_miss_orthonormality_by_half_of_the_digits(dtype):
    root = np.finfo(dtype).eps ** 0.5
    for library in (np.asarray, torch.from_numpy):
        # Of (1 + d)e the defect is 2d.
        check_basis(library((np.eye(3)[:, :1] * (1 + 0.45 * root)).astype(dtype)))
        with pytest.raises(ValueError, match="not orthonormal"):
            check_basis(library((np.eye(3)[:, :1] * (1 + 0.55 * root)).astype(dtype)))


def test_a_checked_basis_is_a_copy_in_rows(rng):
    basis = bf.random_basis(4, 3, rng=rng)
    layouts, libraries = (basis, np.asfortranarray(basis)), (np.asarray, torch.from_numpy)
    for layout, library in itertools.product(layouts, libraries):
        given = library(layout)
        copy = check_basis(given)
        assert np.asarray(copy).flags.c_contiguous
        assert np.array_equal(copy, given)
        assert not np.shares_memory(np.asarray(copy), np.asarray(given))


def test_counters_of_a_state_have_the_shape_of_its_ensemble(rng):
    single = initial_state(bf.random_basis(4, 2, rng=rng), "memory")
    assert single[1:] == (0, 0, 0.0, "memory", None)
    several = initial_state(bf.random_basis(4, 2, rng=rng, ensemble=(3, 2)))
    for counter in (several.steps, several.matvecs):
        assert counter.dtype == np.int64
        assert np.array_equal(counter, np.zeros((3, 2)))
    assert several.memory is None


def test_init_copies_the_basis(rng):
    basis = bf.random_basis(4, rng=rng)
    state = bf.DoubleBracketFlow().init(basis)
    basis[:] = 0
    assert np.linalg.norm(state.basis) == pytest.approx(2)


# Columns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("ensemble", [(), (2,), (2, 3)])
def test_upright_columns_have_their_largest_entry_positive(library, ensemble, rng):
    vectors = rng.standard_normal((*ensemble, 5, 4))
    turned = np.asarray(upright(library(vectors)))
    assert turned.flags.c_contiguous
    for member in np.ndindex(ensemble):
        for old, new in zip(vectors[member].T, turned[member].T, strict=True):
            assert np.array_equal(new, old * np.sign(old[np.abs(old).argmax()]))
    assert np.array_equal(upright(library(np.zeros((3, 1)))), np.zeros((3, 1)))


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("ensemble", [(), (2,), (2, 3)])
def test_taken_columns_and_values_go_together(library, ensemble, rng):
    columns, values = rng.standard_normal((*ensemble, 5, 4)), rng.standard_normal((*ensemble, 4))
    order = rng.permuted(np.broadcast_to(np.arange(4), (*ensemble, 4)), axis=-1)[..., :3]
    found = taken(library(columns), library(order)), taken(library(values), library(order))
    for member in np.ndindex(ensemble):
        assert np.array_equal(found[0][member], columns[member][:, order[member]])
        assert np.array_equal(found[1][member], values[member][order[member]])


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
