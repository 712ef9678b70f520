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
    column_inner,
    contiguous,
    contracted,
    epsilon,
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
BUCKETS = 512
"""Rows of a sketch: it blurs the cosine of D_j and N by 1/√(512 k)."""
CLEARANCE = 1e-3
"""μ lies below the lowest Ritz value by this part of their range, so that Z has full rank."""


class Block(NamedTuple):
    """A mean on q columns, and how the other rungs differ from it; J rungs."""

    columns: Array
    """X, (n, q), orthonormal; the first k are the basis."""
    reference: Array
    """z, (n, 1)."""
    values: np.ndarray
    """λ, (q,)."""
    levels: np.ndarray
    """Averaged levels, (J,)."""
    inside: np.ndarray
    """XᵀD_jX, (J, q, q)."""
    outside: np.ndarray
    """Sketches of what of D_jX_k lies outside of X, (J, k, m)."""
    steps: np.ndarray
    """Turns so far, ()."""


class View(NamedTuple):
    """One product."""

    image: Array
    """(C − s)X at the level s of the reference, (n, q)."""
    offset: float
    """Level outside of the columns, above s."""
    rayleigh: np.ndarray
    """XᵀCX above the level outside of the columns, (q, q)."""
    level: float
    """That level: s + offset."""


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
        np.zeros(rungs),
        np.zeros((rungs, q, q)),
        np.zeros((rungs, k, m)),
        np.zeros((), dtype=np.int64),
    )


def multiplied_columns(block: Block) -> Array:
    """[X, z]."""
    return namespace(block.columns).concat([block.columns, block.reference], axis=-1)


def observe(
    block: Block, columns: Array, product: Array, k: int, seen: Any
) -> tuple[View, Probe, Probe]:
    """The product with [X, z]; the probe of the basis, and that of all columns.

    Everything is centred at the quotient s of z first. Raises `ObservationError` where the product
    is not usable.
    """
    xp, q = namespace(columns), columns.shape[-1] - 1
    z = columns[:, -1:]
    with np.errstate(over="ignore", invalid="ignore"):
        along, square = over_rows(xp.sum(z * product[:, -1:]), xp.sum(z * z))
        level = along / square
        centred = -level * columns
        centred += product
        compressed, own = over_rows(contracted(columns, centred), contracted(columns, z))
        symmetric = 0.5 * (compressed + compressed.mT)
        image, rayleigh = centred[:, :q], symmetric[:q, :q]
        everything = Probe(columns[:, :q], image, level, rayleigh, q + 1)
        refuse_bad(everything, compressed - symmetric, seen)
    # <r, Cr>/<r, r> with r = z − Xa, a = Xᵀz
    inward = own[:q, 0]
    turned = rayleigh @ inward - 2 * symmetric[:q, q]
    offset = float((symmetric[q, q] + inward @ turned) / (square - inward @ inward))
    view = View(image, offset, _host(rayleigh) - offset * np.eye(q), float(level + offset))
    return view, _of_basis(image, rayleigh, level, block.columns, k), everything


def _of_basis(image: Array, rayleigh: Array, level: Any, X: Array, k: int) -> Probe:
    """The probe of the first k columns."""
    inside, columns, image = rayleigh[:k, :k], contiguous(X[:, :k]), image[:, :k]
    own = trace(inside) / k
    gram = None
    if shards() is not None:
        residual = image - columns @ inside
        gram = over_rows(residual.mT @ residual)
    return Probe(
        columns,
        image - own * columns,
        level + own,
        inside - own * identity_like(inside),
        X.shape[-1] + 1,
        gram,
    )


def _sketch(rows: Array, signs: Array, buckets: int) -> Array:
    """Rows (n, k) added up in buckets by their place, each with the sign of its `signs`.

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
    return xp.sum(xp.reshape(signed, (-1, buckets, k)), axis=0)


def _host(array: Array) -> np.ndarray:
    return np.asarray(to_host(array), dtype=float)


class Unforeseen(NamedTuple):
    """N = (C − level)X − X diag(λ), in the block and outside of it."""

    inside: np.ndarray
    """XᵀN, (q, q)."""
    outside: np.ndarray
    """Sketch of what of N_k lies outside of X, (k, m)."""


def compare(block: Block, view: View, k: int, ladder: Ladder) -> tuple[Fresh, Unforeseen]:
    """The observation beside the mean and the other rungs."""
    X = block.columns
    inside = view.rayleigh - np.diag(block.values)
    along = view.rayleigh[:, :k] + view.offset * np.eye(len(inside), k)
    fresh = view.image[:, :k] - X @ _like(along, X)
    buckets = _sketch(fresh, block.reference, block.outside.shape[-1])
    outside, powers = map(_host, over_rows(buckets, column_inner(fresh, fresh)))
    outside = np.ascontiguousarray(outside.T)
    lower = inside[k:, :k]
    apart = np.sum(powers) + np.sum(lower**2)
    last = np.sum((outside - block.outside[0]) ** 2)
    last += np.sum((lower - block.inside[0, k:, :k]) ** 2)
    more, size = _captured(block, view, outside, k, ladder)
    squares = np.concatenate([inside[:, :k] ** 2, powers[None]])
    foreseen = block.values[:k] + block.levels[ladder.chosen]
    quotients = np.diagonal(view.rayleigh)[:k] + view.level - foreseen
    return (
        Fresh(float(apart), float(last), more, size, squares, quotients),
        Unforeseen(inside, outside),
    )


def _like(small: np.ndarray, X: Array) -> Array:
    """A small array of the host in the library, dtype and device of X."""
    if isinstance(X, np.ndarray):
        return small.astype(X.dtype, copy=False)
    return namespace(X).asarray(small, dtype=X.dtype, device=X.device)


def _captured(
    block: Block, view: View, outside: np.ndarray, k: int, ladder: Ladder
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
    noise = float(ladders.variances(ladder)[ladder.chosen] * ladder.usual)
    noise = 4 * noise / (k * (outside.shape[-1] + q - k))
    inverse = values[:k] / (values[:k] ** 2 + noise + ladders.TINY)
    squares = np.einsum("jkm,jkm->jk", block.outside, block.outside) @ inverse
    along = np.einsum("jkm,km->jk", block.outside, outside) @ inverse
    return (
        more.sum(axis=(1, 2)) + 2 * along - squares,
        size.sum(axis=(1, 2)) + np.maximum(squares, 0.0),
    )


def first(block: Block, view: View, k: int) -> Block:
    """After the first observation, which is all that is known."""
    levels = block.levels + view.level
    return _turn(block._replace(levels=levels), view, 1.0, 0 * view.rayleigh, k)[0]


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
        levels = 0 * block.levels + view.level
        empty = block._replace(levels=levels, inside=0 * block.inside, outside=0 * block.outside)
        return _turn(empty, view, 1.0, 0 * view.rayleigh, k)
    gain = float(gains[verdict.chosen])
    kept, new = (1 - gains)[:, None, None], (gains - gain)[:, None, None]
    inside = kept * block.inside + new * unforeseen.inside
    outside = kept * block.outside + new * unforeseen.outside
    adopted = inside[verdict.chosen].copy()
    inside -= adopted
    inside[verdict.copied], outside[verdict.copied] = 0.0, outside[verdict.chosen]
    levels = np.where(verdict.copied, block.levels[verdict.chosen], block.levels)
    levels = levels + gains * (view.level - levels)
    block = block._replace(levels=levels, inside=inside, outside=outside)
    past = (1 - gain) * np.diag(block.values) + adopted
    return _turn(block, view, gain, past, k)


def _turn(
    block: Block, view: View, gain: float, past: np.ndarray, k: int
) -> tuple[Block, np.ndarray]:
    """X to the left singular vectors of Z = (C − level)X·gain + X·past − μX.

    Columns keep place and sign; the first turn orders them by descending λ.
    """
    X, q = block.columns, len(block.values)
    rayleigh = gain * view.rayleigh + past
    ritz = np.linalg.eigvalsh(0.5 * (rayleigh + rayleigh.T))
    lowest = min(ritz[0], 0.0) - CLEARANCE * (ritz[-1] - ritz[0])
    if ritz[-1] <= lowest:  # nothing rises above anything: X stays
        return block._replace(steps=block.steps + 1), np.ones(k)
    inner = past - (gain * view.offset + lowest) * np.eye(q)
    diagonal = np.diagonal(inner).copy()
    plain = not (inner - np.diag(diagonal)).any()
    Z = X * _like(diagonal, X) if plain else X @ _like(inner, X)
    Z += gain * view.image
    squares, vectors = np.linalg.eigh(_host(over_rows(contracted(Z, Z))))
    squares, vectors = squares[::-1], vectors[:, ::-1]
    lengths = np.sqrt(np.maximum(squares, squares[0] * q * epsilon(X)))
    coefficients = vectors / lengths
    overlap = (rayleigh - lowest * np.eye(q)) @ coefficients
    known = overlap[:k, :k] if block.steps else np.diag(np.diagonal(overlap)[:k])
    order, sign, kept = arrange(known, q, settled=bool(block.steps))
    coefficients, overlap = coefficients[:, order] * sign, overlap[:, order] * sign
    columns = _polished(Z @ _like(coefficients, X))
    return (
        block._replace(
            columns=contiguous(columns),
            values=lengths[order] + lowest,
            inside=overlap.T @ block.inside @ overlap,
            outside=overlap[:k, :k].T @ block.outside,
            steps=block.steps + 1,
        ),
        kept,
    )


def _polished(columns: Array) -> Array:
    """One step of Newton and Schulz towards XᵀX = I; QR where it is too far for that."""
    gram = over_rows(contracted(columns, columns))
    defect = _host(gram) - np.eye(gram.shape[-1])
    size = float(np.linalg.norm(defect))
    if not size < 0.1:
        return orthonormal_columns(columns)
    # What a step leaves is ¾·size²: nothing is to be gained below the rounding of the sums.
    if size < len(defect) * epsilon(columns):
        return columns
    return columns @ _like(np.eye(len(defect)) - 0.5 * defect, columns)
