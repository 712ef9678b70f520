"""What happened between two states: loud observations, jumps, crossings, columns that left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bracketflow.core import Event, State
from bracketflow.tracker.members import member
from bracketflow.tracker.reading import Memory


def events(before: State, after: State) -> tuple[Event, ...]:
    """Events of the one step from `before` to `after`, of all members of an ensemble."""
    found = []
    for index in np.ndindex(tuple(after.basis.shape[:-2])):
        pair = (before, after) if not index else (member(before, index), member(after, index))
        where = f"member {index}: " if index else ""
        found += [
            Event(int(pair[0].steps), kind, where + message) for kind, message in _of_member(*pair)
        ]
    return tuple(found)


def _of_member(before: State, after: State) -> Iterator[tuple[str, str]]:
    former, memory = Memory(*before.memory), Memory(*after.memory)
    if after.steps == before.steps:
        return
    loudness = float(memory.ladder.loudness)
    if loudness > 1:
        yield (
            "outlier",
            f"loud observation: its noise is {loudness:.3g} times the usual, "
            f"it counted {1 / loudness:.2g} of an ordinary one",
        )
    jumped = memory.ladder.jumps > former.ladder.jumps
    if jumped:
        yield "jump", "the signal has jumped: what was averaged before is forgotten"
    left = np.flatnonzero(memory.spread.came > former.spread.came)
    order, k = np.asarray(after.order), len(memory.spread.came)
    for column in () if jumped else left:
        yield "left", f"the vector in column {column} has left the top {k}, another took its place"
    exchanged = np.zeros(k, bool) if before.order is None else order != np.asarray(before.order)
    if exchanged.any() and not len(left):
        columns = sorted(int(c) for c in order[exchanged])
        yield (
            "crossing",
            f"columns {columns} have exchanged ranks, the order is now {order.tolist()}",
        )
