import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from bracketflow import theory

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
FINE = 1e-8  # what ``TIGHT`` leaves after the few hundred steps of these runs


def solve(field, start, end, times=200):
    """Values of the solution of Ẋ = field(X) at equal times."""
    shape = start.shape
    grid = np.linspace(0, end, times)
    run = solve_ivp(
        lambda _, x: field(x.reshape(shape)).ravel(), (0, end), start.ravel(), t_eval=grid, **TIGHT
    )
    return grid, run.y.T.reshape(-1, *shape)


@pytest.fixture
def operator(haar):
    basis = haar(1, 5)[0]
    return basis @ np.diag([4.0, 2.5, 1, -1, -3]) @ basis.T


def test_f_falls_at_the_rate_of_the_generator_and_the_flow_stays_orthogonal(operator, haar):
    times, bases = solve(lambda m: theory.commutator_field(m, operator), haar(1, 5)[0], 3.0, 3001)
    rotated = theory.rotated_operator(operator, bases)
    levels, rates = theory.lyapunov(rotated), theory.dissipation(rotated)
    assert np.all(np.diff(levels) <= FINE)
    # Simpson's rule on steps of 1e-3 is exact to far below FINE
    total = np.sum(rates[:-2:2] + 4 * rates[1:-1:2] + rates[2::2]) * (times[1] - times[0]) / 3
    assert levels[0] - levels[-1] == pytest.approx(total, rel=1e-6)
    assert np.abs(bases.swapaxes(-1, -2) @ bases - np.eye(5)).max() <= FINE


def test_haar_starts_flow_to_a_minimum_and_into_the_separated_domain(operator, haar):
    for start in haar(5, 5):
        _, bases = solve(lambda m: theory.commutator_field(m, operator), start, 100.0)
        rotated = theory.rotated_operator(operator, bases)
        assert theory.lyapunov(rotated)[-1] <= FINE
        inside = theory.in_domain(rotated, 0.9 * theory.spectral_gap(operator))
        assert inside[-1]
        assert np.all(np.diff(inside[np.argmax(inside) :].astype(int)) == 0)


def test_brockett_flow_raises_its_objective_and_ends_at_the_leading_frame(operator, haar):
    weights = np.array([3.0, 2, 1])
    maximum = theory.brockett_maximum(np.linalg.eigvalsh(operator), weights)
    leading = np.linalg.eigh(operator)[1][:, ::-1][:, :3]
    for start in haar(5, 5)[:, :, :3]:
        _, bases = solve(lambda m: theory.brockett_field(m, operator, weights), start, 20.0)
        values = theory.brockett_objective(bases, operator, weights)
        assert np.all(np.diff(values) >= -FINE)
        assert values[-1] == pytest.approx(maximum, abs=FINE)
        assert np.abs(np.abs(leading.T @ bases[-1]) - np.eye(3)).max() <= 1e-6


def test_equal_weights_give_the_projector_flow(operator, haar):
    start = haar(1, 5)[0][:, :2]
    _, bases = solve(lambda m: theory.brockett_field(m, operator, np.ones(2)), start, 2.0)
    _, projectors = solve(lambda p: theory.projector_field(p, operator), start @ start.T, 2.0)
    assert np.abs(bases @ bases.swapaxes(-1, -2) - projectors).max() <= FINE


def test_the_projector_flow_forgets_shifts(problems, equal):
    for p in problems:
        projector = p.basis[..., :1] @ p.basis[..., :1].swapaxes(-1, -2)
        shifted = p.operator + p.norm[:, None, None] * np.eye(p.n)
        scale = p.norm[:, None, None]
        equal(
            theory.projector_field(projector, shifted) / scale,
            theory.projector_field(projector, p.operator) / scale,
            1,
        )


def test_one_cayley_step_follows_the_flow_to_second_order(operator, haar):
    start, steps = haar(1, 5)[0], np.array([4e-4, 2e-4, 1e-4])
    errors = []
    for step in steps:
        _, bases = solve(lambda m: theory.commutator_field(m, operator), start, step, 2)
        errors.append(np.linalg.norm(theory.cayley_step(start, operator, step) - bases[-1]))
    slopes = np.diff(np.log(errors)) / np.diff(np.log(steps))
    np.testing.assert_allclose(slopes, 2, atol=0.1)  # the third-order term at these steps


def test_the_hessian_is_the_second_derivative_along_geodesics(problems, skew, equal):
    for p in problems:
        xi = skew(len(p.norm), p.n)
        xi /= np.abs(xi).max((-2, -1), keepdims=True)
        first = theory.off_diagonal(theory.commutator(p.rotated, xi))
        second = theory.commutator(theory.commutator(p.rotated, xi), xi)
        curvature = np.sum(first**2 + theory.off_diagonal(p.rotated) * second, (-2, -1))
        form = np.sum(theory.hessian(p.rotated, xi) * xi, (-2, -1))
        equal(form / p.norm**2, curvature / p.norm**2)


def test_at_critical_points_the_hessian_is_minus_the_derivative_of_the_generator(saddle, skew):
    for blocks in [(2, 3), (4,), (2, 2, 1), (1, 1, 1)]:
        rotated, directions = saddle(blocks), skew(100, sum(blocks))
        linear = theory.generator_derivative(rotated, directions)
        np.testing.assert_array_equal(theory.hessian(rotated, directions), -linear)


def test_the_hessian_matrix_is_symmetric_and_matches_the_form(problems, equal):
    for p in problems:
        matrix = theory.hessian_matrix(p.rotated[:50]) / p.norm[:50, None, None] ** 2
        equal(matrix, matrix.swapaxes(-1, -2))


def test_the_linearised_flow_and_step_are_those_of_a_complex_step(saddle, haar, equal):
    step, h, rotated = 0.01, 1e-30, saddle()
    basis = haar(1, 5)[0]
    operator = basis @ rotated @ basis.T
    for direction, flow, image in zip(
        theory.skew_basis(5),
        theory.flow_linearisation(rotated).T,
        theory.step_linearisation(rotated, step).T,
        strict=True,
    ):
        moved = basis + 1j * h * basis @ direction
        equal(
            basis.T @ theory.commutator_field(moved, operator).imag / h,
            np.tensordot(flow, theory.skew_basis(5), 1),
            10,
        )
        equal(
            basis.T @ theory.cayley_step(moved, operator, step).imag / h,
            np.tensordot(image, theory.skew_basis(5), 1),
            1,
        )


def test_the_step_repels_at_every_saddle_and_attracts_at_every_minimum(saddle):
    for blocks in [(2, 3), (4,), (2, 2, 1)] * 20:
        rotated = saddle(blocks)
        constant = theory.sharp_descent_constant(theory.half_spread(rotated))
        values = np.linalg.eigvalsh(theory.step_linearisation(rotated, 1 / constant))
        assert values[-1] > 1
    minimum = np.linalg.eigvalsh(theory.step_linearisation(np.diag([3.0, 1, 0]), 1 / 27))
    assert 0 < minimum[0] <= minimum[-1] < 1


def test_the_step_stands_still_at_critical_points_only(saddle, problems):
    for blocks in [(2, 3), (4,), (1, 1, 1)]:
        identity = np.eye(sum(blocks))
        np.testing.assert_array_equal(theory.cayley_step(identity, saddle(blocks), 0.1), identity)
    for p in problems:
        moved = theory.cayley_step(p.basis, p.operator / p.norm[:, None, None], 0.1)
        assert np.abs(moved - p.basis).max((-2, -1)).min() > 0


def test_a_skew_basis_is_orthonormal_and_givens_rotations_are_its_exponentials(equal):
    basis = theory.skew_basis(4)
    equal(np.einsum("aij,bij->ab", basis, basis), np.eye(6))
    turn = expm(0.3 * theory.givens_direction(4, 0, 1))
    assert turn[0, 0] == pytest.approx(np.cos(0.3))
    assert turn[0, 1] == pytest.approx(np.sin(0.3))
