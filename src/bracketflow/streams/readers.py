"""Rows from files: `.npy`, `.npz`, CSV, Parquet, HDF5 and byte streams, lazily and in order."""

from __future__ import annotations

import importlib
import io
import math
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bracketflow.streams.matrices import DENSE, ROOMY, check_archive, load_sparse
from bracketflow.streams.text import read_text

NPY_MAGIC = b"\x93NUMPY"
BLOCK = 4096  # lines of text or rows of a table that are parsed at once


class Wanted(NamedTuple):
    """What is to be read."""

    size: int
    """Rows at a time."""
    start: int
    """Rows to leave out at the beginning."""
    key: str | None
    """Array of a file that holds several."""
    columns: Sequence[str] | None
    """Columns of a table."""
    part: slice = slice(None)
    """Rows of each batch, for a reader that can leave the others unread."""

    @property
    def whole(self) -> bool:
        """Whether all rows are wanted."""
        return self.part == slice(None)


class Rows(NamedTuple):
    """An opened source."""

    name: str
    total: int | None
    """Rows in all, with those left out; None when that is not known before the end."""
    blocks: Iterator[Any]
    """Arrays of rows, of any number each, in order."""
    parted: bool = False
    """Whether each block is the part of a batch that was wanted, and nothing else."""


def open_file(path: Path, wanted: Wanted) -> Rows:
    """The rows of a file, by its ending."""
    opener = OPENERS.get(path.suffix.lower())
    if opener is None:
        raise ValueError(f"{path}: unknown ending, expected one of {', '.join(OPENERS)}")
    if wanted.columns is not None and opener not in (_open_text, _open_parquet):
        raise ValueError(f"{path}: columns can be named in CSV and Parquet files only")
    if not path.exists():
        raise ValueError(f"{path}: no such file")
    try:
        rows = opener(path, wanted)
    except ImportError:
        raise
    except Exception as error:  # parsers raise anything when the bytes are wrong
        raise _named(error, str(path), "cannot be read") from error
    return rows._replace(blocks=_named_errors(rows.blocks, str(path)))


def open_stream(file: Any, name: str, wanted: Wanted) -> Rows:
    """The rows of a byte stream that holds one `.npy` array or CSV text."""
    if not hasattr(file, "peek"):
        file = io.BufferedReader(file)
    if file.peek(len(NPY_MAGIC))[: len(NPY_MAGIC)] == NPY_MAGIC:
        layout = _npy_layout(file, name)
        return Rows(name, layout.shape[0], skipped(_read_npy(file, layout, wanted), wanted.start))
    blocks = read_text(file, name, wanted.columns, min(wanted.size, BLOCK))
    return Rows(name, None, skipped(blocks, wanted.start))


def _named_errors(blocks: Iterator[Any], name: str) -> Iterator[Any]:
    """The same blocks; what the operating system or a library complains of names the file."""
    try:
        yield from blocks
    except Exception as error:
        raise _named(error, name, "cannot be read further") from error


def _named(error: Exception, name: str, what: str) -> Exception:
    """`error` if it is one of ours, which name the file already, else one that does."""
    if isinstance(error, ValueError) and name in str(error):
        return error
    return ValueError(f"{name}: {what}: {type(error).__name__}: {error}")


def slices(array: Any, wanted: Wanted) -> Iterator[Any]:
    """The part of array[start : start + size], and so on; only the rows at hand are touched."""
    low, high, _ = wanted.part.indices(wanted.size)
    for first in range(wanted.start, array.shape[0], wanted.size):
        yield array[first + low : first + high]


def skipped(blocks: Iterator[Any], count: int) -> Iterator[Any]:
    """The blocks without their first `count` rows."""
    for block in blocks:
        left_out = min(count, block.shape[0])
        count -= left_out
        if left_out < block.shape[0]:
            yield block[left_out:] if left_out else block


def require(module: str, extra: str) -> Any:
    """An optional package, or the line that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ImportError(
            f"this file needs {module.partition('.')[0]}: pip install 'bracketflow[{extra}]'"
        ) from None


# NumPy ------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    name: str
    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def truncated(self, got: int) -> ValueError:
        row, rest = divmod(got, max(self.row_bytes, 1))
        return ValueError(
            f"{self.name}: truncated: its header promises {self.shape[0]} rows, but it ends in "
            f"row {row + 1}, column {rest // self.dtype.itemsize + 1}"
        )


def _npy_layout(file: Any, name: str) -> _Layout:
    """The header of a `.npy` array; the file then stands at its first number."""
    try:
        version = np.lib.format.read_magic(file)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise ValueError(f"format version {version} holds a structured array")
        shape, by_columns, dtype = readers[version](file)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{name}: cannot be read as a .npy file: {error}") from error
    if len(shape) < 2 or dtype.kind not in "fiub":
        raise ValueError(
            f"{name}: expected rows and columns of real numbers, got shape {shape} of {dtype}"
            + (": a single column is array[:, None]" if len(shape) == 1 else "")
        )
    return _Layout(name, shape, by_columns, dtype)


def _open_npy(path: Path, wanted: Wanted) -> Rows:
    with path.open("rb") as file:
        layout = _npy_layout(file, str(path))
        offset = file.tell()
    held = path.stat().st_size - offset
    if held < layout.shape[0] * layout.row_bytes:
        raise layout.truncated(held)
    if 0 in layout.shape:
        return Rows(str(path), 0, iter(()))
    order: Any = "F" if layout.by_columns else "C"
    array = np.memmap(path, layout.dtype, "r", offset, layout.shape, order)
    return Rows(str(path), layout.shape[0], slices(array, wanted), parted=not wanted.whole)


def _read_npy(file: Any, layout: _Layout, wanted: Wanted) -> Iterator[np.ndarray]:
    """The numbers behind a header, a few rows at a time."""
    if layout.by_columns:  # its first row ends at the end of the file
        shape = layout.shape
        yield _numbers(file, layout, 0, shape[0]).reshape(shape[::-1]).transpose()
        return
    for first in range(0, layout.shape[0], wanted.size):
        count = min(wanted.size, layout.shape[0] - first)
        yield _numbers(file, layout, first, count).reshape(count, *layout.shape[1:])


def _numbers(file: Any, layout: _Layout, first: int, count: int) -> np.ndarray:
    data = file.read(count * layout.row_bytes)
    if len(data) < count * layout.row_bytes:
        raise layout.truncated(first * layout.row_bytes + len(data))
    return np.frombuffer(data, layout.dtype)


def _open_npz(path: Path, wanted: Wanted) -> Rows:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path}: cannot be read as a .npz file: {error}") from error
    if {"format", "shape", "data"} <= set(names):
        check_archive(path)
        matrix = load_sparse(path).tocsr()
        return Rows(str(path), matrix.shape[0], slices(matrix, wanted), parted=not wanted.whole)
    member = _chosen(path, names, wanted.key)
    with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as file:
        layout = _npy_layout(file, f"{path} ({member})")
    if min(wanted.size, layout.shape[0]) * layout.row_bytes > max(
        ROOMY, DENSE * path.stat().st_size
    ):
        raise ValueError(f"{path}: a batch of its rows would take {layout.row_bytes} bytes a row")
    blocks = skipped(_read_npz(path, member, layout, wanted), wanted.start)
    return Rows(str(path), layout.shape[0], blocks)


def _read_npz(path: Path, member: str, layout: _Layout, wanted: Wanted) -> Iterator[np.ndarray]:
    with zipfile.ZipFile(path) as archive, archive.open(f"{member}.npy") as file:
        _npy_layout(file, layout.name)
        yield from _read_npy(file, layout, wanted)


def _chosen(path: Path, names: Sequence[str], key: str | None) -> str:
    if key in names:
        return str(key)
    if key is None and len(names) == 1:
        return names[0]
    asked = f"no array {key!r}" if key is not None else f"{len(names)} arrays"
    raise ValueError(f"{path}: holds {asked}: choose the key from {', '.join(names) or 'nothing'}")


# Text -------------------------------------------------------------------------------------------


def _open_text(path: Path, wanted: Wanted) -> Rows:
    return Rows(str(path), None, _read_file(path, wanted), parted=not wanted.whole)


def _read_file(path: Path, wanted: Wanted) -> Iterator[np.ndarray]:
    size = min(wanted.size, BLOCK) if wanted.whole else wanted.size
    with path.open("rb") as file:
        yield from read_text(file, str(path), wanted.columns, size, wanted.start, wanted.part)


# Tables and containers --------------------------------------------------------------------------


def _open_parquet(path: Path, wanted: Wanted) -> Rows:
    parquet, arrow = require("pyarrow.parquet", "files"), require("pyarrow", "files")
    try:
        file = parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise ValueError(f"{path}: cannot be read as a Parquet file: {error}") from error
    schema = file.schema_arrow
    names = list(schema.names) if wanted.columns is None else list(wanted.columns)
    for name in names:
        if name not in schema.names:
            raise ValueError(f"{path}: no column {name!r}: choose from {', '.join(schema.names)}")
        kind = schema.field(name).type
        number = arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean
        if not any(test(kind) for test in number):
            raise ValueError(
                f"{path}: column {names.index(name) + 1} ({name}) holds {kind}, not numbers: "
                "name the columns to be read"
            )
    return Rows(
        str(path),
        file.metadata.num_rows,
        skipped(_read_parquet(file, names, str(path), arrow.ArrowException), wanted.start),
    )


def _read_parquet(
    file: Any, names: list[str], name: str, failure: type[Exception]
) -> Iterator[np.ndarray]:
    row = 1
    try:
        for batch in file.iter_batches(batch_size=BLOCK, columns=names):
            columns = [batch.column(c).to_numpy(zero_copy_only=False) for c in names]
            yield np.column_stack(columns)
            row += batch.num_rows
    except (failure, OSError) as error:
        raise ValueError(f"{name}: cannot be read after row {row - 1}: {error}") from error
    finally:
        file.close()


def _open_hdf5(path: Path, wanted: Wanted) -> Rows:
    h5py = require("h5py", "files")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read as an HDF5 file: {error}") from error
    names: list[str] = []
    file.visititems(
        lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
    )
    try:
        data = file[_chosen(path, names, wanted.key)]
    except ValueError:
        file.close()
        raise
    total = data.shape[0] if data.shape else 0
    return Rows(str(path), total, _read_hdf5(file, data, wanted), parted=not wanted.whole)


def _read_hdf5(file: Any, data: Any, wanted: Wanted) -> Iterator[np.ndarray]:
    with file:
        yield from slices(data, wanted)


OPENERS: dict[str, Callable[[Path, Wanted], Rows]] = {
    ".npy": _open_npy,
    ".npz": _open_npz,
    ".csv": _open_text,
    ".tsv": _open_text,
    ".txt": _open_text,
    ".parquet": _open_parquet,
    ".h5": _open_hdf5,
    ".hdf5": _open_hdf5,
}
