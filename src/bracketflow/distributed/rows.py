"""Row sources: what a rank reads, batch by batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist

from bracketflow.distributed.ranks import process_group


def own_rows(rows: Any, group: Any = None) -> Any:
    """Of rows that all ranks can see, the part of this one: contiguous, and as even as it goes.

    An array, a memory-mapped file or a sparse matrix is split by rows; a Dask array by whole
    chunks, which nobody else computes.
    """
    group = process_group(group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if not _is_dask(rows):
        return rows[slice(*_part(rows.shape[0], rank, ranks))]
    sizes = rows.chunks[0]
    first, last = _part(len(sizes), rank, ranks)
    return rows[sum(sizes[:first]) : sum(sizes[:last])]


def _part(count: int, rank: int, ranks: int) -> tuple[int, int]:
    return count * rank // ranks, count * (rank + 1) // ranks


def row_batches(rows: Any) -> Iterable[Any]:
    """Batches of rows: the chunks of a Dask array, computed one at a time; an iterable as it is."""
    return _chunks(rows) if _is_dask(rows) else rows


def _chunks(rows: Any) -> Iterator[Any]:
    if rows.ndim != 2:
        raise ValueError(f"rows must be a 2-D Dask array, got shape {rows.shape}")
    first = 0
    for size in rows.chunks[0]:
        yield rows[first : first + size].compute(scheduler="synchronous")
        first += size


def _is_dask(rows: Any) -> bool:
    return hasattr(rows, "chunks") and hasattr(rows, "compute")
