"""The state that all ranks begin with, or go on with after a restart."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bracketflow.checkpoint import load
from bracketflow.core import Array, State
from bracketflow.distributed.ranks import (
    check_ranks,
    described,
    from_first,
    printed,
    process_group,
    refuse_differences,
)
from bracketflow.distributed.shards import MANIFEST, load_shards
from bracketflow.driver import Method
from bracketflow.geometry import check_basis
from bracketflow.sharding import agree, shards


def start(
    method: Method, basis: Array, *, checkpoint: str | Path | None = None, group: Any = None
) -> State:
    """The same state on every rank: the first rank's checkpoint, or its `basis` where none exists.

    Only the first rank reads the file, so it need not be visible to the others. Inside
    `sharded_basis`, `checkpoint` is the folder of `save_shards`, every rank reads its rows, and
    `basis` are its rows of the start. The state has absorbed `state.steps` observations: to resume,
    go on with the next one.

    Raises
    ------
    ValueError
        The ranks differ in the method, n, k or dtype, or the checkpoint does not fit them.
    """
    group = process_group(group)
    if shards() is not None:
        return _start_shards(method, basis, checkpoint, group)
    refuse_differences({**described(basis), "method": printed(method)}, group)
    mine = dist.get_rank(group) == 0
    raw, problem = from_first(_read(checkpoint) if mine else None, group)
    if problem is not None:
        raise ValueError(f"checkpoint: {problem}")
    if raw is None:
        return method.init(from_first(basis if mine else None, group))
    state = _loaded(raw, method, basis)
    check_ranks(method, state, group)
    return state


def _read(path: str | Path | None) -> tuple[bytes | None, str | None]:
    """The bytes of the file, None where there is none; and what is wrong."""
    if path is None:
        return None, None
    try:
        return Path(path).read_bytes(), None
    except FileNotFoundError:
        return None, None
    except OSError as error:
        return None, f"{path} cannot be read: {error}"


def _loaded(raw: bytes, method: Method, basis: Array) -> State:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "checkpoint")
        copy.write_bytes(raw)
        loaded = load(copy, device=getattr(basis, "device", None))
    if loaded.method is not None and loaded.method != method:
        raise ValueError(
            f"checkpoint: written by {loaded.method!r}, but the method is {method!r}: "
            "use that one, or another path"
        )
    return _fitting(loaded.state, basis)


def _fitting(state: State, basis: Array) -> State:
    held, wanted = described(state.basis), described(basis)
    if held != wanted:
        raise ValueError(f"checkpoint: its basis is {held}, but the one given is {wanted}")
    return state


def _start_shards(method: Method, basis: Array, folder: str | Path | None, group: Any) -> State:
    agree(method=method, checkpoint=str(folder))
    check_basis(basis)
    exists = folder is not None and os.path.exists(Path(folder, MANIFEST))
    if folder is not None and from_first(exists, group):
        return _fitting(load_shards(folder, method, group=group), basis)
    return method.init(basis)
