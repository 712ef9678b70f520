"""The leading k columns of a signal that moves or is noisy: a running mean, seen through q columns.

The mean M is kept as X Λ Xᵀ on q = k + p columns, at the level of the bulk, which is the Rayleigh
quotient of a fixed random column. An observation adds to its image, Z = (1 − g)XΛ + gCX, and the
next X and Λ are the singular vectors and values of Z: M becomes (ZZᵀ)^½, a smooth map in which
differences die out while the mean is long. (Leading eigenvectors of M would cut through the bulk,
where there is no gap, and let every rounding grow.) To first order X moves by RΛ⁻¹: Newton's step
for a flat bulk.
"""

from __future__ import annotations

from dataclasses import replace
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
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    select,
    to_host,
)
from bracketflow.geometry import orthonormalise, random_basis, upright
from bracketflow.oracles import Operator
from bracketflow.sharding import over_rows, row_count, shards
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
from bracketflow.tracker.turn import (
    LEAST,
    evened,
    followed,
    identified,
    levels,
    places,
    polished,
    raised,
    singular,
)
from bracketflow.tracker.view import View, looked

OVERSAMPLING = 3  # extra columns for each one asked for
SOUND = 256  # condition of ZᵀZ up to which U is orthonormal to rounding
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
    n, k = row_count(basis), basis.shape[-1]
    ensemble = tuple(basis.shape[:-2])
    p = min(OVERSAMPLING * k, n - k)
    random = random_basis(
        n, min(p + 1, n), rng=0 if rng is None else rng, ensemble=ensemble, like=basis
    )
    extra, reference = filled(basis, random[..., :p]), contiguous(random[..., -1:])
    xp = namespace(basis)
    values = xp.zeros_like(xp.concat([basis, extra], axis=-1)[..., 0, :])
    return Mean(
        extra,
        reference,
        0 * reference,
        values,
        values[..., :k],
        values[..., None, :] + 0 * basis[..., 0, :, None],
        0 * basis[..., 0, :],
        0 * basis,
        _nothing(xp.concat([basis, extra], axis=-1)),
        np.ones(ensemble),
        0 * values[..., 0],
        places(values, k),
        np.zeros((*ensemble, k), dtype=np.int64),
        start_gain(ensemble),
        quiet(ensemble, basis),
    )


def filled(basis: Array, candidates: Array) -> Array:
    """`candidates` made orthonormal and orthogonal to `basis`."""
    for _ in range(2):
        candidates = candidates - basis @ over_rows(basis.mT @ candidates)
        candidates = orthonormalise(candidates)
    return contiguous(candidates)


def _nothing(columns: Array) -> Array:
    """No image pending: no columns, but in an ensemble, whose shapes must not change, zeros."""
    return columns[..., :0] if columns.ndim == 2 else 0 * columns


def forgotten(mean: Mean) -> Mean:
    """The columns alone, with nothing averaged in them."""
    return mean._replace(
        lean=0 * mean.lean,
        pending=_nothing(mean.pending),
        carry=np.ones_like(mean.carry),
        anchor=places(mean.values, mean.lean.shape[-1]),
        gain=start_gain(mean.gain.count.shape),
    )


def restored(memory: Any) -> Mean:
    """A `Mean` from nested tuples."""
    mean = Mean(*memory)
    return mean._replace(gain=Gain(*mean.gain), alarm=Alarm(*mean.alarm))


class Sums(NamedTuple):
    """What an observation asks of sums over rows: all of it in one message."""

    innovation: Any
    """‖innovation‖²."""
    change: Any
    """‖Δ image of the reference‖²."""
    images: Array
    """Squares of the k columns' images."""
    along: Any
    """<move, lean>."""
    moves: Array
    leans: Array
    """Squares of their columns."""
    rest: Any
    mapped: Any
    """‖r‖² and <r, (C − level)r> of the part r of the reference outside of X."""
    residual: Array
    """RᵀR of the probe; empty when one process holds all rows, which then need not make it."""
    within: Array
    """XᵀP of all q columns and their pending images; empty while the columns do not turn."""
    columns: Array
    pending: Array
    """XᵀX and PᵀP where rows are spread: what makes ZᵀZ before Z is known."""


class News(NamedTuple):
    """What an observation brings."""

    innovation: Array
    move: Array
    pending: Array
    carry: Any
    turns: bool
    """Whether enough has come in for the columns to turn."""
    sums: Sums


def step(
    operator: Operator, state: State, mean: Mean, forget: float | None
) -> tuple[Array, Probe, Mean, Any]:
    """One observation of all q columns and the reference: basis, probe, memory, Sums.change."""
    expected = _expected(state.basis, mean)
    probe, view = looked(operator, state, mean.extra, mean.reference, expected)
    weight = operator.weight
    g = fraction(mean.gain, weight)
    news = _news(probe, view, mean, g, expected, view.foreseen)
    if shards() is not None:
        probe = replace(probe, gram=news.sums.residual)
    size = to_host(news.sums.innovation) * weight
    floor = (8 * view.rounding) ** 2 * weight
    verdict = heard(mean.alarm, mean.gain, size, news.innovation, floor)
    basis, memory = _absorbed(state, view, mean, news, g, weight, forget)
    memory = memory._replace(alarm=listened(mean.alarm, mean.gain, size))
    if verdict is not None:
        kept = (state.basis, mean._replace(alarm=verdict.waiting))
        basis, memory = select(verdict.held, kept, (basis, memory))
        if verdict.jumped.any() and forget is None:
            fresh = _reset(state, probe, view, mean, weight, forget)
            basis, memory = select(verdict.jumped, fresh, (basis, memory))
    return basis, probe, memory._replace(image=view.reference), news.sums.change


def _news(
    probe: Probe, view: View, mean: Mean, g: Any, expected: Array, foreseen: Array | None
) -> News:
    """What an observation taken with gain g brings, and the sums over rows it is judged by."""
    k = probe.basis.shape[-1]
    innovation = view.image[..., :k] - expected
    if foreseen is None:
        inside = over_rows(probe.basis.mT @ innovation)
    else:
        inside = view.rayleigh[..., :k, :] - foreseen
    move = _move(probe.basis, innovation, inside, mean)
    share = per_member(g, view.rayleigh)
    pending = share * view.image
    if mean.pending.shape[-1]:
        pending += (1 - share) * mean.pending
    carry = (1 - g) * mean.carry
    turns = bool(np.min(carry) <= 1 - TURN_AT)
    sums = _sums(probe, view, mean, innovation, move, pending if turns else None)
    return News(innovation, move, pending, carry, turns, sums)


def _sums(
    probe: Probe, view: View, mean: Mean, innovation: Array, move: Array, pending: Array | None
) -> Sums:
    """All sums over rows; with `pending` also those of a turn."""
    images = view.image[..., : probe.basis.shape[-1]]
    rest = mean.reference - view.columns @ view.along
    spread, nothing = shards() is not None, view.rayleigh[..., :0, :0]
    turn = (nothing, nothing, nothing)
    if pending is not None:
        columns = view.columns
        turn = (columns.mT @ pending, nothing, nothing)
        if spread:
            turn = (turn[0], columns.mT @ columns, pending.mT @ pending)
    return Sums(
        *over_rows(
            frobenius_squared(innovation),
            frobenius_squared(view.reference - mean.image),
            column_inner(images, images),
            inner(move, mean.lean),
            column_inner(move, move),
            column_inner(mean.lean, mean.lean),
            frobenius_squared(rest),
            inner(rest, view.reference - view.image @ view.along),
            probe.residual.mT @ probe.residual if spread else nothing,
            *turn,
        )
    )


def _absorbed(
    state: State,
    view: View,
    mean: Mean,
    news: News,
    g: Any,
    weight: float,
    forget: float | None,
) -> tuple[Array, Mean]:
    """Basis and memory after an observation taken with gain g.

    The columns turn when enough has come in; until then their images add up exactly.
    """
    share = per_member(g, view.rayleigh)
    sums, move = news.sums, news.move
    bulk = mean.bulk + share[..., 0, 0] * (_outside(sums) - mean.bulk)
    doubt = _doubt(sums, row_count(move))
    gain = learned(mean.gain, weight, sums.along, doubt, forget)
    variance, power = _noise(view, mean, weight, share, sums.images)
    move -= mean.lean
    move *= share
    move += mean.lean
    memory = mean._replace(
        pending=news.pending,
        carry=news.carry,
        bulk=bulk,
        variance=variance,
        power=power,
        lean=move,
        gain=gain,
    )
    return _turned(state, view.columns, memory, sums) if news.turns else (state.basis, memory)


def _turned(state: State, columns: Array, mean: Mean, sums: Sums) -> tuple[Array, Mean]:
    """The columns turned to the left singular vectors of the mean's image."""
    k = state.basis.shape[-1]
    kept = per_member(mean.carry, columns)[..., 0] * mean.values
    within = sums.within
    within = 0.5 * (within + within.mT) + kept[..., None] * identity_like(within)
    bulk = mean.bulk if columns.shape[-1] < row_count(columns) else None
    level, bulk = levels(within, bulk)
    within -= level * identity_like(within)
    scale = kept[..., None, :] - level
    image = columns * scale
    image += mean.pending
    values, turn, ritz = singular(within, _image_gram(image, scale, sums), k)
    inside = within @ turn
    steps = int(np.max(state.steps))
    settled = steps > CAUTIOUS_STEPS
    if steps > 0:
        values, ritz, inside, turn = identified(values, ritz, inside, turn, settled)
    anchor, left = followed(mean.anchor @ inside, values)
    since = np.where(left & settled, np.asarray(state.steps)[..., None] + 1, mean.since)
    moved = image @ turn
    if steps == 0:
        moved = upright(moved)
    if (to_host(values).max(axis=-1) ** 2 > SOUND * to_host(values).min(axis=-1) ** 2).any():
        moved = polished(moved)
    return contiguous(moved[..., :k]), mean._replace(
        extra=contiguous(moved[..., k:]),
        values=evened(bulk + raised(values + level[..., 0] - bulk), bulk, k, 1 - mean.carry),
        ritz=ritz + level[..., 0],
        lean=mean.lean @ inside[..., :k, :k],
        pending=_nothing(moved),
        carry=np.ones_like(mean.carry),
        anchor=anchor,
        since=since,
    )


def _outside(sums: Sums) -> Array:
    """Rayleigh quotient of the part of the reference that the columns do not reach; 0 for none."""
    return sums.mapped / namespace(sums.rest).where(sums.rest > LEAST, sums.rest, sums.rest + inf)


def _image_gram(image: Array, scale: Array, sums: Sums) -> Array:
    """ZᵀZ of the mean's image Z = XS + P; of spread rows from sums that are there already."""
    if shards() is None:
        return image.mT @ image
    across = scale.mT * sums.within
    return scale.mT * sums.columns * scale + across + across.mT + sums.pending


def _expected(basis: Array, mean: Mean) -> Array:
    """What the mean makes of the k columns."""
    k = basis.shape[-1]
    image = basis * (per_member(mean.carry, basis) * mean.values[..., None, :k])
    if mean.pending.shape[-1]:
        image += mean.pending[..., :k]
    return image


def _move(basis: Array, innovation: Array, inside: Array, mean: Mean) -> Array:
    """The whole move that an innovation asks of the k columns: R Λ⁻¹; `inside` is Xᵀ of it.

    Only out of the k columns: the others follow the noise, and what they see must decide nothing.
    """
    xp = namespace(innovation)
    k = innovation.shape[-1]
    outside = innovation - basis @ inside
    above = mean.values[..., None, :k] - mean.bulk[..., None, None]
    least = 0.05 * above[..., :1]
    least = xp.where(least > 0, least, abs(least) + inf)  # where nothing is known yet: no move
    outside /= xp.where(above > least, above, least)
    return outside


def _doubt(sums: Sums, n: int) -> Any:
    """Variance of <move, lean> if the move is noise, alike in all directions."""
    noise = sums.moves / (n - sums.moves.shape[-1])
    return namespace(noise).sum(noise * sums.leans, axis=-1)


def _noise(
    view: View, mean: Mean, weight: float, share: Array, squares: Array
) -> tuple[Array, Array]:
    """Running variance of H and mean ‖R e_i‖², for one observation of weight 1.

    `squares` are those of the k columns' images.
    """
    xp = namespace(share)
    k = mean.lean.shape[-1]
    # Eigenvalues are read relative to their mean: the noise of the reference is not theirs.
    common = xp.mean(diagonal(view.rayleigh) - mean.ritz, axis=-1)
    expected = mean.ritz + common[..., None]
    change = view.rayleigh.mT - expected[..., None] * places(mean.values, k)
    fade = weight * (1 - share)
    rate = per_member(np.maximum(1 / np.maximum(mean.gain.count, 1), 1 / 1024), share)
    outside = squares - column_inner(view.rayleigh, view.rayleigh)
    power = fade[..., 0] * raised(outside)
    return (
        mean.variance + rate * (fade * change**2 - mean.variance),
        mean.power + rate[..., 0] * (power - mean.power),
    )


def _reset(
    state: State, probe: Probe, view: View, mean: Mean, weight: float, forget: float | None
) -> tuple[Array, Mean]:
    """Basis and memory after a jump: this observation alone."""
    empty = forgotten(mean)
    one = np.ones(mean.gain.count.shape)
    news = _news(probe, view, empty, one, _expected(state.basis, empty), None)
    basis, memory = _absorbed(state, view, empty, news, one, weight, forget)
    return basis, memory._replace(alarm=after_jump(mean.alarm, state.steps))
