"""The Cayley map, its derivative, and what a truncated Neumann series does to it."""

from typing import NamedTuple

import numpy as np

from .algebra import generator, input_bound, rotated_operator
from .hypotheses import Array, Real, count, non_negative, require


def cayley(skew: Array) -> Array:
    """Cay(X) = (I − X/2)⁻¹(I + X/2)  [eq:cayley, lem:cayley_diff]."""
    identity = np.eye(skew.shape[-1])
    return np.linalg.solve(identity - skew / 2, identity + skew / 2)


def cayley_step(basis: Array, operator: Array, step: float) -> Array:
    """T_η(M) = M Cay(ηΩ(M)); fixed points are the critical points  [eq:update, thm:global]."""
    return basis @ cayley(step * generator(rotated_operator(operator, basis)))


def cayley_derivative(skew: Array, direction: Array) -> Array:
    """DCay_X[Z] = (I − X/2)⁻¹ (Z/2) (I + Cay X), of norm ≤ ‖Z‖_F  [lem:cayley_diff]."""
    identity = np.eye(skew.shape[-1])
    return np.linalg.solve(identity - skew / 2, direction / 2 @ (identity + cayley(skew)))


def cayley_difference(first: Array, second: Array) -> Array:
    """Cay X − Cay Y = (I − X/2)⁻¹ (X − Y) (I − Y/2)⁻¹  [lem:discrete_iss_recursion]."""
    identity = np.eye(first.shape[-1])
    return np.linalg.solve(identity - first / 2, first - second) @ np.linalg.inv(
        identity - second / 2
    )


def cayley_velocity(skew: Array, time: float) -> Array:
    """Q′(t) = (I − tΞ/2)⁻¹ Ξ (I − tΞ/2)⁻¹ for Q(t) = Cay(tΞ)  [lem:cayley_path]."""
    inverse = np.linalg.inv(np.eye(skew.shape[-1]) - time / 2 * skew)
    return np.asarray(inverse @ skew @ inverse)


class PathBounds(NamedTuple):
    """Bounds on ‖Q(t) − I‖_F, ‖Q′(t)‖_F and ‖Q′(t) − Ξ‖_F."""

    displacement: Real
    velocity: Real
    velocity_change: Real


def cayley_path_bounds(time: Real, norm: Real) -> PathBounds:
    """(t‖Ξ‖_F, ‖Ξ‖_F, t‖Ξ‖_F²)  [lem:cayley_path]."""
    non_negative(time=time, norm=norm)
    return PathBounds(time * norm, norm, time * norm**2)


def step_length_bound(step: Real, generator_norm: Real) -> Real:
    """‖M_{k+1} − M_k‖_F ≤ η‖Ω_k‖_F  [lem:cayley_diff, lem:single_limit]."""
    non_negative(step=step, generator_norm=generator_norm)
    return step * generator_norm


def neumann_cayley(skew: Array, order: int) -> Array:
    """S_K(X/2)(I + X/2) with S_K(Y) = I + Y + … + Y^K  [alg:neumann_cayley]."""
    count(0, order=order)
    identity, half = np.eye(skew.shape[-1]), skew / 2
    total = np.broadcast_to(identity, skew.shape)
    for _ in range(order):
        total = identity + half @ total
    return total @ (identity + half)


def truncation_error(radius: Real, order: int, n: Real) -> Real:
    """‖Cay − Cay_K‖_F ≤ √n (1+ρ)/(1−ρ) ρ^{K+1}, ρ = ‖ηΩ/2‖₂ < 1  [prop:truncation_error]."""
    non_negative(radius=radius)
    count(0, order=order)
    count(1, n=n)
    require(radius < 1, "radius", radius, "take a smaller step: the series needs ρ < 1")
    return n**0.5 * (1 + radius) / (1 - radius) * radius ** (order + 1)


def sharp_truncation_error(radius: Real, order: int, n: Real) -> Real:
    """‖Cay − Cay_K‖_F ≤ √n ρ^{K+1}, for every ρ  [prop:truncation_error].

    Sharper than the paper: Cay − Cay_K = (X/2)^{K+1} Cay, and Cay is orthogonal.
    """
    non_negative(radius=radius)
    count(0, order=order)
    count(1, n=n)
    return n**0.5 * radius ** (order + 1)


def truncation_radius(n: Real) -> Real:
    """ρ ≤ √n/(4√n + 8) < ¼ under η < 1/L_C  [prop:truncation_error]."""
    count(1, n=n)
    return n**0.5 / (4 * n**0.5 + 8)


def sharp_truncation_radius(step: Real, radius: Real) -> Real:
    """ρ ≤ ηr² with r = ‖C_e‖₂ or the half spread  [prop:truncation_error].

    From ‖Ω‖₂ ≤ 2r²: at most 1/12 for η ≤ 1/(12r²), where the paper's √n/c_n tends to ¼.
    """
    non_negative(step=step, radius=radius)
    return step * radius**2


def orthogonality_defect(radius: Real, order: int) -> Real:
    """‖QᵀQ − I‖₂ of Q = Cay_K when ‖ηΩ/2‖₂ = ρ ≤ 1  [rem:sigma_invariance_truncation].

    ρ^{2K+2} for even K, |2ρ^{K+1} ∓ ρ^{2K+2}| for odd K, since an eigenvalue iθ of ηΩ/2 becomes one
    of squared modulus |1 − (iθ)^{K+1}|². The paper does not give it; even orders are far better.
    """
    non_negative(radius=radius)
    require(radius <= 1, "radius", radius, "take a smaller step: the series needs ρ < 1")
    count(0, order=order)
    square = radius ** (2 * order + 2)
    if order % 2 == 0:
        return square
    return 2 * radius ** (order + 1) + (square if order % 4 == 1 else -square)


def shift_leak(background: Real, norm: Real, defect: Real) -> Real:
    """‖Ω_{C+σ²I}(M) − Ω_C(M)‖_F ≤ 4‖A‖₂σ²d + 2σ⁴d², d = ‖MᵀM − I‖_F.

    The paper says that every Neumann order keeps the trajectory free of σ²
    [rem:sigma_invariance_truncation]. That needs MᵀM = I, which a truncated step does not keep: the
    background then acts as noise of size σ²d. Centring A (``centred_rotation``) removes it.
    """
    non_negative(background=background, norm=norm, defect=defect)
    return input_bound(norm, background * defect)
