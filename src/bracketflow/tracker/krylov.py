"""The leading k columns of a signal that stands still, whatever σ² does between the products.

C S = S T + Q Gᵀ is kept for an orthonormal span S with pending directions Q, all at one level.
Every product has a part in span S, whose image is known: that tells how far σ² has moved since.
A product that contradicts the relation says that the signal itself has moved.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    column_inner,
    contiguous,
    contracted,
    diagonal,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    to_host,
    trace,
)
from bracketflow.geometry import signs, taken
from bracketflow.observation import centre, observe
from bracketflow.oracles import Operator
from bracketflow.sharding import over_rows, row_count
from bracketflow.tracker.gain import CAUTIOUS_STEPS
from bracketflow.tracker.identity import continued
from bracketflow.tracker.product import Block, absorbed, image_of, looked
from bracketflow.tracker.span import (
    Span,
    condensed,
    directions,
    empty,
    enriching,
    leading_vectors,
    rayleigh_of_basis,
    widened,
)

DOUBTED_AT = 1e-7  # residuals, relative to the spread, at which a static chain is checked,
SURE_AT = 1e-9  # and at which those of a stream are, where it takes steps
DOUBTS = 8  # products spent on that
OUTSIDE = 0.01  # squared, of a spare direction: what is left of it outside of the span
MOSTLY = 0.3  # a spare direction of which so much is left need not be cleaned again
FALL = 0.3  # of the residuals in one step on a static operator,
PURSUED = 12  # with so many more products at most
BETTER = 0.6  # of its residuals: the basis follows Ritz vectors that have no more
NEAR = 0.3  # and those that it has no larger cosine with


def step(
    operator: Operator, state: State, span: Span, spare: Array
) -> tuple[Array | None, Probe, Span]:
    """One observation: next basis (None if the signal has moved), probe and span.

    The basis may be left as it is while the span learns: see `_waits`.
    """
    if span.size == 0:
        return _first(operator, state, spare)
    span = _doubted(span, spare, DOUBTED_AT if operator.static else SURE_AT)
    block = _next_block(operator, state.basis, span)
    product, span = looked(operator, block, span, state.seen)
    longer, shift, odd = absorbed(span, block, product, state.basis, operator.static)
    probe = _probe(state.basis, span, block, product.probe, shift, odd)
    if odd is not None:
        return None, probe, span
    if longer is span and not span.fresh.shape[-2]:  # the basis is all that was multiplied
        return state.basis, probe, span
    longer = _turned(longer, state, operator.static)
    if operator.static:
        longer, matvecs = _pursued(operator, state, longer, spare, FALL * _residual(span))
        probe = replace(probe, matvecs=probe.matvecs + matvecs)
    if longer.waited:
        return state.basis, probe, longer
    basis = longer.combined(longer.turn)
    return basis, probe, _referred(longer, basis)


def _pursued(
    operator: Operator, state: State, span: Span, spare: Array, aim: float
) -> tuple[Span, int]:
    """More products with a static operator: until its residuals are down to `aim`, and past doubts.

    So the basis, which takes a pass over all of S, is made for every few products only.
    """
    matvecs = 0
    for _ in range(PURSUED):
        span = _doubted(span, spare, DOUBTED_AT)
        if not (span.doubts > 0 or _residual(span) > max(aim, span.floor)):
            break
        block = _next_block(operator, state.basis, span)
        product, span = looked(operator, block, span, state.seen)
        matvecs += product.probe.matvecs
        longer, _, odd = absorbed(span, block, product, state.basis, static=True)
        if odd is not None:  # the next step will find it, too
            break
        span = _turned(longer, state, static=True)
    return span, matvecs


def _residual(span: Span) -> float:
    """‖R‖_F of the Ritz vectors."""
    return float(to_host(frobenius_squared(span.coupling.mT @ span.ritz)) ** 0.5)


def _first(operator: Operator, state: State, spare: Array) -> tuple[Array | None, Probe, Span]:
    """A span from X. A static operator is believed; else the next product tests it."""
    probe = observe(operator, state)
    k = state.basis.shape[-1]
    probe, span = _seed(probe, 1 if operator.static else (k + 1) // 2)
    if operator.static:
        probe, span = _grown(operator, state, probe, span, spare)
        if span.size < k:
            return None, probe, span
    elif span.size < k:
        turn = enriching(span, k)
        basis = span.combined(turn)
        sign = signs(basis)
        turn = turn * sign
        return contiguous(basis * sign), probe, span._replace(turn=turn, ritz=turn[: span.size])
    span = _turned(span, state, operator.static)
    basis = span.combined(span.turn)
    if state.steps == 0:
        sign = signs(basis)
        basis = contiguous(basis * sign)
        span = span._replace(turn=span.turn * sign, ritz=span.ritz * sign)
    return basis, probe, _referred(span, basis)


def _referred(span: Span, basis: Array) -> Span:
    """The span with a column of the basis' span, and its image, to multiply along."""
    mean = _mean(basis)
    return span._replace(reference=basis @ mean, image=image_of(span, basis, mean))


def _mean(basis: Array) -> Array:
    """The mix of its columns that is the reference, k × 1."""
    identity = identity_like(basis)
    return namespace(basis).sum(identity, axis=-1, keepdims=True) / len(identity) ** 0.5


def _seed(probe: Probe, width: int) -> tuple[Probe, Span]:
    """S = X, or from a cold start the leading `width` of its Ritz vectors; the probe with RᵀR.

    Few columns make long Krylov chains: for the leading 4, a span of 20 from 1 column does what
    takes 30 from 2, and 50 from 4.
    """
    xp = namespace(probe.basis)
    k = probe.basis.shape[-1]
    turn = contiguous(xp.flip(xp.linalg.eigh(probe.rayleigh)[1], axis=-1))
    residual = probe.residual @ turn
    whole = empty(probe.basis)._replace(
        columns=probe.basis @ turn,
        rayleigh=turn.mT @ probe.rayleigh @ turn,
        level=to_host(probe.background),
    )
    overlap, gram = over_rows(whole.columns.mT @ residual, residual.mT @ residual)
    probe = replace(probe, gram=turn @ gram @ turn.mT)
    rounding = to_host(probe.rounding / 8 + 16 * epsilon(turn) * probe.extent)
    whole = whole._replace(rounding=rounding)
    cold = to_host(probe.outside > frobenius_squared(probe.rayleigh))
    for count in (width, k) if cold else (k,):
        pending, coupling = directions(
            residual[:, :count], overlap[:, :count], gram[:count, :count], whole
        )
        if pending.shape[-1] == count:
            break
    return probe, whole._replace(
        columns=contiguous(whole.columns[:, :count]),
        rayleigh=whole.rayleigh[:count, :count],
        pending=pending,
        coupling=coupling,
        turn=coupling[:, :0],
        ritz=coupling[:, :0],
        defect=widened(0 * whole.rayleigh[:count, :count], 0 * coupling),
        warm=np.bool_(not cold),
    )


def _grown(
    operator: Operator, state: State, probe: Probe, span: Span, spare: Array
) -> tuple[Probe, Span]:
    """The span, multiplied on until it holds k columns; the products count as this step's.

    It holds fewer if they contradict each other: then the operator is not static at all.
    """
    k, matvecs = state.basis.shape[-1], probe.matvecs
    while span.size < k:
        if not span.pending.shape[-1]:  # C leaves the span where it is
            span = _joined(span, namespace(spare).concat([spare, state.basis], axis=-1))
        identity = identity_like(span.pending)
        nothing = 0 * probe.rayleigh[:, : len(identity)]
        block = Block(contiguous(span.pending), 0 * span.coupling, identity, nothing)
        product, span = looked(operator, block, span, state.seen)
        matvecs += product.probe.matvecs
        span, _, odd = absorbed(span, block, product, state.basis, static=True)
        if odd is not None:
            break
    return replace(probe, matvecs=matvecs), span


def _joined(span: Span, candidates: Array) -> Span:
    """The span with one more direction pending: the first candidate that lies well outside."""
    xp = namespace(candidates)
    most = -1.0
    for i in range(candidates.shape[-1]):
        left, square = _outside(span, candidates[:, i : i + 1])
        if square > most:
            most, column = square, left
        if square > OUTSIDE:
            break
    column = column / most**0.5
    # What was taken off leaves roundings, the more beside the rest the more it was.
    for _ in range(0 if most > MOSTLY else 1 if most > OUTSIDE else 2):
        column, square = _outside(span, column)
        column = column / square**0.5
    return span._replace(
        pending=xp.concat([span.pending, column], axis=-1),
        coupling=xp.concat([span.coupling, 0 * span.rayleigh[:, :1]], axis=-1),
        defect=widened(span.defect, 0 * span.rayleigh[:, :1]),
    )


def _outside(span: Span, column: Array) -> tuple[Array, float]:
    """What of a column is outside of [S, Q], and its square, in one message."""
    overlap, square = over_rows(span.overlap(column), frobenius_squared(column))
    square = float(to_host(square - frobenius_squared(overlap)))
    return column - span.combined(overlap), max(square, epsilon(column) ** 2)


def _next_block(operator: Operator, basis: Array, span: Span) -> Block:
    """The basis itself while it leaves span S or has converged; new directions otherwise.

    New directions are the largest residuals of the Ritz vectors, with one column of span X beside
    them as reference unless the operator is static.
    """
    xp = namespace(basis)
    k, count = basis.shape[-1], span.pending.shape[-1]
    if span.fresh.shape[-2]:
        return Block(basis, span.known, span.fresh, identity_like(basis))
    residual = span.coupling.mT @ span.ritz
    doubted = bool(span.doubts > 0 and count)
    settled = not doubted and to_host(frobenius_squared(residual)) <= span.floor**2
    if settled and not span.waited:
        return Block(basis, span.turn, 0 * residual, identity_like(basis))
    width = 1 if operator.static or doubted else (k + 1) // 2
    columns, fresh, whole = span.pending, identity_like(span.pending), count <= width
    if doubted and not whole:
        # The chain, which comes last; but it never sees what else is pending.
        first = 0 if span.warm and span.doubts == 1 else count - 1
        fresh = fresh[:, first : first + 1]
    elif not whole:
        fresh = xp.linalg.svd(residual, full_matrices=False)[0][:, :width]
    if not whole:
        columns = columns @ fresh
    of_basis = 0 * residual[:1].mT @ fresh[:1]
    if not operator.static:
        columns = xp.concat([span.reference, columns], axis=-1)
        fresh = xp.concat([0 * fresh[:, :1], fresh], axis=-1)
        of_basis = xp.concat([_mean(basis), of_basis], axis=-1)
    return Block(contiguous(columns), span.turn @ of_basis, fresh, of_basis, whole)


def _doubted(span: Span, spare: Array, at: float) -> Span:
    """The span, with a chain from a spare column pending once the others have nearly converged.

    A chain sees one vector of a repeated eigenvalue; another chain finds the next. There are new
    rounds until one has brought nothing.
    """
    if span.doubts > 0 and span.pending.shape[-1]:
        more = span.doubts > 1 or (span.warm and _undecided(span, at))
        return span._replace(doubts=np.maximum(span.doubts - 1, int(more)))
    span = span._replace(doubts=np.int64(0))
    if span.fresh.shape[-2] or not searching(span, spare, at):
        return span
    if span.size + span.pending.shape[-1] >= row_count(spare):
        return span._replace(doubts=np.int64(span.pending.shape[-1]))
    return _joined(span, spare[:, int(span.rounds) :])._replace(
        doubts=np.int64(DOUBTS), rounds=span.rounds + 1, captured=_captured(span)
    )


def _undecided(span: Span, at: float) -> bool:
    """Whether an eigenvalue near another Ritz value may be larger than one of the leading k."""
    values, vectors = np.linalg.eigh(to_host(span.rayleigh))
    k = span.ritz.shape[-1]
    least, values, vectors = values[-k], values[:-k], vectors[:, :-k]
    residuals = np.linalg.norm(to_host(span.coupling).T @ vectors, axis=0)
    return bool(np.any((values + residuals > least) & (residuals > _near(span, at))))


def _captured(span: Span) -> Any:
    """Sum of the leading Ritz values."""
    return to_host(inner(span.ritz, span.rayleigh @ span.ritz))


def _near(span: Span, at: float) -> Any:
    """Residuals and gains that are next to nothing."""
    scale = to_host(frobenius_squared(span.rayleigh)) ** 0.5
    return max(at * float(scale), float(span.slack))


def in_doubt(span: Span, spare: Array) -> bool:
    """Whether a chain that looks for repeated eigenvalues is under way or still due."""
    if span.doubts > 0 and span.pending.shape[-1]:
        return True
    if span.size + span.pending.shape[-1] >= row_count(spare):
        return bool(span.pending.shape[-1])  # the last directions there are
    if not span.turn.shape[-1]:
        return False
    more = _captured(span) > span.captured + _near(span, DOUBTED_AT)
    return bool(more and int(span.rounds) < spare.shape[-1])


def searching(span: Span, spare: Array, at: float = SURE_AT) -> bool:
    """Whether such a chain is under way, or due with residuals as small as these."""
    if not span.size:  # nothing was compared with the basis yet
        return True
    if span.doubts > 0 or span.fresh.shape[-2]:  # the basis has yet to be multiplied
        return in_doubt(span, spare)
    return in_doubt(span, spare) and _residual(span) <= _near(span, at)


def _probe(
    basis: Array, span: Span, block: Block, seen: Probe, shift: Any, odd: Array | None
) -> Probe:
    """The probe of the basis: the product itself, or what the span says of it.

    Where the product contradicts the span, `odd` is the image that a part of the basis should not
    have had.
    """
    if block.columns is basis:
        return seen
    level, matvecs, identity = seen.background + shift, seen.matvecs, identity_like(basis)
    if odd is not None:
        probe, _ = centre(basis, image_of(span, basis, identity) + odd)
        return replace(probe, background=probe.background + level, matvecs=matvecs)
    rayleigh, gram = rayleigh_of_basis(span)
    mean = namespace(basis).mean(diagonal(rayleigh))
    image = partial(image_of, span, basis, identity, mean)  # few will ask for it
    return Probe(basis, image, mean + level, rayleigh - mean * identity, matvecs, gram)


def _turned(span: Span, state: State, static: bool) -> Span:
    """The span, condensed if it is too large, with its leading Ritz vectors.

    They descend at first; then each is in the place of the one it continues. The basis becomes
    them, unless it can wait.
    """
    k, before = state.basis.shape[-1], span
    span = condensed(span, k, static)
    ritz = leading_vectors(span, k)
    if state.steps > 0:
        if span.turn.shape[-1]:
            overlap = span.turn.mT @ ritz
        else:
            overlap = over_rows(contracted(state.basis, span.combined(ritz)))
        order, sign = continued(overlap, k, settled=state.steps > CAUTIOUS_STEPS)
        ritz = (ritz if order is None else taken(ritz, order)) * sign
    span = span._replace(ritz=ritz)
    if not static and span.reference.shape[-1] and before.size == span.size and _waits(span):
        return span._replace(waited=span.waited + 1)
    return span._replace(turn=ritz, waited=np.int64(0))


def _waits(span: Span) -> bool:
    """Whether the basis, which takes a pass over all of S, is left as it is for one more product.

    It is close to the Ritz vectors, which are hardly better.
    """
    if span.doubts > 0:
        return False
    if np.min(to_host(column_inner(span.turn, span.ritz))) < NEAR:
        return False
    _, gram = rayleigh_of_basis(span)
    return bool(_residual(span) > max(BETTER * to_host(trace(gram)) ** 0.5, span.floor))
