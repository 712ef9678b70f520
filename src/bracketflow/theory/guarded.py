"""Entry from every start: what turning the largest pair is certain to bring; see docs/theory.md.

y = √f. While 10y > δ(M) the guard turns the pair (i, j) with the largest |A_ij| until A_ij = 0, or
makes another move that lowers f of the same observation by as much; after that it makes moves that
do not raise it. g is the gap, ε ≥ ‖E_e‖_F.
"""

import numpy as np

from .hypotheses import Real, count, non_negative, positive, require


def guard_contraction(n: int) -> float:
    """q = √(1 − 2/(n(n−1))), the factor on y of a guarded step without noise  [ours:guard].

    Of the n(n−1)/2 squares that f is the sum of, the guard takes off the largest or more.
    """
    count(2, n=n)
    return float((1 - 2 / (n * (n - 1))) ** 0.5)


def guard_target(gap: Real) -> Real:
    """10y ≤ δ(M) implies y ≤ g/8, since δ(M) ≤ g + 2y: f ≤ ½f_thr for N_{g/2}  [ours:guard]."""
    positive(gap=gap)
    return gap / 8


def guard_step(deviation: Real, gap: Real, n: int, noise: Real) -> Real:
    """y₊ ≤ max(qy + (1 + q)ε/√2, (g + √2ε)/8 + ε/√2)  [ours:guard_noise]."""
    non_negative(deviation=deviation, noise=noise)
    factor, one = guard_contraction(n), noise / 2**0.5
    return np.maximum(factor * deviation + (1 + factor) * one, guard_target(gap + 2 * one) + one)


def guard_noise_ball(n: int, noise: Real) -> Real:
    """r = (1 + q)/(1 − q) · ε/√2 ≤ √2n(n−1)ε, where qy + (1 + q)ε/√2 = y  [ours:guard_noise]."""
    non_negative(noise=noise)
    factor = guard_contraction(n)
    return (1 + factor) / (1 - factor) * noise / 2**0.5


def guard_noise_limit(n: int, gap: Real) -> Real:
    """The ε below which every run enters N_{g/2} and stays: r = g/8, and g/18 at most.

    At least g/(8√2n(n−1)) but for n = 2: a polynomial in n in the place of Ū_trans, whose logarithm
    is −772 in the paper's set-up  [ours:guard_noise, thm:finite_time_entry].
    """
    # (g + √2ε)/8 + ε/√2 ≤ y_thr = g/(4√2) holds up to ε = g/17.1.
    return np.minimum(guard_target(gap) / guard_noise_ball(n, 1.0), gap / 18)


def guard_entry_steps(level: Real, gap: Real, n: int, noise: Real = 0.0) -> Real:
    """T ≤ n(n−1) log((y₀ − r)/(g/8 − r)) steps from f₀ = `level` into N_{g/2}.

    From every start, saddles included. Without noise it is ½n(n−1) log(2f₀/f_thr)
    [ours:guard, ours:guard_noise].
    """
    non_negative(level=level)
    limit = guard_noise_limit(n, gap)
    require(noise < limit, "noise", noise, f"entry is proved below {limit!r}")
    ball, goal = guard_noise_ball(n, noise), guard_target(gap)
    start = np.maximum(level**0.5, goal)
    return n * (n - 1) * np.log((start - ball) / (goal - ball))
