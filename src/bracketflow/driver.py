"""The only loop: trajectory, run, stop rules, and the one-call functions decompose and track."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, Literal, Protocol

import numpy as np

from bracketflow.core import (
    Array,
    BadObservation,
    ObservationError,
    Probe,
    Result,
    State,
    Status,
    diagonal,
    epsilon,
    namespace,
    to_host,
    whole_number,
)
from bracketflow.flows import Adaptive, BrockettFlow, DoubleBracketFlow
from bracketflow.geometry import basis_error, random_basis, subspace_error
from bracketflow.oracles import Operator, as_operator, observe

Which = Literal["largest", "smallest"]
OnBad = Literal["raise", "skip"] | Callable[[BadObservation], None]


class Method(Protocol):
    """Frozen configuration with a pure step: flows, tracker and baselines alike."""

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        ...

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """New state, and the probe of the state that went in."""
        ...


Stop = Callable[[State, Probe], Any]
"""Status or None for a single problem; an object array of them for an ensemble."""
Monitor = Callable[[State, Probe], None]


# Stop rules -------------------------------------------------------------------------------------


def _where(fires: Any, status: Status, otherwise: Any = None) -> Any:
    """`status` where `fires`: an object array for an ensemble, a plain value otherwise."""
    fires = to_host(fires)
    if fires.ndim == 0:
        return status if fires else otherwise
    return np.where(fires, _answer(status), _answer(otherwise))


def _tolerance(value: float, name: str = "tol") -> float:
    if not (isinstance(value, int | float | np.number) and isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a positive finite number, got {value!r}")
    return float(value)


def max_steps(count: int) -> Stop:
    """Stop on the state that has made `count` moves."""
    count = whole_number(count, "max_steps", at_least=0)
    return lambda state, probe: _where(np.asarray(state.steps) >= count, Status.STEP_LIMIT)


def max_matvecs(count: int) -> Stop:
    """Stop before a further block product would spend more than `count` products."""
    count = whole_number(count, "max_matvecs", at_least=1)

    def rule(state: State, probe: Probe) -> Any:
        return _where(np.asarray(state.matvecs) + 2 * probe.matvecs > count, Status.STEP_LIMIT)

    return rule


def lyapunov_below(tol: float) -> Stop:
    """Stop when f = ½‖off H‖_F² + ‖R‖_F² < tol: absolute, as in the paper."""
    tol = _tolerance(tol)
    return lambda state, probe: _where(probe.lyapunov < tol, Status.CONVERGED)


def residual_below(tol: float) -> Stop:
    """Stop when max r_i ≤ tol · spread, or at the precision floor max r_i ≤ 4·eps·|s|.

    The spread λ_max(H) − λ_min(H) + ‖R‖₂ does not see σ², so a large background cannot fake
    convergence; the floor is its own status. For k = 1, where H has no spread and r_1 = ‖R‖₂, the
    scale is the largest ‖R‖ seen so far.
    """
    tol = _tolerance(tol)
    return lambda state, probe: _residual_status(state, probe, probe.residuals, tol)


def _residual_status(state: State, probe: Probe, residuals: Array, tol: float) -> Any:
    """CONVERGED, PRECISION_FLOOR or None from the largest residual."""
    worst = to_host(residuals).max(axis=-1)
    scale = to_host(probe.spread)
    if probe.basis.shape[-1] == 1:
        scale = np.maximum(scale, to_host(state.seen))
    at_floor = worst <= 4 * epsilon(probe.basis) * np.abs(to_host(probe.background))
    return _where(worst <= tol * scale, Status.CONVERGED, _where(at_floor, Status.PRECISION_FLOOR))


def aligned_below(reference: Array, tol: float) -> Stop:
    """Stop within `tol` of a known U: `basis_error` for k = n, `subspace_error` for k < n."""
    tol = _tolerance(tol)
    square = reference.shape[-1] == reference.shape[-2]
    distance = basis_error if square else subspace_error

    def rule(state: State, probe: Probe) -> Any:
        return _where(distance(state.basis, reference) <= tol, Status.CONVERGED)

    return rule


# The loop ---------------------------------------------------------------------------------------


def trajectory(
    method: Method, stream: Iterable[Any], state: State
) -> Iterator[tuple[State, Probe]]:
    """Yield (state_t, probe_t) of the same t: the basis and what the observation says of it."""
    for current, probe, _ in _walk(method, stream, state, _raise, lambda old, new: new):
        yield current, probe


def _walk(
    method: Method,
    stream: Iterable[Any],
    state: State,
    refuse: Callable[[ObservationError, State], None],
    settle: Callable[[State, State], State],
) -> Iterator[tuple[State, Probe, State]]:
    """Yield (state_t, probe_t, state_{t+1}); `settle` may hold back what becomes state_{t+1}."""
    for operator in _checked_stream(stream):
        try:
            following, probe = method.step(operator, state)
        except ObservationError as error:
            refuse(error, state)
            continue
        yield state, probe, following
        state = settle(state, following)


def _raise(error: ObservationError, state: State) -> None:
    raise error


def _checked_stream(stream: Any) -> Iterable[Any]:
    if getattr(stream, "shape", None) is not None:
        raise ValueError(
            f"stream must be an iterable of operators, got a bare array of shape "
            f"{tuple(stream.shape)}: for a fixed matrix pass itertools.repeat(A), "
            "for rows of data (bf.gram(batch) for batch in batches)"
        )
    if not isinstance(stream, Iterable):
        raise TypeError(
            f"stream must be an iterable of operators, got {type(stream).__name__}: "
            "for a fixed operator pass itertools.repeat(A)"
        )
    return stream


def run(
    method: Method,
    stream: Iterable[Any],
    state: State,
    *,
    stop: Sequence[Stop] | Stop = (),
    monitors: Sequence[Monitor] | Monitor = (),
    on_bad: OnBad = "raise",
    bad_limit: int = 100,
) -> Result:
    """Drive `method` along `stream` until a rule in `stop` fires or the stream ends.

    When a rule fires on probe_t, the result speaks of state_t: the move is discarded, its product
    counted. Members of an ensemble stop one by one and are frozen; the run ends with the last.

    Parameters
    ----------
    on_bad : "raise", "skip" or a function of a BadObservation
        What to do with a refused observation; with the last two it is counted in `Result.bad`,
        and `bad_limit` of them in a row end the run with TOO_MANY_BAD.
    """
    rules, watchers = _as_tuple(stop), _as_tuple(monitors)
    bad = _BadLog(on_bad, bad_limit)
    ending = _Ending(state)
    try:
        for current, probe, following in _walk(method, stream, state, bad, ending.settle):
            bad.in_a_row = 0
            for watch in watchers:
                watch(current, probe)
            if ending.decide(rules, current, probe, following):
                break
    except _TooManyBad:
        ending.close(Status.TOO_MANY_BAD)
    except KeyboardInterrupt:
        ending.close(Status.INTERRUPTED)
        if ending.probe is None:
            raise
    if ending.probe is None:
        raise _nothing_observed(bad.log)
    ending.close(Status.STREAM_ENDED)
    rotate = getattr(method, "rotates", False) and not ending.probe.is_square
    return read_off(
        ending.probe, ending.state, ending.status[()], rotate=rotate, bad=tuple(bad.log)
    )


def _nothing_observed(bad: Sequence[BadObservation]) -> ValueError:
    if not bad:
        return ValueError("stream is empty: nothing was observed, pass at least one operator")
    return ValueError(
        f"stream held no usable observation, all {len(bad)} were refused, the last one because: "
        f"{bad[-1].reason}"
    )


def _as_tuple(parts: Any) -> tuple[Any, ...]:
    return (parts,) if callable(parts) else tuple(parts)


class _TooManyBad(Exception):
    """Raised inside the walk to end it."""


class _BadLog:
    """Applies `on_bad` to a refused observation and keeps the log."""

    def __init__(self, on_bad: OnBad, limit: int):
        if on_bad not in ("raise", "skip") and not callable(on_bad):
            raise ValueError(f'on_bad must be "raise", "skip" or a function, got {on_bad!r}')
        self.on_bad = on_bad
        self.limit = whole_number(limit, "bad_limit", at_least=1)
        self.log: list[BadObservation] = []
        self.in_a_row = 0

    def __call__(self, error: ObservationError, state: State) -> None:
        if self.on_bad == "raise":
            raise error
        entry = BadObservation(int(np.max(state.steps)), str(error))
        self.log.append(entry)
        if callable(self.on_bad):
            self.on_bad(entry)
        self.in_a_row += 1
        if self.in_a_row >= self.limit:
            raise _TooManyBad


class _Ending:
    """Which members have stopped, why, and the state and probe each is to be reported with."""

    def __init__(self, state: State):
        self.state = state
        self.probe: Probe | None = None
        self.status: Any = np.full(np.shape(state.steps), None, dtype=object)

    def decide(self, rules: Sequence[Stop], state: State, probe: Probe, following: State) -> bool:
        """Ask the rules, in order; True when every member has its status."""
        fired: Any = _answer(None)
        for rule in rules:
            fired = np.where(_is_none(fired), _answer(rule(state, probe)), fired)
        open_ = _is_none(self.status)
        now = open_ & ~_is_none(fired)
        self.status = np.where(now, fired, self.status)
        counted = state._replace(matvecs=state.matvecs + probe.matvecs)
        self.state = select(open_, select(now, counted, following), self.state)
        self.probe = probe if self.probe is None else _select_probe(open_, probe, self.probe)
        return not _is_none(self.status).any()

    def settle(self, state: State, following: State) -> State:
        """The next state of the walk: frozen where stopped."""
        return self.state

    def close(self, status: Status) -> None:
        """Give every member still open this status."""
        self.status = np.where(_is_none(self.status), _answer(status), self.status)


def _select_probe(mask: np.ndarray, chosen: Probe, other: Probe) -> Probe:
    if mask.all():
        return chosen
    names = ("basis", "centred", "background", "rayleigh")
    parts = {name: select(mask, getattr(chosen, name), getattr(other, name)) for name in names}
    return Probe(**parts, matvecs=chosen.matvecs)


def _is_none(status: Any) -> Any:
    return np.asarray(status == np.asarray(None, dtype=object))


def _answer(value: Any) -> np.ndarray:
    """A rule's answer as an object array."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype=object)


def select(mask: np.ndarray, chosen: Any, other: Any) -> Any:
    """Member by member `chosen` where `mask` holds, `other` elsewhere, through nested tuples."""
    if mask.all():
        return chosen
    if not mask.any():
        return other
    if isinstance(chosen, tuple):
        parts = (select(mask, a, b) for a, b in zip(chosen, other, strict=True))
        return type(chosen)(*parts) if hasattr(chosen, "_fields") else tuple(parts)
    if chosen is None:
        return None
    return _select_array(mask, chosen, other)


def _select_array(mask: np.ndarray, chosen: Any, other: Any) -> Any:
    array = next((a for a in (chosen, other) if hasattr(a, "shape")), np.asarray(chosen))
    xp = namespace(array) if not isinstance(array, np.generic) else np
    rank = max(np.ndim(chosen), np.ndim(other))
    wide = mask.reshape(mask.shape + (1,) * (rank - mask.ndim))
    if xp is np:
        return np.where(wide, chosen, other)
    return xp.where(xp.asarray(wide, device=array.device), chosen, other)


# Results ----------------------------------------------------------------------------------------


def read_off(
    probe: Probe,
    state: State,
    status: Any,
    *,
    rotate: bool = False,
    bad: tuple[BadObservation, ...] = (),
) -> Result:
    """Result of a state and its probe: ordered, signed, background added to the eigenvalues.

    `rotate` turns the columns by the eigenvectors of H (the subspace is the answer, not them).
    """
    xp = namespace(state.basis)
    vectors, values, residuals = state.basis, diagonal(probe.rayleigh), probe.residuals
    if rotate:
        values, turn = xp.linalg.eigh(probe.rayleigh)
        vectors, residuals = vectors @ turn, _column_norms(probe.residual @ turn)
    order = xp.flip(xp.argsort(values, axis=-1), axis=-1)
    return Result(
        eigenvalues=_take(xp, values, order) + probe.background[..., None],
        eigenvectors=_signed(_take(xp, vectors, order[..., None, :])),
        residuals=_take(xp, residuals, order),
        background=probe.background,
        status=status,
        state=state,
        bad=bad,
    )


def _column_norms(matrix: Array) -> Array:
    return namespace(matrix).linalg.vector_norm(matrix, axis=-2)


def _take(xp: Any, array: Array, order: Array) -> Array:
    return xp.take_along_axis(
        array, xp.broadcast_to(order, (*array.shape[:-1], order.shape[-1])), axis=-1
    )


def _signed(vectors: Array) -> Array:
    """Columns with their largest entry positive."""
    xp = namespace(vectors)
    largest = xp.argmax(abs(vectors), axis=-2)[..., None, :]
    top = xp.take_along_axis(vectors, largest, axis=-2)
    return vectors * xp.where(top < 0, -xp.ones_like(top), xp.ones_like(top))


# One call ---------------------------------------------------------------------------------------


def decompose(
    A: Any,
    k: int | None = None,
    *,
    which: Which = "largest",
    tol: float = 1e-8,
    max_steps: int = 1000,
    rng: Any = None,
) -> Result:
    """Eigenvectors of a fixed operator: all of them, or the `k` largest or smallest.

    Stops when max r_i ≤ tol · spread (see `residual_below`) or after `max_steps`.
    """
    operator = _oriented(as_operator(A, static=True), which)
    if operator.n is None:
        raise ValueError("A is a callable of unknown size: pass bf.as_operator(A, n)")
    start = random_basis(operator.n, k, rng=rng, ensemble=_ensemble_of(A), like=_like(A))
    method = _default_method(start)
    stop = [_ritz_residual_below(method, tol), _steps_rule(max_steps)]
    result = run(method, itertools.repeat(operator), method.init(start), stop=stop)
    return _reoriented(result, which)


_steps_rule = max_steps  # the keyword of `decompose` hides the rule of the same name


def _ritz_residual_below(method: Any, tol: float) -> Stop:
    """`residual_below`, but for the columns as `decompose` returns them: turned by eigh(H)."""
    if not getattr(method, "rotates", False):
        return residual_below(tol)
    tol = _tolerance(tol)

    def rule(state: State, probe: Probe) -> Any:
        _, turn = namespace(probe.rayleigh).linalg.eigh(probe.rayleigh)
        return _residual_status(state, probe, _column_norms(probe.residual @ turn), tol)

    return rule


def track(
    stream: Iterable[Any],
    k: int | None = None,
    *,
    which: Which = "largest",
    method: Method | None = None,
    stop: Sequence[Stop] | Stop = (),
    monitors: Sequence[Monitor] | Monitor = (),
    on_bad: OnBad = "raise",
    rng: Any = None,
) -> Result:
    """Follow the eigenvectors of a stream of operators: all of them, or the leading `k`.

    The first operator gives the size, so it must know it (a bare callable does not: wrap it in
    `bf.as_operator(f, n)`).
    """
    observations = iter(_checked_stream(stream))
    try:
        first = next(observations)
    except StopIteration:
        raise ValueError("stream is empty: nothing was observed") from None
    operator = as_operator(first)
    if operator.n is None:
        raise ValueError(
            "the stream's first operator is a callable of unknown size: wrap it, "
            "bf.as_operator(f, n)"
        )
    start = random_basis(operator.n, k, rng=rng, ensemble=_ensemble_of(first), like=_like(first))
    method = _default_method(start) if method is None else method
    oriented = (_oriented(x, which) for x in itertools.chain([first], observations))
    result = run(method, oriented, method.init(start), stop=stop, monitors=monitors, on_bad=on_bad)
    return _reoriented(result, which)


def _default_method(basis: Array) -> Any:
    n, k = basis.shape[-2:]
    return DoubleBracketFlow(Adaptive(), givens_escape=True) if k == n else BrockettFlow()


def _ensemble_of(x: Any) -> tuple[int, ...]:
    return tuple(getattr(x, "shape", ()))[:-2]


def _like(x: Any) -> Array | None:
    """The array that decides library, dtype and device of the start, if `x` is one."""
    if isinstance(x, Operator) or not hasattr(x, "dtype") or not hasattr(x, "mT"):
        return None
    if isinstance(x, np.ndarray):
        return x if x.dtype in (np.float32, np.float64) else None
    return x


def _oriented(x: Any, which: str) -> Operator:
    """`x`, or −x when the smallest eigenvalues are wanted."""
    if which not in ("largest", "smallest"):
        raise ValueError(f'which must be "largest" or "smallest", got {which!r}')
    inner = as_operator(x)
    if which == "largest":
        return inner
    return Operator(
        inner.n,
        lambda X: -(inner @ X),
        weight=inner.weight,
        static=inner.static,
        stacks=inner._stacks,
    )


def _reoriented(result: Result, which: str) -> Result:
    """The result for −C turned back into one for C, still in descending order."""
    if which == "largest":
        return result
    xp = namespace(result.eigenvalues)
    return Result(
        eigenvalues=-xp.flip(result.eigenvalues, axis=-1),
        eigenvectors=xp.flip(result.eigenvectors, axis=-1),
        residuals=xp.flip(result.residuals, axis=-1),
        background=-result.background,
        status=result.status,
        state=result.state,
        bad=result.bad,
    )


def lyapunov(basis: Array, A: Any) -> Any:
    """f = ½‖off H‖_F² + ‖R‖_F² of `basis` on the operator `A`: one block product."""
    return observe(A, State(basis)).lyapunov
