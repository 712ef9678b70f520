"""scikit-learn's callback protocol where the installed version has it (1.9), silence elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """The method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "reported", "with_callbacks"]


def reported(estimator: Any, rows: Any, batches: Sequence[slice]) -> Iterator[slice]:
    """The batches of a fit, each announced to the estimator's callbacks; they may end it."""
    if not hasattr(estimator, "set_callbacks"):
        yield from batches
        return
    whole = estimator._init_callback_context(max_subtasks=len(batches))  # the documented entry
    whole.call_on_fit_task_begin(estimator=estimator, X=rows)
    for batch in batches:
        task = whole.subcontext(task_name="batch")
        task.call_on_fit_task_begin(estimator=estimator, X=rows[batch])
        yield batch
        fitted = {"X": rows[batch], "reconstruction_attributes": {}}
        if task.call_on_fit_task_end(estimator=estimator, **fitted):
            break
    whole.call_on_fit_task_end(estimator=estimator, X=rows, reconstruction_attributes={})
