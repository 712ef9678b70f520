"""Ctrl-C and SIGTERM end a stream between two batches, so that nothing is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """A context in which the first signal ends the streams that pass through it.

    A second one does what it would do without us: whoever is in a hurry is not held up.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        """The signal that came, None so far."""
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._heard) for s in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()
        if self._waiting:  # for data that may never come
            raise KeyboardInterrupt

    def __call__(self, parts: Iterator[Any]) -> Iterator[Any]:
        """Pass `parts` on until a signal comes."""
        while self.signal is None:
            self._waiting = True
            try:
                part = next(parts)
            except (StopIteration, KeyboardInterrupt):
                return
            finally:
                self._waiting = False
            yield part
