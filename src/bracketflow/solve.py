"""One call: decompose a fixed operator, track a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from bracketflow.core import (
    Array,
    ObservationError,
    Result,
    contiguous,
    namespace,
    whole_number,
)
from bracketflow.driver import Method, Monitor, OnBad, checked_stream, run
from bracketflow.geometry import random_basis
from bracketflow.krylov import full_basis, leading
from bracketflow.oracles import Operator, as_observation, as_operator
from bracketflow.sharding import shards
from bracketflow.stopping import Stop, tolerance
from bracketflow.tracker import EigenTracker

Which = Literal["largest", "smallest"]
SEARCHED = 100  # observations to look at for the first that is an operator


def decompose(
    A: Any,
    k: int | None = None,
    *,
    which: Which = "largest",
    tol: float = 1e-8,
    max_steps: int = 1000,
    shifts: bool = False,
    rng: Any = None,
) -> Result:
    """Eigenvectors of a fixed operator: all of them, or the `k` largest or smallest.

    For k < n by thick-restart Lanczos, and a search for further copies of repeated eigenvalues
    before anything is called converged; for k = n by `eigh` of the whole matrix.

    Parameters
    ----------
    A : anything `as_operator` takes
        The operator, C. An array (..., n, n) is an ensemble of problems.
    k : int, optional
        How many eigenvectors; all n without it.
    which : "largest" or "smallest"
        Which end of the spectrum.
    tol : float
        Stop when max r_i ≤ tol · spread (see `residual_below`). For k < n the residuals are
        brought down to 1e-7 in any case: a `tol` above that saves nothing.
    max_steps : int
        Block products at most, but for the one that measures the result.
    shifts : bool
        Whether every product may be one with C + σ²I for another σ².
    rng : anything `numpy.random.default_rng` takes
        For the random vectors that chains start from.

    Returns
    -------
    Result
        Its `missed_probability` bounds the probability that an eigenvalue was missed which is
        further above the last one found than the residuals, or the rounding of the products, can
        tell: below 1e-6 unless the run ended at a limit or at the precision floor.

    Examples
    --------
    >>> import numpy as np
    >>> from bracketflow import decompose
    >>> result = decompose(np.diag([5.0, 5.0, 3.0, 1.0, 0.0]), k=2, rng=0)
    >>> result.eigenvalues.round(6).tolist(), result.missed_probability < 1e-6
    ([5.0, 5.0], True)
    """
    operator = oriented(as_operator(A, static=True), which)
    spread = shards()
    if operator.n is None and spread is None:
        raise ValueError("A is a callable of unknown size: pass bf.as_operator(A, n)")
    n: Any = operator.n if spread is None else spread.n  # a part of the rows is all it knows
    limit = "the dimension n"
    k = n if k is None else whole_number(k, "k", at_least=1, at_most=n, limit=limit)
    tol = tolerance(tol)
    max_steps = whole_number(max_steps, "max_steps", at_least=0)
    if k == n:
        return reoriented(full_basis(operator, n, tol=tol, max_steps=max_steps), which)
    result = leading(operator, n, k, tol=tol, max_steps=max_steps, shifts=shifts, rng=rng)
    return reoriented(result, which)


def track(
    stream: Iterable[Any],
    k: int | None = None,
    *,
    which: Which = "largest",
    method: Method | None = None,
    stop: Sequence[Stop] | Stop = (),
    monitors: Sequence[Monitor] | Monitor = (),
    on_bad: OnBad = "raise",
    rng: Any = None,
) -> Result:
    """Follow the eigenvectors of a stream of operators: all of them, or the leading `k`.

    The first operator gives the size, so it must know it (a bare callable does not: wrap it in
    `bf.as_operator(f, n)`).
    """
    observations = iter(checked_stream(stream))
    begin, operator = _first_operator(observations, on_bad)
    if operator.n is None and shards() is None:
        raise ValueError(
            "the stream's first operator is a callable of unknown size: wrap it, "
            "bf.as_operator(f, n)"
        )
    start = _start(operator, k, rng)
    method = EigenTracker() if method is None else method
    turned = (_oriented_or_bad(x, which) for x in itertools.chain(begin, observations))
    result = run(method, turned, method.init(start), stop=stop, monitors=monitors, on_bad=on_bad)
    return reoriented(result, which)


def _first_operator(observations: Iterator[Any], on_bad: OnBad) -> tuple[list[Any], Operator]:
    """The observations up to the first that is an operator, and that operator."""
    begin: list[Any] = []
    for observation in observations:
        begin.append(observation)
        try:
            return begin, as_operator(observation)
        except (TypeError, ValueError):
            if on_bad == "raise" or len(begin) == SEARCHED:
                raise
    if begin:
        raise ValueError(f"stream held no operator among its {len(begin)} observations")
    raise ValueError("stream is empty: nothing was observed")


def _oriented_or_bad(x: Any, which: str) -> Any:
    """`oriented`, or `x` itself where it is no operator: the loop refuses it."""
    try:
        return oriented(as_observation(x), which)
    except ObservationError:
        return x


def _start(operator: Operator, k: int | None, rng: Any) -> Array:
    spread = shards()
    n: Any = operator.n if spread is None else spread.n  # a part of the rows is all it knows
    return random_basis(n, k, rng=rng, ensemble=operator.ensemble, like=operator.like)


def oriented(x: Any, which: str) -> Operator:
    """`x`, or −x when the smallest eigenvalues are wanted."""
    if which not in ("largest", "smallest"):
        raise ValueError(f'which must be "largest" or "smallest", got {which!r}')
    operator = as_operator(x)
    if which == "largest":
        return operator
    return operator.derived(product=lambda block: -(operator @ block))


def reoriented(result: Result, which: str) -> Result:
    """The result for −C turned back into one for C, still in descending order."""
    if which == "largest":
        return result
    flip = namespace(result.eigenvalues).flip
    return replace(
        result,
        eigenvalues=-flip(result.eigenvalues, axis=-1),
        eigenvectors=contiguous(flip(result.eigenvectors, axis=-1)),
        residuals=flip(result.residuals, axis=-1),
        background=-result.background,
    )
