"""What a background σ²I does to subspace iteration, QR-Oja and Euclidean gradient steps."""

from math import inf
from typing import NamedTuple

import numpy as np

from .algebra import generator, off_diagonal
from .hypotheses import Array, Real, non_negative, positive, probability, require


def _ordered(first: Real, second: Real) -> None:
    ordered = (first > second) & (first < inf)
    require(ordered, "first", first, f"must be finite and exceed the second, {second!r}")


def subspace_contraction(first: Real, second: Real, background: Real) -> Real:
    """ρ = (λ_2 + σ²)/(λ_1 + σ²), tan θ_{k+1} = ρ tan θ_k for n = 2  [lem:subspace_iter]."""
    _ordered(first, second)
    fits = (second + background > 0) & (background < inf)
    require(fits, "background", background, "must be finite and make the matrix positive")
    return (second + background) / (first + background)


def largest_background(ratio: Real, first: Real, second: Real) -> Real:
    """ρ ≤ q iff σ² ≤ Δ/(1 − q) − λ_1: no q < 1 serves every σ²  [lem:subspace_iter]."""
    _ordered(first, second)
    probability(ratio=ratio)
    return (first - second) / (1 - ratio) - first


def angle_steps(contraction: Real, tangent: Real, target: Real) -> Real:
    """log(tan θ_0/ε)/log(1/ρ) steps at least until tan θ ≤ ε  [lem:subspace_iter, lem:qr_oja]."""
    probability(contraction=contraction)
    positive(tangent=tangent, target=target)
    return np.log(tangent / target) / -np.log(contraction)


def subspace_steps_floor(
    first: Real, second: Real, background: Real, tangent: Real, target: Real
) -> Real:
    """(λ_2 + σ²)/Δ · log(tan θ_0/ε) steps at least: they grow like σ²/Δ  [lem:subspace_iter]."""
    subspace_contraction(first, second, background)
    positive(tangent=tangent, target=target)
    return (second + background) / (first - second) * np.log(tangent / target)


def oja_effective_step(step: Real, background: Real) -> Real:
    """η′ = η/(1 + ησ²): (I + ηC_k)M ∝ M + η′C_sig M  [lem:qr_oja]."""
    positive(step=step)
    non_negative(background=background)
    return step / (1 + step * background)


def oja_contraction(step: Real, first: Real, second: Real, background: Real) -> Real:
    """(1 + η(λ_2 + σ²))/(1 + η(λ_1 + σ²)) = factor on tan θ, n = 2  [lem:qr_oja]."""
    positive(step=step)
    return subspace_contraction(first, second, background + 1 / step)


def oja_steps_floor(
    step: Real, first: Real, second: Real, background: Real, tangent: Real, target: Real
) -> Real:
    """(1 + η(λ_2 + σ²))/(ηΔ) · log(tan θ_0/ε) steps at least until tan θ ≤ ε  [lem:qr_oja].

    For fixed η. With η = c/‖C_k‖₂² it grows like σ⁴ and with η = c/‖C_k‖₂ like σ², so that counts
    from one such rule confirm the rule, not the bound  [app:exp_a1].
    """
    positive(step=step)
    return subspace_steps_floor(first, second, background + 1 / step, tangent, target)


class Decomposition(NamedTuple):
    """Mᵀ times the tangent and the normal part of a gradient."""

    tangent: Array
    normal: Array


def gradient_decomposition(rotated: Array, background: float) -> Decomposition:
    """Mᵀ · 2(C + σ²I)MO = −Ω + ({A, O} + 2σ²O), O = off(A)  [lem:gradient_decomp_app]."""
    off = off_diagonal(rotated)
    normal = rotated @ off + off @ rotated + 2 * background * off
    return Decomposition(-generator(rotated), normal)


def normal_part_floor(background: Real, norm: Real, off_norm: Real) -> Real:
    """‖Π_N(G_E)‖_F ≥ 2(σ² − ‖C_sig‖₂)‖O‖_F when σ² > ‖C_sig‖₂  [lem:gradient_decomp_app]."""
    non_negative(norm=norm, off_norm=off_norm)
    non_negative(background=background)
    require(background > norm, "background", background, f"must exceed the norm {norm!r}")
    return 2 * (background - norm) * off_norm


def euclidean_step(basis: Array, operator: Array, step: float) -> Array:
    """M − η · 2CM off(MᵀCM), before the QR  [ex:euclidean_sgd_sigma]."""
    image = operator @ basis
    return basis - 2 * step * image @ off_diagonal(np.swapaxes(basis, -1, -2) @ image)
