"""One run of `bracketflow track`: open, check, follow, save, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from bracketflow.core import Probe, State, Status, whole_number
from bracketflow.driver import Monitor, run
from bracketflow.geometry import random_basis
from bracketflow.locking import folder_lock
from bracketflow.streams import Batches
from bracketflow.tracking import page, series
from bracketflow.tracking.folder import CHECKPOINT, PAGE, SERIES, Folder
from bracketflow.tracking.interruption import Interruption
from bracketflow.tracking.ranks import ALONE, HowFar, Ranks, Start, digest_of
from bracketflow.tracking.rows import Batch, Ledger, RowTracker, ledger_of, summary
from bracketflow.tracking.settings import Settings

SAVE_EVERY = 30.0  # seconds between checkpoints: what a power cut can cost
MOST_OFTEN = 5  # columns, unless another k is asked for
NOTHING_READ = Ledger(None)


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


Watchers = Callable[[HowFar, RowTracker], AbstractContextManager[Sequence[Monitor]]]


def nobody(rows: HowFar, method: RowTracker) -> AbstractContextManager[Sequence[Monitor]]:
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
    ranks: Ranks = ALONE,
) -> Outcome:
    """Track the rows of `source` into the folder `out`, or go on with the run that it holds.

    Nothing is written before the first batch was read and absorbed without complaint. Rows that
    cannot be read later end the run like an interruption: what was tracked is saved. The folder is
    locked from the first write to the last; what another process has made of it before is noticed.
    Of several `ranks` only the first touches the folder; all return the same.
    """
    ranks.agree(settings)
    folder = Folder(Path(out))
    resume, force = ranks.told(lambda: _intent(folder, ranks, resume, force))
    seen = folder.stamp()
    manifest = ranks.told(lambda: folder.earlier(resume=resume, force=force))
    settings = settings.agreeing(manifest["settings"]) if resume else settings.completed()
    method = settings.method()
    state = ranks.told(folder.load_state) if resume else None
    if state is not None:
        ranks.check_number(manifest["first_batch"])
    ledger = NOTHING_READ if state is None else ledger_of(state)
    rows = ranks.everywhere(lambda: ranks.opened(settings, source, ledger))
    first = ranks.everywhere(lambda: next(rows, None))
    start = ranks.started(first, rows)
    name = source if ranks.own_files else rows.name
    if state is not None:
        ranks.check_read(settings, source, ledger, rows, first)
        if source != "-":  # which can be read once only: it is trusted
            _check_begin(source, settings, manifest, ranks, name)
    elif start is None:
        raise ValueError(f"{name}: holds no rows")
    else:
        settings = replace(settings, k=_checked_k(settings, name, start))
        state = _initial(method, start, settings)
        manifest = _manifest(source, settings, ranks, first)
    if start is not None:
        method.step(ranks.batch(first), state)  # raises now, before anything is touched
    writer = series.Writer(folder / SERIES, method)
    session = _Session(folder, method, state, writer, save_every)
    with ExitStack() as held:
        ranks.told(lambda: _lock(folder, held, resume, force, seen))
        ranks.told(lambda: session.begin(manifest, ledger, resume))
        stop, problems = interruption or Interruption(), list[str]()
        batches = ranks.observations(_chained(first, rows), stop, problems)
        held.enter_context(_remedy_named(folder))
        with writer, session.rescued(), ranks.heeding(stop):
            if ranks.first:
                with watchers(ranks.shown(rows, ledger), method) as monitors:
                    status = session.run(batches, (session.record, *monitors), problems)
            else:
                status = session.run(batches, (), problems)
            ranks.told(session.close)
        problem, refused = ranks.ended(stop, problems, rows.refused)
        if stop.signal is not None or problem is not None:
            status = Status.INTERRUPTED
        manifest = {**manifest, "status": status.name, "problem": problem, "refused": refused}
        return ranks.told(lambda: _written(folder, session.state, method, manifest))


def _intent(folder: Folder, ranks: Ranks, resume: bool, force: bool) -> tuple[bool, bool]:
    """(resume, force) as asked for; ranks that were started again go on with what they began."""
    if not ranks.restarted or folder.manifest().get("launch") != ranks.launch:
        return resume, force
    return (True, force) if (folder / CHECKPOINT).exists() else (False, True)


def _lock(folder: Folder, held: ExitStack, resume: bool, force: bool, seen: Any) -> None:
    """Lock the folder; an error when another process has written there since it was looked at."""
    held.enter_context(folder_lock(folder.path))
    folder.earlier(resume=resume, force=force)
    if resume and folder.stamp() != seen:
        raise ValueError(
            f"{folder.path}: another process has written there while this one was waiting for its "
            "first rows: give --resume again to go on with what it holds now"
        )


@contextmanager
def _remedy_named(folder: Folder) -> Iterator[None]:
    """Within, an error of the system, as of a full disk, names its file and how to go on."""
    try:
        yield
    except ConnectionError:
        raise
    except OSError as error:
        raise ValueError(
            f"{error.filename or folder.path}: {error.strerror}: mend that and go on with "
            "--resume, what was saved before is kept"
        ) from error


def _chained(first: Any, rows: Batches) -> Iterator[Any]:
    return chain([] if first is None else [first], rows)


def _checked_k(settings: Settings, name: str, start: Start) -> int:
    b, n = start.rows, start.columns
    if settings.k is None:
        return min(MOST_OFTEN, n)
    k = whole_number(settings.k, "k", at_least=1)
    if k > n:
        raise ValueError(f"{name}: k = {k} is more than its {n} columns")
    total = b if b < (settings.batch or b) else start.total
    determined = n if total is None else total - bool(settings.centre)
    if min(k, n - 1) > determined:
        raise ValueError(
            f"{name}: k = {k} is too large: its {total} rows determine {determined} "
            "eigenvectors at most"
        )
    return k


def _initial(method: RowTracker, start: Start, settings: Settings) -> State:
    like = np.empty(0, dtype=start.dtype)
    return method.init(random_basis(start.columns, settings.k, rng=0, like=like))


def _manifest(source: str, settings: Settings, ranks: Ranks, first: Any) -> dict[str, Any]:
    known = ranks.fingerprint(settings, source, digest_of(first))
    launch = {} if ranks.launch is None else {"launch": ranks.launch}
    return {"source": source, "settings": asdict(settings), "first_batch": known, **launch}


def _check_begin(
    source: str, settings: Settings, manifest: dict[str, Any], ranks: Ranks, name: str
) -> None:
    """Raise unless the source still begins with the rows that the run has read first."""
    begin = ranks.everywhere(lambda: next(ranks.opened(settings, source, NOTHING_READ), None))
    if ranks.fingerprint(settings, source, digest_of(begin)) != manifest["first_batch"]:
        raise ValueError(
            f"{name}: begins with other rows than {manifest['source']} did when this run was "
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
        self.latest: State | None = None
        """Whose line was the last to be written, or to be tried."""

    def begin(self, manifest: dict[str, Any], ledger: Ledger, resume: bool) -> None:
        """Make the locked folder ready to go on, or for a new run, which can be resumed at once."""
        whole = {**manifest, "status": "RUNNING"}
        if not resume:
            with self.folder.cleared():
                self.folder.write_manifest(whole)
                self.folder.save_state(self.state, self.method, self.writer.before)
            return
        with _remedy_named(self.folder):
            self.writer.go_on_after(series.Written(*ledger.series))
            # Before anything is cut: a run that says it is whole must be so, whenever it dies.
            self.folder.write_manifest(whole)
            self.writer.cut()

    def run(
        self, batches: Iterator[Batch], monitors: Sequence[Monitor], problems: list[str]
    ) -> Status:
        """Follow the batches to their end, or to the first that cannot be read or absorbed."""
        first = next(batches, None)
        if first is None:
            return Status.STREAM_ENDED
        result = run(
            self.method,
            chain([first], batches),
            self.state,
            monitors=monitors,
            on_bad="skip",
            bad_limit=1,
        )
        self.state = result.state
        if result.status is not Status.STREAM_ENDED:
            at = ledger_of(self.state).read + 1
            problems.append(f"the batch from row {at} on: {result.bad[-1].reason}")
        return Status(result.status)

    def record(self, state: State, probe: Probe | None) -> None:
        """Write the line of a state, and save the state when it is time."""
        self.latest = state
        self.writer(state, probe)
        if probe is None or monotonic() - self.saved_at >= self.save_every:
            self.writer.flush(to_disk=True)
            self._save(state)

    def _save(self, state: State) -> None:
        self.folder.save_state(state, self.method, self.writer.before)
        self.saved_at = monotonic()

    def close(self) -> None:
        """Record the last state, which no batch follows, and save it."""
        self.record(self.state, None)

    @contextmanager
    def rescued(self) -> Iterator[None]:
        """Within, a file that cannot grow or a rank that is lost costs nothing that was seen."""
        try:
            yield
        except OSError:
            with suppress(OSError):
                self.writer.flush(to_disk=True)
            if self.latest is not None:
                with suppress(OSError):
                    self._save(self.latest)
            raise


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
