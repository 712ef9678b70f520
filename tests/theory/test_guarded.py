"""Entry from every start: the inequalities behind the guard."""

import numpy as np
import pytest

from bracketflow import theory


def turned(rotated, i, j):
    """A after the rotation that makes A_ij zero."""
    angle = 0.5 * np.arctan2(2 * rotated[i, j], rotated[j, j] - rotated[i, i])
    c, s = np.cos(angle), np.sin(angle)
    q = np.eye(len(rotated))
    q[i, i] = q[j, j] = c
    q[i, j], q[j, i] = s, -s
    return q.T @ rotated @ q


def test_turning_a_pair_takes_its_square_off_and_the_largest_is_no_less_than_the_mean(problems):
    for p in problems:
        contraction = theory.guard_contraction(p.n)
        for a in p.rotated[:100]:
            i, j = np.unravel_index(np.argmax(np.triu(np.abs(a), 1)), a.shape)
            before, after = theory.lyapunov(a), theory.lyapunov(turned(a, i, j))
            scale = 1e-12 * np.sum(a**2)
            assert after == pytest.approx(before - a[i, j] ** 2, abs=scale)
            assert after**0.5 <= contraction * before**0.5 + scale**0.5
            assert a[i, j] ** 2 >= theory.largest_block_bound(a) * (1 - 1e-12)


def test_where_the_guard_lets_go_the_run_has_entered(problems, rng, not_above):
    """10√f ≤ δ(M) is enough for √f ≤ g/8, because δ(M) ≤ g + 2√f everywhere."""
    inside = 0
    for p in problems:
        smaller = 10 ** rng.uniform(-6, 0, (len(p.norm), 1, 1))
        for a in (p.rotated, np.where(np.eye(p.n) == 1, p.rotated, smaller * p.rotated)):
            gap = np.diff(np.linalg.eigvalsh(a), axis=-1).min(-1)
            y, delta = theory.lyapunov(a) ** 0.5, theory.diagonal_separation(a)
            not_above(delta, gap + 2 * y, p.norm)
            held = 10 * y <= delta
            not_above(y[held], theory.guard_target(gap[held]), p.norm[held])
            inside += np.sum(held)
    assert inside > 100


def test_the_goal_of_the_guard_is_half_the_threshold_of_the_paper():
    assert theory.guard_target(1.0) ** 2 == pytest.approx(theory.entry_threshold(1.0, 0.5) ** 2 / 2)


def test_the_entry_time_is_the_stated_one_and_the_papers_own_set_up_takes_956_steps():
    largest = 0.5 * np.sum(np.arange(-7.0, 8) ** 2)  # f of a flat diagonal, λ = 15, …, 1
    steps = theory.guard_entry_steps(largest, 1.0, 15)
    threshold = theory.entry_threshold(1.0, 0.5) ** 2
    assert steps == pytest.approx(0.5 * 15 * 14 * np.log(2 * largest / threshold))
    assert np.ceil(steps) == 956
    assert theory.guard_entry_steps(1e-6, 1.0, 15) == 0


def test_the_recursion_iterated_is_below_the_entry_time_and_ends_in_its_ball():
    for n, noise in ((2, 0.0), (3, 0.01), (15, 1e-4), (15, 4e-4)):
        y = 50.0
        steps = int(np.ceil(theory.guard_entry_steps(y**2, 1.0, n, noise)))
        factor, one = theory.guard_contraction(n), noise / 2**0.5
        for _ in range(steps):
            y = factor * y + (1 + factor) * one
        assert y <= theory.guard_target(1.0) * (1 + 1e-12)
        for _ in range(40 * n * n):
            y = factor * y + (1 + factor) * one
        assert y == pytest.approx(theory.guard_noise_ball(n, noise), abs=1e-12)
        assert theory.guard_noise_ball(n, noise) <= 2**0.5 * n * (n - 1) * noise


def test_the_noise_limit_falls_like_a_polynomial_and_keeps_runs_inside():
    for n in (2, 3, 15, 200):
        limit = theory.guard_noise_limit(n, 2.0)
        assert limit >= min(2.0 / (8 * 2**0.5 * n * (n - 1)), 2.0 / 18)
        threshold = theory.entry_threshold(2.0, 1.0)
        assert theory.guard_step(threshold, 2.0, n, limit) <= threshold
    with pytest.raises(ValueError, match=r"noise = 0\.01: entry is proved below"):
        theory.guard_entry_steps(1.0, 1.0, 15, 0.01)
    with pytest.raises(ValueError, match="n = 1"):
        theory.guard_contraction(1)
