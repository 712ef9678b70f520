"""The weighted Brockett objective on the Stiefel manifold: J(M) = tr(MᵀCMN), N = diag(ν)."""

from collections.abc import Sequence
from math import perm
from typing import NamedTuple

import numpy as np

from .hypotheses import Array, Real, count, non_negative, positive, require


def _check_weights(weights: Array) -> None:
    positive(weights=weights)
    require(np.diff(weights) < 0, "weights", weights, "must be strictly decreasing")


def brockett_objective(basis: Array, operator: Array, weights: Array) -> Array:
    """J(M) = tr(MᵀCMN) = Σ_a ν_a m_aᵀCm_a  [eq:stiefel_obj]."""
    return np.asarray(np.sum(basis * (operator @ basis) * weights, axis=(-2, -1)))


def brockett_maximum(eigenvalues: Array, weights: Array) -> Array:
    """J ≤ Σ_a ν_a λ_a, λ descending; equal at [±u_1 … ±u_k] only  [thm:stiefel_global_max]."""
    _check_weights(weights)
    leading = np.sort(eigenvalues, axis=-1)[..., ::-1][..., : weights.size]
    return np.asarray(leading @ weights)


def tangent_projection(basis: Array, matrix: Array) -> Array:
    """Π_M(Z) = Z − M sym(MᵀZ)  [app:stiefel_gradient]."""
    inner = np.swapaxes(basis, -1, -2) @ matrix
    return matrix - basis @ (inner + np.swapaxes(inner, -1, -2)) / 2


def gradient_perturbation_bound(k: Real, top_weight: Real, noise: Real) -> Real:
    """‖grad J(C + E) − grad J(C)‖_F ≤ 4√k ν₁‖E_e‖₂  [prop:stiefel_perturb]."""
    count(1, k=k)
    non_negative(top_weight=top_weight, noise=noise)
    return 4 * k**0.5 * top_weight * noise


def critical_count(n: int, k: int) -> int:
    """2^k n!/(n−k)! critical points  [cor:stiefel_finite]."""
    count(1, k=k)
    require(k <= n, "k", k, f"must be at most n = {n}")
    return int(2**k * perm(n, k))


def critical_frame(
    eigenvectors: Array, indices: Sequence[int], signs: Array | float = 1.0
) -> Array:
    """M⋆ = [s_1u_{i_1} … s_ku_{i_k}]: all critical points are such  [prop:stiefel_critical]."""
    return np.asarray(eigenvectors[:, np.asarray(indices)] * signs)


class Spectrum(NamedTuple):
    """Internal eigenvalues γ_ab (a < b, row by row) and external β_sa (n−k, k)."""

    internal: Array
    external: Array


def linearisation_spectrum(eigenvalues: Array, weights: Array, indices: Sequence[int]) -> Spectrum:
    """γ_ab = (ν_a − ν_b)(λ_{i_b} − λ_{i_a}), β_sa = 2ν_a(λ_{j_s} − λ_{i_a}).

    Eigenvalues of DG_C at a critical point  [prop:stiefel_spectrum, thm:stiefel_landscape].
    ``indices`` picks the columns of the critical point; j runs over the rest in ascending order.
    """
    _check_weights(weights)
    chosen = eigenvalues[np.asarray(indices)]
    rest = np.delete(eigenvalues, list(indices))
    a, b = np.triu_indices(weights.size, 1)
    internal = (weights[a] - weights[b]) * (chosen[b] - chosen[a])
    return Spectrum(internal, 2 * weights * (rest[:, None] - chosen))


def linearisation_eigenvectors(eigenvectors: Array, indices: Sequence[int]) -> Spectrum:
    """M⋆(E_ab − E_ba) and M_⊥E_sa, in the order of the spectrum  [prop:stiefel_spectrum]."""
    frame = critical_frame(eigenvectors, indices)
    rest = np.delete(eigenvectors, list(indices), axis=1)
    (n, k), (a, b) = frame.shape, np.triu_indices(len(indices), 1)
    internal = np.zeros((a.size, n, k))
    internal[np.arange(a.size), :, b] = frame[:, a].T
    internal[np.arange(a.size), :, a] = -frame[:, b].T
    external = np.zeros((n - k, k, n, k))
    external[:, np.arange(k), :, np.arange(k)] = rest.T
    return Spectrum(internal, external)


def field_derivative(basis: Array, operator: Array, weights: Array, tangent: Array) -> Array:
    """DG_C(M)[H] of G_C = grad J = 2CMN − M(AN + NA)  [prop:stiefel_spectrum]."""
    rotated = np.swapaxes(basis, -1, -2) @ operator @ basis
    half = np.swapaxes(basis, -1, -2) @ operator @ tangent
    change = half + np.swapaxes(half, -1, -2)
    sums = weights + weights[:, None]
    return 2 * (operator @ tangent) * weights - tangent @ (rotated * sums) - basis @ (change * sums)


class Signature(NamedTuple):
    """Numbers of negative, zero and positive eigenvalues."""

    negative: int
    zero: int
    positive: int


def signature(spectrum: Spectrum) -> Signature:
    """Signs of the eigenvalues: no zeros; no positives only at maximisers  [cor:stiefel_hyper]."""
    signs = np.sign(np.concatenate([spectrum.internal, spectrum.external.ravel()]))
    return Signature(*(int(np.sum(signs == sign)) for sign in (-1, 0, 1)))


def is_hyperbolic(spectrum: Spectrum) -> bool:
    """No eigenvalue of the linearisation is zero  [cor:stiefel_hyper, thm:stiefel_landscape]."""
    return signature(spectrum).zero == 0


def polar_retraction(basis: Array, tangent: Array) -> Array:
    """R_M(H) = X(XᵀX)^{−1/2}, X = M + H, by SVD: orthonormal for any M  [eq:polar_retraction]."""
    left, _, right = np.linalg.svd(basis + tangent, full_matrices=False)
    return np.asarray(left @ right)


def printed_polar_retraction(basis: Array, tangent: Array) -> Array:
    """(M + H)(I + HᵀH)^{−1/2} as printed: polar only if MᵀM = I  [eq:polar_retraction].

    Rounding errors in MᵀM − I are multiplied at every step by ``retraction_defect_factor``, so that
    invariance [prop:stiefel_discrete_inv] is lost at large σ². ``polar_retraction`` cures it.
    """
    gram = np.eye(tangent.shape[-1]) + np.swapaxes(tangent, -1, -2) @ tangent
    values, vectors = np.linalg.eigh(gram)
    root = (vectors * values[..., None, :] ** -0.5) @ np.swapaxes(vectors, -1, -2)
    return np.asarray((basis + tangent) @ root)


def retraction_defect_factor(step: Real, background: Real, weights: Array) -> Array:
    """(MᵀM − I)_ab is multiplied by 1 − 2ησ²(ν_a + ν_b) per printed step  [eq:polar_retraction]."""
    positive(step=step)
    non_negative(background=background)
    return np.asarray(1 - 2 * step * background * (weights + weights[:, None]))
