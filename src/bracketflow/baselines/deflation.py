"""Deflating rules, one column after the other: CCIPCA and PASTd, for operators instead of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.baselines.power import q_factor, raw_image, wide
from bracketflow.core import Array, Probe, State, diagonal, namespace
from bracketflow.geometry import initial_state
from bracketflow.observation import advance, observe


def _deflated(probe: Probe) -> Array:
    """Column i: (I − Σ_{j<i} x_j x_jᵀ) C x_i."""
    image = raw_image(probe)
    overlap = probe.basis.mT @ image
    above = namespace(overlap).triu(overlap, k=1)
    return image - probe.basis @ above


@dataclass(frozen=True)
class CCIPCA:
    """Weng, Zhang and Hwang (2003): v_i ← (1 − w)v_i + w C_i x_i, x_i = v_i/‖v_i‖.

    w = (1 + amnesia)/(t + 1 + amnesia), C_i deflated by the columns before i. The columns are kept
    orthonormal by QR, which the original leaves to deflation.
    """

    amnesia: float = 2.0

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis, v_i = 0: the first observation decides."""
        state = initial_state(basis)
        return state._replace(memory=0 * state.basis)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        weight = (1 + self.amnesia) / (np.asarray(state.steps) + 1 + self.amnesia)
        weight = wide(namespace(probe.basis).asarray(weight, dtype=probe.basis.dtype))
        vectors = state.memory + weight * (_deflated(probe) - state.memory)
        return advance(state, probe, q_factor(vectors), vectors), probe


@dataclass(frozen=True)
class PASTd:
    """Yang (1995): d_i ← βd_i + x_iᵀC_i x_i, x_i ← x_i + (C_i x_i − x_i (x_iᵀC_i x_i))/d_i.

    C_i deflated by the columns before i; the columns are re-orthonormalised by QR at each step.
    """

    forgetting: float = 0.97

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis, d = 1."""
        state = initial_state(basis)
        return state._replace(memory=0 * state.basis[..., 0, :] + 1.0)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation."""
        probe = observe(operator, state)
        image = _deflated(probe)
        energy = diagonal(probe.rayleigh) + probe.background[..., None]
        power = self.forgetting * state.memory + abs(energy)
        gain = (image - state.basis * energy[..., None, :]) / power[..., None, :]
        return advance(state, probe, q_factor(state.basis + gain), power), probe
