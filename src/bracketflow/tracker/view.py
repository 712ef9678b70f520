"""One block product on the columns of a running mean and a reference, at the level of that."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    column_inner,
    contiguous,
    contracted,
    diagonal,
    epsilon,
    frobenius_squared,
    identity_like,
    inner,
    namespace,
    to_host,
    trace,
)
from bracketflow.observation import common_level, multiplied, own_level, refuse_bad
from bracketflow.oracles import Operator
from bracketflow.sharding import shards
from bracketflow.tracker.turn import enough


class View(NamedTuple):
    """One block product on [X, z], at the level of z, its Rayleigh quotient."""

    block: Array
    """[X, z], q + 1 columns."""
    image: Array
    """(C − level)[X, z]."""
    rayleigh: Array
    """Xᵀ(C − level)X of the k columns, q × k."""
    heights: Array
    """Rayleigh quotients of the k columns above that of what of z is outside of them."""
    squares: Array
    """Squares of the k columns' images, of this process's rows."""
    rounding: Any


def looked(operator: Operator, state: State, block: Array) -> tuple[Probe, View]:
    """The step's one product: the probe of the k columns, and the view of all.

    `block` is the basis, the other columns, and the reference.
    """
    xp = namespace(state.basis)
    basis, k, reference = state.basis, state.basis.shape[-1], contiguous(block[..., -1:])
    with np.errstate(over="ignore", invalid="ignore"):
        product = multiplied(operator, block)
        level = own_level(reference, product[..., -1:])
        image = -level[..., None, None] * block
        image += product
        if shards() is None:
            seen, towards = contracted(image, basis), contracted(image[..., :k], reference)
            along = contracted(basis, reference)
        else:
            own = level
            level, seen, towards, along = _over_shards(block, image, k, own)
            image += (own - level) * block
        rayleigh, across = seen[..., :-1, :], towards - seen[..., -1:, :].mT
        whole = Probe(block, image, level, rayleigh, block.shape[-1])
        inside = rayleigh[..., :k, :]
        refuse_bad(whole, 0.5 * xp.concat([inside - inside.mT, across], axis=-1), state.seen)
    rounding = to_host(whole.rounding + 64 * epsilon(block) * whole.size)
    heights, images = _heights(inside, towards, along), image[..., :k]
    squares = column_inner(images, images)
    view = View(block, image, rayleigh, heights, squares, rounding)
    return _of_columns(whole, basis, squares), view


def _over_shards(block: Array, image: Array, k: int, own: Any) -> tuple[Any, Array, Array, Array]:
    """Level, [X, z]ᵀ(C − level)X_k, X_kᵀ(C − level)z and X_kᵀz of all rows, in one message."""
    probed = namespace(block).concat([block[:, :k], block[:, -1:]], axis=-1)
    level, seen, gram = common_level(own, image.mT @ probed, block.mT @ probed, _corner)
    return level, seen[:, :k], seen[:k, k:], gram[:k, k:]


def _heights(inside: Array, towards: Array, along: Array) -> Array:
    """diag H above <r, C r>/<r, r>, r = z − Xa, from H, XᵀCz and a = Xᵀz at the level of z.

    Above z itself where nothing of it is outside.
    """
    rest = enough(1 - frobenius_squared(along))
    beside = inner(along, inside @ along - 2 * towards) / rest
    return diagonal(inside) - beside[..., None]


def _corner(matrix: Array) -> Array:
    """The entry of the reference."""
    return matrix[-1, -1]


def _of_columns(whole: Probe, basis: Array, squares: Array) -> Probe:
    """The probe of the first k columns, centred at their own level."""
    k = basis.shape[-1]
    rayleigh = whole.rayleigh[..., :k, :]
    above = trace(rayleigh) / k
    wide = above[..., None, None]
    return Probe(
        basis,
        partial(_lowered, whole.centred, wide, basis),  # few will ask for it
        whole.background + above,
        0.5 * (rayleigh + rayleigh.mT) - wide * identity_like(rayleigh),
        whole.matvecs,
        square=namespace(squares).sum(squares, axis=-1) - k * above**2,
    )


def _lowered(image: Array, level: Array, basis: Array) -> Array:
    """The first columns of an image, at a level that is higher by so much."""
    return image[..., : basis.shape[-1]] - level * basis
