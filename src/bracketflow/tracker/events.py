"""What happened between two states: outliers, jumps, crossings, columns that left the top k."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bracketflow.core import Event, State
from bracketflow.sharding import row_count
from bracketflow.tracker import full, running
from bracketflow.tracker.gain import JUMP, Alarm


def alarm_of(state: State) -> Alarm:
    """The alarm in the memory of a tracker's state."""
    square = state.basis.shape[-1] == row_count(state.basis)
    return (full.restored(state.memory) if square else running.restored(state.memory[0])).alarm


def events(before: State, after: State) -> tuple[Event, ...]:
    """Events of the one step from `before` to `after`, of all members of an ensemble."""
    alarm = alarm_of(after)
    held = np.asarray(alarm.held) > 0
    jumped = np.asarray(alarm.jumps) > alarm_of(before).jumps
    order, previous = np.asarray(after.order), before.order
    exchanged = np.zeros_like(order) > 0 if previous is None else order != previous
    left = _began(after) > _began(before)
    if not (held.any() or jumped.any() or exchanged.any() or left.any()):
        return ()
    found = []
    for member in np.ndindex(held.shape):
        step = int(np.asarray(before.steps)[member])
        where = f"member {member}: " if member else ""
        for kind, message in _of_member(
            int(alarm.held[member]), jumped[member], exchanged[member], left[member], order[member]
        ):
            found.append(Event(step, kind, where + message))
    return tuple(found)


def _began(state: State) -> np.ndarray:
    """Step at which the vector in each column came in; nothing leaves a full basis."""
    if state.basis.shape[-1] == row_count(state.basis):
        return np.zeros((*state.basis.shape[:-2], 1))
    return np.asarray(running.restored(state.memory[0]).since)


def _of_member(
    held: int, jumped: Any, exchanged: np.ndarray, left: np.ndarray, order: np.ndarray
) -> Iterator[tuple[str, str]]:
    if held:
        yield (
            "outlier",
            f"outlier observation: far from all before it and held back, {held} in a row "
            f"({JUMP} alike are a jump)",
        )
    if jumped:
        yield "jump", "the signal has jumped: what was averaged before is forgotten"
        left = left & False
    for column in np.flatnonzero(left):
        yield (
            "left",
            f"the vector in column {column} has left the top {len(order)}, another took its place",
        )
    if exchanged.any() and not left.any():
        columns = sorted(int(c) for c in order[exchanged])
        yield (
            "crossing",
            f"columns {columns} have exchanged ranks, the order is now {order.tolist()}",
        )
