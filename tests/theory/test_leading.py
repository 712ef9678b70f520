"""Discrete ISS on St(k, n): the steps of the proofs in docs/theory.md, also in worst cases."""

import numpy as np
import pytest

from bracketflow import theory

SIGMAS = 6  # a Gaussian exceeds six standard errors with probability 1e-9
SHAPES = ((2, 1), (3, 2), (4, 4), (6, 1), (7, 3), (9, 5))
TRIALS = 500
EPS = np.finfo(float).eps


def transposed(matrix):
    return np.swapaxes(matrix, -1, -2)


@pytest.fixture
def moves(haar, rng):
    """Frames, weights and tangents of all sizes whose three parts differ by up to 10⁴ in size."""
    out = []
    for n, k in SHAPES:
        basis = haar(TRIALS, n)[..., :k]
        weights = np.sort(10 ** rng.uniform(-3, 1, (TRIALS, k)), axis=-1)[:, ::-1]
        turn = rng.standard_normal((TRIALS, k, k)) * 10 ** rng.uniform(-2, 2, (TRIALS, 1, 1))
        raw = rng.standard_normal((TRIALS, n, k)) * 10 ** rng.uniform(-2, 2, (TRIALS, 1, k))
        tangent = basis @ (turn - transposed(turn)) + raw - basis @ (transposed(basis) @ raw)
        size = 10 ** rng.uniform(-2, 2, (TRIALS, 1, 1))
        tangent *= size / np.sqrt(np.sum(tangent**2, (-2, -1), keepdims=True))
        out.append((basis, weights, tangent))
    return out


def excess(basis, weights, tangent):
    """W = X₊NX₊ᵀ − XNXᵀ − XNξᵀ − ξNXᵀ: J(C; X₊) − J(C; X) − <grad J, ξ> = <C, W> for every C."""
    moved = theory.polar_retraction(basis, tangent)
    n = weights[..., None, :]
    cross = (basis * n) @ transposed(tangent)
    return (
        (moved * n) @ transposed(moved)
        - (basis * n) @ transposed(basis)
        - cross
        - transposed(cross)
    )


def test_no_operator_at_all_breaks_the_descent_inequality_on_st(moves, not_above):
    """Over all C of spread s the least <C, W> is −s times the positive eigenvalues of −W."""
    for basis, weights, tangent in moves:
        values = np.linalg.eigvalsh(excess(basis, weights, tangent))
        worst = np.sum(np.maximum(-values, 0), -1)
        size = weights[:, 0] * np.sum(tangent**2, (-2, -1))
        assert np.all(np.abs(values.sum(-1)) <= 1e-12 * (size + weights[:, 0]))  # shifts do nothing
        # J itself is of the size of the weights, whatever that of the move.
        constant = np.array([theory.brockett_constant(top, 1.0) for top in weights[:, 0]])
        not_above(worst, constant / 2 * np.sum(tangent**2, (-2, -1)), size + weights[:, 0])


def test_the_descent_constant_on_st_cannot_be_smaller():
    """From the top eigenvector toward the lowest J falls by ν₁s t²/(1 + t²), against (L/2)t²."""
    operator, basis, weights = np.diag([2.0, 0.5, -1]), np.eye(3)[:, :1], np.array([1.5])
    for t in (1e-2, 1e-3):
        moved = theory.polar_retraction(basis, t * np.eye(3)[:, 2:])
        fall = theory.brockett_objective(basis, operator, weights) - theory.brockett_objective(
            moved, operator, weights
        )
        assert fall / t**2 == pytest.approx(theory.brockett_constant(1.5, 3.0) / 2, rel=2 * t**2)


def test_the_polar_factor_brings_tangents_no_further_apart(moves, rng, frobenius, not_above):
    for basis, _, tangent in moves:
        other = tangent + theory.tangent_projection(basis, rng.standard_normal(tangent.shape))
        one, two = (theory.polar_retraction(basis, t) for t in (tangent, other))
        not_above(frobenius(one - two), frobenius(tangent - other), 1)


@pytest.fixture
def near_maximum(haar, rng):
    """Operators, weights (some tied) and frames around the maximiser, with h, μ and κ."""
    out = []
    for n, k in SHAPES:
        for _ in range(TRIALS // 2):
            gaps = 10 ** rng.uniform(-1.5, 1, n)
            values = np.cumsum(gaps)[::-1] - gaps.sum() / 2
            weights = np.cumsum(10 ** rng.uniform(-2, 0, k))[::-1]
            if k < n and rng.random() < 0.3:
                weights[:] = weights[0]
            raw = 10 ** rng.uniform(-4, -0.3) * rng.standard_normal((n, k))
            basis = theory.polar_retraction(np.eye(n)[:, :k], raw)
            operator = np.diag(values)
            best = theory.brockett_maximum if np.all(np.diff(weights) < 0) else _maximum
            h = best(values, weights) - theory.brockett_objective(basis, operator, weights)
            out.append((operator, values, weights, basis, float(h)))
    return out


def _maximum(values, weights):
    return np.sort(values)[::-1][: len(weights)] @ weights


def test_the_gradient_dominates_what_is_missing_of_the_maximum(near_maximum):
    tested, tightest = 0, np.inf
    for operator, values, weights, basis, h in near_maximum:
        rate, reach = theory.brockett_basin(values, weights)
        scale = weights.sum() * np.abs(values).max()
        if not 1e4 * EPS * scale < h < reach:
            continue
        field = theory.brockett_field(basis, operator, weights)
        constant = theory.brockett_constant(weights[0], np.ptp(values))
        assert np.sum(field**2) <= 2 * constant * (h + 1e3 * EPS * scale)
        ratio = np.sum(field**2) / theory.brockett_dissipation_floor(h, rate, reach)
        assert ratio >= 1 - 1e3 * EPS * scale / h
        tested, tightest = tested + 1, min(tightest, ratio)
    assert tested > 300
    assert tightest < 1.5


def test_the_rate_is_the_smallest_curvature_at_the_maximiser(near_maximum):
    for _, values, weights, _, _ in near_maximum:
        if not np.all(np.diff(weights) < 0):
            continue
        spectrum = theory.linearisation_spectrum(values, weights, range(len(weights)))
        curvatures = -np.concatenate([spectrum.internal, spectrum.external.ravel()])
        rate, reach = theory.brockett_basin(values, weights)
        assert rate == pytest.approx(curvatures.min(), rel=1e-9)
        assert rate / 2 <= reach <= rate * (1 + 1e-9)


def test_noisy_steps_on_st_obey_both_recursions(near_maximum, rng):
    tested = 0
    for operator, values, weights, basis, h in near_maximum:
        rate, reach = theory.brockett_basin(values, weights)
        constant = theory.brockett_constant(weights[0], np.ptp(values))
        scale = weights.sum() * np.abs(values).max()
        if not 0 <= h < reach:
            continue
        step = rng.uniform(0.05, 1) / constant
        push = theory.tangent_projection(basis, rng.standard_normal(basis.shape))
        push *= 10 ** rng.uniform(-3, 1) * rate / np.linalg.norm(push)
        field = theory.brockett_field(basis, operator, weights)
        moved = theory.polar_retraction(basis, step * (field + push))
        after = _maximum(values, weights) - theory.brockett_objective(moved, operator, weights)
        size = np.linalg.norm(push)
        bound = theory.brockett_level_step(h, step, constant, rate, reach, size)
        assert after <= bound + 1e3 * EPS * scale
        root = theory.brockett_deviation_step(h**0.5, step, constant, rate, reach, size)
        assert max(after, 0) ** 0.5 <= root + (1e3 * EPS * scale) ** 0.5
        tested += 1
    assert tested > 300


def test_no_input_exceeds_its_bound_on_st(moves, symmetric, frobenius, not_above):
    for basis, weights, _ in moves:
        noise = symmetric(TRIALS, basis.shape[-2])
        change = np.stack(
            [theory.brockett_field(*rest) for rest in zip(basis, noise, weights, strict=True)]
        )
        bound = theory.brockett_input_bound(weights[:, 0], frobenius(theory.trace_free(noise)))
        not_above(frobenius(change), bound)
    pair = np.array([[0.0, 1], [1, 0]])
    attained = theory.brockett_field(np.eye(2)[:, :1], pair, np.array([3.0]))
    assert frobenius(attained) == pytest.approx(theory.brockett_input_bound(3.0, frobenius(pair)))


def test_the_ball_on_st_holds_runs_and_is_attained_by_a_constant_push(rng):
    """The worst case: E turns the softest pair, always the same way."""
    values, weights = np.array([4.0, 3, 1, 0]), np.array([3.0, 1])
    operator, constant = np.diag(values), theory.brockett_constant(3.0, 4.0)
    rate, reach = theory.brockett_basin(values, weights)
    assert (rate, reach) == (2.0, 2.0)
    for share, tight in ((0.05, 0.99), (0.6, 0.5)):
        noise = np.zeros((4, 4))
        noise[0, 1] = noise[1, 0] = 1.0
        size = np.linalg.norm(theory.brockett_field(np.eye(4)[:, :2], noise, weights))
        push = share * theory.brockett_input_limit(rate, reach)
        ball = theory.brockett_noise_ball(rate, reach, push)
        basis = theory.polar_retraction(np.eye(4)[:, :2], 0.05 * rng.standard_normal((4, 2)))
        y = []
        for _ in range(3000):
            field = theory.brockett_field(basis, operator + push / size * noise, weights)
            basis = theory.polar_retraction(basis, field / constant)
            y.append(
                _maximum(values, weights) - theory.brockett_objective(basis, operator, weights)
            )
        assert y[0] ** 0.5 < ball.entry
        assert tight * ball.radius <= y[-1] ** 0.5 <= ball.radius
    with pytest.raises(ValueError, match="no ball is known above"):
        theory.brockett_noise_ball(rate, reach, 1.01 * theory.brockett_input_limit(rate, reach))


def test_independent_noise_settles_where_linear_theory_says(rng):
    values, weights, size = np.array([5.0, 4, 2.5, 1, 0]), np.array([2.0, 1]), 0.05
    operator, step = np.diag(values), 0.5 / theory.brockett_constant(2.0, 5.0)
    basis = np.broadcast_to(np.eye(5)[:, :2], (60, 5, 2))
    levels = []
    for t in range(900):
        g = rng.standard_normal((60, 5, 5))
        noise = theory.trace_free(g + transposed(g))
        noise *= size / np.sqrt(np.sum(noise**2, (-2, -1), keepdims=True))
        field = theory.brockett_field(basis, operator + noise, weights)
        basis = theory.polar_retraction(basis, step * field)
        if t >= 300:  # the slowest direction forgets in 1/(ημ) = 40 steps
            h = _maximum(values, weights) - theory.brockett_objective(basis, operator, weights)
            levels.append(h.mean())
    expected = theory.brockett_stationary_deviation(values, weights, step, size)
    # 60 runs, 600 steps: about 900 independent draws of h at least, whose mean is good to 5 %
    assert np.sqrt(np.mean(levels)) == pytest.approx(expected, rel=0.05)
    with pytest.raises(ValueError, match="beyond the edge"):
        theory.brockett_stationary_deviation(values, weights, 1.0, size)


def test_a_haar_frame_overlaps_a_vector_as_the_beta_law_says(haar):
    for n, k in ((4, 1), (8, 3), (5, 4)):
        frames = haar(20_000, n)[..., :k]
        seen = np.sum(frames[:, 0] ** 2, -1)
        for failure in (0.01, 0.3):
            share = np.mean(seen <= theory.haar_overlap(n, k, failure))
            assert share == pytest.approx(failure, abs=SIGMAS * (failure / len(seen)) ** 0.5)
    assert theory.haar_overlap(5, 5, 0.1) == 1


def test_one_product_bounds_the_spread_from_both_sides(haar, symmetric, not_above):
    for n, k in SHAPES:
        operator, frame = symmetric(TRIALS, n), haar(TRIALS, n)[..., :k]
        values, vectors = np.linalg.eigh(operator)
        inner = transposed(frame) @ operator @ frame
        residual = operator @ frame - frame @ inner
        ritz = np.ptp(np.linalg.eigvalsh(inner), axis=-1)
        norm = np.linalg.norm(residual, 2, axis=(-2, -1))
        both = np.sum((transposed(frame) @ vectors[..., [0, -1]]) ** 2, -2).min(-1)
        spread = np.ptp(values, axis=-1)
        not_above(theory.spread_floor(ritz, norm), spread)
        not_above(spread, theory.spread_bound(ritz, norm, both))


def test_the_spread_bounds_are_attained():
    """By a single eigenvalue for the upper one, by an exchange of two vectors for the lower one."""
    x = np.array([0.1, 0.99**0.5])
    ritz, residual = 0.0, 0.1 * 0.99**0.5
    assert theory.spread_bound(ritz, residual, 0.01) == pytest.approx(2 * 0.99**0.5)
    assert x[0] * x[1] == pytest.approx(residual)
    assert theory.spread_floor(0.0, 1.0) == 2  # diag exchange [[0, 1], [1, 0]], spread 2


def test_bad_arguments_of_the_leading_theory_are_refused():
    values = np.array([3.0, 2, 1])
    for weights, words in (
        (np.array([1.0, 2]), "must not increase"),
        (np.array([2.0, 0]), "positive"),
        (np.array([4.0, 3, 2, 1]), "at most n = 3"),
        (np.ones(3), "with k = n equal ones make J a constant"),
    ):
        with pytest.raises(ValueError, match=words):
            theory.brockett_basin(values, weights)
    with pytest.raises(ValueError, match="no gap where the weights ask for one"):
        theory.brockett_basin(np.array([2.0, 2, 1]), np.array([2.0, 1]))
    assert theory.brockett_basin(np.array([2.0, 2, 1]), np.ones(2)) == (2, 1)
    with pytest.raises(ValueError, match="level = 3"):
        theory.brockett_dissipation_floor(3.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="step = 1"):
        theory.brockett_level_step(0.1, 1.0, 2.0, 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="k = 5"):
        theory.haar_overlap(4, 5, 0.1)
    with pytest.raises(ValueError, match="failure"):
        theory.haar_overlap(4, 2, 0.0)
