"""The leading k columns of a signal that moves or is noisy: a running mean, seen through q columns.

The mean is kept as X Λ Xᵀ on q = k + p columns. One observation adds g(XHXᵀ + RXᵀ + XRᵀ); the next
X are the leading eigenvectors of the sum in span[X, R], where all that was never seen counts as a
level between the bulk (the Rayleigh quotient of a fixed random column) and the lowest Λ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    contiguous,
    diagonal,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    select,
    to_host,
)
from bracketflow.geometry import random_basis, taken, upright
from bracketflow.oracles import Operator, observe
from bracketflow.tracker.gain import (
    CAUTIOUS_STEPS,
    Alarm,
    Gain,
    after_jump,
    fraction,
    heard,
    learned,
    listened,
    per_member,
    quiet,
    start_gain,
)
from bracketflow.tracker.identity import continued

OVERSAMPLING = 3  # extra columns for each one asked for
DEFECT = 32  # of XᵀX, in roundings, that is taken off
APART = 0.2  # of its height: a gap below the top k at which a column cannot be leaving
TURN_AT = 0.02  # part of the mean that must be new before the columns turn


class Mean(NamedTuple):
    """Memory of the leading tracker."""

    extra: Array
    """The p oversampled columns."""
    reference: Array
    """One fixed random column: the level of the bulk, and whether the signal stands still."""
    image: Array
    """The reference's last image, less its part along the reference."""
    values: Array
    """Λ of all q columns, above the level of the reference."""
    variance: Array
    """Variance of the entries of H, k × q, for an observation of weight 1."""
    power: Array
    """Mean ‖R e_i‖² for an observation of weight 1."""
    lean: Array
    """Where a larger gain would have put the k columns."""
    pending: Array
    """The mean is carry · XΛXᵀ and this image of X, which came in since the columns turned."""
    carry: Any
    rounding: Any
    """The largest rounding of a product in `pending`."""
    anchor: Array
    """The k columns as they last stood apart from the others, written in the q columns of now."""
    since: Any
    """Step at which the vector in each of the k columns came in."""
    gain: Gain
    alarm: Alarm


def start(basis: Array, rng: Any) -> Mean:
    """Memory before the first observation; the columns beyond k come from `rng`, default 0."""
    n, k = basis.shape[-2:]
    ensemble = tuple(basis.shape[:-2])
    p = min(OVERSAMPLING * k, n - k)
    random = random_basis(
        n, min(p + 1, n), rng=0 if rng is None else rng, ensemble=ensemble, like=basis
    )
    extra = filled(basis, random[..., :p])
    xp = namespace(basis)
    values = xp.zeros_like(xp.concat([basis, extra], axis=-1)[..., 0, :])
    return Mean(
        extra,
        random[..., -1:],
        0 * random[..., -1:],
        values,
        values[..., None, :] + 0 * basis[..., 0, :, None],
        0 * basis[..., 0, :],
        0 * basis,
        _nothing(xp.concat([basis, extra], axis=-1)),
        np.ones(ensemble),
        np.zeros(ensemble),
        _places(values, k),
        np.zeros((*ensemble, k), dtype=np.int64),
        start_gain(ensemble),
        quiet(ensemble, basis),
    )


def filled(basis: Array, candidates: Array) -> Array:
    """`candidates` made orthonormal and orthogonal to `basis`."""
    xp = namespace(basis)
    for _ in range(2):
        candidates = candidates - basis @ (basis.mT @ candidates)
        candidates = xp.linalg.qr(candidates)[0]
    return contiguous(candidates)


def _nothing(columns: Array) -> Array:
    """No image pending: no columns, but in an ensemble, whose shapes must not change, zeros."""
    return columns[..., :0] if columns.ndim == 2 else 0 * columns


def _places(values: Array, k: int) -> Array:
    """The k columns in the frame of all q: [I 0]."""
    return identity_like(values)[:k] + 0 * values[..., None, :]


def forgotten(mean: Mean) -> Mean:
    """The columns alone, with nothing averaged in them."""
    return mean._replace(
        lean=0 * mean.lean,
        pending=_nothing(mean.pending),
        carry=np.ones_like(mean.carry),
        rounding=np.zeros_like(mean.carry),
        anchor=_places(mean.values, mean.lean.shape[-1]),
        gain=start_gain(mean.gain.count.shape),
    )


def restored(memory: Any) -> Mean:
    """A `Mean` from nested tuples."""
    mean = Mean(*memory)
    return mean._replace(gain=Gain(*mean.gain), alarm=Alarm(*mean.alarm))


class View(NamedTuple):
    """One block product on [X, z], centred at the Rayleigh quotient of z."""

    columns: Array
    centred: Array
    rayleigh: Array
    residual: Array
    """R of the k columns."""
    image: Array
    rounding: Any


def step(
    operator: Operator, state: State, mean: Mean, forget: float | None
) -> tuple[Array, Probe, Mean]:
    """One observation of all q columns and the reference: basis, probe and memory."""
    k = state.basis.shape[-1]
    block = namespace(state.basis).concat([state.basis, mean.extra, mean.reference], axis=-1)
    whole = observe(operator, State(block, seen=state.seen))
    probe, view = _of_columns(whole, state.basis), _view(whole, k)
    g = fraction(mean.gain, operator.weight)
    innovation = _innovation(state.basis, view, mean)
    size = to_host(frobenius_squared(innovation)) * operator.weight
    floor = (8 * view.rounding) ** 2 * operator.weight
    verdict = heard(mean.alarm, mean.gain, size, innovation, floor)
    basis, memory = _absorbed(state, view, mean, innovation, g, operator.weight, forget)
    memory = memory._replace(alarm=listened(mean.alarm, mean.gain, size))
    if verdict is not None:
        kept = (state.basis, mean._replace(alarm=verdict.waiting))
        basis, memory = select(verdict.held, kept, (basis, memory))
        if verdict.jumped.any():
            fresh = _reset(state, view, mean, operator.weight, forget)
            basis, memory = select(verdict.jumped, fresh, (basis, memory))
    return basis, probe, memory._replace(image=view.image)


def _of_columns(whole: Probe, basis: Array) -> Probe:
    """The probe of the first k columns, centred at their own level."""
    k = basis.shape[-1]
    rayleigh = whole.rayleigh[..., :k, :k]
    above = namespace(basis).sum(diagonal(rayleigh), axis=-1) / k
    wide = above[..., None, None]
    return Probe(
        basis,
        whole.centred[..., :k] - wide * basis,
        whole.background + above,
        rayleigh - wide * identity_like(rayleigh),
        whole.matvecs,
    )


def _view(whole: Probe, k: int) -> View:
    columns, reference = whole.basis[..., :-1], whole.basis[..., -1:]
    rayleigh, level = whole.rayleigh[..., :-1, :-1], whole.rayleigh[..., -1:, -1:]
    return View(
        columns,
        _less(whole.centred[..., :-1], level * columns),
        rayleigh - level * identity_like(rayleigh),
        _less(whole.centred[..., :k], columns @ rayleigh[..., :k]),
        whole.centred[..., -1:] - level * reference,
        to_host(whole.rounding + 64 * epsilon(columns) * whole.size),
    )


def _less(array: Array, spent: Array) -> Array:
    """`array` − `spent`, in the place of the latter: large arrays are slow to allocate."""
    spent *= -1
    spent += array
    return spent


def _absorbed(
    state: State,
    view: View,
    mean: Mean,
    innovation: Array,
    g: Any,
    weight: float,
    forget: float | None,
) -> tuple[Array, Mean]:
    """Basis and memory after an observation taken with gain g.

    The columns turn when enough has come in; until then their images add up exactly.
    """
    share = per_member(g, view.rayleigh)
    k = state.basis.shape[-1]
    pending = share * view.centred
    if mean.pending.shape[-1]:
        pending += (1 - share) * mean.pending
    carry = (1 - g) * mean.carry
    move = _move(view, innovation, mean)
    rounding = np.maximum(mean.rounding, view.rounding / 4)
    doubt = _doubt(move, mean.lean, view.columns.shape)
    gain = learned(mean.gain, weight, inner(move, mean.lean), doubt, forget)
    variance, power = _noise(view, mean, weight, share)
    move -= mean.lean
    move *= share
    move += mean.lean
    memory = mean._replace(
        rounding=rounding,
        pending=pending,
        carry=carry,
        variance=variance,
        power=power,
        lean=move,
        gain=gain,
    )
    if np.min(carry) > 1 - TURN_AT:
        return state.basis, memory
    return _turned(state, view.columns, memory, k)


def _turned(state: State, columns: Array, mean: Mean, k: int) -> tuple[Array, Mean]:
    """The columns turned to the leading eigenvectors of the mean."""
    within = columns.mT @ mean.pending
    carried = per_member(mean.carry, within) * (mean.values[..., None] * identity_like(within))
    blend = carried + 0.5 * (within + within.mT)
    residual = _less(mean.pending, columns @ within)
    level, floor = unseen_level(diagonal(blend), k), per_member(mean.rounding, blend)
    values, inside, outside = _leading(blend, residual, level, floor)
    settled = bool(np.max(state.steps) > CAUTIOUS_STEPS)
    if np.max(state.steps) > 0:
        values, inside, outside = _identified(values, inside, outside, k, settled)
    anchor, left = _followed(mean.anchor @ inside, values)
    since = np.where(left & settled, np.asarray(state.steps)[..., None] + 1, mean.since)
    moved = columns @ inside
    moved += residual @ outside
    if np.max(state.steps) == 0:
        moved = upright(moved)
    # A residual is as orthogonal to X as X is orthonormal, and shorter: defects would grow.
    defect = identity_like(blend) - moved.mT @ moved
    if to_host(frobenius_squared(defect)).max() > (DEFECT * epsilon(moved)) ** 2 * k:
        moved += moved @ (0.5 * defect)
    return contiguous(moved[..., :k]), mean._replace(
        extra=contiguous(moved[..., k:]),
        values=values,
        lean=mean.lean @ inside[..., :k, :k],
        pending=_nothing(moved),
        carry=np.ones_like(mean.carry),
        rounding=np.zeros_like(mean.carry),
        anchor=anchor,
        since=since,
    )


def _followed(anchor: Array, values: Array) -> tuple[Array, Any]:
    """The anchor for the next turn, and which of its columns now lie outside the top k.

    While a column's value is close to those below the top k, noise may turn it out of them little
    by little; otherwise only a swap can.
    """
    xp = namespace(values)
    k = anchor.shape[-2]
    squares = anchor * anchor
    left = xp.sum(squares[..., k:], axis=-1) > 0.5
    height = values[..., :k] - unseen_level(values, k)[..., 0]
    gap = values[..., :k] - xp.max(values[..., k:], axis=-1, keepdims=True)
    lost = xp.sum(squares, axis=-1) < 0.5
    renewed = left | lost | (gap > APART * height)
    return xp.where(renewed[..., None], _places(values, k), anchor), to_host(left)


def unseen_level(values: Array, k: int) -> Array:
    """Half-way from the bulk (0) to the lower half of the extra columns."""
    xp = namespace(values)
    values = xp.sort(values, axis=-1)
    lower = max((values.shape[-1] - k) // 2, 1)
    return 0.5 * xp.mean(values[..., :lower], axis=-1)[..., None, None]


def _leading(
    blend: Array, residual: Array, level: Array, floor: Array
) -> tuple[Array, Array, Array]:
    """Leading eigenpairs, descending, of the mean in span[X, R]: Λ, and V, W with X′ = XV + RW."""
    xp = namespace(blend)
    q = blend.shape[-1]
    coupling, to_unit, active = _factor(residual, floor)
    rest = xp.where(active, level[..., 0], _below(blend, coupling))
    upper = xp.concat([blend, coupling.mT], axis=-1)
    lower = xp.concat([coupling, rest[..., None] * identity_like(blend)], axis=-1)
    values, vectors = xp.linalg.eigh(xp.concat([upper, lower], axis=-2))
    values, vectors = xp.flip(values[..., q:], axis=-1), xp.flip(vectors[..., q:], axis=-1)
    return values, vectors[..., :q, :], to_unit @ vectors[..., q:, :]


def _factor(residual: Array, floor: Array) -> tuple[Array, Array, Array]:
    """B and P with R = (RP)B and RP orthonormal, from RᵀR; and which columns of RP are not zero.

    Columns are scaled first, for they shrink at very different rates as they converge; those
    below `floor` are rounding and count as zero.
    """
    xp = namespace(residual)
    gram = residual.mT @ residual
    norms = xp.sqrt(diagonal(gram))
    real = norms > floor[..., 0]
    inverse = xp.where(real, 1 / xp.where(real, norms, 1.0), 0.0)
    squares, vectors = xp.linalg.eigh(gram * inverse[..., None] * inverse[..., None, :])
    active = squares > epsilon(residual) ** 0.5 * residual.shape[-1]
    root = xp.sqrt(xp.where(active, squares, 1.0))
    kept = xp.astype(active, residual.dtype)[..., None, :] * vectors
    factor = (kept * root[..., None, :]).mT * norms[..., None, :]
    return factor, inverse[..., None] * (kept / root[..., None, :]), active


def _below(blend: Array, coupling: Array) -> Array:
    """A level below every eigenvalue of the sum: for directions that do not exist."""
    size = frobenius_squared(blend) ** 0.5 + frobenius_squared(coupling) ** 0.5
    return -2 * size[..., None]


def _identified(
    values: Array, inside: Array, outside: Array, k: int, settled: bool
) -> tuple[Array, Array, Array]:
    """The leading k in the places, and with the signs, of the columns they continue."""
    order, sign = continued(inside[..., :k, :k], values.shape[-1], settled=settled)
    if order is not None:
        values, inside, outside = (taken(part, order) for part in (values, inside, outside))
    sign = sign[..., None, :]
    return values, inside * sign, outside * sign


def _innovation(basis: Array, view: View, mean: Mean) -> Array:
    """Image of the k columns less what the mean makes of them."""
    k = basis.shape[-1]
    innovation = view.centred[..., :k] - basis * (
        per_member(mean.carry, basis) * mean.values[..., None, :k]
    )
    if mean.pending.shape[-1]:
        innovation -= mean.pending[..., :k]
    return innovation


def _move(view: View, innovation: Array, mean: Mean) -> Array:
    """The whole move that an innovation asks of the k columns, as if all else were at one level.

    Only out of the span of X, where noise is alike in all directions, unless X spans everything.
    """
    xp = namespace(innovation)
    k = innovation.shape[-1]
    columns = view.columns
    if columns.shape[-1] < columns.shape[-2]:
        innovation = innovation - columns @ (columns.mT @ innovation)
    above = mean.values[..., None, :k] - unseen_level(mean.values, k)
    least = 0.05 * above[..., :1]
    least = xp.where(least > 0, least, xp.ones_like(least))
    return innovation / xp.where(above > least, above, least)


def _doubt(move: Array, lean: Array, shape: tuple[int, ...]) -> Any:
    """Variance of <move, lean> if the move is noise, alike in all directions."""
    xp = namespace(lean)
    n, q = shape[-2:]
    noise = xp.sum(move * move, axis=-2) / (n - q if q < n else n)
    return xp.sum(noise * xp.sum(lean * lean, axis=-2), axis=-1)


def _noise(view: View, mean: Mean, weight: float, share: Array) -> tuple[Array, Array]:
    """Running variance of H and mean ‖R e_i‖², for one observation of weight 1."""
    k = mean.lean.shape[-1]
    identity = identity_like(view.rayleigh)
    change = view.rayleigh - mean.values[..., None] * identity
    # Eigenvalues are read relative to their mean: the noise of the reference is not theirs.
    common = namespace(change).mean(diagonal(change)[..., :k], axis=-1)
    change = change - common[..., None, None] * identity
    fade = weight * (1 - share)
    rate = per_member(np.maximum(1 / np.maximum(mean.gain.count, 1), 1 / 1024), share)
    spread = fade * change[..., :k, :] ** 2
    power = fade[..., 0] * namespace(share).sum(view.residual * view.residual, axis=-2)
    return (
        mean.variance + rate * (spread - mean.variance),
        mean.power + rate[..., 0] * (power - mean.power),
    )


def _reset(
    state: State, view: View, mean: Mean, weight: float, forget: float | None
) -> tuple[Array, Mean]:
    """Basis and memory after a jump: this observation alone."""
    empty = forgotten(mean)
    one = np.ones(mean.gain.count.shape)
    innovation = _innovation(state.basis, view, empty)
    basis, memory = _absorbed(state, view, empty, innovation, one, weight, forget)
    return basis, memory._replace(alarm=after_jump(mean.alarm, state.steps))
