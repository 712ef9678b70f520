"""What we compare with, as methods of the same shape as the flows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bracketflow.core import Array, Probe, State, identity_like
from bracketflow.geometry import initial_state, qr
from bracketflow.oracles import advance, observe


@dataclass(frozen=True)
class QROja:
    """Oja's rule with QR: X ← qf((I + ηC)X), η = numerator/‖XᵀCX‖₂ of the *uncentred* product.

    This is the method that a background ruins: C + σ²I shrinks η to about numerator/σ².
    """

    numerator: float = 0.1

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        return initial_state(basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        norm = abs(probe.ritz_values + probe.background[..., None]).max(-1)
        eta = self.numerator / norm[..., None, None]
        image = probe.centred + probe.background[..., None, None] * state.basis
        basis = qr(state.basis, 0 * identity_like(probe.rayleigh), eta * image)
        return advance(state, probe, basis), probe
