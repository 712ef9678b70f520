"""What the other rungs of the ladder would turn, and how much more that captures of an observation.

Seen from the columns of the chosen mean, with P = Xᵀ(M_j − M)X and δ = λ_i − λ_a, rung j would turn
the pair (a, i) by θ, tan 2θ = 2P_ai/δ. Of a fresh H = XᵀCX it would capture more by

    b_j = Σ H_ai sin 2θ − (H_ii − H_aa) sin²θ,

which is linear in H: the sines are made when columns turn, and every observation is judged by two
inner products.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

TINY = np.finfo(float).tiny


class Fresh(NamedTuple):
    """What one observation says, seen from the columns of the mean; N is what was not foreseen."""

    apart: float
    """‖N‖² in the judged columns, outside of the k leading ones (of a full basis: in all rows)."""
    apart_from_last: float
    """The same beside the last observation."""
    foretold: bool
    """Whether the last observation says more of it than the mean does: it lies nearer to that, or
    in a block captures less than that would."""
    more: np.ndarray
    """b of every rung, (J,)."""
    squares: np.ndarray
    """Squares of the entries of XᵀNX in the judged columns, (q, w); of a block with a further row
    for all that lies outside of it."""
    quotients: np.ndarray
    """Absolute Rayleigh quotients of the k columns, less the averaged ones, (k,)."""


class Offers(NamedTuple):
    """What J rungs would turn of q columns, w of which are judged, and of what lies outside."""

    sines: np.ndarray
    """sin 2θ of the pairs (a, i), (J, q, w)."""
    drops: np.ndarray
    """Σ b over the quotients H_aa, with their signs, (J, q)."""
    outside: np.ndarray
    """The same as `sines` for what lies outside of all columns, seen in a sketch, (J, w, m)."""
    size: np.ndarray
    """What b is worth if the rung is right, (J,)."""

    def judge(
        self, entries: np.ndarray, quotients: np.ndarray, outside: np.ndarray | None = None
    ) -> np.ndarray:
        """b of every rung, from H in the judged columns (q, w), diag H (q,), and the sketch."""
        J = len(self.size)
        more = self.sines.reshape(J, -1) @ entries.ravel() - self.drops @ quotients
        if outside is not None:
            more += self.outside.reshape(J, -1) @ outside.ravel()
        return np.asarray(more)


def none(rungs: int, q: int, w: int, m: int = 0) -> Offers:
    """Of rungs that are all the same."""
    return Offers(
        np.zeros((rungs, q, w)), np.zeros((rungs, q)), np.zeros((rungs, w, m)), np.zeros(rungs)
    )


def offered(
    turns: np.ndarray,
    shifts: np.ndarray,
    values: np.ndarray,
    columns: np.ndarray,
    noise: float,
    *,
    full: bool,
) -> Offers:
    """Offers from P in the judged columns (J, q, w), diag P (J, q), and λ (q,).

    Of the leading k, a lies beyond them and may take the place of i (θ up to π/2). In a full basis
    every pair counts, as a turn by π/4 at most, and one that the `noise` of the mean's entries does
    not resolve hardly: δ²/(δ² + 4·noise).
    """
    gap, w = values[columns] - values[:, None], np.arange(len(columns))
    if full:
        sign = np.where(gap < 0, -1.0, 1.0)
        known = gap**2 / (gap**2 + 4 * noise + TINY)
        known[columns, w] = 0.0
        wide = sign * gap
    else:
        sign, known = np.ones_like(gap), np.ones_like(gap)
        known[: len(columns)] = 0.0
        wide = gap + shifts[:, None, columns] - shifts[:, :, None]
    length, sine_squared, least = _angle(wide, turns)
    falls = known * sign * sine_squared
    drops = -falls.sum(axis=2)
    drops[:, columns] += falls.sum(axis=1)
    size = (known * abs(gap) * least).sum(axis=(1, 2))
    empty = np.zeros((len(turns), len(columns), 0))
    return Offers(known * (2 * turns / length), drops, empty, size)


def _angle(gap: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """√(δ² + 4P²), sin²θ, and the smaller of sin²θ and cos²θ; exact also where P is tiny."""
    length = np.hypot(gap, 2 * turns) + TINY
    least = 2 * (turns / length) * (turns / (length + abs(gap)))
    return length, np.where(gap < 0, 1 - least, least), least


def with_outside(
    offers: Offers, outside: np.ndarray, shifts: np.ndarray, values: np.ndarray, noise: float
) -> Offers:
    """Offers with what the rungs hold outside of the columns, in sketches O of D_jX_k, (J, k, m).

    Column i and the direction of O_i, at height 0 for the mean, are a pair as the others are: rung
    j would turn it by θ, tan 2θ = 2‖O_i‖/h, with h = λ_i + `shifts`, its own height of column i.
    """
    known = values**2 / (values**2 + 4 * noise + TINY)
    norms = np.einsum("jkm,jkm->jk", outside, outside) ** 0.5
    length, sine_squared, least = _angle(values + shifts, norms)
    drops = offers.drops.copy()
    drops[:, : len(values)] += known * sine_squared
    size = (known * abs(values) * least).sum(axis=1)
    return offers._replace(
        outside=(2 * known / length)[:, :, None] * outside, drops=drops, size=offers.size + size
    )
