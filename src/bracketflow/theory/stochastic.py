"""Decaying steps, sample complexity and tail bounds under random inputs.

``input_deviation`` is σ_u, ``input_scale`` is b_u, ``input_mean`` bounds E‖U_k‖_F and ``failure``
is the probability ζ with which a bound may fail.
"""

from typing import NamedTuple

import numpy as np

from .algebra import generator
from .hypotheses import Array, Real, count, non_negative, positive, probability, require
from .local import deviation_contraction


def decaying_step(index: Real, scale: Real, offset: Real) -> Real:
    """η_k = c/(k + k₀)  [thm:convergence]."""
    positive(scale=scale, offset=offset)
    non_negative(index=index)
    return scale / (index + offset)


def rate_constant(
    scale: Real,
    offset: Real,
    constant: Real,
    separation: Real,
    input_variance: Real,
    level: Real,
) -> Real:
    """C = max{k₀f(M₀), c²Lσ_u²/(2(cδ² − 1))}  [cor:convergence_rate].

    Needs c > 1/δ² and k₀ ≥ cL.
    """
    positive(scale=scale, offset=offset, constant=constant, separation=separation)
    non_negative(input_variance=input_variance, level=level)
    require(scale * separation**2 > 1, "scale", scale, f"take more than {1 / separation**2!r}")
    require(offset >= scale * constant, "offset", offset, f"take at least {scale * constant!r}")
    noise = scale**2 * constant * input_variance / (2 * (scale * separation**2 - 1))
    start = offset * level
    return (start + noise + abs(start - noise)) / 2  # the maximum, for any kind of number


def rate_bound(index: Real, offset: Real, rate: Real) -> Real:
    """E f(M_k) ≤ C/(k + k₀), C from ``rate_constant``  [thm:convergence, cor:convergence_rate]."""
    positive(offset=offset)
    non_negative(index=index, rate=rate)
    return rate / (index + offset)


def sample_complexity(
    target: float, constant: float, separation: float, input_variance: float, level: float = 0.0
) -> float:
    """C/ε − k₀ steps until E f ≤ ε, with the best schedule c = 2/δ², k₀ = cL  [thm:convergence].

    Here C = max{k₀f(M₀), 2Lσ_u²/δ⁴}. The paper prints δ⁻², which is not free of units;
    minimising its own C over c gives δ⁻⁴ (``printed_sample_complexity`` has its formula).
    """
    positive(target=target, separation=separation)
    scale = 2 / separation**2
    rate = rate_constant(scale, scale * constant, constant, separation, input_variance, level=level)
    return max(0.0, float(rate / target - scale * constant))


def printed_sample_complexity(
    target: Real, norm: Real, separation: Real, input_variance: Real
) -> Real:
    """‖C_e‖₂²σ_u²/(δ²ε) as printed; does not hold, see ``sample_complexity``  [thm:convergence]."""
    positive(target=target, norm=norm, separation=separation)
    non_negative(input_variance=input_variance)
    return norm**2 * input_variance / (separation**2 * target)


def input_variance_bound(norm: Real, noise_cap: Real, noise_variance: Real) -> Real:
    """σ_u² ≤ (4‖C_e‖₂ + 2ε₀)² sup E‖E_e‖_F² when ‖E_e‖_F ≤ ε₀  [app:convergence_rate]."""
    non_negative(norm=norm, noise_cap=noise_cap, noise_variance=noise_variance)
    return (4 * norm + 2 * noise_cap) ** 2 * noise_variance


def input_bias_bound(noise_variance: Real) -> Real:
    """‖E U‖_F ≤ 2 E‖E_e‖_F² when E E_e = 0  [ass:centered_variance_D].

    The paper assumes E U = 0. Centred noise does not give that: E U = E [𝓔, diag 𝓔].
    """
    non_negative(noise_variance=noise_variance)
    return 2 * noise_variance


def gaussian_input_bias(rotated: Array, batch: int) -> Array:
    """E U = (2/b)Ω when C_k is the second moment of b rows from N(0, C)  [ass:centered_variance_D].

    For b = 1, E Ω_k = 3Ω: parallel to Ω, so that it only lengthens the step. Other distributions
    of rows turn it.
    """
    count(1, batch=batch)
    return 2 / batch * generator(rotated)


def sampled_background(background: Real, n: Real, batch: Real) -> Real:
    """√E‖E_e‖_F² = σ²√((n−1)(n+2)/b) when σ²I is itself estimated from b Gaussian rows.

    Such noise is not isotropic and does scale with σ²: the paper's model [eq:obs_model] adds σ²I
    exactly, and its immunity [rem:impulse_immunity] is for that.
    """
    non_negative(background=background)
    count(1, n=n, batch=batch)
    return background * ((n - 1) * (n + 2) / batch) ** 0.5


def input_weights(steps: int, step: float, constant: float, separation: float) -> Array:
    """α_{N,j} = ηq^{N−1−j}, j = 0 … N−1, q = 1 − ½δ²η  [eq:discrete_convolution_E]."""
    count(1, steps=steps)
    ratio = deviation_contraction(step, constant, separation)
    return np.asarray(step * ratio ** np.arange(steps - 1, -1, -1))


class WeightNorms(NamedTuple):
    """max, sum and sum of squares of the weights."""

    largest: Real
    total: Real
    energy: Real


def weight_norms(steps: Real, step: Real, constant: Real, separation: Real) -> WeightNorms:
    """(η, (1 − q^N)/λ, η(1 − q^{2N})/(λ(2 − λη))) with λ = ½δ²  [lem:weight_norms_E].

    The last two stay below 1/λ and η/λ.
    """
    ratio, rate = deviation_contraction(step, constant, separation), separation**2 / 2
    energy = step * (1 - ratio ** (2 * steps)) / (rate * (2 - rate * step))
    return WeightNorms(step, (1 - ratio**steps) / rate, energy)


def mean_bound(
    steps: Real,
    deviation: Real,
    step: Real,
    constant: Real,
    separation: Real,
    norm: Real,
    input_mean: Real,
) -> Real:
    """q^N y_0 + (γ/λ)μ̄ with γ = √2‖C_e‖₂, the part without fluctuation  [app:weight_norms]."""
    non_negative(steps=steps, deviation=deviation, norm=norm, input_mean=input_mean)
    decay = deviation_contraction(step, constant, separation) ** steps
    return decay * deviation + 8**0.5 * norm * input_mean / separation**2


def bernstein_excess(
    failure: Real,
    step: Real,
    separation: Real,
    norm: Real,
    input_deviation: Real,
    input_scale: Real,
) -> Real:
    """y_N > ``mean_bound`` + excess has probability ≤ ζ  [thm:exp_concentration_E].

    Excess γ(√(2σ_u²η/λ · log 1/ζ) + 2b_uη log 1/ζ), for independent sub-exponential inputs
    [ass:ind_se].
    """
    probability(failure=failure)
    positive(step=step, separation=separation)
    non_negative(norm=norm, input_deviation=input_deviation, input_scale=input_scale)
    logarithm = -np.log(failure)
    spread = (4 * input_deviation**2 * step / separation**2 * logarithm) ** 0.5
    return 2**0.5 * norm * (spread + 2 * input_scale * step * logarithm)


def chebyshev_tail(
    excess: Real, step: Real, separation: Real, norm: Real, input_deviation: Real
) -> Real:
    """P(y_N > ``mean_bound`` + ε) ≤ γ²σ_u²η/(λε²), vacuous from 1 on  [thm:l2_pointwise_E].

    For pairwise uncorrelated inputs of finite variance  [ass:unc_l2].
    """
    positive(excess=excess, step=step, separation=separation)
    non_negative(norm=norm, input_deviation=input_deviation)
    return 4 * norm**2 * input_deviation**2 * step / (separation**2 * excess**2)


def chebyshev_excess(
    failure: Real, step: Real, separation: Real, norm: Real, input_deviation: Real
) -> Real:
    """γσ_u√(η/(λζ)): the ε at which ``chebyshev_tail`` equals ζ  [thm:l2_pointwise_E]."""
    probability(failure=failure)
    positive(step=step, separation=separation)
    non_negative(norm=norm, input_deviation=input_deviation)
    return 2 * norm * input_deviation / separation * (step / failure) ** 0.5


def uniform_failure(failure: Real, horizon: Real) -> Real:
    """ζ/(N+1): an excess taken at this value holds at all times 0 … N at once  [thm:hp_uniform].

    With it, ``bernstein_excess`` and ``chebyshev_excess`` give both displays of the theorem. It is
    for a fixed horizon only; nothing is known for all times.
    """
    probability(failure=failure)
    count(0, horizon=horizon)
    return failure / (horizon + 1)
