"""The full basis: a running mean of H, carried along with the frame that diagonalises it.

H̄ ← H̄ + g(H − H̄) is linear in the noise, so it averages as the mean of all C_t would; the frame
follows by the Newton angles K_ij = H̄_ij/(H̄_jj − H̄_ii), with two products a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    diagonal,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    least_squared,
    namespace,
    off_diagonal,
    select,
    to_host,
)
from bracketflow.geometry import cayley, taken, upright
from bracketflow.observation import advance, observe
from bracketflow.oracles import as_operator
from bracketflow.tracker import quotients
from bracketflow.tracker.gain import (
    JUMP,
    WARM_UP,
    Alarm,
    Gain,
    after_jump,
    fraction,
    grown,
    heard,
    judged,
    listened,
    per_member,
    pulled,
    quiet,
    restarted,
    start_gain,
)
from bracketflow.tracker.identity import CLOSE, continued
from bracketflow.tracker.quotients import Quotients

LARGE_TURN = 0.3  # ‖K‖_F from which one eigh beats many small turns
SMALL_TURN = 2.0  # ‖K²‖_F in units of eps^(1/3): beyond it the series of the turn is too short
ALIKE = 4.0  # standard errors of the entries of H̄ within which eigenvalues are not told apart
TURN_AT = 0.03  # turn when it takes this part off the squared standard error,
MANY, TURN_MANY_AT = 256, 0.045  # and of so many columns: there a turn costs more than all else
POLISH_EVERY = 16  # steps between two corrections of XᵀX


class Frame(NamedTuple):
    """Memory of the full tracker; matrices are written in the columns of the basis."""

    mean: Array
    """H̄, diagonal up to second order of the last turn."""
    variance: Array
    """Variance of the entries of H for an observation of weight 1."""
    lean: Array
    """∂(angles)/∂log g: where a larger gain would have put the frame."""
    gain: Gain
    alarm: Alarm
    quotients: Quotients
    """Of all columns together, (..., 1)."""


def start(basis: Array) -> Frame:
    """Memory before the first observation."""
    ensemble = tuple(basis.shape[:-2])
    zero = 0 * basis
    alarm, nothing = quiet(ensemble, basis), quotients.start(ensemble, 1)
    return Frame(zero, zero, zero, start_gain(ensemble), alarm, nothing)


def step(operator: Any, state: State, forget: float | None) -> tuple[State, Probe]:
    """One observation: new state, and the probe of the state that went in."""
    operator = as_operator(operator)
    probe = observe(operator, state)
    frame = restored(state.memory)
    if not frame.gain.count.all():
        basis, memory = _first(state.basis, probe.rayleigh, frame, operator.weight)
    else:
        basis, memory = _next(state, probe, frame, operator.weight, forget)
    return advance(state, probe, basis, memory), probe


def restored(memory: Any) -> Frame:
    """A `Frame` from nested tuples."""
    mean, variance, lean, gain, alarm, watch = memory
    return Frame(mean, variance, lean, Gain(*gain), Alarm(*alarm), Quotients(*watch))


def _first(basis: Array, rayleigh: Array, frame: Frame, weight: float) -> tuple[Array, Frame]:
    """The eigenbasis of the first observation, descending, of the determinant of the start."""
    xp = namespace(basis)
    values, turn = xp.linalg.eigh(rayleigh)
    values, turn = xp.flip(values, axis=-1), upright(xp.flip(turn, axis=-1))
    turn = _proper(turn)
    mean = values[..., None] * identity_like(rayleigh)
    return basis @ turn, frame._replace(mean=mean, gain=restarted(weight, 1, frame.gain))


def _next(
    state: State, probe: Probe, frame: Frame, weight: float, forget: float | None
) -> tuple[Array, Frame]:
    innovation = probe.rayleigh - frame.mean
    square = innovation * innovation
    size, floor = _loudness(square, frame, probe, weight)
    verdict = heard(frame.alarm, frame.gain, size, innovation, floor)
    watch = _watched(probe, frame, weight)
    basis, memory = _absorbed(state, innovation, square, frame, weight, forget)
    memory = memory._replace(alarm=listened(frame.alarm, frame.gain, size), quotients=watch)
    unseen = quotients.lost(watch)
    if verdict is not None:
        kept = (state.basis, frame._replace(alarm=verdict.waiting))
        basis, memory = select(verdict.held, kept, (basis, memory))
        unseen = unseen & ~verdict.held & ~verdict.jumped
        if verdict.jumped.any() and forget is None:
            fresh = _reset(state, verdict.waiting.suspect, JUMP, frame, weight)
            basis, memory = select(verdict.jumped, fresh, (basis, memory))
    if unseen.any() and forget is None:
        fresh = _reset(state, innovation, 1, frame, weight)
        basis, memory = select(unseen, fresh, (basis, memory))
    return basis, memory


def _watched(probe: Probe, frame: Frame, weight: float) -> Quotients:
    """The quotients after an observation: <d, diag H>/‖d‖ with d = diag H̄ less its mean.

    All of a basis tell together whether it has been left: one eigenvalue may well fall.
    """
    xp, d = namespace(frame.mean), diagonal(frame.mean)
    d = d - xp.mean(d, axis=-1, keepdims=True)
    height = xp.linalg.vector_norm(d, axis=-1, keepdims=True)
    along = xp.sum(d * diagonal(probe.rayleigh), axis=-1, keepdims=True)
    known = height > 0
    fresh = xp.where(known, along, 0 * along) / xp.where(known, height, 1 + 0 * height)
    return quotients.watched(
        frame.quotients,
        to_host(fresh).astype(float),
        weight,
        g=fraction(frame.gain, weight),
        rate=np.maximum(1 / frame.gain.count, 1 / 1024),
        ready=frame.gain.count > WARM_UP,
        rounding=to_host(probe.rounding),
    )


def _loudness(square: Array, frame: Frame, probe: Probe, weight: float) -> tuple[Any, Any]:
    """Mean of innovation²/variance, and the value of it that rounding alone can reach."""
    xp = namespace(square)
    typical = xp.mean(frame.variance, axis=(-2, -1), keepdims=True)
    least = float(xp.finfo(square.dtype).smallest_normal)
    rounding = per_member(to_host(probe.rounding) ** 2 + least, square)
    noise = frame.variance + (0.01 * typical + rounding)
    with np.errstate(over="ignore"):  # without any noise yet every innovation is infinitely loud
        size = xp.mean(square / noise, axis=(-2, -1))
    scale = weight * (1 - fraction(frame.gain, weight))
    return to_host(size) * scale, 64.0 * scale


def _absorbed(
    state: State,
    innovation: Array,
    square: Array,
    frame: Frame,
    weight: float,
    forget: float | None,
) -> tuple[Array, Frame]:
    """Basis and memory after an innovation; `square` is spent."""
    gain, variance = frame.gain, frame.variance
    g = per_member(fraction(gain, weight), innovation)
    mean = frame.mean + g * innovation
    inverse_gap = _inverse_gaps(mean)
    known = _told_apart(mean, variance, gain.noise, g)
    if known is not None:
        inverse_gap *= known
    fresh = inverse_gap * innovation
    spread = frame.lean * inverse_gap
    spread *= spread
    doubt = inner(spread, variance) * (2 / weight)
    gain = judged(gain, fraction(gain, weight), inner(fresh, frame.lean), doubt)
    gain = grown(_pulled(gain, innovation, frame, weight), weight, forget)
    square *= weight * (1 - g)
    square -= variance
    square *= per_member(np.maximum(1 / frame.gain.count, 1 / 1024), innovation)
    square += variance
    inverse_gap *= mean
    part = TURN_AT if fresh.shape[-1] < MANY else TURN_MANY_AT
    worth = part * weight * gain.noise * to_host(frobenius_squared(fresh))
    left = None if known is None else off_diagonal((1 - known) * mean)
    basis, mean = _turned(state, mean, inverse_gap, worth, left)
    own = np.arange(fresh.shape[-1])
    fresh[..., own, own] = diagonal(innovation)  # the lean of the eigenvalues
    fresh -= frame.lean
    fresh *= g
    fresh += frame.lean
    return basis, Frame(mean, square, fresh, gain, frame.alarm, frame.quotients)


def _pulled(gain: Gain, innovation: Array, frame: Frame, weight: float) -> Gain:
    """Gain with the evidence of the diagonal, each entry in units of its own noise."""
    xp = namespace(innovation)
    fresh, lean, variance = diagonal(innovation), diagonal(frame.lean), diagonal(frame.variance)
    variance = variance + 0.01 * xp.mean(variance, axis=-1, keepdims=True)
    known = variance > 0
    scaled = xp.where(known, lean, 0 * lean) / xp.where(known, variance, 1 + 0 * variance)
    along, square = xp.sum(fresh * scaled, axis=-1), xp.sum(lean * scaled, axis=-1)
    return pulled(gain, fraction(gain, weight), along, square / weight)


def _inverse_gaps(matrix: Array) -> Array:
    """2/(δ ± √(δ² + 4A_ij²)), δ = A_jj − A_ii: K_ij/A_ij for the K that diagonalise every pair.

    Skew; bounded by 1/|A_ij|, so that a degenerate pair is turned and not blown up.
    """
    xp = namespace(matrix)
    d = diagonal(matrix)
    # Equal eigenvalues get an order, at the size of rounding, so that the result is skew.
    extent = xp.max(matrix, axis=(-2, -1)) - xp.min(matrix, axis=(-2, -1)) + least_squared(d)
    scale = xp.max(abs(d), axis=-1) + extent
    order = (scale * (2 * epsilon(d)))[..., None] * xp.arange(d.shape[-1], dtype=d.dtype)
    d = d + order
    gap = d[..., None, :] - d[..., :, None]
    ordered = xp.sort(d, axis=-1)
    if bool((ordered[..., 1:] == ordered[..., :-1]).any()):  # made equal by just that
        gap = xp.where(gap == 0, order[..., None, :] - order[..., :, None], gap)
    own = np.arange(d.shape[-1])
    gap[..., own, own] = float(xp.finfo(d.dtype).max) ** 0.25
    # In place, as 2/(δ(1 + √(1 + (2A_ij/δ)²))): a step is made of passes over n × n arrays.
    inverse = 2 / gap
    gap[...] = matrix
    gap *= inverse
    gap *= gap
    gap += 1
    gap **= 0.5
    gap += 1
    inverse /= gap
    inverse[..., own, own] = 0
    return inverse


def _told_apart(mean: Array, variance: Array, noise: Any, g: Array) -> Array | None:
    """Part of each angle to turn by: 1 but for pairs with a gap of few standard errors, g at least.

    Their angles are noise, which would turn the vectors of eigenvalues that cross into each other,
    unseen; the rest of their off-diagonal entries waits in the mean. None where all are 1.
    """
    xp, d = namespace(mean), diagonal(mean)
    width = xp.mean(variance, axis=(-2, -1), keepdims=True) * per_member(ALIKE**2 * noise, mean)
    ordered = xp.sort(d, axis=-1)
    gaps = ordered[..., 1:] - ordered[..., :-1]
    if not bool((gaps * gaps < width[..., 0]).any()):
        return None
    gap = (d[..., None, :] - d[..., :, None]) ** 2
    alike = gap < width
    part = xp.where(alike, gap, 1 + 0 * gap) / xp.where(alike, width, 1 + 0 * gap)
    return xp.maximum(part**4, g)


def newton_angles(matrix: Array) -> Array:
    """Skew K: the angles (as tangents) at which every pair of rows of a symmetric A is diagonal."""
    return _inverse_gaps(matrix) * off_diagonal(matrix)


def _turned(
    state: State, mean: Array, angles: Array, worth: Any, left: Array | None = None
) -> tuple[Array, Array]:
    """Basis and mean turned by K where ‖K‖_F² is above `worth`: X exp(K), exp(−K) H̄ exp(K).

    `left` is what K was not to take of H̄ beside its diagonal.
    """
    size = to_host(frobenius_squared(angles))
    turns = size > worth
    if not turns.any():
        return state.basis, mean
    square = angles @ angles.mT
    second = to_host(frobenius_squared(square))
    small = second <= SMALL_TURN**2 * epsilon(mean) ** (2 / 3)
    exact = None
    if not small.all():
        exact = _exactly(state.basis, mean, angles, size > LARGE_TURN**2)
    if not small.any():
        moved = exact
    else:
        visible = bool(second.max() > 4 * mean.shape[-1] * epsilon(mean))
        moved = _by_series(state, mean, angles, square, visible)
        if left is not None:
            moved = (moved[0], moved[1] + left)
        moved = moved if exact is None else select(small, moved, exact)
    return select(turns, moved, (state.basis, mean))  # type: ignore[no-any-return]


def _by_series(
    state: State, mean: Array, angles: Array, square: Array, visible: bool
) -> tuple[Array, Array]:
    """The turn K + √(I + K²) by a series in K² = −`square`, and what it leaves of H̄: a diagonal.

    The second term, K⁴, counts where it is `visible`, never with more than seven of its digits;
    `square` is spent.
    """
    xp, basis = namespace(mean), state.basis
    coarse = xp.astype(square, xp.float32) if visible else None
    square *= -0.5
    square += angles
    if coarse is not None:
        square -= xp.astype(0.125 * (coarse @ coarse.mT), square.dtype)
    if np.max(state.steps) % POLISH_EVERY == 0:
        square += 0.5 * (identity_like(mean) - basis.mT @ basis)
    moved = basis @ square
    moved += basis
    pushed = diagonal(mean) - xp.linalg.vecdot(mean, angles)
    left, own = xp.zeros_like(mean), np.arange(mean.shape[-1])
    left[..., own, own] = pushed
    return moved, left


def _exactly(basis: Array, mean: Array, angles: Array, large: np.ndarray) -> tuple[Array, Array]:
    turn = cayley(namespace(mean).zeros_like(mean) + identity_like(mean), angles)
    if large.any():
        turn = select(large, _matched(mean), turn)
    mean = turn.mT @ mean @ turn
    return basis @ turn, 0.5 * (mean + mean.mT)


def _matched(mean: Array) -> Array:
    """Eigenvectors of H̄, each in the place and with the sign of the column it is closest to."""
    turn = namespace(mean).linalg.eigh(mean)[1]
    order, sign = continued(turn, turn.shape[-1], settled=True)
    turn = turn if order is None else taken(turn, order)
    return _proper(turn * sign[..., None, :])


def _reset(
    state: State, innovation: Array, count: int, frame: Frame, weight: float
) -> tuple[Array, Frame]:
    """The eigenbasis of the `count` observations since a jump, whose mean innovation is given.

    Columns keep their place where all vectors are still there, their rank where they are not.
    """
    xp = namespace(frame.mean)
    rank = xp.argsort(xp.argsort(diagonal(frame.mean), axis=-1), axis=-1)
    values, turn = xp.linalg.eigh(frame.mean + innovation)
    values, turn = taken(values, rank), taken(turn, rank)
    order, _ = continued(turn, turn.shape[-1], settled=True)
    if order is not None:
        same = taken(turn, order)
        known = to_host(abs(diagonal(same))).min(axis=-1) > CLOSE
        values, turn = select(known, (taken(values, order), same), (values, turn))
    sign = xp.where(diagonal(turn) < 0, -xp.ones_like(values), xp.ones_like(values))
    identity = identity_like(frame.mean)
    mean_variance = xp.mean(frame.variance, axis=(-2, -1), keepdims=True)
    # The noise does not jump with the signal, but its entries belong to the old frame.
    return state.basis @ _proper(turn * sign[..., None, :]), Frame(
        values[..., None] * identity,
        mean_variance + 0 * identity,
        0 * frame.mean,
        restarted(weight, count, frame.gain),
        after_jump(frame.alarm, state.steps),
        quotients.start(frame.gain.count.shape, 1),
    )


def _proper(turn: Array) -> Array:
    """`turn` of determinant 1: where it is −1, the column least like the old one is reversed."""
    xp = namespace(turn)
    weakest = xp.argmin(abs(diagonal(turn)), axis=-1, keepdims=True)
    columns = xp.arange(turn.shape[-1], device=None if xp is np else turn.device)
    wrong = (xp.linalg.det(turn) < 0)[..., None] & (columns == weakest)
    return xp.where(wrong[..., None, :], -turn, turn)
