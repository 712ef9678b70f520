"""One product on directions of a Krylov span: made, tested against what is known, absorbed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    diagonal,
    epsilon,
    frobenius_squared,
    inner,
    namespace,
    to_host,
    trace,
)
from bracketflow.oracles import Operator, common_level, multiplied, own_level, refuse_bad
from bracketflow.sharding import over_rows, shards
from bracketflow.tracker.span import Span, directions, extended, ritz_values

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
    pending: Array
    """Qᵀ of the centred product."""


def looked(operator: Operator, block: Block, span: Span, seen: Any) -> tuple[Product, Span]:
    """The step's one product, centred, and what of it lies in span[P, Q]: one message.

    The span comes back with the product's rounding in its books.
    """
    width = block.columns.shape[-1]

    def overlap(columns: Array) -> Array:
        parts = [part.mT @ columns for part in (block.columns, span.pending)]
        return namespace(columns).concat(parts, axis=-2)

    with np.errstate(over="ignore", invalid="ignore"):
        image = multiplied(operator, block.columns)
        level = own_level(block.columns, image)
        image = image - level * block.columns
        inside = overlap(image)
        if shards() is not None:
            own = level
            level, inside, _ = common_level(
                own, inside, overlap(block.columns), lambda a: diagonal(a[:width])
            )
            image += (own - level) * block.columns
        compressed = inside[:width]
        rayleigh = 0.5 * (compressed + compressed.mT)
        probe = Probe(block.columns, image, level, rayleigh, image.shape[-1])
        refuse_bad(probe, compressed - rayleigh, seen)
    rounding = np.maximum(span.rounding, _rounding(probe, span))
    return Product(probe, inside[width:]), span._replace(rounding=rounding)


def absorbed(
    span: Span, block: Block, product: Product, basis: Array, static: bool
) -> tuple[Span, Any, Array | None]:
    """The span with a product in it, and how far the product's level is from the span's.

    Combinations of P that lie in span X have a known image. When the product contradicts it, the
    third is what it adds to the image of the basis; None when it fits.
    """
    xp, seen = namespace(basis), product.probe
    expected = span.rayleigh @ block.known + span.coupling @ block.fresh
    shift = _shift(product, block, span, expected, static)
    frame, sizes, mixing = xp.linalg.svd(block.fresh)
    rank = int(np.sum(to_host(sizes) > DEFLATED))
    new, old = mixing[:rank].mT / sizes[:rank], mixing[rank:].mT
    of_basis = block.of_basis @ old
    odd = seen.centred @ old - shift * (block.columns @ old)
    if old.shape[-1]:
        odd -= image_of(span, basis, of_basis)
    inside = xp.concat([expected + shift * block.known, product.pending], axis=-2)
    residual = seen.centred @ new - span.combined(inside @ new)
    overlap, gram, surprise = over_rows(
        span.overlap(residual), residual.mT @ residual, frobenius_squared(odd)
    )
    surprise += frobenius_squared(overlap[: span.size] * sizes[:rank])
    if not to_host(surprise) <= span.slack**2:
        return span, shift, odd @ of_basis.mT
    if rank:
        known = block.fresh * shift + span.coupling.mT @ block.known
        image = (product.pending - known) @ new
        span = extended(span, frame, image, *directions(residual, overlap, gram, span))
    return span, shift, None


def image_of(span: Span, basis: Array, where: Array, level: Any = 0.0) -> Array:
    """(C − level) X · where, C at the level of the span, as far as X lies in it."""
    known = span.known @ where
    beside = span.pending @ (span.coupling.mT @ known)
    if span.fresh.shape[-2]:
        return beside + span.inside(span.rayleigh @ known) - level * (basis @ where)
    # The columns are Ritz vectors, T · turn = turn · diag: no product with S.
    beside += basis @ ((ritz_values(span) - level)[:, None] * where)
    return beside


def _shift(product: Product, block: Block, span: Span, expected: Array, static: bool) -> Any:
    """How far this product's level is from the span's, where SᵀCP is `expected`."""
    if static:
        return float(span.level - to_host(product.probe.background))
    inside = trace(product.probe.rayleigh) - inner(block.fresh, product.pending)
    return (inside - inner(block.known, expected)) / frobenius_squared(block.known)


def _rounding(seen: Probe, span: Span) -> Any:
    # An eighth of the bound that serves to refuse: noise as small as that must still be seen.
    extent = (2 * frobenius_squared(span.rayleigh)) ** 0.5 + frobenius_squared(span.coupling) ** 0.5
    return to_host(seen.rounding / 8 + 16 * epsilon(seen.basis) * extent)
