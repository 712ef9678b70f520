"""Columns keep their place and sign from step to step."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from bracketflow.core import Array, namespace, to_host

CLOSE = 0.75  # cosine above which a column can continue no other one


def continued(overlap: Array, count: int, *, settled: bool) -> tuple[Array | None, Array]:
    """Order and signs in which new columns continue the old ones, from ⟨old_i, new_j⟩, k × k.

    Both are for `count` ≥ k columns, of which those beyond k stay. The order is None, nothing is
    exchanged, before the columns have settled and while every new one is close to the old one in
    its place.
    """
    host = to_host(overlap)
    k = host.shape[-1]
    along = host.diagonal(axis1=-2, axis2=-1)
    moved = (np.abs(along) < CLOSE).any(axis=-1) & settled
    order = None
    if moved.any():
        order = np.zeros((*host.shape[:-2], count), dtype=np.int64) + np.arange(count)
        along, places = along.copy(), np.arange(k)
        for place in np.ndindex(moved.shape):
            if moved[place]:
                order[place][:k] = chosen = linear_sum_assignment(-np.abs(host[place]))[1]
                along[place] = host[place][places, chosen]
    sign = np.ones((*host.shape[:-2], count), dtype=host.dtype)
    sign[..., :k][along < 0] = -1
    xp = namespace(overlap)
    if xp is not np:
        sign = xp.asarray(sign, device=overlap.device)
        order = order if order is None else xp.asarray(order, device=overlap.device)
    return order, sign
