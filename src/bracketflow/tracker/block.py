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
from bracketflow.tracker.ladder import Ladder
from bracketflow.tracker.offers import Offers
from bracketflow.tracker.whole import Fresh, as_array_of, on_host

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
    """is the chosen one of them, ()."""
    inside: np.ndarray
    """XᵀD_jX, (J, q, q)."""
    outside: np.ndarray
    """Sketches of what of D_jX_k lies outside of X, (J, k, m)."""
    offers: Offers
    """What the other rungs would turn."""
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
            offers=offer.none(rungs, q, k, m),
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

    def compare(
        self, view: View, k: int, ladder: Ladder
    ) -> tuple[tuple[tuple[float, float], ...], bool]:
        """How far the observation lies apart; and whether what came last foretells it better.

        As `Whole.compare`.
        """
        variance, waits = ladder.variance, ladder.awaited
        recent = self.inside_recent[:, :k], self.outside_recent
        if waits:
            recent = recent[0] / waits, recent[1] / waits
        inside, outside = view.inside[:, :k], view.outside
        beside = [
            (0.0 * inside, 0.0 * outside, variance[ladder.chosen]),
            (self.inside[-1, :, :k], self.outside[-1], variance[-1]),
            (*recent, 1 / waits if waits else variance[0]),
        ]
        apart = tuple(
            (float(np.sum((inside - a)[k:] ** 2) + np.sum((outside - b) ** 2)), float(v))
            for a, b, v in beside
        )
        along = np.sum(inside * recent[0]) + np.sum(outside * recent[1])
        return apart, bool(2 * along > np.sum(recent[0] ** 2) + np.sum(recent[1] ** 2))

    def wait(self, view: View, weight: float, waits: float) -> Block:
        """The observation waits, with its weight."""
        keep = float(waits > 0)
        image = weight * view.image
        if waits:
            image += self.image
        return self._replace(
            image=image,
            recent_level=keep * self.recent_level + weight * (view.level - self.level),
            inside_recent=keep * self.inside_recent + weight * view.inside,
            outside_recent=keep * self.outside_recent + weight * view.outside,
        )

    def fresh(self, k: int, waits: float) -> Fresh:
        """What the observations of the weight that `waits` say."""
        inside, outside = self.inside_recent / waits, self.outside_recent / waits
        entries, quotients = inside[:, :k].copy(), self.values + np.diagonal(inside)
        entries[np.arange(k), np.arange(k)] += self.values[:k]
        beyond = np.einsum("km,km->k", outside, outside) ** 0.5
        return Fresh(
            self.offers.captured(entries, quotients, outside),
            np.concatenate([inside[:, :k], beyond[None]]),
            np.diagonal(inside)[:k] + self.recent_level / waits,
        )

    def absorb(self, gains: np.ndarray, source: np.ndarray, waits: float) -> Block:
        """What waits enters the rungs, each of which is its `source` first; X stays."""
        inside, outside, levels = self.inside[source], self.outside[source], self.levels[source]
        wide = gains[:, None, None]
        inside += wide * (self.inside_recent / waits - inside)
        outside += wide * (self.outside_recent / waits - outside)
        levels += gains * (self.level + self.recent_level / waits - levels)
        return self._replace(inside=inside, outside=outside, levels=levels)

    def turn(
        self, chosen: int, k: int, gain: float, waits: float, *, same: bool
    ) -> tuple[Block, np.ndarray]:
        """X to the left singular vectors of Z; and how far columns keep their vector, (k,).

        What waited has the share `gain` in the chosen rung, which is the `same` as before or
        another. Columns keep place and sign; the first turn orders them by descending λ. What
        another rung has outside of the block is known as a sketch only, which is left.
        """
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
        return self._replace(
            columns=contiguous(columns),
            sketch=sketch,
            level=np.asarray(self.levels[chosen]),
            inside=inside,
            outside=outside,
            recent_level=np.zeros(()),
            inside_recent=inside[0],
            outside_recent=outside[0],
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
        """The offers of the rungs as they are now."""
        (q, m), shifts = self.sketch.shape, np.diagonal(self.inside, axis1=1, axis2=2)
        noise = float(ladder.variance[ladder.chosen] * ladder.usual) / (k * (m + q - k))
        found = offer.of_leading(
            self.inside[:, :, :k], shifts, self.values, self.outside, noise
        )
        return self._replace(offers=found)

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
