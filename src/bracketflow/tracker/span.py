"""What products have told of a symmetric C: the relation C S = S T + Q Gᵀ, grown and condensed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import Array, contiguous, epsilon, frobenius_squared, namespace, to_host
from bracketflow.geometry import orthonormalise, triangular
from bracketflow.sharding import over_rows

LEANING = 16  # roundings by which new directions may lean on old ones
ROWS = 4096  # of S, worked on at a time
SLIGHT = 0.1  # leaning that is gone when it has been taken off once
SOUND = 256  # condition of RᵀR up to which its eigenvectors make R orthonormal


class Span(NamedTuple):
    """C S = S T + Q Gᵀ at the level of the first product, [S, Q] orthonormal; empty before it."""

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
    warm: Any = np.bool_(False)
    """Whether it began near an invariant subspace, which need not be the leading one."""
    tail: tuple[Array, ...] = ()
    """The latest columns of S: so not all of it is copied when it grows."""

    @property
    def size(self) -> int:
        """m: the columns of S."""
        return int(self.rayleigh.shape[-1])

    @property
    def known(self) -> Array:
        """What of the basis lies in S, m × k."""
        return self.turn[: self.size]

    @property
    def fresh(self) -> Array:
        """What of it lies in Q, q × k; no rows while it lies in S."""
        return self.turn[self.size :]

    @property
    def slack(self) -> Any:
        """How far products may contradict each other by rounding."""
        return 8 * self.rounding

    @property
    def floor(self) -> Any:
        """Residuals below this are rounding."""
        return self.rounding / 16

    def overlap(self, block: Array) -> Array:
        """[S, Q]ᵀ · block, of this process's rows."""
        parts = [part.mT @ block for part in (self.columns, *self.tail, self.pending)]
        return namespace(block).concat(parts, axis=-2)

    def inside(self, where: Array) -> Array:
        """S · where, so many rows at a time that they stay in the cache."""
        xp, n = namespace(where), self.columns.shape[-2]
        block = xp.empty((n, where.shape[-1]), dtype=where.dtype, device=where.device)
        for i in range(0, n, ROWS):
            rows = [part[i : i + ROWS] for part in (self.columns, *self.tail)]
            block[i : i + ROWS] = xp.concat(rows, axis=-1) @ where
        return block

    def combined(self, where: Array) -> Array:
        """[S, Q] · where, for a `where` that is zero in most rows or has few columns."""
        block, last = self.pending @ where[self.size :], 0
        for part in (self.columns, *self.tail):
            first, last = last, last + part.shape[-1]
            mix = where[first:last]
            if to_host(mix).any():
                # NumPy's product of a single column takes ten times as long as its broadcast.
                block += part * mix if len(mix) == 1 else part @ mix
        return block


def empty(basis: Array) -> Span:
    """Nothing known."""
    none, nothing = basis[..., :0], basis[..., :0, :0]
    return Span(none, nothing, none, nothing, nothing)


def restored(memory: Any) -> Span:
    """A `Span` from a tuple."""
    return memory if isinstance(memory, Span) else Span(*memory)


def leading_vectors(span: Span, count: int) -> Array:
    """Eigenvectors of T, by descending eigenvalue, the first `count`."""
    xp = namespace(span.columns)
    return contiguous(xp.flip(xp.linalg.eigh(span.rayleigh)[1][:, -count:], axis=-1))


def ritz_values(span: Span) -> Array:
    """Rayleigh quotients of the columns of the basis, at the level of the span."""
    xp, known = namespace(span.turn), span.known
    values = xp.sum(known * (span.rayleigh @ known), axis=-2)
    if span.fresh.shape[-2]:
        values += 2 * xp.sum(span.fresh * (span.coupling.mT @ known), axis=-2)
    return values


def enriching(span: Span, k: int) -> Array:
    """Leading k Ritz vectors in [S, Q] if C were at the level of the first basis on Q."""
    xp = namespace(span.columns)
    corner = 0 * (span.coupling.mT @ span.coupling)
    whole = _blocks(span.rayleigh, span.coupling, span.coupling.mT, corner)
    return contiguous(xp.flip(xp.linalg.eigh(whole)[1][:, -k:], axis=-1))


def directions(residual: Array, overlap: Array, gram: Array, span: Span) -> tuple[Array, Array]:
    """Q and G with R = Q Gᵀ, less what is below the floor, from [S, Q]ᵀR and RᵀR.

    The residual is orthogonal to [S, Q] but for rounding, which is taken off where it is seen.
    """
    xp = namespace(residual)
    squares, vectors = xp.linalg.eigh(gram - overlap.mT @ overlap)
    host = to_host(squares)
    sound = host.size and host[0] > max(host[-1] / SOUND, span.floor**2)
    if sound:
        sizes = squares**0.5
        lean = to_host(frobenius_squared(overlap @ (vectors / sizes))) ** 0.5
        if lean <= LEANING * epsilon(residual):
            return residual @ (vectors / sizes), vectors * sizes
    residual = residual - span.combined(overlap)
    if sound and lean < SLIGHT:
        return residual @ (vectors / sizes), vectors * sizes
    left, small = triangular(residual)
    turn, sizes, right = xp.linalg.svd(small, full_matrices=False)
    host = to_host(sizes)
    rank = int(np.sum(host > span.floor))
    found = left @ turn[:, :rank]
    if rank and host[0] > LEANING * host[rank - 1]:  # the small ones have kept more of the old
        found = orthonormalise(found - span.combined(over_rows(span.overlap(found))))
    return found, right[:rank].mT * sizes[:rank]


def extended(span: Span, frame: Array, image: Array, pending: Array, coupling: Array) -> Span:
    """The span with the first directions of Q · frame in it.

    `image` is Qᵀ of what C makes of them, and `pending`, `coupling` are the Q and G of what of it
    is outside of [S, Q].
    """
    xp = namespace(image)
    rank = image.shape[-1]
    turned = span.pending @ frame
    image, inside = frame.mT @ image, span.coupling @ frame
    corner, again = image[:rank], image[rank:]
    across, down = inside[:, :rank], inside[:, rank:]
    fresh = span.fresh if span.fresh.shape[-2] else 0 * (span.pending[:1].mT @ span.known[:1])
    return span._replace(
        tail=(*span.tail, contiguous(turned[:, :rank])),
        rayleigh=_blocks(span.rayleigh, across, across.mT, 0.5 * (corner + corner.mT)),
        pending=xp.concat([turned[:, rank:], pending], axis=-1),
        coupling=_blocks(down, 0 * (across @ coupling), again.mT, coupling),
        turn=xp.concat([span.known, frame[:, :rank].mT @ fresh], axis=-2),
    )


def room(k: int, static: bool) -> int:
    """Columns of S up to which it is not condensed.

    Chains must be long: also those for few columns, and above all those of blocks. For a static
    operator they are of single vectors, and passes over S cost more than the products saved.
    """
    return max(9 * k // 2 if static else 6 * k, 24)


def kept(k: int, static: bool) -> int:
    """Columns that are left of it then: with fewer, chains must find the next vectors again."""
    return 2 * k + 4 if static else max(3 * k, 2 * k + 4)


def condensed(span: Span, k: int, static: bool) -> Span:
    """The span's leading Ritz vectors once it has grown too large."""
    if span.size <= room(k, static):
        return span
    best = leading_vectors(span, kept(k, static))
    return span._replace(
        columns=span.inside(best),
        tail=(),
        rayleigh=best.mT @ span.rayleigh @ best,
        coupling=best.mT @ span.coupling,
        turn=best.mT @ span.known,
    )


def _blocks(a: Array, b: Array, c: Array, d: Array) -> Array:
    xp = namespace(a)
    return xp.concat([xp.concat([a, b], axis=-1), xp.concat([c, d], axis=-1)], axis=-2)
