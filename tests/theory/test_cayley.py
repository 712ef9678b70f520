import numpy as np
import pytest

from bracketflow import theory

EPS = np.finfo(float).eps


def norm2(matrix):
    return np.linalg.norm(matrix, 2, (-2, -1))


def test_cayley_maps_skew_matrices_into_rotations(skew, equal):
    for n in (2, 3, 5, 10):
        turn = theory.cayley(skew(600, n))
        equal(turn.swapaxes(-1, -2) @ turn, np.broadcast_to(np.eye(n), turn.shape))
        equal(np.linalg.det(turn), np.ones(600))


def test_the_derivative_of_cayley_is_that_of_a_complex_step_and_contracts(
    skew, frobenius, equal, not_above
):
    for n in (2, 3, 5, 10):
        point, direction, h = skew(600, n), skew(600, n), 1e-30
        direction /= frobenius(direction)[:, None, None]
        derivative = theory.cayley_derivative(point, direction)
        equal(derivative, theory.cayley(point + 1j * h * direction).imag / h)
        not_above(frobenius(derivative), np.ones(600))


def test_the_cayley_difference_identity_holds_and_bounds_the_step_difference(
    skew, frobenius, equal, not_above
):
    for n in (2, 3, 5, 10):
        first, second = skew(600, n), skew(600, n)
        difference = theory.cayley(first) - theory.cayley(second)
        equal(theory.cayley_difference(first, second), difference)
        not_above(frobenius(difference), frobenius(first - second))


def test_cayley_paths_stay_within_their_bounds(skew, rng, frobenius, equal, not_above):
    for n in (2, 3, 5, 10):
        xi, time, h = skew(600, n), rng.uniform(0, 1), 1e-30
        velocity = theory.cayley_velocity(xi, time)
        equal(velocity, theory.cayley((time + 1j * h) * xi).imag / h)
        bounds = theory.cayley_path_bounds(time, frobenius(xi))
        not_above(frobenius(theory.cayley(time * xi) - np.eye(n)), bounds.displacement)
        not_above(frobenius(velocity), bounds.velocity)
        not_above(frobenius(velocity - xi), bounds.velocity_change, bounds.velocity)


def test_no_step_is_longer_than_eta_times_the_generator(problems, rng, frobenius, not_above):
    for p in problems:
        step = 10 ** rng.uniform(-2, 2)
        operator = p.operator / p.norm[:, None, None]
        moved = theory.cayley_step(p.basis, operator, step)
        size = frobenius(theory.generator(p.rotated / p.norm[:, None, None]))
        not_above(frobenius(moved - p.basis), theory.step_length_bound(step, size), 1)


def test_trajectories_have_finite_length(problems, frobenius, not_above):
    """Path length and energy of whole runs: both sums stop growing."""
    p = problems[1]
    operator = p.operator / p.norm[:, None, None]
    wide = np.flatnonzero(theory.spectral_gap(operator) > 0.3)[:50]
    operator, basis = operator[wide], p.basis[wide]
    step = 1 / theory.sharp_descent_constant(1.0)
    start = theory.lyapunov(theory.rotated_operator(operator, basis))
    lengths, energy = np.zeros((2, len(basis))), np.zeros(len(basis))
    for index in range(4000):
        omega = theory.generator(theory.rotated_operator(operator, basis))
        moved = basis @ theory.cayley(step * omega)
        lengths[index // 2000] += frobenius(moved - basis)
        energy += frobenius(omega) ** 2
        basis = moved
    # rate 0.3² per unit of time and 2000/12 units: the second half is e⁻¹⁵ of what the first left
    assert lengths[1].max() < 0.01 < lengths[0].max()
    not_above(energy, theory.path_energy_bound(step, 1 / step, start))


def test_exact_cayley_steps_converge_from_haar_starts_to_minima(problems):
    p = problems[2]
    keep = np.argsort(theory.spectral_gap(p.operator) / p.norm)[-50:]  # the 50 largest gaps
    operator, basis = (p.operator / p.norm[:, None, None])[keep], p.basis[keep]
    for _ in range(5000):
        basis = theory.cayley_step(basis, operator, 1 / 12)
    assert theory.lyapunov(theory.rotated_operator(operator, basis)).max() < 1e-8


@pytest.mark.parametrize("order", range(7))
def test_no_truncation_exceeds_its_error_bounds(order, skew, rng, frobenius, not_above):
    for n in (2, 3, 5, 10):
        xi = skew(600, n)
        radius = rng.uniform(0.01, 0.95, 600)
        xi *= (2 * radius / norm2(xi))[:, None, None]
        error = theory.cayley(xi) - theory.neumann_cayley(xi, order)
        not_above(frobenius(error), theory.sharp_truncation_error(radius, order, n), 1)
        not_above(norm2(error), radius ** (order + 1), 1)
        not_above(radius ** (order + 1), norm2(error), 1)  # attained in the spectral norm
        printed = theory.truncation_error(radius, order, n)
        not_above(theory.sharp_truncation_error(radius, order, n), printed)


@pytest.mark.parametrize("order", range(7))
def test_the_orthogonality_defect_depends_on_the_parity_of_the_order(order, skew, equal):
    for n in (2, 4, 5):
        xi = skew(200, n)
        radius = 0.3
        xi *= (2 * radius / norm2(xi))[:, None, None]
        turn = theory.neumann_cayley(xi, order)
        defect = norm2(turn.swapaxes(-1, -2) @ turn - np.eye(n))
        equal(defect, np.full(200, theory.orthogonality_defect(radius, order)), 1)


def test_certified_steps_keep_the_series_far_inside_its_radius(problems, not_above):
    for p in problems:
        size = norm2(theory.generator(p.rotated)) / 2
        printed = theory.admissible_step(theory.descent_constant(p.norm, p.n))
        not_above(printed * size, theory.truncation_radius(p.n))
        radius = theory.half_spread(p.operator)
        sharp = theory.admissible_step(theory.sharp_descent_constant(radius))
        not_above(sharp * size, theory.sharp_truncation_radius(sharp, radius))
        not_above(theory.sharp_truncation_radius(sharp, radius), 1 / 12)
    assert theory.truncation_radius(10**9) < 1 / 4


def test_a_truncated_step_of_order_three_lets_the_background_in(haar):
    """The paper: every truncation order keeps the trajectory free of σ²."""
    operator, basis, background = np.diag([1.0, 0.2, -1.2]), haar(1, 3)[0], 1e6
    omega = theory.generator(theory.rotated_operator(operator, basis))
    moved = basis @ theory.neumann_cayley(0.2 * omega / norm2(omega), 3)  # ρ = 0.1
    plain = theory.generator(theory.rotated_operator(operator, moved))
    shifted = theory.generator(theory.rotated_operator(operator + background * np.eye(3), moved))
    assert np.linalg.norm(shifted - plain) > np.linalg.norm(plain)


def test_the_leak_of_the_background_is_bounded_and_centring_closes_it(
    problems, skew, rng, frobenius, not_above
):
    for p in problems:
        operator = p.operator / p.norm[:, None, None]
        basis = p.basis @ (np.eye(p.n) + 1e-3 * skew(len(p.norm), p.n))
        background = 10 ** rng.uniform(-1, 3)
        shifted = operator + background * np.eye(p.n)
        plain = theory.rotated_operator(operator, basis)
        leak = theory.generator(theory.rotated_operator(shifted, basis)) - theory.generator(plain)
        defect = frobenius(basis.swapaxes(-1, -2) @ basis - np.eye(p.n))
        bound = theory.shift_leak(background, norm2(plain), defect)
        not_above(frobenius(leak), bound, bound + background)
        closed = theory.centred_rotation(shifted, basis) - theory.centred_rotation(operator, basis)
        assert np.abs(closed).max() <= 100 * p.n * EPS * background
        exact = theory.centred_rotation(p.operator, p.basis) - p.rotated  # already trace-free
        not_above(frobenius(exact), 0, p.norm)


def test_a_series_outside_its_radius_is_refused():
    for radius in (1.0, -0.1, np.nan):
        with pytest.raises(ValueError, match="radius"):
            theory.truncation_error(radius, 3, 5)
    with pytest.raises(ValueError, match="order"):
        theory.neumann_cayley(np.zeros((2, 2)), -1)
