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
    contiguous,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    to_host,
)
from bracketflow.geometry import signs, taken, triangular, upright
from bracketflow.oracles import Operator, centre, observe
from bracketflow.sharding import over_rows, row_count
from bracketflow.tracker.gain import CAUTIOUS_STEPS
from bracketflow.tracker.identity import continued

LARGEST = 16  # columns of S beyond 4k at which it is condensed
CONDENSED = 4  # to so many beyond 2k
DOUBTED_AT = 1e-3  # residuals, relative to the spread, at which a single chain is checked
DOUBTS = 6  # products spent on that
DEFLATED = 0.1  # a part outside the span smaller than this is not resolved well enough


class Span(NamedTuple):
    """C S = S T + Q Gᵀ at the level of the first product; empty before it."""

    columns: Array
    rayleigh: Array
    pending: Array
    coupling: Array
    turn: Array
    """The basis is S · turn; empty while it leaves the span."""
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
    """What to multiply next: P = S A + Q B, and what is known of its image: C S A."""

    columns: Array
    known: Array
    fresh: Array
    explained: Array


def start(basis: Array) -> Span:
    """Nothing known."""
    none, empty = basis[..., :0], basis[..., :0, :0]
    return Span(none, empty, none, empty, empty)


def step(
    operator: Operator, state: State, span: Span, spare: Array
) -> tuple[Array | None, Probe, Span]:
    """One observation: next basis (None if the signal has moved), probe and span."""
    if span.columns.shape[-1] == 0:
        return _first(operator, state)
    if operator.static:
        span = _doubted(span, spare)
    whole = _image(span, state.basis)
    block = _next_block(operator, state.basis, span, whole)
    seen, shift, image, span, fits = _multiplied(operator, state, span, block)
    probe = _probe(state.basis, whole, seen, block, shift, image)
    if not fits:
        return None, probe, span
    basis, span = _ritz(span, state.basis.shape[-1], state)
    return basis, probe, _condensed(span, basis.shape[-1])


def _image(span: Span, basis: Array) -> Array:
    """C X at the level of the span, as far as X lies in it."""
    if not span.turn.shape[-1]:
        known = over_rows(span.columns.mT @ basis)
        return span.columns @ (span.rayleigh @ known) + span.pending @ (span.coupling.mT @ known)
    # The columns are Ritz vectors, T · turn = turn · diag: no product with S.
    return basis * ritz_values(span) + span.pending @ (span.coupling.mT @ span.turn)


def _multiplied(
    operator: Operator, state: State, span: Span, block: Block
) -> tuple[Probe, Any, Array, Span, bool]:
    """One product: its probe, shift and image, the span after it, and whether it fits the span."""
    seen = observe(operator, State(block.columns, seen=state.seen))
    span = span._replace(rounding=np.maximum(span.rounding, _rounding(seen)))
    shift, overlap = _shift(seen, block, span, operator.static)
    image = seen.centred - shift * block.columns
    image -= block.explained
    directions, sizes, mixing = namespace(image).linalg.svd(block.fresh)
    rank = int(np.sum(to_host(sizes) > DEFLATED))
    mixing = mixing[:rank]
    surprise = over_rows(frobenius_squared(image - image @ mixing.mT @ mixing))
    fits = to_host(surprise + frobenius_squared(overlap)) <= _slack(span) ** 2
    if fits and rank:
        span = _extended(span, directions, image @ (mixing.mT / sizes[:rank]))
    return seen, shift, image, span, bool(fits)


def _rounding(seen: Probe) -> Any:
    # An eighth of the bound that serves to refuse: noise as small as that must still be seen.
    return to_host(seen.rounding / 8 + 16 * epsilon(seen.basis) * seen.extent)


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
    basis, span = _ritz(span, k, state)
    return basis, probe, span


def _seed(probe: Probe, width: int) -> Span:
    """S = X, or from a cold start the leading `width` of its Ritz vectors.

    Few columns make long Krylov chains: for the leading 4, a span of 20 from 1 column does what
    takes 30 from 2, and 50 from 4.
    """
    xp = namespace(probe.basis)
    k = probe.basis.shape[-1]
    cold = to_host(probe.outside > frobenius_squared(probe.rayleigh))
    rounding = _rounding(probe)
    for count in (width, k) if cold else (k,):
        turn = xp.flip(xp.linalg.eigh(probe.rayleigh)[1], axis=-1)[:, :count]
        residual, _ = _apart(probe.residual @ turn, probe.basis)
        pending, coupling = _orthonormal(residual, rounding / 16)
        columns, rayleigh = probe.basis @ turn, turn.mT @ probe.rayleigh @ turn
        if pending.shape[-1] == count:
            break
    level = to_host(probe.background)
    return Span(columns, rayleigh, pending, coupling, rayleigh[:0, :0], level, rounding)


def _enriched(span: Span, k: int) -> Array:
    """Leading k Ritz vectors in span[S, Q] if C were at the level of the first basis on Q."""
    xp = namespace(span.columns)
    corner = 0 * (span.coupling.mT @ span.coupling)
    whole = _blocks(span.rayleigh, span.coupling, span.coupling.mT, corner)
    turn = xp.flip(xp.linalg.eigh(whole)[1][:, -k:], axis=-1)
    m = span.columns.shape[-1]
    return upright(span.columns @ turn[:m] + span.pending @ turn[m:])


def _grown(operator: Operator, state: State, probe: Probe, span: Span) -> tuple[Array, Probe, Span]:
    """The span, multiplied on until it holds k columns; the products count as this step's."""
    k, matvecs = state.basis.shape[-1], probe.matvecs
    while span.columns.shape[-1] < k and span.pending.shape[-1]:
        nothing = 0 * (span.columns[:1].mT @ span.pending[:1])
        identity = identity_like(span.pending.mT @ span.pending)
        block = Block(contiguous(span.pending), nothing, identity, 0 * span.pending)
        seen, _, _, span, _ = _multiplied(operator, state, span, block)
        matvecs += seen.matvecs
    basis, span = _ritz(span, k, state)
    return basis, replace(probe, matvecs=matvecs), span


def _apart(block: Array, *others: Array) -> tuple[Array, list[Array]]:
    """`block` made orthogonal to `others`, twice, which is enough; and its overlaps with them."""
    overlaps = _overlaps(block, others)
    for found in (overlaps, None):
        for columns, overlap in zip(others, found or _overlaps(block, others), strict=True):
            block = block - columns @ overlap
    return block, overlaps


def _overlaps(block: Array, others: tuple[Array, ...]) -> list[Array]:
    overlaps = over_rows(*(columns.mT @ block for columns in others))
    return [overlaps] if len(others) == 1 else list(overlaps)


def _orthonormal(residual: Array, floor: Any) -> tuple[Array, Array]:
    """Q and G with R = Q Gᵀ, less what is below `floor`."""
    xp = namespace(residual)
    left, small = triangular(residual)
    turn, sizes, right = xp.linalg.svd(small, full_matrices=False)
    rank = int(np.sum(to_host(sizes) > floor))
    return left @ turn[:, :rank], right[:rank].mT * sizes[:rank]


def _next_block(operator: Operator, basis: Array, span: Span, whole: Array) -> Block:
    """The basis itself while it leaves span S or has converged; new directions otherwise.

    New directions are the largest residuals of the Ritz vectors, with one column of span X beside
    them as reference unless the operator is static.
    """
    xp = namespace(basis)
    k = basis.shape[-1]
    if not span.turn.shape[-1]:
        known, fresh = over_rows(span.columns.mT @ basis, span.pending.mT @ basis)
        return Block(basis, known, fresh, whole)
    residual = span.coupling.mT @ span.turn
    doubted = bool(span.doubts > 0 and span.pending.shape[-1])
    if not doubted and to_host(frobenius_squared(residual)) <= _floor(span) ** 2:
        return Block(basis, span.turn, 0 * residual, whole)
    if doubted:
        fresh = identity_like(span.pending.mT @ span.pending)[:, -1:]
    else:
        width = 1 if operator.static else (k + 1) // 2
        fresh = xp.linalg.svd(residual, full_matrices=False)[0][:, :width]
    columns = span.pending @ fresh
    unknown = 0 * (span.columns[:1].mT @ columns[:1])
    if operator.static:
        return Block(columns, unknown, fresh, 0 * columns)

    def beside(known: Array, new: Array) -> Array:
        return xp.concat([xp.sum(known, axis=-1, keepdims=True) / k**0.5, new], axis=-1)

    return Block(
        beside(basis, columns),
        beside(span.turn, unknown),
        beside(0 * fresh, fresh),
        beside(whole, 0 * columns),
    )


def _doubted(span: Span, spare: Array) -> Span:
    """The span, with a chain from a spare column pending once the others have nearly converged.

    A single chain sees one vector of a repeated eigenvalue; another chain finds the next. There
    are new rounds until one has brought nothing.
    """
    if span.doubts > 0 and span.pending.shape[-1]:
        return span._replace(doubts=span.doubts - 1)
    span = span._replace(doubts=np.int64(0))
    if not in_doubt(span, spare):
        return span
    if sum(span.columns.shape[-1:] + span.pending.shape[-1:]) >= row_count(spare):
        return span._replace(doubts=np.int64(span.pending.shape[-1]))
    used = int(span.rounds)
    column, _ = _apart(spare[:, used : used + 1], span.columns, span.pending)
    column = column / over_rows(frobenius_squared(column)) ** 0.5
    column, _ = _apart(column, span.columns, span.pending)
    xp = namespace(spare)
    return span._replace(
        pending=xp.concat([span.pending, column], axis=-1),
        coupling=xp.concat([span.coupling, 0 * span.columns[:1].mT], axis=-1),
        doubts=np.int64(DOUBTS),
        rounds=span.rounds + 1,
        captured=_captured(span),
    )


def _captured(span: Span) -> Any:
    """Sum of the leading Ritz values."""
    return to_host(inner(span.turn, span.rayleigh @ span.turn))


def in_doubt(span: Span, spare: Array) -> bool:
    """Whether a chain that looks for repeated eigenvalues is under way or still due."""
    n, m = row_count(span.columns), span.columns.shape[-1]
    if span.doubts > 0 and span.pending.shape[-1]:
        return True
    if m + span.pending.shape[-1] >= n:
        return bool(span.pending.shape[-1])  # the last directions there are
    if not span.turn.shape[-1]:
        return False
    near = DOUBTED_AT * to_host(frobenius_squared(span.rayleigh)) ** 0.5
    settled = to_host(frobenius_squared(span.coupling.mT @ span.turn)) <= near**2
    more = _captured(span) > span.captured + near
    return bool(settled and more and int(span.rounds) < spare.shape[-1])


def _shift(seen: Probe, block: Block, span: Span, static: bool) -> tuple[Any, Array]:
    """How far this product's level is from the span's, and what of SᵀCP is then unexplained."""
    expected = span.rayleigh @ block.known + span.coupling @ block.fresh
    overlap = over_rows(span.columns.mT @ seen.centred) - expected
    if static:
        shift = float(span.level - to_host(seen.background))
    else:
        shift = inner(block.known, overlap) / frobenius_squared(block.known)
    return shift, overlap - shift * block.known


def _probe(
    basis: Array, whole: Array, seen: Probe, block: Block, shift: Any, image: Array
) -> Probe:
    """The probe of the basis: the product itself, or what the span and the reference say of it."""
    if block.columns is basis:
        return seen
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
    outside, (known, again) = _apart(solved, columns, rest)
    corner = known[-rank:]
    across, down = inside[:, :rank], inside[:, rank:]
    rayleigh = _blocks(span.rayleigh, across, across.mT, 0.5 * (corner + corner.mT))
    pending, coupling = _orthonormal(outside, _floor(span))
    nothing = 0 * (span.columns[:1].mT @ pending[:1])
    return span._replace(
        columns=columns,
        rayleigh=rayleigh,
        pending=xp.concat([rest, pending], axis=-1),
        coupling=_blocks(down, nothing, again.mT, coupling),
    )


def _blocks(a: Array, b: Array, c: Array, d: Array) -> Array:
    xp = namespace(a)
    return xp.concat([xp.concat([a, b], axis=-1), xp.concat([c, d], axis=-1)], axis=-2)


def _ritz(span: Span, k: int, state: State) -> tuple[Array, Span]:
    """Leading Ritz vectors: descending at first, then each in the place of the one it continues."""
    turn = leading_vectors(span, k)
    basis = span.columns @ turn
    if state.steps == 0:
        sign = signs(basis)
    else:
        settled = state.steps > CAUTIOUS_STEPS
        order, sign = continued(over_rows(state.basis.mT @ basis), k, settled=settled)
        if order is not None:
            basis, turn = taken(basis, order), taken(turn, order)
    return contiguous(basis * sign), span._replace(turn=turn * sign)


def _condensed(span: Span, k: int) -> Span:
    """The span's leading Ritz vectors once it has grown too large."""
    if span.columns.shape[-1] <= 4 * k + LARGEST:
        return span
    kept = leading_vectors(span, 2 * k + CONDENSED)
    return span._replace(
        columns=span.columns @ kept,
        rayleigh=kept.mT @ span.rayleigh @ kept,
        coupling=kept.mT @ span.coupling,
        turn=kept.mT @ span.turn,
    )


def leading_vectors(span: Span, count: int) -> Array:
    """Eigenvectors of T, by descending eigenvalue, the first `count`."""
    xp = namespace(span.columns)
    return xp.flip(xp.linalg.eigh(span.rayleigh)[1][:, -count:], axis=-1)


def ritz_values(span: Span) -> Array:
    """Rayleigh quotients of the columns of the basis, at the level of the span."""
    return namespace(span.turn).sum(span.turn * (span.rayleigh @ span.turn), axis=-2)
