"""The mean on all n columns: matrices in fixed coordinates, and a frame by `eigh`.

One product with I gives C itself. Its level s = tr C/n is taken out, so that the means

    M_j ← M_j + g_j (C − sI − M_j)

cannot see σ². The frame X holds the eigenvectors of the chosen mean M. All that is decided is
decided in a window: the matrices WᵀM_jW on p fixed orthonormal columns W. Mostly that is
everything, W = I; a full basis above n = SMALL is seen through random columns, which rotate and
scatter as all others do.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    as_array_of,
    column_inner,
    contiguous,
    namespace,
    on_host,
    trace,
)
from bracketflow.geometry import orthonormal_columns, random_columns
from bracketflow.observation import centre, refuse_bad
from bracketflow.tracker import offers
from bracketflow.tracker.identity import CLOSE, arrange
from bracketflow.tracker.ladder import TINY, Beside, Ladder, larger

SMALL = 64
"""Columns up to which all n are kept for any k, and turn with every observation: products and
`eigh` cost as much as the overhead of a step."""
WINDOW = 32
"""Columns through which a larger full basis is seen: its 528 entries tell the noise to 6 %."""


class Fresh(NamedTuple):
    """What the observations that wait say, for one unit of weight."""

    captured: np.ndarray
    """How much of them every rung would have captured, but for a common constant, (J,)."""
    entries: np.ndarray
    """XᵀNX in the k columns, (n, k), N = C − M; of a block with a further row for what lies
    outside, of a larger full basis WᵀNW."""
    quotients: np.ndarray
    """Absolute Rayleigh quotients of the k columns, less the averaged ones, (k,)."""


class View(NamedTuple):
    """One observation."""

    centred: Array
    """C − sI, (n, n)."""
    level: float
    """s."""
    window: np.ndarray
    """Wᵀ(C − sI)W, (p, p)."""
    power: float
    """‖Wᵀ(C − sI)W‖_F²."""


class Whole(NamedTuple):
    """Means on all n columns; J rungs."""

    # The means.
    means: tuple[Array, ...]
    """The means, levels taken out, J of (n, n); rungs that are the same share one. None of them
    where the window holds everything."""
    window: np.ndarray
    """WᵀM_jW, (J, p, p)."""
    through: Array
    """W, (n, p); (n, 0) where it is I."""
    levels: np.ndarray
    """The averaged levels, (J,)."""
    # The chosen mean M.
    frame: Array
    """X, its eigenvectors, (n, n); before an observation those of the basis, filled up."""
    values: np.ndarray
    """Its eigenvalues, in the order of X, (n,)."""
    level: np.ndarray
    """Its level, ()."""
    offers: np.ndarray
    """Of C every rung would capture <·, WᵀCW>, (J, p, p)."""
    # What waits.
    recent: Array
    """Σ weight·(C − sI), (n, n); (0, 0) where the window holds everything."""
    recent_window: np.ndarray
    """Σ weight·Wᵀ(C − sI)W, (p, p)."""
    recent_level: np.ndarray
    """Σ weight·s, ()."""
    # The last two observations, the newest at the end.
    last: np.ndarray
    """Wᵀ(C − sI)W, (2, p, p)."""
    last_weights: np.ndarray
    """Their weights, 0 where there was none, (2,)."""

    @classmethod
    def start(cls, basis: Array, rungs: int, rng: Any) -> Whole:
        """Nothing seen."""
        xp, (n, k) = namespace(basis), basis.shape[-2:]
        frame = basis
        if k < n:
            frame = xp.concat([basis, xp.linalg.qr(basis, mode="complete")[0][:, k:]], axis=-1)
        large = k == n > SMALL
        p = WINDOW if large else n
        square, none = np.zeros((rungs, p, p)), 0 * (basis @ basis.mT if large else basis[:0, :0])
        return cls(
            means=(none,) * rungs if large else (),
            window=square,
            through=_window(n, like=basis) if large else basis[:, :0],
            levels=np.zeros(rungs),
            frame=contiguous(frame) if large else on_host(frame),
            values=np.zeros(n),
            level=np.zeros(()),
            offers=square,
            recent=none,
            recent_window=square[0],
            recent_level=np.zeros(()),
            last=np.zeros((2, p, p)),
            last_weights=np.zeros(2),
        )

    @property
    def multiplied(self) -> Array:
        """What an observation is multiplied with: I."""
        n, xp = len(self.values), namespace(self.through)
        return xp.eye(n, dtype=self.through.dtype, device=getattr(self.through, "device", None))

    def basis(self, k: int) -> Array:
        """The first k columns."""
        frame = self.frame if self.means else as_array_of(self.frame, self.through)
        return frame if k == len(self.values) else contiguous(frame[:, :k])

    def observe(
        self, identity: Array, image: Array, basis: Array, seen: Any
    ) -> tuple[View, Probe, Probe]:
        """The image of I; the probe of the basis, and that of I.

        Raises `ObservationError` where the product is not usable.
        """
        n, k = basis.shape[-2:]
        with np.errstate(over="ignore", invalid="ignore"):
            level = trace(image) / n
            skew = image - image.mT
            skew *= 0.5
            centred = image + image.mT
            centred *= 0.5
            centred -= level * identity
            everything = Probe(identity, centred, level, centred, n)
            refuse_bad(everything, skew, seen)
        through = self.through
        window = on_host(through.mT @ (centred @ through) if self.means else centred)
        view = View(centred, float(level), window, float(np.vdot(window, window)))
        if k == n:
            return view, FullProbe(basis, centred, level), everything
        probe, _ = centre(basis, centred @ basis)
        own = Probe(basis, probe.image, probe.background + level, probe.rayleigh, n)
        return view, own, everything

    def compare(self, view: View, k: int, ladder: Ladder) -> Beside:
        """The observation beside the chosen mean, the longest one, and each of the last two.

        ‖·‖² in the k columns, outside of them; of a full basis in all.
        """
        n, chosen, variance = len(self.values), int(ladder.chosen), ladder.variance
        others = [(self.window[j], float(variance[j])) for j in (chosen, len(variance) - 1)]
        others += [(C, 1 / w) for C, w in zip(self.last, self.last_weights, strict=True) if w]
        columns = None if k == n else on_host(self.frame[:, :k])
        apart, distances = [], []
        for other, v in others:
            beyond = view.window - other
            if columns is not None:
                beyond = beyond @ columns
            distances.append(float(np.vdot(beyond, beyond)))
            inside = 0.0 if columns is None else columns.T @ beyond
            apart.append((distances[-1] - float(np.vdot(inside, inside)), v))
        mean = self.window[chosen]
        along, square = float(np.vdot(view.window, mean)), float(np.vdot(mean, mean))
        if columns is None:
            shorter = (along - square) / max(square, TINY) ** 0.5
            noise = (apart[0][0] - shorter * shorter) / mean.size
        else:
            noise = apart[0][0] / (k * (n - k))
        size = larger(along, square, max(noise, 0.0))
        return Beside(apart, size, min(distances) < distances[0])

    def wait(self, view: View, weight: float, counted: float) -> Whole:
        """The observation waits, with the weight it is counted with."""
        return self._replace(
            recent=self.recent + counted * view.centred if self.means else self.recent,
            recent_window=self.recent_window + counted * view.window,
            recent_level=self.recent_level + counted * view.level,
            last=np.stack([self.last[1], view.window]),
            last_weights=np.array([self.last_weights[1], weight]),
        )

    def fresh(self, k: int, ladder: Ladder) -> Fresh:
        """What the observations that wait say."""
        latest = self.recent_window / ladder.awaited
        captured = np.tensordot(self.offers, latest)
        entries = latest - self.window[ladder.chosen]
        shift = float(self.recent_level) / ladder.awaited - float(self.level)
        if self.means:  # the columns of the window stand for all
            quotients = np.full(k, np.mean((np.diagonal(entries) + shift) ** 2) ** 0.5)
        else:
            entries = self.frame.T @ (entries @ self.frame[:, :k])
            quotients = np.diagonal(entries) + shift
        return Fresh(captured, entries, quotients)

    def follow(self, ladder: Ladder, waited: float, k: int) -> tuple[Whole, np.ndarray]:
        """What has `waited`, its weight, enters the means as the ladder says; the frame follows.

        And how far columns keep their vector, (k,): they keep place and sign; the first frame
        orders them by descending eigenvalue.
        """
        source, gains, chosen = ladder.source, ladder.gains, int(ladder.chosen)
        levels = (1 - gains) * self.levels[source] + gains * (self.recent_level / waited)
        wide = gains[:, None, None]
        window = (1 - wide) * self.window[source] + wide * (self.recent_window / waited)
        means = self._means_after(source.tolist(), gains.tolist(), waited)
        mean = means[chosen] if means else window[chosen]
        frame, values, kept = self._frame_of(mean, k)
        if k < len(values):
            offered = offers.of_leading(window, ladder.variance, k)
        else:
            noise = float(ladder.usual / ladder.typical) / window[0].size
            offered = offers.of_pairs(window, ladder.variance, window[chosen], noise)
        return self._replace(
            means=means,
            window=window,
            levels=levels,
            frame=frame,
            values=values,
            level=levels[chosen],
            offers=offered,
            recent=0 * self.recent,
            recent_window=0 * self.recent_window,
            recent_level=np.zeros(()),
        ), kept

    def _means_after(
        self, source: list[int], gains: list[float], waited: float
    ) -> tuple[Array, ...]:
        """The means with what waits; young rungs are the same mean, and made once."""
        if not self.means:
            return ()
        made: dict[Any, Array] = {}
        for j, gain in zip(source, gains, strict=True):
            if (id(self.means[j]), gain) not in made:
                mean = (1 - gain) * self.means[j]
                mean += (gain / waited) * self.recent
                made[id(self.means[j]), gain] = mean
        return tuple(made[id(self.means[j]), g] for j, g in zip(source, gains, strict=True))

    def _frame_of(self, mean: Array, k: int) -> tuple[Array, np.ndarray, np.ndarray]:
        """Eigenvectors and eigenvalues of the mean, in the places of the columns they continue."""
        n, xp = len(self.values), namespace(mean)
        values, vectors = xp.linalg.eigh(mean)
        values, vectors = on_host(values)[::-1].copy(), xp.flip(vectors, axis=-1)
        settled = bool(self.values.any())
        overlap = np.diag(on_host(column_inner(self.frame, vectors)))
        if settled and (k < n or np.min(abs(np.diagonal(overlap))) < CLOSE):
            overlap = on_host(self.frame[:, :k].mT @ vectors[:, :k])
        order, sign, kept = arrange(overlap[:k, :k], n, settled=settled)
        vectors = contiguous(vectors[:, order] * as_array_of(sign, vectors))
        det = xp.linalg.det
        if not settled and k == n and float(det(vectors)) * float(det(self.frame)) < 0:
            vectors[:, -1] *= -1.0
        return vectors, values[order], kept

    def figures(self, ladder: Ladder) -> tuple[np.ndarray, float]:
        """Averaged eigenvalues of all columns above the level, and that; what waits included."""
        values, level = self.values, float(self.level)
        if waits := ladder.awaited:
            share, X = 1 / ladder.memory, self.frame
            recent = self.recent if self.means else self.recent_window
            quotients = on_host(column_inner(X, recent @ X))
            values = values + share * (quotients - waits * values)
            level += share * (float(self.recent_level) - waits * level)
        return values, level


def _window(n: int, like: Array) -> Array:
    return orthonormal_columns(random_columns(n, WINDOW, rng=0, like=like))


class FullProbe(Probe):
    """The probe of a full basis; H = XᵀCX, two products of n × n matrices, is made on demand."""

    def __init__(self, basis: Array, fixed: Array, level: Any):
        """At `basis`, of C = `fixed` + level·I."""
        parts = {"basis": basis, "fixed": fixed, "background": level, "matvecs": basis.shape[-1]}
        for name, value in (parts | dict.fromkeys(("gram", "square", "sharding"))).items():
            object.__setattr__(self, name, value)

    @cached_property
    def centred(self) -> Array:
        """Y − sX, (n, n)."""
        return self.fixed @ self.basis

    def __getattr__(self, name: str) -> Any:
        if name == "image":
            return self.centred
        if name != "rayleigh":
            raise AttributeError(name)
        product = self.basis.mT @ self.centred
        object.__setattr__(self, name, 0.5 * (product + product.mT))
        return self.__dict__[name]
