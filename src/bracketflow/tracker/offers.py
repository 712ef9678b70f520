"""What the rungs of the ladder would capture of an observation: <G_j, C>, linear in C."""

from __future__ import annotations

import numpy as np

TINY = np.finfo(float).tiny


def of_leading(means: np.ndarray, variance: np.ndarray, k: int) -> np.ndarray:
    """G_j = V_jV_jᵀ of the k leading eigenvectors of each mean, (J, p, p)."""
    different, again = _different(means, variance)
    leading = np.linalg.eigh(different)[1][..., -k:]
    return np.asarray((leading @ leading.mT)[again])


def of_pairs(
    means: np.ndarray, variance: np.ndarray, chosen: np.ndarray, noise: float
) -> np.ndarray:
    """For all pairs of eigenvectors of the chosen mean, what rung j would turn them by, (J, p, p).

    With P = Xᵀ(M_j − M)X and δ = λ_i − λ_a, it turns the pair (a, i) by θ, tan 2θ = 2P_ai/δ, and
    captures of H = XᵀCX in the higher one more by H_ai sin 2θ − (H_ii − H_aa) sin²θ. A pair that
    one observation, whose entries have the variance `noise`, does not resolve hardly counts:
    δ²/(δ² + 4·noise).
    """
    different, again = _different(means, variance)
    values, X = np.linalg.eigh(chosen)
    gap = values - values[:, None]
    known = gap**2 / (gap**2 + 4 * noise + TINY)
    turns = X.T @ (different - chosen) @ X
    tangents = 2 * turns / (abs(gap) + np.sqrt(gap**2 + 4 * turns**2) + TINY)
    squares = known * tangents**2
    turned = squares.sum(axis=1)
    each = 1 + np.maximum(turned[:, :, None], turned[:, None, :])  # θ of a column by all its pairs
    captured = known * tangents / each
    captured -= (np.sign(gap) * squares / each).sum(axis=1)[:, None, :] * np.eye(len(gap))
    return np.asarray((X @ captured @ X.T)[again])


def _different(means: np.ndarray, variance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means that differ, and which of them each one is: young rungs have equal variances."""
    _, first, again = np.unique(variance, return_index=True, return_inverse=True)
    return means[first], again
