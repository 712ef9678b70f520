"""Rows from text: CSV, tab- or space-separated, with or without a header, a block at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, islice
from typing import NamedTuple

import numpy as np

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-nan"})


class Layout(NamedTuple):
    """How the lines of one file are cut into numbers."""

    name: str
    delimiter: str | None
    """None: any white space."""
    width: int
    """Cells in a line."""
    header: tuple[str, ...]
    """Names of the columns, empty when the first line holds numbers."""
    wanted: tuple[int, ...]
    """Cells to be read."""

    @property
    def everything(self) -> bool:
        """Whether all cells are read."""
        return len(self.wanted) == self.width


Line = tuple[int, str]
"""Number of the line in the file, from 1, and its text."""


def read_text(
    lines: Iterable[bytes],
    name: str,
    columns: Sequence[str] | None,
    block: int,
    start: int = 0,
    part: slice = slice(None),
) -> Iterator[np.ndarray]:
    """Blocks of rows; a missing cell is NaN, any other that is not a number raises.

    Blank lines and those that begin with # are skipped. Rows are counted from 1 without them. The
    first `start` rows, and of each block those outside of `part`, are passed over unparsed.
    """
    numbered = _content(lines, name)
    first = next(numbered, None)
    if first is None:
        raise ValueError(f"{name}: holds no rows")
    layout = _layout(first[1], name, columns)
    if not layout.header:
        numbered = chain([first], numbered)
    _pass_over(numbered, start)
    low, high, _ = part.indices(block)
    for row in count(start + 1, block):
        _pass_over(numbered, low)
        own = list(islice(numbered, high - low))
        if not own:
            return
        yield _parsed(own, row + low, layout)
        _pass_over(numbered, block - high)


def _pass_over(lines: Iterator[Line], number: int) -> None:
    next(islice(lines, number, number), None)


def _content(lines: Iterable[bytes], name: str) -> Iterator[Line]:
    for number, raw in enumerate(lines, 1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{name}: line {number} is not text in UTF-8") from None
        if line.strip() and not line.startswith("#"):
            yield number, line


def _layout(line: str, name: str, columns: Sequence[str] | None) -> Layout:
    counts = {mark: line.count(mark) for mark in ("\t", ";", ",")}
    best = max(counts, key=lambda mark: counts[mark])
    delimiter = best if counts[best] else None
    cells = _cells(line, delimiter)
    header = () if any(_is_number(cell) for cell in cells) else tuple(c.strip() for c in cells)
    return Layout(name, delimiter, len(cells), header, _wanted(name, header, len(cells), columns))


def _wanted(
    name: str, header: Sequence[str], width: int, columns: Sequence[str] | None
) -> tuple[int, ...]:
    if columns is None:
        return tuple(range(width))
    known = list(header) or [str(i) for i in range(1, width + 1)]
    for column in columns:
        if column not in known:
            raise ValueError(f"{name}: no column {column!r}: choose from {', '.join(known)}")
    return tuple(known.index(column) for column in columns)


def _cells(line: str, delimiter: str | None) -> list[str]:
    return line.split() if delimiter is None else next(csv.reader([line], delimiter=delimiter))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parsed(part: Sequence[Line], row: int, layout: Layout) -> np.ndarray:
    """The numbers of some lines: all at once, or cell by cell where that fails."""
    try:
        block = np.loadtxt(
            [line for _, line in part],
            delimiter=layout.delimiter,
            comments=None,
            quotechar='"',
            usecols=None if layout.everything else layout.wanted,
            ndmin=2,
        )
        if block.shape == (len(part), len(layout.wanted)):
            return block
    except ValueError:
        pass
    return np.array([_row(line, row + i, layout) for i, line in enumerate(part)])


def _row(line: Line, row: int, layout: Layout) -> list[float]:
    number, text = line
    cells = _cells(text, layout.delimiter)
    if len(cells) != layout.width:
        raise ValueError(
            f"{layout.name}: row {row} (line {number}) has {len(cells)} columns where the first "
            f"has {layout.width}"
        )
    return [_number(cells[i], i, row, number, layout) for i in layout.wanted]


def _number(cell: str, column: int, row: int, line: int, layout: Layout) -> float:
    if cell.strip().lower() in MISSING:
        return float("nan")
    try:
        return float(cell)
    except ValueError:
        title = f" ({layout.header[column]})" if layout.header else ""
        raise ValueError(
            f"{layout.name}: row {row} (line {line}), column {column + 1}{title}: "
            f"{cell.strip()!r} is not a number: name the columns to be read, or repair the cell"
        ) from None
