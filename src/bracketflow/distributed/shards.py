"""Checkpoints of a sharded basis: a file a shard and a manifest; any number of ranks reads them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from bracketflow.atomic import write_atomically
from bracketflow.checkpoint import checksum, load, write
from bracketflow.core import State, namespace
from bracketflow.distributed.ranks import check_ranks, gathered, process_group
from bracketflow.sharding import Shards, shards

MANIFEST = "manifest.json"
LEAST_ROWS = 64  # rows a rank beyond 8k: so many that no k × k array of a state looks like rows


def save_shards(folder: str | Path, state: State, *, method: Any = None, group: Any = None) -> None:
    """Every rank writes its rows; then the first one the manifest, which makes them count.

    No file of the checkpoint before is touched until then, so a crash at any moment leaves that one
    or the new one. All ranks must see `folder`.
    """
    folder, spread, group = Path(folder), _spread(), process_group(group)
    generation = max(_everywhere(lambda: _newest(folder), group)) + 1
    name = f"shard-{generation}-{spread.rank}-of-{spread.count}"

    def written() -> tuple[str, int, int, str]:
        rows, k = state.basis.shape
        least = 8 * k + LEAST_ROWS
        if rows < least:
            raise ValueError(
                f"a sharded checkpoint needs {least} rows a rank for k = {k}, got {rows}: "
                "use fewer ranks, or a replicated basis"
            )
        folder.mkdir(parents=True, exist_ok=True)
        checksum = write(folder / name, state, method=method)
        return name, spread.own.start, rows, checksum

    parts = _everywhere(written, group)
    manifest = {"n": spread.n, "steps": int(np.max(state.steps)), "shards": parts}

    def seal() -> None:
        if spread.rank == 0:
            write_atomically(folder / MANIFEST, [json.dumps(manifest).encode()])

    _everywhere(seal, group)
    if spread.rank == 0:
        _remove_others(folder, {part[0] for part in parts})


def _newest(folder: Path) -> int:
    """The highest generation of which there is any file, sealed or not; 0 where there is none."""
    numbers = (path.name.split("-")[1] for path in folder.glob("shard-*"))
    return max((int(number) for number in numbers if number.isdecimal()), default=0)


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove earlier shards, and what killed writers have left of any."""
    for path in [*folder.glob("shard-*"), *folder.glob(".shard-*")]:
        if path.name not in names:
            with suppress(OSError):
                path.unlink()


def load_shards(folder: str | Path, method: Any, *, group: Any = None) -> State:
    """The rows of this rank of a saved state, whatever number of ranks wrote it.

    Raises
    ------
    ValueError
        On every rank: the manifest or a shard is missing, damaged, or does not fit.
    """
    folder, spread, group = Path(folder), _spread(), process_group(group)
    found: list[State] = []  # no rank is told another's rows
    _everywhere(lambda: found.append(_own(folder, spread, method)), group)
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
    for name, first, rows, mark in _manifest(folder, spread.n):
        if first >= own.stop or first + rows <= own.start:
            continue
        found = load(folder / name)
        if checksum(folder / name) != mark:
            raise ValueError(
                f"{folder / name}: is not the file that the manifest names: its checksum is "
                "another, so it is of another checkpoint or of another rank"
            )
        if found.method is not None and found.method != method:
            raise ValueError(
                f"{folder / name}: written by {found.method!r}, but the method is {method!r}: "
                "use that one, or another folder"
            )
        if found.state.basis.shape[0] != rows:
            raise ValueError(
                f"{folder / name}: has {found.state.basis.shape[0]} rows, but the manifest says "
                f"{rows}"
            )
        states.append(found.state)
        bounds.append((max(own.start - first, 0), min(own.stop - first, rows), rows))
    joined: State = _joined(states, bounds)
    return joined


def _manifest(folder: Path, n: int) -> list[tuple[str, int, int, str]]:
    """(file, first row, rows, checksum) of each shard, in order."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        parts = [
            (str(name), int(first), int(rows), str(mark))
            for name, first, rows, mark in manifest["shards"]
        ]
        held = int(manifest["n"])
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such manifest, so no checkpoint to load") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: is no manifest of shards: {error!r}") from error
    if held != n:
        raise ValueError(f"{path}: is of a basis with {held} rows, but this one has {n}")
    end = 0
    for name, first, rows, _ in parts:
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


def _everywhere(work: Callable[[], Any], group: Any) -> list[Any]:
    """What all ranks return from their work; a ValueError on all of them when one has failed."""
    value = told = None
    try:
        value = work()
    except (OSError, ValueError) as error:
        told = str(error)
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    answers = gathered((value, told), group)
    wrong = [f"rank {rank}: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
    if wrong:
        raise ValueError(f"checkpoint: {'; '.join(wrong)}")
    return [value for value, _ in answers]
