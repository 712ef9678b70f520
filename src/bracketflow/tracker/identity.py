"""Columns keep their place and sign from step to step."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

CLOSE = 0.75
"""Cosine above which a column can continue no other one: 0.75² is more than half."""


def arrange(
    overlap: np.ndarray, count: int, *, settled: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Order and signs in which new columns continue the old ones, from ⟨old_i, new_j⟩, (k, k).

    Order and signs are for `count` ≥ k columns, of which those beyond k stay. Before the columns
    have `settled` only signs are kept. A full basis (k = `count`) keeps its determinant: where the
    signs would change it, the column that continues its old one least is turned. The third result
    is how much of each new column lay in the old k, its squared cosine: near 0 for a vector that
    has come in from outside.
    """
    k = len(overlap)
    order, sign = np.arange(count), np.ones(count)
    if settled and (np.abs(np.diagonal(overlap)) < CLOSE).any():
        order[:k] = linear_sum_assignment(-np.abs(overlap))[1]
    arranged = overlap[:, order[:k]]
    sign[:k][np.diagonal(arranged) < 0] = -1.0
    cosines = np.abs(np.diagonal(arranged))
    # A reflection has an eigenvalue −1, so that ‖old − new‖_F² = 2 Σ (1 − cosine) is 4 at least.
    reflected = k == count and np.sum(1 - cosines) >= 2
    if reflected and np.linalg.slogdet(arranged * sign)[0] < 0:
        sign[np.argmin(cosines)] *= -1.0
    return order, sign, np.sum(arranged**2, axis=0)
