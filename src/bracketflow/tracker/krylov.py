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
    diagonal,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    to_host,
)
from bracketflow.geometry import signs, taken
from bracketflow.oracles import (
    Operator,
    centre,
    common_level,
    multiplied,
    observe,
    own_level,
    refuse_bad,
)
from bracketflow.sharding import over_rows, row_count, shards
from bracketflow.tracker.gain import CAUTIOUS_STEPS
from bracketflow.tracker.identity import continued
from bracketflow.tracker.span import (
    Span,
    condensed,
    directions,
    empty,
    enriching,
    extended,
    gathered,
    leading_vectors,
    ritz_values,
)

DOUBTED_AT = 1e-3  # residuals, relative to the spread, at which a single chain is checked
DOUBTS = 6  # products spent on that
OUTSIDE = 0.01  # squared, of a spare direction: what is left of it outside of the span
FALL = 0.3  # of the residuals in one step on a static operator,
PURSUED = 12  # with so many more products at most
DEFLATED = 0.1  # a part outside the span smaller than this is not resolved well enough


class Block(NamedTuple):
    """What to multiply next: P = S A + Q B = X W + Q B', whose part X W has a known image."""

    columns: Array
    known: Array
    fresh: Array
    of_basis: Array
    """W, k × w."""


class Product(NamedTuple):
    """C P, seen from the span."""

    probe: Probe
    inside: Array
    """[S, Q]ᵀ of the centred product."""


def step(
    operator: Operator, state: State, span: Span, spare: Array
) -> tuple[Array | None, Probe, Span]:
    """One observation: next basis (None if the signal has moved), probe and span."""
    if span.size == 0:
        return _first(operator, state, spare)
    if operator.static:
        span = _doubted(span, spare)
    block = _next_block(operator, state.basis, span)
    product, span = _looked(operator, block, span, state.seen)
    longer, shift, odd = _absorbed(span, block, product, state.basis, operator.static)
    probe = _probe(state.basis, span, block, product.probe, shift, odd)
    if odd is not None:
        return None, probe, span
    longer = _turned(longer, state)
    if operator.static:
        longer, matvecs = _pursued(operator, state, longer, spare, FALL * _residual(span))
        probe = replace(probe, matvecs=probe.matvecs + matvecs)
    longer = gathered(longer)
    return contiguous(longer.inside(longer.turn)), probe, longer


def _pursued(
    operator: Operator, state: State, span: Span, spare: Array, aim: float
) -> tuple[Span, int]:
    """More products with a static operator: until its residuals are down to `aim`, and past doubts.

    So the basis, which takes a pass over all of S, is made for every few products only.
    """
    matvecs = 0
    for _ in range(PURSUED):
        span = _doubted(span, spare)
        if not (span.doubts > 0 or _residual(span) > max(aim, span.floor)):
            break
        block = _next_block(operator, state.basis, span)
        product, span = _looked(operator, block, span, state.seen)
        matvecs += product.probe.matvecs
        longer, _, odd = _absorbed(span, block, product, state.basis, static=True)
        if odd is not None:  # the next step will find it, too
            break
        span = _turned(longer, state)
    return span, matvecs


def _residual(span: Span) -> float:
    """‖R‖_F of the basis, as far as it lies in S."""
    return float(to_host(frobenius_squared(span.coupling.mT @ span.known)) ** 0.5)


def _image(span: Span, basis: Array, where: Array, level: Any = 0.0) -> Array:
    """(C − level) X · where, C at the level of the span, as far as X lies in it."""
    known = span.known @ where
    beside = span.pending @ (span.coupling.mT @ known)
    if span.fresh.shape[-2]:
        return beside + span.inside(span.rayleigh @ known) - level * (basis @ where)
    # The columns are Ritz vectors, T · turn = turn · diag: no product with S.
    beside += basis @ ((ritz_values(span) - level)[:, None] * where)
    return beside


def _looked(operator: Operator, block: Block, span: Span, seen: Any) -> tuple[Product, Span]:
    """The step's one product, centred, and what of it lies in span[S, Q]: one message.

    The span comes back with the product's rounding in its books.
    """
    xp = namespace(block.columns)
    where = xp.concat([block.known, block.fresh], axis=-2)
    with np.errstate(over="ignore", invalid="ignore"):
        image = multiplied(operator, block.columns)
        level = own_level(block.columns, image)
        image = image - level * block.columns
        inside = span.overlap(image)
        if shards() is not None:
            own = level
            level, inside, _ = common_level(
                own, inside, span.overlap(block.columns), lambda a: diagonal(where.mT @ a)
            )
            image += (own - level) * block.columns
        compressed = where.mT @ inside
        rayleigh = 0.5 * (compressed + compressed.mT)
        probe = Probe(block.columns, image, level, rayleigh, image.shape[-1])
        refuse_bad(probe, compressed - rayleigh, seen)
    rounding = np.maximum(span.rounding, _rounding(probe, span))
    return Product(probe, inside), span._replace(rounding=rounding)


def _absorbed(
    span: Span, block: Block, product: Product, basis: Array, static: bool
) -> tuple[Span, Any, Array | None]:
    """The span with a product in it, and how far the product's level is from the span's.

    Combinations of P that lie in span X have a known image. When the product contradicts it, the
    third is what it adds to the image of the basis; None when it fits.
    """
    seen = product.probe
    shift, unexplained = _shift(product, block, span, static)
    frame, sizes, mixing = namespace(basis).linalg.svd(block.fresh)
    rank = int(np.sum(to_host(sizes) > DEFLATED))
    new, old = mixing[:rank].mT / sizes[:rank], mixing[rank:].mT
    of_basis = block.of_basis @ old
    odd = seen.centred @ old - shift * (block.columns @ old)
    if old.shape[-1]:
        odd -= _image(span, basis, of_basis)
    residual = seen.centred @ new - span.combined(product.inside @ new)
    overlap, gram, surprise = over_rows(
        span.overlap(residual), residual.mT @ residual, frobenius_squared(odd)
    )
    if not to_host(surprise + frobenius_squared(unexplained)) <= span.slack**2:
        return span, shift, odd @ of_basis.mT
    if rank:
        known = block.fresh * shift + span.coupling.mT @ block.known
        image = (product.inside[-known.shape[-2] :] - known) @ new
        span = extended(span, frame, image, *directions(residual, overlap, gram, span))
    return span, shift, None


def _rounding(seen: Probe, span: Span) -> Any:
    # An eighth of the bound that serves to refuse: noise as small as that must still be seen.
    extent = (2 * frobenius_squared(span.rayleigh)) ** 0.5 + frobenius_squared(span.coupling) ** 0.5
    return to_host(seen.rounding / 8 + 16 * epsilon(seen.basis) * extent)


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
        return contiguous(basis * sign), probe, span._replace(turn=turn * sign)
    span = gathered(_turned(span, state))
    basis = span.inside(span.turn)
    sign = signs(basis) if state.steps == 0 else 1.0
    return contiguous(basis * sign), probe, span._replace(turn=span.turn * sign)


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
        product, span = _looked(operator, block, span, state.seen)
        matvecs += product.probe.matvecs
        span, _, odd = _absorbed(span, block, product, state.basis, static=True)
        if odd is not None:
            break
    return replace(probe, matvecs=matvecs), span


def _joined(span: Span, candidates: Array) -> Span:
    """The span with one more direction pending: the first candidate that lies well outside."""
    xp = namespace(candidates)
    most = -1.0
    for i in range(candidates.shape[-1]):
        left = candidates[:, i : i + 1]
        left = left - span.combined(over_rows(span.overlap(left)))
        square = float(to_host(over_rows(frobenius_squared(left))))
        if square > most:
            most, column = square, left
        if square > OUTSIDE:
            break
    for _ in range(2):
        column = column / over_rows(frobenius_squared(column)) ** 0.5
        column = column - span.combined(over_rows(span.overlap(column)))
    column = column / over_rows(frobenius_squared(column)) ** 0.5
    return span._replace(
        pending=xp.concat([span.pending, column], axis=-1),
        coupling=xp.concat([span.coupling, 0 * span.rayleigh[:, :1]], axis=-1),
    )


def _next_block(operator: Operator, basis: Array, span: Span) -> Block:
    """The basis itself while it leaves span S or has converged; new directions otherwise.

    New directions are the largest residuals of the Ritz vectors, with one column of span X beside
    them as reference unless the operator is static.
    """
    xp = namespace(basis)
    k = basis.shape[-1]
    identity = identity_like(basis)
    if span.fresh.shape[-2]:
        return Block(basis, span.known, span.fresh, identity)
    residual = span.coupling.mT @ span.turn
    doubted = bool(span.doubts > 0 and span.pending.shape[-1])
    if not doubted and to_host(frobenius_squared(residual)) <= span.floor**2:
        return Block(basis, span.turn, 0 * residual, identity)
    if doubted:
        fresh = identity_like(span.pending)[:, -1:]
    else:
        width = 1 if operator.static else (k + 1) // 2
        fresh = xp.linalg.svd(residual, full_matrices=False)[0][:, :width]
    columns, of_basis = span.pending @ fresh, 0 * residual.mT @ fresh
    if not operator.static:
        mean = xp.sum(identity, axis=-1, keepdims=True) / k**0.5
        columns = xp.concat([basis @ mean, columns], axis=-1)
        of_basis = xp.concat([mean, of_basis], axis=-1)
        fresh = xp.concat([0 * fresh[:, :1], fresh], axis=-1)
    return Block(columns, span.turn @ of_basis, fresh, of_basis)


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
    if span.size + span.pending.shape[-1] >= row_count(spare):
        return span._replace(doubts=np.int64(span.pending.shape[-1]))
    return _joined(span, spare[:, int(span.rounds) :])._replace(
        doubts=np.int64(DOUBTS), rounds=span.rounds + 1, captured=_captured(span)
    )


def _captured(span: Span) -> Any:
    """Sum of the leading Ritz values."""
    return to_host(inner(span.known, span.rayleigh @ span.known))


def in_doubt(span: Span, spare: Array) -> bool:
    """Whether a chain that looks for repeated eigenvalues is under way or still due."""
    if span.doubts > 0 and span.pending.shape[-1]:
        return True
    if span.size + span.pending.shape[-1] >= row_count(spare):
        return bool(span.pending.shape[-1])  # the last directions there are
    if not span.turn.shape[-1]:
        return False
    near = DOUBTED_AT * to_host(frobenius_squared(span.rayleigh)) ** 0.5
    settled = to_host(frobenius_squared(span.coupling.mT @ span.known)) <= near**2
    more = _captured(span) > span.captured + near
    return bool(settled and more and int(span.rounds) < spare.shape[-1])


def _shift(product: Product, block: Block, span: Span, static: bool) -> tuple[Any, Array]:
    """How far this product's level is from the span's, and what of SᵀCP is then unexplained."""
    expected = span.rayleigh @ block.known + span.coupling @ block.fresh
    unexplained = product.inside[: expected.shape[-2]] - expected
    if static:
        shift = float(span.level - to_host(product.probe.background))
    else:
        shift = inner(block.known, unexplained) / frobenius_squared(block.known)
    return shift, unexplained - shift * block.known


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
        probe, _ = centre(basis, _image(span, basis, identity) + odd)
        return replace(probe, background=probe.background + level, matvecs=matvecs)
    inside, outside = span.turn.mT @ span.rayleigh @ span.turn, span.coupling.mT @ span.turn
    mean = namespace(basis).mean(diagonal(inside))
    rayleigh = 0.5 * (inside + inside.mT) - mean * identity
    centred = _image(span, basis, identity, mean)
    return Probe(basis, centred, mean + level, rayleigh, matvecs, outside.mT @ outside)


def _turned(span: Span, state: State) -> Span:
    """The span, condensed if it is too large, with its leading Ritz vectors for a basis.

    They descend at first; then each is in the place of the one it continues.
    """
    k = state.basis.shape[-1]
    span = condensed(span, k)
    turn = leading_vectors(span, k)
    if state.steps > 0:
        if span.turn.shape[-1]:
            overlap = span.turn.mT @ turn
        else:
            overlap = over_rows(state.basis.mT @ span.inside(turn))
        order, sign = continued(overlap, k, settled=state.steps > CAUTIOUS_STEPS)
        turn = (turn if order is None else taken(turn, order)) * sign
    return span._replace(turn=turn)
