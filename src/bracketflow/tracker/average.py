"""The leading k columns of a signal that moves or is noisy: a running mean, seen through q columns.

The mean M is kept as X Λ Xᵀ on q = k + p columns, at the level of the bulk, which is the Rayleigh
quotient of a fixed random column z. An observation adds to its image, Z = (1 − g)XΛ + gCX, and the
k columns follow at once, by Newton's step for a flat bulk, RΛ⁻¹, out of the span of all q. When
enough has come in, all columns turn: the next X and Λ are the singular vectors and values of Z. M
becomes (ZZᵀ)^½, a smooth map in which differences die out while the mean is long. (Leading
eigenvectors of M would cut through the bulk, where there is no gap, and let every rounding grow.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    any_member,
    column_inner,
    contiguous,
    contracted,
    diagonal,
    frobenius_squared,
    identity_like,
    namespace,
    select,
    to_host,
    trace,
)
from bracketflow.geometry import upright
from bracketflow.oracles import Operator
from bracketflow.sharding import over_rows, row_count, shards
from bracketflow.tracker.gain import (
    CAUTIOUS_STEPS,
    WARM_UP,
    after_jump,
    fraction,
    grown,
    heard,
    judged,
    listened,
    per_member,
    pulled,
)
from bracketflow.tracker.quotients import Quotients, Rise, leaning, lost, rising, watched
from bracketflow.tracker.running import Mean, forgotten
from bracketflow.tracker.turn import (
    enough,
    evened,
    followed,
    identified,
    levels,
    polished,
    raised,
    ritz_values,
    singular,
)
from bracketflow.tracker.view import View, looked

SOUND = 256  # condition of ZᵀZ up to which U is orthonormal to rounding
FOLLOW_AT = 0.04  # part of the mean that must be new before the k columns follow it,
TURN_AT = 0.12  # and before all columns turn
TURN_EVERY = 10  # observations at most before they turn: only then is a lag noticed


class Turn(NamedTuple):
    """Sums over rows for the columns [X, z] to turn by their images Z."""

    within: Array
    """[X, z]ᵀZ."""
    along: Array
    whole: Array
    """Xᵀ of z and of what the mean makes of it, q × 1."""
    square: Any
    """‖what the mean makes of z‖²."""
    evidence: Any
    """<move, lean>, column by column."""
    moves: Array
    leans: Array
    """Squares of their columns."""
    columns: Array
    images: Array
    """XᵀX and ZᵀZ where rows are spread."""


class Sums(NamedTuple):
    """What an observation asks of sums over rows: all of it in one message."""

    innovation: Any
    """‖innovation‖²."""
    change: Any
    """‖Δ image of the reference‖²."""
    residual: Array
    """RᵀR of the probe; empty when one process holds all rows, which then need not make it."""
    images: Array
    """Squares of the k columns' images; empty while they stay."""
    gram: Array
    cross: Array
    """XᵀX and XᵀZ of the k columns as they move; empty while they stay, and when all turn."""
    turn: Turn | None


class News(NamedTuple):
    """What an observation brings."""

    innovation: Array
    """What of the images of the k columns the mean did not foresee."""
    mean: Mean
    """The mean with its image in it."""
    move: Array | None
    """What the k columns are to move by, at a turn all since the last one; None if they stay."""
    sums: Sums


def step(
    operator: Operator, state: State, mean: Mean, forget: float | None
) -> tuple[Array, Probe, Mean, Any]:
    """One observation of all q columns and the reference: basis, probe, memory, Sums.change."""
    probe, view = looked(operator, state, mean.block)
    weight = operator.weight
    news = _news(probe, view, mean, weight)
    if shards() is not None:
        probe = replace(probe, gram=news.sums.residual)
    size = to_host(news.sums.innovation).astype(float) * weight
    floor = (8 * view.rounding) ** 2 * weight
    verdict = heard(mean.alarm, mean.gain, size, news.innovation, floor)
    alarm, image = listened(mean.alarm, mean.gain, size), contiguous(view.image[..., -1:])
    basis, memory = _absorbed(state, view, news, weight, forget)
    memory = memory._replace(alarm=alarm, image=image)
    jumped = lost(news.mean.quotients)
    if verdict is not None:
        kept = (state.basis, mean._replace(alarm=verdict.waiting))
        basis, memory = select(verdict.held, kept, (basis, memory))
        jumped = (jumped & ~verdict.held) | verdict.jumped
    if jumped.any() and forget is None:
        alone = _news(probe, view, forgotten(mean, state.basis), weight)
        fresh, after = _absorbed(state, view, alone, weight, forget)
        after = after._replace(alarm=after_jump(mean.alarm, state.steps), image=image)
        basis, memory = select(jumped, (fresh, after), (basis, memory))
    return basis, probe, memory, news.sums.change


def _news(probe: Probe, view: View, mean: Mean, weight: float) -> News:
    """What an observation brings, and the sums over rows it is judged by."""
    g = fraction(mean.gain, weight)
    share = per_member(g, view.image)
    former = mean.mapped if mean.mapped.shape[-1] else 0.0
    mapped = view.image - former
    innovation = contiguous(mapped[..., : probe.basis.shape[-1]])
    mapped *= share
    mapped += former
    inside = mean.inside + share * (view.rayleigh - mean.inside)
    carry = (1 - g) * mean.carry
    turns = any_member((carry <= 1 - TURN_AT) | ((mean.gain.count + 1) % TURN_EVERY == 0))
    follows = turns or any_member(np.ceil(carry / FOLLOW_AT) < np.ceil(mean.carry / FOLLOW_AT))
    mean = mean._replace(
        mapped=mapped, inside=inside, carry=carry, quotients=_watched(view, mean, weight)
    )
    if turns:
        whole = per_member(carry, mapped) * mean.whole + mapped[..., -1:]
        mean = mean._replace(whole=whole)
    move = _move(view.block, mean, turns) if follows else None
    sums = _sums(probe, view, mean, innovation, move, turns)
    return News(innovation, mean, move, sums)


def _watched(view: View, mean: Mean, weight: float) -> Quotients:
    """The quotients of the k columns after an observation."""
    gain = mean.gain
    return watched(
        mean.quotients,
        to_host(view.heights).astype(float),
        weight,
        g=fraction(gain, weight),
        rate=_learning(gain.count, 1),
        ready=gain.count > WARM_UP,
        rounding=view.rounding,
    )


def _move(block: Array, mean: Mean, turns: bool) -> Array:
    """RΛ⁻¹ of the k columns: out of the span of all; at a turn the whole move since the last one.

    The whole of it is judged. It may go into the span of the others, but only out of the k.
    """
    k = mean.lean.shape[-1]
    columns, inside = block[..., :-1], mean.inside
    if turns:
        columns, inside = block[..., :k], inside[..., :k, :]
    move = mean.mapped[..., :k] - columns @ inside
    move *= mean.reach
    if turns:
        move += columns
        move -= mean.base
    return move


def _sums(
    probe: Probe, view: View, mean: Mean, innovation: Array, move: Array | None, turns: bool
) -> Sums:
    """All sums over rows that the step needs."""
    nothing = view.rayleigh[..., :0, :0]
    squares, gram, cross, turn = nothing, nothing, nothing, ()
    spread = shards() is not None
    if move is not None:
        squares = view.squares
        if turns:
            turn = _turn_sums(view.block, mean, move, spread)
        else:
            moved = probe.basis + move
            gram = contracted(moved, moved)
            cross = contracted(moved, mean.mapped[..., : move.shape[-1]])
    size, change, residual, squares, gram, cross, *turn = over_rows(
        frobenius_squared(innovation),
        frobenius_squared(view.image[..., -1:] - mean.image),
        probe.residual.mT @ probe.residual if spread else nothing,
        squares,
        gram,
        cross,
        *turn,
    )
    return Sums(size, change, residual, squares, gram, cross, Turn(*turn) if turns else None)


def _turn_sums(block: Array, mean: Mean, move: Array, spread: bool) -> tuple[Array, ...]:
    """The fields of a `Turn`, of this process's rows."""
    columns, images = block[..., :-1], mean.mapped[..., :-1]
    nothing = mean.inside[..., :0, :0]
    return (
        contracted(block, mean.mapped),
        contracted(columns, block[..., -1:]),
        contracted(columns, mean.whole),
        frobenius_squared(mean.whole),
        column_inner(move, mean.lean),
        column_inner(move, move),
        column_inner(mean.lean, mean.lean),
        contracted(columns, columns) if spread else nothing,
        contracted(images, images) if spread else nothing,
    )


def _absorbed(
    state: State, view: View, news: News, weight: float, forget: float | None
) -> tuple[Array, Mean]:
    """Basis and memory after an observation."""
    mean, move, turn = news.mean, news.move, news.sums.turn
    gain = mean.gain
    if move is None:
        return state.basis, mean._replace(gain=grown(gain, weight, forget))
    if turn is not None:
        mean = _measured(view, mean, weight, news.sums)
        share = 1 - mean.carry
        new = share * (gain.memory + weight)
        quotients, *evidence = leaning(mean.quotients, share, new)
        gain = pulled(gain, share, *evidence)
        gain = judged(gain, share, *_lagging(turn, mean.reach, row_count(move)))
        rise = _rising(mean, new, weight) if forget is None else mean.rise
        mean = mean._replace(quotients=quotients, rise=rise)
    mean = mean._replace(gain=grown(gain, weight, forget))
    if turn is None:
        return _moved(state.basis, move, news.sums.gram, news.sums.cross, mean)
    move += per_member(mean.carry, move) * mean.lean
    return _turned(state, view.block, mean._replace(lean=move), turn, fraction(gain, weight))


def _rising(mean: Mean, new: Any, weight: float) -> Rise:
    """How far quotients have been above those of the mean, lately and since the last turn.

    Since then observations of weight `new` have come in, and XᵀZ began with Λ.
    """
    count, k = mean.gain.count, mean.lean.shape[-1]
    if not count.all():
        return mean.rise
    carry = per_member(mean.carry, mean.inside)[..., 0]
    fresh = (diagonal(mean.inside[..., :k, :]) - carry * mean.values[..., :k]) / (1 - carry)
    above = to_host(fresh - mean.ritz).astype(float)
    # While columns search it varies more, and that is to be remembered.
    rate = np.minimum(new / (weight * np.minimum(count, 1024)), 1.0)
    return rising(mean.rise, above, new, memory=mean.gain.memory, rate=rate)


def _moved(basis: Array, move: Array, gram: Array, cross: Array, mean: Mean) -> tuple[Array, Mean]:
    """The k columns after a move out of the span of all q, by 45 degrees at most.

    Of the move the mean makes bulk · move.
    """
    xp, k = namespace(move), move.shape[-1]
    bulk, inside, square = mean.bulk[..., None, None], mean.inside, gram - identity_like(gram)
    sizes = diagonal(square)
    if bool((sizes > 1).any()):
        damped = (xp.where(sizes > 1, sizes, 1 + 0 * sizes) ** -0.5)[..., None]
        move, square = move * damped.mT, damped * square * damped.mT
        cross = inside[..., :k, :] + damped * (cross - inside[..., :k, :])
    values, vectors = xp.linalg.eigh(square)
    shrink = (vectors / xp.sqrt(1 + values)[..., None, :]) @ vectors.mT
    mean.mapped[..., :k] += bulk * move
    inside = xp.concat([shrink @ (cross + bulk * square), inside[..., k:, :]], axis=-2)
    basis = (basis + move) @ shrink
    block = xp.concat([basis, mean.block[..., k:]], axis=-1)
    return basis, mean._replace(block=block, inside=inside)


def _lagging(turn: Turn, reach: Array, n: int) -> tuple[Any, Any]:
    """<move, lean>, both as images, RΛ⁻¹ · Λ, and its variance if the move is noise.

    Noise is alike in all directions, and in all images: a column of noise, however far it moves,
    must not drown the others.
    """
    xp, reach = namespace(reach), reach[..., 0, :]
    scale = (reach[..., :1] / xp.where(reach > 0, reach, 1 + 0 * reach)) ** 2
    noise = turn.moves * turn.leans / (n - turn.moves.shape[-1])
    return xp.sum(scale * turn.evidence, axis=-1), xp.sum(scale**2 * noise, axis=-1)


def _turned(state: State, block: Array, mean: Mean, turn: Turn, g: Any) -> tuple[Array, Mean]:
    """The columns turned to the left singular vectors of the mean's image."""
    xp, k, columns = namespace(block), state.basis.shape[-1], block[..., :-1]
    bulk, spread = _outside(mean, turn)
    within = turn.within[..., :-1, :-1]
    within = 0.5 * (within + within.mT)
    level, bulk = levels(within, bulk if columns.shape[-1] < row_count(columns) else None)
    within -= level * identity_like(within)
    image = -level * block  # with the reference: contiguous arrays are worked on faster
    image += mean.mapped
    image = image[..., :-1]
    gram = _image_gram(image, level, turn)
    values, rotation = singular(gram)
    inside = within @ rotation
    steps = int(np.asarray(state.steps).max())
    settled = steps > CAUTIOUS_STEPS
    if steps > 0:
        values, inside, rotation = identified(values, inside, rotation, k, settled)
    anchor, left = followed(mean.anchor @ inside, values)
    since = np.where(left & settled, np.asarray(state.steps)[..., None] + 1, mean.since)
    moved = image @ xp.concat([rotation, 0 * rotation[..., :1]], axis=-1)  # with room for z
    if steps == 0:
        moved[..., :-1] = upright(moved[..., :-1])
    if (to_host(values).max(axis=-1) ** 2 > SOUND * to_host(values).min(axis=-1) ** 2).any():
        moved[..., :-1] = polished(moved[..., :-1])
    values = evened(bulk + raised(values + level[..., 0] - bulk), bulk, k, g)
    mapped = moved * xp.concat([values, 0 * values[..., :1]], axis=-1)[..., None, :]
    moved[..., -1:] = mean.reference
    basis = contiguous(moved[..., :k])
    return basis, mean._replace(
        block=moved,
        values=values,
        ritz=ritz_values(within, gram, rotation[..., :k], inside[..., :k]) + level[..., 0],
        reach=_reach(values[..., :k] - bulk),
        lean=mean.lean @ inside[..., :k, :k],
        mapped=mapped,
        inside=values[..., None] * identity_like(values)[:, :k],
        base=basis,
        carry=np.ones_like(mean.carry),
        bulk=bulk[..., 0],
        spread=spread,
        anchor=anchor,
        since=since,
    )


def _outside(mean: Mean, turn: Turn) -> tuple[Array, Array]:
    """Mean and variance of the eigenvalues outside of the columns, 0 where nothing is.

    They are <r, M r>/<r, r> and ‖M r‖²/<r, r>, less the square of the first and the noise, of the
    part r of the reference that the columns do not reach.
    """
    xp, along = namespace(turn.along), turn.along
    where = xp.concat([-along, 1 + 0 * along[..., :1, :]], axis=-2)
    new = (where.mT @ turn.within @ where)[..., 0, 0]
    rest = enough(1 - frobenius_squared(along))
    bulk = per_member(mean.carry, along)[..., 0, 0] * mean.bulk + new / rest
    square = (turn.square - frobenius_squared(turn.whole)) / rest
    noise = per_member(mean.gain.noise, along)[..., 0, 0] * mean.flicker
    return bulk, raised(square - bulk**2 - noise)


def _reach(heights: Array) -> Array:
    """1/heights, 1 × k, none of them less than a twentieth of the first; 0 for a flat mean."""
    xp, least = namespace(heights), 0.05 * heights[..., :1]
    heights = xp.where(heights > least, heights, least)
    known = heights > 0
    return (known / xp.where(known, heights, 1 + 0 * heights))[..., None, :]


def _image_gram(image: Array, level: Array, turn: Turn) -> Array:
    """ZᵀZ of the mean's image less its level; of spread rows from sums that are there already."""
    if shards() is None:
        return contracted(image, image)
    within = turn.within[:-1, :-1]
    return turn.images - level * (within + within.mT - level * turn.columns)


def _measured(view: View, mean: Mean, weight: float, sums: Sums) -> Mean:
    """The mean with the noise of an observation in its variances, which are for one of weight 1."""
    xp = namespace(sums.images)
    seen, k = view.rayleigh, sums.images.shape[-1]
    g = fraction(mean.gain, weight)
    fade = per_member(weight * (1 - g), seen)
    count = (1 - mean.carry) / g  # observations since the last turn, for which this one stands
    rate = per_member(_learning(mean.gain.count, count), seen)
    # Eigenvalues are read relative to their mean: the noise of the reference is not theirs.
    common = (trace(seen[..., :k, :]) - xp.sum(mean.ritz, axis=-1))[..., None] / k
    change = seen.mT - (mean.ritz + common)[..., None] * identity_like(mean.values)[:k]
    outside = raised(sums.images - column_inner(seen, seen))
    flicker = 0.5 * weight * sums.change  # two observations differ by the noise of both
    return mean._replace(
        variance=mean.variance + rate * (fade * change**2 - mean.variance),
        power=mean.power + rate[..., 0] * (fade[..., 0] * outside - mean.power),
        flicker=mean.flicker + rate[..., 0, 0] * (flicker - mean.flicker),
    )


def _learning(count: Any, new: Any) -> Any:
    """How fast variances learn from an observation that stands for so many `new` ones."""
    known = np.maximum(np.maximum(count - WARM_UP, np.minimum(count, 4)), 1)
    return np.minimum(new / np.minimum(known, 1024), 1.0)
