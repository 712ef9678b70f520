"""The mean on q < n columns: M = level·I + X diag(λ) Xᵀ, λ above the level.

The last column is a reference, what lies outside of the others of a fixed random z; λ is 0 there.
One product with X gives

    level = <r, Cr>/<r, r>            of the reference r, which the mean has not chosen
    N = (C − level)X − X diag(λ)      what the mean did not foresee
    Z = X diag(λ) + g N − μX          the mean times X, above its lowest Ritz value μ

and X follows to the leading left singular vectors of Z, λ to its singular values: to first order
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
from bracketflow.tracker.whole import as_array_of, on_host

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
    """X, (n, q), orthonormal; the first k are the basis, the last is the reference."""
    random: Array
    """z, (n, 1), of unit length."""
    along: np.ndarray
    """Xᵀz, (q,): z lies in the span of X."""
    sketch: np.ndarray
    """Sketch of X, (q, m)."""
    values: np.ndarray
    """λ, (q,)."""
    levels: np.ndarray
    """Averaged levels, (J,)."""
    # What is newer than X.
    image: Array
    """Σ share_s (C_s − level_s)X of the chosen mean, (n, q)."""
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
    """(C − level)X, (n, q)."""
    level: float
    """Quotient of the reference r."""
    power: float
    """‖(C − level)z‖²."""
    inside: np.ndarray
    """XᵀNX, (q, q)."""
    outside: np.ndarray
    """Sketch of what of N_k lies outside of X, (k, m)."""


def start(basis: Array, rungs: int, rng: Any) -> Block:
    """Nothing seen: columns beyond k and the reference are random."""
    xp, n, k = namespace(basis), row_count(basis), basis.shape[-1]
    q, m = WIDTH * k + 1, min(n, BUCKETS)
    drawn = random_columns(n, q - k, rng=0 if rng is None else rng, like=basis)
    columns = orthonormal_columns(xp.concat([basis, drawn], axis=-1))
    columns = contiguous(xp.concat([basis, columns[:, k:]], axis=-1))
    random = drawn[:, -1:] / float(over_rows(xp.sum(drawn[:, -1:] ** 2))) ** 0.5
    return Block(
        columns=columns,
        random=contiguous(random),
        along=on_host(over_rows(contracted(columns, random)))[:, 0],
        sketch=on_host(over_rows(_sketch(columns, random, m))),
        values=np.zeros(q),
        levels=np.zeros(rungs),
        image=xp.zeros_like(columns),
        stale=np.zeros(()),
        inside=np.zeros((rungs, q, q)),
        outside=np.zeros((rungs, k, m)),
        offers=offer.none(rungs, q, k, m),
    )


def observe(
    block: Block, columns: Array, product: Array, basis: Array, seen: Any
) -> tuple[View, Probe, Probe]:
    """The product with X; the probe of the basis, and that of all columns.

    Raises `ObservationError` where the product is not usable.
    """
    xp, (q, m), k = namespace(columns), block.sketch.shape, basis.shape[-1]
    reference = columns[:, -1:]
    with np.errstate(over="ignore", invalid="ignore"):
        along, square = over_rows(
            xp.sum(reference * product[:, -1:]), xp.sum(reference * reference)
        )
        level = along / square
        image = -level * columns
        image += product
        compressed, size, power, sketched = over_rows(
            contracted(columns, image),
            frobenius_squared(image),
            xp.sum((image @ as_array_of(block.along, image)) ** 2),
            _sketch(image[:, :k], block.random, m),
        )
        rayleigh = 0.5 * (compressed + compressed.mT)
        everything = Probe(columns, image, level, rayleigh, q, square=size)
        refuse_bad(everything, compressed - rayleigh, seen)
    inside = on_host(rayleigh)
    view = View(
        image,
        float(level),
        float(power),
        inside - np.diag(block.values),
        on_host(sketched) - inside[:k] @ block.sketch,
    )
    return view, _of_basis(image, rayleigh, level, basis), everything


def _of_basis(image: Array, rayleigh: Array, level: Any, basis: Array) -> Probe:
    """The probe of the first k columns."""
    k, matvecs = basis.shape[-1], image.shape[-1]
    inside, image = rayleigh[:k, :k], image[:, :k]
    own = trace(inside) / k
    inside = inside - own * identity_like(inside)
    return Probe(basis, partial(_lowered, image, own, basis), level + own, inside, matvecs)


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
    outside, powers_last = np.sum(powers), np.sum((view.outside - block.outside[0]) ** 2)
    since_last = view.inside - block.inside[0]
    more = block.offers.judge(entries, quotients, view.outside)
    nearer = powers_last + np.sum(since_last**2) < outside + np.sum(view.inside**2)
    return Fresh(
        float(outside + np.sum(view.inside[k:, :k] ** 2)),
        float(powers_last + np.sum(since_last[k:, :k] ** 2)),
        bool(nearer or more[0] > 0),
        more,
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
        Z = X * as_array_of((1 - block.stale) * block.values - lowest, X)
    else:
        gathered = on_host(over_rows(contracted(X, block.image)))
        Z = X @ as_array_of(rayleigh - lowest * np.eye(q) - gathered, X)
    Z += block.image
    squares, vectors = np.linalg.eigh(on_host(over_rows(contracted(Z, Z))))
    squares, vectors = squares[::-1], vectors[:, ::-1]
    lengths = np.sqrt(np.maximum(squares, squares[0] * q * epsilon(X)))
    coefficients = (vectors / lengths)[:, :-1]
    overlap = (rayleigh - lowest * np.eye(q)) @ coefficients
    known = overlap[:k, :k] if settled else np.diag(np.diagonal(overlap)[:k])
    order, sign, kept = arrange(known, q - 1, settled=settled)
    coefficients, overlap = coefficients[:, order] * sign, overlap[:, order] * sign
    columns, sketch, along = _polished(Z @ as_array_of(coefficients, X), block)
    reference = (block.along - overlap @ along[:-1]) / along[-1]
    overlap = np.concatenate([overlap, reference[:, None]], axis=1)
    block = block._replace(values=np.append(lengths[order] + lowest, 0.0), along=along)
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
        stale=0 * block.stale,
        inside=inside,
        outside=leading.T @ outside - along.mT @ sketch[:k],
    )


def _polished(columns: Array, block: Block) -> tuple[Array, np.ndarray, np.ndarray]:
    """New columns made orthonormal, and the reference behind them; their sketch, and Xᵀz.

    A step of Newton and Schulz towards XᵀX = I, QR where it is too far for that.
    """
    xp, (q, m), z = namespace(columns), block.sketch.shape, block.random
    gram, product, sketched = over_rows(
        contracted(columns, columns), contracted(columns, z), _sketch(columns, z, m)
    )
    sketch, along = on_host(sketched), on_host(product)[:, 0]
    defect = on_host(gram) - np.eye(q - 1)
    size = float(np.linalg.norm(defect))
    if not size < 0.1:
        columns = orthonormal_columns(columns)
        sketch = on_host(over_rows(_sketch(columns, z, m)))
        along = on_host(over_rows(contracted(columns, z)))[:, 0]
    # What a step leaves is ¾·size²: nothing is to be gained below the rounding of the sums.
    elif size > q * epsilon(columns):
        step = np.eye(q - 1) - 0.5 * defect
        columns, sketch, along = (
            columns @ as_array_of(step, columns),
            step.T @ sketch,
            step.T @ along,
        )
    length = float(max(1 - along @ along, epsilon(columns))) ** 0.5
    reference = (z - columns @ as_array_of(along[:, None], columns)) / length
    sketch = np.vstack([sketch, (block.along @ block.sketch - along @ sketch) / length])
    return xp.concat([columns, reference], axis=-1), sketch, np.append(along, length)
