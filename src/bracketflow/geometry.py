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
from bracketflow.sharding import Shards, agree, over_rows, row_count, shards

Retraction = Callable[[Array, Array, Array | None], Array]


# Retractions ------------------------------------------------------------------------------------


def cayley(basis: Array, rotation: Array, normal: Array | None = None) -> Array:
    """Exact Cayley step: X Cay(K) for k = n, (I − Ω/2)⁻¹(I + Ω/2) X with ΩX = XK + Z otherwise.

    Written as X + X (I − K/2)⁻¹K, so that a small move makes a small rounding error. The basis is
    re-orthonormalised when rounding is measured to have accumulated.
    """
    xp = namespace(basis)
    gram = _move_gram(basis, normal)
    generator = _generator(rotation, gram)
    k = basis.shape[-1]
    identity = identity_like(generator)
    turn = xp.linalg.solve(identity - 0.5 * generator, generator[..., :, :k])
    return _combine(basis, normal, turn, gram)


@dataclass(frozen=True)
class Neumann:
    """Cayley step with (I − K/2)⁻¹ replaced by I + K/2 + … + (K/2)^order. See `neumann`."""

    order: int

    def __call__(self, basis: Array, rotation: Array, normal: Array | None = None) -> Array:
        """X + X (2V + 2V² + … + 2V^order + V^(order+1)), V = K/2."""
        gram = _move_gram(basis, normal)
        half = 0.5 * _generator(rotation, gram)
        power = half[..., :, : basis.shape[-1]]
        increment = 2 * power
        with np.errstate(over="ignore", invalid="ignore"):  # a move that overflows is refused later
            for _ in range(self.order - 1):
                power = half @ power
                increment = increment + 2 * power
            return _combine(basis, normal, increment + half @ power, gram)


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
    return orthonormal_columns(_tangent_sum(basis, rotation, normal))


def orthonormal_columns(matrix: Array) -> Array:
    """Q of V = QR with a positive diagonal of R."""
    xp = namespace(matrix)
    q, r = triangular(matrix)
    sign = xp.where(diagonal(r) < 0, -xp.ones_like(diagonal(r)), xp.ones_like(diagonal(r)))
    return q * sign[..., None, :]


def triangular(matrix: Array) -> tuple[Array, Array]:
    """Q and R of V = QR. Where rows are spread, QR of all processes' R in one message."""
    xp = namespace(matrix)
    q, r = xp.linalg.qr(matrix)
    spread = shards()
    if spread is None:
        return q, r
    k, height = matrix.shape[-1], r.shape[-2]  # a process with less than k rows has a lower R
    small = xp.zeros((spread.count, k, k), dtype=r.dtype, device=r.device)
    small[spread.rank, :height] = r
    turns, r = xp.linalg.qr(xp.reshape(over_rows(small), (spread.count * k, k)))
    return q @ turns[spread.rank * k :][:height], r


def polar(basis: Array, rotation: Array, normal: Array | None = None) -> Array:
    """True polar factor V (VᵀV)^(-1/2) of V = X + XK + Z (second-order retraction).

    The paper prints (M + H)(I + HᵀH)^(-1/2), which presumes MᵀM = I to the last bit and amplifies
    its rounding by σ² until the run fails; the factor of the measured VᵀV corrects it instead.
    """
    return orthonormalise(_tangent_sum(basis, rotation, normal))


def orthonormalise(matrix: Array, gram: Array | None = None) -> Array:
    """Nearest matrix with orthonormal columns: the polar factor V (VᵀV)^(-1/2)."""
    xp = namespace(matrix)
    gram = over_rows(matrix.mT @ matrix) if gram is None else gram
    values, vectors = xp.linalg.eigh(gram)
    steep = ~(values[..., -1] <= 64 * values[..., 0])
    if any_member(steep):
        # The Gram matrix squares the condition number; the SVD does not.
        u, vt = _singular_vectors(matrix)
        values = xp.where(steep[..., None], xp.ones_like(values), values)
    factor = matrix @ ((vectors * (values**-0.5)[..., None, :]) @ vectors.mT)
    return xp.where(steep[..., None, None], u @ vt, factor) if any_member(steep) else factor


def _singular_vectors(matrix: Array) -> tuple[Array, Array]:
    """U and Vᵀ of the thin SVD."""
    xp = namespace(matrix)
    if shards() is None:
        u, _, vt = xp.linalg.svd(matrix, full_matrices=False)
        return u, vt
    q, r = triangular(matrix)
    u, _, vt = xp.linalg.svd(r)
    return q @ u, vt


def _tangent_sum(basis: Array, rotation: Array, normal: Array | None) -> Array:
    moved = basis + basis @ rotation
    return moved if normal is None else moved + normal


def _move_gram(basis: Array, normal: Array | None) -> Array | None:
    """ZᵀZ, k × k; of spread rows [X, Z]ᵀ[X, Z], from which the next basis is measured, too."""
    if normal is None or shards() is None:
        return None if normal is None else normal.mT @ normal
    both = namespace(basis).concat([basis, normal], axis=-1)
    return over_rows(both.mT @ both)


def _generator(rotation: Array, gram: Array | None) -> Array:
    """Ω written in the columns [X, Z]: [[K, −ZᵀZ], [I, 0]], from ΩX = XK + Z, ΩZ = −X ZᵀZ."""
    if gram is None:
        return rotation
    xp = namespace(rotation)
    k = rotation.shape[-1]
    gram = gram[..., -k:, -k:]
    identity = xp.broadcast_to(identity_like(rotation), rotation.shape)
    upper = xp.concat([rotation, -gram], axis=-1)
    lower = xp.concat([identity, xp.zeros_like(rotation)], axis=-1)
    return xp.concat([upper, lower], axis=-2)


def _combine(basis: Array, normal: Array | None, coefficients: Array, gram: Array | None) -> Array:
    """X + [X, Z] · coefficients, re-orthonormalised where its measured defect asks for it."""
    k = basis.shape[-1]
    moved = basis + basis @ coefficients[..., :k, :]
    if normal is not None:
        moved = moved + normal @ coefficients[..., k:, :]
    if gram is None or shards() is None:
        gram = moved.mT @ moved
    else:  # all but the last rounding, which the next step finds
        turn = coefficients + identity_like(gram)[:, :k]
        gram = turn.mT @ gram @ turn
    return _polished(moved, gram, tolerance=(16 + 2 * k) * epsilon(basis))


def _polished(matrix: Array, gram: Array, *, tolerance: float) -> Array:
    """Polar factor where ‖XᵀX − I‖_F exceeds `tolerance`; NaN where it is beyond measure."""
    xp = namespace(matrix)
    defect = frobenius_squared(gram - identity_like(matrix))
    drifted = ~(defect <= tolerance**2)
    if not any_member(drifted):
        return matrix
    if not every_member(defect < inf):
        return xp.where((defect < inf)[..., None, None], matrix, xp.nan)
    return xp.where(drifted[..., None, None], orthonormalise(matrix, gram), matrix)


def turned(basis: Array, rotation: Array) -> Array:
    """X Q for an orthogonal Q, k × k, re-orthonormalised like a retraction's result."""
    return _combine(basis, None, rotation - identity_like(rotation), None)


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
    gaussian = _gaussian(np.random.default_rng(rng), (*ensemble, n, k), shards())
    return _cast(contiguous(orthonormal_columns(gaussian)), like)


def random_columns(
    n: int, k: int, *, rng: Any, ensemble: tuple[int, ...] = (), like: Array | None = None
) -> Array:
    """Standard normal numbers (*ensemble, n, k): of `random_basis` all but its QR."""
    return _cast(_gaussian(np.random.default_rng(rng), (*ensemble, n, k), shards()), like)


def _cast(array: np.ndarray, like: Array | None) -> Array:
    """`array` in the library, dtype and device of `like`."""
    if like is None:
        return array
    if isinstance(like, np.ndarray):
        return array.astype(like.dtype)
    return namespace(like).asarray(array, dtype=like.dtype, device=like.device)


def _gaussian(
    rng: np.random.Generator, shape: tuple[int, ...], spread: Shards | None, block: int = 1 << 14
) -> np.ndarray:
    """Standard normal numbers; of spread rows this process's part of what one would draw alone."""
    if spread is None:
        return rng.standard_normal(shape)
    n, k = _single(shape)
    spread.agree({"n": n, "k": k})
    if n != spread.n:
        raise ValueError(f"n must be {spread.n}, the rows of the sharded basis, got {n}")
    first, last = spread.own.start, spread.own.stop
    rows = np.empty((last - first, k))
    for begin in range(0, last, block):
        drawn = rng.standard_normal((min(block, n - begin), k))
        low, high = max(begin, first), min(begin + block, last)
        if low < high:
            rows[low - first : high - first] = drawn[low - begin : high - begin]
    return rows


def _single(shape: tuple[int, ...]) -> tuple[int, int]:
    """(n, k), for rows that are spread: an ensemble is refused."""
    if len(shape) != 2:
        raise ValueError(
            f"a sharded basis must be (n, k), got shape {tuple(shape)}: run the members of an "
            "ensemble one by one, or give each rank members of its own"
        )
    return shape[0], shape[1]


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
    n, k = row_count(basis), shape[-1]
    agree(k=k, dtype=str(basis.dtype))
    _check_part(shape, n, k)
    if not 1 <= k <= n:
        raise ValueError(f"basis has k = {k} columns of length n = {n}: k must be from 1 to n")
    gram = over_rows(basis.mT @ basis)
    defect = to_host(frobenius_squared(gram - identity_like(basis))) ** 0.5
    if not np.all(defect <= epsilon(basis) ** 0.5):
        raise ValueError(
            f"basis is not orthonormal, ‖XᵀX − I‖_F = {np.max(defect):.2g}: "
            "take the Q factor of numpy.linalg.qr(basis) or bf.random_basis(n, k)"
        )
    if isinstance(basis, np.ndarray):
        return np.array(basis, order="C")
    return contiguous(xp.asarray(basis, copy=True))


def _check_part(shape: tuple[int, ...], n: int, k: int) -> None:
    """A ValueError where rows are spread and these are not this process's part."""
    spread = shards()
    if spread is None:
        return
    if k == n:
        raise ValueError(f"a sharded basis must have k < n columns, got k = n = {n}: ask for less")
    rows, held = _single(shape)[0], spread.own.stop - spread.own.start
    if rows != held:
        raise ValueError(
            f"basis has {rows} rows, but rank {spread.rank} of {spread.count} holds {held} of "
            f"{spread.n}: bf.random_basis({spread.n}, k) draws them, or cut rows "
            f"{spread.own.start} to {spread.own.stop}"
        )


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
    top = _largest_of_all(xp.take_along_axis(vectors, largest, axis=-2)[..., 0, :])
    return xp.where(top < 0, -xp.ones_like(top), xp.ones_like(top))


def _largest_of_all(top: Array) -> Array:
    """Of each process's candidates the largest in size; on a tie the first."""
    spread = shards()
    if spread is None:
        return top
    xp = namespace(top)
    every = xp.zeros((spread.count, top.shape[-1]), dtype=top.dtype, device=top.device)
    every[spread.rank] = top
    every = over_rows(every)
    return xp.take_along_axis(every, xp.argmax(abs(every), axis=0)[None, :], axis=0)[0]


def upright(vectors: Array) -> Array:
    """Columns with their largest entry positive."""
    return contiguous(vectors * signs(vectors)[..., None, :])


def taken(array: Array, order: Array) -> Array:
    """Columns (entries of the last axis) in this order."""
    if order.ndim == 1:
        return array[..., order]
    xp = namespace(array)
    index = order if array.ndim == order.ndim else order[..., None, :]
    return xp.take_along_axis(
        array, xp.broadcast_to(index, (*array.shape[:-1], order.shape[-1])), axis=-1
    )


# Distances --------------------------------------------------------------------------------------


def subspace_error(basis: Array, reference: Array) -> Scalar:
    """‖(I − XXᵀ)U‖_F: the sines of the principal angles, accurate to eps."""
    inside = over_rows(basis.mT @ reference)
    return over_rows(frobenius_squared(reference - basis @ inside)) ** 0.5


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
