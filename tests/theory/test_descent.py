import numpy as np
import pytest

from bracketflow import theory


def gradient(operator, basis):
    return -theory.commutator_field(basis, operator)


def test_no_gradient_difference_exceeds_the_lipschitz_constants(
    problems, rng, skew, frobenius, not_above
):
    for p in problems:
        near = p.basis @ theory.cayley(10 ** rng.uniform(-3, 0) * skew(len(p.norm), p.n))
        radius = theory.half_spread(p.operator)
        for other in (near, p.basis[::-1]):
            change = frobenius(gradient(p.operator, p.basis) - gradient(p.operator, other))
            distance = frobenius(p.basis - other)
            scale = radius**2
            not_above(change, theory.gradient_lipschitz(p.norm, p.n) * distance, scale)
            not_above(change, theory.sharp_gradient_lipschitz(radius) * distance, scale)


def test_every_step_below_two_over_l_decreases_f_as_guaranteed(problems, rng, not_above):
    for p in problems:
        level = theory.lyapunov(p.rotated)
        size = np.sqrt(theory.dissipation(p.rotated))
        sharp = theory.sharp_descent_constant(theory.half_spread(p.operator))
        for constant in (theory.descent_constant(p.norm, p.n), sharp):
            step = rng.uniform(0.01, 1.99, len(p.norm)) / constant
            moved = theory.cayley_step(p.basis, p.operator, step[:, None, None])
            after = theory.lyapunov(theory.rotated_operator(p.operator, moved))
            drop = theory.guaranteed_decrease(step, constant, size)
            not_above(after, level - drop, p.norm**2)


def test_the_pullback_stays_below_its_quadratic_model_in_every_direction(problems, skew, not_above):
    """The inequality behind the descent lemma, with 12r² in place of (4√n + 8)‖C_e‖²."""
    for p in problems:
        xi = skew(len(p.norm), p.n)
        moved = theory.lyapunov(theory.rotated_operator(p.operator, p.basis @ theory.cayley(xi)))
        slope = -np.sum(theory.generator(p.rotated) * xi, (-2, -1))
        constant = theory.sharp_descent_constant(theory.half_spread(p.operator))
        model = theory.lyapunov(p.rotated) + slope + constant / 2 * np.sum(xi**2, (-2, -1))
        not_above(moved, model, p.norm**2 + np.abs(slope))


def test_the_sharp_constants_are_never_larger_and_lose_the_root_of_n():
    for n in range(1, 200):
        assert theory.sharp_descent_constant(2.0) <= theory.descent_constant(2.0, n)
        assert theory.sharp_gradient_lipschitz(2.0) <= theory.gradient_lipschitz(2.0, n)
    assert theory.descent_constant(1.0, 100) == 48
    assert theory.sharp_descent_constant(1.0) == 12


def test_a_tenth_over_the_squared_norm_is_above_one_over_l_yet_certified():
    """The paper's step in its first experiment (n = 10) is said to be below 1/L_C."""
    norm, n = 4.5, 10
    step = 0.1 / norm**2
    assert step * theory.descent_constant(norm, n) == pytest.approx(2.065, abs=5e-4)
    assert step < 2 / theory.sharp_descent_constant(norm)
    assert theory.guaranteed_decrease(step, theory.sharp_descent_constant(norm), 1.0) > 0
    with pytest.raises(ValueError, match="step"):
        theory.guaranteed_decrease(step, theory.descent_constant(norm, n), 1.0)


def test_one_over_l_is_sufficient_and_not_the_maximal_stable_step():
    """Minimisers attract far beyond 1/L_C, and repel beyond the edge of the linearisation."""
    operator = np.diag(np.arange(15.0, 0, -1))
    edge = theory.local_step_edge(theory.half_spread(operator))
    printed = theory.admissible_step(theory.descent_constant(theory.trace_free_norm(operator), 15))
    assert edge / printed == pytest.approx(11.75, abs=0.01)
    start = theory.cayley(1e-3 * theory.givens_direction(15, 0, 14))
    first = theory.lyapunov(theory.rotated_operator(operator, start))
    for factor, falls in [(0.95, True), (1.05, False)]:
        moved = theory.cayley_step(start, operator, factor * edge)
        assert (theory.lyapunov(theory.rotated_operator(operator, moved)) < first) == falls
        radius = np.abs(np.linalg.eigvalsh(theory.step_linearisation(operator, factor * edge)))
        assert (radius.max() < 1) == falls


def test_the_guaranteed_decrease_is_largest_at_one_over_l():
    steps = np.linspace(0.01, 1.99, 199) / 7.0
    best = steps[np.argmax(theory.guaranteed_decrease(steps, 7.0, 1.0))]
    assert best == pytest.approx(theory.admissible_step(7.0))


def test_no_deviation_level_or_clean_step_exceeds_its_lipschitz_constant(
    problems, rng, frobenius, not_above
):
    for p in problems:
        other = p.basis[::-1]
        level = theory.lyapunov(p.rotated)
        second = theory.lyapunov(theory.rotated_operator(p.operator, other))
        distance = frobenius(p.basis - other)
        not_above(
            np.abs(np.sqrt(level) - np.sqrt(second)), theory.deviation_lipschitz(p.norm) * distance
        )
        not_above(np.abs(level - second), theory.lyapunov_lipschitz(p.norm, p.n) * distance)
        step = rng.uniform(0.1, 2, len(p.norm)) / p.norm**2
        one = theory.cayley_step(p.basis, p.operator, step[:, None, None])
        two = theory.cayley_step(other, p.operator, step[:, None, None])
        not_above(frobenius(one - two), theory.clean_map_lipschitz(step, p.norm) * distance)


def test_the_deviation_bound_is_attained_at_the_extreme_pair(frobenius):
    operator, angle = np.diag([1.0, 0, -1]), 1e-4
    basis = theory.cayley(angle * theory.givens_direction(3, 0, 2))
    deviation = np.sqrt(theory.lyapunov(theory.rotated_operator(operator, basis)))
    bound = theory.deviation_lipschitz(1.0) * frobenius(basis - np.eye(3))
    assert deviation / bound == pytest.approx(1, abs=4 * angle**2)


def test_the_clean_step_is_a_local_diffeomorphism_below_an_eighth_of_the_squared_norm(
    problems, skew, frobenius, not_above
):
    h = 1e-30
    for p in problems:
        xi = skew(len(p.norm), p.n)
        xi /= frobenius(xi)[:, None, None]
        step = 0.999 / (8 * p.norm**2)
        moved = p.basis + 1j * h * p.basis @ xi
        image = theory.cayley_step(moved, p.operator, step[:, None, None]).imag / h
        not_above(theory.local_inverse_bound(step, p.norm), frobenius(image), 1)


def test_a_step_from_the_raw_norm_degrades_with_the_background():
    """The paper: the choice c/‖C_k‖² does not degrade convergence."""
    assert theory.raw_norm_slowdown(10.0 + 1000, 4.5) > 5e4
    # and the trace-free norm, which a multiple of the identity leaves alone, cures it
    operator = np.diag([10.0, 5, 1])
    assert theory.trace_free_norm(operator + 1000 * np.eye(3)) == pytest.approx(
        theory.trace_free_norm(operator), rel=1e-12
    )


def test_the_raw_norm_may_be_below_the_trace_free_norm_but_not_below_the_half_spread(
    problems, not_above
):
    """The paper: ‖C_k‖ ≥ ‖C_e‖."""
    operator = np.diag([1.0, 1, -1])
    assert np.linalg.norm(operator, 2) < theory.trace_free_norm(operator)
    for p in problems:
        raw = p.operator + p.norm[:, None, None] * np.eye(p.n)
        not_above(theory.half_spread(raw), np.linalg.norm(raw, 2, (-2, -1)))


@pytest.mark.parametrize("step", [0.0, -1.0, 2.0, np.nan])
def test_steps_without_a_guarantee_are_refused(step):
    with pytest.raises(ValueError, match="step"):
        theory.guaranteed_decrease(step, 1.0, 1.0)


@pytest.mark.parametrize("norm", [0.0, -1.0, np.nan, np.inf])
def test_a_constant_needs_a_positive_norm(norm):
    with pytest.raises(ValueError, match="norm"):
        theory.descent_constant(norm, 5)
