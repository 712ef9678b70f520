"""One block product on the columns of a running mean and a reference, at the level of that."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    diagonal,
    epsilon,
    identity_like,
    namespace,
    to_host,
)
from bracketflow.oracles import Operator, common_level, multiplied, own_level, refuse_bad
from bracketflow.sharding import shards


class View(NamedTuple):
    """One block product on [X, z], at the level of z, its Rayleigh quotient."""

    columns: Array
    image: Array
    """(C − level)X of all q columns."""
    rayleigh: Array
    """Xᵀ(C − level)X of the k columns, q × k."""
    reference: Array
    """(C − level)z."""
    along: Array
    """Xᵀz, q × 1."""
    rounding: Any
    foreseen: Array | None
    """Of spread rows: what H of the k columns would be if nothing had changed, k × k."""


def looked(
    operator: Operator, state: State, extra: Array, reference: Array, expected: Array
) -> tuple[Probe, View]:
    """The step's one product: the probe of the k columns, and the view of all.

    `expected` is what the mean makes of the k columns.
    """
    xp = namespace(state.basis)
    basis, k = state.basis, state.basis.shape[-1]
    block = xp.concat([basis, extra, reference], axis=-1)
    columns, reference = block[..., :-1], block[..., -1:]
    with np.errstate(over="ignore", invalid="ignore"):
        product = multiplied(operator, block)
        level = own_level(reference, product[..., -1:])
        wide = level[..., None, None]
        image = -wide * columns
        image += product[..., :-1]
        mapped = product[..., -1:] - wide * reference
        foreseen = None
        if shards() is None:
            rayleigh, along = image.mT @ basis, columns.mT @ reference
            across = image[..., :k].mT @ reference - basis.mT @ mapped
        else:
            own = level
            level, seen, along, foreseen = _over_shards(block, image, mapped, own, expected)
            image += (own - level) * columns
            mapped += (own - level) * reference
            rayleigh, across = seen[:-1, :k], seen[:k, k:] - seen[-1:, :k].mT
        whole = Probe(block, image, level, rayleigh, block.shape[-1])
        inside = rayleigh[..., :k, :]
        refuse_bad(whole, 0.5 * xp.concat([inside - inside.mT, across], axis=-1), state.seen)
    rounding = to_host(whole.rounding + 64 * epsilon(columns) * whole.size)
    view = View(columns, image, rayleigh, mapped, along, rounding, foreseen)
    return _of_columns(whole, basis), view


def _over_shards(
    block: Array, image: Array, mapped: Array, own: Any, expected: Array
) -> tuple[Any, Array, Array, Array]:
    """Level, [X, z]ᵀ(C − level)[X_k, z], Xᵀz and the `foreseen` of a View, in one message."""
    xp = namespace(block)
    basis = block[:, : expected.shape[-1]]
    probed = xp.concat([basis, block[:, -1:]], axis=-1)
    compressed = xp.concat([image.mT @ probed, mapped.mT @ probed], axis=-2)
    level, compressed, gram, foreseen = common_level(
        own, compressed, block.mT @ probed, _corner, basis.mT @ expected
    )
    return level, compressed, gram[:-1, -1:], foreseen


def _corner(matrix: Array) -> Array:
    """The entry of the reference."""
    return matrix[-1, -1]


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
