"""Near a minimiser: the separated domain, input-to-state stability and the noise ball.

``separation`` is the threshold δ of the domain N_δ = {M : δ(M) ≥ δ}, ``deviation`` is y = √f,
``input_norm`` bounds ‖U_k‖_F and ``constant`` is any valid descent constant L.
"""

from math import e

import numpy as np
from numpy.typing import NDArray

from .algebra import input_bound
from .hypotheses import Array, Check, Real, certified, non_negative, positive, require, separated


def diagonal_separation(rotated: Array) -> Array:
    """δ(M) = min_{i≠j} |A_ii − A_jj|  [eq:spectral_domain]."""
    diagonal = np.sort(np.diagonal(rotated, axis1=-2, axis2=-1), axis=-1)
    return np.asarray(np.diff(diagonal, axis=-1).min(axis=-1, initial=np.inf))


def in_domain(rotated: Array, separation: Real) -> NDArray[np.bool_]:
    """M ∈ N_δ  [eq:spectral_domain]."""
    positive(separation=separation)
    return np.asarray(diagonal_separation(rotated) >= separation)


def separation_bound(gap: Real, deviation: Real) -> Real:
    """δ(M) ≥ g − 2√2 y, vacuous when not positive  [lem:domain_radius]."""
    positive(gap=gap)
    non_negative(deviation=deviation)
    return gap - 8**0.5 * deviation


def entry_threshold(gap: Real, separation: Real) -> Real:
    """y_thr = (g − δ)/(2√2): a smaller y puts M into N_δ  [eq:ythr]; f_thr is its square."""
    separated(gap, separation)
    return (gap - separation) / 8**0.5


def dissipation_floor(separation: Real, level: Real) -> Real:
    """‖Ω‖_F² ≥ 2δ²f on N_δ, the Polyak–Łojasiewicz inequality  [lem:local_dissipation].

    With c = √2 δ and exponent ½ it is the Łojasiewicz inequality at minimisers
    [lem:lojasiewicz_SO].
    """
    positive(separation=separation)
    non_negative(level=level)
    return 2 * separation**2 * level


def dissipation_ceiling(norm: Real, level: Real) -> Real:
    """‖Ω‖_F² ≤ 8‖C_e‖₂²f everywhere  [lem:spectral_sandwich]."""
    non_negative(norm=norm, level=level)
    return 8 * norm**2 * level


def _contracts(step: Real, constant: Real, separation: Real) -> None:
    certified(step, constant)
    positive(separation=separation)
    # δ ≤ 2r and L ≥ 12r² for any operator, so that δ²η ≤ 1/3
    require(separation**2 * step <= 1, "separation", separation, "is too large for this constant")


def level_contraction(step: Real, constant: Real, separation: Real) -> Real:
    """f(M_{k+1}) ≤ (1 − δ²η) f(M_k) on N_δ without noise  [lem:discrete_iss_recursion]."""
    _contracts(step, constant, separation)
    return 1 - separation**2 * step


def deviation_contraction(step: Real, constant: Real, separation: Real) -> Real:
    """1 − ½δ²η = q, the factor on y = √f, η ≤ 1/L  [thm:iss, rem:constants]."""
    _contracts(step, constant, separation)
    return 1 - separation**2 * step / 2


def iss_step(
    deviation: Real, step: Real, constant: Real, separation: Real, norm: Real, input_norm: Real
) -> Real:
    """y_{k+1} ≤ (1 − ½δ²η) y_k + √2‖C_e‖₂ηŪ  [lem:discrete_iss_recursion, thm:iss]."""
    non_negative(deviation=deviation, norm=norm, input_norm=input_norm)
    gain = 2**0.5 * norm * step * input_norm
    return deviation_contraction(step, constant, separation) * deviation + gain


def noise_ball(norm: Real, separation: Real, input_norm: Real) -> Real:
    """√f ends below 2√2‖C_e‖₂Ū/δ²  [eq:noise_ball, thm:discrete_noise_ball]."""
    positive(separation=separation)
    non_negative(norm=norm, input_norm=input_norm)
    return 8**0.5 * norm * input_norm / separation**2


def noise_ball_from_noise(norm: Real, separation: Real, noise: Real) -> Real:
    """2√2‖C_e‖₂Ū/δ² with Ū = 4‖C_e‖₂ε + 2ε², ε ≥ ‖E_e‖_F  [cor:explicit_radius]."""
    return noise_ball(norm, separation, input_bound(norm, noise))


def sharp_noise_ball(separation: Real, input_norm: Real) -> Real:
    """√f ends below Ū/(√2δ), any η ≤ 1/L  [eq:noise_ball, thm:discrete_noise_ball].

    4‖C_e‖₂/δ times sharper than the paper, which bounds the change of √f by its Lipschitz constant.
    At η ≤ 1/L the descent lemma itself gives f₊ ≤ f − ½η‖Ω‖_F² + ½η‖U‖_F², and ‖Ω‖_F² ≥ 2δ²f. To
    first order it is attained by a constant U in the plane of the gap g = δ.
    """
    positive(separation=separation)
    non_negative(input_norm=input_norm)
    return input_norm / (2**0.5 * separation)


def sharp_iss_step(
    level: Real, step: Real, constant: Real, separation: Real, input_norm: Real
) -> Real:
    """f(M_{k+1}) ≤ (1 − δ²η)f(M_k) + ½ηŪ² on N_δ  [lem:discrete_iss_recursion]."""
    non_negative(level=level, input_norm=input_norm)
    return level_contraction(step, constant, separation) * level + step * input_norm**2 / 2


def iss_envelope(
    steps: Real,
    deviation: Real,
    step: Real,
    constant: Real,
    separation: Real,
    norm: Real,
    input_norm: Real,
) -> Real:
    """y_k ≤ q^k y_0 + noise ball  [thm:discrete_noise_ball]."""
    non_negative(steps=steps, deviation=deviation)
    decay = deviation_contraction(step, constant, separation) ** steps
    return decay * deviation + noise_ball(norm, separation, input_norm)


def flow_input(norm: Real, input_norm: Real, drift: Real) -> Real:
    """u_eff = ‖U‖_F + ρ/(2‖C_e‖₂) with the drift rate ρ = ‖Ċ‖_F  [lem:iss_diff]."""
    positive(norm=norm)
    non_negative(input_norm=input_norm, drift=drift)
    return input_norm + drift / (2 * norm)


def flow_noise_ball(norm: Real, separation: Real, input_norm: Real, drift: Real) -> Real:
    """√f ends below √2‖C_e‖₂u_eff/δ² for Ṁ = M(Ω + U), half the discrete ball  [app:thm2]."""
    return noise_ball(norm, separation, flow_input(norm, input_norm, drift)) / 2


def flow_envelope(
    time: Real, deviation: Real, separation: Real, norm: Real, input_norm: Real, drift: Real
) -> Real:
    """y(t) ≤ e^{−δ²t} y(0) + √2‖C_e‖₂u_eff/δ²  [lem:iss_diff, app:thm2]."""
    non_negative(time=time, deviation=deviation)
    ball = flow_noise_ball(norm, separation, input_norm, drift)
    return e ** (-(separation**2) * time) * deviation + ball


def non_escape(
    deviation: float, gap: float, separation: float, norm: float, input_norm: float
) -> Check:
    """√f(M_0) ≤ y_thr and noise ball ≤ y_thr keep every M_k in N_δ  [thm:non_escape]."""
    non_negative(deviation=deviation)
    threshold = entry_threshold(gap, separation)
    ball = noise_ball(norm, separation, input_norm)
    if deviation > threshold:
        return Check(False, f"sqrt(f) = {deviation:.3g} starts above y_thr = {threshold:.3g}")
    if ball > threshold:
        return Check(False, f"the noise ball {ball:.3g} exceeds y_thr = {threshold:.3g}")
    return Check(True, f"start {deviation:.3g} and ball {ball:.3g} <= y_thr = {threshold:.3g}")


def post_entry_steps(
    target: float,
    gap: float,
    separation: float,
    step: float,
    constant: float,
    norm: float,
    input_norm: float,
) -> float:
    """M = 2/(δ²η) log((y_thr − r)/(ε − r)) steps bring √f below ε  [cor:two_phase].

    r is the noise ball: ε must exceed it, and it may not exceed y_thr.
    """
    certified(step, constant)
    positive(target=target)
    threshold = entry_threshold(gap, separation)
    ball = noise_ball(norm, separation, input_norm)
    require(target > ball, "target", target, f"no accuracy below the noise ball {ball!r} is known")
    require(ball < threshold, "input_norm", input_norm, f"noise ball {ball!r} > y_thr")
    steps = 2 / (separation**2 * step) * np.log((threshold - ball) / (target - ball))
    return max(0.0, float(steps))


def growth_floor(gap: Real, distance: Real) -> Real:
    """f(M) ≥ ¼g² dist_F², near the minimisers  [thm:local_growth, thm:quadratic_growth]."""
    positive(gap=gap)
    non_negative(distance=distance)
    return gap**2 * distance**2 / 4


def growth_ceiling(norm: Real, distance: Real) -> Real:
    """f(M) ≤ 2‖C_e‖₂² dist_F², everywhere  [thm:local_growth, thm:quadratic_growth]."""
    non_negative(norm=norm, distance=distance)
    return 2 * norm**2 * distance**2


def distance_bound(gap: Real, deviation: Real) -> Real:
    """dist_F(M, minimisers) ≤ 2y/(g − √2 y) for √2 y < g/2  [cor:lyapunov_distance].

    The paper gives 2y/g for y below a constant that it does not name. This form is explicit: d_i is
    within √2 y of its eigenvalue, so that sin θ_i ≤ ‖off(A)e_i‖/(g − √2 y) column by column.
    """
    positive(gap=gap)
    non_negative(deviation=deviation)
    require(8**0.5 * deviation < gap, "deviation", deviation, f"needs 2√2 y < gap = {gap!r}")
    return 2 * deviation / (gap - 2**0.5 * deviation)


def basis_noise_ball(norm: Real, gap: Real, separation: Real, input_norm: Real) -> Real:
    """dist_F ends below ``distance_bound`` of the noise ball: 4√2‖C_e‖₂Ū/(gδ²) to first order.

    The paper prints the first-order form  [eq:distance_conversion, cor:lyapunov_distance].
    """
    separated(gap, separation)
    return distance_bound(gap, noise_ball(norm, separation, input_norm))


def minimum_hessian(eigenvalues: Array, direction: Array) -> Array:
    """Hess f(M⋆)[M⋆Ξ, M⋆Ξ] = 2Σ_{i<j}(λ_i − λ_j)²Ξ_ij²  [lem:hessian_global_min]."""
    differences = eigenvalues[..., :, None] - eigenvalues[..., None, :]
    return np.asarray(np.sum((differences * direction) ** 2, axis=(-2, -1)))


def minimum_hessian_bounds(gap: Real, norm: Real) -> tuple[Real, Real]:
    """g²‖Ξ‖_F² ≤ Hess f(M⋆) ≤ 4‖C_e‖₂²‖Ξ‖_F²  [lem:hessian_global_min]."""
    positive(gap=gap, norm=norm)
    return gap**2, 4 * norm**2
