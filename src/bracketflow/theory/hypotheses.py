"""The hypotheses of a statement, checked in one place."""

from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.floating[Any]]
Real: TypeAlias = Any
"""A float, a NumPy array or, where no logarithm is taken, a torch tensor."""


class Check(NamedTuple):
    """Whether a guarantee holds and, in words, why or why not."""

    holds: bool
    reason: str


def require(holds: Real, name: str, value: Real, remedy: str) -> None:
    """Raise ValueError with name, value and remedy unless ``holds`` is true everywhere."""
    everywhere = holds.all() if hasattr(holds, "all") else holds
    if not bool(everywhere):
        raise ValueError(f"{name} = {value!r}: {remedy}")


def positive(**values: Real) -> None:
    """Require 0 < value < ∞; NaN fails."""
    for name, value in values.items():
        require((value > 0) & (value < inf), name, value, "must be positive and finite")


def non_negative(**values: Real) -> None:
    """Require 0 ≤ value < ∞; NaN fails."""
    for name, value in values.items():
        require((value >= 0) & (value < inf), name, value, "must be finite and not negative")


def count(least: int, **values: Real) -> None:
    """Require a count of at least ``least``."""
    for name, value in values.items():
        require((value >= least) & (value < inf), name, value, f"must be finite, >= {least}")


def separated(gap: Real, separation: Real) -> None:
    """Require 0 < separation < gap: otherwise the domain of separated diagonals is of no use."""
    positive(gap=gap, separation=separation)
    require(separation < gap, "separation", separation, f"choose it below the gap {gap!r}")


def certified(step: Real, constant: Real) -> None:
    """Require 0 < step ≤ 1/constant."""
    positive(step=step, constant=constant)
    require(step * constant <= 1, "step", step, f"take at most 1/constant = {1 / constant!r}")


def probability(**values: Real) -> None:
    """Require 0 < value < 1."""
    for name, value in values.items():
        require((value > 0) & (value < 1), name, value, "must lie strictly between 0 and 1")
