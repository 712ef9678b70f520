"""The mean on q < n columns: M_j = level·I + X A_j Xᵀ, A_j q × q, diagonal for the chosen rung.

The last column is a reference, what lies outside of the others of a fixed random z. One product
with X gives

    level = <r, Cr>/<r, r>            of the reference r, which the mean has not chosen
    H = XᵀCX − level·I                inside the block, and outside of it
    R = (C − level)X − XH

of which C ≈ level·I + XHXᵀ + RXᵀ + XRᵀ is known, so that every rung is known on X and R:

    M_j X = X B_j + g_j R,            B_j = (1 − g_j)A_j + g_j H

Observations are gathered until enough is new, then X follows to the leading left singular vectors
of M X − μX, μ below the lowest Ritz value: to first order X + g R (Λ − μ)⁻¹. Beside them stand
LEAN times the k leading vectors of a shorter memory: where the signal moves to, outside of what the
chosen memory holds, is in the block before the memory is shortened. All rungs come along to the new
columns, and the first k of these are the best Ritz vectors of the chosen one.
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
from bracketflow.sharding import over_rows, row_count
from bracketflow.tracker import offers
from bracketflow.tracker.identity import arrange
from bracketflow.tracker.ladder import Beside, Ladder, larger
from bracketflow.tracker.whole import Fresh

WIDTH = 6
"""q = WIDTH·k: columns beyond k stand for the bulk. Error over PCA's at n = 1000, noise 5: 1.16 for
5k, 1.13 for 6k (point 3 of benchmarks/tracker.py)."""
SHORTER = 2
"""Rungs by which that memory is shorter: a decade, as far as drift goes in a memory."""
LEAN = 1 / 3
"""So much its vectors count: with 1 its noise crowds out the bulk (error 1.09 in place of 1.03 at
n = 200, noise 3, standing still), with 1/6 a drift is followed late (1.08 in place of 1.04 at speed
1e-3; point 4)."""
CLEARANCE = 1e-3
"""μ lies below the lowest Ritz value by this part of their range, so that Z has full rank."""


class View(NamedTuple):
    """One observation."""

    image: Array
    """(C − level)X, (n, q)."""
    level: float
    """<r, Cr>/<r, r>."""
    power: float
    """‖(C − level)r‖²."""
    inside: np.ndarray
    """H, (q, q)."""
    beyond: np.ndarray
    """Squared lengths of the first k columns of R, (k,)."""
    shared: float
    """<(C − level)X_k, the same of the last observation>."""


class Block(NamedTuple):
    """Means on q columns; J rungs."""

    # The columns.
    columns: Array
    """X, (n, q); the first k are the basis, the last is the reference."""
    gram: np.ndarray
    """XᵀX, (q, q): I but for rounding, which the next turn takes out."""
    random: Array
    """z, (n, 1), of unit length."""
    # The rungs, and behind them the last two observations, the newest at the end.
    inside: np.ndarray
    """A_j, (J + 2, q, q)."""
    levels: np.ndarray
    """Averaged levels, (J,)."""
    chosen: np.ndarray
    """The chosen rung, ()."""
    last_weights: np.ndarray
    """Weights of the last two observations, 0 where there was none, (2,)."""
    last_beyond: np.ndarray
    """‖R_k‖² of these, (2,)."""
    last: Array
    """(C − level)X_k of the last one, (n, k)."""
    offers: np.ndarray
    """Of C every rung would capture <·, H>, (J, q, q)."""
    # What waits.
    image: Array
    """Σ weight·(C − level)X, (n, q)."""
    recent: np.ndarray
    """Σ weight·H, (q, q)."""
    recent_level: np.ndarray
    """Σ weight·level, ()."""
    recent_beyond: np.ndarray
    """Σ weight²·(squared lengths of the columns of R_k), (k,)."""

    @classmethod
    def start(cls, basis: Array, rungs: int, rng: Any) -> Block:
        """Nothing seen: columns beyond k and the reference are random."""
        xp, n, k = namespace(basis), row_count(basis), basis.shape[-1]
        q = min(WIDTH * k + 1, n)
        drawn = random_columns(n, q - k, rng=0 if rng is None else rng, like=basis)
        columns = orthonormal_columns(xp.concat([basis, drawn], axis=-1))
        columns = contiguous(xp.concat([basis, columns[:, k:]], axis=-1))
        random = drawn[:, -1:] / float(over_rows(xp.sum(drawn[:, -1:] ** 2))) ** 0.5
        return cls(
            columns=columns,
            gram=np.eye(q),
            random=contiguous(random),
            inside=np.zeros((rungs + 2, q, q)),
            levels=np.zeros(rungs),
            chosen=np.asarray(rungs - 1),
            last_weights=np.zeros(2),
            last_beyond=np.zeros(2),
            last=xp.zeros_like(basis),
            offers=np.zeros((rungs, q, q)),
            image=xp.zeros_like(columns),
            recent=np.zeros((q, q)),
            recent_level=np.zeros(()),
            recent_beyond=np.zeros(k),
        )

    @property
    def values(self) -> np.ndarray:
        """Eigenvalues of the chosen rung above its level, one a column, (q,)."""
        return np.diagonal(self.inside[self.chosen])

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
        xp, q, k = namespace(columns), columns.shape[-1], basis.shape[-1]
        reference = columns[:, -1:]
        with np.errstate(over="ignore", invalid="ignore"):
            along, square = over_rows(
                xp.sum(reference * product[:, -1:]), xp.sum(reference * reference)
            )
            level = along / square
            image = -level * columns
            image += product
            compressed, size, power, lengths, shared = over_rows(
                contracted(columns, image),
                frobenius_squared(image),
                xp.sum(image[:, -1] ** 2),
                xp.sum(image[:, :k] ** 2, axis=0),
                xp.sum(image[:, :k] * self.last),
            )
            rayleigh = 0.5 * (compressed + compressed.mT)
            everything = Probe(columns, image, level, rayleigh, q, square=size)
            refuse_bad(everything, compressed - rayleigh, seen)
        inside, lengths = on_host(rayleigh), on_host(lengths)
        rounding = q * epsilon(columns) * lengths
        beyond = np.maximum(lengths - np.einsum("ai,ai->i", inside[:, :k], inside[:, :k]), rounding)
        view = View(image, float(level), float(power), inside, beyond, float(shared))
        return view, _of_basis(image, rayleigh, level, basis), everything

    def compare(self, view: View, k: int, ladder: Ladder) -> Beside:
        """The observation beside the chosen mean, the longest one, and each of the last two.

        ‖·‖² in the k columns, outside of them. What the last one but one has outside of the block
        is taken to be noise of its own; which one is nearest shows in the block.
        """
        J, chosen, variance = len(self.levels), int(ladder.chosen), ladder.variance
        differences = (view.inside - self.inside)[:, :, :k]
        distances = np.sum(differences**2, axis=(1, 2))
        apart = np.sum(differences[:, k:] ** 2, axis=(1, 2)) + view.beyond.sum()
        shared = view.shared - np.vdot(view.inside[:, :k], self.inside[-1, :, :k])
        apart[J:] += self.last_beyond
        apart[-1] = max(apart[-1] - 2 * shared, 0.0)
        beside = [(float(apart[j]), float(variance[j])) for j in (chosen, J - 1)]
        there = np.flatnonzero(self.last_weights)
        beside += [(float(apart[J + i]), float(1 / self.last_weights[i])) for i in there]
        heights = self.values - np.mean(self.values)  # the level is that of one column, and noisy
        along, square = heights @ np.diagonal(view.inside), heights @ heights
        noise = beside[0][0] / (k * (row_count(self.columns) - k))
        size = larger(float(along), float(square), noise)
        foretold = bool(np.any(distances[J + there] < distances[chosen]))
        return Beside(beside, size, foretold)

    def wait(self, view: View, weight: float, counted: float) -> Block:
        """The observation waits, with the weight it is counted with."""
        image = counted * view.image
        image += self.image
        return self._replace(
            inside=np.concatenate([self.inside[:-2], self.inside[-1:], view.inside[None]]),
            last_weights=np.array([self.last_weights[1], weight]),
            last_beyond=np.array([self.last_beyond[1], view.beyond.sum()]),
            last=contiguous(view.image[:, : self.last.shape[-1]]),
            image=image,
            recent=self.recent + counted * view.inside,
            recent_level=self.recent_level + counted * view.level,
            recent_beyond=self.recent_beyond + counted**2 * view.beyond,
        )

    def fresh(self, k: int, ladder: Ladder) -> Fresh:
        """What the observations that wait say."""
        waits = ladder.awaited
        latest, shift = self.recent / waits, float(self.recent_level) / waits
        entries = (latest - self.inside[self.chosen])[:, :k]
        return Fresh(
            np.tensordot(self.offers, latest),
            np.concatenate([entries, self.recent_beyond[None] ** 0.5 / waits]),
            np.diagonal(entries) + shift - self.levels[self.chosen],
        )

    def follow(self, ladder: Ladder, waited: float, k: int) -> tuple[Block, np.ndarray]:
        """What has `waited`, its weight, enters the rungs as the ladder says; the columns follow.

        And how far columns keep their vector, (k,): they keep place and sign; the first turn orders
        them by descending eigenvalue.
        """
        X, z, chosen, J = self.columns, self.random, int(ladder.chosen), len(self.levels)
        xp, gains, q = namespace(X), ladder.gains, X.shape[-1]
        wide, H, A = gains[:, None, None], self.recent / waited, self.inside[ladder.source]
        B = (1 - wide) * A + wide * H
        ritz, settled = np.linalg.eigvalsh(B[chosen]), bool(self.inside[:J].any())
        lowest = min(ritz[0], 0.0) - CLEARANCE * (ritz[-1] - ritz[0])
        # R = YW⁻¹ − XH of the mean image Y; all that follows is algebra on X and R.
        length = on_host(over_rows(contracted(self.image, self.image))) / waited**2 - H @ H
        if ritz[-1] > lowest:
            along, across = self._leading(B, gains, chosen, lowest, length, k)
        else:  # nothing rises above anything: X stays
            along, across = np.eye(q)[:, :-1], np.zeros((q, q - 1))
        coupled = (length @ across).T @ along
        seen = along.T @ H @ along + coupled + coupled.T
        inside = (1 - wide) * (along.T @ A @ along) + wide * seen
        turn = np.linalg.eigh(inside[chosen])[1][:, ::-1]
        overlap = (along @ turn)[:k, :k]
        known = overlap if settled else np.diag(np.diagonal(overlap))
        order, sign, kept = arrange(known, q - 1, settled=settled)
        turn = turn[:, order] * sign
        inside = np.concatenate([inside, along.T @ self.inside[J:] @ along])
        inside = np.pad(turn.T @ inside @ turn, ((0, 0), (0, 1), (0, 1)))
        along, across = along @ turn, across @ turn
        columns = X @ as_array_of(along - H @ across, X)
        columns += self.image @ as_array_of(across / waited, X)
        gram, shadow = (
            on_host(part)
            for part in over_rows(contracted(columns, columns), contracted(columns, z))
        )
        defect = gram - np.eye(q - 1)
        if np.linalg.norm(defect) > epsilon(X) ** 0.5:  # more than the next turn takes out
            columns, defect = orthonormal_columns(columns), 0 * defect
            shadow = on_host(over_rows(contracted(columns, z)))
        rest = float(max(1 - shadow[:, 0] @ shadow[:, 0], epsilon(X))) ** 0.5
        reference = (z - columns @ as_array_of(shadow, X)) / rest
        block = self._replace(
            columns=contiguous(xp.concat([columns, reference], axis=-1)),
            gram=np.eye(q) + np.pad(defect, (0, 1)),
            inside=inside,
            levels=(1 - gains) * self.levels[ladder.source] + gains * (self.recent_level / waited),
            chosen=np.asarray(chosen),
            last=self.last @ as_array_of(along[:k, :k], X),
            offers=offers.of_leading(inside[:J], ladder.variance, k),
            image=0 * self.image,
            recent=0 * self.recent,
            recent_level=np.zeros(()),
            recent_beyond=0 * self.recent_beyond,
        )
        return block, kept

    def _leading(
        self,
        B: np.ndarray,
        gains: np.ndarray,
        chosen: int,
        lowest: float,
        length: np.ndarray,
        k: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The leading left singular vectors of (M − μ)X and the lean, as X·first + R·second.

        (q, q − 1) both; `length` is RᵀR.
        """
        q = len(length)
        along, across = B[chosen] - lowest * np.eye(q), gains[chosen] * np.eye(q)
        if (shorter := chosen - SHORTER) >= 0:
            lean = LEAN * np.linalg.eigh(B[shorter])[1][:, -k:]
            along = np.hstack([along, (B[shorter] - lowest * np.eye(q)) @ lean])
            across = np.hstack([across, gains[shorter] * lean])
        squares, vectors = np.linalg.eigh(along.T @ self.gram @ along + across.T @ length @ across)
        squares, vectors = squares[:-q:-1], vectors[:, :-q:-1]
        vectors = vectors / np.sqrt(np.maximum(squares, squares[0] * q * epsilon(self.columns)))
        return along @ vectors, across @ vectors

    def figures(self, ladder: Ladder) -> tuple[np.ndarray, float]:
        """Averaged eigenvalues of all columns above the level, and that; what waits included."""
        values, level = self.values, float(self.levels[self.chosen])
        if waits := ladder.awaited:
            share = 1 / ladder.memory
            values = values + share * (np.diagonal(self.recent) - waits * values)
            level += share * (float(self.recent_level) - waits * level)
        return values, level


def _of_basis(image: Array, rayleigh: Array, level: Any, basis: Array) -> Probe:
    """The probe of the first k columns."""
    k, matvecs = basis.shape[-1], image.shape[-1]
    inside, image = rayleigh[:k, :k], image[:, :k]
    own = trace(inside) / k
    inside = inside - own * identity_like(inside)
    return Probe(basis, partial(_lowered, image, own, basis), level + own, inside, matvecs)


def _lowered(image: Array, level: Any, columns: Array) -> Array:
    return image - level * columns
