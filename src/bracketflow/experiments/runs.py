"""Running many members to their goal: the library's loop, dropping those that have arrived."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bracketflow import theory
from bracketflow.core import Probe, State, Status
from bracketflow.driver import Method, run, trajectory
from bracketflow.experiments.problems import Matrix
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.oracles import as_operator
from bracketflow.stopping import Stop, lyapunov_below, max_steps

Indices = NDArray[np.intp]
NEVER = -1
"""Step count of a member that did not arrive."""


def level(matrix: Matrix, basis: Matrix) -> Matrix:
    """f(M) = ½‖off(MᵀCM)‖_F²."""
    return np.asarray(theory.lyapunov(theory.rotated_operator(matrix, basis)))


def steps_below(
    method: Method,
    matrices: Matrix,
    starts: Matrix,
    *,
    target: float,
    limit: int,
    progress: Progress = SILENT,
) -> NDArray[np.int64]:
    """Steps until f < target, member by member; `NEVER` beyond `limit`."""
    ensemble = np.broadcast_shapes(matrices.shape[:-2], starts.shape[:-2])
    flat = np.broadcast_to(matrices, ensemble + matrices.shape[-2:]).reshape(
        -1, *matrices.shape[-2:]
    )
    bases = np.broadcast_to(starts, ensemble + starts.shape[-2:]).reshape(-1, *starts.shape[-2:])
    steps = steps_until(
        method,
        lambda members: itertools.repeat(as_operator(flat[members])),
        bases,
        lambda members: lyapunov_below(target),
        limit=limit,
        progress=progress,
    )
    return steps.reshape(ensemble)


def steps_until(
    method: Method,
    stream: Callable[[Indices], Iterable[Any]],
    starts: Matrix,
    rule: Callable[[Indices], Stop],
    *,
    limit: int,
    progress: Progress = SILENT,
    chunk: int = 250,
) -> NDArray[np.int64]:
    """Steps until `rule` fires, member by member; `NEVER` beyond `limit`.

    Members that have arrived are dropped every `chunk` steps; `stream` and `rule` are asked anew
    for those still under way.
    """
    steps = np.full(starts.shape[0], NEVER, dtype=np.int64)
    open_ = np.arange(starts.shape[0])
    state = method.init(starts)
    for segment in range(-(-limit // chunk) + 1):
        progress(segment * chunk / limit)
        stop = [rule(open_), max_steps(limit)]
        result = run(method, itertools.islice(stream(open_), chunk), state, stop=stop)
        steps[open_[result.converged]] = result.state.steps[result.converged]
        going = np.asarray(result.status == Status.STREAM_ENDED)
        if not going.any():
            break
        open_, state = open_[going], _members(result.state, going)
    progress(1.0)
    return steps


def _members(state: State, mask: NDArray[np.bool_]) -> State:
    """The members of an ensemble where `mask` holds."""
    count = mask.size

    def chosen(part: Any) -> Any:
        if isinstance(part, tuple):
            return tuple(chosen(item) for item in part)
        return part[mask] if np.ndim(part) and part.shape[0] == count else part

    return State(*(chosen(part) for part in state))


def walk(
    method: Method,
    stream: Iterable[Any],
    start: Matrix | State,
    count: int,
    progress: Progress = SILENT,
) -> Iterator[tuple[int, State, Probe]]:
    """(t, state_t, probe_t) for t = 0 … count: state_count has made `count` moves."""
    state = start if isinstance(start, State) else method.init(start)
    path = trajectory(method, itertools.islice(stream, count + 1), state)
    for t, (current, probe) in enumerate(progress.over(path, count + 1)):
        yield t, current, probe


def last_state(method: Method, stream: Iterable[Any], start: Matrix | State, count: int) -> State:
    """State after `count` moves, none more."""
    state = start if isinstance(start, State) else method.init(start)
    for operator in itertools.islice(stream, count):
        state, _ = method.step(operator, state)
    return state


def log_slope(times: Sequence[float] | Matrix, values: Sequence[float] | Matrix) -> float:
    """Slope of log(values) against log(times), least squares."""
    return float(np.polyfit(np.log(np.asarray(times)), np.log(np.asarray(values)), 1)[0])


class RiseCounter:
    """Counts, member by member, the steps at which f grew by more than its rounding."""

    def __init__(self, members: int):
        self.rises = np.zeros(members, dtype=np.int64)
        self._before = np.full(members, np.inf)

    def rule(self, members: Indices, target: float) -> Stop:
        """`lyapunov_below(target)` that counts as it looks."""
        below = lyapunov_below(target)

        def look(state: State, probe: Probe) -> Any:
            now = np.asarray(probe.lyapunov)
            # f is a sum of squares of entries that carry eps·‖C_e‖ each; 1e-12 is far above that.
            self.rises[members] += now > self._before[members] * (1 + 1e-12) + 1e-24
            self._before[members] = now
            return below(state, probe)

        return look


@dataclass(frozen=True, eq=False)
class StepPerMember:
    """Step rule: a constant η of its own for every member, carried in the state's memory."""

    etas: Matrix

    def start(self) -> Matrix:
        """The sizes, one a member."""
        return self.etas

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Any, Any]:
        """η of the members that are still there."""
        return memory, memory
