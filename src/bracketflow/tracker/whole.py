"""The mean on all n columns: matrices in fixed coordinates, and a frame by `eigh`.

One product with I gives C itself. Its level s = tr C/n is taken out, so that the means

    M_j ← M_j + g_j (C − sI − M_j)

cannot see σ². They are kept as M_j = Σ_i parts_ji A_i over a few older means and the last
observations, and summed up once in a while. The frame X holds the eigenvectors of the chosen mean.
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
    namespace,
    to_host,
    trace,
)
from bracketflow.observation import centre, refuse_bad
from bracketflow.tracker import offers as offer
from bracketflow.tracker.identity import CLOSE, arrange
from bracketflow.tracker.ladder import Ladder, Verdict
from bracketflow.tracker.offers import Fresh, Offers

SMALL = 64
"""Columns up to which all n are kept for any k, and the frame follows every observation: products
and `eigh` cost as much as their overhead."""
WATCHED = 16
"""Columns of a full basis on which memories and noise are judged, of up to 2·WATCHED all."""


class Whole(NamedTuple):
    """Means on all n columns; J rungs."""

    means: Array
    """Older means, levels taken out, (J, n, n)."""
    recent: tuple[Array, ...]
    """The observations since, p of them, each (n, n)."""
    parts: np.ndarray
    """How much of each is in every rung, (J, J + p)."""
    levels: np.ndarray
    """The averaged levels, (J,)."""
    frame: Array
    """X, eigenvectors of the chosen mean when it was last renewed, (n, n); first those of the
    basis, in its order."""
    watched: np.ndarray
    """Columns on which memories and noise are judged, (w,)."""
    values: np.ndarray
    """Eigenvalues that belong to the columns, (n,), above"""
    level: np.ndarray
    """the level averaged until then, ()."""
    held: np.ndarray
    """XᵀM_jX in the watched columns, (J, n, w)."""
    quotients: np.ndarray
    """Diagonal of XᵀM_jX, (J, n); of a full basis only where columns are watched."""
    stale: np.ndarray
    """Share of the chosen mean that is newer than the frame, ()."""
    offers: Offers
    """What the other rungs would turn."""


def start(basis: Array, rungs: int) -> Whole:
    """Nothing seen: the frame is the basis, filled up where it has less than n columns."""
    xp, (n, k) = namespace(basis), basis.shape[-2:]
    frame = basis
    if k < n:
        complete = xp.linalg.qr(basis, mode="complete")[0]
        frame = xp.concat([basis, complete[:, k:]], axis=-1)
    means = xp.zeros((rungs, n, n), dtype=basis.dtype, device=_device(basis))
    p = 1 if n <= SMALL else rungs + 1  # a sum of so many costs as much as one step for every rung
    watched = _watched_columns(n, k, np.zeros(n))
    w = len(watched)
    return Whole(
        means,
        (means[0],) * p,
        np.eye(rungs, rungs + p),
        np.zeros(rungs),
        contiguous(frame),
        watched,
        np.zeros(n),
        np.zeros(()),
        np.zeros((rungs, n, w)),
        np.zeros((rungs, n)),
        np.zeros(()),
        offer.none(rungs, n, w),
    )


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


class View(NamedTuple):
    """One observation, its level taken out."""

    centred: Array
    """C − sI, (n, n)."""
    level: float
    """s."""
    power: float
    """‖C − sI‖_F²."""
    entries: np.ndarray
    """XᵀCX in the watched columns, (n, w)."""
    quotients: np.ndarray
    """Its diagonal, (n,), where it is known; averaged eigenvalues elsewhere."""


def observe(
    whole: Whole, identity: Array, image: Array, basis: Array, seen: Any
) -> tuple[View, Probe, Probe]:
    """The image of I; the probe of the basis, and that of I.

    Raises `ObservationError` where the product is not usable.
    """
    n, k = basis.shape[-2:]
    with np.errstate(over="ignore", invalid="ignore"):
        level = trace(image) / n
        centred = image + image.mT
        centred *= 0.5
        centred -= level * identity
        skew = image - image.mT
        skew *= 0.5
        everything = Probe(identity, centred, level, centred, n)
        refuse_bad(everything, skew, seen)
    view = _view(whole, centred, float(level), k)
    if k == n:
        return view, FullProbe(basis, centred, level), everything
    probe, _ = centre(basis, centred @ basis)
    own = Probe(basis, probe.image, probe.background + level, probe.rayleigh, n)
    return view, own, everything


def _view(whole: Whole, centred: Array, level: float, k: int) -> View:
    """C − sI from the frame. Of the leading k all n columns are asked: others may have risen."""
    X, n = whole.frame, whole.frame.shape[-1]
    columns = whole.watched
    image = centred @ (X if k < n else X[:, columns])
    entries, quotients = on_host(X.mT @ image[:, : len(columns)]), whole.values.copy()
    if k < n:
        quotients = on_host(column_inner(X, image))
    else:
        quotients[columns] = entries[columns, np.arange(len(columns))]
    return View(centred, level, float(frobenius_squared(centred)), entries, quotients)


def _watched_columns(n: int, k: int, values: np.ndarray) -> np.ndarray:
    """Columns on which memories are judged: the k leading, or some of a full basis."""
    if k < n or n <= 2 * WATCHED:
        return np.arange(k)
    return np.asarray(np.argsort(-values)[np.linspace(0, n - 1, WATCHED).astype(int)])


def compare(whole: Whole, view: View, k: int, chosen: int) -> Fresh:
    """The observation beside the chosen mean and the other rungs."""
    n, columns = len(whole.values), whole.watched
    unforeseen = view.entries.copy()
    unforeseen[columns, np.arange(len(columns))] -= whole.values[columns]
    outside = slice(k if k < n else 0, None)
    from_last = view.entries - whole.held[0]
    return Fresh(
        float(np.sum(unforeseen[outside] ** 2)),
        float(np.sum(from_last[outside] ** 2)),
        bool(np.sum(from_last**2) < np.sum(unforeseen**2)),
        whole.offers.judge(view.entries, view.quotients),
        unforeseen**2,
        view.quotients[:k] + view.level - whole.values[:k] - whole.level,
    )


def on_host(array: Array) -> np.ndarray:
    """A small array in double precision, as NumPy's."""
    return np.asarray(to_host(array), dtype=float)


def as_array_of(small: np.ndarray, X: Array) -> Array:
    """A small array of the host in the library, dtype and device of X."""
    if isinstance(X, np.ndarray):
        return small.astype(X.dtype, copy=False)
    return namespace(X).asarray(small, dtype=X.dtype, device=X.device)


def absorb(whole: Whole, view: View, gains: np.ndarray, verdict: Verdict, at: int) -> Whole:
    """The means with this observation, the `at`-th, in them."""
    J, p = len(gains), len(whole.recent)
    source = np.where(verdict.copied, verdict.chosen, np.arange(J))
    if verdict.jumped:
        gains = np.ones_like(gains)
    parts, levels = whole.parts[source] * (1 - gains)[:, None], whole.levels[source]
    held, quotients = whole.held[source], whole.quotients[source]
    held += gains[:, None, None] * (view.entries - held)
    quotients += gains[:, None] * (view.quotients - quotients)
    slot = at % p
    parts[:, J + slot] = gains
    whole = whole._replace(
        recent=(*whole.recent[:slot], view.centred, *whole.recent[slot + 1 :]),
        parts=parts,
        levels=levels + gains * (view.level - levels),
        held=held,
        quotients=quotients,
        stale=whole.stale + gains[verdict.chosen],
    )
    return _summed_up(whole) if slot == p - 1 else whole


def _summed_up(whole: Whole) -> Whole:
    """The same means without recent observations. Rungs that are the same share one."""
    J, places = whole.parts.shape
    distinct, same = np.unique(whole.parts, axis=0, return_inverse=True)
    means = namespace(whole.means).zeros_like(whole.means)
    means[: len(distinct)] = _combined(distinct, [*whole.means, *whole.recent])
    return whole._replace(means=means, parts=np.eye(J, places)[same])


def _combined(parts: np.ndarray, terms: list[Array]) -> Array:
    """Σ_i parts_ji terms_i for every j, (j, n, m)."""
    used, xp = np.flatnonzero(parts.any(axis=0)), namespace(terms[0])
    flat = xp.stack([xp.reshape(terms[i], (-1,)) for i in used])
    return xp.reshape(as_array_of(parts[:, used], flat) @ flat, (-1, *terms[0].shape))


def turn(whole: Whole, chosen: int, former: int, k: int) -> tuple[Whole, np.ndarray]:
    """The frame of the chosen mean; and how far columns keep their vector, (k,).

    Columns keep place and sign.
    """
    n, xp = whole.frame.shape[-1], namespace(whole.means)
    mean = _combined(whole.parts[chosen : chosen + 1], [*whole.means, *whole.recent])
    values, vectors = xp.linalg.eigh(mean[0])
    values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
    overlap = np.diag(on_host(column_inner(whole.frame, vectors)))
    if k < n or np.min(abs(np.diagonal(overlap))) < CLOSE:
        overlap = on_host(whole.frame[:, :k].mT @ vectors[:, :k])
    order, sign, kept = arrange(overlap, n)
    vectors = vectors[:, order] * xp.asarray(sign, dtype=vectors.dtype, device=_device(vectors))
    frame, values = contiguous(vectors), on_host(values)[order]
    return _seen_from(frame, values, whole, chosen, k), kept


def _seen_from(frame: Array, values: np.ndarray, whole: Whole, chosen: int, k: int) -> Whole:
    """The rungs seen from a new frame."""
    n, J = len(values), len(whole.means)
    columns = _watched_columns(n, k, values)
    asked = frame if k < n else frame[:, columns]
    terms, used = [*whole.means, *whole.recent], np.flatnonzero(whole.parts.any(axis=0))
    mixed = _combined(whole.parts[:, used], [terms[i] @ asked for i in used])
    held, quotients = on_host(frame.mT @ mixed[..., : len(columns)]), np.tile(values, (J, 1))
    if k < n:
        quotients = on_host(column_inner(frame[None], mixed))
    return whole._replace(
        frame=frame,
        watched=columns,
        values=values,
        level=np.asarray(whole.levels[chosen]),
        held=held,
        quotients=quotients,
        stale=np.zeros(()),
    )


def offers(whole: Whole, k: int, ladder: Ladder) -> Whole:
    """The offers of the rungs as they are now."""
    n, chosen, columns = len(whole.values), int(ladder.chosen), whole.watched
    noise = float(ladder.variance[chosen] * ladder.usual)
    noise = noise / ((n - k) * k if k < n else n * len(columns))
    turns, shifts = whole.held - whole.held[chosen], whole.quotients - whole.quotients[chosen]
    found = offer.offered(turns, shifts, whole.values, columns, noise, full=k == n)
    return whole._replace(offers=found)


def first(whole: Whole, view: View, basis: Array) -> tuple[Whole, np.ndarray]:
    """After the first observation: its eigenvectors, descending."""
    xp, (n, k) = namespace(basis), basis.shape[-2:]
    values, vectors = xp.linalg.eigh(view.centred)
    values, vectors = xp.flip(values, axis=-1), xp.flip(vectors, axis=-1)
    # Signs as of the start, so that no library's habits decide; a full basis keeps its det.
    along = column_inner(whole.frame, vectors)
    vectors = vectors * xp.where(along < 0, -xp.ones_like(along), xp.ones_like(along))
    if k == n and float(xp.linalg.det(vectors)) * float(xp.linalg.det(basis)) < 0:
        vectors = xp.concat([vectors[:, :-1], -vectors[:, -1:]], axis=-1)
    means = xp.broadcast_to(view.centred, whole.means.shape) + 0
    whole = whole._replace(means=means, levels=whole.levels + view.level)
    last = len(whole.levels) - 1
    return _seen_from(contiguous(vectors), on_host(values) + 0, whole, last, k), np.ones(k)
