"""The generator Ω = [A, diag A], its algebra and its derivatives.

Throughout, A = MᵀCM is the operator in the rotated basis and C_e = C − tr(C)/n · I its trace-free
part. Ω, f and all that follows depend on A up to multiples of I only. So wherever ‖C_e‖₂ enters a
bound, the norm of any C − cI will do; the least is the half spread r = (λ_max − λ_min)/2.
"""

import numpy as np

from .hypotheses import Array, Real, count, non_negative


def trace_free(matrix: Array) -> Array:
    """tf(X) = X − tr(X)/n · I  [eq:trace_free, thm:sigma_immunity]."""
    n = matrix.shape[-1]
    trace = np.asarray(np.trace(matrix, axis1=-2, axis2=-1))
    return np.asarray(matrix - trace[..., None, None] / n * np.eye(n))


def diagonal_part(matrix: Array) -> Array:
    """D = diag(A) as a matrix  [eq:A_def]."""
    return matrix * np.eye(matrix.shape[-1])


def off_diagonal(matrix: Array) -> Array:
    """off(A) = A − diag(A)  [eq:lyapunov]."""
    return matrix - diagonal_part(matrix)


def commutator(left: Array, right: Array) -> Array:
    """[X, Y] = XY − YX  [lem:commutator_bound]."""
    return left @ right - right @ left


def commutator_bound(spectral_norm: Real, frobenius_norm: Real) -> Real:
    """‖[X, Y]‖_F ≤ 2‖X‖₂‖Y‖_F, either way round  [lem:commutator_bound]."""
    non_negative(spectral_norm=spectral_norm, frobenius_norm=frobenius_norm)
    return 2 * spectral_norm * frobenius_norm


def rotated_operator(operator: Array, basis: Array) -> Array:
    """MᵀCM = A  [eq:A_def].

    For orthogonal M, tr A = tr C: the full basis gives the trace at no extra product, where the
    paper holds its estimation to be the dominant cost  [app:related works].
    """
    return np.swapaxes(basis, -1, -2) @ operator @ basis


def centred_rotation(operator: Array, basis: Array) -> Array:
    """Centre: A − s MᵀM with s = tr(A)/tr(MᵀM), free of shifts even if M is not orthogonal.

    The paper forms A itself, which is free of shifts only up to ‖MᵀM − I‖
    [rem:sigma_invariance_truncation].
    """
    rotated, gram = rotated_operator(operator, basis), np.swapaxes(basis, -1, -2) @ basis
    level = np.asarray(np.einsum("...ii", rotated) / np.einsum("...ii", gram))
    return rotated - level[..., None, None] * gram


def lyapunov(rotated: Array) -> Array:
    """f(M) = ½‖off(A)‖_F²  [eq:lyapunov, thm:sigma_immunity].

    It is not what rivals minimise: a step that raises it is no failure of theirs
    [ex:subspace_iter_fail, ex:qr_oja_fail].
    """
    return np.asarray(0.5 * np.sum(off_diagonal(rotated) ** 2, axis=(-2, -1)))


def generator(rotated: Array) -> Array:
    """Ω_ij = (A_jj − A_ii) A_ij, which is [A, diag A]  [eq:omega, lem:scalar_shift]."""
    diagonal = np.diagonal(rotated, axis1=-2, axis2=-1)
    return (diagonal[..., None, :] - diagonal[..., :, None]) * rotated


def generator_bound(norm: Real, n: Real) -> Real:
    """‖Ω‖_F ≤ 2√n ‖C_e‖₂²  [eq:omega_global_bound]."""
    non_negative(norm=norm)
    count(1, n=n)
    return 2 * n**0.5 * norm**2


def generator_spectral_bound(norm: Real) -> Real:
    """‖Ω‖₂ ≤ 2‖C_e‖₂²: free of n, the source of the sharp constants  [eq:omega_global_bound].

    The paper bounds ‖Ω‖₂ by ‖Ω‖_F, which costs a factor √n.
    """
    non_negative(norm=norm)
    return 2 * norm**2


def effective_input(rotated: Array, noise: Array) -> Array:
    """U = Ω(A + 𝓔) − Ω(A) with 𝓔 = MᵀEM  [lem:input_bound, thm:sigma_immunity]."""
    return generator(rotated + noise) - generator(rotated)


def input_bound(norm: Real, noise: Real) -> Real:
    """‖U‖_F ≤ 4‖C_e‖₂‖E_e‖_F + 2‖E_e‖_F²  [eq:input_bound, lem:input_bound]."""
    non_negative(norm=norm, noise=noise)
    return 4 * norm * noise + 2 * noise**2


def generator_derivative(rotated: Array, direction: Array) -> Array:
    """DΩ(M)[MΞ] = [[A, Ξ], D] + [A, diag [A, Ξ]]  [lem:domega_bound, lem:hessian_link]."""
    change = commutator(rotated, direction)
    return commutator(change, diagonal_part(rotated)) + commutator(rotated, diagonal_part(change))


def generator_lipschitz(norm: Real) -> Real:
    """‖DΩ(M)[H]‖_F ≤ 8‖C_e‖₂²‖H‖_F, so Ω is Lipschitz with 8‖C_e‖₂²  [lem:domega_bound]."""
    non_negative(norm=norm)
    return 8 * norm**2


def rotation_lipschitz(norm: Real) -> Real:
    """‖A(M) − A(N)‖_F ≤ 2‖C_e‖₂‖M − N‖_F  [app:cn_derivation]."""
    non_negative(norm=norm)
    return 2 * norm


def trace_free_norm(operator: Array) -> Array:
    """‖C_e‖₂ = max |λ_i − mean λ|  [eq:trace_free]."""
    return np.asarray(np.abs(np.linalg.eigvalsh(trace_free(operator))).max(axis=-1))


def half_spread(operator: Array) -> Array:
    """(λ_max − λ_min)/2 = r ≤ ‖C_e‖₂, the sharpest norm that a bound may use  [rem:sigma_free]."""
    eigenvalues = np.linalg.eigvalsh(trace_free(operator))
    return np.asarray((eigenvalues[..., -1] - eigenvalues[..., 0]) / 2)


def spectral_gap(operator: Array) -> Array:
    """min_{i≠j} |λ_i − λ_j| = g  [subsec:spectral_domain]."""
    return np.asarray(
        np.diff(np.linalg.eigvalsh(trace_free(operator)), axis=-1).min(axis=-1, initial=np.inf)
    )
