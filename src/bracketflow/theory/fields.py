"""The flows as right-hand sides of differential equations, and the Hessian that rules them."""

import numpy as np

from .algebra import commutator, generator, generator_derivative, rotated_operator
from .hypotheses import Array


def commutator_field(basis: Array, operator: Array) -> Array:
    """Ṁ = MΩ(M) = −grad f(M)  [thm:flow_converges, thm:as_global, cor:ae_eventual_entry]."""
    return basis @ generator(rotated_operator(operator, basis))


def brockett_field(basis: Array, operator: Array, weights: Array) -> Array:
    """Ṁ = grad J = 2(I − P)CMN + M[A, N], N = diag(weights)  [prop:stiefel_grad].

    Unchanged when C becomes C + αI, as long as MᵀM = I  [thm:stiefel_shift_main].
    Almost every start flows to the leading frame  [thm:stiefel_convergence].
    """
    image = operator @ basis
    rotated = np.swapaxes(basis, -1, -2) @ image
    bracket = rotated * (weights - weights[:, None])
    return 2 * (image - basis @ rotated) * weights + basis @ bracket


def projector_field(projector: Array, operator: Array) -> Array:
    """Ṗ = 2[P, [P, C]], the flow of P = MMᵀ when N = I  [prop:grassmann]."""
    return 2 * commutator(projector, commutator(projector, operator))


def dissipation(rotated: Array) -> Array:
    """−df/dt = ‖Ω‖_F² along Ṁ = MΩ  [thm:flow_converges]."""
    return np.asarray(np.sum(generator(rotated) ** 2, axis=(-2, -1)))


def hessian(rotated: Array, direction: Array) -> Array:
    """Mᵀ Hess f(M)[MΞ] = −DΩ[MΞ] − ½[Ξ, Ω]; at critical points −DΩ  [lem:hessian_link].

    The paper states the critical case only; the second term makes it exact at every M.
    """
    turn = commutator(direction, generator(rotated))
    return -generator_derivative(rotated, direction) - turn / 2


def skew_basis(n: int) -> Array:
    """(E_ij − E_ji)/√2 for i < j: an orthonormal basis of the skew matrices  [prop:givens]."""
    rows, columns = np.triu_indices(n, 1)
    basis = np.zeros((rows.size, n, n))
    index = np.arange(rows.size)
    basis[index, rows, columns] = 0.5**0.5
    basis[index, columns, rows] = -(0.5**0.5)
    return basis


def hessian_matrix(rotated: Array) -> Array:
    """Hess f(M) as a matrix in ``skew_basis(n)``  [lem:hessian_link, prop:saddle]."""
    directions = skew_basis(rotated.shape[-1])
    images = hessian(rotated[..., None, :, :], directions)
    return np.asarray(np.einsum("aij,...bij->...ab", directions, images))


def flow_linearisation(rotated: Array) -> Array:
    """DF(M⋆) = −Hess f(M⋆) for F(M) = MΩ(M), at a critical point  [lem:flow_linearization]."""
    return -hessian_matrix(rotated)


def step_linearisation(rotated: Array, step: float) -> Array:
    """DT_η(P) = I − η Hess f(P) for T_η(M) = M Cay(ηΩ), critical P  [lem:discrete_linearization].

    At a non-optimal P it has an eigenvalue above 1, which is why P repels  [lem:local_cs].
    """
    curvature = hessian_matrix(rotated)
    return np.eye(curvature.shape[-1]) - step * curvature
