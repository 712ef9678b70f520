"""The mean on q < n columns: M = level·I + X diag(λ) Xᵀ, λ above the level.

One product with [X, z], z a fixed random column, gives with r = z − XXᵀz

    level = <r, Cr>/<r, r>            what lies outside the columns; never chosen by the mean
    N = (C − level)X − X diag(λ)      what the mean did not foresee
    Z = X diag(λ) + g N − μX          the mean times X, above its lowest Ritz value μ

and X follows to the left singular vectors of Z, λ to its singular values: to first order
X + g R (Λ − μ)⁻¹, always, so that the first k are the best Ritz vectors of the block. A shift
changes none of these. The other rungs are kept as differences D_j = M_j − M, of which are known the
block XᵀD_jX and, outside of it, a sketch of D_jX_k: rows added up in buckets with random signs,
which keeps inner products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    contiguous,
    contracted,
    diagonal,
    identity_like,
    namespace,
    to_host,
    trace,
)
from bracketflow.geometry import orthonormal_columns, random_columns
from bracketflow.observation import refuse_bad
from bracketflow.sharding import over_rows, row_count, shards
from bracketflow.tracker import ladder as ladders
from bracketflow.tracker.identity import arrange
from bracketflow.tracker.ladder import Ladder
from bracketflow.tracker.whole import Fresh

WIDTH = 5
"""q = WIDTH·k: columns beyond k stand for the bulk. Error over PCA's at n = 1000, noise 5: 1.15 for
4k, 1.12 for 5k, 1.10 for 6k (point 3 of benchmarks/tracker.py)."""
BUCKETS = 1024
"""Rows of a sketch: of an inner product of D_j and N it blurs 1/√(1024 k)."""
CLEARANCE = 1e-3
"""μ lies below the lowest Ritz value by this part of their range, so that Z has full rank."""
POLISHED = 16
"""Steps between two polishings of X: roundings of one are some eps."""


class Block(NamedTuple):
    """A mean on q columns, and how the other rungs differ from it; J rungs."""

    columns: Array
    """X, (n, q), orthonormal; the first k are the basis."""
    reference: Array
    """z, (n, 1)."""
    values: np.ndarray
    """λ, (q,)."""
    level: np.ndarray
    """Averaged level, ()."""
    inside: np.ndarray
    """XᵀD_jX, (J, q, q)."""
    outside: np.ndarray
    """Sketches of what of D_jX_k lies outside of X, (J, m, k)."""
    steps: np.ndarray
    """Turns so far, ()."""


class View(NamedTuple):
    """One product, at the level outside of the columns."""

    image: Array
    """(C − level)X, (n, q)."""
    rayleigh: np.ndarray
    """Xᵀ(C − level)X, (q, q)."""
    level: float


def start(basis: Array, rungs: int, rng: Any) -> Block:
    """Nothing seen: columns beyond k and the reference are random."""
    xp, n, k = namespace(basis), row_count(basis), basis.shape[-1]
    q = WIDTH * k
    drawn = random_columns(n, q - k + 1, rng=0 if rng is None else rng, like=basis)
    columns = orthonormal_columns(xp.concat([basis, drawn[:, :-1]], axis=-1))
    columns = xp.concat([basis, columns[:, k:]], axis=-1)
    reference = drawn[:, -1:] / float(over_rows(xp.sum(drawn[:, -1:] ** 2))) ** 0.5
    m = min(n, BUCKETS)
    return Block(
        contiguous(columns),
        contiguous(reference),
        np.zeros(q),
        np.zeros(()),
        np.zeros((rungs, q, q)),
        np.zeros((rungs, m, k)),
        np.zeros((), dtype=np.int64),
    )


def multiplied_columns(block: Block) -> Array:
    """[X, z]."""
    return namespace(block.columns).concat([block.columns, block.reference], axis=-1)


def observe(block: Block, product: Array, k: int, seen: Any) -> tuple[View, Probe, Probe]:
    """The product at the level outside of the columns; the probe of the basis, and of all columns.

    Everything is first centred at the quotient of z, so that no large background is subtracted
    twice. Raises `ObservationError` where the product is not usable.
    """
    X, z = block.columns, block.reference
    xp, q = namespace(X), X.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):
        along, square = over_rows(xp.sum(z * product[:, -1:]), xp.sum(z * z))
        level = along / square
        image = product[:, :q] - level * X
        beside = product[:, -1:] - level * z
        rayleigh, across, towards, height, own = over_rows(
            contracted(X, image), contracted(image, z), contracted(X, beside), z.mT @ beside,
            contracted(X, z),
        )  # fmt: skip
        symmetric = 0.5 * (rayleigh + rayleigh.mT)
        probe = Probe(X, image, level, symmetric, q + 1)
        skew = xp.concat([rayleigh - symmetric, 0.5 * (across - towards)], axis=-1)
        refuse_bad(probe, skew, seen)
    # <r, Cr>/<r, r> with r = z − Xa, a = Xᵀz
    quadratic = height - 2 * own.mT @ towards + own.mT @ symmetric @ own
    outside = quadratic[0, 0] / (square - xp.sum(own * own))
    image = image - outside * X
    symmetric = symmetric - outside * identity_like(symmetric)
    view = View(image, _host(symmetric), float(level + outside))
    return view, _of_basis(view, symmetric, level + outside, X, k), probe


def _of_basis(view: View, rayleigh: Array, level: Any, X: Array, k: int) -> Probe:
    """The probe of the first k columns."""
    inside, columns, image = rayleigh[:k, :k], contiguous(X[:, :k]), view.image[:, :k]
    own = trace(inside) / k
    gram = None
    if shards() is not None:
        residual = image - columns @ inside
        gram = over_rows(residual.mT @ residual)
    return Probe(
        columns,
        lambda: image - own * columns,
        level + own,
        inside - own * identity_like(inside),
        X.shape[-1] + 1,
        gram,
    )


def _sketch(rows: Array, signs: Array, buckets: int) -> np.ndarray:
    """Rows (n, k) added up in buckets by their place, each with the sign of its `signs`."""
    xp, spread = namespace(rows), shards()
    signed = rows * xp.where(signs < 0, -xp.ones_like(signs), xp.ones_like(signs))
    first = 0 if spread is None else spread.own.start % buckets
    n, k = signed.shape
    whole = -(-(first + n) // buckets) * buckets
    if whole != n:
        ends = [(first, k), (whole - first - n, k)]
        pads = [xp.zeros(end, dtype=rows.dtype, device=getattr(rows, "device", None)) for end in ends]
        signed = xp.concat([pads[0], signed, pads[1]], axis=0)
    summed = xp.sum(xp.reshape(signed, (-1, buckets, k)), axis=0)
    return _host(over_rows(summed))


def _host(array: Array) -> np.ndarray:
    return np.asarray(to_host(array), dtype=float)


class Unforeseen(NamedTuple):
    """N = (C − level)X − X diag(λ), in the block and outside of it."""

    columns: Array
    """N, (n, q)."""
    inside: np.ndarray
    """XᵀN, (q, q)."""
    outside: np.ndarray
    """Sketch of what of N_k lies outside of X, (m, k)."""


def compare(block: Block, view: View, k: int, ladder: Ladder) -> tuple[Fresh, Unforeseen]:
    """The observation beside the mean and the other rungs."""
    X = block.columns
    xp = namespace(X)
    values = xp.asarray(block.values, dtype=X.dtype, device=getattr(X, "device", None))
    columns = view.image - X * values
    inside = view.rayleigh - np.diag(block.values)
    part = xp.asarray(inside[:, :k], dtype=X.dtype, device=getattr(X, "device", None))
    fresh = columns[:, :k] - X @ part
    outside = _sketch(fresh, block.reference, block.outside.shape[1])
    lower = inside[k:, :k]
    powers = _host(over_rows(xp.sum(fresh * fresh, axis=0)))
    apart = np.sum(powers) + np.sum(lower**2)
    last = np.sum((outside - block.outside[0]) ** 2)
    last += np.sum((lower - block.inside[0, k:, :k]) ** 2)
    more, size = _captured(block, view, inside, outside, k, ladder)
    squares = np.concatenate([inside[:, :k] ** 2, powers[None]])
    quotients = np.diagonal(view.rayleigh)[:k] + view.level - block.values[:k] - block.level
    return (
        Fresh(float(apart), float(last), more, size, squares, quotients),
        Unforeseen(columns, inside, outside),
    )


def _captured(
    block: Block, view: View, inside: np.ndarray, outside: np.ndarray, k: int, ladder: Ladder
) -> tuple[np.ndarray, np.ndarray]:
    """b and its scale: pairs of the block as in `whole`, and what lies outside of it.

    Outside, where the mean has no columns, D_j turns column i by D/h to first order, h = λ_i.
    """
    values, quotients = block.values, np.diagonal(view.rayleigh)
    q = len(values)
    turns = block.inside[:, k:, :k]
    shifts = np.diagonal(block.inside, axis1=1, axis2=2)
    gap = values[:k] - values[k:, None]
    wide = gap + shifts[:, None, :k] - shifts[:, k:, None]
    length = np.sqrt(wide**2 + 4 * turns**2) + ladders.TINY
    fresh = quotients[:k] - quotients[k:, None]
    more = 2 * turns * view.rayleigh[k:, :k] / length - fresh * 0.5 * (1 - wide / length)
    size = gap * 0.5 * (1 - abs(wide) / length)
    noise = ladders.variances(ladder)[int(ladder.chosen)] * ladders.usual_noise(ladder)
    noise = 4 * noise / (k * (outside.shape[0] + q - k))
    inverse = values[:k] / (values[:k] ** 2 + noise + ladders.TINY)
    length_squared = np.sum(block.outside**2, axis=1) * inverse
    along = np.sum(block.outside * outside, axis=1) * inverse
    return (
        more.sum(axis=(1, 2)) + np.sum(2 * along - length_squared, axis=-1),
        size.sum(axis=(1, 2)) + np.sum(np.maximum(length_squared, 0.0), axis=-1),
    )


def absorb(
    block: Block,
    view: View,
    unforeseen: Unforeseen,
    gains: np.ndarray,
    verdict: ladders.Verdict,
    k: int,
) -> tuple[Block, np.ndarray]:
    """The mean with this observation in it, X turned; and how far columns keep their vector."""
    if verdict.jumped:
        empty = block._replace(inside=0 * block.inside, outside=0 * block.outside)
        return turn(empty, view.image, view.rayleigh, view.level, k)
    own = gains[verdict.chosen]
    kept, new = (1 - gains)[:, None, None], (gains - own)[:, None, None]
    inside = kept * block.inside + new * unforeseen.inside
    outside = kept * block.outside + new * unforeseen.outside
    adopted = inside[verdict.chosen].copy()
    inside = inside - adopted
    copied = verdict.copied | (np.arange(len(gains)) == verdict.chosen)
    inside[copied], outside[verdict.copied] = 0.0, outside[verdict.chosen]
    X = block.columns
    xp = namespace(X)
    raised = np.diag(block.values) + adopted
    middle = xp.asarray(raised, dtype=X.dtype, device=getattr(X, "device", None))
    mean = X * diagonal(middle) if not adopted.any() else X @ middle
    mean += float(own) * unforeseen.columns
    block = block._replace(inside=inside, outside=outside)
    level = float(block.level + own * (view.level - block.level))
    return turn(block, mean, raised + own * unforeseen.inside, level, k)


def turn(
    block: Block, mean: Array, rayleigh: np.ndarray, level: float, k: int
) -> tuple[Block, np.ndarray]:
    """X to the left singular vectors of Z = `mean` − μX, with `rayleigh` = Xᵀ`mean`.

    Columns keep place and sign; the first turn orders them by descending λ.
    """
    X, q = block.columns, len(block.values)
    xp = namespace(X)
    ritz = np.linalg.eigvalsh(0.5 * (rayleigh + rayleigh.T))
    lowest = min(ritz[0], 0.0) - CLEARANCE * (ritz[-1] - ritz[0])
    if ritz[-1] == lowest:  # nothing rises above anything: X stays
        return block._replace(level=np.asarray(level), steps=block.steps + 1), np.ones(k)
    Z = mean - float(lowest) * X
    gram = _host(over_rows(contracted(Z, Z)))
    squares, vectors = np.linalg.eigh(gram)
    squares, vectors = squares[::-1], vectors[:, ::-1]
    lengths = np.sqrt(np.maximum(squares, squares[0] * q * np.finfo(float).eps))
    coefficients = vectors / lengths
    overlap = (rayleigh - lowest * np.eye(q)) @ coefficients
    known = overlap[:k, :k] if block.steps else np.eye(k)
    order, sign, kept = arrange(known, q)
    coefficients, overlap = coefficients[:, order] * sign, overlap[:, order] * sign
    columns = Z @ xp.asarray(coefficients, dtype=X.dtype, device=getattr(X, "device", None))
    if int(block.steps) % POLISHED == 0:
        columns = orthonormal_columns(columns)
    return (
        block._replace(
            columns=contiguous(columns),
            values=lengths[order] + lowest,
            level=np.asarray(level),
            inside=overlap.T @ block.inside @ overlap,
            outside=block.outside @ overlap[:k, :k],
            steps=block.steps + 1,
        ),
        kept,
    )
