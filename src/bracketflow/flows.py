"""The paper's two flows, exact in floating point, and the rules that choose their step size.

A step reads: observe, generator, step size, retract. Ours differ from the printed algorithms in
three ways, and only in rounding: the product is centred, Ω is exactly skew, and the retraction
returns a basis that is orthonormal by measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, Literal, Protocol

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    Scalar,
    State,
    diagonal,
    frobenius_squared,
    namespace,
)
from bracketflow.geometry import Retraction, cayley, initial_state, polar, qr
from bracketflow.givens import escaped, guarded
from bracketflow.observation import advance, observe
from bracketflow.sharding import row_count
from bracketflow.spread import bounded_spread, given_spread
from bracketflow.theory import admissible_step, descent_constant, sharp_descent_constant

# Step sizes -------------------------------------------------------------------------------------


class StepRule(Protocol):
    """η from the probe, the count of steps, the rule's own memory and ν₁ (None on SO(n))."""

    def start(self) -> Any:
        """Memory before the first step."""
        ...

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Scalar, Any]:
        """η for this step, and the memory for the next."""
        ...


def _positive(value: float, name: str) -> float:
    if not (isinstance(value, int | float | np.number) and isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


@dataclass(frozen=True)
class Constant:
    """η_t = eta."""

    eta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "eta", _positive(self.eta, "eta"))

    def start(self) -> None:
        """Nothing to remember."""

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Scalar, Any]:
        """η."""
        return self.eta, memory


@dataclass(frozen=True)
class Decay:
    """η_t = c/(t + k0), the schedule of the paper's O(1/k) theorem."""

    c: float
    k0: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "c", _positive(self.c, "c"))
        object.__setattr__(self, "k0", _positive(self.k0, "k0"))

    def start(self) -> None:
        """Nothing to remember."""

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Scalar, Any]:
        """c/(t + k0)."""
        return self.c / (steps + self.k0), memory


@dataclass(frozen=True)
class Certified:
    """η = fraction/L: a step that is proved to lower f on SO(n), to raise tr(XᵀCXN) on St(k, n).

    SO(n): from the spectrum of H alone. `bound="sharp"`: L = 12 r², r = (λ_max(H) − λ_min(H))/2,
    for every n. `bound="paper"`: the printed L_C = (4√n + 8)‖C_e‖₂², which carries a needless √n.

    St(k, n): L = 2ν₁(λ_max − λ_min), for `bf.polar` (and `bf.qr` where N = I). For k = n the spread
    is that of H; for k < n products show a part of it only. Either give an upper bound for all
    observations as `spread`; one that shows more is refused. Or leave it out: range(H) + 2‖R‖₂/√q
    of the first product is a bound that fails with probability 1e-6, if the start is from
    `bf.random_basis`; it makes the step many times shorter, and later products can only raise it.
    """

    fraction: float = 0.9
    bound: Literal["sharp", "paper"] = "sharp"
    spread: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], got {self.fraction!r}")
        if self.bound not in ("sharp", "paper"):
            raise ValueError(f'bound must be "sharp" or "paper", got {self.bound!r}')
        if self.spread is not None:
            object.__setattr__(self, "spread", _positive(self.spread, "spread"))

    def start(self) -> float:
        """No spread seen; only St(k, n) remembers one."""
        return 0.0

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Scalar, Any]:
        """fraction/L, and 0 where H is flat, or so small that its square vanishes."""
        if top_weight is not None:
            given = self.spread
            spread = bounded_spread(probe, memory) if given is None else given_spread(given, probe)
            return _quotient(self.fraction, 2 * top_weight * spread), spread
        values = probe.ritz_values
        xp = namespace(values)
        moving = probe.range**2 > _least(values)
        if self.bound == "sharp":
            constant = sharp_descent_constant(xp.where(moving, probe.range / 2, 1.0))
        else:
            norm = xp.where(moving, xp.max(abs(values), axis=-1), 1.0)
            constant = descent_constant(norm, probe.basis.shape[-2])
        return xp.where(moving, self.fraction * admissible_step(constant), 0.0), memory


@dataclass(frozen=True)
class Adaptive:
    """The longest step known to be safe, from H and R alone; nothing to set.

    SO(n): 1.8/(λ_max(H) − λ_min(H))², just inside the measured edge 2/range². St(k, n): 0.9/(2ν₁ρ)
    with ρ the running maximum of range(H) + 2‖R‖₂, because the part of the spectrum not yet seen
    can be larger than the range of H.
    """

    def start(self) -> float:
        """ρ = 0: nothing seen."""
        return 0.0

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Scalar, Any]:
        """η and the running maximum ρ."""
        if top_weight is None:
            return _quotient(1.8, probe.range**2), memory
        reach = probe.range + 2 * probe.residual_norm
        reach = namespace(probe.basis).where(reach > memory, reach, memory + 0 * reach)
        return _quotient(0.9, 2 * top_weight * reach), reach


def _quotient(numerator: float, denominator: Scalar) -> Scalar:
    """numerator/denominator, and 0 where the denominator is 0 or next to it."""
    xp = namespace(denominator)
    positive = denominator > _least(denominator)
    return xp.where(positive, numerator / xp.where(positive, denominator, 1.0), 0.0)


def _least(like: Array) -> float:
    """A number whose inverse is still far from overflow."""
    return 1e3 * float(namespace(like).finfo(like.dtype).tiny)


def _as_step_rule(step: Any) -> StepRule:
    if isinstance(step, int | float | np.number):
        return Constant(float(step))
    if hasattr(step, "size") and hasattr(step, "start"):
        return step  # type: ignore[no-any-return]
    raise TypeError(
        f"step must be a number or a rule such as bf.Adaptive() or bf.Certified(), got {step!r}"
    )


def _per_member(value: Scalar, like: Array) -> Scalar:
    """A step size made to multiply (..., k, k) blocks in the dtype of `like`."""
    return value if isinstance(value, float) else _like(value, like)[..., None, None]


def _like(value: Any, like: Array) -> Array:
    """`value` as an array of the library, dtype and device of `like`."""
    if isinstance(like, np.ndarray):
        return np.asarray(value, dtype=like.dtype)
    return namespace(like).asarray(value, dtype=like.dtype, device=like.device)


# Flows ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DoubleBracketFlow:
    """The paper's flow on SO(n): X ← X Cay(ηΩ), Ω = [H, diag H] (Algorithm 1).

    Parameters
    ----------
    step : float or step rule
        `Certified` (default), `Adaptive`, `Constant`, `Decay`; a float means `Constant`.
    retraction : function
        `cayley` (default), `neumann(order)`, `qr` or `polar`.
    givens_escape : bool
        At a degenerate block, H_ii = H_jj with b = H_ij ≠ 0, the gradient is blind to the pair.
        With this option the largest such pair is turned by π/4, which lowers f by exactly b²,
        whenever that is more than the gradient step promises (η‖Ω‖_F²).
    guard : bool
        While 10√f > min |H_ii − H_jj|, the pair with the largest b = |H_ij| is turned until
        H_ij = 0, which lowers f of this observation by b², unless the flow's own move lowers it as
        much: f falls by 2f/(n(n − 1)) at least, from every start, saddles included, whatever step
        and retraction. After that it only sees to it that f of no observation rises. It costs
        three products of k × k matrices a step, none with the operator.
    """

    step_size: StepRule
    retraction: Retraction
    givens_escape: bool
    guard: bool

    def __init__(
        self,
        step: Any = None,
        retraction: Retraction = cayley,
        givens_escape: bool = False,
        guard: bool = False,
    ):
        rule = Certified() if step is None else _as_step_rule(step)
        if isinstance(rule, Certified) and rule.spread is not None:
            raise ValueError(
                f"spread = {rule.spread!r} is for BrockettFlow: on SO(n) H shows it, leave it out"
            )
        object.__setattr__(self, "step_size", rule)
        object.__setattr__(self, "retraction", _as_retraction(retraction))
        object.__setattr__(self, "givens_escape", bool(givens_escape))
        object.__setattr__(self, "guard", bool(guard))

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at a square orthonormal basis of either determinant, which the flow keeps."""
        state = initial_state(basis, self.step_size.start())
        n, k = row_count(state.basis), state.basis.shape[-1]
        if n != k:
            raise ValueError(
                f"basis must be square for DoubleBracketFlow, got n = {n}, k = {k}: "
                "use bf.BrockettFlow for the leading k"
            )
        return state

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation: new state, and the probe of the state that went in."""
        probe = observe(operator, state)
        omega = generator(probe.rayleigh)
        eta, memory = self.step_size.size(probe, state.steps, state.memory, None)
        basis = self.retraction(state.basis, _per_member(eta, omega) * omega, None)
        if self.guard:
            basis = guarded(state.basis, basis, probe.rayleigh)
        elif self.givens_escape:
            promised = eta * frobenius_squared(omega)
            basis = escaped(state.basis, basis, probe.rayleigh, promised)
        return advance(state, probe, basis, memory), probe


def generator(rayleigh: Array) -> Array:
    """Ω = [H, diag H], entrywise (H_jj − H_ii) H_ij: exactly skew and exactly shift-free."""
    d = diagonal(rayleigh)
    return (d[..., None, :] - d[..., :, None]) * rayleigh


@dataclass(frozen=True)
class BrockettFlow:
    """The paper's flow on St(k, n): X ← retract(X, η(2RN + X[H, N])), the ascent of tr(XᵀCXN).

    Parameters
    ----------
    weights : sequence of k numbers, optional
        Diagonal of N, strictly decreasing and positive: column a tends to the a-th eigenvector.
        None is N = I, the Grassmann case: only the subspace matters, its projector follows
        Ṗ = 2[P, [P, C]].
    step : float or step rule
        `Adaptive` (default), `Certified`, `Constant`, `Decay`; a float means `Constant`.
    retraction : function
        `polar` (default), `qr`, `cayley` or `neumann(order)`.
    """

    weights: tuple[float, ...] | None
    step_size: StepRule
    retraction: Retraction

    def __init__(
        self,
        weights: Any = None,
        step: Any = None,
        retraction: Retraction = polar,
        guard: bool = False,
    ):
        if guard:
            raise ValueError(
                f"guard = {guard!r} has no meaning on St(k, n), where turning a pair inside the "
                "frame brings nothing in: bf.DoubleBracketFlow(guard=True) has it for k = n"
            )
        rule = Adaptive() if step is None else _as_step_rule(step)
        if isinstance(rule, Certified):
            _check_certified(rule, retraction, weights)
        object.__setattr__(self, "weights", _check_weights(weights))
        object.__setattr__(self, "step_size", rule)
        object.__setattr__(self, "retraction", _as_retraction(retraction))

    @property
    def rotates(self) -> bool:
        """Whether a result is read off through the eigenvectors of H (the Grassmann case)."""
        return self.weights is None

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal n × k basis, k ≤ n."""
        state = initial_state(basis, self.step_size.start())
        k = state.basis.shape[-1]
        if self.weights is not None and len(self.weights) != k:
            raise ValueError(
                f"weights has {len(self.weights)} entries for a basis of k = {k} columns: "
                "give one weight a column"
            )
        if self.rotates and isinstance(self.step_size, Certified) and k == row_count(state.basis):
            raise ValueError(
                f"with k = n = {k} and no weights tr(XᵀCX) is the same for every basis, so that "
                "step=Certified() has nothing to raise: give weights, or use bf.DoubleBracketFlow()"
            )
        return state

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation: new state, and the probe of the state that went in."""
        probe = observe(operator, state)
        top = 1.0 if self.weights is None else self.weights[0]
        eta, memory = self.step_size.size(probe, state.steps, state.memory, top)
        rotation, normal = brockett_move(probe, self.weights, eta)
        basis = self.retraction(state.basis, rotation, normal)
        return advance(state, probe, basis, memory), probe


def brockett_move(
    probe: Probe, weights: tuple[float, ...] | None, eta: Scalar
) -> tuple[Array, Array | None]:
    """(K, Z) = η([H, N], 2RN): the gradient of tr(XᵀCXN) as a tangent move; None is N = I."""
    h = probe.rayleigh
    eta = _per_member(eta, h)
    residual = None if probe.is_square else probe.residual
    if weights is None:
        return 0 * h, None if residual is None else residual * (2 * eta)
    nu = _like(weights, h)
    rotation = h * (eta * (nu[None, :] - nu[:, None]))
    return rotation, None if residual is None else residual * (2 * eta * nu)


def _check_certified(rule: Certified, retraction: Any, weights: Any) -> None:
    """Refuse what the theorem on St(k, n) does not speak of."""
    if rule.bound == "paper":
        raise ValueError('bound = "paper" is for SO(n): the paper has no constant for St(k, n)')
    # With N = I only the span counts, which QR shares with the polar factor.
    if retraction is not polar and not (retraction is qr and weights is None):
        raise ValueError(
            f"step=Certified() is proved for bf.polar, and for bf.qr without weights, got "
            f"retraction = {retraction!r}: use one of those, or step=bf.Adaptive()"
        )


def _check_weights(weights: Any) -> tuple[float, ...] | None:
    if weights is None:
        return None
    values = tuple(float(w) for w in weights)
    decreasing = all(a > b for a, b in pairwise(values))
    if not values or not decreasing or not values[-1] > 0 or not isfinite(values[0]):
        raise ValueError(
            f"weights must be strictly decreasing and positive, got {values}: "
            "for example (3, 2, 1), or None for the subspace alone"
        )
    return values


def _as_retraction(retraction: Any) -> Retraction:
    if not callable(retraction):
        raise TypeError(
            f"retraction must be a function such as bf.cayley or bf.polar, got {retraction!r}"
        )
    return retraction  # type: ignore[no-any-return]
