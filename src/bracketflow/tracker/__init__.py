"""EigenTracker: eigenvectors of a stream, at the statistical limit, with nothing to tune."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.core import (
    Array,
    Event,
    Probe,
    State,
    any_member,
    diagonal,
    namespace,
    select,
    to_host,
    whole_number,
)
from bracketflow.geometry import initial_state
from bracketflow.sharding import row_count
from bracketflow.tracker import full, leading
from bracketflow.tracker.events import alarm_of, events
from bracketflow.tracker.full import newton_angles
from bracketflow.tracker.reading import Reading, eigenvalues, ranking, read, values_changed

__all__ = ["EigenTracker", "Reading", "newton_angles"]


@dataclass(frozen=True)
class EigenTracker:
    """All eigenvectors, or the leading k, of C_t = C_sig + σ_t² I + E_t.

    Averages as the mean of all observations would while the signal stands still, forgets as fast
    as it moves, starts anew when it jumps. Columns are ordered once, at the first observation,
    and keep their place and sign from then on.

    Parameters
    ----------
    k : int, optional
        Columns of the basis it will be given; None takes them from the basis.
    forget : float, optional
        Fixed share of the memory lost with every observation, 0 ≤ forget < 1, whatever happens:
        jumps are then absorbed at that rate. None learns it, and starts anew after a jump.

    Notes
    -----
    The full basis costs one product with it a step. The leading k cost 4k columns a step (3k − 1
    of them oversampled, one a reference) on a signal that moves or is noisy. While the signal
    of a single problem stands still, from the start or later, a Krylov span takes ⌈k/2⌉ + 1
    columns a step; the probe is then read off the span, and a reference column in every product
    tests it. The basis follows what the span knows when its residuals fall to 0.6 of the last ones,
    or the span is condensed: never more than a few products later. A static operator takes single
    columns, several of them a step. Ensembles always average.
    """

    k: int | None = None
    forget: float | None = None

    def __post_init__(self) -> None:
        if self.k is not None:
            object.__setattr__(self, "k", whole_number(self.k, "k", at_least=1))
        number = isinstance(self.forget, int | float | np.number)
        if self.forget is not None and not (number and 0 <= self.forget < 1):
            raise ValueError(f"forget must be None or a number in [0, 1), got {self.forget!r}")

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis; columns beyond k come from `rng` (default: seed 0)."""
        state = initial_state(basis)
        n, k = row_count(state.basis), state.basis.shape[-1]
        if self.k not in (None, k):
            raise ValueError(
                f"basis has {k} columns but the tracker was made for k = {self.k}: "
                f"pass bf.random_basis(n, {self.k})"
            )
        memory = full.start(state.basis) if k == n else leading.start(state.basis, rng)
        return state._replace(memory=memory)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation: new state, and the probe of the state that went in."""
        square = state.basis.shape[-1] == row_count(state.basis)
        method: Any = full if square else leading
        following, probe = method.step(operator, state, self.forget)
        order = ranking(following) if values_changed(state, following) else state.order
        following = following._replace(order=order)
        held = alarm_of(following).held > 0
        if any_member(held):  # no move was made, and nothing learned
            kept = following._replace(steps=state.steps, seen=state.seen)
            following = select(np.asarray(held), kept, following)
        return following, probe

    def events(self, before: State, after: State) -> tuple[Event, ...]:
        """What the step from `before` to `after` noticed.

        Outliers, which were held back and moved nothing; jumps; columns that exchanged ranks, and
        columns whose vector has left the top k.
        """
        return events(before, after)

    def in_doubt(self, state: State) -> bool:
        """Whether repeated eigenvalues of a static operator have still to be looked for."""
        return self._has_span(state) and leading.in_doubt(state.memory)

    def searching(self, state: State) -> bool:
        """Whether they are being looked for: the residuals are tiny, but copies may be missing."""
        return self._has_span(state) and leading.searching(state.memory)

    def _has_span(self, state: State) -> bool:
        return bool(state.basis.ndim == 2 and state.basis.shape[-1] < row_count(state.basis))

    def eigenvalues(self, state: State, probe: Probe) -> Array:
        """The averaged eigenvalues, one a column, with the last background."""
        if np.min(state.steps) == 0:  # nothing averaged yet
            return diagonal(probe.rayleigh) + probe.background[..., None]
        values: Any = eigenvalues(state).astype(to_host(probe.background).dtype)
        if not isinstance(state.basis, np.ndarray):
            values = namespace(state.basis).asarray(values, device=state.basis.device)
        return values + probe.background[..., None]

    def read(self, state: State, coverage: float = 0.95) -> Reading:
        """Eigenvalues, error bars that hold with probability `coverage`, order and events."""
        return read(state, coverage)
