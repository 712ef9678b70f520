"""Objects that change when used, in several threads: one call at a time, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

# Beside the objects and not in them: what is copied, pickled, cloned or compared has no lock.
_LOCKS: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):
    # The child has only the thread that forked: locks of others would never be released in it.
    os.register_at_fork(after_in_child=_LOCKS.clear)


def one_at_a_time(
    method: Callable[Concatenate[T, P], R],
) -> Callable[Concatenate[T, P], R]:
    """A method that waits while another thread is in such a method of the same object.

    Every method that changes the object must be one, and every one that reads more than one
    attribute of what is changed together. Calls of different objects do not wait for each other,
    and a call may make another one of its own object.
    """

    @wraps(method)
    def waiting(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        # `setdefault` of a dictionary is atomic: two threads get the same lock.
        with _LOCKS.get(self) or _LOCKS.setdefault(self, RLock()):
            return method(self, *args, **kwargs)

    return waiting
