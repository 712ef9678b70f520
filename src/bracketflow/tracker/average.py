"""The leading k columns of a signal that moves or is noisy: a running mean, seen through q columns.

The mean M is kept as X Λ Xᵀ on q = k + p columns, at the level of the bulk, which is the Rayleigh
quotient of a fixed random column. An observation adds to its image, Z = (1 − g)XΛ + gCX, and the
next X and Λ are the singular vectors and values of Z: M becomes (ZZᵀ)^½, a smooth map in which
differences die out. (Leading eigenvectors of M would cut through the bulk, where there is no gap,
and let every rounding grow.) To first order X moves by RΛ⁻¹: Newton's step for a flat bulk.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    column_inner,
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
from bracketflow.oracles import Operator, multiplied, refuse_bad
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
SOUND = 256  # condition of ZᵀZ up to which U is orthonormal to rounding
STRAY = 2.0  # sizes of the noise in an extra column's image by which the bulk is taken lower
EVEN = (0.05, 0.1)  # part of the mean that is new: none and all of the extra columns are evened
LEAST = 1e-3  # of the spread: the least that Λ is raised above zero
APART = 0.2  # of its height: a gap below the top k at which a column cannot be leaving
TURN_AT = 0.04  # part of the mean that must be new before the columns turn


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
    ritz: Array
    """Averaged eigenvalues of the k columns, at that level: without the noise that is in Λ."""
    variance: Array
    """Variance of the entries of H, k × q, for an observation of weight 1."""
    power: Array
    """Mean ‖R e_i‖² for an observation of weight 1."""
    lean: Array
    """Where a larger gain would have put the k columns."""
    pending: Array
    """The mean is carry · XΛXᵀ and this image of X, which came in since the columns turned."""
    carry: Any
    bulk: Array
    """Averaged level of all that is outside of the q columns, above that of the reference."""
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
        values[..., :k],
        values[..., None, :] + 0 * basis[..., 0, :, None],
        0 * basis[..., 0, :],
        0 * basis,
        _nothing(xp.concat([basis, extra], axis=-1)),
        np.ones(ensemble),
        0 * values[..., 0],
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
        anchor=_places(mean.values, mean.lean.shape[-1]),
        gain=start_gain(mean.gain.count.shape),
    )


def restored(memory: Any) -> Mean:
    """A `Mean` from nested tuples."""
    mean = Mean(*memory)
    return mean._replace(gain=Gain(*mean.gain), alarm=Alarm(*mean.alarm))


class View(NamedTuple):
    """One block product on [X, z], at the level of z, its Rayleigh quotient."""

    columns: Array
    image: Array
    """(C − level)X of all q columns."""
    rayleigh: Array
    """Xᵀ(C − level)X of the k columns, q × k."""
    reference: Array
    """(C − level)z."""
    bulk: Array
    """Rayleigh quotient of C − level for the part of z outside of X."""
    rounding: Any


def step(
    operator: Operator, state: State, mean: Mean, forget: float | None
) -> tuple[Array, Probe, Mean]:
    """One observation of all q columns and the reference: basis, probe and memory."""
    probe, view = _looked(operator, state, mean)
    weight = operator.weight
    innovation = _innovation(state.basis, view, mean)
    size = to_host(frobenius_squared(innovation)) * weight
    floor = (8 * view.rounding) ** 2 * weight
    verdict = heard(mean.alarm, mean.gain, size, innovation, floor)
    g = fraction(mean.gain, weight)
    basis, memory = _absorbed(state, view, mean, innovation, g, weight, forget)
    memory = memory._replace(alarm=listened(mean.alarm, mean.gain, size))
    if verdict is not None:
        kept = (state.basis, mean._replace(alarm=verdict.waiting))
        basis, memory = select(verdict.held, kept, (basis, memory))
        if verdict.jumped.any() and forget is None:
            fresh = _reset(state, view, mean, weight, forget)
            basis, memory = select(verdict.jumped, fresh, (basis, memory))
    return basis, probe, memory._replace(image=view.reference)


def _looked(operator: Operator, state: State, mean: Mean) -> tuple[Probe, View]:
    """The step's one product: the probe of the k columns, and the view of all."""
    xp = namespace(state.basis)
    basis, k = state.basis, state.basis.shape[-1]
    block = xp.concat([basis, mean.extra, mean.reference], axis=-1)
    columns, reference = block[..., :-1], block[..., -1:]
    with np.errstate(over="ignore", invalid="ignore"):
        product = multiplied(operator, block)
        level = inner(reference, product[..., -1:]) / frobenius_squared(reference)
        wide = level[..., None, None]
        image = -wide * columns
        image += product[..., :-1]
        looked = product[..., -1:] - wide * reference
        rayleigh = image.mT @ basis
        whole = Probe(block, image, level, rayleigh, block.shape[-1])
        inside, across = rayleigh[..., :k, :], image[..., :k].mT @ reference - basis.mT @ looked
        refuse_bad(whole, 0.5 * xp.concat([inside - inside.mT, across], axis=-1), state.seen)
    rounding = to_host(whole.rounding + 64 * epsilon(columns) * whole.size)
    outside = _outside(columns, image, reference, looked)
    return _of_columns(whole, basis), View(columns, image, rayleigh, looked, outside, rounding)


def _outside(columns: Array, image: Array, reference: Array, looked: Array) -> Array:
    """Rayleigh quotient of the part of the reference that the columns do not reach; 0 for none."""
    along = columns.mT @ reference
    rest, mapped = reference - columns @ along, looked - image @ along
    size = frobenius_squared(rest)
    return inner(rest, mapped) / namespace(size).where(size > LEAST, size, size + inf)


def _of_columns(whole: Probe, basis: Array) -> Probe:
    """The probe of the first k columns, centred at their own level."""
    k = basis.shape[-1]
    rayleigh = whole.rayleigh[..., :k, :]
    above = namespace(basis).mean(diagonal(rayleigh), axis=-1)
    wide = above[..., None, None]
    return Probe(
        basis,
        whole.centred[..., :k] - wide * basis,
        whole.background + above,
        0.5 * (rayleigh + rayleigh.mT) - wide * identity_like(rayleigh),
        whole.matvecs,
    )


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
    pending = share * view.image
    if mean.pending.shape[-1]:
        pending += (1 - share) * mean.pending
    carry = (1 - g) * mean.carry
    bulk = mean.bulk + share[..., 0, 0] * (view.bulk - mean.bulk)
    move = _move(state.basis, innovation, mean)
    gain = learned(mean.gain, weight, inner(move, mean.lean), _doubt(move, mean.lean), forget)
    variance, power = _noise(view, mean, weight, share)
    move -= mean.lean
    move *= share
    move += mean.lean
    memory = mean._replace(
        pending=pending,
        carry=carry,
        bulk=bulk,
        variance=variance,
        power=power,
        lean=move,
        gain=gain,
    )
    if np.min(carry) > 1 - TURN_AT:
        return state.basis, memory
    return _turned(state, view.columns, memory)


def _turned(state: State, columns: Array, mean: Mean) -> tuple[Array, Mean]:
    """The columns turned to the left singular vectors of the mean's image."""
    k = state.basis.shape[-1]
    kept = per_member(mean.carry, columns)[..., 0] * mean.values
    within = columns.mT @ mean.pending
    within = 0.5 * (within + within.mT) + kept[..., None] * identity_like(within)
    level, bulk = _levels(within, mean.bulk if columns.shape[-1] < columns.shape[-2] else None)
    level = level - STRAY * _stray(within, mean.pending, k)
    within -= level * identity_like(within)
    image = columns * (kept[..., None, :] - level)
    image += mean.pending
    values, turn, ritz = _singular(within, image, k)
    inside = within @ turn
    settled = bool(np.max(state.steps) > CAUTIOUS_STEPS)
    if np.max(state.steps) > 0:
        values, ritz, inside, turn = _identified(values, ritz, inside, turn, settled)
    anchor, left = _followed(mean.anchor @ inside, values)
    since = np.where(left & settled, np.asarray(state.steps)[..., None] + 1, mean.since)
    moved = image @ turn
    if np.max(state.steps) == 0:
        moved = upright(moved)
    if (to_host(values).max(axis=-1) ** 2 > SOUND * to_host(values).min(axis=-1) ** 2).any():
        moved = _polished(moved)
    return contiguous(moved[..., :k]), mean._replace(
        extra=contiguous(moved[..., k:]),
        values=_evened(bulk + _raised(values + level[..., 0] - bulk), k, 1 - mean.carry),
        ritz=ritz + level[..., 0],
        lean=mean.lean @ inside[..., :k, :k],
        pending=_nothing(moved),
        carry=np.ones_like(mean.carry),
        anchor=anchor,
        since=since,
    )


def _evened(values: Array, k: int, share: Any) -> Array:
    """Λ with that of the extra columns made equal where the part of the mean that is new is large.

    Columns that follow noise at unequal rates let roundings grow; in a long mean they do not.
    """
    xp = namespace(values)
    even = per_member(np.clip((share - EVEN[0]) / (EVEN[1] - EVEN[0]), 0.0, 1.0), values)[..., 0]
    extra = values[..., k:]
    extra = extra + even * (xp.mean(extra, axis=-1, keepdims=True) - extra)
    return xp.concat([values[..., :k], extra], axis=-1)


def _stray(within: Array, pending: Array, k: int) -> Array:
    """Size of what is new to the other columns in their images.

    With the bulk taken lower by it, columns that only follow noise are renewed and not thrown
    about, and differences between them die out.
    """
    outside = column_inner(pending, pending) - column_inner(within, within)
    power = namespace(within).mean(outside[..., k:], axis=-1)
    return _raised(power)[..., None, None] ** 0.5


def _levels(within: Array, bulk: Array | None) -> tuple[Array, Array]:
    """μ with XᵀMX − μ positive, and the level of the bulk; both the lowest where there is no bulk.

    Where M falls below the bulk its image must keep its sign, so μ is lower than both.
    """
    xp = namespace(within)
    values = xp.linalg.eigvalsh(within)
    lowest = values[..., :1]
    bulk = lowest if bulk is None else bulk[..., None]
    tiny = float(xp.finfo(within.dtype).smallest_normal) ** 0.5
    margin = LEAST * (values[..., -1:] - lowest) + tiny
    return (bulk - _raised(bulk - lowest) - margin)[..., None], bulk


def _singular(within: Array, image: Array, k: int) -> tuple[Array, Array, Array]:
    """Σ and T, descending, with ZT = U of Z = UΣVᵀ, and the Ritz values of M in the leading k.

    `within` is A = XᵀZ, Z = XA + R; M is taken to vanish outside of span[X, R], so that
    ZᵀMZ = A ZᵀZ + RᵀR A.
    """
    xp = namespace(image)
    gram = image.mT @ image
    squares, vectors = xp.linalg.eigh(gram)
    squares, vectors = xp.flip(squares, axis=-1), xp.flip(vectors, axis=-1)
    least = squares[..., :1] * (epsilon(image) * image.shape[-1])
    values = xp.sqrt(xp.where(squares > least, squares, least))
    turn = vectors / values[..., None, :]
    leading = turn[..., :k]
    inside = within @ leading
    mapped = within @ (gram @ leading) + gram @ inside - within @ (within @ inside)
    return values, turn, column_inner(leading, mapped)


def _raised(values: Array) -> Array:
    """max(v, 0): a column is never remembered as lower than what was not seen."""
    return namespace(values).where(values > 0, values, 0 * values)


def _polished(columns: Array) -> Array:
    """Nearly orthonormal `columns`, made so to rounding: X(3 − XᵀX)/2."""
    small = (DEFECT * epsilon(columns)) ** 2 * columns.shape[-1]
    for _ in range(4):
        defect = identity_like(columns) - columns.mT @ columns
        if to_host(frobenius_squared(defect)).max() <= small:
            break
        columns = columns + columns @ (0.5 * defect)
    return columns


def _followed(anchor: Array, values: Array) -> tuple[Array, Any]:
    """The anchor for the next turn, and which of its columns now lie outside the top k.

    While a column's value is close to those below the top k, noise may turn it out of them little
    by little; otherwise only a swap can.
    """
    xp = namespace(values)
    k = anchor.shape[-2]
    squares = anchor * anchor
    left = xp.sum(squares[..., k:], axis=-1) > 0.5
    gap = values[..., :k] - xp.max(values[..., k:], axis=-1, keepdims=True)
    lost = xp.sum(squares, axis=-1) < 0.5
    renewed = left | lost | (gap > APART * values[..., :k])
    return xp.where(renewed[..., None], _places(values, k), anchor), to_host(left)


def _identified(
    values: Array, ritz: Array, inside: Array, turn: Array, settled: bool
) -> tuple[Array, Array, Array, Array]:
    """The leading k in the places, and with the signs, of the columns they continue."""
    k = ritz.shape[-1]
    order, sign = continued(inside[..., :k, :k], values.shape[-1], settled=settled)
    if order is not None:
        ritz = taken(ritz, order[..., :k])
        values, inside, turn = (taken(part, order) for part in (values, inside, turn))
    sign = sign[..., None, :]
    return values, ritz, inside * sign, turn * sign


def _innovation(basis: Array, view: View, mean: Mean) -> Array:
    """Image of the k columns less what the mean makes of them."""
    k = basis.shape[-1]
    innovation = view.image[..., :k] - basis * (
        per_member(mean.carry, basis) * mean.values[..., None, :k]
    )
    if mean.pending.shape[-1]:
        innovation -= mean.pending[..., :k]
    return innovation


def _move(basis: Array, innovation: Array, mean: Mean) -> Array:
    """The whole move that an innovation asks of the k columns: R Λ⁻¹.

    Only out of the k columns: the others follow the noise, and what they see must decide nothing.
    """
    xp = namespace(innovation)
    k = innovation.shape[-1]
    outside = innovation - basis @ (basis.mT @ innovation)
    above = mean.values[..., None, :k] - mean.bulk[..., None, None]
    least = 0.05 * above[..., :1]
    least = xp.where(least > 0, least, xp.ones_like(least))
    outside /= xp.where(above > least, above, least)
    return outside


def _doubt(move: Array, lean: Array) -> Any:
    """Variance of <move, lean> if the move is noise, alike in all directions."""
    xp = namespace(lean)
    n, k = lean.shape[-2:]
    noise = column_inner(move, move) / (n - k)
    return xp.sum(noise * column_inner(lean, lean), axis=-1)


def _noise(view: View, mean: Mean, weight: float, share: Array) -> tuple[Array, Array]:
    """Running variance of H and mean ‖R e_i‖², for one observation of weight 1."""
    xp = namespace(share)
    k = mean.lean.shape[-1]
    inside = view.rayleigh.mT
    change = inside - mean.ritz[..., None] * _places(mean.values, k)
    # Eigenvalues are read relative to their mean: the noise of the reference is not theirs.
    common = xp.mean(diagonal(change[..., :k]), axis=-1)
    change = change - common[..., None, None] * _places(mean.values, k)
    fade = weight * (1 - share)
    rate = per_member(np.maximum(1 / np.maximum(mean.gain.count, 1), 1 / 1024), share)
    images = view.image[..., :k]
    outside = column_inner(images, images) - column_inner(view.rayleigh, view.rayleigh)
    power = fade[..., 0] * _raised(outside)
    return (
        mean.variance + rate * (fade * change**2 - mean.variance),
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
