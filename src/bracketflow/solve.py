"""One call: decompose a fixed operator, track a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal

from bracketflow.core import Array, Probe, Result, State, namespace
from bracketflow.driver import Method, Monitor, OnBad, checked_stream, column_norms, run
from bracketflow.flows import Adaptive, BrockettFlow, DoubleBracketFlow
from bracketflow.geometry import random_basis
from bracketflow.oracles import Operator, as_operator, observe
from bracketflow.stopping import Stop, residual_below, residual_status, tolerance
from bracketflow.stopping import max_steps as steps_at_most

Which = Literal["largest", "smallest"]


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

    Stops when max r_i ≤ tol · spread (see `residual_below`) or after `max_steps`.
    """
    operator = _oriented(as_operator(A, static=True), which)
    if operator.n is None:
        raise ValueError("A is a callable of unknown size: pass bf.as_operator(A, n)")
    start = _start(operator, operator.n, k, rng)
    method = _default_method(start)
    state = method.init(start)
    if isinstance(method, BrockettFlow):
        width, products = _spectral_width(operator, start)
        state = state._replace(memory=width, matvecs=state.matvecs + products)
    stop = [_ritz_residual_below(method, tol), steps_at_most(max_steps)]
    return _reoriented(run(method, itertools.repeat(operator), state, stop=stop), which)


def _spectral_width(operator: Operator, start: Array, products: int = 12) -> tuple[Array, int]:
    """λ_max − λ_min of a static operator from a few Lanczos steps, and the products spent.

    What `Adaptive` has learned only after a while, and for k = 1 may never learn: the range of H
    says nothing of the part of the spectrum that has not been seen.
    """
    xp = namespace(start)
    products = min(products, start.shape[-2])
    known = vector = start[..., :, :1]
    levels, couplings = [], []
    for _ in range(products):
        probe = observe(operator, State(vector))
        image = probe.residual
        for _ in range(2):  # once is not enough in floating point
            image = image - known @ (known.mT @ image)
        length = column_norms(image)
        levels.append(probe.background[..., None])
        couplings.append(length)
        # An invariant subspace ends the expansion: stay on its last vector.
        found = (length > 0)[..., None, :]
        vector = xp.where(found, image / xp.where(found, length[..., None, :], 1.0), vector)
        known = xp.concat([known, vector], axis=-1)
    level, coupling = xp.concat(levels, axis=-1), xp.concat(couplings, axis=-1)
    # Gershgorin on the tridiagonal matrix: an upper estimate without an eigensolver.
    left = xp.concat([0 * coupling[..., :1], coupling[..., :-1]], axis=-1)
    reach = left + coupling
    return xp.max(level + reach, axis=-1) - xp.min(level - reach, axis=-1), products


def _ritz_residual_below(method: Any, tol: float) -> Stop:
    """`residual_below`, but for the columns as `decompose` returns them: turned by eigh(H)."""
    if not getattr(method, "rotates", False):
        return residual_below(tol)
    tol = tolerance(tol)

    def rule(state: State, probe: Probe) -> Any:
        _, turn = namespace(probe.rayleigh).linalg.eigh(probe.rayleigh)
        return residual_status(state, probe, column_norms(probe.residual @ turn), tol)

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
    try:
        first = next(observations)
    except StopIteration:
        raise ValueError("stream is empty: nothing was observed") from None
    operator = as_operator(first)
    if operator.n is None:
        raise ValueError(
            "the stream's first operator is a callable of unknown size: wrap it, "
            "bf.as_operator(f, n)"
        )
    start = _start(operator, operator.n, k, rng)
    method = _default_method(start) if method is None else method
    oriented = (_oriented(x, which) for x in itertools.chain([first], observations))
    result = run(method, oriented, method.init(start), stop=stop, monitors=monitors, on_bad=on_bad)
    return _reoriented(result, which)


def _default_method(basis: Array) -> Any:
    n, k = basis.shape[-2:]
    return DoubleBracketFlow(Adaptive(), givens_escape=True) if k == n else BrockettFlow()


def _start(operator: Operator, n: int, k: int | None, rng: Any) -> Array:
    return random_basis(n, k, rng=rng, ensemble=operator.ensemble, like=operator.like)


def _oriented(x: Any, which: str) -> Operator:
    """`x`, or −x when the smallest eigenvalues are wanted."""
    if which not in ("largest", "smallest"):
        raise ValueError(f'which must be "largest" or "smallest", got {which!r}')
    operator = as_operator(x)
    if which == "largest":
        return operator
    return replace(operator, product=lambda block: -(operator @ block))


def _reoriented(result: Result, which: str) -> Result:
    """The result for −C turned back into one for C, still in descending order."""
    if which == "largest":
        return result
    flip = namespace(result.eigenvalues).flip
    return replace(
        result,
        eigenvalues=-flip(result.eigenvalues, axis=-1),
        eigenvectors=flip(result.eigenvectors, axis=-1),
        residuals=flip(result.residuals, axis=-1),
        background=-result.background,
    )
