"""Full-basis rivals that keep an average matrix or diagonalise H: k = n, O(n³) a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.baselines.power import q_factor, raw_image, upright, wide
from bracketflow.core import Array, Probe, State, identity_like, namespace
from bracketflow.geometry import initial_state
from bracketflow.observation import advance, observe


def _square_state(basis: Array, name: str) -> State:
    state = initial_state(basis)
    n, k = state.basis.shape[-2:]
    if n != k:
        raise ValueError(
            f"basis must be square for {name}, got n = {n}, k = {k}: the average needs all of C"
        )
    return state._replace(memory=0 * state.basis)


def _averaged(state: State, observed: Array, rate: float) -> Array:
    """Plain average of the first 1/rate observations, exponential after that; symmetric."""
    weight = np.maximum(rate, 1 / (np.asarray(state.steps) + 1.0))
    weight = wide(namespace(observed).asarray(weight, dtype=observed.dtype))
    observed = 0.5 * (observed + observed.mT)
    return state.memory + weight * (observed - state.memory)


@dataclass(frozen=True)
class ExponentialAverage:
    """S ← S + rate·(tf(C_t) − S), X ← eigenvectors of S by `eigh`, largest first.

    C_t = YXᵀ is known entirely when k = n, so this costs the same products as the flow.
    """

    rate: float = 0.05

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at a square orthonormal basis, S = 0."""
        return _square_state(basis, "ExponentialAverage")

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        average = _averaged(state, probe.centred @ state.basis.mT, self.rate)
        xp = namespace(average)
        _, vectors = xp.linalg.eigh(average)
        basis = upright(xp.flip(vectors, axis=-1), state.basis)
        return advance(state, probe, basis, average), probe


@dataclass(frozen=True)
class OrthogonalIteration:
    """S ← S + rate·(C_t − S), X ← qf(SX): the eigenbasis update of SOAP (Vyas et al., 2024).

    S keeps the background, as SOAP's does, so its contraction tends to 1 when σ² grows.
    """

    rate: float = 0.05

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at a square orthonormal basis, S = 0."""
        return _square_state(basis, "OrthogonalIteration")

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        average = _averaged(state, raw_image(probe) @ state.basis.mT, self.rate)
        return advance(state, probe, q_factor(average @ state.basis), average), probe


@dataclass(frozen=True)
class CyclicJacobi:
    """X ← X·J with J one cyclic sweep of Jacobi rotations on H = XᵀCX, k = n.

    Needs no product beyond the flow's, since H is known: the paper's objection that Jacobi reads
    the entries of C does not apply.
    """

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at a square orthonormal basis."""
        return _square_state(basis, "CyclicJacobi")._replace(memory=None)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation, one sweep."""
        probe = observe(operator, state)
        return advance(state, probe, state.basis @ _jacobi_sweep(probe.rayleigh)), probe


def _jacobi_sweep(rayleigh: Array) -> Array:
    """Product of the rotations that annihilate H_pq in turn, p < q."""
    xp = namespace(rayleigh)
    k = rayleigh.shape[-1]
    matrix = xp.asarray(rayleigh, copy=True)
    total = 0 * matrix + identity_like(matrix)
    for p in range(k - 1):
        for q in range(p + 1, k):
            angle = _inner_angle(xp, matrix, p, q)
            cosine, sine = xp.cos(angle)[..., None], xp.sin(angle)[..., None]
            _rotate_columns(total, p, q, cosine, sine)
            _rotate_columns(matrix, p, q, cosine, sine)
            _rotate_columns(matrix.mT, p, q, cosine, sine)
    return total


def _inner_angle(xp: Any, matrix: Array, p: int, q: int) -> Array:
    """θ, |θ| ≤ π/4, with tan 2θ = 2H_pq/(H_pp − H_qq)."""
    difference = matrix[..., p, p] - matrix[..., q, q]
    sign = xp.where(difference < 0, -xp.ones_like(difference), xp.ones_like(difference))
    return 0.5 * xp.atan2(sign * 2 * matrix[..., p, q], sign * difference)


def _rotate_columns(matrix: Array, p: int, q: int, cosine: Array, sine: Array) -> None:
    """In place on an array of our own: (a_p, a_q) ← (c a_p + s a_q, c a_q − s a_p)."""
    left = cosine * matrix[..., :, p] + sine * matrix[..., :, q]
    matrix[..., :, q] = cosine * matrix[..., :, q] - sine * matrix[..., :, p]
    matrix[..., :, p] = left
