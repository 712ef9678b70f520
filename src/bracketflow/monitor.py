"""Monitors watch a run and change nothing: Recorder, Progress, and the sinks records go to.

A monitor is any function of (state, probe). A sink is any function of one record (a dict).
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self, TextIO

import numpy as np

from bracketflow.atomic import named_errors
from bracketflow.certificates import rounding_bound
from bracketflow.core import BadObservation, Probe, State, diagonal, to_host, whole_number
from bracketflow.geometry import subspace_error
from bracketflow.threads import one_at_a_time

Record = dict[str, Any]
Sink = Callable[[Record], None]
Measure = Callable[[State, Probe], Any]


def _plain(value: Any) -> Any:
    """Numbers and nested lists of numbers, ready for JSON."""
    return value if isinstance(value, str) else to_host(value).tolist()


MEASURES: Mapping[str, Measure] = {
    "n": lambda state, probe: probe.n,
    "background": lambda state, probe: probe.background,
    "lyapunov": lambda state, probe: probe.lyapunov,
    "spread": lambda state, probe: probe.spread,
    "rounding": rounding_bound,
    "eigenvalues": lambda state, probe: diagonal(probe.rayleigh) + probe.background[..., None],
    "residuals": lambda state, probe: probe.residuals,
}
"""What a Recorder measures unless told otherwise: enough for `certify_record`. The background
holds σ² plus the mean of the tracked eigenvalues."""


def error_bars(method: Any, coverage: float = 0.95) -> dict[str, Measure]:
    """Measures of a tracker for a `Recorder`: averaged eigenvalues, and what they are uncertain by.

    `method` has `eigenvalues`, `background` and `read`, as `EigenTracker` has. "unseen" is the
    averaged level outside of the columns. Before the first observation was averaged, eigenvalues
    are those of the observation at hand. An error is NaN where too little has been averaged to
    know it.
    """

    def eigenvalues(state: State, probe: Probe) -> Any:
        begun = np.min(state.steps) > 0
        return method.eigenvalues(state, probe) if begun else MEASURES["eigenvalues"](state, probe)

    def unseen(state: State, probe: Probe) -> Any:
        return np.where(np.asarray(state.steps) > 0, method.background(state), np.nan)

    def errors(state: State, name: str) -> np.ndarray:
        found = getattr(method.read(state, coverage), name)
        return np.where((found > 0) & np.isfinite(found), found, np.nan)

    return {
        "eigenvalues": eigenvalues,
        "unseen": unseen,
        "eigenvalue_errors": lambda state, probe: errors(state, "eigenvalue_errors"),
        "vector_errors": lambda state, probe: errors(state, "vector_errors"),
    }


class SubspaceChange:
    """A measure: `subspace_error` between the basis now and at the record before, NaN at first."""

    def __init__(self) -> None:
        self._before: Any = None

    @one_at_a_time
    def __call__(self, state: State, probe: Probe) -> Any:
        """Compare with the basis of the last call, and keep this one."""
        before, self._before = self._before, state.basis
        none = np.full(np.shape(state.steps), np.nan)
        return none if before is None else subspace_error(before, state.basis)


class Recorder:
    """Keep a record of every `every`-th step: `step`, `matvecs`, the measures and `bad`.

    `bad` names the observations refused since the record before, with step and reason.

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
        self._bad: list[str] = []

    @one_at_a_time
    def __call__(self, state: State, probe: Probe) -> None:
        """Record this step if its turn has come."""
        self._calls += 1
        if (self._calls - 1) % self.every:
            return
        record = {
            "step": _plain(state.steps),
            "matvecs": _plain(state.matvecs + probe.matvecs),
            **{name: _plain(measure(state, probe)) for name, measure in self.measures.items()},
            "bad": "; ".join(self._bad),
        }
        self._bad.clear()
        if self.keep:
            self.records.append(record)
        for sink in self.sinks:
            sink(record)

    @one_at_a_time
    def refused(self, bad: BadObservation) -> None:
        """Put a bad observation into the next record, with its step and reason."""
        self._bad.append(f"step {bad.step}: {bad.reason}")

    def column(self, name: str) -> np.ndarray:
        """One measure over all records, as an array."""
        return np.asarray([record[name] for record in self.records])


class _FileSink:
    """A text file opened at the first record and closed with the sink.

    `append` goes on with a file that another run has begun.
    """

    def __init__(self, path: str | Path, *, append: bool = False):
        self.path = Path(path)
        self.append = append
        self._file: TextIO | None = None

    @one_at_a_time
    def _write(self, text: str) -> None:
        if self._file is None:
            how: Literal["a", "w"] = "a" if self.append else "w"
            self._file = self.path.open(how, encoding="utf-8", newline="")
        with named_errors(self.path):
            self._file.write(text)

    @one_at_a_time
    def flush(self, *, to_disk: bool = False) -> None:
        """Hand what was written to the operating system, or all the way to the disk."""
        if self._file is not None:
            with named_errors(self.path):
                self._file.flush()
                if to_disk:
                    os.fsync(self._file.fileno())

    @one_at_a_time
    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            file, self._file = self._file, None
            with named_errors(self.path):
                file.close()

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
        self._write(json.dumps(record) + "\n")


class CSV(_FileSink):
    """Comma-separated values with a header; a list becomes columns name_0, name_1, …"""

    @one_at_a_time
    def __call__(self, record: Record) -> None:
        """Write one record."""
        row = dict(_flattened(record))
        lines = io.StringIO()
        writer = csv.DictWriter(lines, fieldnames=list(row))
        if self._file is None and not (self.append and _has_content(self.path)):
            writer.writeheader()
        writer.writerow(row)
        self._write(lines.getvalue())


class TensorBoard:
    """Every number of a record to a `SummaryWriter`, at the record's step.

    Parameters
    ----------
    writer : torch.utils.tensorboard.SummaryWriter, or any object with its `add_scalar`
    prefix : str
        Put before the names; a list becomes name_0, name_1, …
    """

    def __init__(self, writer: Any, prefix: str = "bracketflow/"):
        self.writer = writer
        self.prefix = prefix

    def __call__(self, record: Record) -> None:
        """Write one record."""
        step = int(np.max(record["step"]))
        for name, value in _flattened({n: v for n, v in record.items() if n != "step"}):
            if isinstance(value, int | float):
                self.writer.add_scalar(self.prefix + name, value, step)


class WandB:
    """Every record to a Weights & Biases run, as one `run.log` with `step` among its values.

    Parameters
    ----------
    run : what `wandb.init` gave, or any object with its `log`
    prefix : str
        Put before the names; a list becomes name_0, name_1, …
    """

    def __init__(self, run: Any, prefix: str = "bracketflow/"):
        self.run = run
        self.prefix = prefix

    def __call__(self, record: Record) -> None:
        """Write one record."""
        self.run.log({self.prefix + name: value for name, value in _flattened(record)})


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


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

    Parameters
    ----------
    total : int, optional
        Steps, or what `done` counts, when all is done.
    label : str
    done : function of (state, probe), optional
        How far the run is; default: one step more.
    below : function of (state, probe), optional
        A line shown under the bar; without it the largest residual stands beside it.
    stderr : bool
        Show it there instead of on standard output.
    """

    def __init__(
        self,
        total: int | None = None,
        label: str = "tracking",
        *,
        done: Measure | None = None,
        below: Measure | None = None,
        stderr: bool = False,
    ):
        try:
            from rich import progress as bars
            from rich.console import Console, Group
            from rich.live import Live
            from rich.text import Text
        except ImportError:
            raise ImportError(
                "Progress needs rich: pip install 'bracketflow[cli]', or pass another monitor"
            ) from None
        console = Console(stderr=stderr)
        self._bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[rate]}"),
            bars.TimeRemainingColumn(),
            bars.TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._task = self._bar.add_task(label, total=total, note="", rate="")
        self._done = done
        self._below = below
        self._line = Text("", overflow="ellipsis", no_wrap=True)
        shown = self._bar if below is None else Group(self._bar, self._line)
        self._live = Live(shown, console=console, refresh_per_second=10)
        self._shown_at = 0.0
        self._latest: tuple[State, Probe] | None = None

    @one_at_a_time
    def __call__(self, state: State, probe: Probe) -> None:
        """Advance; what takes a look at the run is shown ten times a second at most."""
        self._latest = state, probe
        if self._done is None:
            self._bar.advance(self._task)
        if monotonic() - self._shown_at >= 0.1:
            self._shown_at = monotonic()
            self._show(state, probe)

    def _show(self, state: State, probe: Probe) -> None:
        speed = self._bar.tasks[0].speed
        shown: dict[str, Any] = {"rate": f"{speed:,.0f}/s" if speed else ""}
        if self._done is not None:
            shown["completed"] = float(self._done(state, probe))
        if self._below is not None:
            self._line.plain = str(self._below(state, probe))
        else:
            shown["note"] = f"largest residual {np.max(to_host(probe.residuals)):.1e}"
        self._bar.update(self._task, **shown)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._latest is not None:
            self._show(*self._latest)
        self._live.stop()
