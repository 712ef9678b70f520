"""What the other rungs of the ladder would turn, and how much more that captures of an observation.

Seen from the columns of the chosen mean, with P = Xᵀ(M_j − M)X and δ = λ_i − λ_a, rung j would turn
the pair (a, i) by θ, tan 2θ = 2P_ai/δ. With B_ai = tan θ its leading columns are X_k + X B, or
(X_k + X B)(I + BᵀB)^(-½), and of a fresh H = XᵀCX they would capture more by

    b_j = tr (G − I)H_kk + 2 <BG, H_ak> + Σ_a (BGBᵀ)_aa H_aa,    G = (I + BᵀB)⁻¹,

what H has between other a's left out. In a full basis every pair counts with its sign, and G is
diagonal. All that is linear in H: the coefficients are made when columns turn, and what waits is
judged by inner products.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EPS, TINY = np.finfo(float).eps, np.finfo(float).tiny


class Offers(NamedTuple):
    """What J rungs would capture more in q columns, w of which are judged, and outside of them."""

    entries: np.ndarray
    """Coefficients of H in the judged columns, (J, q, w)."""
    quotients: np.ndarray
    """Coefficients of diag H, (J, q)."""
    outside: np.ndarray
    """Coefficients of what lies outside of all columns, seen in a sketch, (J, w, m)."""

    def captured(
        self, entries: np.ndarray, quotients: np.ndarray, outside: np.ndarray | None = None
    ) -> np.ndarray:
        """b of every rung, from H in the judged columns (q, w), diag H (q,), and the sketch."""
        J = len(self.quotients)
        more = self.entries.reshape(J, -1) @ entries.ravel() + self.quotients @ quotients
        if outside is not None:
            more += self.outside.reshape(J, -1) @ outside.ravel()
        return np.asarray(more)


def none(rungs: int, q: int, w: int, m: int = 0) -> Offers:
    """Of rungs that are all the same."""
    return Offers(np.zeros((rungs, q, w)), np.zeros((rungs, q)), np.zeros((rungs, w, m)))


def of_leading(
    turns: np.ndarray,
    shifts: np.ndarray,
    values: np.ndarray,
    outside: np.ndarray | None = None,
    noise: float = 0.0,
) -> Offers:
    """Offers from P in the k leading columns (J, q, k), diag P (J, q), and λ (q,).

    `outside`, (J, k, m), are sketches of what the rungs hold of these columns outside of all q, at
    height 0; of that, what the `noise` of an entry of the mean does not resolve hardly counts.
    """
    J, q, k = turns.shape
    heights = values + shifts
    gap = heights[:, None, :k] - heights[:, :, None]
    # What has risen above others takes the place of the lowest.
    lowest = np.argmin(heights[:, :k], axis=1)
    overtaken = (gap < 0) & (np.arange(k) == lowest[:, None])[:, None, :]
    tangents = _tangents(abs(gap), turns, overtaken)
    tangents[:, :k] = 0.0
    gram = tangents.mT @ tangents
    if outside is None:
        outside = np.zeros((J, k, 0))
    norms = np.einsum("jkm,jkm->jk", outside, outside) ** 0.5
    raised = heights[:, :k]
    tilts = _tangents(abs(raised), norms, raised < 0) * (
        values[:k] ** 2 / (values[:k] ** 2 + 4 * noise + TINY)
    )
    outside = (tilts / (norms + TINY))[:, :, None] * outside
    gram += outside @ outside.mT
    G = np.linalg.inv(np.eye(k) + gram)
    entries = tangents @ G
    quotients = np.einsum("jai,jai->ja", entries, tangents)
    entries *= 2
    entries[:, :k] = G - np.eye(k)
    return Offers(entries, quotients, 2 * G @ outside)


def of_full(
    turns: np.ndarray, values: np.ndarray, columns: np.ndarray, noise: float
) -> Offers:
    """Offers from P in the judged `columns` of a full basis, (J, q, w), and λ (q,).

    A pair that the `noise` of the mean's entries does not resolve hardly counts: δ²/(δ² + 4·noise).
    """
    gap, w = values[columns] - values[:, None], np.arange(len(columns))
    sign = np.where(gap < 0, -1.0, 1.0)
    known = gap**2 / (gap**2 + 4 * noise + TINY)
    known[columns, w] = 0.0
    tangents = sign * _tangents(abs(gap), turns)
    squares = known * tangents**2
    of_column, of_row = squares.sum(axis=1, keepdims=True), squares.sum(axis=2, keepdims=True)
    shrunk = tangents / (1 + np.maximum(of_column, of_row))
    falls = known * sign * shrunk * tangents
    quotients = falls.sum(axis=2)
    quotients[:, columns] -= falls.sum(axis=1)
    entries = 2 * known * sign * shrunk
    return Offers(entries, quotients, np.zeros((len(turns), len(columns), 0)))


def _tangents(
    gap: np.ndarray, turns: np.ndarray, overtaken: np.ndarray | bool = False
) -> np.ndarray:
    """tan θ of tan 2θ = 2P/δ, |θ| ≤ π/4; π/2 − |θ| where one is `overtaken` by the other."""
    tangents = 2 * turns / (gap + np.sqrt(gap**2 + 4 * turns**2) + TINY)
    beyond = np.copysign(1 / np.maximum(abs(tangents), EPS), tangents)
    return np.where(overtaken, beyond, tangents)
