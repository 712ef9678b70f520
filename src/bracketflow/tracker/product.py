"""One product on directions of a Krylov span: made, tested against what is known, absorbed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
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
from bracketflow.observation import common_level, multiplied, own_level, refuse_bad
from bracketflow.oracles import Operator
from bracketflow.sharding import over_rows, shards
from bracketflow.tracker.span import Span, directions, extended, ritz_values, summed

LEANING = 512  # roundings that a new direction may have of an old one, by an estimate that is high
DEFLATED = 0.1  # a part outside the span smaller than this is not resolved well enough


class Block(NamedTuple):
    """What to multiply next: P = S A + Q B = X W + Q B', whose part X W has a known image.

    It is the basis, or a reference, unless the operator is static, and directions of Q.
    """

    columns: Array
    known: Array
    fresh: Array
    of_basis: Array
    """W, k × w."""
    whole: bool = False
    """Whether all of Q stands in it, as its last columns."""


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
        parts = (block.columns,) if block.whole else (block.columns, span.pending)
        return namespace(columns).concat([contracted(part, columns) for part in parts], axis=-2)

    with np.errstate(over="ignore", invalid="ignore"):
        product = multiplied(operator, block.columns)
        level = own_level(block.columns, product)
        image = -level * block.columns
        image += product
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
    pending = inside[len(inside) - len(block.fresh) :]  # of a whole block its last columns are Q
    return Product(probe, pending), span._replace(rounding=rounding)


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
    frame, sizes, new, old = _separated(block)
    of_basis = block.of_basis @ old
    odd = _odd(span, block, basis, seen.centred, old, shift)
    inside = xp.concat([expected + shift * block.known, product.pending], axis=-2) @ new
    # A pass over S that may not be needed costs less than a message that may be.
    everywhere = not block.whole or shards() is not None
    residual, *sums = span.left_of((seen.centred, new), inside, everywhere)
    overlap, gram, surprise = over_rows(*sums, frobenius_squared(odd))
    leaning = 0 * inside[: span.size] if everywhere else span.leaning(inside)
    if not everywhere and _leans(leaning, gram):
        overlap, leaning = span.overlap(residual), 0 * leaning
    surprise += frobenius_squared(overlap[: span.size] * sizes)
    if not to_host(surprise) <= span.slack**2:
        return span, shift, odd @ of_basis.mT
    if new.shape[-1]:
        known = block.fresh * shift + span.coupling.mT @ block.known
        image = (product.pending - known) @ new
        pending = directions(residual, overlap, gram, span)
        span = extended(span, frame, image, leaning, *pending)
    return span, shift, None


def _leans(leaning: Array, gram: Array) -> bool:
    """Whether roundings may have grown so far in a residual that they must be looked for."""
    squares = to_host(namespace(gram).linalg.eigvalsh(gram))
    sizes = np.sqrt(np.maximum(squares, 0.0))
    return bool((np.abs(to_host(leaning)).max(initial=0.0) > LEANING * epsilon(gram) * sizes).any())


def _separated(block: Block) -> tuple[Array | None, Array, Array, Array]:
    """The frame in which Q begins with its directions in P, and their sizes there.

    Then the mixes of P that have these directions and that lie in span S. The frame of all of Q is
    None.
    """
    xp, fresh = namespace(block.fresh), block.fresh
    if block.whole:
        identity, first = identity_like(fresh), fresh.shape[-1] - len(fresh)
        return None, 1 + 0 * identity[0, first:], identity[:, first:], identity[:, :first]
    frame, sizes, mixing = xp.linalg.svd(fresh)
    rank = int(np.sum(to_host(sizes) > DEFLATED))
    return frame, sizes[:rank], mixing[:rank].mT / sizes[:rank], mixing[rank:].mT


def _odd(span: Span, block: Block, basis: Array, image: Array, old: Array, shift: Any) -> Array:
    """What of the image of P · old, which lies in span S, is not the known one."""
    count = old.shape[-1]
    if block.whole or not count:
        return image[:, :count] - (span.image + shift * span.reference)[:, :count]
    if block.columns is basis:
        known = image_of(span, basis, old), -identity_like(old)
    else:
        known = span.image, -old[:1]
    return summed((image, old), (block.columns, -shift * old), known)


def image_of(span: Span, basis: Array, where: Array, level: Any = 0.0) -> Array:
    """(C − level) X · where, C at the level of the span, as far as X lies in it."""
    known = span.known @ where
    beside = span.pending @ (span.coupling.mT @ known)
    if span.fresh.shape[-2] or span.waited:
        return beside + span.combined(span.rayleigh @ known) - level * (basis @ where)
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
