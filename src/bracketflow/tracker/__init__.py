"""EigenTracker: eigenvectors of a stream, at the statistical limit, with nothing to tune."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.core import Array, Event, ObservationError, Probe, State, namespace, whole_number
from bracketflow.geometry import initial_state
from bracketflow.observation import advance, multiplied
from bracketflow.oracles import as_operator
from bracketflow.sharding import row_count, shards
from bracketflow.tracker import ladder
from bracketflow.tracker.block import WIDTH, Block
from bracketflow.tracker.events import events
from bracketflow.tracker.members import members_of, stack_probes, stack_trees
from bracketflow.tracker.reading import Memory, Reading, Spread, background, eigenvalues, read
from bracketflow.tracker.whole import SMALL, Whole

STALE = 0.045
"""Share of the mean that may wait before the columns turn: half of it is lost in squared error on
average."""

__all__ = ["EigenTracker", "Reading"]


@dataclass(frozen=True)
class EigenTracker:
    """All eigenvectors, or the leading k, of C_t = C_sig + σ_t² I + E_t.

    It averages as the mean of all observations would while the signal stands still, forgets as
    fast as it moves, starts anew when it jumps, and lets an observation count as its own noise
    allows. Columns are ordered once, at the first observation, and keep place and sign from then.

    Parameters
    ----------
    k : int, optional
        Columns of the basis it will be given; None takes them from the basis.
    forget : float, optional
        Fixed share of the memory lost with every observation, 0 ≤ forget < 1, whatever happens:
        jumps are then absorbed at that rate. None learns it.

    Notes
    -----
    One observation is one block product: with n columns for a full basis, and for any k up to
    n = 128; with 6k columns and a reference beyond that. Noise that is correlated in time looks
    like a signal that moves to whoever learns from it: then `forget=0` gives the plain mean.

    Examples
    --------
    >>> import numpy as np
    >>> import bracketflow as bf
    >>> rng = np.random.default_rng(0)
    >>> method = bf.EigenTracker(k=1)
    >>> state = method.init(bf.random_basis(5, 1, rng=rng))
    >>> for _ in range(100):
    ...     rows = rng.normal(0, [3, 1, 1, 1, 1], (20, 5))
    ...     state, probe = method.step(bf.gram(rows), state)
    >>> reading = method.read(state)
    >>> bool(abs(reading.eigenvalues[0] - 9) < reading.eigenvalue_errors[0])
    True
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
        k = state.basis.shape[-1]
        if self.k not in (None, k):
            raise ValueError(
                f"basis has {k} columns but the tracker was made for k = {self.k}: "
                f"pass bf.random_basis(n, {self.k})"
            )
        drawn = np.random.default_rng(0 if rng is None else rng)
        memories = [self._remember(member.basis, drawn) for member in members_of(state)]
        return state._replace(memory=stack_trees(memories, state.basis.shape[:-2]))

    def _remember(self, basis: Array, rng: np.random.Generator) -> Memory:
        """The memory of one problem before its first observation."""
        n, k, rungs = row_count(basis), basis.shape[-1], len(ladder.rungs(self.forget))
        kind: Any = Whole if shards() is None and n <= max(2 * SMALL, WIDTH * k) else Block
        mean = kind.start(basis, rungs, rng)
        return Memory(mean, ladder.start(self.forget), Spread.start(mean, k))

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation: new state, and the probe of the state that went in."""
        operator, ensemble = as_operator(operator), tuple(state.basis.shape[:-2])
        members = members_of(state)
        means = [Memory(*member.memory).mean for member in members]
        columns = [mean.multiplied for mean in means]
        product = multiplied(
            operator, stack_trees(columns, ensemble), identity=isinstance(means[0], Whole)
        )
        products = [product] if not ensemble else [product[i] for i in np.ndindex(ensemble)]
        pairs, refused = [], []
        for index, (member, own, image) in enumerate(zip(members, columns, products, strict=True)):
            try:
                pairs.append(self._absorb(member, own, image, float(operator.weight)))
            except ObservationError as error:
                refused.append((index, error))
        if refused:
            raise _naming_members(refused, ensemble)
        states, probes = zip(*pairs, strict=True)
        return stack_trees(list(states), ensemble), stack_probes(list(probes), ensemble)

    def _absorb(
        self, state: State, columns: Array, image: Array, weight: float
    ) -> tuple[State, Probe]:
        """One problem and the image of its columns: observe, weigh, and if due judge and turn."""
        memory, k = Memory(*state.memory), state.basis.shape[-1]
        mean: Any = memory.mean
        rungs, spread = memory.ladder, memory.spread
        view, probe, everything = mean.observe(columns, image, state.basis, state.seen)
        beside = mean.compare(view, k, rungs) if rungs.observed else None
        rungs = ladder.weigh(rungs, weight, view.power, beside, self.forget)
        mean = mean.wait(view, weight, float(rungs.counted[-1]))
        basis, order = state.basis, state.order
        waited, patience = rungs.awaited, STALE if row_count(state.basis) > SMALL else 0.0
        due = beside is None or beside.foretold or rungs.waiting == ladder.KEPT
        if due or waited > patience * rungs.memory:
            if rungs.observed > rungs.waiting:
                fresh = mean.fresh(k, rungs)
                spread = spread.after(fresh, rungs)
                if self.forget is None:
                    rungs = ladder.judge(rungs, fresh.captured)
            rungs = ladder.absorb(rungs, self.forget)
            mean, kept = mean.follow(rungs, waited, k)
            if beside is not None:
                spread = spread.entered(kept, state.steps)
            basis, order = mean.basis(k), np.argsort(-mean.values[:k], kind="stable")
        following = advance(state, everything, basis, Memory(mean, rungs, spread))
        return following._replace(order=order), probe

    def events(self, before: State, after: State) -> tuple[Event, ...]:
        """What the step from `before` to `after` noticed.

        Observations that counted little, jumps, columns that exchanged ranks, and columns whose
        vector has left the top k.
        """
        return events(before, after)

    def eigenvalues(self, state: State, probe: Probe) -> Array:
        """The averaged eigenvalues, one a column, background included."""
        values: Any = eigenvalues(state)
        xp = namespace(state.basis)
        return xp.asarray(
            values, dtype=state.basis.dtype, device=getattr(state.basis, "device", None)
        )

    def background(self, state: State) -> np.ndarray:
        """The averaged level outside of the k columns; of a full basis the mean of all."""
        return background(state)

    def read(self, state: State, coverage: float = 0.95) -> Reading:
        """Eigenvalues, error bars that hold with probability `coverage`, order and memory."""
        return read(state, coverage)


def _naming_members(
    refused: list[tuple[int, ObservationError]], ensemble: tuple[int, ...]
) -> ObservationError:
    """The first refusal, with all members that were refused for the same reason."""
    first = refused[0][1]
    if not ensemble:
        return first
    places = list(np.ndindex(ensemble))
    members = tuple(places[i] for i, error in refused if error.reason == first.reason)
    return ObservationError(first.reason, str(first).partition(": ")[2], members)
