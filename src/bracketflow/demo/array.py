"""A uniform linear array in real numbers: the unitary transform, and directions from a subspace.

Seen from its middle, a half-wavelength array answers a plane wave from angle θ with
a_m = exp(iμ(m − (n−1)/2)), μ = π sin θ, so that a equals its own conjugate read backwards. The
unitary Q below makes all such vectors real: Qᴴa ∈ ℝⁿ.
"""

from __future__ import annotations

import numpy as np


def unitary(n: int) -> np.ndarray:
    """Q, n × n: columns that equal their own conjugates read backwards."""
    identity = np.eye(n // 2)
    mirror = identity[::-1]
    if n % 2 == 0:
        return np.block([[identity, 1j * identity], [mirror, -1j * mirror]]) / 2**0.5
    zero, middle = np.zeros((n // 2, 1)), np.full((1, 1), 2**0.5)
    rows = [[identity, zero, 1j * identity], [zero.T, middle, zero.T], [mirror, zero, -1j * mirror]]
    return np.block(rows) / 2**0.5


def steering(n: int, angles: np.ndarray) -> np.ndarray:
    """a(θ), one column a direction, (..., n, k) for angles (..., k) in degrees."""
    sensors = np.arange(n) - (n - 1) / 2
    phases = np.pi * sensors[:, None] * np.sin(np.radians(angles))[..., None, :]
    return np.asarray(np.exp(1j * phases))


def real_steering(n: int, angles: np.ndarray) -> np.ndarray:
    """Qᴴa(θ), which is real."""
    return np.asarray((unitary(n).conj().T @ steering(n, angles)).real)


def real_rows(snapshots: np.ndarray) -> np.ndarray:
    """Rows √2 Re y and √2 Im y with y = Qᴴz, (2b, n), for complex snapshots z in rows (b, n).

    Their Gram matrix BᵀB/2b is Re(QᴴRQ) with R = Σzzᴴ/b. That is QᴴR̃Q with the forward–backward
    average R̃ = (R + JR*J)/2, J the reversal of the sensors.
    """
    transformed = snapshots @ unitary(snapshots.shape[-1]).conj()
    return np.concatenate([transformed.real, transformed.imag]) * 2**0.5


def directions(bases: np.ndarray) -> np.ndarray:
    """Angles in degrees, ascending, from bases (..., n, k) of the real signal subspace.

    Unitary ESPRIT: K₁XΥ = K₂X in the least-squares sense, with K₁ + iK₂ the shift by one sensor in
    real coordinates; the eigenvalues of Υ are tan(μ/2).
    """
    n = bases.shape[-2]
    shift = unitary(n - 1).conj().T @ unitary(n)[1:]
    invariance = np.linalg.pinv(shift.real @ bases) @ (shift.imag @ bases)
    tangents = np.linalg.eigvals(invariance).real
    return np.sort(np.degrees(np.arcsin(2 / np.pi * np.arctan(tangents))), axis=-1)
