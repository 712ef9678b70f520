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
    as_array_of,
    contiguous,
    contracted,
    epsilon,
    frobenius_squared,
    identity_like,
    namespace,
    on_host,
    trace,
)
from bracketflow.geometry import orthonormal_columns, random_columns
from bracketflow.observation import refuse_bad
from bracketflow.sharding import over_rows, row_count, shards
from bracketflow.tracker import offers
from bracketflow.tracker.identity import arrange
from bracketflow.tracker.ladder import Ladder
from bracketflow.tracker.whole import Beside, Fresh

WIDTH = 5
"""q = WIDTH·k: columns beyond k stand for the bulk. Error over PCA's at n = 1000, noise 5: 1.15 for
4k, 1.12 for 5k, 1.10 for 6k (point 3 of benchmarks/tracker.py)."""
BUCKETS = 512
"""Rows of a sketch: it blurs the cosine of D_j and N by 1/√(512 k)."""
TINY = np.finfo(float).tiny
CLEARANCE = 1e-3
"""μ lies below the lowest Ritz value by this part of their range, so that Z has full rank."""


class View(NamedTuple):
    """One observation."""

    image: Array
    """(C − level)X, (n, q)."""
    level: float
    """Quotient of the reference r."""
    power: float
    """‖(C − level)r‖²: r knows nothing of the signal."""
    inside: np.ndarray
    """XᵀNX, (q, q)."""
    outside: np.ndarray
    """Sketch of what of N_k lies outside of X, (k, m)."""


class Block(NamedTuple):
    """A mean on q columns, and how the rungs differ from it; J rungs."""

    # The mean.
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
    # The rungs.
    levels: np.ndarray
    """Averaged levels, (J,); that of the mean"""
    level: np.ndarray
    """is the one of `rung`, ()."""
    rung: np.ndarray
    """Which rung the mean is, ()."""
    inside: np.ndarray
    """XᵀD_jX, (J, q, q)."""
    outside: np.ndarray
    """Sketches of what of D_jX_k lies outside of X, (J, k, m)."""
    # What the rungs would capture: of C it is <A_j, XᵀCX> + <B_j, sketch of the rest of CX_k>,
    offers: tuple[np.ndarray, np.ndarray]
    """A_j and B_j, (J, q, q) and (J, k, m);"""
    before: tuple[np.ndarray, np.ndarray]
    """the same one turn earlier."""
    # What waits; if nothing does, what was taken in last.
    image: Array
    """Σ weight·(C − level)X, (n, q)."""
    recent_level: np.ndarray
    """Σ weight·(level_s − level), ()."""
    inside_recent: np.ndarray
    """Σ weight·XᵀNX, (q, q)."""
    outside_recent: np.ndarray
    """Sketch of what of Σ weight·N_k lies outside of X, (k, m)."""

    @classmethod
    def start(cls, basis: Array, rungs: int, rng: Any) -> Block:
        """Nothing seen: columns beyond k and the reference are random."""
        xp, n, k = namespace(basis), row_count(basis), basis.shape[-1]
        q, m = WIDTH * k + 1, min(n, BUCKETS)
        drawn = random_columns(n, q - k, rng=0 if rng is None else rng, like=basis)
        columns = orthonormal_columns(xp.concat([basis, drawn], axis=-1))
        columns = contiguous(xp.concat([basis, columns[:, k:]], axis=-1))
        random = drawn[:, -1:] / float(over_rows(xp.sum(drawn[:, -1:] ** 2))) ** 0.5
        return cls(
            columns=columns,
            random=contiguous(random),
            along=on_host(over_rows(contracted(columns, random)))[:, 0],
            sketch=on_host(over_rows(_sketch(columns, random, m))),
            values=np.zeros(q),
            levels=np.zeros(rungs),
            level=np.zeros(()),
            inside=np.zeros((rungs, q, q)),
            outside=np.zeros((rungs, k, m)),
            rung=np.asarray(rungs - 1),
            offers=(np.zeros((rungs, q, q)), np.zeros((rungs, k, m))),
            before=(np.zeros((rungs, q, q)), np.zeros((rungs, k, m))),
            image=xp.zeros_like(columns),
            recent_level=np.zeros(()),
            inside_recent=np.zeros((q, q)),
            outside_recent=np.zeros((k, m)),
        )

    @property
    def multiplied(self) -> Array:
        """What an observation is multiplied with."""
        return self.columns

    def basis(self, k: int) -> Array:
        """The first k columns."""
        return contiguous(self.columns[:, :k])

    def observe(
        self, columns: Array, product: Array, basis: Array, seen: Any
    ) -> tuple[View, Probe, Probe]:
        """The product with X; the probe of the basis, and that of all columns.

        Raises `ObservationError` where the product is not usable.
        """
        xp, (q, m), k = namespace(columns), self.sketch.shape, basis.shape[-1]
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
                xp.sum(image[:, -1] ** 2),
                _sketch(image[:, :k], self.random, m),
            )
            rayleigh = 0.5 * (compressed + compressed.mT)
            everything = Probe(columns, image, level, rayleigh, q, square=size)
            refuse_bad(everything, compressed - rayleigh, seen)
        inside = on_host(rayleigh)
        view = View(
            image,
            float(level),
            float(power),
            inside - np.diag(self.values),
            on_host(sketched) - inside[:k] @ self.sketch,
        )
        return view, _of_basis(image, rayleigh, level, basis), everything

    def compare(self, view: View, k: int, ladder: Ladder) -> Beside:
        """The observation beside the chosen mean, the longest one, and what came last."""
        variance, waits = ladder.variance, ladder.awaited
        last = (self.inside[0], self.outside[0], variance[0])
        if waits:
            last = self.inside_recent / waits, self.outside_recent / waits, 1 / waits
        longest = self.inside[-1], self.outside[-1], variance[-1]
        apart, distance = [], []
        for a, b, v in ((0.0, 0.0, variance[ladder.chosen]), longest, last):
            inside, outside = (view.inside - a)[:, :k], view.outside - b
            beyond = float(np.sum(inside[k:] ** 2) + np.sum(outside**2))
            apart.append((beyond, float(v)))
            distance.append(beyond + float(np.sum(inside[:k] ** 2)))
        heights = self.values - np.mean(self.values)  # the level is that of one column, and noisy
        square = max(float(heights @ heights), TINY)
        entries = k * (row_count(self.columns) - k)
        size = 1 + float(heights @ np.diagonal(view.inside)) / square
        doubt = (2 * apart[0][0] / entries / square) ** 0.5
        return Beside(tuple(apart), (size, doubt), distance[-1] < distance[0])

    def wait(self, view: View, weight: float) -> Block:
        """The observation waits, with its weight."""
        image = weight * view.image
        image += self.image
        return self._replace(
            image=image,
            recent_level=self.recent_level + weight * (view.level - self.level),
            inside_recent=self.inside_recent + weight * view.inside,
            outside_recent=self.outside_recent + weight * view.outside,
        )

    def fresh(self, k: int, ladder: Ladder) -> Fresh:
        """What the observations that wait say."""
        waits = ladder.awaited
        inside, outside = self.inside_recent / waits, self.outside_recent / waits
        (a, b), (c, d) = self.offers, self.before
        latest = inside + np.diag(self.values)
        captured = np.einsum("jab,ab->j", 2 * a - c, latest)
        captured += np.einsum("jkm,km->j", 2 * b - d, outside)
        beyond = np.einsum("km,km->k", outside, outside) ** 0.5
        return Fresh(
            captured,
            np.concatenate([inside[:, :k], beyond[None]]),
            np.diagonal(inside)[:k] + self.recent_level / waits,
        )

    def follow(
        self, gains: np.ndarray, mixture: np.ndarray, ladder: Ladder, k: int
    ) -> tuple[Block, np.ndarray]:
        """What waits enters the rungs, each of which is a `mixture` first; the columns follow.

        X to the left singular vectors of Z; and how far columns keep their vector, (k,). They keep
        place and sign; the first turn orders them by descending λ. What a newly chosen rung has
        outside of the block is known as a sketch only, which is left.
        """
        waits, chosen = ladder.awaited, int(ladder.chosen)
        same, gain = int(self.rung) == chosen, float(gains[chosen])
        same = same and mixture[chosen, chosen] == 1 and np.count_nonzero(mixture[chosen]) == 1
        wide = gains[:, None, None]
        self = self._replace(
            inside=(1 - wide) * np.tensordot(mixture, self.inside, 1)
            + wide * (self.inside_recent / waits),
            outside=(1 - wide) * np.tensordot(mixture, self.outside, 1)
            + wide * (self.outside_recent / waits),
            levels=(1 - gains) * (mixture @ self.levels)
            + gains * (self.level + self.recent_level / waits),
            rung=np.asarray(chosen),
            before=tuple(np.tensordot(mixture, part, 1) for part in self.offers),
        )
        X, q = self.columns, len(self.values)
        rayleigh = np.diag(self.values) + self.inside[chosen]
        ritz = np.linalg.eigvalsh(0.5 * (rayleigh + rayleigh.T))
        lowest = min(ritz[0], 0.0) - CLEARANCE * (ritz[-1] - ritz[0])
        settled = bool(self.values.any())
        if ritz[-1] <= lowest:  # nothing rises above anything: X stays
            block = self._replace(values=np.diagonal(rayleigh).copy())
            return block._turned(chosen, np.eye(q), X, self.sketch, k), np.ones(k)
        raised = rayleigh - lowest * np.eye(q)
        if same:
            Z = X * as_array_of((1 - gain) * self.values - lowest, X)
        else:
            gathered = gain * (np.diag(self.values) + self.inside_recent / waits)
            Z = X @ as_array_of(raised - gathered, X)
        Z += (gain / waits) * self.image
        gram = on_host(over_rows(contracted(Z, Z)))
        squares, vectors = np.linalg.eigh(gram)
        squares, vectors = squares[::-1], vectors[:, ::-1]
        lengths = np.sqrt(np.maximum(squares, squares[0] * q * epsilon(X)))
        coefficients = (vectors / lengths)[:, :-1]
        overlap = raised @ coefficients
        known = overlap[:k, :k] if settled else np.diag(np.diagonal(overlap)[:k])
        order, sign, kept = arrange(known, q - 1, settled=settled)
        coefficients = coefficients[:, order] * sign
        # Columns of unit length that are nearly orthogonal have a Gram matrix that says enough.
        units = 1 / np.sqrt(np.maximum(np.diagonal(gram), TINY))
        scaled = units[:, None] * gram * units
        trusted = bool(np.linalg.norm(scaled - np.eye(q)) < 0.5)
        if trusted:
            unscaled = coefficients / units[:, None]
            defect = unscaled.T @ scaled @ unscaled - np.eye(q - 1)
            coefficients -= 0.5 * coefficients @ defect
        overlap = raised @ coefficients
        columns, sketch, along = self._orthonormal(
            Z @ as_array_of(coefficients, X), trusted=trusted
        )
        reference = (self.along - overlap @ along[:-1]) / along[-1]
        overlap = np.concatenate([overlap, reference[:, None]], axis=1)
        block = self._replace(values=np.append(lengths[order] + lowest, 0.0), along=along)
        return block._turned(chosen, overlap, columns, sketch, k), kept

    def _turned(
        self, chosen: int, overlap: np.ndarray, columns: Array, sketch: np.ndarray, k: int
    ) -> Block:
        """The differences of the rungs from the chosen one, on new columns; `overlap` is XᵀX_new.

        With D = X A Xᵀ + O X_kᵀ + X_k Oᵀ, what of O lies along the new columns comes into the
        block.
        """
        inside, outside = self.inside - self.inside[chosen], self.outside - self.outside[chosen]
        leading = overlap[:k, :k]
        along = (self.sketch[:k] @ outside.mT) @ leading
        inside = overlap.T @ inside @ overlap
        inside[:, :k, :k] += along + along.mT
        outside = leading.T @ outside - along.mT @ sketch[:k]
        a, b = self.before
        return self._replace(
            columns=contiguous(columns),
            sketch=sketch,
            level=np.asarray(self.levels[chosen]),
            inside=inside,
            outside=outside,
            before=(overlap.T @ a @ overlap, leading.T @ b),
            image=0 * self.image,
            recent_level=np.zeros(()),
            inside_recent=0 * self.inside_recent,
            outside_recent=0 * self.outside_recent,
        )

    def _orthonormal(
        self, columns: Array, *, trusted: bool
    ) -> tuple[Array, np.ndarray, np.ndarray]:
        """New columns, the reference behind them; their sketch, and Xᵀz.

        Columns that cannot be `trusted` are made orthonormal: by a step of Newton and Schulz
        towards XᵀX = I, by QR where it is too far for that.
        """
        xp, (q, m), z = namespace(columns), self.sketch.shape, self.random
        if not trusted:
            defect = on_host(over_rows(contracted(columns, columns))) - np.eye(q - 1)
            if np.linalg.norm(defect) < 0.1:
                columns = columns @ as_array_of(np.eye(q - 1) - 0.5 * defect, columns)
            else:
                columns = orthonormal_columns(columns)
        sketch, along = (
            on_host(part)
            for part in over_rows(_sketch(columns, z, m), contracted(columns, z)[:, 0])
        )
        length = float(max(1 - along @ along, epsilon(columns))) ** 0.5
        reference = (z - columns @ as_array_of(along[:, None], columns)) / length
        sketch = np.vstack([sketch, (self.along @ self.sketch - along @ sketch) / length])
        return xp.concat([columns, reference], axis=-1), sketch, np.append(along, length)

    def offer(self, ladder: Ladder, k: int) -> Block:
        """What the rungs would capture as they are now."""
        return self._replace(offers=offers.of_block(self.values, self.inside, self.outside))

    def figures(self, ladder: Ladder, k: int) -> tuple[np.ndarray, float]:
        """Averaged eigenvalues of the k columns, and the level; what waits included."""
        share = 1 / ladder.memory if ladder.waiting else 0.0
        level = self.level + share * self.recent_level
        return self.values[:k] + share * np.diagonal(self.inside_recent)[:k] + level, float(level)


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
