import numpy as np
import pytest
from scipy.integrate import solve_ivp

from bracketflow import theory


def sharp(p):
    return theory.sharp_descent_constant(theory.half_spread(p.operator))


def test_the_diagonal_separation_is_the_least_difference():
    rotated = np.array([[[3.0, 9], [9, 1]], [[1, 0], [0, 1.5]]])
    assert theory.diagonal_separation(rotated).tolist() == [2, 0.5]
    assert theory.in_domain(rotated, 1.0).tolist() == [True, False]


def test_no_diagonal_is_closer_than_the_gap_less_its_radius(problems, near_minimum, not_above):
    for p in problems + near_minimum:
        gap, deviation = theory.spectral_gap(p.operator), np.sqrt(theory.lyapunov(p.rotated))
        bound = theory.separation_bound(gap, deviation)
        not_above(bound, theory.diagonal_separation(p.rotated), p.norm)


def test_a_small_deviation_puts_the_basis_into_the_domain(near_minimum):
    tested = 0
    for p in near_minimum:
        gap, deviation = theory.spectral_gap(p.operator), np.sqrt(theory.lyapunov(p.rotated))
        separation = 0.5 * gap
        close = deviation < theory.entry_threshold(gap, separation)
        assert np.all(theory.in_domain(p.rotated[close], separation[close]))
        tested += close.sum()
    assert tested >= 2000


def test_the_generator_stays_inside_its_sandwich(problems, near_minimum, not_above):
    for p in problems + near_minimum:
        level, size = theory.lyapunov(p.rotated), theory.dissipation(p.rotated)
        separation = theory.diagonal_separation(p.rotated)
        not_above(theory.dissipation_floor(separation, level), size, p.norm**2 * level)
        not_above(size, theory.dissipation_ceiling(p.norm, level))


@pytest.mark.parametrize("angle", [1e-3, 1e-5])
def test_both_sides_of_the_sandwich_are_attained(angle):
    operator = np.diag([1.0, 0, -1])  # its spread is twice its trace-free norm
    extreme = theory.cayley(angle * theory.givens_direction(3, 0, 2))
    rotated = theory.rotated_operator(operator, extreme)
    ceiling = theory.dissipation_ceiling(1.0, theory.lyapunov(rotated))
    assert theory.dissipation(rotated) / ceiling == pytest.approx(1, abs=5 * angle**2)  # cos²2t
    closest = theory.cayley(angle * theory.givens_direction(3, 0, 1))
    rotated = theory.rotated_operator(np.diag([1.0, 0.5, -2]), closest)
    floor = theory.dissipation_floor(theory.diagonal_separation(rotated), theory.lyapunov(rotated))
    # rounding of the entry A_ij, which is of the size of the angle
    assert theory.dissipation(rotated) / floor == pytest.approx(1, abs=1e-15 / angle)


def test_clean_steps_contract_the_level_and_the_deviation(near_minimum, rng, not_above):
    for p in near_minimum:
        level, separation = theory.lyapunov(p.rotated), theory.diagonal_separation(p.rotated)
        step = rng.uniform(0.1, 1, len(p.norm)) / sharp(p)
        moved = theory.cayley_step(p.basis, p.operator, step[:, None, None])
        after = theory.lyapunov(theory.rotated_operator(p.operator, moved))
        factor = theory.level_contraction(step, sharp(p), separation)
        not_above(after, factor * level, p.norm**2)
        not_above(factor**0.5, theory.deviation_contraction(step, sharp(p), separation))


def test_noisy_steps_obey_the_recursion(near_minimum, rng, skew, frobenius, not_above):
    for p in near_minimum:
        step = rng.uniform(0.1, 1, len(p.norm)) / sharp(p)
        noise = skew(len(p.norm), p.n)
        omega = theory.generator(p.rotated) + noise
        moved = p.basis @ theory.cayley(step[:, None, None] * omega)
        after = np.sqrt(theory.lyapunov(theory.rotated_operator(p.operator, moved)))
        bound = theory.iss_step(
            np.sqrt(theory.lyapunov(p.rotated)),
            step,
            sharp(p),
            theory.diagonal_separation(p.rotated),
            p.norm,
            frobenius(noise),
        )
        not_above(after, bound, p.norm)


def test_runs_that_may_not_escape_stay_in_the_domain_and_under_the_envelope(
    near_minimum, skew, rng, frobenius
):
    tested = 0
    for p in near_minimum:
        gap = theory.spectral_gap(p.operator)
        separation, deviation = gap / 2, np.sqrt(theory.lyapunov(p.rotated))
        limit = theory.invariance_threshold(gap, separation, p.norm)
        start = deviation <= theory.entry_threshold(gap, separation)
        tested += start.sum()
        push = skew(len(p.norm), p.n)
        push *= (limit / frobenius(push))[:, None, None]
        basis, step = p.basis, 1 / sharp(p)
        for index in range(100):
            rotated = theory.rotated_operator(p.operator, basis)
            assert np.all(theory.in_domain(rotated, separation)[start])
            bound = theory.iss_envelope(index, deviation, step, sharp(p), separation, p.norm, limit)
            assert np.all((np.sqrt(theory.lyapunov(rotated)) <= bound)[start])
            signs = rng.choice([-1, 1, 1], (len(p.norm), 1, 1))  # mostly one way
            omega = theory.generator(rotated) + signs * push
            basis = basis @ theory.cayley(step[:, None, None] * omega)
    assert tested >= 2000


def test_the_noise_ball_follows_from_the_recursion_and_from_the_noise():
    ball = theory.noise_ball(2.0, 0.5, 0.1)
    assert theory.iss_step(ball, 0.01, 50.0, 0.5, 2.0, 0.1) == pytest.approx(ball)
    noise = 0.01
    assert theory.noise_ball_from_noise(2.0, 0.5, noise) == pytest.approx(
        theory.noise_ball(2.0, 0.5, 4 * 2 * noise + 2 * noise**2)
    )
    assert theory.flow_noise_ball(2.0, 0.5, 0.1, 0.0) == pytest.approx(ball / 2)


def test_the_flow_stays_under_its_envelope_while_the_operator_drifts(skew, symmetric, frobenius):
    n, end = 4, 8.0
    base = theory.trace_free(np.diag([3.0, 1.5, 0, -2]))
    for drift, push in zip(symmetric(20, n), skew(20, n), strict=True):
        velocity = theory.trace_free(drift * 0.05 / frobenius(drift))
        extra = push * 0.02 / frobenius(push)
        basis = theory.cayley(0.1 * push / frobenius(push))

        def field(time, x, velocity=velocity, extra=extra):
            m = x.reshape(n, n)
            rotated = theory.rotated_operator(base + time * velocity, m)
            return (m @ (theory.generator(rotated) + extra)).ravel()

        times = np.linspace(0, end, 100)
        run = solve_ivp(field, (0, end), basis.ravel(), t_eval=times, rtol=1e-9, atol=1e-11)
        operators = base + times[:, None, None] * velocity
        rotated = theory.rotated_operator(operators, run.y.T.reshape(-1, n, n))
        deviation = np.sqrt(theory.lyapunov(rotated))
        bound = theory.flow_envelope(
            times,
            deviation[0],
            theory.diagonal_separation(rotated).min(),
            theory.trace_free_norm(operators).max(),
            0.02,
            frobenius(velocity),
        )
        assert np.all(deviation <= bound + 1e-8)  # what the solver leaves


def test_non_escape_says_what_fails():
    held = theory.non_escape(0.01, gap=1.0, separation=0.5, norm=7.0, input_norm=0.002)
    assert held.holds
    start = theory.non_escape(0.5, gap=1.0, separation=0.5, norm=7.0, input_norm=0.002)
    assert not start.holds
    assert "starts above" in start.reason
    noise = theory.non_escape(0.01, gap=1.0, separation=0.5, norm=7.0, input_norm=0.003)
    assert not noise.holds
    assert "noise ball" in noise.reason


def test_after_the_promised_steps_the_deviation_is_below_the_target(rng):
    """2,000 planes with a push of the largest allowed size, either way round."""
    half = rng.uniform(0.25, 1, 2000)  # gap 2·half, norm half
    gap, separation, constant = 2 * half, half, theory.sharp_descent_constant(half)
    limit = theory.invariance_threshold(gap, separation, half) / 4
    ball = theory.noise_ball(half, separation, limit)
    arguments = np.stack([2 * ball, gap, separation, 1 / constant, constant, half, limit], -1)
    promised = np.ceil([theory.post_entry_steps(*row) for row in arguments.tolist()])
    plane = theory.givens_direction(2, 0, 1)
    operator = half[:, None, None] * np.diag([1.0, -1])
    # start on the border of the domain: √f = ½·gap·sin 2t = y_thr
    angle = np.arcsin(2 * theory.entry_threshold(gap, separation) / gap) / 2
    basis = theory.cayley(2 * np.tan(angle / 2)[:, None, None] * plane)
    push = (rng.choice([-1, 1], 2000) * limit / 2**0.5)[:, None, None] * plane
    for index in range(int(promised.max()) + 1):
        rotated = theory.rotated_operator(operator, basis)
        arrived = index >= promised
        assert np.all(np.sqrt(theory.lyapunov(rotated))[arrived] <= 2 * ball[arrived])
        omega = theory.generator(rotated) + push
        basis = basis @ theory.cayley(omega / constant[:, None, None])
    assert np.all(arrived)


def test_f_grows_quadratically_with_the_distance(near_minimum, problems, frobenius, not_above):
    for p in near_minimum:  # within 0.1 of I, and minimisers are 2 apart: I is the nearest
        level, distance = theory.lyapunov(p.rotated), frobenius(p.basis - np.eye(p.n))
        not_above(theory.growth_floor(theory.spectral_gap(p.operator), distance), level)
        not_above(level, theory.growth_ceiling(p.norm, distance))
    for p in problems:  # the ceiling holds for every minimiser, near or far
        _, vectors = np.linalg.eigh(p.operator)
        ceiling = theory.growth_ceiling(p.norm, frobenius(p.basis - vectors))
        not_above(theory.lyapunov(p.rotated), ceiling)


def test_the_deviation_bounds_the_distance_with_named_constants(near_minimum, frobenius, not_above):
    tested = 0
    for p in near_minimum:
        gap, deviation = theory.spectral_gap(p.operator), np.sqrt(theory.lyapunov(p.rotated))
        close = 8**0.5 * deviation < gap
        bound = theory.distance_bound(gap[close], deviation[close])
        not_above(frobenius(p.basis - np.eye(p.n))[close], bound)
        tested += close.sum()
    assert tested >= 2000


def test_the_distance_bound_holds_in_the_plane_of_the_gap_up_to_its_limit(frobenius):
    for angle in np.linspace(0.01, 0.39, 20):  # 2√2 y = √2 sin 2t < 1 up to t = 0.392
        basis = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        deviation = np.sqrt(theory.lyapunov(theory.rotated_operator(np.diag([0.5, -0.5]), basis)))
        assert frobenius(basis - np.eye(2)) <= theory.distance_bound(1.0, deviation)


def test_the_basis_ball_is_the_printed_one_to_first_order():
    norm, gap, separation, size = 3.0, 1.0, 0.5, 1e-8
    printed = 4 * 2**0.5 * norm * size / (gap * separation**2)
    ball = theory.basis_noise_ball(norm, gap, separation, size)
    assert printed < ball < printed * (1 + 1e-5)


def test_the_hessian_at_a_minimum_is_known_and_its_bounds_are_attained(rng, skew, frobenius, equal):
    for n in (2, 3, 5, 10):
        values = np.sort(rng.standard_normal((600, n)), -1)
        rotated, xi = values[..., None] * np.eye(n), skew(600, n)
        xi /= frobenius(xi)[:, None, None]
        form = theory.minimum_hessian(values, xi)
        equal(form, np.sum(theory.hessian(rotated, xi) * xi, (-2, -1)))
        centred = theory.trace_free(rotated)
        gap, norm = theory.spectral_gap(centred), theory.trace_free_norm(centred)
        low, high = theory.minimum_hessian_bounds(gap, norm)
        assert np.all(low <= form * (1 + 1e-12))
        assert np.all(form <= high * (1 + 1e-12))
    values = np.array([1.0, 0.5, -1.5])
    gap_plane = theory.givens_direction(3, 0, 1) / 2**0.5
    assert theory.minimum_hessian(values, gap_plane) == pytest.approx(0.25)
    extreme = theory.givens_direction(3, 0, 2) / 2**0.5
    assert theory.minimum_hessian(np.array([1.0, 0, -1]), extreme) == pytest.approx(4)


@pytest.mark.parametrize(("gap", "separation"), [(0.0, 0.1), (1.0, 1.0), (1.0, 0.0), (np.nan, 0.5)])
def test_a_domain_needs_a_separation_between_zero_and_the_gap(gap, separation):
    with pytest.raises(ValueError, match=r"gap|separation"):
        theory.entry_threshold(gap, separation)


def test_hypotheses_that_fail_are_refused():
    with pytest.raises(ValueError, match="step"):
        theory.iss_step(0.1, 0.1, 50.0, 0.5, 1.0, 0.0)
    with pytest.raises(ValueError, match="target"):
        theory.post_entry_steps(1e-3, 1.0, 0.5, 0.01, 50.0, 1.0, 0.01)
    with pytest.raises(ValueError, match="input_norm"):
        theory.post_entry_steps(9.0, 1.0, 0.5, 0.01, 50.0, 1.0, 0.1)
    with pytest.raises(ValueError, match="deviation"):
        theory.distance_bound(1.0, 0.5)


def test_the_descent_lemma_alone_gives_a_sharper_noise_ball_and_a_constant_push_attains_it():
    """f₊ ≤ (1 − δ²η)f + ½ηŪ², and a push in the plane of the gap settles at Ū/(√2g)."""
    operator = np.diag([2.0, 1.0, -3.0])
    step = theory.admissible_step(theory.sharp_descent_constant(2.5))
    push = 0.002 * theory.givens_direction(3, 0, 1)
    size, basis = np.linalg.norm(push), np.eye(3)
    for _ in range(4000):
        rotated = theory.rotated_operator(operator, basis)
        level, separation = theory.lyapunov(rotated), theory.diagonal_separation(rotated)
        basis = basis @ theory.cayley(step * (theory.generator(rotated) + push))
        bound = theory.sharp_iss_step(
            level, step, theory.sharp_descent_constant(2.5), separation, size
        )
        assert theory.lyapunov(theory.rotated_operator(operator, basis)) <= bound * (1 + 1e-12)
    ball = theory.sharp_noise_ball(separation, size)
    assert 0.99 * ball <= level**0.5 <= ball * (1 + 1e-12)
    norm = theory.trace_free_norm(operator)
    assert theory.noise_ball(norm, separation, size) / ball == pytest.approx(4 * norm / separation)


def test_noisy_steps_in_the_domain_obey_the_sharper_recursion(near_minimum, skew, rng, not_above):
    for p in near_minimum:
        push = skew(len(p.norm), p.n)
        radius = np.ptp(np.linalg.eigvalsh(p.operator), axis=-1) / 2
        step = 1 / theory.sharp_descent_constant(radius)
        size = np.sqrt(np.sum(push**2, (-2, -1)))
        separation = theory.diagonal_separation(p.rotated)
        generator = theory.generator(p.rotated)
        moved = p.basis @ theory.cayley(step[:, None, None] * (generator + push))
        after = theory.lyapunov(theory.rotated_operator(p.operator, moved))
        level = theory.lyapunov(p.rotated)
        constant = theory.sharp_descent_constant(radius)
        bound = theory.sharp_iss_step(level, step * (1 - 1e-12), constant, separation, size)
        not_above(after, bound, radius**2 + bound)
