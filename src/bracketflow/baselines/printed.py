"""The paper's algorithms literally as printed, uncentred, so that what they do can be shown.

`skew` replaces Ω by its skew part and `centred` removes the level from the product: with both,
only re-orthonormalisation separates them from the flows of the library. These methods do not
refuse a bad product: a run that blows up shows NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.core import Array, Probe, State, diagonal, identity_like, namespace
from bracketflow.geometry import initial_state, orthonormalise
from bracketflow.observation import advance_unchecked, centre
from bracketflow.oracles import as_operator


def _raw_probe(operator: Any, state: State) -> tuple[Probe, Array]:
    """The probe, and Y itself: one block product."""
    image = as_operator(operator) @ state.basis
    return centre(state.basis, image)[0], image


def _generator(basis: Array, image: Array, skew: bool) -> Array:
    """Ω = AD − DA with A = MᵀY as computed: skew only up to rounding."""
    rotated = basis.mT @ image
    d = diagonal(rotated)
    omega = rotated * d[..., None, :] - d[..., :, None] * rotated
    return 0.5 * (omega - omega.mT) if skew else omega


@dataclass(frozen=True)
class PrintedCayley:
    """Algorithm 1: M ← M (I − ηΩ/2)⁻¹(I + ηΩ/2), Ω = [A, diag A], A = MᵀY, Y = CM."""

    eta: float
    skew: bool = False
    centred: bool = False

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at a square orthonormal basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        with np.errstate(all="ignore"):
            probe, image = _raw_probe(operator, state)
            omega = _generator(state.basis, probe.centred if self.centred else image, self.skew)
            half = 0.5 * self.eta * omega
            identity = identity_like(half)
            factor = namespace(half).linalg.solve(identity - half, identity + half)
            return advance_unchecked(state, probe, state.basis @ factor), probe


@dataclass(frozen=True)
class PrintedNeumann:
    """Algorithm 2: M ← M S(I + X), X = ηΩ/2, S = I + X + … + X^order."""

    eta: float
    order: int = 3
    skew: bool = False
    centred: bool = False

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at a square orthonormal basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        with np.errstate(all="ignore"):
            probe, image = _raw_probe(operator, state)
            omega = _generator(state.basis, probe.centred if self.centred else image, self.skew)
            half = 0.5 * self.eta * omega
            identity = identity_like(half)
            power = total = identity
            for _ in range(self.order):
                power = power @ half
                total = total + power
            return advance_unchecked(state, probe, state.basis @ total @ (identity + half)), probe


@dataclass(frozen=True)
class PrintedStiefel:
    """The Stiefel update: M ← (M + H)(I + HᵀH)^(−1/2), H = η(2(I − MMᵀ)YN + M[A, N]).

    The factor presumes MᵀM = I to the last bit. MᵀM − I is multiplied at every step by
    1 − 2ησ²(ν_a + ν_b) and explodes once 2ησ²ν₁ > 1.
    """

    weights: tuple[float, ...]
    eta: float
    centred: bool = False
    true_polar: bool = False
    """Use X(XᵀX)^(−1/2), X = M + H, the cure at equal cost."""

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal n × k basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        with np.errstate(all="ignore"):
            probe, image = _raw_probe(operator, state)
            image = probe.centred if self.centred else image
            move = self.eta * _stiefel_gradient(state.basis, image, self.weights)
            moved = state.basis + move
            basis = orthonormalise(moved) if self.true_polar else moved @ _inverse_root(move)
            return advance_unchecked(state, probe, basis), probe


def _stiefel_gradient(basis: Array, image: Array, weights: tuple[float, ...]) -> Array:
    """2(I − MMᵀ)YN + M[A, N], A = MᵀY."""
    nu = namespace(basis).asarray(weights, dtype=basis.dtype)
    rotated = basis.mT @ image
    normal = 2 * (image - basis @ rotated) * nu
    return normal + basis @ (rotated * nu - nu[:, None] * rotated)


def _inverse_root(move: Array) -> Array:
    """(I + HᵀH)^(−1/2), NaN where H is no longer finite."""
    xp = namespace(move)
    gram = identity_like(move.mT @ move) + move.mT @ move
    finite = xp.all(xp.isfinite(gram), axis=(-2, -1))[..., None, None]
    values, vectors = xp.linalg.eigh(xp.where(finite, gram, identity_like(gram)))
    root = (vectors * (values**-0.5)[..., None, :]) @ vectors.mT
    return xp.where(finite, root, xp.nan * root)
