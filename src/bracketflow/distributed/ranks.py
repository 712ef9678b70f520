"""The ranks of a process group: that they agree at the start, and what only the first one does."""

from __future__ import annotations

import os
import platform
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

try:
    import torch
    import torch.distributed as dist
except ImportError:  # pragma: no cover
    raise ImportError(
        "bracketflow.distributed needs PyTorch: pip install 'bracketflow[torch]'"
    ) from None

from bracketflow.core import Array, ObservationError, Probe, State
from bracketflow.driver import Method, Monitor
from bracketflow.sharding import row_count

PULSE = timedelta(seconds=0.25)  # Python hears a signal no sooner than a wait ends
GRACE = 10.0  # seconds for a batch at hand, of the 30 after which torchrun kills


class _Ending(NamedTuple):
    """How a rank learns that it is to end, and whom it can wake for that."""

    asked: Callable[[], bool]
    neighbours: list[int]
    """Process numbers of the ranks on this machine."""


_ending: ContextVar[_Ending | None] = ContextVar("_ending", default=None)


class GroupError(ConnectionError):
    """The ranks no longer work together: one died, hangs, or holds another basis."""


class GroupAbandoned(GroupError):
    """A rank was asked to end while it waited; its message waits on, until the timeout."""


def process_group(group: Any = None) -> Any:
    """`group`, or the default one; a ValueError that names the remedy when there is none."""
    if not dist.is_initialized():
        raise ValueError(
            "group: no process group is running: start the script with torchrun and call "
            "torch.distributed.init_process_group('gloo') first ('nccl' for GPUs)"
        )
    return dist.group.WORLD if group is None else group


def together(collective: Callable[..., Any], *args: Any, group: Any) -> Any:
    """Run a collective; a rank that is gone or silent becomes a `GroupError`."""
    try:
        return collective(*args, group=group)
    except RuntimeError as error:
        raise GroupError(
            f"rank {dist.get_rank(group)} of {dist.get_world_size(group)} got no answer: another "
            "rank has died, raised, or was silent for longer than the timeout of the process "
            "group. The first error among the ranks is the cause; `torchrun --max-restarts` "
            f"starts them all again, from the last checkpoint. ({error})"
        ) from error


@contextmanager
def ending_soon(asked: Callable[[], bool], group: Any = None) -> Iterator[None]:
    """Within, a sum that ranks do not come to is given up some seconds after `asked()` is true.

    Without it signals are not even heard before the timeout of the process group. Ranks of this
    machine that are stopped are woken first: they cannot end, or save what they hold, otherwise.
    """
    machine = _machine()
    told = gathered((machine, os.getpid()), process_group(group))
    token = _ending.set(_Ending(asked, [number for place, number in told if place == machine]))
    try:
        yield
    finally:
        _ending.reset(token)


def _machine() -> list[str]:
    """What process numbers belong to: a machine since its start, and a container of it."""
    names = [platform.node()]
    with suppress(OSError):  # elsewhere than on Linux the name must do
        names.append(Path("/proc/sys/kernel/random/boot_id").read_text("ascii"))
        names.append(os.readlink("/proc/self/ns/pid"))
    return names


def _wake(processes: list[int]) -> None:
    """Let stopped processes go on; to others it does nothing."""
    for number in processes if os.name == "posix" else ():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGCONT)


def all_reduce(wire: Any, *, group: Any) -> None:
    """Sum the tensor over the ranks, in place."""
    ending = _ending.get()
    if ending is None or device_of(group).type != "cpu":  # elsewhere no one waits in the sum itself
        dist.all_reduce(wire, group=group)
        return
    work, end = dist.all_reduce(wire, group=group, async_op=True), inf
    while not done_within(work, PULSE):
        if end == inf and ending.asked():
            end = time.monotonic() + GRACE
            _wake(ending.neighbours)
        if time.monotonic() > end:
            raise GroupAbandoned(
                f"rank {dist.get_rank(group)} of {dist.get_world_size(group)} was asked to end and "
                f"got no answer for {GRACE:g} s: another rank is stopped or hangs: end it, and go "
                "on from the last checkpoint"
            )
    work.wait()  # raises what went wrong


def done_within(work: Any, patience: timedelta) -> bool:
    """Whether it ends, well or not, within that time."""
    with suppress(RuntimeError):
        work.wait(patience)
    return bool(work.is_completed())


def gathered(value: Any, group: Any) -> list[Any]:
    """The `value` of every rank, on every rank."""
    values = [None] * dist.get_world_size(group)
    together(dist.all_gather_object, values, value, group=group)
    return values


def from_first(value: Any, group: Any) -> Any:
    """The first rank's `value`, on every rank."""
    box = [value]

    def broadcast(box: list[Any], *, group: Any) -> None:
        dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group)

    together(broadcast, box, group=group)
    return box[0]


def refuse_differences(description: dict[str, Any], group: Any) -> None:
    """A ValueError on every rank unless all ranks give the same description."""
    first, *others = gathered(description, group)
    wrong = [
        f"{name} is {other.get(name)!r} on rank {rank} but {first.get(name)!r} on rank 0"
        for rank, other in enumerate(others, start=1)
        for name in sorted({*first, *other})
        if other.get(name) != first.get(name)
    ]
    if wrong:
        raise ValueError(f"the ranks must agree, but {'; '.join(wrong)}")


def refuse_failures(failure: Exception | None, group: Any) -> None:
    """The same ObservationError on every rank when the product of any has failed, with its cause.

    A message of its own: only for ranks that all know that something is wrong.
    """
    told = gathered(failure and f"{type(failure).__name__}: {failure}", group)
    causes = [f"rank {rank}: {text}" for rank, text in enumerate(told) if text is not None]
    if causes:
        raise ObservationError("raised", f"the product failed on {'; '.join(causes)}") from failure


def described(block: Array) -> dict[str, Any]:
    """Shape, dtype and library of an array."""
    dtype, library = array_type(block)
    *ensemble, n, k = block.shape
    return {"ensemble": tuple(ensemble), "n": n, "k": k, "dtype": dtype, "library": library}


def array_type(array: Array | None) -> tuple[str, str]:
    """Dtype and library by name; empty for None."""
    if array is None:
        return "", ""
    library = "NumPy" if isinstance(array, np.ndarray) else "torch"
    return str(array.dtype).removeprefix("torch."), library


def empty_array(dtype: str, library: str, group: Any) -> Array | None:
    """An array of that type with nothing in it, where this group works."""
    if not library:
        return None
    if library == "NumPy":
        return np.empty(0, dtype=dtype)
    return torch.empty(0, dtype=getattr(torch, dtype), device=device_of(group))


def check_ranks(method: Method, state: State, group: Any = None) -> None:
    """Raise on every rank unless all have the same method, basis shape, dtype and step count."""
    facts = {**described(state.basis), "n": row_count(state.basis), "method": printed(method)}
    facts["steps"] = np.asarray(state.steps).tolist()
    refuse_differences(facts, process_group(group))


def printed(method: Any) -> str:
    """What the method is made of; functions by name, for their addresses differ."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(method))


def on_first_rank(monitors: Monitor | Iterable[Monitor], group: Any = None) -> Monitor:
    """A monitor that runs `monitors` on the first rank and nothing elsewhere.

    For `bf.Checkpoint`, progress and sinks. A rank that is ahead waits in its next product.
    """
    watchers = (monitors,) if callable(monitors) else tuple(monitors)
    if dist.get_rank(process_group(group)) != 0:
        watchers = ()

    def watch(state: State, probe: Probe) -> None:
        for monitor in watchers:
            monitor(state, probe)

    return watch


def device_of(group: Any) -> torch.device:
    """Where the arrays of this group's messages must be: a GPU for nccl, the host otherwise."""
    on_gpu = "nccl" in str(dist.get_backend(group))
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
