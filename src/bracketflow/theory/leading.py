"""Discrete input-to-state stability on St(k, n), beyond the paper; proofs are in docs/theory.md.

h = J_max − J is what is missing of the maximum of J(X) = tr(XᵀCXN), N = diag(ν), and y = √h its
deviation. A step is X₊ = polar(X + η(G + U)) with G = grad J, an input U and η ≤ 1/L; the weights ν
are positive and do not increase: equal ones are the Grassmann case.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import betaincinv

from .hypotheses import Array, Real, certified, count, non_negative, positive, probability, require


def brockett_constant(top_weight: Real, spread: Real) -> Real:
    """L = 2ν₁(λ_max − λ_min): J(polar(X + ξ)) ≥ J(X) + <grad J, ξ> − (L/2)‖ξ‖_F².

    For every X, tangent ξ and k ≤ n, and no smaller L will do  [ours:brockett_descent].
    """
    positive(top_weight=top_weight, spread=spread)
    return 2 * top_weight * spread


class Basin(NamedTuple):
    """Around the maximum of J: how fast a step closes in, and how far that is proved."""

    rate: Real
    """μ, the smallest nonzero |eigenvalue| of the linearisation."""
    reach: Real
    """κ: below h = κ no other critical point is near."""


def brockett_basin(eigenvalues: Array, weights: Array) -> Basin:
    """μ = min(w_j g_j for j < k, 2w_k g_k) and κ = min(w_j g_j for j ≤ k), where w_j > 0, j < n.

    g_j = λ_j − λ_{j+1} and w_j = ν_j − ν_{j+1}, ν_{k+1} = 0  [ours:brockett_basin].
    """
    positive(weights=weights)
    k, n = len(weights), len(eigenvalues)
    require(k <= n, "weights", weights, f"at most n = {n} of them")
    drops = -np.diff(np.append(weights, 0.0))
    require(drops >= 0, "weights", weights, "must not increase")
    drops = drops[: n - 1]
    require(np.any(drops > 0), "weights", weights, "with k = n equal ones make J a constant")
    gaps = -np.diff(np.sort(eigenvalues)[::-1])[: len(drops)]
    products = (drops * gaps)[drops > 0]
    require(products > 0, "eigenvalues", eigenvalues, "no gap where the weights ask for one")
    rates = products.copy()
    if k < n:
        rates[-1] *= 2  # the last one is w_k g_k: ν_k > 0
    return Basin(float(rates.min()), float(products.min()))


def brockett_dissipation_floor(level: Real, rate: Real, reach: Real) -> Real:
    """‖grad J‖_F² ≥ 2μ(1 − h/κ)h for h ≤ κ  [ours:brockett_basin]."""
    positive(rate=rate, reach=reach)
    non_negative(level=level)
    require(level <= reach, "level", level, f"nothing is known above {reach!r}")
    return 2 * rate * (1 - level / reach) * level


def brockett_level_step(
    level: Real, step: Real, constant: Real, rate: Real, reach: Real, input_norm: Real
) -> Real:
    """h₊ ≤ h − ημ(1 − h/κ)h + ½η‖U‖_F² for η ≤ 1/L  [ours:brockett_iss]."""
    certified(step, constant)
    non_negative(input_norm=input_norm)
    floor = brockett_dissipation_floor(level, rate, reach)
    return level - step * floor / 2 + step * input_norm**2 / 2


def brockett_deviation_step(
    deviation: Real, step: Real, constant: Real, rate: Real, reach: Real, input_norm: Real
) -> Real:
    """y₊ ≤ (1 − ½ημ(1 − y²/κ))y + √(L/2)η‖U‖_F for η ≤ 1/L  [ours:brockett_iss]."""
    certified(step, constant)
    positive(rate=rate, reach=reach)
    non_negative(deviation=deviation, input_norm=input_norm)
    require(deviation**2 <= reach, "deviation", deviation, f"its square may be at most {reach!r}")
    contraction = 1 - step * rate * (1 - deviation**2 / reach) / 2
    return contraction * deviation + (constant / 2) ** 0.5 * step * input_norm


def brockett_input_bound(top_weight: Real, noise: Real) -> Real:
    """‖U‖_F ≤ √2ν₁‖E_e‖_F, U = grad J(C + E) − grad J(C)  [ours:brockett_iss].

    Beside 4√kν₁‖E_e‖₂ of the paper there is no √k.
    """
    positive(top_weight=top_weight)
    non_negative(noise=noise)
    return 2**0.5 * top_weight * noise


def brockett_input_limit(rate: Real, reach: Real) -> Real:
    """√(μκ/2): larger inputs may push X out of the basin  [ours:brockett_ball]."""
    positive(rate=rate, reach=reach)
    return (rate * reach / 2) ** 0.5


class Ball(NamedTuple):
    """Deviations y: where runs end, and from where they do."""

    radius: Real
    """limsup y of every run that starts below `entry`: Ū/√(2μ) to first order."""
    entry: Real


def brockett_noise_ball(rate: Real, reach: Real, input_norm: Real) -> Ball:
    """The roots y² = h of 2μ(1 − h/κ)h = Ū², any η ≤ 1/L and ‖U‖_F ≤ Ū  [ours:brockett_ball].

    The radius is attained to first order by a constant U along the softest direction.
    """
    limit = brockett_input_limit(rate, reach)
    non_negative(input_norm=input_norm)
    require(input_norm <= limit, "input_norm", input_norm, f"no ball is known above {limit!r}")
    root = (1 - (input_norm / limit) ** 2) ** 0.5
    radius = input_norm / (rate * (1 + root)) ** 0.5
    return Ball(radius, (reach * (1 + root) / 2) ** 0.5)


def brockett_stationary_deviation(
    eigenvalues: Array, weights: Array, step: float, noise: float
) -> float:
    """Root mean square y under independent noise with ‖E_e‖_F = `noise`, to first order.

    A direction of curvature q obeys x ← (1 − ηq)x + ηu, so that ½qE x² = ½ηE u²/(2 − ηq); of an
    isotropic E the entries have the variance v = noise²/((n − 1)(n + 2)), and E u² is
    2(ν_a − ν_b)²v inside the frame and 4ν_a²v outside  [ours:brockett_independent].
    """
    positive(step=step, weights=weights)
    non_negative(noise=noise)
    values, n, k = np.sort(eigenvalues)[::-1], len(eigenvalues), len(weights)
    a, b = np.triu_indices(k, 1)
    drops = weights[a] - weights[b]
    inside = drops * (values[a] - values[b])
    outside = 2 * weights * (values[:k] - values[k:, None])
    curvatures = np.concatenate([inside, outside.ravel()])
    powers = np.concatenate([2 * drops**2, np.tile(4 * weights**2, n - k)])
    require(step * curvatures < 2, "step", step, "is beyond the edge of stability")
    variance = noise**2 / ((n - 1) * (n + 2))
    return float(np.sqrt(0.5 * step * variance * np.sum(powers / (2 - step * curvatures))))


def haar_overlap(n: int, k: int, failure: float) -> float:
    """q with P(‖uᵀX‖² ≤ q) = ζ for a Haar X and a fixed unit u: ‖uᵀX‖² ~ Beta(½k, ½(n − k)).

    [ours:spread_bound]
    """
    count(1, n=n, k=k)
    require(k <= n, "k", k, f"must be at most n = {n}")
    probability(failure=failure)
    return 1.0 if k == n else float(betaincinv(k / 2, (n - k) / 2, failure))


def spread_bound(ritz_range: Real, residual_norm: Real, overlap: Real) -> Real:
    """λ_max − λ_min ≤ range(H) + 2‖R‖₂/√q where ‖uᵀX‖² ≥ q for both end vectors u.

    For a Haar X that fails with probability 2ζ at most, q the quantile of ζ  [ours:spread_bound].
    """
    non_negative(ritz_range=ritz_range, residual_norm=residual_norm)
    positive(overlap=overlap)
    return ritz_range + 2 * residual_norm / overlap**0.5


def spread_floor(ritz_range: Real, residual_norm: Real) -> Real:
    """λ_max − λ_min ≥ max(range(H), 2‖R‖₂), whatever X  [ours:spread_bound]."""
    non_negative(ritz_range=ritz_range, residual_norm=residual_norm)
    excess = 2 * residual_norm - ritz_range
    return ritz_range + (excess + abs(excess)) / 2
