"""Power-like rules: a product, a step along it, a QR factorisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bracketflow.core import (
    Array,
    Probe,
    Scalar,
    State,
    diagonal,
    identity_like,
    namespace,
    off_diagonal,
)
from bracketflow.geometry import initial_state
from bracketflow.observation import advance, observe


def q_factor(matrix: Array) -> Array:
    """qf(V): Q of V = QR with positive diagonal of R."""
    xp = namespace(matrix)
    q, r = xp.linalg.qr(matrix)
    d = diagonal(r)
    return q * xp.where(d < 0, -xp.ones_like(d), xp.ones_like(d))[..., None, :]


def raw_image(probe: Probe) -> Array:
    """Y = CX, the level put back: what an uncentred method sees."""
    return probe.centred + wide(probe.background) * probe.basis


def wide(value: Scalar) -> Array:
    """A per-member number made to multiply (..., n, k) blocks."""
    return value[..., None, None]


def upright(vectors: Array, reference: Array) -> Array:
    """Columns signed so that v_iᵀr_i ≥ 0: what an eigensolver leaves open."""
    xp = namespace(vectors)
    overlap = xp.sum(vectors * reference, axis=-2)
    sign = xp.where(overlap < 0, -xp.ones_like(overlap), xp.ones_like(overlap))
    return vectors * sign[..., None, :]


@dataclass(frozen=True)
class SubspaceIteration:
    """X ← qf(CX). A background makes its contraction (λ₂ + σ²)/(λ₁ + σ²) tend to 1."""

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        return advance(state, probe, q_factor(raw_image(probe))), probe


@dataclass(frozen=True)
class QROja:
    """Oja's rule with QR: X ← qf((I + ηC)X), η = numerator/(offset + ‖XᵀCX‖₂^power).

    For k = n, ‖XᵀCX‖₂ = ‖C‖₂. The defaults are the step that the paper states, 0.1/‖C_k‖₂. What
    reproduces its table is `power=2, offset=1` for raw Oja and `power=2, trace_free=True` for
    TF-Oja. `trace_free` works on the centred product: for k = n that is tf(C)X, since
    tr(C) = tr(XᵀCX) costs no further product; without it a background shrinks η.
    """

    numerator: float = 0.1
    power: int = 1
    offset: float = 0.0
    trace_free: bool = False

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        level = 0 * probe.background if self.trace_free else probe.background
        image = probe.centred if self.trace_free else raw_image(probe)
        norm = namespace(probe.basis).max(abs(probe.ritz_values + level[..., None]), axis=-1)
        eta = self.numerator / (self.offset + norm**self.power)
        return advance(state, probe, q_factor(state.basis + wide(eta) * image)), probe


@dataclass(frozen=True)
class EuclideanGradient:
    """X ← qf(X − η · 2CX off(XᵀCX)): the Euclidean gradient of f, which a background reverses."""

    eta: float

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        gradient = 2 * raw_image(probe) @ off_diagonal(probe.rayleigh)
        return advance(state, probe, q_factor(state.basis - self.eta * gradient)), probe


@dataclass(frozen=True)
class ProjectedOja:
    """X ← qf((X + ηR)V): Oja along the residual alone, then the Ritz vectors V of H.

    Shift-free, because H and R are. η = fraction/ρ with ρ the running maximum of
    range(H) + 2‖R‖₂, as for the Stiefel flow. For k = n it is Rayleigh–Ritz at every observation.
    """

    fraction: float = 0.9

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis; nothing seen yet."""
        state = initial_state(basis)
        return state._replace(memory=0 * state.basis[..., 0, 0])

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        xp = namespace(probe.basis)
        reach = xp.maximum(probe.range + 2 * probe.residual_norm, state.memory)
        _, ritz = xp.linalg.eigh(probe.rayleigh)
        ritz = upright(xp.flip(ritz, axis=-1), identity_like(ritz))
        if probe.is_square:
            return advance(state, probe, state.basis @ ritz, reach), probe
        eta = xp.where(reach > 0, self.fraction / xp.where(reach > 0, reach, 1.0), 0.0)
        moved = q_factor((state.basis + wide(eta) * probe.residual) @ ritz)
        return advance(state, probe, moved, reach), probe


@dataclass(frozen=True)
class AdaOja:
    """AdaOja (Henriksen and Ward, 2019): X ← qf(X + CX diag(b)⁻¹), b_i² ← b_i² + ‖CXe_i‖².

    One adaptive step a column, as AdaGrad would set it; the raw product, so b grows with σ².
    """

    start: float = 1e-5

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis, b = `start`."""
        state = initial_state(basis)
        return state._replace(memory=0 * state.basis[..., 0, :] + self.start**2)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        image = raw_image(probe)
        squares = state.memory + namespace(image).sum(image**2, axis=-2)
        moved = q_factor(state.basis + image * (squares**-0.5)[..., None, :])
        return advance(state, probe, moved, squares), probe
