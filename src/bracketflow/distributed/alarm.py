"""Sums over ranks of which one may fail before it knows what the others wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from math import nan
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist

from bracketflow.distributed.ranks import (
    GroupError,
    device_of,
    done_within,
    from_first,
    together,
)

# How long a rank waits before it looks whether another has failed: at first, and in the end.
SHORTLY, PATIENTLY = timedelta(milliseconds=50), timedelta(seconds=1)


class Alarm:
    """All-reduces of a group; a rank that cannot take part in the next one says so.

    A rank that has to wait looks into the store of the group now and then. One whose product has
    raised asks there how long the message is, and takes part in it with NaN, until the others have
    left the product too. One that is gone for good has left its reason there. All that costs
    nothing while nobody waits.
    """

    def __init__(self, group: Any):
        self.group = group
        self.messages = 0  # so far: the same on every rank
        self.in_product = False
        self.mark = from_first(uuid4().hex, group)  # no key is used twice
        self._gone = f"{self.mark}/gone"
        self.store = _store_of(group)

    def sum(self, wire: Any) -> None:
        """Sum the tensor over the ranks, in place."""
        self.messages += 1
        if self.store is None:
            together(dist.all_reduce, wire, group=self.group)
        else:
            together(self._sum, wire, group=self.group)

    def _sum(self, wire: Any, *, group: Any) -> None:
        try:
            work, patience = dist.all_reduce(wire, group=group, async_op=True), SHORTLY
            while not done_within(work, patience):
                self._refuse_gone(self.messages)
                self._answer(wire)
                patience = min(2 * patience, PATIENTLY)
            work.wait()  # raises what went wrong
        except RuntimeError:
            with suppress(RuntimeError):  # the store may be lost as well
                self._refuse_gone(self.messages)
            raise

    def _answer(self, wire: Any) -> None:
        """Tell ranks that have failed what they are waited for."""
        if self.store.check([self._key("ask")]):
            dtype = str(wire.dtype).removeprefix("torch.")
            self.store.set(self._key("size"), f"{int(self.in_product)} {wire.numel()} {dtype}")

    def _key(self, what: str, ahead: int = 0) -> str:
        return f"{self.mark}/{what}/{self.messages + ahead}"

    @contextmanager
    def product(self) -> Iterator[None]:
        """Within, messages are those of a product."""
        self.in_product = True
        try:
            yield
        finally:
            self.in_product = False

    def accompany(self) -> None:
        """After a failure: NaN to every message of the others' product."""
        if self.store is None:
            raise GroupError(
                f"the product has failed on rank {dist.get_rank(self.group)}, and with this kind "
                "of process group the other ranks cannot be told: all have to start again"
            )
        while (asked := together(self._asked, group=self.group)) is not None:
            size, dtype = asked
            device = device_of(self.group)
            self.sum(torch.full((size,), nan, dtype=getattr(torch, dtype), device=device))

    def _asked(self, *, group: Any) -> tuple[int, str] | None:
        """Size and dtype of the message that the others wait in; None when it is no product's."""
        ask, size = self._key("ask", 1), self._key("size", 1)
        self.store.add(ask, 1)
        deadline = time.monotonic() + self.store.timeout.total_seconds()
        while not self.store.check([size]):
            self._refuse_gone(self.messages + 1)
            if self.store.add(ask, 0) == dist.get_world_size(group):
                return None  # it has failed on all ranks
            if time.monotonic() > deadline:
                raise RuntimeError("timed out: no rank waits for this one")
            time.sleep(SHORTLY.total_seconds() / 5)
        in_product, numbers, dtype = self.store.get(size).decode().split()
        return (int(numbers), dtype) if int(in_product) else None

    def leave(self, error: BaseException | None) -> None:
        """Tell the others that this rank takes part in no further message, and why."""
        if self.store is None or isinstance(error, GroupError):
            return
        why = "has no more to do" if error is None else f"raised {type(error).__name__}: {error}"
        with suppress(RuntimeError):  # the others may be gone, and the store with them
            if error is not None or not self.store.check([self._gone]):
                text = f"{self.messages} rank {dist.get_rank(self.group)} {why}"
                self.store.set(self._gone, text)

    def _refuse_gone(self, message: int) -> None:
        """A GroupError when a rank has left before that message."""
        if not self.store.check([self._gone]):
            return
        messages, _, text = self.store.get(self._gone).decode().partition(" ")
        if message > int(messages):
            raise GroupError(
                f"{text}. No rank can go on without it: `torchrun --max-restarts` starts them all "
                "again, from the last checkpoint"
            )


def _store_of(group: Any) -> Any:
    """The store of the group; None for nccl, where nobody waits in the all-reduce itself."""
    reachable = hasattr(group, "get_group_store") and device_of(group).type == "cpu"
    return group.get_group_store() if reachable else None
