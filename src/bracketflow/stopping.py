"""Stop rules: functions of (state, probe) that answer with a Status, or None to go on.

For an ensemble the answer is an object array, one Status or None a member.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from bracketflow.core import Array, Probe, State, Status, epsilon, to_host, whole_number
from bracketflow.geometry import basis_error, subspace_error
from bracketflow.sharding import row_count

Stop = Callable[[State, Probe], Any]
DROWNED = 8.0  # roundings of the level: a spread below it may be nothing else


def choose(fires: Any, status: Any, otherwise: Any = None) -> Any:
    """`status` where `fires`: an object array for an ensemble, a plain value otherwise."""
    fires = to_host(fires)
    if fires.ndim == 0:
        return status if fires else otherwise
    return np.where(fires, as_answer(status), as_answer(otherwise))


def tolerance(value: float, name: str = "tol") -> float:
    """`value` as a positive float, or an error that names the argument."""
    if not (isinstance(value, int | float | np.number) and isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def max_steps(count: int) -> Stop:
    """Stop on the state that has made `count` moves."""
    count = whole_number(count, "max_steps", at_least=0)
    return lambda state, probe: choose(np.asarray(state.steps) >= count, Status.STEP_LIMIT)


def max_matvecs(count: int) -> Stop:
    """Stop before a further block product would spend more than `count` products."""
    count = whole_number(count, "max_matvecs", at_least=1)

    def rule(state: State, probe: Probe) -> Any:
        return choose(np.asarray(state.matvecs) + 2 * probe.matvecs > count, Status.STEP_LIMIT)

    return rule


def lyapunov_below(tol: float) -> Stop:
    """Stop when f = ½‖off H‖_F² + ‖R‖_F² < tol: absolute, as in the paper."""
    tol = tolerance(tol)
    return lambda state, probe: choose(probe.lyapunov < tol, Status.CONVERGED)


def residual_below(tol: float) -> Stop:
    """Stop when max r_i ≤ tol · spread, or at the precision floor max r_i ≤ 4·eps·(|s| + 4·seen).

    The spread λ_max(H) − λ_min(H) + ‖R‖₂ does not see σ², so a large background cannot fake
    convergence; the floor is its own status. Its `seen` is the largest extent of the operator seen
    so far: where the tracked eigenvalues are all alike (a null space, say) their own spread is
    rounding. For k = 1, where H has no spread and r_1 = ‖R‖₂, that is the scale, too. Where the
    spread itself may be rounding of s, all there is to reach is the floor. It is that of the
    observation at hand: where σ² has impulses, a run may end at one of them, its residuals being
    no more than the rounding of that product.

    Residuals prove eigenvectors, not that none was passed over: with one copy of a repeated
    eigenvalue in its span, a basis of k < n columns may converge to the next smaller eigenvalue.
    Where that matters, and the operator stands still, ask `decompose`.
    """
    tol = tolerance(tol)
    return lambda state, probe: residual_status(state, probe, probe.residuals, tol)


def residual_status(state: State, probe: Probe, residuals: Array, tol: float) -> Any:
    """CONVERGED, PRECISION_FLOOR or None from the largest residual."""
    worst = to_host(residuals).max(axis=-1)
    scale = to_host(probe.spread)
    if probe.basis.shape[-1] == 1:
        scale = np.maximum(scale, to_host(state.seen))
    level = np.abs(to_host(probe.background)) + 4 * to_host(state.seen)
    eps, small = epsilon(probe.basis), worst <= tol * scale
    # A spread that is no more than the rounding of the level says nothing; n = 1 has none to hear.
    heard = (scale >= DROWNED * eps * np.abs(to_host(probe.background))) | (probe.n == 1)
    at_floor = small | (worst <= 4 * eps * level)
    return choose(small & heard, Status.CONVERGED, choose(at_floor, Status.PRECISION_FLOOR))


def aligned_below(reference: Array, tol: float) -> Stop:
    """Stop within `tol` of a known U: `basis_error` for k = n, `subspace_error` for k < n."""
    tol = tolerance(tol)
    square = reference.shape[-1] == row_count(reference)
    distance = basis_error if square else subspace_error

    def rule(state: State, probe: Probe) -> Any:
        return choose(distance(state.basis, reference) <= tol, Status.CONVERGED)

    return rule


def as_answer(value: Any) -> np.ndarray:
    """A rule's answer as an object array."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)
