"""Checkpoints of a sharded basis: a file a shard and a manifest; any number of ranks reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bracketflow.atomic import write_atomically
from bracketflow.checkpoint import load, save
from bracketflow.core import State, namespace
from bracketflow.distributed.ranks import check_ranks, gathered, process_group
from bracketflow.sharding import Shards, shards

MANIFEST = "manifest.json"
LEAST_ROWS = 64  # rows a rank beyond 8k: so many that no k × k array of a state looks like rows


def save_shards(folder: str | Path, state: State, *, method: Any = None, group: Any = None) -> None:
    """Every rank writes its rows; then the first one the manifest, which makes them count.

    A crash before that leaves the checkpoint before it as it was. All ranks must see `folder`, or
    each its own part of it and the manifest.
    """
    folder, spread, group = Path(folder), _spread(), process_group(group)
    rows, k = state.basis.shape
    name = f"shard-{int(np.max(state.steps))}-{spread.rank}-of-{spread.count}"

    def write() -> None:
        least = 8 * k + LEAST_ROWS
        if rows < least:
            raise ValueError(
                f"a sharded checkpoint needs {least} rows a rank for k = {k}, got {rows}: "
                "use fewer ranks, or a replicated basis"
            )
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / name, state, method=method)

    written = _everywhere(write, (name, spread.own.start, rows), group)
    text = json.dumps({"n": spread.n, "shards": written})

    def seal() -> None:
        if spread.rank == 0:
            write_atomically(folder / MANIFEST, [text.encode()])

    _everywhere(seal, None, group)
    if spread.rank == 0:
        for old in set(folder.glob("shard-*")) - {folder / name for name, _, _ in written}:
            with suppress(OSError):
                old.unlink()


def load_shards(folder: str | Path, method: Any, *, group: Any = None) -> State:
    """The rows of this rank of a saved state, whatever number of ranks wrote it.

    Raises
    ------
    ValueError
        On every rank: the manifest or a shard is missing, damaged, or does not fit.
    """
    folder, spread, group = Path(folder), _spread(), process_group(group)
    found: list[State] = []
    _everywhere(lambda: found.append(_own(folder, spread, method)), None, group)
    check_ranks(method, found[0], group)
    return found[0]


def _spread() -> Shards:
    spread = shards()
    if spread is None:
        raise ValueError("no sharded basis here: use this inside `with sharded_basis(n)`")
    return spread


def _own(folder: Path, spread: Shards, method: Any) -> State:
    """The rows of this rank, cut from the shards that hold them."""
    own = spread.own
    states, bounds = [], []
    for name, first, rows in _manifest(folder, spread.n):
        if first >= own.stop or first + rows <= own.start:
            continue
        found = load(folder / name)
        if found.method is not None and found.method != method:
            raise ValueError(
                f"{folder / name}: written by {found.method!r}, but the method is {method!r}: "
                "use that one, or another folder"
            )
        if found.state.basis.shape[0] != rows:
            raise ValueError(
                f"{folder / name}: has {found.state.basis.shape[0]} rows, but the manifest says "
                f"{rows}: they are not of one checkpoint"
            )
        states.append(found.state)
        bounds.append((max(own.start - first, 0), min(own.stop - first, rows), rows))
    if len({int(np.max(state.steps)) for state in states}) > 1:
        raise ValueError(f"{folder}: its shards are of different steps, not of one checkpoint")
    joined: State = _joined(states, bounds)
    return joined


def _manifest(folder: Path, n: int) -> list[tuple[str, int, int]]:
    """(file, first row, rows) of each shard, in order."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        parts = [(str(name), int(first), int(rows)) for name, first, rows in manifest["shards"]]
        held = int(manifest["n"])
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such manifest, so no checkpoint to load") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no manifest of shards: {error!r}") from error
    if held != n:
        raise ValueError(f"{path}: is of a basis with {held} rows, but this one has {n}")
    end = 0
    for name, first, rows in parts:
        if first != end or rows < 1 or Path(name).name != name:
            raise ValueError(f"{path}: its shards do not follow each other at {name!r}")
        end += rows
    if end != n:
        raise ValueError(f"{path}: its shards hold {end} of {n} rows")
    return parts


def _joined(parts: Sequence[Any], bounds: Sequence[tuple[int, int, int]]) -> Any:
    """The trees of several shards as one: rows are cut and put together, the rest is the same."""
    first = parts[0]
    if isinstance(first, tuple):
        items = [_joined(items, bounds) for items in zip(*parts, strict=True)]
        return type(first)(*items) if hasattr(first, "_fields") else tuple(items)
    held = list(zip(parts, bounds, strict=True))
    if not all(np.ndim(part) == 2 and part.shape[0] == rows for part, (_, _, rows) in held):
        return first
    return namespace(first).concat([part[low:high] for part, (low, high, _) in held], axis=0)


def _everywhere(work: Callable[[], Any], value: Any, group: Any) -> list[Any]:
    """The values of all ranks after their work; a ValueError on all of them when one has failed."""
    told = None
    try:
        work()
    except (OSError, ValueError) as error:
        told = str(error)
    answers = gathered((value, told), group)
    wrong = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
    if wrong:
        raise ValueError(f"checkpoint: {'; '.join(wrong)}")
    return [value for value, _ in answers]
