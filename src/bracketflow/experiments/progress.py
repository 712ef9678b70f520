"""How far a computation has come, as a fraction, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Reports fractions of [start, end] to `listener`."""

    listener: Callable[[float], None] | None = None
    start: float = 0.0
    end: float = 1.0

    def __call__(self, fraction: float) -> None:
        """Report that this part is done to `fraction`."""
        if self.listener is not None:
            self.listener(self.start + (self.end - self.start) * min(fraction, 1.0))

    def parts(self, *weights: float) -> list[Progress]:
        """Consecutive parts, as long as their weights."""
        total, at = sum(weights), self.start
        found = []
        for weight in weights:
            length = (self.end - self.start) * weight / total
            found.append(Progress(self.listener, at, at + length))
            at += length
        return found

    def over(self, items: Iterable[T], total: int) -> Iterator[T]:
        """`items`, reported now and then as they pass."""
        every = max(1, total // 200)
        for index, item in enumerate(items):
            if index % every == 0:
                self(index / total)
            yield item
        self(1.0)


SILENT = Progress()
