"""Turning one pair of columns: the paper's escape from degenerate blocks, and the guard."""

from __future__ import annotations

from math import pi

from bracketflow.core import (
    Array,
    Scalar,
    diagonal,
    frobenius_squared,
    identity_like,
    namespace,
    off_diagonal,
)
from bracketflow.geometry import turned


def escaped(start: Array, moved: Array, rayleigh: Array, promised: Scalar) -> Array:
    """`start` turned by π/4 in its largest degenerate pair where b² beats the gradient step."""
    xp = namespace(start)
    d = diagonal(rayleigh)
    gap = abs(d[..., None, :] - d[..., :, None])
    size = abs(off_diagonal(rayleigh))
    # Degenerate up to slack: beyond rounding, and still within 1e-6 of the full decrease b².
    i, j, best = _largest(xp.where(gap <= 1e-3 * size, size, 0 * size))
    rotation = _rotation(i, j, rayleigh, xp.full_like(best, pi / 4))
    return xp.where((best**2 > promised)[..., None, None], turned(start, rotation), moved)


def guarded(start: Array, moved: Array, rayleigh: Array) -> Array:
    """`moved`, or `start` with its largest pair turned until H_ij = 0, whichever lowers f by more.

    Both are known from H alone: turning takes off b², b = H_ij; the move Q = XᵀX₊ leaves f(QᵀHQ).
    Once 10√f ≤ δ = min |H_ii − H_jj| any move that does not raise f is kept: with a gap g, δ ≤ g +
    2√f, so that √f ≤ g/8, which is the paper's ½f_thr for the domain N_{g/2}. There the flow needs
    no help, and averages the noise of observations that turning would follow one by one.
    """
    xp = namespace(start)
    move = start.mT @ moved
    level = 0.5 * frobenius_squared(off_diagonal(rayleigh))
    left = 0.5 * frobenius_squared(off_diagonal(move.mT @ rayleigh @ move))
    i, j, best = _largest(abs(off_diagonal(rayleigh)))
    inside = 100 * level <= _separation(rayleigh) ** 2
    # A move that overflowed leaves NaN, and is kept by neither.
    kept = (left <= level - best**2) | (inside & (left <= level))
    rotation = _rotation(i, j, rayleigh, _angle(i, j, rayleigh))
    return xp.where(kept[..., None, None], moved, turned(start, rotation))


def _separation(rayleigh: Array) -> Scalar:
    """δ = min_{i≠j} |H_ii − H_jj|."""
    xp = namespace(rayleigh)
    d = xp.sort(diagonal(rayleigh), axis=-1)
    return xp.min(d[..., 1:] - d[..., :-1], axis=-1) if d.shape[-1] > 1 else 0 * d[..., 0]


def _largest(size: Array) -> tuple[Array, Array, Scalar]:
    """Row, column and value of the largest entry, member by member."""
    xp = namespace(size)
    k = size.shape[-1]
    flat = xp.reshape(size, (*size.shape[:-2], k * k))
    place = xp.argmax(flat, axis=-1)
    return place // k, place % k, xp.max(flat, axis=-1)


def _angle(i: Array, j: Array, rayleigh: Array) -> Scalar:
    """The t nearest to 0 for which e^{tΞ} makes H_ij zero: tan 2t = 2H_ij/(H_jj − H_ii)."""
    xp = namespace(rayleigh)
    e_i, e_j = _unit(i, rayleigh), _unit(j, rayleigh)
    entry = xp.sum(rayleigh * _outer(e_i, e_j), axis=(-2, -1))
    gap = xp.sum(diagonal(rayleigh) * (e_j - e_i), axis=-1)
    return 0.5 * xp.atan2(xp.where(gap < 0, -2 * entry, 2 * entry), abs(gap))


def _rotation(i: Array, j: Array, like: Array, angle: Scalar) -> Array:
    """e^{tΞ}, Ξ = E_ij − E_ji, t = `angle`; I where i = j."""
    xp = namespace(like)
    identity = identity_like(like)
    e_i, e_j = _unit(i, like), _unit(j, like)
    plane = _outer(e_i, e_i) + _outer(e_j, e_j)
    skew = _outer(e_i, e_j) - _outer(e_j, e_i)
    cosine, sine = xp.cos(angle)[..., None, None], xp.sin(angle)[..., None, None]
    rotation = identity + (cosine - 1) * plane + sine * skew
    return xp.where((i == j)[..., None, None], identity, rotation)


def _unit(index: Array, like: Array) -> Array:
    return identity_like(like)[index, :]


def _outer(a: Array, b: Array) -> Array:
    return a[..., :, None] * b[..., None, :]
