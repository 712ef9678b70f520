import numpy as np
import pytest

from bracketflow import theory


def qf(matrix):
    q, r = np.linalg.qr(matrix)
    return q * np.sign(np.diagonal(r))


def tangent(basis):
    return basis[1, 0] / basis[0, 0]


@pytest.mark.parametrize("background", [0.0, 10.0, 1e4])
def test_subspace_iteration_contracts_the_angle_at_the_known_rate(background):
    operator, basis = np.diag([3.0, 1]) + background * np.eye(2), qf(np.array([[1.0, 2], [2, -1]]))
    contraction = theory.subspace_contraction(3.0, 1.0, background)
    after = qf(operator @ basis)
    assert tangent(after) == pytest.approx(contraction * tangent(basis))


@pytest.mark.parametrize("background", [0.0, 10.0, 1e4])
def test_oja_contracts_the_angle_at_the_known_rate_with_a_shrunken_step(background):
    step, signal = 0.1, np.diag([3.0, 1])
    basis = qf(np.array([[1.0, 2], [2, -1]]))
    after = qf((np.eye(2) + step * (signal + background * np.eye(2))) @ basis)
    contraction = theory.oja_contraction(step, 3.0, 1.0, background)
    assert tangent(after) == pytest.approx(contraction * tangent(basis))
    effective = theory.oja_effective_step(step, background)
    np.testing.assert_allclose(after, qf(basis + effective * signal @ basis), atol=1e-12)


def test_no_contraction_serves_every_background(rng):
    first = rng.uniform(1, 2, 2400)
    second, ratio = first - rng.uniform(0.01, 0.9, 2400), rng.uniform(0.9, 0.999, 2400)
    edge = theory.largest_background(ratio, first, second)
    ok = edge > 0
    assert np.all(theory.subspace_contraction(first, second, edge)[ok] <= ratio[ok] * (1 + 1e-12))
    assert np.all(theory.subspace_contraction(first, second, 1.01 * edge + 0.1)[ok] > ratio[ok])


def test_the_floors_never_exceed_the_exact_number_of_steps(rng, not_above):
    second, background = rng.uniform(0, 2, 2400), 10 ** rng.uniform(-2, 6, 2400)
    first, step = second + rng.uniform(0.01, 2, 2400), 10 ** rng.uniform(-4, 1, 2400)
    start, target = 1.0, 1e-3
    exact = theory.angle_steps(
        theory.subspace_contraction(first, second, background), start, target
    )
    slack = exact * background  # 1 − ρ = Δ/σ² loses that much of its digits
    floor = theory.subspace_steps_floor(first, second, background, start, target)
    not_above(floor, exact, slack)
    exact = theory.angle_steps(
        theory.oja_contraction(step, first, second, background), start, target
    )
    floor = theory.oja_steps_floor(step, first, second, background, start, target)
    not_above(floor, exact, exact * (background + 1 / step))


def test_the_predicted_number_of_steps_is_what_an_iteration_takes():
    operator, target = np.diag([103.0, 101]), 1e-3
    basis = qf(np.array([[1.0, -1], [1, 1]]))
    predicted = theory.angle_steps(theory.subspace_contraction(3.0, 1.0, 100.0), 1.0, target)
    steps = 0
    while abs(tangent(basis)) > target:
        basis, steps = qf(operator @ basis), steps + 1
    assert steps == np.ceil(predicted)


def test_the_euclidean_gradient_splits_into_generator_and_background(
    problems, rng, equal, not_above
):
    for p in problems:
        rotated, background = p.rotated / p.norm[:, None, None], 10 ** rng.uniform(-1, 3)
        off = theory.off_diagonal(rotated)
        full = 2 * (rotated + background * np.eye(p.n)) @ off
        parts = theory.gradient_decomposition(rotated, background)
        scale = background + 10
        shifted = p.operator / p.norm[:, None, None] + background * np.eye(p.n)
        step = theory.euclidean_step(p.basis, shifted, 0.1)
        equal(p.basis - step, 0.1 * p.basis @ (parts.tangent + parts.normal), scale)
        equal(parts.tangent + parts.normal, full, scale)
        equal(parts.tangent, -parts.tangent.swapaxes(-1, -2), scale)
        equal(parts.normal, parts.normal.swapaxes(-1, -2), scale)
        if background > 1:
            size = np.sqrt(np.sum(parts.normal**2, (-2, -1)))
            floor = theory.normal_part_floor(background, 1.0, np.sqrt(2 * theory.lyapunov(rotated)))
            not_above(floor, size, scale)


def level(operator, basis):
    return float(theory.lyapunov(theory.rotated_operator(operator, basis)))


def test_example_one_raises_f_by_a_step_of_subspace_iteration():
    c = np.array(
        [[0.11537, 1.77881, -0.52963], [1.77881, -0.44274, 0.09983], [-0.52963, 0.09983, 0.32737]]
    )
    m = np.array(
        [[-0.18742, 0.73430, 0.65244], [-0.84085, -0.46329, 0.27987], [0.50778, -0.49616, 0.70427]]
    )
    assert level(c, m) == pytest.approx(3.212, abs=5e-4)
    assert level(c, qf(c @ m)) == pytest.approx(3.489, abs=5e-4)


def test_example_two_raises_f_by_a_step_of_oja():
    c = np.array(
        [[0.81739, 0.78860, -0.87209], [0.78860, 0.27574, 0.73028], [-0.87209, 0.73028, -1.09313]]
    )
    m = np.array(
        [[-0.50527, 0.73623, -0.45018], [-0.86296, -0.43194, 0.26216], [-0.00144, 0.52095, 0.85359]]
    )
    assert level(c, m) == pytest.approx(1.411, abs=5e-4)
    assert level(c, qf(m + 0.2 * c @ m)) == pytest.approx(1.730, abs=5e-4)


def test_example_three_has_the_printed_levels_and_not_the_printed_percentages():
    """Printed: −96.5 % and +20.7 %. Its own levels give −95.2 % and +65.9 %."""
    c = np.array([[0.35377, 0.35731], [0.35731, 1.12382]])
    m = np.array([[0.77485, 0.63214], [-0.63214, 0.77485]])
    before = level(c, m)
    clean = level(c, qf(theory.euclidean_step(m, c, 0.5)))
    shifted = level(c, qf(theory.euclidean_step(m, c + 25 * np.eye(2), 0.5)))
    assert clean == pytest.approx(0.00450, abs=5e-6)
    assert shifted == pytest.approx(0.15477, abs=5e-6)
    changes = 100 * (np.array([clean, shifted]) / before - 1)
    assert np.all(np.abs(changes - [-96.5, 20.7]) > 1)
    np.testing.assert_allclose(changes, [-95.2, 65.9], atol=0.05)


def test_the_slowdown_of_oja_follows_its_step_rule_and_not_the_floor_alone():
    """The paper reads counts that grow like σ⁴ as its σ²/Δ bound; they come from η ∝ 1/‖C_k‖²."""

    def growth(rule):
        counts = [theory.oja_steps_floor(rule(s), 10.0, 9.0, s, 1.0, 1e-3) for s in (1e3, 1e4)]
        return np.log10(counts[1] / counts[0])

    assert growth(lambda s: 0.1 / (10 + s) ** 2) == pytest.approx(2, abs=0.02)
    assert growth(lambda s: 0.1 / (10 + s)) == pytest.approx(1, abs=0.02)


def test_impossible_rivals_are_refused():
    with pytest.raises(ValueError, match="first"):
        theory.subspace_contraction(1.0, 2.0, 0.0)
    with pytest.raises(ValueError, match="background"):
        theory.subspace_contraction(1.0, -2.0, 0.0)
    with pytest.raises(ValueError, match="background"):
        theory.normal_part_floor(0.5, 1.0, 1.0)
    with pytest.raises(ValueError, match="ratio"):
        theory.largest_background(1.0, 2.0, 1.0)
