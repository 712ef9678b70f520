"""The only loop: trajectory, run, and how a run's end is read off as a Result."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol

import numpy as np

from bracketflow.core import (
    Array,
    BadObservation,
    Event,
    ObservationError,
    Probe,
    Result,
    State,
    Status,
    diagonal,
    namespace,
    select,
    whole_number,
)
from bracketflow.geometry import taken, upright
from bracketflow.oracles import as_observation
from bracketflow.sharding import agree, shards
from bracketflow.stopping import Stop, as_answer

Monitor = Callable[[State, Probe], None]
OnBad = Literal["raise", "skip"] | Callable[[BadObservation], None]
EVENTS_KEPT = 10_000  # the latest, so that a run of weeks stays small


class Method(Protocol):
    """Frozen configuration with a pure step: flows, tracker and baselines alike."""

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        ...

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """New state, and the probe of the state that went in."""
        ...


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
    if shards() is not None:
        agree(method=method, steps=int(state.steps), k=state.basis.shape[-1])
    for observation in checked_stream(stream):
        try:
            following, probe = method.step(as_observation(observation), state)
        except ObservationError as error:
            refuse(error, state)
            continue
        yield state, probe, following
        state = settle(state, following)


def _raise(error: ObservationError, state: State) -> None:
    raise error


def checked_stream(stream: Any) -> Iterable[Any]:
    """`stream`, or an error that says how to make one of it."""
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
    monitors : functions of (state, probe)
        Called at every step; one with a method `refused` is also told of bad observations.
    on_bad : "raise", "skip" or a function of a BadObservation
        What to do with a refused observation; with the last two it is counted in `Result.bad`,
        and `bad_limit` of them in a row end the run with TOO_MANY_BAD, or with NOT_SYMMETRIC when
        that is what was wrong with all of them. An observation that the method
        itself gave little weight is counted there too, and never raised.
    """
    rules, watchers = _as_tuple(stop), _as_tuple(monitors)
    bad = _BadLog(on_bad, bad_limit, [w.refused for w in watchers if hasattr(w, "refused")])
    ending = _Ending(state)
    noticed = getattr(method, "events", None)
    events: deque[Event] = deque(maxlen=EVENTS_KEPT)
    otherwise = Status.STREAM_ENDED
    try:
        for current, probe, following in _walk(method, stream, state, bad, ending.settle):
            bad.in_a_row.clear()
            for event in () if noticed is None else noticed(current, following):
                events.append(event)
                bad.note(event)
            for watch in watchers:
                watch(current, probe)
            if ending.decide(rules, current, probe, following):
                break
    except _TooManyBad as verdict:
        otherwise = verdict.status
    except KeyboardInterrupt:
        otherwise = Status.INTERRUPTED
        if ending.reached[2] is None:
            raise
    status, state, last = ending.close(otherwise)
    if last is None:
        raise _nothing_observed(bad.log)
    rotate = getattr(method, "rotates", False) and not last.is_square
    averaged = getattr(method, "eigenvalues", None)
    level = getattr(method, "background", None)
    return read_off(
        last,
        state,
        status,
        rotate=rotate,
        eigenvalues=None if averaged is None else averaged(state, last),
        background=None if level is None else level(state),
        bad=tuple(bad.log),
        events=tuple(events),
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

    def __init__(self, status: Status):
        super().__init__(status)
        self.status = status


class _BadLog:
    """Applies `on_bad` to a refused observation and keeps the log."""

    def __init__(
        self, on_bad: OnBad, limit: int, listeners: Sequence[Callable[[BadObservation], None]] = ()
    ):
        if on_bad not in ("raise", "skip") and not callable(on_bad):
            raise ValueError(f'on_bad must be "raise", "skip" or a function, got {on_bad!r}')
        self.on_bad = on_bad
        self.limit = whole_number(limit, "bad_limit", at_least=1)
        self.listeners = listeners
        self.log: list[BadObservation] = []
        self.in_a_row: list[str] = []

    def __call__(self, error: ObservationError, state: State) -> None:
        if self.on_bad == "raise":
            raise error
        self._enter(BadObservation(int(np.max(state.steps)), str(error)))
        self.in_a_row.append(error.reason)
        if len(self.in_a_row) >= self.limit:
            crooked = set(self.in_a_row) == {"not symmetric"}
            raise _TooManyBad(Status.NOT_SYMMETRIC if crooked else Status.TOO_MANY_BAD)

    def note(self, event: Event) -> None:
        """Enter an observation to which the method gave little weight."""
        if event.kind == "outlier":
            self._enter(BadObservation(event.step, event.message))

    def _enter(self, entry: BadObservation) -> None:
        self.log.append(entry)
        for tell in self.listeners:
            tell(entry)
        if callable(self.on_bad):
            self.on_bad(entry)


class _Ending:
    """Which members have stopped, why, and the state and probe each is to be reported with."""

    def __init__(self, state: State):
        # One attribute, set at once: whenever an interrupt comes, the three belong together.
        self.reached: tuple[Any, State, Probe | None] = (
            np.full(np.shape(state.steps), None, dtype=object),
            state,
            None,
        )

    def decide(self, rules: Sequence[Stop], state: State, probe: Probe, following: State) -> bool:
        """Ask the rules, in order; True when every member has its status."""
        fired: Any = as_answer(None)
        for rule in rules:
            fired = np.where(_is_none(fired), as_answer(rule(state, probe)), fired)
        status, kept, before = self.reached
        open_ = _is_none(status)
        now = open_ & ~_is_none(fired)
        status = np.where(now, fired, status)
        counted = state._replace(matvecs=state.matvecs + probe.matvecs)
        self.reached = (
            status,
            select(open_, select(now, counted, following), kept),
            probe if before is None else _select_probe(open_, probe, before),
        )
        return not _is_none(status).any()

    def settle(self, state: State, following: State) -> State:
        """The next state of the walk: frozen where stopped."""
        return self.reached[1]

    def close(self, otherwise: Status) -> tuple[Any, State, Probe | None]:
        """Status, state and probe; members still open get the status `otherwise`."""
        status, state, probe = self.reached
        return np.where(_is_none(status), as_answer(otherwise), status)[()], state, probe


def _select_probe(mask: np.ndarray, chosen: Probe, other: Probe) -> Probe:
    if mask.all():
        return chosen
    names = ("basis", "centred", "background", "rayleigh")
    basis, image, background, rayleigh = (
        select(mask, getattr(chosen, name), getattr(other, name)) for name in names
    )
    return Probe(basis, image, background, rayleigh, chosen.matvecs)


def _is_none(status: Any) -> Any:
    return np.asarray(status == np.asarray(None, dtype=object))


# Results ----------------------------------------------------------------------------------------


def read_off(
    probe: Probe,
    state: State,
    status: Any,
    *,
    rotate: bool = False,
    eigenvalues: Array | None = None,
    background: Any = None,
    bad: tuple[BadObservation, ...] = (),
    events: tuple[Event, ...] = (),
) -> Result:
    """Result of a state and its probe: ordered, signed, background added to the eigenvalues.

    `rotate` turns the columns by the eigenvectors of H (the subspace is the answer, not them).
    `eigenvalues` and `background` are the method's own, averaged ones; without them those of the
    last probe.
    """
    xp = namespace(state.basis)
    vectors = state.basis
    if rotate:
        _, turn = xp.linalg.eigh(probe.rayleigh)
        vectors, probe = vectors @ turn, _turned(probe, turn)
    values = diagonal(probe.rayleigh) + probe.background[..., None]
    if eigenvalues is not None and not rotate:
        values = eigenvalues
    order = xp.flip(xp.argsort(values, axis=-1), axis=-1)
    return Result(
        eigenvalues=taken(values, order),
        eigenvectors=upright(taken(vectors, order)),
        residuals=taken(probe.residuals, order),
        background=probe.background if background is None else background,
        status=status,
        state=state,
        probe=probe,
        bad=bad,
        events=events,
        missed_probability=0.0 * state.steps if probe.is_square else None,
    )


def _turned(probe: Probe, turn: Array) -> Probe:
    """The probe of X V from that of X, for orthogonal V = `turn`: no product is needed."""
    rayleigh = turn.mT @ probe.rayleigh @ turn
    return replace(
        probe,
        basis=probe.basis @ turn,
        image=probe.centred @ turn,
        rayleigh=0.5 * (rayleigh + rayleigh.mT),
        gram=None if probe.gram is None else turn.mT @ probe.gram @ turn,
    )
