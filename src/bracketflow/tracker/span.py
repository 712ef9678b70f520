"""What products have told of a symmetric C: the relation C S = S T + Q Gᵀ, grown and condensed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    column_inner,
    contiguous,
    contracted,
    epsilon,
    frobenius_squared,
    identity_like,
    least_squared,
    namespace,
    row_blocks,
    to_host,
)
from bracketflow.geometry import orthonormalise, triangular
from bracketflow.sharding import over_rows, row_count

LEANING = 4.0  # roundings by which a new direction may lean on each of the old ones
SLIGHT = 0.1  # leaning that is gone when it has been taken off once
NARROW = 8  # columns of a chain are put together
UNEVEN = 16  # times as small as the largest of them is a new direction that must be cleaned again
SOUND = 256  # condition of RᵀR up to which its eigenvectors make R orthonormal


Term = tuple[Array, Array]  # (n, m) columns and the (m, k) mix of them that is asked for


class Span(NamedTuple):
    """C S = S T + Q Gᵀ at the level of the first product, [S, Q] orthonormal; empty before it."""

    columns: Array
    rayleigh: Array
    pending: Array
    coupling: Array
    turn: Array
    """The basis is S · turn, or [S, Q] · turn while it leaves span S."""
    ritz: Array
    """The leading k Ritz vectors are S · ritz: the basis, or what it will follow."""
    reference: Array
    image: Array
    """A column of the basis' span that is multiplied along, and its image; none before."""
    defect: Array
    """What [S, Q]ᵀ[S, Q] − I may be by roundings, which grow as Ritz vectors converge."""
    waited: Any = np.int64(0)
    """Products since the basis was the Ritz vectors."""
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
        """Residuals below this are rounding, or too small to be squared."""
        least = least_squared(self.columns) * row_count(self.columns) ** 0.5
        return np.maximum(self.rounding / 16, least)

    @property
    def parts(self) -> tuple[Array, ...]:
        """The columns of [S, Q]."""
        return (self.columns, *self.tail, self.pending)

    def overlap(self, block: Array) -> Array:
        """[S, Q]ᵀ · block, of this process's rows."""
        return namespace(block).concat([contracted(part, block) for part in self.parts], axis=-2)

    def combined(self, where: Array) -> Array:
        """S · where, or [S, Q] · where."""
        return summed(*self.terms(where))

    def terms(self, where: Array, least: float | None = None) -> list[Term]:
        """What adds up to that, less the parts of which `least` or less is asked on average."""
        terms = []
        for part, mix in self._cut(where):
            if len(mix) and (least is None or _average(mix) > least):
                terms.append((part, mix))
        return terms

    def _cut(self, where: Array) -> Iterator[Term]:
        last = 0
        for part in self.parts:
            first, last = last, last + part.shape[-1]
            yield part, where[first:last]

    def left_of(self, image: Term, inside: Array, everywhere: bool) -> tuple[Array, Array, Array]:
        """R, what is left of an image without [S, Q] · inside; [S, Q]ᵀR and RᵀR, of our rows.

        R is compared with all parts, or with no more than those taken off that came last.
        """
        least = epsilon(inside) * float(to_host(frobenius_squared(inside)) ** 0.5)
        off = [(part, -mix) for part, mix in self.terms(inside, least)]
        latest = [part for part, _ in off if part is not self.columns]
        compared = self.parts if everywhere else latest
        sums = {id(part): 0 * mix for part, mix in self._cut(inside)}
        residual, gram = _new_columns(*image), 0.0
        for rows in row_blocks(residual, image[0], *(part for part, _ in off), *compared):
            block = _sum_into(residual[rows], rows, (image, *off))
            for part in compared:
                sums[id(part)] += part[rows].mT @ block
            gram = gram + block.mT @ (1 * block)  # of one array BLAS takes twice as long for it
        return residual, namespace(inside).concat(list(sums.values()), axis=-2), gram

    def leaning(self, inside: Array) -> Array:
        """What SᵀR may be by roundings: T SᵀQ + G(QᵀQ − I) − (Sᵀ[S, Q] − [I, 0]) · inside.

        That is what earlier ones have grown to; those of R and of the products are added.
        """
        m, defect, q = self.size, self.defect, self.pending.shape[-1]
        grown = self.rayleigh @ defect[:m, m:] + self.coupling @ defect[m:, m:]
        grown = grown - defect[:m] @ inside
        new = epsilon(inside) * _average(inside) * len(inside) ** 0.5
        new += float(self.rounding) / float(row_count(self.columns) * max(q, 1)) ** 0.5
        return grown + new * _sign(grown)


def _average(mix: Array) -> float:
    """Root mean square of the entries."""
    count = len(mix) * mix.shape[-1]
    return float(np.sqrt(to_host(frobenius_squared(mix)) / max(count, 1)))


def summed(*terms: Term) -> Array:
    """Σ part · mix."""
    block = _new_columns(*terms[0])
    for rows in row_blocks(block, *(part for part, _ in terms)):
        _sum_into(block[rows], rows, terms)
    return block


def _new_columns(like: Array, mix: Array) -> Array:
    return namespace(mix).empty((len(like), mix.shape[-1]), dtype=mix.dtype, device=mix.device)


def _sum_into(total: Array, rows: slice, terms: tuple[Term, ...]) -> Array:
    (whole, where), *others = terms
    namespace(where).matmul(whole[rows], where, out=total)
    for part, mix in others:
        # NumPy's product of a single column takes ten times as long as its broadcast.
        total += part[rows] * mix if len(mix) == 1 else part[rows] @ mix
    return total


def empty(basis: Array) -> Span:
    """Nothing known."""
    none, nothing = basis[..., :0], basis[..., :0, :0]
    return Span(none, nothing, none, nothing, nothing, nothing, none, none, nothing)


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


def rayleigh_of_basis(span: Span) -> tuple[Array, Array]:
    """H, at the level of the span, and RᵀR of a basis in S."""
    turn, image = span.turn, span.rayleigh @ span.turn
    rayleigh, outside = turn.mT @ image, span.coupling.mT @ turn
    beside = image - turn @ rayleigh  # none but rounding of Ritz vectors
    return 0.5 * (rayleigh + rayleigh.mT), beside.mT @ beside + outside.mT @ outside


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
    if host.size and host[0] > max(host[-1] / SOUND, span.floor**2):
        sizes = squares**0.5
        turn = vectors / sizes
        lean = overlap @ turn
        if to_host(frobenius_squared(lean)) < SLIGHT**2:
            terms = span.terms(-lean, LEANING * epsilon(residual))
            return summed((residual, turn), *terms), vectors * sizes
    residual = residual - span.combined(overlap)
    left, small = triangular(residual)
    turn, sizes, right = xp.linalg.svd(small, full_matrices=False)
    host = to_host(sizes)
    rank = int(np.sum(host > span.floor))
    found = left @ turn[:, :rank]
    if rank and host[0] > UNEVEN * host[rank - 1]:  # the small ones have kept more of the old
        found = orthonormalise(found - span.combined(over_rows(span.overlap(found))))
    return found, right[:rank].mT * sizes[:rank]


def extended(
    span: Span,
    frame: Array | None,
    image: Array,
    leaning: Array,
    pending: Array,
    coupling: Array,
) -> Span:
    """The span with the first directions of Q · frame in it, with all of Q where that is None.

    `image` is Qᵀ of what C makes of them, and `pending`, `coupling` are the Q and G of what of it
    is outside of [S, Q], `leaning` what it may have in S by roundings.
    """
    xp = namespace(image)
    rank = image.shape[-1]
    turned, inside, fresh = span.pending, span.coupling, span.fresh
    if not fresh.shape[-2]:
        fresh = 0 * (inside[:1].mT @ span.known[:1])
    defect = span.defect
    if frame is not None:
        turned, inside = turned @ frame, inside @ frame
        image, fresh = frame.mT @ image, frame.mT @ fresh
        defect = _framed(span, identity_like(span.rayleigh), frame)
    corner, again = image[:rank], image[rank:]
    across, down = inside[:, :rank], inside[:, rank:]
    left, tail = turned[:, rank:], (*span.tail, contiguous(turned[:, :rank]))
    narrow = tail[-NARROW:]
    if len(narrow) == NARROW and all(part.shape[-1] == 1 for part in narrow):
        tail = (*tail[:-NARROW], xp.concat(narrow, axis=-1))
    return span._replace(
        tail=tail,
        rayleigh=_blocks(span.rayleigh, across, across.mT, 0.5 * (corner + corner.mT)),
        pending=xp.concat([left, pending], axis=-1) if left.shape[-1] else pending,
        coupling=_blocks(down, 0 * (across @ coupling), again.mT, coupling),
        turn=xp.concat([span.known, fresh[:rank]], axis=-2),
        defect=widened(defect, _beside(leaning, coupling)),
    )


def _beside(leaning: Array, coupling: Array) -> Array:
    """SᵀQ from SᵀR, R = QGᵀ, of any scale."""
    if not coupling.shape[-1]:
        return leaning @ coupling
    scale = namespace(coupling).max(abs(coupling))
    coupling, leaning = coupling / scale, leaning / scale
    return leaning @ (coupling / column_inner(coupling, coupling))


def widened(defect: Array, leaning: Array) -> Array:
    """The defect with that of new directions, which lean on S so, and everywhere by a rounding."""
    xp = namespace(leaning)
    rounding = epsilon(leaning)
    leaning = leaning + rounding * _sign(leaning)
    beside = rounding + 0 * (defect[len(leaning) :, :1] @ leaning[:1])
    across = xp.concat([leaning, beside], axis=-2)
    return _blocks(defect, across, across.mT, 0 * (across.mT @ across))


def _sign(numbers: Array) -> Array:
    """1 or −1."""
    return 1 - 2 * namespace(numbers).astype(numbers < 0, numbers.dtype)


def _framed(span: Span, of_span: Array, of_pending: Array) -> Array:
    """The defect of [S · of_span, Q · of_pending]."""
    across, down = 0 * (span.coupling @ of_pending), 0 * (span.coupling.mT @ of_span)
    frame = _blocks(of_span, across, down, of_pending)
    return frame.mT @ span.defect @ frame


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
        columns=span.combined(best),
        tail=(),
        rayleigh=best.mT @ span.rayleigh @ best,
        coupling=best.mT @ span.coupling,
        turn=best.mT @ span.known,
        defect=_framed(span, best, identity_like(span.pending)),
    )


def _blocks(a: Array, b: Array, c: Array, d: Array) -> Array:
    xp = namespace(a)
    return xp.concat([xp.concat([a, b], axis=-1), xp.concat([c, d], axis=-1)], axis=-2)
