"""What the rungs of the ladder would capture of an observation: <G_j, C>, linear in C.

The columns are wanted for now, and an observation shows how far a rung has fallen behind when the
next one comes. So what a rung captures of it is read off both the rung and what that rung was one
observation earlier: with a lag b and a drift Δ the loss is (b + Δ)² and (b + 2Δ)², and twice the
first less the second is b², but for a constant that all rungs share.
"""

from __future__ import annotations

import numpy as np

EPS, TINY = np.finfo(float).eps, np.finfo(float).tiny


def of_leading(means: np.ndarray, k: int) -> np.ndarray:
    """V_jV_jᵀ of the k leading eigenvectors of each mean, (J, p, p)."""
    leading = np.linalg.eigh(means)[1][..., -k:]
    return leading @ leading.mT


def of_pairs(means: np.ndarray, chosen: np.ndarray, noise: float) -> np.ndarray:
    """For all pairs of eigenvectors of the chosen mean, what rung j would turn them by, (J, p, p).

    With P = Xᵀ(M_j − M)X and δ = λ_i − λ_a, it turns the pair (a, i) by θ, tan 2θ = 2P_ai/δ, and
    captures of H = XᵀCX in the higher one more by H_ai sin 2θ − (H_ii − H_aa) sin²θ. A pair that
    one observation, whose entries have the variance `noise`, does not resolve hardly counts:
    δ²/(δ² + 4·noise).
    """
    values, X = np.linalg.eigh(chosen)
    gap = values - values[:, None]
    known = gap**2 / (gap**2 + 4 * noise + TINY)
    turns = X.T @ (means - chosen) @ X
    tangents = 2 * turns / (abs(gap) + np.sqrt(gap**2 + 4 * turns**2) + TINY)
    squares = known * tangents**2
    turned = squares.sum(axis=1)
    each = 1 + np.maximum(turned[:, :, None], turned[:, None, :])  # θ of a column by all its pairs
    captured = known * tangents / each
    captured -= (np.sign(gap) * squares / each).sum(axis=1)[:, None, :] * np.eye(len(gap))
    return X @ captured @ X.T


def of_block(
    values: np.ndarray, inside: np.ndarray, outside: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The same of rungs diag(λ) + D_j that are known in a block, (J, q, q) and (J, k, m).

    `inside` is XᵀD_jX, `outside` a sketch of what of D_jX_k lies outside of X, at height 0. The
    leading vectors are Ritz vectors in the span of X_k and of where perturbation theory moves it,
    X_a D_ai/(λ_i − λ_a); what has risen above others takes the place of the lowest.
    """
    (_, k, _), q = outside.shape, len(values)
    heights = values + np.diagonal(inside, axis1=1, axis2=2)
    raised = inside + np.diag(values)
    gap = heights[:, None, :k] - heights[:, :, None]
    turns = inside[:, :, :k]
    moves = turns / np.hypot(gap, 2 * turns + TINY)
    lowest = np.arange(k) == np.argmin(heights[:, :k], axis=1)[:, None]
    moves = np.where((gap < 0) & lowest[:, None, :], np.copysign(1 / EPS, turns), moves)
    moves[:, :k] = 0.0
    norms = np.einsum("jkm,jkm->jk", outside, outside)
    tilts = outside / np.hypot(heights[:, :k], 2 * norms**0.5 + TINY)[:, :, None]
    squares, axes = np.linalg.eigh(moves.mT @ moves + tilts @ tilts.mT)
    axes = axes / np.sqrt(np.maximum(squares, TINY**0.5 + q * EPS * squares[:, -1:]))[:, None, :]
    moves, tilts = moves @ axes, axes.mT @ tilts
    coupled = raised[:, :k] @ moves + outside @ tilts.mT
    own = np.block([[raised[:, :k, :k], coupled], [coupled.mT, moves.mT @ raised @ moves]])
    leading = np.linalg.eigh(own)[1][..., -k:]
    stays, goes = leading[:, :k], leading[:, k:]
    columns = moves @ goes
    columns[:, :k] += stays
    return columns @ columns.mT, 2 * stays @ goes.mT @ tilts
