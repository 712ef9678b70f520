"""A process group of the ranks that were started together, whatever earlier ones have left."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any
from uuid import uuid4

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from bracketflow.distributed.ranks import GroupError

LOOK = 0.02  # seconds between two looks of the first rank: little beside an import of torch
HOME = "bracketflow"  # of the keys that are the same in every attempt


def join(timeout: timedelta) -> None:
    """Make the gloo process group of the ranks that torchrun, or whoever, has started.

    Raises
    ------
    GroupError
        Not all ranks came within `timeout`, or they cannot reach each other.
    """
    try:
        store, rank, count = next(rendezvous("env://", timeout=timeout))
        name = attempt(store, rank, count, timeout)
        fresh = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=fresh, rank=rank, world_size=count, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        raise GroupError(
            f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} found no connection to the "
            f"others; where a machine has several networks, GLOO_SOCKET_IFNAME names one: {error}"
        ) from error


def attempt(store: Any, rank: int, count: int, timeout: timedelta) -> str:
    """A name that these ranks agree on, and no others before them.

    The store of torchrun may outlive the ranks, and hold the addresses of dead ones. So each rank
    leaves a number of its own, and is welcome when the first has answered that number, which only
    one that lives can do. What the dead have left may be answered, too: nobody reads that.
    """
    if rank > 0:
        number = uuid4().hex
        store.set(f"{HOME}/here/{rank}", number)
        key = f"{HOME}/welcome/{number}"
        store.wait([key], timeout)
        name = str(store.get(key).decode())
        store.set(f"{name}/{rank}", "")
        return name
    name, missing = f"{HOME}/{uuid4().hex}", set(range(1, count))
    end = time.monotonic() + timeout.total_seconds()
    while missing:
        for other in missing:
            if store.check([f"{HOME}/here/{other}"]):
                number = store.get(f"{HOME}/here/{other}").decode()
                store.set(f"{HOME}/welcome/{number}", name)
        missing = {other for other in missing if not store.check([f"{name}/{other}"])}
        if missing and time.monotonic() > end:
            raise RuntimeError(f"ranks {sorted(missing)} were not there within {timeout}")
        time.sleep(LOOK if missing else 0)
    return name
