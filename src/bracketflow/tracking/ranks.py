"""Who takes part in a run: one process, or the ranks that `torchrun` has started."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from bracketflow.streams import Batches
from bracketflow.tracking.interruption import Interruption
from bracketflow.tracking.rows import Batch, Ledger, as_batch
from bracketflow.tracking.settings import Settings

T = TypeVar("T")

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets


class Stuck(ConnectionError):
    """A message was given up, but a thread waits for it on, and keeps the process from ending."""


class HowFar(Protocol):
    """Rows read, of how many."""

    @property
    def read(self) -> int:
        """Rows read so far."""
        ...

    @property
    def total(self) -> int | None:
        """Rows in all, None when that is not known before the end."""
        ...


class Start(NamedTuple):
    """What the first batch that is read says of a source."""

    rows: int
    columns: int
    dtype: str
    total: int | None


class Ranks:
    """One process, which is the first and the last: what others would be asked it knows itself.

    A run is written against this. `tracking.together` answers the same questions for several
    processes, each with the same bits.
    """

    count: int = 1
    first: bool = True
    """Whether this rank writes and shows."""
    own_files: bool = False
    """Whether each rank has a file of its own."""
    launch: str | None = None
    """Names the start that this process came with, also after a restart."""
    restarted: bool = False
    """Whether the ranks were started again because one was lost."""

    def agree(self, settings: Settings) -> None:
        """Raise on every rank unless all were started with the same."""

    def told(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises on the first rank, on every rank."""
        return work()

    def everywhere(self, work: Callable[[], T]) -> T:
        """What `work` gives on this rank; an error on every rank when it fails on any."""
        return work()

    def opened(self, settings: Settings, source: str, ledger: Ledger) -> Batches:
        """Of each batch that follows those in the ledger, the part of this rank."""
        return settings.opened(source, ledger.read)

    def started(self, first: Any, rows: Batches) -> Start | None:
        """What all ranks' parts of the first batch say; None when none has any."""
        if first is None:
            return None
        b, n = (int(size) for size in first.shape)
        return Start(b, n, str(first.dtype), rows.total)

    def fingerprint(self, settings: Settings, source: str, digest: str | None) -> Any:
        """What the first batch of a source is known by; `digest` is that of this rank's part."""
        return digest

    def check_read(
        self, settings: Settings, source: str, ledger: Ledger, rows: Batches, first: Any
    ) -> None:
        """Raise unless the source holds the rows that were read before."""
        if rows.total is not None and rows.total < ledger.read:
            raise ValueError(
                f"{rows.name}: has {rows.total} rows but {ledger.read} of them were read before: "
                "it is not the file that this run was started with"
            )

    def check_number(self, fingerprint: Any) -> None:
        """Raise unless a run with this fingerprint can be resumed by these ranks."""
        began = len(fingerprint) if isinstance(fingerprint, list) else None
        here = self.count if self.own_files else None
        if began != here:
            raise ValueError(
                f"--resume: this run was started with {_files(began)}, but now there is "
                f"{_files(here)}: resume it as it was started"
            )

    def batch(self, rows: Any) -> Batch:
        """An observation made of every rank's rows."""
        return as_batch(rows)

    def observations(
        self, parts: Iterator[Any], stop: Interruption, problems: list[str]
    ) -> Iterator[Batch]:
        """Batches until the rows end, a signal comes, or rows cannot be read (see `problems`)."""
        return map(self.batch, until_trouble(stop(parts), problems))

    def heeding(self, stop: Interruption) -> AbstractContextManager[None]:
        """Within, a rank that waits for a silent one ends soon after a signal."""
        return nullcontext()

    def shown(self, rows: Batches, ledger: Ledger) -> HowFar:
        """How far all ranks are, for someone who watches."""
        return rows

    def ended(
        self, stop: Interruption, problems: list[str], refused: int
    ) -> tuple[str | None, int]:
        """What went wrong first, and rows refused; `stop` then knows of every rank's signal."""
        return (problems[0] if problems else None), refused


ALONE = Ranks()


@contextmanager
def launched(source: str) -> Iterator[Ranks]:
    """The ranks that torchrun has started with this process; without it this process alone."""
    if any(name not in os.environ for name in VARIABLES) or int(os.environ["WORLD_SIZE"]) < 2:
        yield ALONE
        return
    if source == "-":
        raise ValueError("standard input has no parts for the ranks of torchrun: give a file")
    try:
        from bracketflow.tracking.together import joined
    except ImportError as error:
        raise ImportError(
            f"several ranks need torch: pip install 'bracketflow[torch]' ({error})"
        ) from None
    with joined(source) as ranks:
        yield ranks


def _files(ranks: int | None) -> str:
    return "one file for all" if ranks is None else f"a file for each of {ranks} ranks"


def digest_of(rows: Any) -> str | None:
    """A checksum of rows; None where there are none."""
    if rows is None:
        return None
    dense = rows.toarray() if hasattr(rows, "toarray") else rows
    return hashlib.sha256(np.ascontiguousarray(dense).tobytes()).hexdigest()


def until_trouble(parts: Iterator[Any], problems: list[str]) -> Iterator[Any]:
    """Batches up to the first that cannot be read; what is wrong with it goes to `problems`."""
    try:
        yield from parts
    except ValueError as error:
        problems.append(str(error))
