"""The mean on all n columns: every rung an n × n matrix in fixed coordinates.

One product with I gives C itself. Its level s = tr C/n is taken out, so that the means

    M_j ← M_j + g_j (C − sI − M_j)

cannot see σ². The frame X holds the eigenvectors of the chosen mean and is renewed by `eigh` when
enough is new. What a rung captures of the fresh H = XᵀCX more than the frame is read off pair by
pair: with P = Xᵀ(M_j − M)X and δ = λ_i − λ_a it would turn columns a and i by θ, tan 2θ = 2P/δ, and

    b = Σ H_ai sin 2θ − (H_ii − H_aa) sin²θ.
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
    identity_like,
    namespace,
    to_host,
    trace,
)
from bracketflow.observation import centre, refuse_bad
from bracketflow.tracker import ladder as ladders
from bracketflow.tracker.identity import arrange
from bracketflow.tracker.ladder import Ladder

STALE = 0.045
"""Share of the mean that may be new before a large frame is renewed: costs half of it in squared
error on average. Up to SMALL columns it is renewed always."""
SMALL = 64
"""Columns up to which all n are kept for any k: the products cost as much as their overhead."""
WATCHED = 16
"""Columns of a full basis on which memories are judged, of up to 2·WATCHED all."""


class Whole(NamedTuple):
    """Means on all n columns; J rungs."""

    means: Array
    """The means, levels taken out, (J, n, n)."""
    levels: np.ndarray
    """The averaged levels, (J,)."""
    frame: Array
    """X, eigenvectors of the chosen mean when it was last renewed, (n, n); first those of the
    basis, in its order."""
    values: np.ndarray
    """Eigenvalues that belong to them, (n,)."""
    stale: np.ndarray
    """Share of the chosen mean that is newer than the frame, ()."""


class Fresh(NamedTuple):
    """What one observation says, seen from the frame."""

    apart: float
    """‖N‖² of what was not foreseen, outside of the k columns (for k = n: at all)."""
    apart_from_last: float
    """The same beside the last observation."""
    more: np.ndarray
    """b of every rung, (J,)."""
    size: np.ndarray
    """Its scale, (J,)."""
    squares: np.ndarray
    """Squares of the entries of XᵀNX, in the columns that are watched, (n, w)."""
    quotients: np.ndarray
    """Absolute Rayleigh quotients of the k columns, less the averaged ones, (k,)."""


def start(basis: Array, rungs: int) -> Whole:
    """Nothing seen: the frame is the basis, filled up where it has less than n columns."""
    xp, n = namespace(basis), basis.shape[-2]
    frame = basis
    if basis.shape[-1] < n:
        complete = xp.linalg.qr(basis, mode="complete")[0]
        frame = xp.concat([basis, complete[:, basis.shape[-1] :]], axis=-1)
    means = xp.zeros((rungs, n, n), dtype=basis.dtype, device=_device(basis))
    return Whole(means, np.zeros(rungs), contiguous(frame), np.zeros(n), np.zeros(()))


def _device(array: Array) -> Any:
    return getattr(array, "device", None)


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


def observe(image: Array, basis: Array, seen: Any) -> tuple[Array, float, Probe, Probe]:
    """C − sI and s from the image of I; the probe of the basis, and that of I.

    Raises `ObservationError` where the product is not usable.
    """
    identity, n = identity_like(image), image.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):
        level = trace(image) / n
        image = image - level * identity
        centred = 0.5 * (image + image.mT)
        everything = Probe(identity, image, level, centred, n)
        refuse_bad(everything, image - centred, seen)
    if basis.shape[-1] == n:
        return centred, float(level), FullProbe(basis, centred, level), everything
    probe, _ = centre(basis, centred @ basis)
    own = Probe(basis, probe.image, probe.background + level, probe.rayleigh, n)
    return centred, float(level), own, everything


def watched_columns(n: int, k: int, values: np.ndarray) -> np.ndarray:
    """Columns on which memories are judged: the k leading, or some of a full basis."""
    if k < n or n <= 2 * WATCHED:
        return np.arange(k)
    return np.asarray(np.argsort(-values)[np.linspace(0, n - 1, WATCHED).astype(int)])


def compare(whole: Whole, centred: Array, level: float, k: int, ladder: Ladder) -> Fresh:
    """The observation beside the chosen mean and the other rungs."""
    X, chosen, n = whole.frame, int(ladder.chosen), whole.frame.shape[-1]
    xp, columns = namespace(X), watched_columns(n, k, whole.values)
    # Of the leading k all n columns are asked: one outside may have risen above one of them.
    asked = X if k < n else X[:, columns]
    images = xp.concat([whole.means @ asked, (centred @ asked)[None]], axis=0)
    seen = _host(X.mT @ images[..., : len(columns)])
    rayleigh, turns = seen[-1], seen[:-1] - seen[chosen]
    entries, since_last = rayleigh - seen[chosen], rayleigh - seen[0]
    quotients, shifts = whole.values.copy(), np.zeros((len(turns), n))
    if k < n:
        heights = _host(column_inner(X[None], images))
        quotients, shifts = heights[-1], heights[:-1] - heights[chosen]
        apart, apart_from_last = np.sum(entries[k:] ** 2), np.sum(since_last[k:] ** 2)
    else:
        quotients[columns] = rayleigh[columns, np.arange(len(columns))]
        apart, apart_from_last = (
            float(frobenius_squared(centred - whole.means[j])) for j in (chosen, 0)
        )
    noise = float(ladders.variances(ladder)[chosen] * ladder.usual)
    noise = noise / ((n - k) * k if k < n else 0.5 * n * (n + 1))
    more, size = _captured(
        turns, shifts, rayleigh, quotients, whole.values, columns, noise, swaps=k < n
    )
    foreseen = whole.values[:k] + whole.levels[chosen]
    return Fresh(
        float(apart),
        float(apart_from_last),
        more,
        size,
        entries**2,
        quotients[:k] + level - foreseen,
    )


def _captured(
    turns: np.ndarray,
    shifts: np.ndarray,
    rayleigh: np.ndarray,
    quotients: np.ndarray,
    values: np.ndarray,
    columns: np.ndarray,
    noise: float,
    *,
    swaps: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """b and its scale for every rung, from the pairs (a, i), i watched.

    For the leading k, a lies outside of them and may take the place of i (θ up to π/2); in a full
    basis every pair counts, as a turn by π/4 at most. A pair that the noise of the mean does not
    resolve has no angle to speak of, and counts δ²/(δ² + 4·noise).
    """
    gap = values[columns] - values[:, None]
    sign = np.ones_like(gap) if swaps else np.where(gap < 0, -1.0, 1.0)
    wide = sign * gap + (shifts[:, None, columns] - shifts[:, :, None] if swaps else 0.0)
    length = np.sqrt(wide**2 + 4 * turns**2) + ladders.TINY
    sine_squared = 0.5 * (1 - wide / length)
    fresh = sign * (quotients[columns] - quotients[:, None])
    known = gap**2 / (gap**2 + 4 * noise + ladders.TINY)
    if swaps:
        known = np.ones_like(gap)
        known[: len(columns)] = 0.0
    known[columns, np.arange(len(columns))] = 0.0
    more = known * (2 * turns * rayleigh / length - fresh * sine_squared)
    size = known * abs(gap) * 0.5 * (1 - abs(wide) / length)
    return more.sum(axis=(1, 2)), size.sum(axis=(1, 2))


def _host(array: Array) -> np.ndarray:
    return np.asarray(to_host(array), dtype=float)


def absorb(
    whole: Whole, centred: Array, level: float, gains: np.ndarray, verdict: ladders.Verdict
) -> Whole:
    """The means with this observation in them."""
    levels = np.where(verdict.copied, whole.levels[verdict.chosen], whole.levels)
    if verdict.jumped:
        gains = np.ones_like(gains)
    means = namespace(centred).empty_like(whole.means)
    for j, gain in enumerate(gains):
        former = whole.means[verdict.chosen if verdict.copied[j] else j]
        means[j] = centred
        if gain < 1:
            means[j] -= former
            means[j] *= float(gain)
            means[j] += former
    return whole._replace(
        means=means,
        levels=levels + gains * (level - levels),
        stale=whole.stale + gains[verdict.chosen],
    )


def renew(whole: Whole, chosen: int, k: int, *, forced: bool) -> tuple[Whole, np.ndarray]:
    """The frame of the chosen mean, if enough is new; and how far columns keep their vector, (k,).

    Columns keep place and sign.
    """
    n = whole.frame.shape[-1]
    if n > SMALL and whole.stale <= STALE and not forced:
        return whole, np.ones(k)
    xp = namespace(whole.means)
    values, vectors = xp.linalg.eigh(whole.means[chosen])
    values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
    overlap = _host(whole.frame[:, :k].mT @ vectors[:, :k])
    order, sign, kept = arrange(overlap, n)
    vectors = vectors[:, order] * xp.asarray(sign, dtype=vectors.dtype, device=_device(vectors))
    values = _host(values)[order]
    return (
        whole._replace(frame=contiguous(vectors), values=values, stale=np.zeros(())),
        kept,
    )


def first(whole: Whole, centred: Array, level: float, basis: Array) -> Whole:
    """After the first observation: its eigenvectors, descending."""
    xp, n, k = namespace(centred), centred.shape[-1], basis.shape[-1]
    values, vectors = xp.linalg.eigh(centred)
    values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
    # Signs as of the start, so that no library's habits decide; a full basis keeps its det.
    along = column_inner(whole.frame, vectors)
    vectors = vectors * xp.where(along < 0, -xp.ones_like(along), xp.ones_like(along))
    if k == n and float(xp.linalg.det(vectors)) * float(xp.linalg.det(basis)) < 0:
        vectors = xp.concat([vectors[:, :-1], -vectors[:, -1:]], axis=-1)
    means = xp.broadcast_to(centred, whole.means.shape) + 0
    return Whole(means, whole.levels + level, contiguous(vectors), _host(values), np.zeros(()))
