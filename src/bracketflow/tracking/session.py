"""One run of `bracketflow track`: open, check, follow, save, resume."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from bracketflow.core import Probe, State, Status, whole_number
from bracketflow.driver import Monitor, run
from bracketflow.geometry import random_basis
from bracketflow.locking import folder_lock
from bracketflow.streams import Batches, batches
from bracketflow.tracker import EigenTracker
from bracketflow.tracking import page, series
from bracketflow.tracking.folder import PAGE, SERIES, Folder
from bracketflow.tracking.interruption import Interruption
from bracketflow.tracking.rows import RowTracker, as_batch, ledger_of, summary

SAVE_EVERY = 30.0  # seconds between checkpoints: what a power cut can cost
MOST_OFTEN = 5  # columns, unless another k is asked for
BATCH = 256


@dataclass(frozen=True)
class Settings:
    """What a run is made with; None where it is left open."""

    k: int | None = None
    batch: int | None = None
    centre: bool | None = None
    forget: float | None = None
    key: str | None = None
    columns: tuple[str, ...] | None = None
    skip_bad: bool | None = None

    def agreeing(self, earlier: dict[str, Any]) -> Settings:
        """Those of the run to be resumed: they may be given again, but not otherwise."""
        stored = Settings(**_settings(earlier))
        for field in fields(self):
            given, kept = getattr(self, field.name), getattr(stored, field.name)
            if given is not None and given != kept:
                raise ValueError(
                    f"--resume goes on with {field.name} = {kept}, got {given}: leave it out, or "
                    "choose another --out"
                )
        return stored

    def completed(self) -> Settings:
        """With the defaults where something is open; k stays as it is."""
        return replace(
            self,
            batch=BATCH if self.batch is None else whole_number(self.batch, "batch", at_least=1),
            centre=self.centre is not False,
            skip_bad=bool(self.skip_bad),
        )

    def method(self) -> RowTracker:
        """The tracker that these settings describe."""
        return RowTracker(self.centre is not False, EigenTracker(forget=self.forget))

    def opened(self, source: str, start: int = 0) -> Batches:
        """The batches of a source."""
        on_bad: Any = "skip" if self.skip_bad else "raise"
        return batches(
            source, self.batch, key=self.key, columns=self.columns, start=start, on_bad=on_bad
        )


def _settings(stored: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were before JSON made lists of them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}


@dataclass(frozen=True)
class Outcome:
    """How a run has ended."""

    status: Status
    summary: dict[str, Any]
    page: Path
    problem: str | None = None
    """What is wrong with the rows that could not be tracked."""
    refused: int = 0
    """Rows left out because they held NaN or Inf, or missed a value."""


Watchers = Callable[[Batches, RowTracker], AbstractContextManager[Sequence[Monitor]]]


def nobody(rows: Batches, method: RowTracker) -> AbstractContextManager[Sequence[Monitor]]:
    """No one watches."""
    return nullcontext(())


def follow(
    source: str,
    out: str | Path,
    settings: Settings,
    *,
    resume: bool = False,
    force: bool = False,
    interruption: Interruption | None = None,
    watchers: Watchers = nobody,
    save_every: float = SAVE_EVERY,
) -> Outcome:
    """Track the rows of `source` into the folder `out`, or go on with the run that it holds.

    Nothing is written before the first batch was read and absorbed without complaint. Rows that
    cannot be read later end the run like an interruption: what was tracked is saved.
    """
    folder = Folder(Path(out))
    manifest = folder.earlier(resume=resume, force=force)
    settings = settings.agreeing(manifest["settings"]) if resume else settings.completed()
    method = settings.method()
    if resume:
        state = folder.load_state()
        rows = settings.opened(source, ledger_of(state).read)
        _check_same(source, settings, manifest, rows, ledger_of(state).read)
        first = next(rows, None)
    else:
        rows = settings.opened(source)
        first = next(rows, None)
        if first is None:
            raise ValueError(f"{rows.name}: holds no rows")
        settings = replace(settings, k=_checked_k(settings, rows, first))
        state = _initial(method, first, settings)
        manifest = _manifest(source, settings, first)
    parts = chain([] if first is None else [first], rows)
    if first is not None:
        method.step(as_batch(first), state)  # raises now, before anything is touched
    with folder_lock(folder.path):
        if resume:
            series.truncate(folder / SERIES, ledger_of(state).read)
        else:
            folder.put_aside()
        folder.write_manifest({**manifest, "status": "RUNNING"})
        stop = interruption or Interruption()
        with series.Writer(folder / SERIES, method) as writer:
            session = _Session(folder, method, state, writer, save_every)
            with watchers(rows, method) as monitors:
                status, problem = session.run(stop(parts), monitors)
            session.close()
        if stop.signal is not None or problem is not None:
            status = Status.INTERRUPTED
        manifest = {**manifest, "status": status.name, "problem": problem, "refused": rows.refused}
        return _written(folder, session.state, method, manifest)


def _checked_k(settings: Settings, rows: Batches, first: Any) -> int:
    b, n = (int(size) for size in first.shape)
    if settings.k is None:
        return min(MOST_OFTEN, n)
    k = whole_number(settings.k, "k", at_least=1)
    if k > n:
        raise ValueError(f"{rows.name}: k = {k} is more than its {n} columns")
    total = b if b < (settings.batch or b) else rows.total
    determined = n if total is None else total - bool(settings.centre)
    if min(k, n - 1) > determined:
        raise ValueError(
            f"{rows.name}: k = {k} is too large: its {total} rows determine {determined} "
            "eigenvectors at most"
        )
    return k


def _initial(method: RowTracker, first: Any, settings: Settings) -> State:
    like = np.empty(0, dtype=first.dtype)
    return method.init(random_basis(first.shape[1], settings.k, rng=0, like=like))


def _manifest(source: str, settings: Settings, first: Any) -> dict[str, Any]:
    return {"source": source, "settings": asdict(settings), "first_batch": _digest(first)}


def _digest(first: Any) -> str:
    dense = first.toarray() if hasattr(first, "toarray") else first
    return hashlib.sha256(np.ascontiguousarray(dense).tobytes()).hexdigest()


def _check_same(
    source: str, settings: Settings, manifest: dict[str, Any], rows: Batches, read: int
) -> None:
    """Raise unless the source still begins with the rows that the run has read."""
    if rows.total is not None and rows.total < read:
        raise ValueError(
            f"{rows.name}: has {rows.total} rows but {read} of them were read before: it is not "
            "the file that this run was started with"
        )
    if source == "-":  # can be read once only: trusted
        return
    first = next(settings.opened(source), None)
    if first is None or _digest(first) != manifest["first_batch"]:
        raise ValueError(
            f"{rows.name}: begins with other rows than {manifest['source']} did when this run was "
            "started: resume with that file, or choose another --out"
        )


class _Session:
    """Runs the tracker and saves it now and then."""

    def __init__(
        self,
        folder: Folder,
        method: RowTracker,
        state: State,
        writer: series.Writer,
        save_every: float,
    ):
        self.folder = folder
        self.method = method
        self.state = state
        self.writer = writer
        self.save_every = save_every
        self.saved_at = monotonic()

    def run(self, parts: Iterator[Any], monitors: Sequence[Monitor]) -> tuple[Status, str | None]:
        """Follow the batches to their end, or to the first that cannot be read or absorbed."""
        problems: list[str] = []
        parts = _until_trouble(parts, problems)
        first = next(parts, None)
        if first is None:
            return Status.STREAM_ENDED, problems[0] if problems else None
        result = run(
            self.method,
            map(as_batch, chain([first], parts)),
            self.state,
            monitors=[self.writer, self._save_in_time, *monitors],
            on_bad="skip",
            bad_limit=1,
        )
        self.state = result.state
        if result.status is not Status.STREAM_ENDED:
            at = ledger_of(self.state).read + 1
            problems.append(f"the batch from row {at} on: {result.bad[-1].reason}")
        return result.status, problems[0] if problems else None

    def _save_in_time(self, state: State, probe: Probe) -> None:
        if monotonic() - self.saved_at >= self.save_every:
            self._save(state)

    def _save(self, state: State) -> None:
        self.writer.flush(to_disk=True)
        self.folder.save_state(state, self.method)
        self.saved_at = monotonic()

    def close(self) -> None:
        """Record the last state, which no batch follows, and save it."""
        self.writer(self.state, None)
        self._save(self.state)


def _written(folder: Folder, state: State, method: RowTracker, manifest: dict[str, Any]) -> Outcome:
    """Write what is made of the saved state and series: eigenpairs, Parquet, page, manifest."""
    figures = summary(state, method)
    manifest = {**manifest, "result": figures}
    folder.write_eigenpairs(state, method)
    series.write_parquet(folder / SERIES)
    page.write(folder, manifest)
    folder.write_manifest(manifest)
    status = Status[manifest["status"]]
    return Outcome(status, figures, folder / PAGE, manifest["problem"], manifest["refused"])


def _until_trouble(parts: Iterator[Any], problems: list[str]) -> Iterator[Any]:
    """Batches up to the first that cannot be read; what is wrong with it goes to `problems`."""
    try:
        yield from parts
    except ValueError as error:
        problems.append(str(error))
