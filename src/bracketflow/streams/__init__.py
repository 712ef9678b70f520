"""From data to streams: files, arrays and loaders as batches of rows, and those as operators.

Everything is read once, in order, one batch at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy import sparse

from bracketflow.core import namespace, whole_number
from bracketflow.oracles import Operator
from bracketflow.streams.matrices import load_matrix
from bracketflow.streams.moments import Covariance, Moments, covariance, second_moment
from bracketflow.streams.readers import Rows, Wanted, open_file, open_stream, skipped, slices
from bracketflow.threads import one_at_a_time

__all__ = [
    "Batches",
    "Covariance",
    "Moments",
    "batches",
    "covariance",
    "covariances",
    "load_matrix",
    "second_moment",
]

SIZE = 256  # rows of a batch where the source has no batches of its own
OnBadRow = Literal["raise", "skip"]


@dataclass(eq=False)
class Batches:
    """An iterator over batches of rows (b, n); several threads may share it."""

    name: str
    """The source, for messages."""
    total: int | None
    """Rows of the source, None when that is not known before the end."""
    parts: Iterator[Any]
    read: int = 0
    """Rows handed out so far, with those left out at the beginning."""
    refused: int = 0
    """Rows left out so far because they held NaN or Inf."""

    def __iter__(self) -> Iterator[Any]:
        return self

    @one_at_a_time
    def __next__(self) -> Any:
        batch = next(self.parts)
        self.read += int(batch.shape[0])
        return batch


def batches(
    source: Any,
    size: int | None = None,
    *,
    key: str | None = None,
    columns: Sequence[str] | None = None,
    start: int = 0,
    part: slice = slice(None),
    on_bad: OnBadRow = "raise",
) -> Batches:
    """Rows of `source`, `size` at a time: C-contiguous arrays (b, n), the last one may be shorter.

    Parameters
    ----------
    source : path, file, array or iterable
        A file ending in `.npy` (memory-mapped), `.npz`, `.csv`, `.tsv`, `.txt`, `.parquet`, `.h5`
        or `.hdf5`; "-" for standard input, or an open binary file, with a `.npy` array or CSV in
        it; an array, memory map, HDF5 dataset, sparse matrix or tensor of rows; an iterable of
        batches, or of single rows; a torch `DataLoader`. Of a batch that is a tuple or list of
        arrays, (inputs, targets), the first is taken. Axes after the first are flattened.
    size : int, optional
        Rows of a batch. Default: the batches of an iterable as they come, 256 of anything else.
    key : str, optional
        The array to take from a `.npz` or HDF5 file that holds several.
    columns : names, optional
        The columns to take from a CSV or Parquet file; for a CSV file without a header "1", "2", …
    start : int
        Rows to leave out at the beginning, as when a run is resumed.
    part : slice, optional
        Which rows of each batch to hand out, where the others are for other processes; `read`
        counts those handed out. Other rows are left unread where the source allows it (arrays,
        `.npy`, HDF5) and unparsed in text; with "skip" they must be looked at, too.
    on_bad : "raise" or "skip"
        What to do with a row that holds NaN or Inf, or misses a value. Rows that are skipped are
        counted in `refused`, and `start` does not count them.

    Raises
    ------
    ValueError
        The file is missing, truncated, ragged or holds something else than real numbers; the
        message names the file and, where there is one, row and column, counted from 1.
    """
    if size is not None:
        size = whole_number(size, "size", at_least=1)
    start = whole_number(start, "start", at_least=0)
    if on_bad not in ("raise", "skip"):
        raise ValueError(f'on_bad must be "raise" or "skip", got {on_bad!r}')
    # Where rows are skipped, only reading from the first can tell which ones count.
    jump = start if on_bad == "raise" else 0
    cut = part if on_bad == "raise" else slice(None)
    wanted = Wanted(size or SIZE, jump, key, columns, cut)
    rows = _opened(source, wanted)
    found = Batches(rows.name, rows.total, iter(()), read=start)
    good = _checked(rows, wanted, on_bad, found)
    if start > jump:
        good = skipped(good, start)
    if rows.parted:
        found.parts = good
        return found
    keep_parts = size is None and _has_batches(source)
    whole = good if keep_parts else _regrouped(good, size or SIZE)
    found.parts = whole if part == slice(None) else _parts(whole, part)
    return found


def covariances(
    source: Any,
    size: int | None = None,
    *,
    centre: bool = True,
    key: str | None = None,
    columns: Sequence[str] | None = None,
    on_bad: OnBadRow = "raise",
) -> Iterator[Operator]:
    """A stream for `bf.track`: one operator a batch of rows, weighted by their number.

    With `centre` their weighted mean is the covariance around the mean of all rows so far, to
    rounding, however the rows are batched; without, each is `bf.gram(batch)`. The other arguments
    are those of `batches`.
    """
    parts = batches(source, size, key=key, columns=columns, on_bad=on_bad)
    make = covariance if centre else second_moment

    def stream() -> Iterator[Operator]:
        moments = Moments()
        for rows in parts:
            operator, _, moments = make(rows, moments)
            yield operator

    return stream()


# Opening ----------------------------------------------------------------------------------------


def _opened(source: Any, wanted: Wanted) -> Rows:
    if isinstance(source, str) and source == "-":
        return open_stream(sys.stdin.buffer, "standard input", wanted)
    if isinstance(source, str | Path):
        return open_file(Path(source), wanted)
    if hasattr(source, "shape"):
        return _of_array(source, wanted)
    if hasattr(source, "read"):
        return open_stream(source, str(getattr(source, "name", "stream")), wanted)
    if isinstance(source, Iterable):
        return _of_iterable(source, wanted)
    raise TypeError(
        f"source must be a path, a file, an array or an iterable of batches, got "
        f"{type(source).__name__}"
    )


def _of_array(source: Any, wanted: Wanted) -> Rows:
    if len(source.shape) < 2:
        raise ValueError(
            f"source must have rows and columns, got shape {tuple(source.shape)}: "
            "a single column is array[:, None]"
        )
    array = source.tocsr() if sparse.issparse(source) else source
    return Rows("source", int(source.shape[0]), slices(array, wanted), parted=not wanted.whole)


def _has_batches(source: Any) -> bool:
    plain = isinstance(source, str | Path) or hasattr(source, "shape") or hasattr(source, "read")
    return not plain


def _of_iterable(source: Iterable[Any], wanted: Wanted) -> Rows:
    blocks = (_block(item) for item in source)
    return Rows(type(source).__name__, None, skipped(blocks, wanted.start))


def _block(item: Any) -> Any:
    """Rows from one item of a loader: (inputs, targets), a batch, or a single row."""
    if isinstance(item, dict):
        raise TypeError("source yields dicts: pass (batch['name of the inputs'] for batch in it)")
    if isinstance(item, tuple | list) and item and hasattr(item[0], "shape"):
        item = item[0]
    block = item if hasattr(item, "shape") else np.asarray(item)
    if len(block.shape) == 0:
        raise ValueError(f"source must yield batches (b, n) or rows, got the number {item!r}")
    return block[None, ...] if len(block.shape) == 1 else block


# Checking ---------------------------------------------------------------------------------------


def _checked(rows: Rows, wanted: Wanted, on_bad: OnBadRow, found: Batches) -> Iterator[Any]:
    """Blocks of finite real numbers of one width."""
    low = wanted.part.indices(wanted.size)[0] if rows.parted else 0
    width, row = None, wanted.start + low + 1
    for block in rows.blocks:
        block = _flat(_numeric(block, rows.name, row))
        width = block.shape[1] if width is None else width
        if block.shape[1] != width:
            raise ValueError(
                f"{rows.name}: from row {row} on there are {block.shape[1]} columns where the "
                f"first has {width}"
            )
        first, row = row, row + (wanted.size if rows.parted else block.shape[0])
        block = _finite(block, rows.name, first, on_bad, found)
        if block.shape[0]:
            yield block


def _numeric(block: Any, name: str, row: int) -> Any:
    """`block` with real numbers of single or double precision, copied from where it lay."""
    if hasattr(block, "detach"):
        return block if block.is_floating_point() else block.double()
    if sparse.issparse(block):
        return block.astype(_precision(block.dtype, name, row))
    block = np.asarray(block)
    if block.dtype.kind == "O":
        block = _from_objects(block, name, row)
    return np.array(block, dtype=_precision(block.dtype, name, row), order="C", copy=True)


def _precision(dtype: np.dtype[Any], name: str, row: int) -> type[np.floating[Any]]:
    if dtype.kind not in "fiub":
        raise ValueError(f"{name}: expected real numbers, got {dtype} in row {row}")
    return np.float32 if dtype.kind == "f" and dtype.itemsize <= 4 else np.float64


def _from_objects(block: np.ndarray, name: str, row: int) -> np.ndarray:
    try:
        return block.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        for index, cell in np.ndenumerate(block):
            try:
                float(cell)
            except (TypeError, ValueError, OverflowError):
                raise ValueError(
                    f"{name}: row {row + index[0]}, column {sum(index[1:]) + 1}: {cell!r} is not "
                    "a number"
                ) from None
        raise


def _flat(block: Any) -> Any:
    return block if len(block.shape) == 2 else block.reshape(block.shape[0], -1)


def _finite(block: Any, name: str, row: int, on_bad: OnBadRow, found: Batches) -> Any:
    entries = block.data if sparse.issparse(block) else block
    xp = namespace(entries)
    with np.errstate(over="ignore", invalid="ignore"):
        if bool(xp.isfinite(xp.sum(entries))):
            return block
    dense = np.asarray(block.toarray() if sparse.issparse(block) else block)
    bad = ~np.isfinite(dense)
    if on_bad == "raise" and bad.any():
        i, j = np.argwhere(bad)[0]
        raise ValueError(
            f"{name}: row {row + i}, column {j + 1}: {dense[i, j]} is not a finite number: "
            "repair the row, or leave such rows out"
        )
    keep = np.flatnonzero(~bad.any(axis=1))
    found.refused += block.shape[0] - len(keep)
    return block[keep]


# Batching ---------------------------------------------------------------------------------------


def _regrouped(blocks: Iterator[Any], size: int) -> Iterator[Any]:
    """The same rows, `size` at a time."""
    held: list[Any] = []
    count = 0
    for block in blocks:
        while count + block.shape[0] >= size:
            yield _joined([*held, block[: size - count]])
            block, held, count = block[size - count :], [], 0
        if block.shape[0]:
            held.append(block)
            count += block.shape[0]
    if held:
        yield _joined(held)


def _parts(batches: Iterator[Any], part: slice) -> Iterator[Any]:
    """The part of each batch; the last one may have none."""
    parts = (batch[part] for batch in batches)
    return (rows for rows in parts if rows.shape[0])


def _joined(blocks: Sequence[Any]) -> Any:
    if len(blocks) == 1:
        return blocks[0]
    if sparse.issparse(blocks[0]):
        return sparse.vstack(blocks, format="csr")
    return namespace(blocks[0]).concat(list(blocks), axis=0)
