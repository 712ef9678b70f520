"""The leading k columns of a signal that stands still, whatever σ² does between the products.

C S = S T + Q Gᵀ is kept for an orthonormal span S with pending directions Q, all at one level.
Every product has a part in span S, whose image is known: that tells how far σ² has moved since.
A product that contradicts the relation says that the signal itself has moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    to_host,
)
from bracketflow.oracles import Operator, centre, observe
from bracketflow.tracker.identity import contiguous, continued, taken, upright

LARGEST = 8  # columns of S for each one asked for; beyond them S is condensed
CONDENSED = 3  # to this many
DOUBTED_AT = 1e-3  # residuals, relative to the spread, at which a single chain is checked
DOUBTS = 6  # products spent on that
DEFLATED = 0.1  # a part outside the span smaller than this is not resolved well enough


class Span(NamedTuple):
    """C S = S T + Q Gᵀ at the level of the first product; empty before it."""

    columns: Array
    rayleigh: Array
    pending: Array
    coupling: Array
    level: Any = np.float64(0.0)
    """s of the first product."""
    rounding: Any = np.float64(0.0)
    """The largest rounding of a product so far."""
    doubts: Any = np.int64(0)
    """Products left for a chain that looks for repeated eigenvalues."""
    rounds: Any = np.int64(0)
    """Such chains so far."""
    captured: Any = np.float64(-np.inf)
    """Sum of the leading Ritz values when the last of them began."""


class Block(NamedTuple):
    """What to multiply next: P = S A + Q B."""

    columns: Array
    known: Array
    fresh: Array


def start(basis: Array) -> Span:
    """Nothing known."""
    none, empty = basis[..., :0], basis[..., :0, :0]
    return Span(none, empty, none, empty)


def step(
    operator: Operator, state: State, span: Span, spare: Array
) -> tuple[Array | None, Probe, Span]:
    """One observation: next basis (None if the signal has moved), probe and span."""
    if span.columns.shape[-1] == 0:
        return _first(operator, state)
    if operator.static:
        span = _doubted(span, state.basis, spare)
    block = _next_block(operator, state.basis, span)
    seen, shift, image, span, fits = _multiplied(operator, state, span, block)
    probe = _probe(state.basis, seen, block, span, shift, image)
    if not fits:
        return None, probe, span
    basis = _ritz(span, state.basis.shape[-1], state.basis)
    return basis, probe, _condensed(span, basis.shape[-1])


def _multiplied(
    operator: Operator, state: State, span: Span, block: Block
) -> tuple[Probe, Any, Array, Span, bool]:
    """One product: its probe, shift and image, the span after it, and whether it fits the span."""
    seen = observe(operator, State(block.columns, seen=state.seen))
    span = span._replace(rounding=np.maximum(span.rounding, _rounding(seen)))
    shift, overlap = _shift(seen, block, span, operator.static)
    image = _image_of_fresh(seen, block, span, shift)
    directions, sizes, mixing = namespace(image).linalg.svd(block.fresh)
    rank = int(np.sum(to_host(sizes) > DEFLATED))
    mixing = mixing[:rank]
    surprise = frobenius_squared(image - image @ mixing.mT @ mixing)
    fits = to_host(surprise + frobenius_squared(overlap)) <= _slack(span) ** 2
    if fits and rank:
        span = _extended(span, directions, image @ (mixing.mT / sizes[:rank]))
    return seen, shift, image, span, bool(fits)


def _rounding(seen: Probe) -> Any:
    return to_host(seen.rounding + 16 * epsilon(seen.basis) * seen.extent)


def _slack(span: Span) -> Any:
    """How far products may contradict each other by rounding."""
    return 8 * span.rounding


def _floor(span: Span) -> Any:
    """Residuals below this are rounding."""
    return span.rounding / 16


def _first(operator: Operator, state: State) -> tuple[Array, Probe, Span]:
    """A span from X. A static operator is believed; else the next product tests it."""
    probe = observe(operator, state)
    k = state.basis.shape[-1]
    span = _seed(probe, 1 if operator.static else (k + 1) // 2)
    if operator.static:
        return _grown(operator, state, probe, span)
    if span.columns.shape[-1] < k:
        return _enriched(span, k), probe, span
    return _ritz(span, k, state.basis if state.steps else None), probe, span


def _seed(probe: Probe, width: int) -> Span:
    """S = X, or from a cold start the leading `width` of its Ritz vectors.

    Few columns make long Krylov chains: for the leading 4, a span of 20 from 1 column does what
    takes 30 from 2, and 50 from 4.
    """
    xp = namespace(probe.basis)
    k = probe.basis.shape[-1]
    cold = to_host(frobenius_squared(probe.residual) > frobenius_squared(probe.rayleigh))
    rounding = _rounding(probe)
    for count in (width, k) if cold else (k,):
        turn = xp.flip(xp.linalg.eigh(probe.rayleigh)[1], axis=-1)[:, :count]
        pending, coupling = _orthonormal(probe.residual @ turn, rounding / 16)
        columns, rayleigh = probe.basis @ turn, turn.mT @ probe.rayleigh @ turn
        if pending.shape[-1] == count:
            break
    level = to_host(probe.background)
    return Span(columns, rayleigh, pending, coupling, level, rounding)


def _enriched(span: Span, k: int) -> Array:
    """Leading k Ritz vectors in span[S, Q] if C were at the level of the first basis on Q."""
    xp = namespace(span.columns)
    corner = 0 * (span.coupling.mT @ span.coupling)
    whole = _blocks(span.rayleigh, span.coupling, span.coupling.mT, corner)
    turn = xp.flip(xp.linalg.eigh(whole)[1][:, -k:], axis=-1)
    m = span.columns.shape[-1]
    return contiguous(upright(span.columns @ turn[:m] + span.pending @ turn[m:]))


def _grown(operator: Operator, state: State, probe: Probe, span: Span) -> tuple[Array, Probe, Span]:
    """The span, multiplied on until it holds k columns; the products count as this step's."""
    k, matvecs = state.basis.shape[-1], probe.matvecs
    while span.columns.shape[-1] < k and span.pending.shape[-1]:
        nothing = 0 * (span.columns[:1].mT @ span.pending[:1])
        identity = identity_like(span.pending.mT @ span.pending)
        block = Block(contiguous(span.pending), nothing, identity)
        seen, _, _, span, _ = _multiplied(operator, state, span, block)
        matvecs += seen.matvecs
    return _ritz(span, k), replace(probe, matvecs=matvecs), span


def _orthonormal(residual: Array, floor: Any) -> tuple[Array, Array]:
    """Q and G with R = Q Gᵀ, less what is below `floor`."""
    left, sizes, right = namespace(residual).linalg.svd(residual, full_matrices=False)
    rank = int(np.sum(to_host(sizes) > floor))
    return left[:, :rank], right[:rank].mT * sizes[:rank]


def _next_block(operator: Operator, basis: Array, span: Span) -> Block:
    """The basis itself while it leaves span S or has converged; new directions otherwise.

    New directions are the largest residuals of the Ritz vectors, with one column of span X beside
    them as reference unless the operator is static.
    """
    xp = namespace(basis)
    k = basis.shape[-1]
    known, fresh = span.columns.mT @ basis, span.pending.mT @ basis
    residual = span.coupling.mT @ known
    leaves = to_host(frobenius_squared(fresh)) > epsilon(fresh)
    if leaves or to_host(frobenius_squared(residual)) <= _floor(span) ** 2:
        return Block(basis, known, fresh)
    if span.doubts > 0:
        fresh = identity_like(span.pending.mT @ span.pending)[:, -1:]
    else:
        width = 1 if operator.static else (k + 1) // 2
        fresh = xp.linalg.svd(residual, full_matrices=False)[0][:, :width]
    columns = span.pending @ fresh
    unknown = 0 * (span.columns[:1].mT @ columns[:1])
    if operator.static:
        return Block(columns, unknown, fresh)
    reference = xp.sum(known, axis=-1, keepdims=True) / k**0.5
    return Block(
        xp.concat([span.columns @ reference, columns], axis=-1),
        xp.concat([reference, unknown], axis=-1),
        xp.concat([0 * fresh[:, :1], fresh], axis=-1),
    )


def _doubted(span: Span, basis: Array, spare: Array) -> Span:
    """The span, with a chain from a spare column pending once the others have nearly converged.

    A single chain sees one vector of a repeated eigenvalue; another chain finds the next. There
    are new rounds until one has brought nothing.
    """
    if span.doubts > 0:
        return span._replace(doubts=span.doubts - 1)
    known = span.columns.mT @ basis
    captured = to_host(inner(known, span.rayleigh @ known))
    near = DOUBTED_AT * to_host(frobenius_squared(span.rayleigh)) ** 0.5
    settled = to_host(frobenius_squared(span.coupling.mT @ known)) <= near**2
    used = int(span.rounds)
    if not settled or captured <= span.captured + near or used >= spare.shape[-1]:
        return span
    column = spare[:, used : used + 1]
    for _ in range(2):
        column = column - span.columns @ (span.columns.mT @ column)
        column = column - span.pending @ (span.pending.mT @ column)
        column = column / frobenius_squared(column) ** 0.5
    xp = namespace(basis)
    return span._replace(
        pending=xp.concat([span.pending, column], axis=-1),
        coupling=xp.concat([span.coupling, 0 * span.columns[:1].mT], axis=-1),
        doubts=np.int64(DOUBTS),
        rounds=span.rounds + 1,
        captured=captured,
    )


def _shift(seen: Probe, block: Block, span: Span, static: bool) -> tuple[Any, Array]:
    """How far this product's level is from the span's, and what of SᵀCP is then unexplained."""
    expected = span.rayleigh @ block.known + span.coupling @ block.fresh
    overlap = span.columns.mT @ seen.centred - expected
    if static:
        shift = float(span.level - to_host(seen.background))
    else:
        shift = inner(block.known, overlap) / frobenius_squared(block.known)
    return shift, overlap - shift * block.known


def _image_of_fresh(seen: Probe, block: Block, span: Span, shift: Any) -> Array:
    """C Q B at the level of the span: the image of P less what is known of it."""
    image = seen.centred - shift * block.columns
    image = image - span.columns @ (span.rayleigh @ block.known)
    return image - span.pending @ (span.coupling.mT @ block.known)


def _probe(basis: Array, seen: Probe, block: Block, span: Span, shift: Any, image: Array) -> Probe:
    """The probe of the basis: the product itself, or what the span and the reference say of it."""
    if block.columns is basis:
        return seen
    known = span.columns.mT @ basis
    whole = span.columns @ (span.rayleigh @ known) + span.pending @ (span.coupling.mT @ known)
    if block.columns.shape[-1] > 1:
        whole = whole + image[:, :1] / basis.shape[-1] ** 0.5
    probe, _ = centre(basis, whole)
    level = probe.background + seen.background + shift
    return replace(probe, background=level, matvecs=block.columns.shape[-1])


def _extended(span: Span, directions: Array, solved: Array) -> Span:
    """The span with the first pending directions in it; `solved` is their image."""
    xp = namespace(solved)
    rank = solved.shape[-1]
    columns = xp.concat([span.columns, span.pending @ directions[:, :rank]], axis=-1)
    rest = span.pending @ directions[:, rank:]
    inside = span.coupling @ directions
    corner = columns[:, -rank:].mT @ solved
    across, down = inside[:, :rank], inside[:, rank:]
    rayleigh = _blocks(span.rayleigh, across, across.mT, 0.5 * (corner + corner.mT))
    outside = solved
    for _ in range(2):
        outside = outside - columns @ (columns.mT @ outside)
        outside = outside - rest @ (rest.mT @ outside)
    pending, coupling = _orthonormal(outside, _floor(span))
    nothing = 0 * (span.columns[:1].mT @ pending[:1])
    return span._replace(
        columns=columns,
        rayleigh=rayleigh,
        pending=xp.concat([rest, pending], axis=-1),
        coupling=_blocks(down, nothing, solved.mT @ rest, coupling),
    )


def _blocks(a: Array, b: Array, c: Array, d: Array) -> Array:
    xp = namespace(a)
    return xp.concat([xp.concat([a, b], axis=-1), xp.concat([c, d], axis=-1)], axis=-2)


def _ritz(span: Span, k: int, previous: Array | None = None) -> Array:
    """Leading Ritz vectors: descending at first, then each in the place of the one it continues."""
    basis = span.columns @ leading_vectors(span, k)
    if previous is None:
        return contiguous(upright(basis))
    order, sign = continued(previous.mT @ basis, k)
    basis = basis if order is None else taken(basis, order)
    return contiguous(basis * sign[..., None, :])


def _condensed(span: Span, k: int) -> Span:
    """The span's leading Ritz vectors once it has grown too large."""
    if span.columns.shape[-1] <= LARGEST * k:
        return span
    turn = leading_vectors(span, CONDENSED * k)
    return span._replace(
        columns=span.columns @ turn,
        rayleigh=turn.mT @ span.rayleigh @ turn,
        coupling=turn.mT @ span.coupling,
    )


def leading_vectors(span: Span, count: int) -> Array:
    """Eigenvectors of T, by descending eigenvalue, the first `count`."""
    xp = namespace(span.columns)
    return xp.flip(xp.linalg.eigh(span.rayleigh)[1][:, -count:], axis=-1)


def ritz_values(span: Span, basis: Array) -> Array:
    """Rayleigh quotients of the columns of a basis in the span, at its level."""
    known = span.columns.mT @ basis
    return namespace(basis).sum(known * (span.rayleigh @ known), axis=-2)
