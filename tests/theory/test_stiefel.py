from itertools import permutations, product

import numpy as np
import pytest

from bracketflow import theory

EPS = np.finfo(float).eps


@pytest.fixture
def frames(problems, rng):
    """2,400 operators with a Haar frame and random weights each size."""
    out = []
    for p in problems:
        k = max(1, p.n // 2)
        weights = np.sort(rng.uniform(0.1, 3, k))[::-1]
        out.append((p.operator / p.norm[:, None, None], p.basis[..., :k], weights, p.n))
    return out


@pytest.fixture
def problem(haar):
    vectors, values = haar(1, 6)[0], np.array([5.0, 3, 2, 0.5, -1, -2])
    return vectors @ np.diag(values) @ vectors.T, values, vectors, np.array([3.0, 2, 1])


def test_the_gradient_is_the_projected_euclidean_one(frames, equal):
    for operator, basis, weights, _ in frames:
        euclidean = 2 * operator @ basis * weights
        field = theory.brockett_field(basis, operator, weights)
        equal(field, theory.tangent_projection(basis, euclidean), 3)


def test_the_objective_is_a_trace_and_the_gradient_its_slope(frames, skew, rng, equal):
    for operator, basis, weights, n in frames:
        trace = np.trace(basis.swapaxes(-1, -2) @ operator @ basis * weights, axis1=-2, axis2=-1)
        equal(theory.brockett_objective(basis, operator, weights), trace, 3)
        z = rng.standard_normal(basis.shape)
        tangent, h = theory.tangent_projection(basis, z), 1e-30
        moved = basis + 1j * h * tangent
        slope = theory.brockett_objective(moved, operator, weights).imag / h
        field = theory.brockett_field(basis, operator, weights)
        equal(np.sum(field * tangent, (-2, -1)), slope, 3 * n)


def test_the_gradient_forgets_shifts(frames, equal):
    for operator, basis, weights, n in frames:
        shifted = theory.brockett_field(basis, operator + 10 * np.eye(n), weights)
        equal(shifted, theory.brockett_field(basis, operator, weights), 30)


def test_no_perturbation_of_the_gradient_exceeds_its_bound(frames, rng, frobenius, not_above):
    for operator, basis, weights, n in frames:
        noise = operator[::-1] * 10 ** rng.uniform(-3, 1) + 2 * np.eye(n)
        change = theory.brockett_field(basis, operator + noise, weights) - theory.brockett_field(
            basis, operator, weights
        )
        size = theory.trace_free_norm(noise)
        bound = theory.gradient_perturbation_bound(len(weights), weights[0], size)
        not_above(frobenius(change), bound, bound + 10)


def test_no_frame_exceeds_the_maximum_and_only_the_leading_one_attains_it(
    frames, problem, not_above
):
    for operator, basis, weights, _ in frames:
        maximum = theory.brockett_maximum(np.linalg.eigvalsh(operator), weights)
        not_above(theory.brockett_objective(basis, operator, weights), maximum, 3)
    operator, values, vectors, weights = problem
    maximum = theory.brockett_maximum(values, weights)
    attained = [
        indices
        for indices in permutations(range(6), 3)
        if theory.brockett_objective(theory.critical_frame(vectors, indices), operator, weights)
        > maximum - 1e-9
    ]
    assert attained == [(0, 1, 2)]


def test_critical_points_are_the_signed_eigenframes_and_their_number_is_known(haar):
    vectors = haar(1, 4)[0]
    operator, weights = vectors @ np.diag([3.0, 1, 0, -2]) @ vectors.T, np.array([2.0, 1])
    found = set()
    for indices in permutations(range(4), 2):
        for signs in product((1, -1), repeat=2):
            frame = theory.critical_frame(vectors, indices, np.array(signs))
            field = theory.brockett_field(frame, operator, weights)
            assert np.abs(field).max() <= 100 * EPS
            found.add(frame.round(8).tobytes())
    assert len(found) == theory.critical_count(4, 2) == 48
    field = theory.brockett_field(haar(2400, 4)[..., :2], operator, weights)
    assert np.abs(field).max((-2, -1)).min() > 1e-6  # a Haar frame is critical with probability 0


def test_the_linearisation_has_the_known_spectrum_and_vectors_at_every_critical_point(
    problem, equal
):
    operator, values, vectors, weights = problem
    h = 1e-30
    for indices in permutations(range(6), 3):
        frame = theory.critical_frame(vectors, indices)
        spectrum = theory.linearisation_spectrum(values, weights, indices)
        directions = theory.linearisation_eigenvectors(vectors, indices)
        for value, tangent in [
            (spectrum.internal[:, None, None], directions.internal),
            (spectrum.external[..., None, None], directions.external),
        ]:
            image = theory.field_derivative(frame, operator, weights, tangent)
            equal(image, value * tangent, 30)
            step = frame + 1j * h * tangent
            equal(theory.brockett_field(step, operator, weights).imag / h, image, 30)


def test_every_critical_point_is_hyperbolic_and_only_the_maximiser_is_stable(problem):
    _, values, _, weights = problem
    for indices in permutations(range(6), 3):
        spectrum = theory.linearisation_spectrum(values, weights, indices)
        signs = theory.signature(spectrum)
        assert theory.is_hyperbolic(spectrum)
        assert sum(signs) == 3 + 9
        assert (signs.positive == 0) == (indices == (0, 1, 2))
    tied = theory.linearisation_spectrum(np.array([1.0, 1, 0]), np.array([2.0, 1]), (0, 1))
    assert not theory.is_hyperbolic(tied)


def test_the_printed_retraction_is_polar_on_orthonormal_frames_only(frames, rng, equal):
    for operator, basis, weights, _ in frames:
        tangent = theory.brockett_field(basis, operator, weights)
        exact = theory.polar_retraction(basis, tangent)
        equal(exact.swapaxes(-1, -2) @ exact, np.eye(len(weights))[None])
        equal(theory.printed_polar_retraction(basis, tangent), exact)
        off = basis * 1.01
        wrong = theory.printed_polar_retraction(off, tangent)
        assert np.abs(wrong - theory.polar_retraction(off, tangent)).max() > 1e-3


@pytest.fixture
def defect_growth(haar):
    """Largest |MᵀM − I| after 400 steps at a background of 10,000."""

    def run(retraction, step):
        basis, weights = haar(1, 10)[0][:, :3], np.array([3.0, 2, 1])
        operator = np.diag(np.arange(10.0)) + 1e4 * np.eye(10)
        worst = 0.0
        for _ in range(400):
            basis = retraction(basis, step * theory.brockett_field(basis, operator, weights))
            defect = np.abs(basis.T @ basis - np.eye(3)).max()
            worst = max(worst, defect)
            if worst > 0.1:
                break
        return worst

    return run


def test_the_printed_retraction_blows_up_at_a_large_background_and_the_true_polar_does_not(
    defect_growth,
):
    """The paper: the update is exactly invariant under shifts."""
    weights = np.array([3.0, 2, 1])
    assert np.abs(theory.retraction_defect_factor(1e-3, 1e4, weights)).max() > 1
    assert defect_growth(theory.printed_polar_retraction, 1e-3) > 0.1
    assert defect_growth(theory.polar_retraction, 1e-3) < 100 * EPS


def test_the_printed_retraction_multiplies_a_defect_by_the_known_factor(haar, rng):
    basis, weights, size, background = haar(1, 8)[0][:, :3], np.array([3.0, 2, 1]), 1e-7, 50.0
    step = 1e-3
    g = rng.standard_normal((3, 3))
    defect = size * (g + g.T)
    moved = basis @ (np.eye(3) + defect / 2)  # MᵀM = I + defect + O(size²)
    field = theory.brockett_field(moved, background * np.eye(8), weights)
    after = theory.printed_polar_retraction(moved, step * field)
    expected = theory.retraction_defect_factor(step, background, weights) * defect
    np.testing.assert_allclose(after.T @ after - np.eye(3), expected, atol=100 * size**2)


def test_weights_must_decrease_and_stay_positive():
    for weights in ([1.0, 2], [2, 2], [1, 0], [1, np.nan]):
        with pytest.raises(ValueError, match="weights"):
            theory.brockett_maximum(np.arange(3.0), np.array(weights))
    with pytest.raises(ValueError, match="k = 5"):
        theory.critical_count(4, 5)
