import numpy as np
import pytest

from bracketflow import theory

SIGMAS = 6  # a Gaussian exceeds six standard errors with probability 1e-9


def test_the_recursion_of_the_mean_stays_below_the_rate(rng, not_above):
    separation = rng.uniform(0.1, 2, 2400)
    constant = separation**2 * 10 ** rng.uniform(0.5, 3, 2400)  # 12r² ≥ 3δ², always
    scale = rng.uniform(1.01, 10, 2400) / separation**2
    offset = scale * constant * rng.uniform(1, 3, 2400)
    variance, level = 10 ** rng.uniform(-3, 3, (2, 2400))
    rate = theory.rate_constant(scale, offset, constant, separation, variance, level)
    mean = level
    for index in range(500):
        not_above(mean, theory.rate_bound(index, offset, rate))
        step = theory.decaying_step(index, scale, offset)
        mean = (1 - separation**2 * step) * mean + constant * step**2 * variance / 2


def test_noisy_runs_stay_below_the_rate_on_average(skew, frobenius):
    operator, n, runs = np.diag([1.0, 0.2, -1.2]), 3, 400
    norm, separation, size = 1.2, 0.6, 0.3
    constant = theory.sharp_descent_constant(norm)
    scale = 2 / separation**2
    offset = scale * constant
    start = theory.cayley(0.05 * theory.givens_direction(n, 0, 1))
    level = float(theory.lyapunov(theory.rotated_operator(operator, start)))
    rate = theory.rate_constant(scale, offset, constant, separation, size**2, level)
    bases = np.broadcast_to(start, (runs, n, n))
    for index in range(300):
        rotated = theory.rotated_operator(operator, bases)
        assert np.all(theory.in_domain(rotated, separation))
        assert theory.lyapunov(rotated).mean() <= theory.rate_bound(index, offset, rate)
        push = skew(runs, n)
        push *= size / frobenius(push)[:, None, None]  # centred: the law is symmetric
        step = theory.decaying_step(index, scale, offset)
        bases = bases @ theory.cayley(step * (theory.generator(rotated) + push))


def test_the_printed_sample_complexity_depends_on_the_unit_and_the_corrected_one_does_not():
    """Measure C in other units: norm and separation double, f grows 4-fold, σ_u² 16-fold."""
    printed = [theory.printed_sample_complexity(0.01 * s**2, s, 0.2 * s, s**4) for s in (1, 2)]
    assert printed[1] == pytest.approx(4 * printed[0])
    corrected = [
        theory.sample_complexity(0.01 * s**2, 12.0 * s**2, 0.2 * s, s**4, 0.1 * s**2)
        for s in (1, 2)
    ]
    assert corrected[1] == pytest.approx(corrected[0])


def test_no_schedule_of_the_theorem_does_better_than_the_fourth_power_of_the_separation():
    """Minimise the theorem's own C over c, separation by separation."""
    separations, constants = np.array([1e-3, 1e-2, 1e-1]), []
    for separation in separations:
        scales = np.geomspace(1.001, 100, 20001) / separation**2
        offsets = scales * 12
        rates = theory.rate_constant(scales, offsets, 12.0, separation, 1.0, 0.0)
        constants.append(rates.min())
        assert rates.min() == pytest.approx(2 * 12 / separation**4, rel=1e-6)
    slopes = np.diff(np.log(constants)) / np.diff(np.log(separations))
    np.testing.assert_allclose(slopes, -4, atol=1e-6)


def test_the_corrected_sample_complexity_suffices_and_the_printed_one_does_not():
    target, norm, separation, variance, level = 1e-2, 1.0, 0.5, 1.0, 0.05
    constant = theory.sharp_descent_constant(norm)
    scale = 2 / separation**2
    steps = theory.sample_complexity(target, constant, separation, variance, level)
    printed = theory.printed_sample_complexity(target, norm, separation, variance)
    mean, index = level, 0
    values = {}
    for goal in (int(printed), int(np.ceil(steps))):
        while index < goal:
            step = theory.decaying_step(index, scale, scale * constant)
            mean = (1 - separation**2 * step) * mean + constant * step**2 * variance / 2
            index += 1
        values[goal] = mean
    before, after = values.values()
    assert after <= target < before


def test_no_second_moment_exceeds_the_bound_for_bounded_noise(problems, frobenius, not_above):
    for p in problems:
        noise = theory.trace_free(p.rotated[::-1])
        size = frobenius(noise)
        moment = frobenius(theory.effective_input(p.rotated, noise)) ** 2
        not_above(moment, theory.input_variance_bound(p.norm, size, size**2))


def test_centred_noise_does_not_give_a_centred_input():
    """The theorem assumes E U = 0; noise of ±E has E U = [𝓔, diag 𝓔]."""
    rotated = np.diag([1.0, 0, -1])
    noise = np.array([[0.1, 0.2, 0], [0.2, -0.1, 0], [0, 0, 0]])
    mean = sum(theory.effective_input(rotated, sign * noise) for sign in (1, -1)) / 2
    np.testing.assert_allclose(mean, theory.generator(noise), atol=1e-16)
    assert np.linalg.norm(mean) > 0.01


def test_no_bias_of_the_input_exceeds_its_bound(problems, frobenius, not_above):
    for p in problems:
        noise = theory.trace_free(p.rotated[::-1])
        up, down = (
            theory.effective_input(p.rotated, noise),
            theory.effective_input(p.rotated, -noise),
        )
        size = frobenius(noise) ** 2
        not_above(frobenius(up + down) / 2, theory.input_bias_bound(size), size + p.norm**2)


@pytest.mark.parametrize("batch", [1, 4])
def test_gaussian_rows_bias_the_input_along_the_generator(batch, rng):
    rotated = np.array([[2.0, 0.5, 0.2], [0.5, 1, 0.3], [0.2, 0.3, 0.5]])
    root = np.linalg.cholesky(rotated)
    rows = rng.standard_normal((200_000, batch, 3)) @ root.T
    seen = rows.swapaxes(-1, -2) @ rows / batch
    inputs = theory.generator(seen) - theory.generator(rotated)
    error = SIGMAS * inputs.std(0) / len(rows) ** 0.5
    expected = theory.gaussian_input_bias(rotated, batch)
    assert np.all(np.abs(inputs.mean(0) - expected) <= error)
    assert np.abs(expected).max() > 2 * error.max()  # so that zero bias would be seen


def test_a_background_estimated_from_rows_is_noise_that_scales_with_it(rng):
    n, batch, runs = 10, 100, 4000
    rows = 3.0 * rng.standard_normal((runs, batch, n))  # σ² = 9
    noise = theory.trace_free(rows.swapaxes(-1, -2) @ rows / batch)
    energy = np.sum(noise**2, (-2, -1))
    error = SIGMAS * energy.std() / runs**0.5
    assert energy.mean() == pytest.approx(theory.sampled_background(9.0, n, batch) ** 2, abs=error)
    assert theory.sampled_background(1.0, n, batch) == pytest.approx(1.04, abs=0.005)


def test_weight_norms_are_those_of_the_weights(rng, not_above):
    for _ in range(2000):
        separation = rng.uniform(0.1, 1)
        step, steps = rng.uniform(0.01, 1), int(rng.integers(1, 500))
        weights = theory.input_weights(steps, step, 1.0, separation)
        norms = theory.weight_norms(steps, step, 1.0, separation)
        sums = weights.max(), weights.sum(), (weights**2).sum()
        np.testing.assert_allclose(sums, norms, rtol=1e-11)
        rate = separation**2 / 2
        not_above(norms.total, 1 / rate)
        not_above(norms.energy, step / rate)


@pytest.fixture
def scalar_runs(rng):
    """The recursion with equality, N = 200 steps, 10,000 runs at once."""

    def run(inputs, step=0.2, separation=1.0, norm=1.0):
        value, path = np.full(inputs.shape[1], 3.0), []
        for push in inputs:
            path.append(value)
            value = theory.iss_step(value, step, 1.0, separation, norm, push)
        return np.array([*path, value])

    return run


def mean_path(horizon):
    return theory.mean_bound(np.arange(horizon + 1), 3.0, 0.2, 1.0, 1.0, 1.0, 1.0)


@pytest.mark.parametrize("failure", [0.2, 0.01])
def test_sub_exponential_inputs_exceed_bernsteins_bound_no_more_often_than_allowed(
    failure, rng, scalar_runs
):
    """Exp(1) − 1 is sub-exponential with σ_u² = 2, b_u = 2: −log(1−θ) − θ ≤ θ² for |θ| ≤ ½."""
    runs, horizon = 10_000, 200
    path = scalar_runs(rng.standard_exponential((horizon, runs)))
    slack = SIGMAS * (failure / runs) ** 0.5
    excess = theory.bernstein_excess(failure, 0.2, 1.0, 1.0, 2**0.5, 2.0)
    assert np.mean(path[-1] > mean_path(horizon)[-1] + excess) <= failure + slack
    each = theory.uniform_failure(failure, horizon)
    excess = theory.bernstein_excess(each, 0.2, 1.0, 1.0, 2**0.5, 2.0)
    over = np.any(path > mean_path(horizon)[:, None] + excess, axis=0)
    assert np.mean(over) <= failure + slack


@pytest.mark.parametrize("failure", [0.2, 0.05])
def test_heavy_tailed_inputs_exceed_chebyshevs_bound_no_more_often_than_allowed(
    failure, rng, scalar_runs
):
    """Pareto inputs of index 3: mean 3/2 − ½ = 1 after a shift, variance ¾, no third moment."""
    runs, horizon = 10_000, 200
    path = scalar_runs(rng.pareto(3, (horizon, runs)) + 0.5)
    slack = SIGMAS * (failure / runs) ** 0.5
    excess = theory.chebyshev_excess(failure, 0.2, 1.0, 1.0, 0.75**0.5)
    assert theory.chebyshev_tail(excess, 0.2, 1.0, 1.0, 0.75**0.5) == pytest.approx(failure)
    assert np.mean(path[-1] > mean_path(horizon)[-1] + excess) <= failure + slack
    each = theory.uniform_failure(failure, horizon)
    excess = theory.chebyshev_excess(each, 0.2, 1.0, 1.0, 0.75**0.5)
    over = np.any(path > mean_path(horizon)[:, None] + excess, axis=0)
    assert np.mean(over) <= failure + slack


def test_schedules_outside_the_theorem_are_refused():
    with pytest.raises(ValueError, match="scale"):
        theory.rate_constant(1.0, 100.0, 12.0, 0.5, 1.0, 1.0)
    with pytest.raises(ValueError, match="offset"):
        theory.rate_constant(8.0, 10.0, 12.0, 0.5, 1.0, 1.0)
    with pytest.raises(ValueError, match="failure"):
        theory.uniform_failure(1.0, 10)
    with pytest.raises(ValueError, match="input_variance"):
        theory.sample_complexity(0.1, 12.0, 0.5, -1.0)
