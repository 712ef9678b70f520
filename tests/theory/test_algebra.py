import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bracketflow import theory


def test_the_entrywise_generator_is_the_commutator_with_the_diagonal(problems, equal):
    for p in problems:
        bracket = theory.commutator(p.rotated, theory.diagonal_part(p.rotated))
        equal(
            theory.generator(p.rotated) / p.norm[:, None, None] ** 2,
            bracket / p.norm[:, None, None] ** 2,
            1,
        )


@given(st.floats(-100, 100))
def test_a_multiple_of_the_identity_changes_neither_generator_nor_lyapunov(alpha):
    rotated = np.array([[2.0, 1, 0.5], [1, -1, 3], [0.5, 3, 0]])
    shifted = rotated + alpha * np.eye(3)
    rounding = np.finfo(float).eps * 4 * 3 * (4 + abs(alpha))  # of the diagonal, times entries ≤ 3
    assert np.abs(theory.generator(shifted) - theory.generator(rotated)).max() <= rounding
    assert theory.lyapunov(shifted) == theory.lyapunov(rotated)


def test_trajectories_agree_for_any_sequence_of_shifts(problems, rng):
    operator, basis = problems[1].operator[0], problems[1].basis[0]
    operator = operator / theory.trace_free_norm(operator)
    plain = shifted = basis
    shifts = 10 ** rng.uniform(0, 3, 50)
    for background in shifts:
        noise = 0.1 * rng.standard_normal((3, 3))
        seen = operator + noise + noise.T
        plain = theory.cayley_step(plain, seen, 0.05)
        shifted = theory.cayley_step(
            shifted, theory.trace_free(seen + background * np.eye(3)), 0.05
        )
    # tf removes the shift at the cost of eps·σ² per step
    assert np.abs(plain - shifted).max() <= 50 * 3 * np.finfo(float).eps * shifts.max()


def test_the_trace_free_part_has_no_trace_and_forgets_shifts(problems, equal):
    for p in problems:
        shifted = theory.trace_free(p.operator + p.norm[:, None, None] * np.eye(p.n))
        equal(shifted / p.norm[:, None, None], p.operator / p.norm[:, None, None], 1)


def test_n_products_give_the_trace_for_free(problems, equal):
    for p in problems:
        seen = p.operator + p.norm[:, None, None] * np.eye(p.n)
        trace = np.trace(theory.rotated_operator(seen, p.basis), axis1=-2, axis2=-1)
        equal(trace / p.norm, np.full(trace.shape, float(p.n)))


def test_no_commutator_exceeds_its_bound(problems, frobenius, not_above):
    for p in problems:
        other = p.operator[::-1]
        size = frobenius(theory.commutator(p.operator, other))
        spectral, total = np.linalg.norm(other, 2, (-2, -1)), frobenius(other)
        not_above(size, theory.commutator_bound(p.norm, total))
        not_above(size, theory.commutator_bound(spectral, frobenius(p.operator)))


def test_no_generator_exceeds_its_bounds(problems, frobenius, not_above):
    for p in problems:
        omega = theory.generator(p.rotated)
        not_above(frobenius(omega), theory.generator_bound(p.norm, p.n))
        radius = theory.half_spread(p.operator)
        not_above(radius, p.norm)
        not_above(np.linalg.norm(omega, 2, (-2, -1)), theory.generator_spectral_bound(radius))


def test_no_input_exceeds_its_bound(problems, rng, frobenius, not_above):
    for p in problems:
        noise = theory.trace_free(p.rotated[::-1]) * 10 ** rng.uniform(-3, 1, (len(p.norm), 1, 1))
        size = frobenius(theory.effective_input(p.rotated, noise))
        not_above(size, theory.input_bound(p.norm, frobenius(noise)))


def test_the_input_bound_is_tight_to_a_factor_of_two_at_the_extreme_pair(frobenius):
    rotated, size = np.diag([1.0, 0, -1]), 1e-9
    noise = np.zeros((3, 3))
    noise[0, 2] = noise[2, 0] = size
    ratio = frobenius(theory.effective_input(rotated, noise)) / theory.input_bound(
        theory.trace_free_norm(rotated), frobenius(noise)
    )
    assert ratio == pytest.approx(0.5, abs=2 * size)  # the quadratic term


def test_the_derivative_of_the_generator_is_that_of_a_complex_step(problems, skew, equal):
    for p in problems:
        direction, h = skew(len(p.norm), p.n), 1e-30
        moved = p.rotated + 1j * h * theory.commutator(p.rotated, direction)
        scale = p.norm[:, None, None] ** 2 * np.abs(direction).max((-2, -1), keepdims=True)
        exact = theory.generator_derivative(p.rotated, direction)
        equal(theory.generator(moved).imag / h / scale, exact / scale)


def test_no_derivative_or_difference_of_the_generator_exceeds_its_lipschitz_constant(
    problems, skew, frobenius, not_above
):
    for p in problems:
        direction = skew(len(p.norm), p.n)
        constant = theory.generator_lipschitz(p.norm)
        derivative = theory.generator_derivative(p.rotated, direction)
        not_above(frobenius(derivative), constant * frobenius(direction))
        other = theory.rotated_operator(p.operator, p.basis[::-1])
        distance = frobenius(p.basis - p.basis[::-1])
        not_above(frobenius(other - p.rotated), theory.rotation_lipschitz(p.norm) * distance)
        change = frobenius(theory.generator(other) - theory.generator(p.rotated))
        not_above(change, constant * distance)


def test_gap_and_spread_read_the_spectrum_and_not_the_shift():
    operator = np.diag([7.0, 3, 1]) + 100 * np.eye(3)
    assert theory.spectral_gap(operator) == pytest.approx(2)
    assert theory.half_spread(operator) == pytest.approx(3)
    assert theory.trace_free_norm(operator) == pytest.approx(7 - 11 / 3)


@pytest.mark.parametrize("noise", [-1.0, np.nan, np.inf])
def test_impossible_noise_is_refused_by_name_and_value(noise):
    with pytest.raises(ValueError, match=f"noise = {noise}"):
        theory.input_bound(1.0, noise)
