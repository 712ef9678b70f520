"""The mean on all n columns: matrices in fixed coordinates, and a frame by `eigh`.

One product with I gives C itself. Its level s = tr C/n is taken out, so that the means

    M_j ← M_j + g_j (C − sI − M_j)

cannot see σ². The frame X holds the eigenvectors of the chosen mean M. What waits is kept as
N = Σ weight·(C − sI − M).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    column_inner,
    contiguous,
    frobenius_squared,
    inner,
    namespace,
    to_host,
    trace,
)
from bracketflow.observation import centre, refuse_bad
from bracketflow.tracker import offers as offer
from bracketflow.tracker.identity import CLOSE, arrange
from bracketflow.tracker.ladder import Ladder
from bracketflow.tracker.offers import Offers

SMALL = 64
"""Columns up to which all n are kept for any k: products and `eigh` cost as much as the overhead of
a step, and a block of 5k columns loses 4 % (n = 100, noise 3; point 4 of benchmarks/tracker.py)."""
JUDGED = 16
"""Columns of a full basis on which memories are judged, of up to 2·JUDGED all."""


class Fresh(NamedTuple):
    """What the observations that wait say, for one unit of weight."""

    captured: np.ndarray
    """How much more every rung would have captured of them, (J,)."""
    entries: np.ndarray
    """XᵀNX in the judged columns, (q, w); of a block with a further row for what lies outside."""
    quotients: np.ndarray
    """Absolute Rayleigh quotients of the k columns, less the averaged ones, (k,)."""


class View(NamedTuple):
    """One observation."""

    apart: Array
    """C − sI − M, (n, n)."""
    centred: Array
    """C − sI, (n, n)."""
    level: float
    """s."""
    power: float
    """‖C − sI‖_F²."""


class Whole(NamedTuple):
    """Means on all n columns; J rungs."""

    means: tuple[Array, ...]
    """The means, levels taken out, J of (n, n); rungs that are the same share one."""
    levels: np.ndarray
    """The averaged levels, (J,)."""
    mean: Array
    """M: the chosen of the means, (n, n)."""
    frame: Array
    """X, its eigenvectors, (n, n); before an observation those of the basis, filled up."""
    values: np.ndarray
    """Its eigenvalues, in the order of X, (n,)."""
    level: np.ndarray
    """Its level, ()."""
    recent: Array
    """N of what waits; if nothing does, of what was taken in last, (n, n)."""
    recent_level: np.ndarray
    """Σ weight·(s − level) of what waits, ()."""
    offers: Offers
    """What the other rungs would turn."""

    @classmethod
    def start(cls, basis: Array, rungs: int, rng: Any) -> Whole:
        """Nothing seen."""
        xp, (n, k) = namespace(basis), basis.shape[-2:]
        frame = basis
        if k < n:
            frame = xp.concat([basis, xp.linalg.qr(basis, mode="complete")[0][:, k:]], axis=-1)
        none = xp.zeros((n, n), dtype=basis.dtype, device=_device(basis))
        zero, w = np.zeros(()), len(_judged_columns(n, k, np.zeros(n)))
        return cls(
            (none,) * rungs,
            np.zeros(rungs),
            none,
            contiguous(frame),
            np.zeros(n),
            zero,
            none,
            zero,
            offer.none(rungs, n, w),
        )

    @property
    def multiplied(self) -> Array:
        """What an observation is multiplied with: I."""
        n, xp = self.mean.shape[-1], namespace(self.mean)
        return xp.eye(n, dtype=self.mean.dtype, device=_device(self.mean))

    def basis(self, k: int) -> Array:
        """The first k columns."""
        return self.frame if k == self.frame.shape[-1] else contiguous(self.frame[:, :k])

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
        power = float(everything.size) ** 2
        view = View(centred - self.mean, centred, float(level), power)
        if k == n:
            return view, FullProbe(basis, centred, level), everything
        probe, _ = centre(basis, centred @ basis)
        own = Probe(basis, probe.image, probe.background + level, probe.rayleigh, n)
        return view, own, everything

    def compare(
        self, view: View, k: int, ladder: Ladder
    ) -> tuple[tuple[tuple[float, float], ...], bool]:
        """How far the observation lies apart; and whether what came last foretells it better.

        From the chosen mean, from the longest one, and from what came last: ‖C − M‖² in the k
        columns, outside of them (of a full basis in all), and the variance of each.
        """
        N, variance, waits = view.apart, ladder.variance, ladder.awaited
        beside = [(0 * N[:1, :1], variance[ladder.chosen])]
        if ladder.chosen < len(variance) - 1:
            beside.append((self.means[-1] - self.mean, variance[-1]))
        recent = self.recent / waits if waits else self.recent
        beside.append((recent, 1 / waits if waits else variance[0]))
        apart, leading = [], self.frame[:, :k]
        for other, v in beside:
            beyond = N - other
            if k < len(self.values):
                beyond = beyond @ leading
                beyond = beyond - leading @ (leading.mT @ beyond)
            apart.append((float(frobenius_squared(beyond)), float(v)))
        seen = N if k == len(self.values) else N @ leading
        recent = recent if k == len(self.values) else recent @ leading
        return tuple(apart), 2 * float(inner(seen, recent)) > float(frobenius_squared(recent))

    def wait(self, view: View, weight: float, waits: float) -> Whole:
        """The observation waits, with its weight."""
        more = weight * (view.level - self.level)
        recent = weight * view.apart
        if waits:
            recent += self.recent
            more = more + self.recent_level
        return self._replace(recent=recent, recent_level=np.asarray(more))

    def fresh(self, k: int, waits: float) -> Fresh:
        """What the observations of the weight that `waits` say."""
        X, n = self.frame, len(self.values)
        columns = _judged_columns(n, k, self.values)
        image = self.recent @ (X if k < n else X[:, columns])
        apart = on_host(X.mT @ image[:, : len(columns)]) / waits
        entries, quotients = apart.copy(), self.values.copy()
        at = columns, np.arange(len(columns))
        entries[at] += self.values[columns]
        shift = apart[at] if k == n else on_host(column_inner(X, image)) / waits
        quotients[columns if k == n else slice(None)] += shift
        shift = shift[:k] + self.recent_level / waits
        if len(shift) < k:  # the judged columns stand for all
            shift = np.full(k, np.mean(shift**2) ** 0.5)
        return Fresh(self.offers.captured(entries, quotients), apart, shift)

    def absorb(self, gains: np.ndarray, source: np.ndarray, waits: float) -> Whole:
        """What waits enters the means, each of which is its `source` first."""
        latest = self.mean + self.recent / waits
        level = self.level + self.recent_level / waits
        found: dict[tuple[int, float], Array] = {}
        means = []
        for i, gain in zip(source, gains, strict=True):
            mean, share = self.means[i], float(gain)
            key = id(mean), share
            if key not in found:
                found[key] = latest if share == 1 else (1 - share) * mean + share * latest
            means.append(found[key])
        levels = self.levels[source]
        return self._replace(means=tuple(means), levels=levels + gains * (level - levels))

    def turn(
        self, chosen: int, k: int, gain: float, waits: float, *, same: bool
    ) -> tuple[Whole, np.ndarray]:
        """The frame of the chosen mean; and how far columns keep their vector, (k,).

        Columns keep place and sign; the first turn orders them by descending eigenvalue.
        """
        n, xp = len(self.values), namespace(self.mean)
        mean = self.means[chosen]
        values, vectors = xp.linalg.eigh(mean)
        values, vectors = on_host(values)[::-1].copy(), xp.flip(vectors, axis=-1)
        settled = bool(self.values.any())
        overlap = np.diag(on_host(column_inner(self.frame, vectors)))
        if settled and (k < n or np.min(abs(np.diagonal(overlap))) < CLOSE):
            overlap = on_host(self.frame[:, :k].mT @ vectors[:, :k])
        order, sign, kept = arrange(overlap[:k, :k], n, settled=settled)
        vectors = contiguous(vectors[:, order] * as_array_of(sign, vectors))
        if not settled and k == n and _reflected(vectors, self.frame):
            vectors[:, -1] *= -1.0
        return self._replace(
            mean=mean,
            frame=vectors,
            values=values[order],
            level=np.asarray(self.levels[chosen]),
            recent=self.means[0] - mean,
            recent_level=np.zeros(()),
        ), kept

    def offer(self, ladder: Ladder, k: int) -> Whole:
        """The offers of the rungs as they are now."""
        X, n = self.frame, len(self.values)
        columns = _judged_columns(n, k, self.values)
        asked = X if k < n else X[:, columns]
        distinct = {id(mean): mean for mean in self.means}
        turns, shifts = {}, {}
        for key, mean in distinct.items():
            image = (mean - self.mean) @ asked
            turns[key] = on_host(X.mT @ image[:, : len(columns)])
            shifts[key] = on_host(column_inner(X, image)) if k < n else np.zeros(n)
        noise = float(ladder.variance[ladder.chosen] * ladder.usual)
        each = [id(mean) for mean in self.means]
        turned = np.array([turns[key] for key in each])
        if k == n:
            found = offer.of_full(turned, self.values, columns, noise / n**2)
        else:
            found = offer.of_leading(turned, np.array([shifts[key] for key in each]), self.values)
        return self._replace(offers=found)

    def figures(self, ladder: Ladder, k: int) -> tuple[np.ndarray, float]:
        """Averaged eigenvalues of the k columns, and the level; what waits included."""
        waits = ladder.awaited
        if not waits:
            return self.values[:k] + self.level, float(self.level)
        share = 1 / ladder.memory
        X = self.frame[:, :k]
        more = share * on_host(column_inner(X, self.recent @ X))
        level = self.level + share * self.recent_level
        return self.values[:k] + more + level, float(level)


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


def _judged_columns(n: int, k: int, values: np.ndarray) -> np.ndarray:
    """Columns on which memories are judged: the k leading, or some of a full basis."""
    if k < n or n <= 2 * JUDGED:
        return np.arange(k)
    return np.asarray(np.argsort(-values)[np.linspace(0, n - 1, JUDGED).astype(int)])


def _reflected(vectors: Array, basis: Array) -> bool:
    """Whether two full bases have determinants of different sign."""
    det = namespace(vectors).linalg.det
    return float(det(vectors)) * float(det(basis)) < 0


def _device(array: Array) -> Any:
    return getattr(array, "device", None)


def on_host(array: Array) -> np.ndarray:
    """A small array in double precision, as NumPy's."""
    return np.asarray(to_host(array), dtype=float)


def as_array_of(small: np.ndarray, X: Array) -> Array:
    """A small array of the host in the library, dtype and device of X."""
    if isinstance(X, np.ndarray):
        return small.astype(X.dtype, copy=False)
    return namespace(X).asarray(small, dtype=X.dtype, device=X.device)
