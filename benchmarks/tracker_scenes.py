"""What the figures of `tracker.py` are made of: contenders, tables, streams.

An observation is a `Seen`: the operator that a tracker multiplies with, and the same thing as a
matrix for the rivals, which keep n × n means.
"""

from __future__ import annotations

import importlib
import itertools
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

import bracketflow as bf

FORGET = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)


class Seen(NamedTuple):
    operator: Any
    matrix: np.ndarray
    weight: float


def of_rows(rows):
    return Seen(bf.gram(rows), rows.T @ rows / len(rows), float(len(rows)))


def of_matrix(matrix):
    return Seen(bf.as_operator(matrix), matrix, 1.0)


# Contenders -------------------------------------------------------------------------------------


class Ours:
    """The library's tracker, always from the same start."""

    def __init__(self, n, k, **options):
        self.method = bf.EigenTracker(k, **options)
        self.state = self.method.init(bf.random_basis(n, k, rng=1))

    def step(self, operator):
        self.state, _ = self.method.step(operator, self.state)

    @property
    def basis(self):
        return np.asarray(self.state.basis)

    def read(self, coverage=0.95):
        return self.method.read(self.state, coverage)


class Factory:
    """Makes the tracker under test: `Factory.make(n, k)`, k = None for the full basis."""

    make: Any = Ours

    @classmethod
    def use(cls, name):
        module, _, attribute = name.partition(":")
        cls.make = getattr(importlib.import_module(module), attribute)


def leading(tracker, k):
    """The k columns of largest eigenvalue."""
    basis = tracker.basis
    if basis.shape[1] == k:
        return basis
    order = tracker.read().order if hasattr(tracker, "read") else range(k)
    return basis[:, list(order)[:k]]


class Averages:
    """Exponential averages side by side; a forgetting factor of 0 is the mean of everything.

    With batches of one size the gain is max(f, 1/t), else the same in units of weight.
    """

    def __init__(self, n, forget=FORGET):
        self.forget = np.array(forget)
        self.means = np.zeros((len(forget), n, n))
        self.total, self.count = 0.0, 0

    def step(self, seen):
        self.total, self.count = self.total + seen.weight, self.count + 1
        share = seen.weight / (self.total / self.count)
        gains = np.maximum(1 - (1 - self.forget) ** share, seen.weight / self.total)
        self.means += gains[:, None, None] * (seen.matrix - self.means)

    def bases(self, k=None):
        return np.linalg.eigh(self.means)[1][..., ::-1][..., :k]


class SubspaceIteration:
    """One block of 4k columns, X ← orth((1 − g) X diag(λ) + g C X), g as of the averages."""

    def __init__(self, n, k, forget):
        self.block = bf.random_basis(n, min(n, 4 * k), rng=1)
        self.values, self.k, self.forget = np.zeros(self.block.shape[1]), k, forget
        self.total, self.count = 0.0, 0

    def step(self, seen):
        self.total, self.count = self.total + seen.weight, self.count + 1
        share = seen.weight / (self.total / self.count)
        gain = max(1 - (1 - self.forget) ** share, seen.weight / self.total)
        mixed = (1 - gain) * self.block * self.values + gain * (seen.matrix @ self.block)
        self.block, self.values, _ = np.linalg.svd(mixed, full_matrices=False)

    @property
    def basis(self):
        return self.block[:, : self.k]


# Ingredients ------------------------------------------------------------------------------------


def haar(n, rng, k=None):
    return bf.random_basis(n, k, rng=rng)


def top(matrix, k):
    n = len(matrix)
    return linalg.eigh(matrix, subset_by_index=[n - k, n - 1])[1][:, ::-1]


def composed(basis, values):
    matrix = (basis * values) @ basis.T
    return 0.5 * (matrix + matrix.T)


def symmetric_noise(rng, n, size=None):
    """E with ‖E‖_F = size, or with entries of variance 1/n off the diagonal."""
    noise = rng.standard_normal((n, n))
    noise = noise + noise.T
    return noise * (size / np.linalg.norm(noise) if size else (2 * n) ** -0.5)


def background(rng):
    """σ_t²: anywhere in 0 … 2000, one in fifty an impulse of 1e5."""
    return rng.uniform(0, 2000) + 1e5 * (rng.random() < 0.02)


def rotation(rng, n, speed, norm=2):
    """exp of a random skew matrix whose norm is `speed`."""
    skew = rng.standard_normal((n, n))
    skew = skew - skew.T
    return linalg.expm(speed / np.linalg.norm(skew, norm) * skew)


def spiked(rng, basis, deviations, noise, count):
    """Rows x = Σ s_i d_i u_i + noise e."""
    signal = (rng.standard_normal((count, len(deviations))) * deviations) @ basis.T
    return signal + noise * rng.standard_normal((count, len(basis)))


# Tables -----------------------------------------------------------------------------------------


def standardised(table):
    table = np.asarray(table, float)
    table = table[np.all(np.isfinite(table), axis=1)]
    table = table[:, table.std(axis=0) > 1e-12 * (1 + np.abs(table).max(axis=0))]
    return (table - table.mean(axis=0)) / table.std(axis=0)


def returns(prices):
    return np.diff(np.log(prices.to_numpy()), axis=0)


def tables():
    from skfolio.datasets import load_sp500_dataset
    from sklearn import datasets

    loaded = {
        "digits": datasets.load_digits().data,
        "breast cancer": datasets.load_breast_cancer().data,
        "wine": datasets.load_wine().data,
        "diabetes": datasets.load_diabetes().data,
        "sp500": returns(load_sp500_dataset()),
    }
    return {name: standardised(table) for name, table in loaded.items()}


def more_tables():
    """Tables that ship with packages and that nothing here was tuned on."""
    from skfolio.datasets import load_factors_dataset
    from sklearn import datasets

    loaded = {
        "iris": datasets.load_iris().data,
        "linnerud": np.hstack([datasets.load_linnerud().data, datasets.load_linnerud().target]),
        "factors": returns(load_factors_dataset()),
    }
    try:
        import statsmodels.datasets as packaged
    except ImportError:
        packaged = None
    for name in ("macrodata", "randhie", "star98", "fair", "anes96", "statecrime", "longley"):
        if packaged is not None:
            frame = getattr(packaged, name).load_pandas().data.select_dtypes("number")
            loaded[name] = frame.to_numpy()
    return {name: standardised(table) for name, table in loaded.items()}


# Streams: generators of (Seen, basis that is right now) -----------------------------------------


def drifting_rows(seed, noise, speed, n=100, k=4, batch=50, steps=800):
    rng = np.random.default_rng(seed)
    basis, turn = haar(n, rng), rotation(rng, n, speed)
    for _ in range(steps):
        basis = basis @ turn
        yield of_rows(spiked(rng, basis[:, :k], np.linspace(5, 3, k), noise, batch)), basis[:, :k]


def drifting_basis(seed, size, speed, same, n=12, steps=1500):
    """λ = n … 1; the rotation is the same in every step, or another one."""
    rng = np.random.default_rng(seed)
    basis, turn = haar(n, rng), rotation(rng, n, speed, "fro")
    for _ in range(steps):
        yield (
            of_matrix(composed(basis, np.arange(n, 0, -1.0)) + symmetric_noise(rng, n, size)),
            basis,
        )
        basis = (turn if same else rotation(rng, n, speed, "fro")) @ basis


def flat_bulk(seed, n, noise, steps=1000):
    rng = np.random.default_rng(seed)
    basis = haar(n, rng)
    signal = composed(basis, np.concatenate([[5.0, 4.0, 3.0], np.zeros(n - 3)]))
    for _ in range(steps):
        yield of_matrix(signal + noise * symmetric_noise(rng, n)), basis[:, :3]


def still_rows(seed, n, deviations, batch, steps, noise=1.0, tail=None, draw=None):
    """Rows of a covariance that stands still; `draw(rng, shape)` replaces the Gaussian."""
    rng = np.random.default_rng(seed)
    basis, k = haar(n, rng), len(deviations)
    scales = np.full(n, noise) if tail is None else np.concatenate([deviations, tail])
    if tail is None:
        scales[:k] = np.hypot(deviations, noise)
    draw = draw or (lambda rng, shape: rng.standard_normal(shape))
    for _ in range(steps):
        size = batch(rng) if callable(batch) else batch
        yield of_rows((draw(rng, (size, n)) * scales) @ basis.T), basis[:, :k]


def student_rows(rng, shape, freedom=2.5):
    """Multivariate t: a whole row is large or small."""
    chi = rng.chisquare(freedom, (shape[0], 1))
    return rng.standard_normal(shape) * np.sqrt(freedom / chi)


def student_entries(rng, shape, freedom=2.5):
    return rng.standard_t(freedom, shape)


def mixed_size(rng):
    return round(10 ** rng.uniform(0, 3))


def varying_rows(seed, deviations_at, k, n=60, batch=20, steps=600, speed=0.0):
    """Rows whose deviations change with t; right are the k directions of largest deviation.

    A source that is switched off is not asked for.
    """
    rng = np.random.default_rng(seed)
    basis, turn = haar(n, rng), rotation(rng, n, speed)
    for t in range(steps):
        deviations = np.asarray(deviations_at(t), float)
        wanted = [i for i in np.argsort(-deviations)[:k] if deviations[i] > 0]
        rows = spiked(rng, basis[:, : len(deviations)], deviations, 1.0, batch)
        yield of_rows(rows), basis[:, wanted]
        basis = basis @ turn


def switching_rows(seed, n=60, k=3, batch=20, steps=600, period=20):
    rng = np.random.default_rng(seed)
    two = haar(n, rng, k), haar(n, rng, k)
    for t in range(steps):
        basis = two[t // period % 2]
        yield of_rows(spiked(rng, basis, np.linspace(5, 3, k), 1.0, batch)), basis


def correlated_matrices(seed, n=12, rho=0.9, steps=1000):
    """λ = n … 1 under symmetric noise that is AR(1) in time."""
    rng = np.random.default_rng(seed)
    basis, noise = haar(n, rng), symmetric_noise(rng, n, 1.0)
    for _ in range(steps):
        noise = rho * noise + (1 - rho**2) ** 0.5 * symmetric_noise(rng, n, 1.0)
        yield of_matrix(composed(basis, np.arange(n, 0, -1.0)) + noise), basis


def correlated_rows(seed, n=60, k=3, rho=0.9, batch=20, steps=600):
    """Rows whose noise is AR(1) in time, row by row."""
    rng = np.random.default_rng(seed)
    basis, noise = haar(n, rng, k), rng.standard_normal(n)
    for _ in range(steps):
        rows = rng.standard_normal((batch, k)) * np.linspace(5, 3, k) @ basis.T
        for i in range(batch):
            noise = rho * noise + (1 - rho**2) ** 0.5 * rng.standard_normal(n)
            rows[i] += noise
        yield of_rows(rows), basis


def follow(stream, k, full=False, after=100, every=20, rivals=FORGET, blocks=(), **options):
    """Mean errors from step `after` on, every `every`-th: the tracker's, and one for each rival.

    k columns are asked for, of the full basis if `full`; k = None asks for the basis itself.
    """
    tracker, errors = None, []
    for t, (seen, truth) in enumerate(stream):
        if tracker is None:
            n = len(truth)
            tracker = Factory.make(n, None if full or k is None else k, **options)
            averages = Averages(n, rivals)
            iterations = [SubspaceIteration(n, k, f) for f in blocks]
        tracker.step(seen.operator)
        averages.step(seen)
        for rival in iterations:
            rival.step(seen)
        if t >= after and (t - after) % every == 0:
            found = [tracker.basis if k is None else leading(tracker, k)]
            found += [*averages.bases(k), *(rival.basis for rival in iterations)]
            measure = bf.basis_error if k is None else bf.subspace_error
            errors.append([measure(x, truth) for x in found])
    return np.mean(errors, axis=0)


def shifted(stream, rng):
    """The same stream; the tracker sees it under a background that swings."""
    for seen, truth in stream:
        yield seen._replace(operator=bf.shifted(seen.operator, background(rng))), truth


def bursts(rng, part, factor, steps):
    """Noise levels: 1, in a share of the observations `factor`."""
    return np.where(rng.random(steps) < part, factor, 1.0)


def bootstrapped(seed, table, truth, batch=20, steps=200):
    """Rows of a table, drawn with replacement."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield of_rows(table[rng.integers(0, len(table), batch)]), truth


def burst_stream(seed, n, rows, steps=200):
    """λ = 10, 8, 6 above a tail; noise ten times as strong in 30 % of the observations."""
    rng = np.random.default_rng(seed)
    basis = haar(n, rng)
    values = np.concatenate([[10.0, 8.0, 6.0], np.linspace(3, 0, n - 3)])
    for level in bursts(rng, 0.3, 10.0, steps):
        if rows:
            seen = of_rows(spiked(rng, basis, np.sqrt(values), level, 50))
        else:
            seen = of_matrix(composed(basis, values) + level * symmetric_noise(rng, n, 1.0))
        yield seen, basis[:, :3]


def batches_of(rows, size, seed, order):
    """Whole batches of one size; shuffled, or as the table has them."""
    if order == "shuffled":
        rows = rows[np.random.default_rng(seed).permutation(len(rows))]
    return [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]


def grid(*axes):
    return list(itertools.product(*axes))
