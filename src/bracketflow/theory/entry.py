"""Finite-time entry into the separated domain, and where a random start stands."""

from typing import NamedTuple

import numpy as np

from .descent import clean_map_lipschitz, lyapunov_lipschitz
from .hypotheses import Array, Check, Real, count, non_negative, positive, probability
from .local import entry_threshold

LEVY = 1 / 16
"""The constant c of Lévy's inequality, which the paper leaves open.

On the sphere an L-Lipschitz function has P(|F − EF| ≥ t) ≤ 2 exp(−(n−1)t²/(2L²)); here L = 2‖C_e‖₂
and n − 1 ≥ n/2.
"""


def hitting_time(levels: Array, gap: float, separation: float) -> int | None:
    """First k with f(M_k) ≤ ½f_thr in the values of a run; None if there is none  [thm:entry]."""
    below = np.flatnonzero(np.asarray(levels) <= entry_threshold(gap, separation) ** 2 / 2)
    return int(below[0]) if below.size else None


def tracking_gain(steps: Real, step: Real, norm: Real) -> Real:
    """B_k = η Σ_{r<k} Λ^r = (Λ^k − 1)/(8‖C_e‖₂²); may overflow to inf  [thm:finite_time_entry]."""
    count(0, steps=steps)
    positive(step=step, norm=norm)
    with np.errstate(over="ignore"):
        return np.expm1(steps * np.log1p(8 * step * norm**2)) / (8 * norm**2)


def log10_tracking_gain(steps: Real, step: Real, norm: Real) -> Real:
    """log₁₀ B_k without overflow; −inf for k = 0  [thm:finite_time_entry]."""
    count(0, steps=steps)
    positive(step=step, norm=norm)
    growth = steps * np.log(clean_map_lipschitz(step, norm))
    with np.errstate(divide="ignore"):
        return (growth + np.log(-np.expm1(-growth)) - np.log(8 * norm**2)) / np.log(10)


def invariance_threshold(gap: Real, separation: Real, norm: Real) -> Real:
    """Ū_inv = δ²(g−δ)/(8‖C_e‖₂): inputs below it cannot push M out  [thm:finite_time_entry]."""
    positive(norm=norm)
    return separation**2 * entry_threshold(gap, separation) / (8**0.5 * norm)


def log10_transfer_threshold(
    steps: Real, gap: Real, separation: Real, step: Real, norm: Real, n: Real
) -> Real:
    """log₁₀ Ū_trans, Ū_trans = f_thr/(2L_f B_T), T the hitting time  [thm:finite_time_entry].

    In the paper's own set-up (n = 15, T = 11282) it is −772: no noise of any real run is so small,
    and the theorem, though true, says nothing there.
    """
    level = entry_threshold(gap, separation) ** 2
    ratio = np.log10(level / (2 * lyapunov_lipschitz(norm, n)))
    return ratio - log10_tracking_gain(steps, step, norm)


def entry_check(
    input_norm: float,
    steps: int,
    gap: float,
    separation: float,
    step: float,
    norm: float,
    n: int,
) -> Check:
    """M_k ∈ N_δ for all k ≥ T_hit if Ū ≤ min(Ū_inv, Ū_trans)  [thm:entry]."""
    non_negative(input_norm=input_norm)
    invariance = float(invariance_threshold(gap, separation, norm))
    if input_norm > invariance:
        return Check(False, f"the input {input_norm:.3g} exceeds U_inv = {invariance:.3g}")
    transfer = float(log10_transfer_threshold(steps, gap, separation, step, norm, n))
    if input_norm > 0 and np.log10(input_norm) > transfer:
        return Check(False, f"log10 of the input exceeds log10 U_trans = {transfer:.1f}")
    return Check(True, f"input {input_norm:.3g} <= U_inv = {invariance:.3g} and U_trans")


class Moments(NamedTuple):
    """Mean and variance."""

    mean: Array
    variance: Array


def haar_moments(eigenvalues: Array) -> Moments:
    """E and Var of qᵀΛq, q uniform on the sphere: λ̄ and 2Σ(λ − λ̄)²/(n(n+2)).

    These are the moments of each A_ii at a Haar start  [lem:spherical_moments].
    """
    n, mean = eigenvalues.shape[-1], eigenvalues.mean(axis=-1)
    spread = np.sum((eigenvalues - mean[..., None]) ** 2, axis=-1)
    return Moments(np.asarray(mean), np.asarray(2 * spread / (n * (n + 2))))


def levy_tail(excess: Real, n: Real, norm: Real, constant: Real = LEVY) -> Real:
    """P(|A_ii − λ̄| ≥ t) ≤ 2 exp(−cnt²/‖C_e‖₂²) at a Haar start  [lem:levy_concentration]."""
    positive(excess=excess, norm=norm, constant=constant)
    count(2, n=n)
    return 2 * np.exp(-constant * n * excess**2 / norm**2)


def separation_tail(separation: Real, n: Real, norm: Real, constant: Real = LEVY) -> Real:
    """P(δ(M₀) ≥ u) ≤ 2n exp(−c′n(n−1)²u²/‖C_e‖₂²) at a Haar start, c′ = c/4.

    [thm:spectral_separation_upper_tail]
    """
    positive(separation=separation)
    return n * levy_tail((n - 1) * separation / 2, n, norm, constant)


def separation_quantile(failure: Real, n: Real, norm: Real, constant: Real = LEVY) -> Real:
    """δ(M₀) ≤ ‖C_e‖₂/(n−1) · √(log(2n/ζ)/(c′n)) with probability ≥ 1 − ζ.

    The paper prints 2/(n−1), counting the factor 4 in c′ = c/4 twice
    [thm:spectral_separation_upper_tail]. Both are upper bounds of order n^−1.5; the actual scale of
    δ(M₀)/‖C_e‖₂ is about n^−2.6  [app:haar_init].
    """
    probability(failure=failure)
    positive(norm=norm, constant=constant)
    count(2, n=n)
    return norm / (n - 1) * (4 * np.log(2 * n / failure) / (constant * n)) ** 0.5


def printed_separation_quantile(failure: Real, n: Real, norm: Real, constant: Real = LEVY) -> Real:
    """2/(n−1) as printed: twice ``separation_quantile``  [thm:spectral_separation_upper_tail]."""
    return 2 * separation_quantile(failure, n, norm, constant)
