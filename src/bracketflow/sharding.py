"""A basis whose rows are spread over processes: what is summed over rows is summed over all.

Methods say where they contract over the rows of a basis, `over_rows(X.mT @ Y)`. That is all a
spread basis needs: the rest of a step is local, and decisions read sums, equal on all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Array = Any


@dataclass(frozen=True)
class Shards:
    """How the rows of every basis are spread over processes, of which this is one."""

    n: int
    """Rows in all."""
    rank: int
    count: int
    """This process, and how many there are."""
    total: Callable[[Sequence[Array]], Sequence[Array]]
    """Sums the arrays over all processes, in one message; the same bits for all of them."""

    def part(self, rank: int) -> tuple[int, int]:
        """The first row of that process, and the one after its last."""
        return self.n * rank // self.count, self.n * (rank + 1) // self.count

    @property
    def own(self) -> slice:
        """The rows of this process."""
        return slice(*self.part(self.rank))


_shards: ContextVar[Shards | None] = ContextVar("shards", default=None)


@contextmanager
def spread_rows(shards: Shards) -> Iterator[None]:
    """Within, every (n, k) array of a method holds the rows of this process only."""
    token = _shards.set(shards)
    try:
        yield
    finally:
        _shards.reset(token)


def shards() -> Shards | None:
    """How rows are spread; None when this process holds all of them."""
    return _shards.get()


def over_rows(*sums: Array) -> Any:
    """Sums over the rows of a basis, completed by the other processes where it is spread.

    Several sums travel in one message, so they are best asked for together.
    """
    spread = _shards.get()
    totals = sums if spread is None else spread.total(sums)
    return totals[0] if len(totals) == 1 else totals


def row_count(basis: Array) -> int:
    """n: the rows of a basis, those of all processes."""
    spread = _shards.get()
    return int(basis.shape[-2]) if spread is None else spread.n
