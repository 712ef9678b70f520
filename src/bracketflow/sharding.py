"""A basis whose rows are spread over processes: what is summed over rows is summed over all.

Methods say where they contract over the rows of a basis, `over_rows(X.mT @ Y)`. That is all a
spread basis needs: the rest of a step is local, and decisions read sums, equal on all processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

Array = Any


@dataclass(frozen=True)
class Shards(ABC):
    """How the rows of every basis are spread over processes, of which this is one."""

    n: int
    """Rows in all."""
    rank: int
    count: int
    """This process, and how many there are."""

    @abstractmethod
    def total(self, sums: Sequence[Array]) -> Sequence[Array]:
        """The arrays summed over all processes, in one message; the same bits for all of them."""

    @abstractmethod
    def attempted(self, product: Callable[[], Array], block: Array) -> Array:
        """What `product` returns for this process's rows of `block`; NaN where it raises.

        Either way this process has taken part in all messages that the product has on others.
        """

    @abstractmethod
    def refuse_failures(self) -> None:
        """Raise on every process when the last product was NaN because one of them failed."""

    @abstractmethod
    def agree(self, facts: dict[str, Any]) -> None:
        """Raise on every process unless all of them give the same facts."""

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


def agree(**facts: Any) -> None:
    """Raise on every process unless all of those that share a basis give the same facts."""
    spread = _shards.get()
    if spread is not None:
        spread.agree(facts)


def row_count(basis: Array) -> int:
    """n: the rows of a basis, those of all processes."""
    spread = _shards.get()
    return int(basis.shape[-2]) if spread is None else spread.n
