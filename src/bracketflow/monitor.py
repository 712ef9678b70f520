"""Monitors watch a run and change nothing: Recorder, Progress, and the sinks records go to.

A monitor is any function of (state, probe). A sink is any function of one record (a dict).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np

from bracketflow.certificates import rounding_bound
from bracketflow.core import Probe, State, diagonal, to_host, whole_number

Record = dict[str, Any]
Sink = Callable[[Record], None]
Measure = Callable[[State, Probe], Any]


def _plain(value: Any) -> Any:
    """Numbers and nested lists of numbers, ready for JSON."""
    return value if isinstance(value, str) else to_host(value).tolist()


MEASURES: Mapping[str, Measure] = {
    "n": lambda state, probe: probe.basis.shape[-2],
    "background": lambda state, probe: probe.background,
    "lyapunov": lambda state, probe: probe.lyapunov,
    "spread": lambda state, probe: probe.spread,
    "rounding": lambda state, probe: rounding_bound(probe),
    "eigenvalues": lambda state, probe: diagonal(probe.rayleigh) + probe.background[..., None],
    "residuals": lambda state, probe: probe.residuals,
}
"""What a Recorder measures unless told otherwise: enough for `certify_record`. The background
holds σ² plus the mean of the tracked eigenvalues."""


class Recorder:
    """Keep a record of every `every`-th step: `step`, `matvecs` and the measures.

    Parameters
    ----------
    every : int
        Steps between records.
    measures : mapping of name to function of (state, probe), optional
        Added to the standard ones (see `MEASURES`); a name given again replaces the standard one.
    sinks : sequence of functions of one record
        Where records go besides `records`, for example `JSONLines(path)` or `CSV(path)`.
    keep : bool
        False leaves `records` empty: for long runs that only feed sinks.
    """

    def __init__(
        self,
        every: int = 1,
        *,
        measures: Mapping[str, Measure] | None = None,
        sinks: Sequence[Sink] = (),
        keep: bool = True,
    ):
        self.every = whole_number(every, "every", at_least=1)
        self.measures = {**MEASURES, **(measures or {})}
        self.sinks = tuple(sinks)
        self.keep = keep
        self.records: list[Record] = []
        self._calls = 0

    def __call__(self, state: State, probe: Probe) -> None:
        """Record this step if its turn has come."""
        self._calls += 1
        if (self._calls - 1) % self.every:
            return
        record = {
            "step": _plain(state.steps),
            "matvecs": _plain(state.matvecs + probe.matvecs),
            **{name: _plain(measure(state, probe)) for name, measure in self.measures.items()},
        }
        if self.keep:
            self.records.append(record)
        for sink in self.sinks:
            sink(record)

    def column(self, name: str) -> np.ndarray:
        """One measure over all records, as an array."""
        return np.asarray([record[name] for record in self.records])


class _FileSink:
    """A text file opened at the first record and closed with the sink."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._file: TextIO | None = None

    def _open(self) -> TextIO:
        if self._file is None:
            self._file = self.path.open("w", encoding="utf-8", newline="")
        return self._file

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class JSONLines(_FileSink):
    """One JSON object a line."""

    def __call__(self, record: Record) -> None:
        """Write one record."""
        self._open().write(json.dumps(record) + "\n")


class CSV(_FileSink):
    """Comma-separated values with a header; a list becomes columns name_0, name_1, …"""

    def __call__(self, record: Record) -> None:
        """Write one record."""
        row = dict(_flattened(record))
        first = self._file is None
        writer = csv.DictWriter(self._open(), fieldnames=list(row))
        if first:
            writer.writeheader()
        writer.writerow(row)


def _flattened(record: Record) -> list[tuple[str, Any]]:
    cells: list[tuple[str, Any]] = []
    for name, value in record.items():
        if isinstance(value, list):
            flat = np.asarray(value).ravel().tolist()
            cells.extend((f"{name}_{i}", item) for i, item in enumerate(flat))
        else:
            cells.append((name, value))
    return cells


class Progress:
    """A progress bar with rate and time left (extra `cli`); use it as a context manager.

    For example ``with Progress(500) as bar: run(method, stream, state, monitors=[bar])``.
    """

    def __init__(self, total: int | None = None, label: str = "tracking"):
        try:
            from rich import progress as bars
        except ImportError:
            raise ImportError(
                "Progress needs rich: pip install 'bracketflow[cli]', or pass another monitor"
            ) from None
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[note]}"),
        )
        self._task = self._bar.add_task(label, total=total, note="")

    def __call__(self, state: State, probe: Probe) -> None:
        """Advance by one step and show the largest residual."""
        worst = float(np.max(to_host(probe.residuals)))
        self._bar.update(self._task, advance=1, note=f"largest residual {worst:.1e}")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
