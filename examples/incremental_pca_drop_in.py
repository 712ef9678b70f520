"""IncrementalPCA replaced by changing one import, on digits under a noise floor that moves.

    python examples/incremental_pca_drop_in.py

The rows are handwritten digits with white noise on top, whose strength changes from batch to
batch. The noise is alike in all directions, so the components of the clean digits are still the
right answer; the table shows how far each estimator is from them as rows come in.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, IncrementalPCA

import bracketflow as bf
from bracketflow.estimators import StreamingPCA  # the one import to change

K = 5
BATCH = 50
PASSES = 5
LARGEST = 15.0  # standard deviation of the noise; that of the first component is 13


def noisy_batches(rng: np.random.Generator):
    """Shuffled digits in batches, and the swinging strength of the noise that is on them."""
    digits = load_digits().data
    rows = np.concatenate([rng.permutation(digits) for _ in range(PASSES)])
    for t, start in enumerate(range(0, len(rows), BATCH)):
        batch = rows[start : start + BATCH]
        strength = LARGEST * (0.5 + 0.5 * np.cos(t / 5)) ** 2
        yield batch + strength * rng.standard_normal(batch.shape), strength


def main() -> dict[str, float]:
    """Print the table; return the final subspace errors, out of √5."""
    truth = PCA(K).fit(load_digits().data).components_.T
    estimators = {"IncrementalPCA": IncrementalPCA(K), "StreamingPCA": StreamingPCA(K)}
    print(f"{'rows':>6}  {'noise':>5}  " + "  ".join(f"{name:>14}" for name in estimators))
    errors: dict[str, float] = {}
    for t, (batch, strength) in enumerate(noisy_batches(np.random.default_rng(0))):
        for name, pca in estimators.items():
            pca.partial_fit(batch)
            errors[name] = bf.subspace_error(pca.components_.T, truth)
        if t % 20 == 0:
            shown = "  ".join(f"{error:14.3f}" for error in errors.values())
            print(f"{estimators['StreamingPCA'].n_samples_seen_:6}  {strength:5.1f}  {shown}")
    pca = estimators["StreamingPCA"]
    bars = zip(pca.explained_variance_, pca.error_bars_, strict=True)
    print("\nvariances   " + "   ".join(f"{value:.0f} ± {bar:.0f}" for value, bar in bars))
    print(f"background  {pca.background_:.0f}")
    print("errors      " + ", ".join(f"{name} {error:.3f}" for name, error in errors.items()))
    return errors


if __name__ == "__main__":
    main()
