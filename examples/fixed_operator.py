"""A fixed operator: what bracketflow finds, what eigsh finds, and when to prefer which.

For one matrix that stays as it is, `scipy.sparse.linalg.eigsh` needs about as many products, is
compiled, and has been tried for decades: prefer it. As soon as every product sees another
background, or the matrix itself moves, eigsh answers a question that no longer exists, while
bracketflow's answer stays right.
"""

import itertools

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

import bracketflow as bf

SIDE, K = 24, 4


def vibrating_plate(side):
    """A five-point Laplacian on a plate that is a little heavier on one side: sparse, n = side²."""
    line = sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    eye = sparse.eye_array(side)
    weight = sparse.diags_array(np.linspace(0, 0.3, side))
    return (sparse.kron(line + weight, eye) + sparse.kron(eye, 1.3 * line)).tocsr()


def counted(matrix, background):
    """`matrix` + α I with another α at every product, as eigsh sees it, and its counter."""
    calls = itertools.count()
    products = []

    def matvec(x):
        products.append(x)
        return matrix @ x + background(next(calls)) * x

    return LinearOperator(matrix.shape, matvec=matvec, dtype=float), products


def main():
    matrix = vibrating_plate(SIDE)
    truth = np.linalg.eigh(matrix.toarray())[1][:, -K:]

    result = bf.decompose(matrix, K, rng=0)
    still, products = counted(matrix, lambda t: 0.0)
    vectors = eigsh(still, K, which="LA", tol=1e-8)[1]
    print(f"fixed, n = {matrix.shape[0]}, k = {K}        products   subspace error")
    for name, count, found in (
        ("bf.decompose", int(result.state.matvecs), result.eigenvectors),
        ("eigsh", len(products), vectors),
    ):
        print(f"  {name:<28s}{count:>8d}{bf.subspace_error(found, truth):>17.1e}")

    rng = np.random.default_rng(0)
    levels = rng.uniform(0, 1000, 100_000)
    stream = (bf.shifted(matrix, level) for level in levels)
    tracked = bf.track(stream, K, stop=[bf.residual_below(1e-8), bf.max_steps(2000)], rng=0)
    swinging, products = counted(matrix, lambda t: levels[t])
    try:
        vectors = eigsh(swinging, K, which="LA", tol=1e-8, maxiter=100)[1]
    except ArpackNoConvergence as failure:
        vectors = failure.eigenvectors
    lost = bf.subspace_error(vectors, truth) if vectors.shape[1] else np.sqrt(K)
    print("the same under a background that changes with every product, 0 … 1000")
    print(
        f"  {'bf.track':<28s}{int(tracked.state.matvecs):>8d}"
        f"{bf.subspace_error(tracked.eigenvectors, truth):>17.1e}"
    )
    print(f"  {'eigsh':<28s}{len(products):>8d}{lost:>17.1e}")


if __name__ == "__main__":
    main()
