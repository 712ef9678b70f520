"""`decompose` on random problems beside `eigsh`, each line with its bound.

    python benchmarks/decompose.py [problems] [seed]

A problem is wrong when an eigenvalue is off by more than the residuals allow: 2·tol·spread of the
whole spectrum, or 64·eps·√n times the size of the products, background included.
"""

import sys
import time
import warnings
from collections import Counter

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

import bracketflow as bf

TOL = 1e-8


# Spectra ----------------------------------------------------------------------------------------


def path(n):
    """Eigenvalues of the Laplacian of a path."""
    return 2 - 2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1))


def cycle(n):
    """Eigenvalues of the Laplacian of a cycle."""
    return 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)


def kronecker_sum(*parts):
    """All sums of one eigenvalue of each part."""
    total = np.zeros(1)
    for part in parts:
        total = np.add.outer(total, part).ravel()
    return total


def side_of(n, dimension):
    return max(2, round(n ** (1 / dimension)))


def grid(rng, n):
    d = int(rng.integers(1, 4))
    if d == 1:
        n = min(n, 200)  # longer paths take thousands of products
    return kronecker_sum(*[path(side_of(n, d))] * d)


def torus(rng, n):
    d = int(rng.integers(1, 4))
    if d == 1:
        n = min(n, 200)
    return kronecker_sum(*[cycle(side_of(n, d))] * d)


def hypercube(rng, n):
    d = max(1, round(np.log2(n)))
    return kronecker_sum(*[np.array([0.0, 2.0])] * d)


def complete(rng, n):
    return np.where(np.arange(n) == 0, 0.0, n)


def bipartite(rng, n):
    a = int(rng.integers(1, n))
    values = np.full(n, float(a))
    values[: a - 1] = n - a
    values[-2:] = 0.0, n
    return values


def cluster(rng, n):
    size = int(rng.integers(1, min(n, 12) + 1))
    gap = rng.choice([0.0, *10.0 ** rng.uniform(-14, -3, 3)])
    bulk = np.sort(rng.uniform(0, rng.uniform(0.3, 0.97), n - size))
    return np.concatenate([1 - gap * np.arange(size), bulk])


def many_clusters(rng, n):
    centres = rng.uniform(0, 5, int(rng.integers(2, 8)))
    return rng.choice(centres, n) + rng.choice([0.0, 1e-12, 1e-9, 1e-6]) * rng.uniform(size=n)


def kronecker(rng, n):
    part = np.sort(rng.uniform(0, 1, side_of(n, 2)))
    return kronecker_sum(part, part)


def low_rank(rng, n):
    values = np.zeros(n)
    rank = int(rng.integers(0, min(n, 25) + 1))
    values[:rank] = rng.choice([rng.uniform(0.1, 1), 1.0], rank)
    return values


def even(rng, n):
    return np.linspace(1, 0, min(n, 300))


def spiked(rng, n):
    size = int(rng.integers(1, min(n, 20) + 1))
    return np.concatenate([rng.uniform(2, 5, size), rng.uniform(0, 1.5, n - size)])


SPECTRA = (
    grid, torus, hypercube, complete, bipartite, cluster, cluster, many_clusters, kronecker,
    low_rank, even, spiked,
)  # fmt: skip


# Problems ---------------------------------------------------------------------------------------


def turned(values, rng):
    """A symmetric matrix with these eigenvalues: dense for small n, else H diag(λ) H."""
    n = len(values)
    values = rng.permutation(values)
    if n <= 400 and rng.random() < 0.5:
        basis = bf.random_basis(n, rng=rng)
        return (basis * values) @ basis.T
    u = rng.standard_normal((n, 1))
    u /= np.linalg.norm(u)

    def reflected(x):
        return x - (2 * u.astype(x.dtype)) @ (u.T.astype(x.dtype) @ x)

    return lambda x: reflected(values.astype(x.dtype)[:, None] * reflected(x))


def regular_graph(rng, n):
    """The adjacency matrix of a random regular multigraph, and its spectrum."""
    n, degree = min(n, 500), int(rng.integers(2, 6))
    matrix = sparse.csr_array((n, n))
    for _ in range(degree):
        matrix = matrix + sparse.eye_array(n).tocsr()[rng.permutation(n)]
    matrix = (matrix + matrix.T).tocsr()
    return matrix, np.linalg.eigvalsh(matrix.toarray())


class Problem:
    """One draw: an operator, what is asked of it, and the answer."""

    def __init__(self, seed):
        self.rng = rng = np.random.default_rng(seed)
        n = int(2 ** rng.uniform(1, np.log2(3000)))
        if rng.random() < 0.08:
            self.kind = "regular_graph"
            matrix, values = regular_graph(rng, max(n, 6))
        else:
            make = SPECTRA[rng.integers(len(SPECTRA))]
            self.kind = make.__name__
            values = make(rng, n)
            matrix = turned(values, rng)
        self.values, self.n = np.sort(values)[::-1], len(values)
        self.product = matrix if callable(matrix) else lambda x: matrix @ x
        self.which = rng.choice(["largest", "smallest"])
        self.k = int(min(rng.integers(1, 21), max(1, self.n - 1)))
        self.dtype = rng.choice([np.float64, np.float64, np.float32])
        self.shifts = rng.random() < 0.35
        self.size = rng.choice([0.0, 0.0, 1.0, 1e3, 1e6, 1e12])
        self.level = self.size * rng.uniform(0.5, 1)

    @property
    def truth(self):
        return self.values[: self.k] if self.which == "largest" else self.values[-self.k :]

    def solve(self, **options):
        """Result, the products made, and the level of the last of them."""
        levels = [0.0]

        def product(x):
            levels[0] = self.rng.uniform(0, 1) * self.size if self.shifts else self.level
            return (self.product(x) + x.dtype.type(levels[0]) * x).astype(x.dtype)

        operator = bf.as_operator(product, self.n)
        operator.like = np.empty(0, dtype=self.dtype)
        operator = bf.counted(operator)
        result = bf.decompose(
            operator, self.k, which=self.which, shifts=self.shifts, rng=self.rng, **options
        )
        return result, operator.matvecs, levels[0]

    def allowed(self):
        spread = self.values[0] - self.values[-1]
        eps = np.finfo(self.dtype).eps
        size = np.abs(self.values).max() + self.size
        return 2 * TOL * spread + 64 * eps * self.n**0.5 * size

    def eigsh(self, tol):
        """Eigenvalues found, products; in double precision without any background."""
        count = [0]

        def matvec(x):
            count[0] += 1
            return self.product(x.reshape(-1, 1))[:, 0]

        operator = LinearOperator((self.n, self.n), matvec=matvec, dtype=float)
        v0 = self.rng.standard_normal(self.n)
        which = "LA" if self.which == "largest" else "SA"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = eigsh(operator, self.k, which=which, v0=v0, tol=tol)[0]
        except (ArpackError, TypeError):
            return None, count[0]
        return np.sort(found)[::-1], count[0]


def random_problems(count=500, first=0, show=True):
    """Tally of `count` problems from the seed `first` on."""
    tally, ratios, wrong = Counter(), {0: [], TOL: []}, []
    for seed in range(first, first + count):
        problem = Problem(seed)
        result, products, level = problem.solve()
        error = np.abs(result.eigenvalues - (problem.truth + level)).max()
        right = bool(error <= problem.allowed())
        tally[result.status.name] += 1
        tally["right"] += right
        tally["said so"] += right and result.status.name in ("CONVERGED", "PRECISION_FLOOR")
        if result.converged and not right:
            wrong.append((seed, problem.kind, float(error)))
        if result.status.name == "PRECISION_FLOOR" and not right:
            tally["wrong at the floor"] += 1
        if result.converged and not result.missed_probability <= 1e-6:
            tally["CONVERGED, but not searched"] += 1
        if problem.dtype == np.float64 and not problem.size:
            tally["beside eigsh"] += 1
            tally["right beside eigsh"] += right
            for tol in ratios:
                found, theirs = problem.eigsh(tol)
                ratios[tol].append(products / max(theirs, 1))
                if tol == 0:
                    fits = found is not None and len(found) == problem.k
                    close = fits and np.abs(found - problem.truth).max() <= problem.allowed()
                    tally["eigsh right"] += bool(close)
        if show and result.status.name == "STEP_LIMIT":
            print(f"    step limit: seed {seed}, {problem.kind}, n = {problem.n}, k = {problem.k}")
    return tally, ratios, wrong


# Figures ----------------------------------------------------------------------------------------


def report(text, figure, bound=None):
    mark = "" if bound is None else f"   (bound {bound:g}){'' if figure <= bound else '  MISSED'}"
    print(f"{text:<68s}{figure:>10.4g}{mark}")


def benchmark_products(seeds=10):
    """Products, n = 300, k = 4, λ = 10, 8, 6.5, 5, bulk in [0, 3]: static, and under U(0, 1e4)."""
    counts = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        values = np.concatenate([[10, 8, 6.5, 5], np.linspace(3, 0, 296)])
        basis = bf.random_basis(300, rng=rng)
        matrix = (basis * values) @ basis.T
        still = bf.decompose(matrix, 4, rng=rng)
        moving = bf.as_operator(lambda x, c=matrix, r=rng: c @ x + r.uniform(0, 1e4) * x, 300)
        shifted = bf.decompose(moving, 4, shifts=True, rng=rng)
        assert still.converged
        assert shifted.converged
        counts.append((still.state.matvecs, shifted.state.matvecs))
    return np.max(counts, axis=0)


def as_scipy(operator, n):
    return LinearOperator((n, n), matvec=lambda x: (operator @ x[:, None])[:, 0], dtype=float)


def large_sparse(k, rounds=3, n=100_000):
    """Median ratios of time and products to `eigsh` at n = 100,000, five entries a row."""
    rng = np.random.default_rng(0)
    rows, columns = rng.integers(0, n, (2, 2 * n))
    entries = sparse.coo_array((rng.standard_normal(2 * n), (rows, columns)), shape=(n, n))
    spikes = np.concatenate([np.linspace(60, 30, 20), np.zeros(n - 20)])
    matrix = (entries + entries.T + sparse.diags_array(spikes)).tocsr()
    ratios = []
    for seed in range(rounds):
        theirs = bf.counted(matrix)
        begin = time.perf_counter()
        found = bf.decompose(matrix, k=k, rng=seed)
        middle = time.perf_counter()
        vectors = eigsh(as_scipy(theirs, n), k, which="LA", tol=TOL)[1]
        end = time.perf_counter()
        assert bf.subspace_error(found.eigenvectors, vectors) < 1e-6
        ratios.append(((middle - begin) / (end - middle), found.state.matvecs / theirs.matvecs))
    return np.median(ratios, axis=0)


def dense_spectra(seeds=5):
    """(name, k, median products / `eigsh`'s with tol = 1e-8), and no two eigenvalues alike."""
    one, two = path(30), 1.01 * path(30)  # the Laplacian of a square, its symmetry broken
    for name, values in (
        ("linspace", np.linspace(10, 0, 1000)),
        ("square", kronecker_sum(one, two)),
    ):
        matrix = sparse.diags_array(values).tocsr()
        for k in (1, 2, 4, 10):
            ratios = []
            for seed in range(seeds):
                theirs = bf.counted(matrix)
                v0 = np.random.default_rng(seed).standard_normal(len(values))
                eigsh(as_scipy(theirs, len(values)), k, which="LA", tol=TOL, v0=v0)
                found = bf.decompose(matrix, k, rng=seed)
                ratios.append(found.state.matvecs / theirs.matvecs)
            yield name, k, np.median(ratios)


def main(count=500, first=0):
    still, moving = benchmark_products()
    report("static, n = 300, k = 4: products, at most", still, 42)
    report("σ² from U(0, 10000) in every product: products, at most", moving, 60)
    for k in (1, 4, 10):
        spent, products = large_sparse(k)
        report(f"n = 100,000, sparse, k = {k}: time / eigsh's", spent, 1.5)
        report("… products / eigsh's", products)
    for name, k, ratio in dense_spectra():
        report(f"{name}, k = {k}: products / eigsh's with tol = 1e-8", ratio, 1.5)
    tally, ratios, wrong = random_problems(count, first)
    report("random problems", count)
    for name in ("CONVERGED", "PRECISION_FLOOR", "STEP_LIMIT", "right", "said so"):
        report(f"… {name}", tally[name])
    report("… CONVERGED and wrong", len(wrong), 0)
    report(
        "… CONVERGED with a missed_probability above 1e-6", tally["CONVERGED, but not searched"], 0
    )
    report("… PRECISION_FLOOR and wrong", tally["wrong at the floor"])
    report("… beside eigsh (float64, no background)", tally["beside eigsh"])
    report(
        "… eigsh with its defaults right more often by",
        tally["eigsh right"] - tally["right beside eigsh"],
        0,
    )
    report("… median products / eigsh's with its defaults", np.median(ratios[0]), 1.3)
    report("… median products / eigsh's with tol = 1e-8", np.median(ratios[TOL]), 1.3)
    for seed, kind, error in wrong:
        print(f"    wrong: seed {seed}, {kind}, error {error:.2g}")


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
