"""Adapters: SciPy's `eigsh` and `lobpcg` as methods, several products on a static operator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh, lobpcg

from bracketflow.core import Array, Probe, State
from bracketflow.geometry import initial_state, orthonormalise, random_basis
from bracketflow.observation import advance, observe
from bracketflow.oracles import Counted, as_operator, counted


def _static(operator: Any, state: State, name: str) -> Counted:
    counting = counted(as_operator(operator))
    if not counting.static:
        raise ValueError(
            f"{name} makes several products with one observation: pass "
            "bf.as_operator(A, static=True), or compare on a fixed matrix only"
        )
    if state.basis.ndim != 2 or not isinstance(state.basis, np.ndarray):
        raise ValueError(f"{name} works on one NumPy problem at a time, got {state.basis.shape}")
    return counting


def _linear_operator(counting: Counted, state: State) -> LinearOperator:
    n = state.basis.shape[0]

    def block(columns: np.ndarray) -> Array:
        return counting @ np.ascontiguousarray(columns.reshape(n, -1))

    return LinearOperator(
        (n, n),
        matvec=lambda x: block(x).ravel(),
        matmat=block,
        dtype=state.basis.dtype,
    )


def _finish(counting: Counted, state: State, probe: Probe, vectors: Array) -> State:
    """State at the solver's vectors, largest eigenvalue first; all products counted."""
    moved = advance(state, probe, orthonormalise(np.ascontiguousarray(vectors)), state.memory)
    return moved._replace(matvecs=state.matvecs + counting.matvecs)


@dataclass(frozen=True)
class Eigsh:
    """Lanczos (ARPACK) on each observation; `warm` starts from the sum of the columns of X."""

    tol: float = 0.0
    warm: bool = True

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis, with the cold start in memory."""
        state = initial_state(basis)
        n, k = state.basis.shape[-2:]
        if k == n:
            raise ValueError(f"eigsh finds k < n vectors, got k = n = {n}: use numpy.linalg.eigh")
        return state._replace(memory=random_basis(n, 1, rng=0 if rng is None else rng))

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """All products that `tol` needs on this one observation."""
        counting = _static(operator, state, "Eigsh")
        probe = observe(counting, state)
        start = state.basis.sum(axis=1) if self.warm else state.memory[:, 0]
        k = state.basis.shape[1]
        linear = _linear_operator(counting, state)
        _, vectors = eigsh(linear, k=k, which="LA", v0=start, tol=self.tol)
        return _finish(counting, state, probe, vectors[:, ::-1]), probe


@dataclass(frozen=True)
class Lobpcg:
    """LOBPCG on each observation, at most `iterations`; `warm` starts from X."""

    iterations: int = 20
    tol: float | None = None
    warm: bool = True

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis, with the cold start in memory."""
        state = initial_state(basis)
        n, k = state.basis.shape[-2:]
        return state._replace(memory=random_basis(n, k, rng=0 if rng is None else rng))

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """All products that `tol` needs on this one observation."""
        counting = _static(operator, state, "Lobpcg")
        probe = observe(counting, state)
        start = state.basis if self.warm else state.memory
        linear = _linear_operator(counting, state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stopping at `iterations` is what was asked for
            _, vectors = lobpcg(
                linear, start.copy(), tol=self.tol, maxiter=self.iterations, largest=True
            )
        return _finish(counting, state, probe, vectors), probe
