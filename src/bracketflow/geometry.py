"""Moves on the manifolds SO(n) and St(k, n): retractions, random bases, distances.

A move from X is the tangent vector X K + Z with K skew, k × k, and XᵀZ = 0 (Z is None for k = n).
A retraction takes (X, K, Z) to the next orthonormal X. All four agree with the geodesic to first
order in the move; Cayley and polar to second order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from bracketflow.core import (
    Array,
    Scalar,
    State,
    any_member,
    contiguous,
    diagonal,
    epsilon,
    every_member,
    frobenius_squared,
    identity_like,
    namespace,
    to_host,
    whole_number,
)

Retraction = Callable[[Array, Array, Array | None], Array]


# Retractions ------------------------------------------------------------------------------------


def cayley(basis: Array, rotation: Array, normal: Array | None = None) -> Array:
    """Exact Cayley step: X Cay(K) for k = n, (I − Ω/2)⁻¹(I + Ω/2) X with ΩX = XK + Z otherwise.

    Written as X + X (I − K/2)⁻¹K, so that a small move makes a small rounding error. The basis is
    re-orthonormalised when rounding is measured to have accumulated.
    """
    xp = namespace(basis)
    generator = _generator(rotation, normal)
    k = basis.shape[-1]
    identity = identity_like(generator)
    return _combine(
        basis, normal, xp.linalg.solve(identity - 0.5 * generator, generator[..., :, :k])
    )


@dataclass(frozen=True)
class Neumann:
    """Cayley step with (I − K/2)⁻¹ replaced by I + K/2 + … + (K/2)^order. See `neumann`."""

    order: int

    def __call__(self, basis: Array, rotation: Array, normal: Array | None = None) -> Array:
        """X + X (2V + 2V² + … + 2V^order + V^(order+1)), V = K/2."""
        half = 0.5 * _generator(rotation, normal)
        power = half[..., :, : basis.shape[-1]]
        increment = 2 * power
        with np.errstate(over="ignore", invalid="ignore"):  # a move that overflows is refused later
            for _ in range(self.order - 1):
                power = half @ power
                increment = increment + 2 * power
            return _combine(basis, normal, increment + half @ power)


def neumann(order: int = 4) -> Neumann:
    """Cayley by a truncated Neumann series (the paper's Algorithm 2): products only, no solve.

    Needs ρ = ‖K‖₂/2 < 1. Its factor misses orthogonality by 2ρ^(order+1) for odd and only
    ρ^(2·order+2) for even orders: 2 is better than 3 and 4 better than 5, so choose an even one.
    The paper's remark that every order is blind to σ² fails without centring and
    re-orthonormalising (order 3 diverges at σ² = 1e6); here the probe is centred and the measured
    defect is removed, so every order is.
    """
    return Neumann(whole_number(order, "order", at_least=1))


def qr(basis: Array, rotation: Array, normal: Array | None = None) -> Array:
    """Q-factor of X + XK + Z with positive diagonal of the R-factor (first-order retraction)."""
    xp = namespace(basis)
    q, r = xp.linalg.qr(_tangent_sum(basis, rotation, normal))
    sign = xp.where(diagonal(r) < 0, -xp.ones_like(diagonal(r)), xp.ones_like(diagonal(r)))
    return q * sign[..., None, :]


def polar(basis: Array, rotation: Array, normal: Array | None = None) -> Array:
    """True polar factor V (VᵀV)^(-1/2) of V = X + XK + Z (second-order retraction).

    The paper prints (M + H)(I + HᵀH)^(-1/2), which presumes MᵀM = I to the last bit and amplifies
    its rounding by σ² until the run fails; the factor of the measured VᵀV corrects it instead.
    """
    return orthonormalise(_tangent_sum(basis, rotation, normal))


def orthonormalise(matrix: Array) -> Array:
    """Nearest matrix with orthonormal columns: the polar factor V (VᵀV)^(-1/2)."""
    xp = namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix.mT @ matrix)
    steep = ~(values[..., -1] <= 64 * values[..., 0])
    if any_member(steep):
        # The Gram matrix squares the condition number; the SVD does not.
        u, _, vt = xp.linalg.svd(matrix, full_matrices=False)
        values = xp.where(steep[..., None], xp.ones_like(values), values)
    factor = matrix @ ((vectors * (values**-0.5)[..., None, :]) @ vectors.mT)
    return xp.where(steep[..., None, None], u @ vt, factor) if any_member(steep) else factor


def _tangent_sum(basis: Array, rotation: Array, normal: Array | None) -> Array:
    moved = basis + basis @ rotation
    return moved if normal is None else moved + normal


def _generator(rotation: Array, normal: Array | None) -> Array:
    """Ω written in the columns [X, Z]: [[K, −ZᵀZ], [I, 0]], from ΩX = XK + Z, ΩZ = −X ZᵀZ."""
    if normal is None:
        return rotation
    xp = namespace(rotation)
    gram = normal.mT @ normal
    identity = xp.broadcast_to(identity_like(rotation), rotation.shape)
    upper = xp.concat([rotation, -gram], axis=-1)
    lower = xp.concat([identity, xp.zeros_like(rotation)], axis=-1)
    return xp.concat([upper, lower], axis=-2)


def _combine(basis: Array, normal: Array | None, coefficients: Array) -> Array:
    """X + [X, Z] · coefficients, re-orthonormalised where its measured defect asks for it."""
    k = basis.shape[-1]
    moved = basis + basis @ coefficients[..., :k, :]
    if normal is not None:
        moved = moved + normal @ coefficients[..., k:, :]
    return _polished(moved, tolerance=(16 + 2 * k) * epsilon(basis))


def _polished(matrix: Array, *, tolerance: float) -> Array:
    """Polar factor where ‖XᵀX − I‖_F exceeds `tolerance`; NaN where it is beyond measure."""
    xp = namespace(matrix)
    defect = frobenius_squared(matrix.mT @ matrix - identity_like(matrix))
    drifted = ~(defect <= tolerance**2)
    if not any_member(drifted):
        return matrix
    if not every_member(defect < inf):
        return xp.where((defect < inf)[..., None, None], matrix, xp.nan)
    return xp.where(drifted[..., None, None], orthonormalise(matrix), matrix)


# Bases ------------------------------------------------------------------------------------------


def random_basis(
    n: int,
    k: int | None = None,
    *,
    rng: Any = None,
    ensemble: tuple[int, ...] = (),
    like: Array | None = None,
) -> Array:
    """Haar-distributed orthonormal basis (*ensemble, n, k): QR of a Gaussian, signs fixed.

    `rng` is anything `numpy.random.default_rng` takes. `like` gives the array library, dtype and
    device (default: NumPy float64). For k = n the determinant is +1 or −1 with equal chance.
    """
    n = whole_number(n, "n", at_least=1)
    k = n if k is None else whole_number(k, "k", at_least=1, at_most=n, limit="the dimension n")
    gaussian = np.random.default_rng(rng).standard_normal((*ensemble, n, k))
    q, r = np.linalg.qr(gaussian)
    basis = contiguous(q * np.where(diagonal(r) < 0, -1.0, 1.0)[..., None, :])
    if like is None:
        return basis
    if isinstance(like, np.ndarray):
        return basis.astype(like.dtype)
    return namespace(like).asarray(basis, dtype=like.dtype, device=like.device)


def check_basis(basis: Array) -> Array:
    """`basis` as a C-contiguous copy, or a ValueError that says what is wrong with it."""
    shape = getattr(basis, "shape", None)
    if shape is None or len(shape) < 2:
        raise ValueError(
            f"basis must be an array (..., n, k), got {_describe(basis)}: "
            "start from bf.random_basis(n, k)"
        )
    xp = namespace(basis)
    if basis.dtype not in (xp.float32, xp.float64):
        raise TypeError(f"basis must be float32 or float64, got {basis.dtype}: convert it first")
    n, k = shape[-2:]
    if not 1 <= k <= n:
        raise ValueError(f"basis has k = {k} columns of length n = {n}: k must be from 1 to n")
    defect = to_host(frobenius_squared(basis.mT @ basis - identity_like(basis))) ** 0.5
    if not np.all(defect <= epsilon(basis) ** 0.5):
        raise ValueError(
            f"basis is not orthonormal, ‖XᵀX − I‖_F = {np.max(defect):.2g}: "
            "take the Q factor of numpy.linalg.qr(basis) or bf.random_basis(n, k)"
        )
    if isinstance(basis, np.ndarray):
        return np.array(basis, order="C")
    return contiguous(xp.asarray(basis, copy=True))


def initial_state(basis: Array, memory: Any = None) -> State:
    """State before the first observation, at a copy of a checked basis."""
    basis = check_basis(basis)
    ensemble = tuple(basis.shape[:-2])
    zero: Any = np.zeros(ensemble, dtype=np.int64) if ensemble else 0
    return State(basis, zero, zero, 0.0, memory)


def _describe(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"shape {tuple(shape)}" if shape is not None else repr(value)


# Columns ----------------------------------------------------------------------------------------


def signs(vectors: Array) -> Array:
    """±1 a column that makes its largest entry positive, which rounding does not change."""
    xp = namespace(vectors)
    largest = xp.argmax(abs(vectors), axis=-2)[..., None, :]
    top = xp.take_along_axis(vectors, largest, axis=-2)[..., 0, :]
    return xp.where(top < 0, -xp.ones_like(top), xp.ones_like(top))


def upright(vectors: Array) -> Array:
    """Columns with their largest entry positive."""
    return contiguous(vectors * signs(vectors)[..., None, :])


def taken(array: Array, order: Array) -> Array:
    """Columns (entries of the last axis) in this order."""
    xp = namespace(array)
    index = order if array.ndim == order.ndim else order[..., None, :]
    return xp.take_along_axis(
        array, xp.broadcast_to(index, (*array.shape[:-1], order.shape[-1])), axis=-1
    )


# Distances --------------------------------------------------------------------------------------


def subspace_error(basis: Array, reference: Array) -> Scalar:
    """‖(I − XXᵀ)U‖_F: the sines of the principal angles, accurate to eps."""
    return frobenius_squared(reference - basis @ (basis.mT @ reference)) ** 0.5


def basis_error(basis: Array, reference: Array) -> Scalar:
    """min ‖X Π S − U‖_F over permutations Π and signs S: distance up to order and sign.

    The matching maximises Σ|x_i·u_j|; the distance is then summed from ‖x ∓ u‖, accurate to eps.
    """
    x, u = to_host(basis), to_host(reference)
    ensemble = np.broadcast_shapes(x.shape[:-2], u.shape[:-2])
    x = np.broadcast_to(x, ensemble + x.shape[-2:])
    u = np.broadcast_to(u, ensemble + u.shape[-2:])
    errors = np.empty(ensemble)
    for member in np.ndindex(ensemble):
        overlap = x[member].T @ u[member]
        rows, columns = linear_sum_assignment(-np.abs(overlap))
        sign = np.where(overlap[rows, columns] < 0, -1.0, 1.0)
        errors[member] = np.linalg.norm(x[member][:, rows] * sign - u[member][:, columns])
    return errors[()]
