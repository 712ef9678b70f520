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
from bracketflow.geometry import signs, taken, triangular
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

LARGEST = 6  # columns of S beyond 3k at which it is condensed
CONDENSED = 4  # to so many beyond 2k
DOUBTED_AT = 1e-3  # residuals, relative to the spread, at which a single chain is checked
DOUBTS = 6  # products spent on that
DEFLATED = 0.1  # a part outside the span smaller than this is not resolved well enough
SKEW = 16  # roundings by which new directions may lean on old ones
SOUND = 256  # condition of ZᵀZ up to which its eigenvectors make Z orthonormal


class Span(NamedTuple):
    """C S = S T + Q Gᵀ at the level of the first product; empty before it."""

    columns: Array
    rayleigh: Array
    pending: Array
    coupling: Array
    turn: Array
    """The basis is S · turn, or [S, Q] · turn while it leaves span S."""
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

    @property
    def known(self) -> Array:
        """What of the basis lies in S, m × k."""
        return self.turn[: self.columns.shape[-1]]

    @property
    def fresh(self) -> Array:
        """What of it lies in Q, q × k; no rows while it lies in S."""
        return self.turn[self.columns.shape[-1] :]


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
    k = state.basis.shape[-1]
    block = _next_block(operator, state.basis, span)
    product = _looked(operator, block, span, state.seen)
    span = span._replace(rounding=np.maximum(span.rounding, _rounding(product.probe, span)))
    whole = _image(span, state.basis)
    longer, shift, odd = _absorbed(span, block, product, whole, operator.static)
    probe = _probe(state.basis, span, block, product.probe, whole, shift, odd)
    if odd is not None:
        return None, probe, span
    basis, longer = _ritz(_condensed(longer, k), k, state)
    return basis, probe, longer


def _image(span: Span, basis: Array) -> Array:
    """C X at the level of the span, as far as X lies in it."""
    known = span.known
    beside = span.pending @ (span.coupling.mT @ known)
    if span.fresh.shape[-2]:
        return span.columns @ (span.rayleigh @ known) + beside
    # The columns are Ritz vectors, T · turn = turn · diag: no product with S.
    beside += basis * ritz_values(span)
    return beside


def _looked(operator: Operator, block: Block, span: Span, seen: Any) -> Product:
    """The step's one product, centred, and what of it lies in span[S, Q]: one message."""
    xp = namespace(block.columns)
    where = xp.concat([block.known, block.fresh], axis=-2)
    with np.errstate(over="ignore", invalid="ignore"):
        image = multiplied(operator, block.columns)
        level = own_level(block.columns, image)
        image = image - level * block.columns
        inside = _inside(span, image)
        if shards() is not None:
            own = level
            level, inside, _ = common_level(
                own, inside, _inside(span, block.columns), lambda a: diagonal(where.mT @ a)
            )
            image += (own - level) * block.columns
        compressed = where.mT @ inside
        rayleigh = 0.5 * (compressed + compressed.mT)
        probe = Probe(block.columns, image, level, rayleigh, image.shape[-1])
        refuse_bad(probe, compressed - rayleigh, seen)
    return Product(probe, inside)


def _inside(span: Span, block: Array) -> Array:
    """[S, Q]ᵀ of `block`, this process's rows."""
    parts = (span.columns.mT @ block, span.pending.mT @ block)
    return namespace(block).concat(parts, axis=-2)


def _absorbed(
    span: Span, block: Block, product: Product, whole: Array, static: bool
) -> tuple[Span, Any, Array | None]:
    """The span with a product in it, and how far the product's level is from the span's.

    Combinations of P that lie in S have a known image, `whole` for the basis. When the product
    contradicts it, the third is what it adds to the image of the basis; None when it fits.
    """
    seen = product.probe
    shift, unexplained = _shift(product, block, span, static)
    directions, sizes, mixing = namespace(whole).linalg.svd(block.fresh)
    rank = int(np.sum(to_host(sizes) > DEFLATED))
    new, old = mixing[:rank].mT / sizes[:rank], mixing[rank:].mT
    of_basis = block.of_basis @ old
    odd = seen.centred @ old - shift * (block.columns @ old) - whole @ of_basis
    residual = seen.centred @ new - _combined(span, product.inside @ new)
    overlap, gram, surprise = over_rows(
        _inside(span, residual), residual.mT @ residual, frobenius_squared(odd)
    )
    if not to_host(surprise + frobenius_squared(unexplained)) <= _slack(span) ** 2:
        return span, shift, odd @ of_basis.mT
    if rank:
        known = block.fresh * shift + span.coupling.mT @ block.known
        image = (product.inside[-known.shape[-2] :] - known) @ new
        span = _extended(span, directions, image, *_directions(residual, overlap, gram, span))
    return span, shift, None


def _rounding(seen: Probe, span: Span) -> Any:
    # An eighth of the bound that serves to refuse: noise as small as that must still be seen.
    extent = (2 * frobenius_squared(span.rayleigh)) ** 0.5 + frobenius_squared(span.coupling) ** 0.5
    return to_host(seen.rounding / 8 + 16 * epsilon(seen.basis) * extent)


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
    probe, span = _seed(probe, 1 if operator.static else (k + 1) // 2)
    if operator.static:
        probe, span = _grown(operator, state, probe, span)
    elif span.columns.shape[-1] < k:
        basis, span = _enriched(span, k)
        return basis, probe, span
    basis, span = _ritz(span, k, state)
    return basis, probe, span


def _seed(probe: Probe, width: int) -> tuple[Probe, Span]:
    """S = X, or from a cold start the leading `width` of its Ritz vectors; the probe with RᵀR.

    Few columns make long Krylov chains: for the leading 4, a span of 20 from 1 column does what
    takes 30 from 2, and 50 from 4.
    """
    xp = namespace(probe.basis)
    k = probe.basis.shape[-1]
    turn = xp.flip(xp.linalg.eigh(probe.rayleigh)[1], axis=-1)
    residual = probe.residual @ turn
    whole = start(probe.basis)._replace(
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
        pending, coupling = _directions(
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


def _enriched(span: Span, k: int) -> tuple[Array, Span]:
    """Leading k Ritz vectors in span[S, Q] if C were at the level of the first basis on Q."""
    xp = namespace(span.columns)
    corner = 0 * (span.coupling.mT @ span.coupling)
    whole = _blocks(span.rayleigh, span.coupling, span.coupling.mT, corner)
    turn = xp.flip(xp.linalg.eigh(whole)[1][:, -k:], axis=-1)
    m = span.columns.shape[-1]
    basis = span.columns @ turn[:m] + span.pending @ turn[m:]
    sign = signs(basis)
    return contiguous(basis * sign), span._replace(turn=turn * sign)


def _grown(operator: Operator, state: State, probe: Probe, span: Span) -> tuple[Probe, Span]:
    """The span, multiplied on until it holds k columns; the products count as this step's."""
    k, matvecs = state.basis.shape[-1], probe.matvecs
    while span.columns.shape[-1] < k and span.pending.shape[-1]:
        identity = identity_like(span.pending.mT @ span.pending)
        nothing = 0 * probe.rayleigh[:, : len(identity)]
        block = Block(contiguous(span.pending), 0 * span.coupling, identity, nothing)
        product = _looked(operator, block, span, state.seen)
        span, *_ = _absorbed(span, block, product, probe.basis, static=True)
        matvecs += product.probe.matvecs
    return replace(probe, matvecs=matvecs), span


def _directions(residual: Array, overlap: Array, gram: Array, span: Span) -> tuple[Array, Array]:
    """Q and G with R = Q Gᵀ, less what is below the floor, from [S, Q]ᵀR and RᵀR.

    The residual is orthogonal to [S, Q] but for rounding, which is taken off where it is seen.
    """
    xp = namespace(residual)
    squares, vectors = xp.linalg.eigh(gram)
    host = to_host(squares)
    if host.size and host[0] > max(host[-1] / SOUND, _floor(span) ** 2):
        sizes = squares**0.5
        lean = to_host(frobenius_squared(overlap @ (vectors / sizes))) ** 0.5
        if lean <= SKEW * epsilon(residual):
            return residual @ (vectors / sizes), vectors * sizes
    left, small = triangular(residual - _combined(span, overlap))
    turn, sizes, right = xp.linalg.svd(small, full_matrices=False)
    rank = int(np.sum(to_host(sizes) > _floor(span)))
    return left @ turn[:, :rank], right[:rank].mT * sizes[:rank]


def _combined(span: Span, where: Array) -> Array:
    """[S, Q] · where."""
    m = span.columns.shape[-1]
    block = span.columns @ where[:m]
    block += span.pending @ where[m:]
    return block


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
    if not doubted and to_host(frobenius_squared(residual)) <= _floor(span) ** 2:
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
    return to_host(inner(span.known, span.rayleigh @ span.known))


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
    basis: Array, span: Span, block: Block, seen: Probe, whole: Array, shift: Any, odd: Array | None
) -> Probe:
    """The probe of the basis: the product itself, or what the span says of it.

    Where the product contradicts the span, `odd` is the image that a part of the basis should not
    have had.
    """
    if block.columns is basis:
        return seen
    level, matvecs = seen.background + shift, seen.matvecs
    if odd is not None:
        probe, _ = centre(basis, whole + odd)
        return replace(probe, background=probe.background + level, matvecs=matvecs)
    inside, outside = span.turn.mT @ span.rayleigh @ span.turn, span.coupling.mT @ span.turn
    mean = namespace(basis).mean(diagonal(inside))
    rayleigh = 0.5 * (inside + inside.mT) - mean * identity_like(inside)
    return Probe(basis, whole - mean * basis, mean + level, rayleigh, matvecs, outside.mT @ outside)


def _extended(span: Span, directions: Array, image: Array, pending: Array, coupling: Array) -> Span:
    """The span with the first pending directions in it; `image` is Qᵀ of that of those."""
    xp = namespace(image)
    rank = image.shape[-1]
    turned = span.pending @ directions
    image, inside = directions.mT @ image, span.coupling @ directions
    corner, again = image[:rank], image[rank:]
    across, down = inside[:, :rank], inside[:, rank:]
    fresh = span.fresh if span.fresh.shape[-2] else 0 * (span.pending[:1].mT @ span.known[:1])
    return span._replace(
        columns=xp.concat([span.columns, turned[:, :rank]], axis=-1),
        rayleigh=_blocks(span.rayleigh, across, across.mT, 0.5 * (corner + corner.mT)),
        pending=xp.concat([turned[:, rank:], pending], axis=-1),
        coupling=_blocks(down, 0 * (across @ coupling), again.mT, coupling),
        turn=xp.concat([span.known, directions[:, :rank].mT @ fresh], axis=-2),
    )


def _blocks(a: Array, b: Array, c: Array, d: Array) -> Array:
    xp = namespace(a)
    return xp.concat([xp.concat([a, b], axis=-1), xp.concat([c, d], axis=-1)], axis=-2)


def _ritz(span: Span, k: int, state: State) -> tuple[Array, Span]:
    """Leading Ritz vectors: descending at first, then each in the place of the one it continues."""
    turn = leading_vectors(span, k)
    if state.steps == 0:
        basis = span.columns @ turn
        sign = signs(basis)
        return contiguous(basis * sign), span._replace(turn=turn * sign)
    if span.turn.shape[-1]:
        overlap = span.turn.mT @ turn
    else:
        overlap = over_rows((state.basis.mT @ span.columns) @ turn)
    order, sign = continued(overlap, k, settled=state.steps > CAUTIOUS_STEPS)
    turn = (turn if order is None else taken(turn, order)) * sign
    return contiguous(span.columns @ turn), span._replace(turn=turn)


def _condensed(span: Span, k: int) -> Span:
    """The span's leading Ritz vectors once it has grown too large."""
    if span.columns.shape[-1] <= 3 * k + LARGEST:
        return span
    kept = leading_vectors(span, 2 * k + CONDENSED)
    return span._replace(
        columns=span.columns @ kept,
        rayleigh=kept.mT @ span.rayleigh @ kept,
        coupling=kept.mT @ span.coupling,
        turn=kept.mT @ span.known,
    )


def leading_vectors(span: Span, count: int) -> Array:
    """Eigenvectors of T, by descending eigenvalue, the first `count`."""
    xp = namespace(span.columns)
    return xp.flip(xp.linalg.eigh(span.rayleigh)[1][:, -count:], axis=-1)


def ritz_values(span: Span) -> Array:
    """Rayleigh quotients of the columns of the basis, at the level of the span."""
    xp, known = namespace(span.turn), span.known
    values = xp.sum(known * (span.rayleigh @ known), axis=-2)
    if span.fresh.shape[-2]:
        values += 2 * xp.sum(span.fresh * (span.coupling.mT @ known), axis=-2)
    return values
