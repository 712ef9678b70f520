"""One call: decompose a fixed operator, track a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

from bracketflow.core import (
    Array,
    ObservationError,
    Probe,
    Result,
    State,
    contiguous,
    diagonal,
    namespace,
)
from bracketflow.driver import Method, Monitor, OnBad, checked_stream, read_off, run
from bracketflow.geometry import random_basis
from bracketflow.oracles import Operator, as_observation, as_operator
from bracketflow.sharding import shards
from bracketflow.stopping import Stop, residual_status, tolerance
from bracketflow.stopping import max_steps as steps_at_most
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
    rng: Any = None,
) -> Result:
    """Eigenvectors of a fixed operator: all of them, or the `k` largest or smallest.

    Stops when max r_i ≤ tol · spread (see `residual_below`) or after `max_steps`. For k < n, copies
    of repeated eigenvalues are looked for first, once the residuals are down to 1e-7: a `tol` above
    that saves little.
    """
    operator = oriented(as_operator(A, static=True), which)
    if operator.n is None and shards() is None:
        raise ValueError("A is a callable of unknown size: pass bf.as_operator(A, n)")
    method = EigenTracker()
    state = method.init(_start(operator, k, rng))
    stop = [_ritz_residual_below(method, tol), steps_at_most(max_steps)]
    result = run(method, itertools.repeat(operator), state, stop=stop)
    rotate = not result.probe.is_square
    result = read_off(result.probe, result.state, result.status, rotate=rotate)
    return reoriented(result, which)


def _ritz_residual_below(method: EigenTracker, tol: float) -> Stop:
    """`residual_below` for the columns as `decompose` returns them: turned by eigh(H).

    Not before the tracker has looked for further copies of repeated eigenvalues.
    """
    tol = tolerance(tol)

    def rule(state: State, probe: Probe) -> Any:
        if method.in_doubt(state):
            return None
        if probe.is_square:
            return residual_status(state, probe, probe.residuals, tol)
        _, turn = namespace(probe.rayleigh).linalg.eigh(probe.rayleigh)
        squares = diagonal(turn.mT @ probe.residual_gram @ turn)
        return residual_status(state, probe, abs(squares) ** 0.5, tol)

    return rule


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
