"""StreamingPCA beside IncrementalPCA and PCA: every figure from one run.

    python benchmarks/estimators.py            everything, about three minutes
    python benchmarks/estimators.py tests      scikit-learn's own tests, the class replaced
    python benchmarks/estimators.py batches    digits and breast_cancer, batches of 1, 7, 50, 500
    python benchmarks/estimators.py wide       more features than are kept exactly
    python benchmarks/estimators.py forgetting learned forgetting beside fixed

Errors are subspace errors, ‖(I − XXᵀ)U‖_F, against `PCA` of all rows; times are ratios to
IncrementalPCA in the same run.
"""

from __future__ import annotations

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.preprocessing import scale

import bracketflow as bf
from bracketflow.estimators import StreamingPCA

TESTS = Path(__file__).parents[1] / "tests"
BATCHES = (1, 7, 50, 500)
FORGET = (0.0, 0.001, 0.003, 0.01)


def tests():
    """scikit-learn's tests of IncrementalPCA and its estimator checks, on StreamingPCA."""
    import pytest

    file = TESTS / "test_estimators_sklearn.py"
    print("scikit-learn's tests of IncrementalPCA with the class replaced, and its checks:")
    pytest.main(["-q", "--no-header", "-p", "no:cacheprovider", str(file)])
    sys.path[:0] = [str(TESTS)]
    from test_estimators_sklearn import OTHERS, THEIRS

    print(f"\n{len(THEIRS) - len(OTHERS)} of {len(THEIRS)} test functions pass; the others:")
    for name, (reason, _) in OTHERS.items():
        print(f"  {name}: {reason}")


def streamed(pca, rows, size):
    """The estimator after the rows in batches, and the seconds it took; None where it cannot."""
    start = time.perf_counter()
    try:
        for i in range(0, len(rows), size):
            pca.partial_fit(rows[i : i + size])
    except ValueError:
        return None, np.nan
    return pca, time.perf_counter() - start


def compared(rows, k, size):
    """Subspace errors of ours and theirs, and the ratio of their times."""
    truth = PCA(k, svd_solver="full").fit(rows).components_.T
    errors, seconds = [], []
    for pca in (StreamingPCA(k), IncrementalPCA(k)):
        fitted, took = streamed(pca, rows, size)
        errors.append(np.nan if fitted is None else bf.subspace_error(fitted.components_.T, truth))
        seconds.append(took)
    return *errors, seconds[0] / seconds[1]


def table(data, ks, sizes):
    """Print one line a case; return how many are worse than IncrementalPCA."""
    print(
        f"{'rows':<22} {'k':>3} {'batch':>5}  {'StreamingPCA':>12}  {'IncrementalPCA':>14}  time ×"
    )
    worse = 0
    for name, rows in data.items():
        for k in ks:
            for size in sizes:
                ours, theirs, ratio = compared(rows, k, size)
                worse += bool(ours > theirs)
                other = "cannot run" if np.isnan(theirs) else f"{theirs:.1e}"
                factor = "" if np.isnan(ratio) else f"{ratio:6.1f}"
                print(f"{name:<22} {k:>3} {size:>5}  {ours:12.1e}  {other:>14}  {factor}")
    print(f"worse than IncrementalPCA: {worse} cases\n")
    return worse


def batches():
    """Point by point: full PCA on all rows is the judge."""
    data = {"digits": load_digits().data, "breast_cancer": load_breast_cancer().data}
    data |= {f"{name}, scaled": scale(rows) for name, rows in data.items()}
    return table(data, (2, 5, 10), BATCHES)


def wide():
    """More than 128 features: 4k + 10 columns and a level."""
    rng = np.random.default_rng(0)
    sizes = np.r_[np.linspace(4, 2, 5), np.ones(495)]
    rows = rng.standard_normal((3000, 500)) * sizes
    return table({"5 spikes, n = 500": rows}, (2, 5), BATCHES[1:])


def drifting(rng, n, k, kind, count=120, size=50):
    """Batches and their true components: still, turning at two speeds, or jumping once."""
    basis = bf.random_basis(n, rng=rng)
    turn = rng.standard_normal((n, n))
    turn = (turn - turn.T) / np.linalg.norm(turn - turn.T, 2)
    speed = {"slow": 0.005, "fast": 0.05}.get(kind, 0.0)
    for t in range(count):
        basis = bf.cayley(basis, speed * turn)
        if kind == "jump" and t == count // 2:
            basis = bf.random_basis(n, rng=rng)
        spread = np.r_[np.linspace(5, 3, k), np.ones(n - k)]
        yield (rng.standard_normal((size, n)) * spread) @ basis.T, basis[:, :k]


def followed(n, k, kind, forget, seed):
    """Median error over the second half of a drifting stream."""
    pca = StreamingPCA(k, forget=forget, random_state=seed)
    errors = []
    for rows, truth in drifting(np.random.default_rng(seed), n, k, kind):
        errors.append(bf.subspace_error(pca.partial_fit(rows).components_.T, truth))
    return np.median(errors[len(errors) // 2 :])


def forgetting():
    """Learned forgetting beside fixed, median of three seeds."""
    print("n    k  signal  " + "  ".join(f"{f:>6}" for f in FORGET) + "  learned  learned / best")
    for n, k in ((10, 2), (30, 3), (300, 3)):
        for kind in ("still", "slow", "fast", "jump"):
            figures = [
                np.median([followed(n, k, kind, f, seed) for seed in range(3)])
                for f in (*FORGET, None)
            ]
            shown = "  ".join(f"{x:6.3f}" for x in figures[:-1])
            ratio = figures[-1] / min(figures[:-1])
            print(f"{n:<4} {k}  {kind:<6}  {shown}  {figures[-1]:7.3f}  {ratio:14.2f}", flush=True)


PARTS = {"tests": tests, "batches": batches, "wide": wide, "forgetting": forgetting}

if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="sklearn")
    chosen = sys.argv[1:] or list(PARTS)
    if unknown := set(chosen) - set(PARTS):
        sys.exit(f"unknown part {sorted(unknown)}, expected one of {', '.join(PARTS)}")
    for part in chosen:
        PARTS[part]()
