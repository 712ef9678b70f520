"""The mean on q < n columns: M = level·I + X diag(λ) Xᵀ, λ above the level.

One product with [X, z], z a fixed random column, gives with r = z − XXᵀz

    level = <r, Cr>/<r, r>            what lies outside the columns; never chosen by the mean
    N = (C − level)X − X diag(λ)      what the mean did not foresee
    Z = X diag(λ) + g N − μX          the mean times X, above its lowest Ritz value μ

and X follows to the left singular vectors of Z, λ to its singular values: to first order
X + g R (Λ − μ)⁻¹, so that the first k are the best Ritz vectors of the block. A shift changes none
of these. Observations are gathered in Z until enough is new for X to turn. The rungs are kept as
differences D_j from the mean at the last turn, of which are known the block XᵀD_jX and, outside of
it, a sketch of D_jX_k: rows added up in buckets with random signs, which keeps inner products.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    contiguous,
    contracted,
    epsilon,
    frobenius_squared,
    identity_like,
    namespace,
    trace,
)
from bracketflow.geometry import orthonormal_columns, random_columns
from bracketflow.observation import refuse_bad
from bracketflow.sharding import over_rows, row_count, shards
from bracketflow.tracker import offers as offer
from bracketflow.tracker.identity import arrange
from bracketflow.tracker.ladder import Ladder, Verdict
from bracketflow.tracker.offers import Fresh, Offers
from bracketflow.tracker.whole import _host, _like

WIDTH = 5
"""q = WIDTH·k: columns beyond k stand for the bulk. Error over PCA's at n = 1000, noise 5: 1.15 for
4k, 1.12 for 5k, 1.10 for 6k (point 3 of benchmarks/tracker.py)."""
BUCKETS = 512
"""Rows of a sketch: it blurs the cosine of D_j and N by 1/√(512 k)."""
CLEARANCE = 1e-3
"""μ lies below the lowest Ritz value by this part of their range, so that Z has full rank."""


class Block(NamedTuple):
    """A mean on q columns, and how the rungs differ from it; J rungs."""

    columns: Array
    """X, (n, q), orthonormal; the first k are the basis."""
    reference: Array
    """z, (n, 1)."""
    sketch: np.ndarray
    """Sketch of X, (q, m)."""
    values: np.ndarray
    """λ, (q,)."""
    levels: np.ndarray
    """Averaged levels, (J,)."""
    # What is newer than X.
    image: Array
    """Σ share_s (C_s − level_s)X of the chosen mean, (n, q), at the levels s of z."""
    offset: np.ndarray
    """Σ share_s of the level outside of the columns above that of z, ()."""
    stale: np.ndarray
    """Share of the chosen mean that is newer, ()."""
    inside: np.ndarray
    """XᵀD_jX, (J, q, q)."""
    outside: np.ndarray
    """Sketches of what of D_jX_k lies outside of X, (J, k, m)."""
    offers: Offers
    """What the other rungs would turn."""


class View(NamedTuple):
    """One product."""

    image: Array
    """(C − s)X at the level s of the reference, (n, q)."""
    offset: float
    """Level outside of the columns, above s."""
    level: float
    """That level: s + offset."""
    inside: np.ndarray
    """XᵀNX, (q, q)."""
    outside: np.ndarray
    """Sketch of what of N_k lies outside of X, (k, m)."""


def start(basis: Array, rungs: int, rng: Any) -> Block:
    """Nothing seen: columns beyond k and the reference are random."""
    xp, n, k = namespace(basis), row_count(basis), basis.shape[-1]
    q, m = WIDTH * k, min(n, BUCKETS)
    drawn = random_columns(n, q - k + 1, rng=0 if rng is None else rng, like=basis)
    columns = orthonormal_columns(xp.concat([basis, drawn[:, :-1]], axis=-1))
    columns = contiguous(xp.concat([basis, columns[:, k:]], axis=-1))
    reference = drawn[:, -1:] / float(over_rows(xp.sum(drawn[:, -1:] ** 2))) ** 0.5
    return Block(
        columns=columns,
        reference=contiguous(reference),
        sketch=_host(over_rows(_sketch(columns, reference, m))),
        values=np.zeros(q),
        levels=np.zeros(rungs),
        image=xp.zeros_like(columns),
        offset=np.zeros(()),
        stale=np.zeros(()),
        inside=np.zeros((rungs, q, q)),
        outside=np.zeros((rungs, k, m)),
        offers=offer.none(rungs, q, k, m),
    )


def multiplied_columns(block: Block) -> Array:
    """[X, z]."""
    return namespace(block.columns).concat([block.columns, block.reference], axis=-1)


def observe(
    block: Block, columns: Array, product: Array, basis: Array, seen: Any
) -> tuple[View, Probe, Probe]:
    """The product with [X, z]; the probe of the basis, and that of all columns.

    Everything is centred at the quotient s of z first. Raises `ObservationError` where the product
    is not usable.
    """
    xp, q, k = namespace(columns), columns.shape[-1] - 1, basis.shape[-1]
    z = columns[:, -1:]
    with np.errstate(over="ignore", invalid="ignore"):
        along, square = over_rows(xp.sum(z * product[:, -1:]), xp.sum(z * z))
        level = along / square
        centred = -level * columns
        centred += product
        image = centred[:, :q]
        compressed, own, size, sketched = over_rows(
            contracted(columns, centred),
            contracted(columns, z),
            frobenius_squared(centred) - xp.sum(centred[:, q:] ** 2),
            _sketch(image[:, :k], block.reference, block.sketch.shape[-1]),
        )
        symmetric = 0.5 * (compressed + compressed.mT)
        rayleigh = symmetric[:q, :q]
        everything = Probe(columns[:, :q], image, level, rayleigh, q + 1, square=size)
        refuse_bad(everything, compressed - symmetric, seen)
    # <r, Cr>/<r, r> with r = z − Xa, a = Xᵀz
    inward = own[:q, 0]
    turned = rayleigh @ inward - 2 * symmetric[:q, q]
    offset = float((symmetric[q, q] + inward @ turned) / (square - inward @ inward))
    inside = _host(rayleigh)
    view = View(
        image,
        offset,
        float(level + offset),
        inside - np.diag(block.values + offset),
        _host(sketched) - inside[:k] @ block.sketch,
    )
    return view, _of_basis(image, rayleigh, level, basis), everything


def _of_basis(image: Array, rayleigh: Array, level: Any, basis: Array) -> Probe:
    """The probe of the first k columns."""
    k, matvecs = basis.shape[-1], image.shape[-1] + 1
    inside, image = rayleigh[:k, :k], image[:, :k]
    own, gram = trace(inside) / k, None
    if shards() is not None:
        residual = image - basis @ inside
        gram = over_rows(residual.mT @ residual)
    inside = inside - own * identity_like(inside)
    return Probe(basis, partial(_lowered, image, own, basis), level + own, inside, matvecs, gram)


def _lowered(image: Array, level: Any, columns: Array) -> Array:
    return image - level * columns


def _sketch(rows: Array, signs: Array, buckets: int) -> Array:
    """Rows (n, k) added up in buckets by their place, with the sign of their `signs`, (k, m).

    Of spread rows the part of this process.
    """
    xp, spread = namespace(rows), shards()
    signed = rows * xp.where(signs < 0, -xp.ones_like(signs), xp.ones_like(signs))
    first = 0 if spread is None else spread.own.start % buckets
    n, k = signed.shape
    whole = -(-(first + n) // buckets) * buckets
    if whole != n:
        ends = [(first, k), (whole - first - n, k)]
        pads = [
            xp.zeros(end, dtype=rows.dtype, device=getattr(rows, "device", None)) for end in ends
        ]
        signed = xp.concat([pads[0], signed, pads[1]], axis=0)
    return contiguous(xp.sum(xp.reshape(signed, (-1, buckets, k)), axis=0).mT)


def compare(block: Block, view: View, k: int, chosen: int) -> Fresh:
    """The observation beside the mean and the rungs."""
    entries = view.inside[:, :k].copy()
    entries[np.arange(k), np.arange(k)] += block.values[:k]
    quotients = block.values + np.diagonal(view.inside)
    powers = np.einsum("km,km->k", view.outside, view.outside)
    lower, last = view.inside[k:, :k], view.outside - block.outside[0]
    apart = np.sum(powers) + np.sum(lower**2)
    from_last = np.vdot(last, last) + np.sum((lower - block.inside[0, k:, :k]) ** 2)
    return Fresh(
        float(apart),
        float(from_last),
        block.offers.judge(entries, quotients, view.outside),
        np.concatenate([view.inside[:, :k] ** 2, powers[None]]),
        quotients[:k] + view.level - block.values[:k] - block.levels[chosen],
    )


def offers(block: Block, k: int, ladder: Ladder) -> Block:
    """The offers of the rungs as they are now."""
    chosen, values = int(ladder.chosen), block.values
    q, m = block.sketch.shape
    inside = block.inside - block.inside[chosen]
    noise = float(ladder.variance[chosen] * ladder.usual) / (k * (m + q - k))
    shifts = np.diagonal(inside, axis1=1, axis2=2)
    found = offer.offered(inside[:, :, :k], shifts, values, np.arange(k), noise, full=False)
    outside = block.outside - block.outside[chosen]
    return block._replace(
        offers=offer.with_outside(found, outside, shifts[:, :k], values[:k], noise)
    )


def first(block: Block, view: View, basis: Array) -> tuple[Block, np.ndarray]:
    """After the first observation, which is all that is known."""
    J, last = len(block.levels), len(block.levels) - 1
    everything = Verdict(last, True, np.zeros(J, dtype=bool))
    block = absorb(block, view, np.ones(J), everything, 0)
    return turn(block, last, last, basis.shape[-1])


def absorb(block: Block, view: View, gains: np.ndarray, verdict: Verdict, at: int) -> Block:
    """The mean with this observation in it; X stays."""
    chosen, J = verdict.chosen, len(gains)
    source = np.where(verdict.copied, chosen, np.arange(J))
    inside, outside = block.inside[source], block.outside[source]
    levels = block.levels[source]
    if verdict.jumped:
        gains = np.ones_like(gains)
    wide = gains[:, None, None]
    inside += wide * (view.inside - inside)
    outside += wide * (view.outside - outside)
    gain = float(gains[chosen])
    image = gain * view.image
    if gain < 1 and block.stale:
        image += (1 - gain) * block.image
    return block._replace(
        image=image,
        offset=(1 - gain) * block.offset + gain * view.offset,
        stale=gain + (1 - gain) * block.stale,
        inside=inside,
        outside=outside,
        levels=levels + gains * (view.level - levels),
    )


def turn(block: Block, chosen: int, former: int, k: int) -> tuple[Block, np.ndarray]:
    """X to the left singular vectors of Z; and how far columns keep their vector, (k,).

    Columns keep place and sign; the first turn orders them by descending λ. What another rung than
    the `former` one has in the block is known, and outside of it only as a sketch, which is left.
    """
    X, q = block.columns, len(block.values)
    rayleigh = np.diag(block.values) + block.inside[chosen]
    ritz = np.linalg.eigvalsh(0.5 * (rayleigh + rayleigh.T))
    lowest = min(ritz[0], 0.0) - CLEARANCE * (ritz[-1] - ritz[0])
    settled = bool(block.values.any())
    if ritz[-1] <= lowest:  # nothing rises above anything: X stays
        block = block._replace(values=np.diagonal(rayleigh).copy())
        return _turned(block, chosen, np.eye(q), X, block.sketch, k), np.ones(k)
    if chosen == former:
        Z = X * _like((1 - block.stale) * block.values - (block.offset + lowest), X)
    else:
        gathered = _host(over_rows(contracted(X, block.image)))
        Z = X @ _like(rayleigh - lowest * np.eye(q) - gathered, X)
    Z += block.image
    squares, vectors = np.linalg.eigh(_host(over_rows(contracted(Z, Z))))
    squares, vectors = squares[::-1], vectors[:, ::-1]
    lengths = np.sqrt(np.maximum(squares, squares[0] * q * epsilon(X)))
    coefficients = vectors / lengths
    overlap = (rayleigh - lowest * np.eye(q)) @ coefficients
    known = overlap[:k, :k] if settled else np.diag(np.diagonal(overlap)[:k])
    order, sign, kept = arrange(known, q, settled=settled)
    coefficients, overlap = coefficients[:, order] * sign, overlap[:, order] * sign
    columns, sketch = _polished(Z @ _like(coefficients, X), block, k)
    block = block._replace(values=lengths[order] + lowest)
    return _turned(block, chosen, overlap, columns, sketch, k), kept


def _turned(
    block: Block, chosen: int, overlap: np.ndarray, columns: Array, sketch: np.ndarray, k: int
) -> Block:
    """The differences of the rungs from the chosen one, on new columns; `overlap` is XᵀX_new.

    With D = X A Xᵀ + O X_kᵀ + X_k Oᵀ, what of O lies along the new columns comes into the block.
    """
    inside = block.inside - block.inside[chosen]
    outside = block.outside - block.outside[chosen]
    leading = overlap[:k, :k]
    along = (sketch[:k] @ outside.mT) @ leading
    inside = overlap.T @ inside @ overlap
    inside[:, :k, :k] += along + along.mT
    return block._replace(
        columns=contiguous(columns),
        sketch=sketch,
        offset=0 * block.offset,
        stale=0 * block.stale,
        inside=inside,
        outside=leading.T @ outside - along.mT @ sketch[:k],
    )


def _polished(columns: Array, block: Block, k: int) -> tuple[Array, np.ndarray]:
    """A step of Newton and Schulz towards XᵀX = I, QR where it is too far; and the sketch."""
    m = block.sketch.shape[-1]
    gram, sketch = over_rows(contracted(columns, columns), _sketch(columns, block.reference, m))
    sketch, defect = _host(sketch), _host(gram) - np.eye(gram.shape[-1])
    size = float(np.linalg.norm(defect))
    if not size < 0.1:
        columns = orthonormal_columns(columns)
        return columns, _host(over_rows(_sketch(columns, block.reference, m)))
    # What a step leaves is ¾·size²: nothing is to be gained below the rounding of the sums.
    if size < len(defect) * epsilon(columns):
        return columns, sketch
    step = np.eye(len(defect)) - 0.5 * defect
    if size > epsilon(columns) ** 0.5:
        return columns @ _like(step, columns), step.T @ sketch
    columns[:, :k] = columns @ _like(step[:, :k], columns)  # further ones need not be that exact
    return columns, sketch
