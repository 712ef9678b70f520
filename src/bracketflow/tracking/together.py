"""A run of `bracketflow track` by the ranks that `torchrun` has started.

A batch of b rows is shared: rank r of P reads the rows b r/P to b (r + 1)/P of it, or as many of a
file of its own. So all ranks together see the batches that one process would see. What a rank has
to say in the middle of a run (that its rows end, that it was interrupted, that it cannot read on)
travels with the product; only beginning and end have messages of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from bracketflow.core import Array
from bracketflow.distributed.covariance import ShardedCovariance
from bracketflow.distributed.joining import join
from bracketflow.distributed.ranks import (
    GroupAbandoned,
    ending_soon,
    from_first,
    gathered,
    process_group,
    refuse_differences,
)
from bracketflow.streams import Batches, Moments
from bracketflow.streams.moments import column_means
from bracketflow.tracking.interruption import Interruption
from bracketflow.tracking.ranks import HowFar, Ranks, Start, Stuck, digest_of, until_trouble
from bracketflow.tracking.rows import Added, Batch, Ledger
from bracketflow.tracking.settings import Settings

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)  # in which a rank must have read and drawn what others wait for
RANK = "{rank}"  # in the name of a source: every rank has a file of its own
SHOWN = 4  # complaints of different ranks
EXPECTED = (ValueError, TypeError, ImportError, OSError)


@contextmanager
def joined(source: str, timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """All ranks, as a process group that ends with the context."""
    join(timeout)
    with ExitStack() as held:
        held.callback(dist.destroy_process_group)
        try:
            yield Together(own_files=RANK in source)
        except GroupAbandoned as error:
            held.pop_all()  # which would wait as well
            raise Stuck(str(error)) from error


class Together(Ranks):
    """Several processes; every answer is the same on all of them, but for their own rows."""

    def __init__(self, *, own_files: bool):
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.own_files = own_files
        self.first = self.rank == 0
        self.restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        # Its parent, the agent of torchrun, outlives a rank.
        launch = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {os.getppid()}"
        self.launch = str(from_first(launch, process_group()))
        self._start: Start | None = None
        self._near: Array | None = None
        self._all = _AllRows()

    def agree(self, settings: Settings) -> None:
        """Raise on every rank unless all were started with the same."""
        each = {"a file of its own": self.own_files}
        refuse_differences({**asdict(settings), **each}, process_group())

    def told(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises on the first rank, on every rank."""
        answer, problem = None, None
        if self.first:
            try:
                answer = work()
            except EXPECTED as error:
                problem = str(error)
        told: tuple[T, str | None] = from_first((answer, problem), process_group())
        if told[1] is not None:
            raise ValueError(told[1])
        return told[0]

    def everywhere(self, work: Callable[[], T]) -> T:
        """What `work` gives on this rank; an error on every rank when it fails on any."""
        problem = None
        try:
            answer = work()
        except EXPECTED as error:
            problem = str(error)
        told = _named(gathered(problem, process_group()))
        if told is not None:
            raise ValueError(told)
        return answer

    def opened(self, settings: Settings, source: str, ledger: Ledger) -> Batches:
        """Of each batch that follows those in the ledger, the part of this rank."""
        share = self._share(settings)
        if not self.own_files:
            return settings.opened(source, ledger.read, share)
        size = share.stop - share.start
        own = replace(settings, batch=size)
        return own.opened(source.replace(RANK, str(self.rank)), ledger.batches * size)

    def _share(self, settings: Settings) -> slice:
        """Which rows of a batch are this rank's."""
        b = settings.batch or 0
        if b < self.count:
            raise ValueError(
                f"--batch {b}: {self.count} ranks share a batch, and each must have a row of it"
            )
        return slice(b * self.rank // self.count, b * (self.rank + 1) // self.count)

    def started(self, first: Any, rows: Batches) -> Start | None:
        """What all ranks' parts of the first batch say; None when none has any."""
        own = super().started(first, rows)
        mean = None if own is None else column_means(first)
        told = gathered((own, mean, rows.total), process_group())
        starts = {rank: start for rank, (start, _, _) in enumerate(told) if start is not None}
        totals = [total for _, _, total in told]
        known = None if None in totals else sum(totals)
        total = known if self.own_files else totals[0]
        self._all = _AllRows(total)
        if not starts:
            return None
        # A rank without rows agrees with the others.
        refuse_differences(self._kind(own or next(iter(starts.values()))), process_group())
        b = sum(start.rows for start in starts.values())
        weighted = [start.rows / b * told[rank][1] for rank, start in starts.items()]
        self._near = np.sum(weighted, axis=0, dtype=np.float64)
        self._start = next(iter(starts.values()))._replace(rows=b, total=total)
        return self._start

    def _kind(self, start: Start) -> dict[str, Any]:
        """What the files of all ranks must have in common."""
        kind = {"columns": start.columns, "dtype": start.dtype}
        return kind if self.own_files else {**kind, "rows": start.total}

    def fingerprint(self, settings: Settings, source: str, digest: str | None) -> Any:
        """Of a common file what one process would say; of files of their own a list."""
        if self.own_files:
            return gathered(digest, process_group())
        return self.told(lambda: digest_of(next(settings.opened(source), None)))

    def check_read(
        self, settings: Settings, source: str, ledger: Ledger, rows: Batches, first: Any
    ) -> None:
        """Raise unless the sources hold the rows that were read before, and no others there."""
        if not self.own_files:
            super().check_read(settings, source, ledger, rows, first)
            return
        before = self.everywhere(lambda: self._rows_before(settings, source, ledger, first))
        found = sum(gathered(before, process_group()))
        if found != ledger.read:
            raise ValueError(
                f"{source}: up to batch {ledger.batches} the ranks' files now hold {found} rows "
                f"but {ledger.read} were read before: they are not the files that this run was "
                "started with, or one that had ended has grown"
            )

    def _rows_before(self, settings: Settings, source: str, ledger: Ledger, first: Any) -> int:
        """Rows of this rank's file in the batches of the ledger."""
        share = self._share(settings)
        most = ledger.batches * int(share.stop - share.start)
        if first is not None:
            return most
        every = self.opened(settings, source, Ledger(None))
        total = None if settings.skip_bad else every.total
        return min(most, sum(int(part.shape[0]) for part in every) if total is None else total)

    def batch(self, rows: Any) -> Batch:
        """An observation made of every rank's rows."""
        return self._batch(rows, lambda: 0.0)

    def _batch(self, rows: Any, wish: Callable[[], float]) -> _SharedBatch:
        def product(block: Array) -> Array:
            return batch.added(Moments(), centre=False).operator @ block

        n = None if self._start is None else self._start.columns
        batch = _SharedBatch(n, product, rows=rows, near=self._near, wish=wish)
        return batch

    def observations(
        self, parts: Iterator[Any], stop: Interruption, problems: list[str]
    ) -> Iterator[Batch]:
        """Batches until no rank has rows; or one was interrupted or cannot read, for then all end.

        Each reads one part ahead, to tell with its product whether another follows.
        """
        parts = until_trouble(parts, problems)
        part, goes_on = next(parts, None), self._start is not None
        while goes_on:
            following = next(parts, None)

            def wish(more: float = float(following is not None)) -> float:
                return more if stop.signal is None and not problems else -float(self.count)

            batch = self._batch(part, wish)
            self._all.batch = batch
            yield batch
            self._all.before, self._all.batch = self._all.read, None
            part, goes_on = following, batch.goes_on

    def heeding(self, stop: Interruption) -> AbstractContextManager[None]:
        """Within, a rank that waits for a silent one ends soon after a signal."""
        return ending_soon(lambda: stop.signal is not None)

    def shown(self, rows: Batches, ledger: Ledger) -> HowFar:
        """How far all ranks are, for someone who watches."""
        self._all.before = ledger.read
        return self._all

    def ended(
        self, stop: Interruption, problems: list[str], refused: int
    ) -> tuple[str | None, int]:
        """What went wrong, and rows refused; `stop` then knows of every rank's signal."""
        own = problems[0] if problems else None
        told = gathered((own, stop.signal, refused), process_group())
        stop.signal = next((signal for _, signal, _ in told if signal is not None), None)
        if self.own_files:
            refused = sum(count for _, _, count in told)
        return _named([problem for problem, _, _ in told]), refused


@dataclass(eq=False)
class _SharedBatch(Batch):
    """A batch of which `rows`, None where there are none, are this rank's."""

    near: Array | None = None
    wish: Callable[[], float] = float
    made: ShardedCovariance | None = None

    def added(self, seen: Moments, *, centre: bool) -> Added:
        """What all ranks' rows add to those seen."""
        near = self.near if centre else None
        self.made = ShardedCovariance(self.rows, seen, near, more=self.wish())
        return self.made

    @property
    def goes_on(self) -> bool:
        """Whether another batch follows, as its product has told."""
        return self.made is not None and self.made.operator.told.more > 0

    @property
    def all_rows(self) -> int:
        """Those of all ranks; 0 before its product."""
        told = None if self.made is None else self.made.operator.total
        return 0 if told is None else round(told.weight)


class _AllRows:
    """Rows that all ranks have read."""

    def __init__(self, total: int | None = None):
        self.total = total
        self.before = 0
        self.batch: _SharedBatch | None = None

    @property
    def read(self) -> int:
        """Up to and with the batch at hand."""
        return self.before + (0 if self.batch is None else self.batch.all_rows)


def _named(problems: list[str | None]) -> str | None:
    """What the ranks complain of, with their numbers unless all say the same."""
    told = [f"rank {rank}: {text}" for rank, text in enumerate(problems) if text is not None]
    if len(told) == len(problems) and len({*problems}) == 1:
        return problems[0]
    several = [f"and {len(told) - SHOWN} more"] if len(told) > SHOWN else []
    return "; ".join(told[:SHOWN] + several) or None
