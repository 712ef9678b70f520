"""The time series of a run, one line a batch: written as it goes on, read back for the page."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bracketflow.atomic import named_errors, open_ordinary, write_atomically
from bracketflow.certificates import certify, rounding_bound
from bracketflow.core import Probe, State
from bracketflow.monitor import CSV, Record
from bracketflow.tracking.rows import RowTracker, background, known_errors, ledger_of, variances

POINTS = 1500  # records that a figure shows at most
PART = 1 << 20  # bytes that are read at once
WORDS = "events"  # the one column that is text
COUNTS = ("rows", "step", "matvecs")
OF_BATCH = ("background", "lyapunov", "rounding", "residuals", "angles")


def of_state(method: RowTracker, state: State) -> Record:
    """What a state says: rows read, averaged eigenvalues, levels, the last move."""
    ledger, reading, started = ledger_of(state), method.read(state), state.steps > 0
    return {
        "rows": ledger.read,
        "step": int(state.steps),
        "matvecs": int(state.matvecs),
        "eigenvalues": variances(state).tolist() if started else _unknown(state),
        "eigenvalue_errors": known_errors(reading.eigenvalue_errors).tolist(),
        "vector_errors": known_errors(reading.vector_errors).tolist(),
        "unseen": background(state) if started else np.nan,
        "total": ledger.total if started else np.nan,
        "floor": ledger.floor,
        "change": ledger.change,
        "memory": float(reading.memory),
        WORDS: " | ".join(event.message for event in ledger.noticed),
    }


def of_batch(state: State, probe: Probe | None) -> Record:
    """What the next batch says of the state's basis; NaN when there is none."""
    if probe is None:
        unknown = [np.nan, np.nan, np.nan, _unknown(state), _unknown(state)]
        return dict(zip(OF_BATCH, unknown, strict=True))
    known = (
        float(probe.background),
        float(probe.lyapunov),
        float(rounding_bound(state, probe)),
        probe.residuals.tolist(),
        _by_column(certify(state, probe).angles, probe).tolist(),
    )
    return dict(zip(OF_BATCH, known, strict=True))


def _unknown(state: State) -> list[float]:
    return [float("nan")] * int(state.basis.shape[-1])


def _by_column(ordered: np.ndarray, probe: Probe) -> np.ndarray:
    """A certificate's figures, which are by descending eigenvalue, in the places of the columns."""
    placed = np.empty_like(ordered)
    placed[np.argsort(-np.diagonal(probe.rayleigh), kind="stable")] = ordered
    return placed


class Written(NamedTuple):
    """What a checkpoint knows of the series: all before the line of its state."""

    length: int
    """Bytes,"""
    checksum: str
    """and their SHA-256."""


NOTHING_WRITTEN = Written(0, sha256().hexdigest())


class Writer(CSV):
    """A monitor that appends a line for each batch to a CSV file; use it as a context manager."""

    def __init__(self, path: Path, method: RowTracker):
        super().__init__(path, append=True)
        self.method = method
        self.before = NOTHING_WRITTEN
        """All before the last line."""
        self._length, self._digest = 0, sha256()

    def __call__(self, state: State, probe: Probe | None) -> None:  # type: ignore[override]
        """Record the state and the batch that came to it; with no probe, the state alone."""
        self.before = Written(self._length, self._digest.hexdigest())
        super().__call__({**of_state(self.method, state), **of_batch(state, probe)})
        self.flush()

    def _write(self, text: str) -> None:
        super()._write(text)
        line = text.encode()
        self._length += len(line)
        self._digest.update(line)

    def go_on_after(self, kept: Written) -> None:
        """Go on with a file that begins with what was kept; an error when it does not."""
        with suppress(FileNotFoundError), open_ordinary(self.path) as file:
            while part := file.read(min(PART, kept.length - self._length)):
                self._length += len(part)
                self._digest.update(part)
        if (self._length, self._digest.hexdigest()) != kept:
            raise ValueError(
                f"{self.path}: damaged, its first {kept.length:,} bytes are not those that the "
                "run has written: put a copy of them back, or start anew with --force"
            )

    def cut(self) -> None:
        """Leave only what was kept: a process that died may have written more."""
        with suppress(FileNotFoundError):
            os.truncate(self.path, self._length)


# Reading ----------------------------------------------------------------------------------------


class Series(NamedTuple):
    """A series as the page shows it."""

    records: list[Record]
    """At most `POINTS` of them, evenly spread; `change` is the largest since the one before."""
    events: list[tuple[int, str]]
    """Rows read, and what was noticed then."""


def load(path: Path) -> Series:
    """The series, thinned to what a figure can show."""
    with path.open("rb") as file:
        stride = max(1, -(-sum(1 for _ in file) // POINTS))
    records: list[Record] = []
    events: list[tuple[int, str]] = []
    largest = 0.0
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        header = next(reader)
        rows, words, change = (header.index(name) for name in ("rows", WORDS, "change"))
        cells: list[str] = []
        for index, cells in enumerate(reader):
            if cells[words]:
                events.append((int(cells[rows]), cells[words]))
            largest = max(largest, float(cells[change]))
            if index % stride == 0:
                records.append({**_gathered(header, cells), "change": largest})
                largest = 0.0
        if cells and int(cells[rows]) != records[-1]["rows"]:
            records.append({**_gathered(header, cells), "change": largest})
    return Series(records, events)


def _gathered(header: Sequence[str], cells: Sequence[str]) -> Record:
    """A record from the cells of a line: name_0, name_1, … become one list again."""
    record: Record = {}
    for name, cell in zip(header, cells, strict=True):
        stem, _, index = name.rpartition("_")
        if index.isdecimal():
            record.setdefault(stem, []).append(float(cell))
        else:
            record[name] = cell if name == WORDS else float(cell)
    return record


def write_parquet(path: Path) -> Path | None:
    """The series once more as a Parquet file beside the CSV, where pyarrow is installed."""
    try:
        import pyarrow as arrow
        from pyarrow import csv as table
        from pyarrow import parquet
    except ImportError:
        return None
    with path.open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file))
    kinds = {name: arrow.float64() for name in header}
    kinds |= dict.fromkeys(COUNTS, arrow.int64()) | {WORDS: arrow.string()}
    target = path.with_suffix(".parquet")
    with named_errors(target), tempfile.TemporaryFile(dir=path.parent) as copy:
        options = table.ConvertOptions(column_types=kinds)
        with (
            table.open_csv(path, convert_options=options) as source,
            parquet.ParquetWriter(copy, source.schema) as sink,
        ):
            for batch in source:
                sink.write_batch(batch)
        copy.seek(0)
        write_atomically(target, iter(lambda: copy.read(PART), b""))
    return target
