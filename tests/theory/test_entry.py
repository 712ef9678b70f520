import numpy as np
import pytest

from bracketflow import theory

SIGMAS = 6  # a Gaussian exceeds six standard errors with probability 1e-9
PAPER = {"gap": 1.0, "separation": 0.5, "norm": 7.0}  # n = 15, λ = 15, …, 1


def test_the_thresholds_of_the_papers_own_set_up():
    assert theory.invariance_threshold(**PAPER) == pytest.approx(0.00223, abs=5e-6)
    assert theory.entry_threshold(1.0, 0.5) == pytest.approx(0.1768, abs=5e-5)
    step = 0.5 / theory.descent_constant(7.0, 15)
    transfer = theory.log10_transfer_threshold(11282, step=step, n=15, **PAPER)
    assert transfer == pytest.approx(-772, abs=1)


def test_the_entry_theorem_says_that_it_does_not_apply_to_the_papers_own_noise():
    """The paper: the experiment with U ≈ 0.1 … 2 U_inv confirms the theorem."""
    step = 0.5 / theory.descent_constant(7.0, 15)
    check = theory.entry_check(0.1 * 0.00223, 11282, step=step, n=15, **PAPER)
    assert not check.holds
    assert "U_trans = -77" in check.reason
    assert theory.entry_check(0.0, 11282, step=step, n=15, **PAPER).holds
    assert not theory.entry_check(0.003, 0, step=step, n=15, **PAPER).holds


def test_the_tracking_gain_is_the_geometric_sum_and_its_logarithm_never_overflows():
    step, norm = 1e-3, 2.0
    growth = theory.clean_map_lipschitz(step, norm)
    for steps in (0, 1, 10, 500):
        direct = step * np.sum(growth ** np.arange(steps))
        assert theory.tracking_gain(steps, step, norm) == pytest.approx(direct, rel=1e-11)
        if steps:
            logarithm = theory.log10_tracking_gain(steps, step, norm)
            assert logarithm == pytest.approx(np.log10(direct), abs=1e-11)
    assert theory.log10_tracking_gain(0, step, norm) == -np.inf
    assert theory.tracking_gain(10**6, step, norm) == np.inf
    assert theory.log10_tracking_gain(10**6, step, norm) == pytest.approx(
        10**6 * np.log10(growth) - np.log10(8 * norm**2)
    )


def test_perturbed_orbits_stay_within_the_tracking_bound(problems, skew, frobenius, not_above):
    for p in problems:
        operator = p.operator / p.norm[:, None, None]
        clean = noisy = p.basis
        push = skew(len(p.norm), p.n)
        size = 1e-4
        push *= size / frobenius(push)[:, None, None]
        for index in range(30):
            distance = frobenius(clean - noisy)
            not_above(distance, theory.tracking_gain(index, 0.05, 1.0) * size, 1)
            omega = theory.generator(theory.rotated_operator(operator, noisy)) + push
            noisy = noisy @ theory.cayley(0.05 * omega)
            clean = theory.cayley_step(clean, operator, 0.05)


def test_the_hitting_time_is_the_first_below_half_the_threshold():
    threshold = theory.entry_threshold(1.0, 0.5) ** 2
    levels = threshold * np.array([3, 1, 0.6, 0.4, 0.1])
    assert theory.hitting_time(levels, 1.0, 0.5) == 3
    assert theory.hitting_time(levels[:3], 1.0, 0.5) is None
    assert theory.hitting_time(np.full(3, np.nan), 1.0, 0.5) is None


def test_runs_under_the_entry_check_enter_and_stay(skew, frobenius):
    operator, n = np.diag([1.0, 0, -1]), 3
    gap, separation, norm = 1.0, 0.5, 1.0
    step = 1 / theory.sharp_descent_constant(norm)
    start = theory.cayley(0.3 * theory.givens_direction(n, 0, 1))
    levels, basis = [], start
    for _ in range(60):
        levels.append(float(theory.lyapunov(theory.rotated_operator(operator, basis))))
        basis = theory.cayley_step(basis, operator, step)
    hit = theory.hitting_time(np.array(levels), gap, separation)
    assert 0 < hit < 60
    limit = 10 ** theory.log10_transfer_threshold(hit, gap, separation, step, norm, n)
    limit = min(limit, theory.invariance_threshold(gap, separation, norm))
    assert theory.entry_check(0.999 * limit, hit, gap, separation, step, norm, n).holds
    bases = np.broadcast_to(start, (2000, n, n))
    push = skew(2000, n)
    push *= limit / frobenius(push)[:, None, None]
    for index in range(400):
        rotated = theory.rotated_operator(operator, bases)
        if index >= hit:
            assert np.all(theory.in_domain(rotated, separation))
        bases = bases @ theory.cayley(step * (theory.generator(rotated) + push))


@pytest.fixture
def diagonals(haar):
    """A_ii and δ(M₀) of Haar starts for λ = n, …, 1."""

    def draw(n, trials=4000):
        operator = theory.trace_free(np.diag(np.arange(n, 0.0, -1)))
        rotated = theory.rotated_operator(operator, haar(trials, n))
        return operator, rotated

    return draw


def test_the_diagonal_at_a_haar_start_has_the_known_moments(diagonals):
    for n in (2, 5, 12):
        operator, rotated = diagonals(n)
        moments, seen = theory.haar_moments(np.diagonal(operator) + 3.0), rotated[:, 0, 0] + 3
        assert moments.mean == pytest.approx(3)
        error = SIGMAS * seen.std() / len(seen) ** 0.5
        assert seen.mean() == pytest.approx(moments.mean, abs=error)
        squares = (seen - seen.mean()) ** 2
        error = SIGMAS * squares.std() / len(seen) ** 0.5
        assert squares.mean() == pytest.approx(moments.variance, abs=error)


def test_haar_starts_leave_levys_tail_and_the_separation_tail_no_more_often_than_allowed(diagonals):
    for n in (2, 4, 16):
        operator, rotated = diagonals(n)
        norm = theory.trace_free_norm(operator)
        for excess in norm * np.array([0.3, 0.6, 0.9]):
            seen = np.mean(np.abs(rotated[:, 0, 0]) >= excess)
            allowed = theory.levy_tail(excess, n, norm)
            assert seen <= allowed + SIGMAS * (allowed / len(rotated)) ** 0.5
        for separation in norm * np.array([0.5, 1, 2]) / (n - 1):
            seen = np.mean(theory.diagonal_separation(rotated) >= separation)
            allowed = theory.separation_tail(separation, n, norm)
            assert seen <= allowed + SIGMAS * (allowed / len(rotated)) ** 0.5


def test_the_printed_quantile_counts_a_factor_twice_and_the_corrected_one_inverts_the_tail():
    for n, failure in [(4, 0.1), (16, 0.01), (100, 0.5)]:
        corrected = theory.separation_quantile(failure, n, 3.0)
        assert theory.separation_tail(corrected, n, 3.0) == pytest.approx(failure)
        printed = theory.printed_separation_quantile(failure, n, 3.0)
        assert printed == pytest.approx(2 * corrected)
        assert theory.separation_tail(printed, n, 3.0) < failure / 10


def test_haar_starts_are_far_less_separated_than_the_typical_scale_of_the_paper(diagonals):
    """The paper: δ(M₀) ≲ ‖C_e‖ n^−1.5 √log n as typical scale. The median falls like n^−2.6."""
    sizes, medians = np.array([4, 8, 16, 32]), []
    for n in sizes:
        operator, rotated = diagonals(n, 1000)
        scale = theory.trace_free_norm(operator)
        separation = theory.diagonal_separation(rotated) / scale
        medians.append(np.median(separation))
        seen = np.mean(separation > theory.separation_quantile(0.1, n, 1.0))
        assert seen <= 0.1
    slope = np.polyfit(np.log(sizes), np.log(medians), 1)[0]
    assert -3 < slope < -2.2


def test_impossible_arguments_are_refused():
    with pytest.raises(ValueError, match="excess"):
        theory.levy_tail(-1.0, 5, 1.0)
    with pytest.raises(ValueError, match="failure"):
        theory.separation_quantile(1.5, 5, 1.0)
    with pytest.raises(ValueError, match="steps"):
        theory.tracking_gain(-1, 0.1, 1.0)
