"""Principal directions of rows that must stay private: noisy Gram matrices, then the tracker.

    python examples/private_covariance.py

Handwritten digits, each row clipped to a length fixed beforehand, arrive in batches. Of each batch
only its Gram matrix is released, with the noise of the Gaussian mechanism, and all that follows is
computed from those. The tables have the share of variance that three directions capture, beside
one release of all rows (Analyze-Gauss) and diffprivlib's PCA.

The promise is the mechanism's alone. bracketflow adds nothing to it, and its blindness to σ²I is of
no use here: this noise is E, not σ²I. docs/privacy.md has the whole story.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from dp_accounting import ZCDpEvent, get_epsilon_gaussian, get_sigma_gaussian
from dp_accounting.rdp import RdpAccountant
from sklearn.datasets import load_digits
from sklearn.tree import _tree

import bracketflow as bf

# diffprivlib imports its forests along with its PCA; newer releases of scikit-learn lack two names
# that those ask for.
for _name, _kind in (("DOUBLE", np.float64), ("DTYPE", np.float32)):
    if not hasattr(_tree, _name):
        setattr(_tree, _name, _kind)
from diffprivlib.models import PCA  # noqa: E402

K = 3
BATCH = 200
CLIP = 0.2  # of a row; by its range none can be longer than 0.5
DELTA = 1e-5
EPSILONS = (0.1, 0.3, 1.0)
DRAWS = 10
RIVAL = "diffprivlib PCA (δ = 0)"
# Its sampler takes seconds for 16 features, and had not finished with 64 after ten minutes.
MOST_FOR_RIVAL = 8


def private_rows(height: int, width: int) -> np.ndarray:
    """Digits as height × width mean greys in [0, 1], each image's own mean taken out, over √n.

    All constants are known before any row is; the mean is the row's own, so that it costs nothing.
    """
    images = load_digits().images / 16
    tiles = images.reshape(len(images), height, 8 // height, width, 8 // width).mean((2, 4))
    rows = np.random.default_rng(0).permutation(tiles.reshape(len(images), -1))
    return (rows - rows.mean(axis=1, keepdims=True)) / rows.shape[1] ** 0.5


def clipped(rows: np.ndarray) -> np.ndarray:
    """Rows shortened to CLIP: one row, there or not, moves a Gram matrix by CLIP² at most."""
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, CLIP / np.maximum(norms, np.finfo(float).tiny))


def released(gram: np.ndarray, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    """Gram matrix and the Gaussian mechanism's noise for its sensitivity CLIP² in ‖·‖_F.

    (G + Gᵀ)/2 is N(0, σ²) in all coordinates for which ‖·‖_F is the Euclidean norm: the diagonal
    and √2 times what is above it.
    """
    noise = CLIP**2 * get_sigma_gaussian(epsilon, DELTA) * rng.standard_normal(gram.shape)
    return gram + (noise + noise.T) / 2


def released_batches(
    rows: np.ndarray, epsilon: float, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    """The stream: of each batch its released Gram matrix, over the public BATCH.

    Every row is in one batch, and which one does not depend on other rows (one left out leaves its
    place empty): so all releases together are as private as one of them.
    """
    for start in range(0, len(rows), BATCH):
        batch = clipped(rows[start : start + BATCH])
        yield released(batch.T @ batch, epsilon, rng) / BATCH


def leading(matrix: np.ndarray) -> np.ndarray:
    """Its first K eigenvectors."""
    return np.linalg.eigh(matrix)[1][:, ::-1][:, :K]


def directions(rows: np.ndarray, epsilon: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What each method makes of the same rows at the same ε."""
    everything, stream = clipped(rows), list(released_batches(rows, epsilon, rng))
    found = {
        "released batches, tracker": bf.track(stream, K, rng=rng).eigenvectors,
        "released batches, eigh of their sum": leading(sum(stream)),
        "one release (Analyze-Gauss)": leading(released(everything.T @ everything, epsilon, rng)),
    }
    if rows.shape[1] <= MOST_FOR_RIVAL:
        seed = int(rng.integers(2**31))
        rival = PCA(K, epsilon=epsilon, data_norm=CLIP, centered=True, random_state=seed)
        found[RIVAL] = rival.fit(everything.copy()).components_.T
    return found


def captured(basis: np.ndarray, rows: np.ndarray) -> float:
    """Variance of the clipped rows along the basis, over what the best K directions have."""
    gram = clipped(rows).T @ clipped(rows)
    return float(np.trace(basis.T @ gram @ basis) / np.linalg.eigvalsh(gram)[-K:].sum())


def utility(rows: np.ndarray) -> dict[str, list[float]]:
    """Captured share of each method, one for each ε, mean of DRAWS."""
    shares: dict[str, list[list[float]]] = {}
    for index, epsilon in enumerate(EPSILONS):
        for draw in range(DRAWS):
            found = directions(rows, epsilon, np.random.default_rng([index, draw]))
            for name, basis in found.items():
                row = shares.setdefault(name, [[] for _ in EPSILONS])
                row[index].append(captured(basis, rows))
    return {name: [float(np.mean(part)) for part in row] for name, row in shares.items()}


def accounting(passes: int, epsilon: float) -> tuple[float, float]:
    """ε after so many passes over the same rows, each calibrated to `epsilon`: zCDP, and exact."""
    sigma = get_sigma_gaussian(epsilon, DELTA)
    accountant = RdpAccountant()
    accountant.compose(ZCDpEvent(1 / (2 * sigma**2)), passes)
    return float(accountant.get_epsilon(DELTA)), get_epsilon_gaussian(sigma / passes**0.5, DELTA)


def background_share(n: int, rng: np.random.Generator) -> float:
    """Share of ‖noise‖_F² that is a multiple of I, the only part that bracketflow does not see."""
    noises = [released(np.zeros((n, n)), 1.0, rng) for _ in range(1000)]
    level = sum(np.trace(noise) ** 2 / n for noise in noises)
    return float(level / sum(np.sum(noise**2) for noise in noises))


def show(rows: np.ndarray) -> dict[str, list[float]]:
    """Print one table and return it."""
    count, n = rows.shape
    cut = np.mean(np.linalg.norm(rows, axis=1) > CLIP)
    print(
        f"\n{count} rows of {n} features, {cut:.0%} of them clipped, {-(-count // BATCH)} batches"
    )
    print(f"{'ε':>38}" + "".join(f"{epsilon:8}" for epsilon in EPSILONS))
    table = utility(rows)
    for name, shares in table.items():
        print(f"{name:>38}" + "".join(f"{share:8.3f}" for share in shares))
    chance = np.mean([captured(bf.random_basis(n, K, rng=seed), rows) for seed in range(100)])
    print(f"{'random directions':>38}{chance:8.3f}")
    return table


def main() -> dict[int, dict[str, list[float]]]:
    """Print the tables; return the captured shares by number of features and method."""
    print(f"captured variance of {K} directions, δ = {DELTA:g}, mean of {DRAWS} draws")
    tables = {rows.shape[1]: show(rows) for rows in (private_rows(4, 2), private_rows(8, 8))}
    print("\nε after several passes over the rows, each of ε = 1:   by zCDP   exactly")
    for passes in (1, 2, 5):
        by_zcdp, exactly = accounting(passes, 1.0)
        print(f"{passes:52}{by_zcdp:10.2f}{exactly:10.2f}")
    share = background_share(64, np.random.default_rng(0))
    print(f"\nof the noise {share:.2%} is a multiple of I; the rest is E, seen by every method")
    return tables


if __name__ == "__main__":
    main()
