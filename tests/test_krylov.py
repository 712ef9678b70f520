"""`decompose`: right whatever the spectrum, never CONVERGED with an eigenvalue missing."""

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh

import bracketflow as bf
from cases import symmetric

EPS = np.finfo(float).eps
FOUND = (bf.Status.CONVERGED, bf.Status.PRECISION_FLOOR)


def with_values(values, rng):
    basis = bf.random_basis(len(values), rng=rng)
    return (basis * values) @ basis.T


def path(n):
    return 2 - 2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1))


def cycle(n):
    return 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)


def sums(part, count):
    total = np.zeros(1)
    for _ in range(count):
        total = np.add.outer(total, part).ravel()
    return np.sort(total)[::-1]


SPECTRA = {
    "cube": sums(path(8), 3),
    "square": sums(path(12), 2),
    "torus": sums(cycle(10), 2),
    "hypercube": sums(np.array([0.0, 2.0]), 7),
    "complete": np.append(np.full(39, 40.0), 0.0),
    "bipartite": np.sort(np.concatenate([[25.0, 0], np.full(9, 15.0), np.full(14, 10.0)]))[::-1],
    "four copies": np.append([3.0] * 4, np.linspace(1.9, 0, 26)),
    "cluster": np.append(1 - 1e-10 * np.arange(5), np.linspace(0.8, 0, 60)),
    "wide cluster": np.append(1 - 1e-5 * np.arange(5), np.linspace(0.8, 0, 60)),
    "low rank": np.append([2.0, 1, 1], np.zeros(50)),
}


def product_of(values, dtype=float):
    """diag(λ) as a product: the start is random, so that no basis is special."""
    column = np.asarray(values, dtype=dtype)[:, None]
    operator = bf.as_operator(lambda x: column * x, len(values))
    operator.like = np.empty(0, dtype=dtype)
    return operator


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", SPECTRA)
def test_no_copy_is_missed(kind, dtype, which):
    values = SPECTRA[kind]
    n = len(values)
    for seed, k in itertools.product(range(3), (1, 4, 6, 13)):
        result = bf.decompose(product_of(values, dtype), k, which=which, rng=seed)
        truth = values[:k] if which == "largest" else values[-k:]
        assert result.status in FOUND
        # Residuals of 1e-8 of the spread, and the rounding of products of this size.
        allowed = 2e-8 * np.ptp(values) + 16 * np.finfo(dtype).eps * n**0.5 * np.abs(values).max()
        assert np.abs(result.eigenvalues - truth).max() <= allowed
        assert not result.converged or result.missed_probability <= 1e-6


@pytest.mark.parametrize("kind", SPECTRA)
def test_no_copy_is_missed_where_every_product_has_another_background(kind):
    values = SPECTRA[kind]
    for seed, k in itertools.product(range(2), (1, 4, 9)):
        rng = np.random.default_rng(seed)
        still, levels = product_of(values), []

        def product(x, rng=rng, still=still, levels=levels):
            levels.append(rng.uniform(0, 1e4))
            return still @ x + levels[-1] * x

        result = bf.decompose(bf.as_operator(product, len(values)), k, shifts=True, rng=rng)
        assert result.status in FOUND
        allowed = 2e-8 * np.ptp(values) + 16 * EPS * len(values) ** 0.5 * 1e4
        assert np.abs(result.eigenvalues - levels[-1] - values[:k]).max() <= allowed


@pytest.mark.parametrize("shifts", [False, True])
def test_products_where_nothing_repeats(shifts):
    """1.3 times what the tracker's own solver took: 32, and 46 under a moving background."""
    values = np.append([10, 8, 6.5, 5], np.linspace(3, 0, 296))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        matrix = with_values(values, rng)
        operator = bf.as_operator(
            lambda x, c=matrix, r=rng: c @ x + shifts * r.uniform(0, 1e4) * x, 300
        )
        operator = bf.counted(operator)
        result = bf.decompose(operator, 4, shifts=shifts, rng=rng)
        assert result.converged
        assert result.missed_probability <= 1e-6
        assert result.state.matvecs == operator.matvecs <= (60 if shifts else 42)
        assert result.state.steps == operator.products - 1
        assert bf.subspace_error(result.eigenvectors, np.linalg.eigh(matrix)[1][:, -4:]) < 1e-7


@pytest.mark.parametrize("k", [1, 2, 4, 10])
@pytest.mark.parametrize("values", [np.linspace(10, 0, 1000), sums(path(30), 2)])
def test_products_where_eigenvalues_are_dense(values, k):
    """Half as many again as `eigsh` of the same accuracy, which does not look for copies."""
    ours = theirs = 0
    matrix = product_of(values + 1e-3 * np.arange(len(values))[::-1])  # no two are alike
    for seed in range(3):
        result = bf.decompose(matrix, k, rng=seed)
        assert result.converged
        ours += result.state.matvecs
        counted = bf.counted(matrix)
        start = np.random.default_rng(seed).standard_normal(len(values))
        operator = LinearOperator(
            matrix.shape, lambda x, c=counted: (c @ x[:, None])[:, 0], dtype=float
        )
        eigsh(operator, k, which="LA", tol=1e-8, v0=start)
        theirs += counted.matvecs
    assert ours <= 1.5 * theirs


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize("level", [1e3, 1e6])
@pytest.mark.parametrize("kind", ["cube", "simple"])
def test_a_constant_background_changes_nothing(kind, level, shifts):
    """Not the answer; and where nothing repeats not the work.

    Copies enter a Krylov space through rounding, that of the background included: which of them a
    chain has found, and how many searches it takes to find the others, is a matter of chance.
    """
    simple = np.append([10, 8, 6.5, 5], np.linspace(3, 0, 296))
    values = simple if kind == "simple" else SPECTRA[kind]
    plain = bf.decompose(product_of(values), 4, shifts=shifts, tol=1e-6, rng=0)
    lifted = bf.shifted(product_of(values), level)
    above = bf.decompose(lifted, 4, shifts=shifts, tol=1e-6, rng=0)
    assert above.converged
    assert plain.converged
    assert kind == "cube" or abs(above.state.matvecs - plain.state.matvecs) <= 2
    assert np.abs(above.eigenvalues - plain.eigenvalues - level).max() <= 1e3 * EPS * level


def test_the_search_bounds_how_often_it_misses(monkeypatch):
    """With a probability of 0.2 asked for, at most about that share of copies stays hidden."""
    from bracketflow import krylov

    monkeypatch.setattr(krylov, "MISSED", 0.2)
    values, missed, runs = np.append([3.0, 3.0], np.linspace(2.5, 0, 98)), 0, 300
    for seed in range(runs):
        result = bf.decompose(product_of(values), 2, rng=seed)
        assert result.missed_probability <= 0.2
        missed += bool(abs(result.eigenvalues[1] - 3) > 1e-6)
    # Three standard deviations above the mean of a binomial.
    assert missed <= 0.2 * runs + 3 * (0.16 * runs) ** 0.5


def test_a_run_says_that_it_cannot_know_of_copies():
    """One copy in the span hides the other: residuals of zero, and the wrong second eigenvalue."""
    matrix, method = np.diag([3.0, 3, 1, 0, 0, 0]), bf.BrockettFlow()
    start = method.init(np.ascontiguousarray(np.eye(6)[:, [0, 2]]))
    stop = bf.residual_below(1e-8)
    run = bf.run(method, itertools.repeat(matrix), start, stop=stop)
    assert run.converged
    assert run.eigenvalues == pytest.approx([3, 1])
    assert run.missed_probability is None
    assert "where it is None nobody has looked" in run.status.value
    found = bf.decompose(matrix, 2, rng=0)
    assert found.eigenvalues == pytest.approx([3, 3])
    assert found.missed_probability <= 1e-6


def test_of_a_full_basis_nothing_can_be_missed():
    method, start = bf.DoubleBracketFlow(), bf.random_basis(3, rng=0, ensemble=(2,))
    run = bf.run(method, [np.diag([2.0, 2.0, 1.0])], method.init(start))
    assert (run.missed_probability == np.zeros(2)).all()


def test_a_background_that_moves_unannounced_is_not_called_converged():
    rng = np.random.default_rng(0)
    operator = bf.as_operator(lambda x: product_of(np.arange(50.0)) @ x + rng.uniform(0, 9) * x, 50)
    assert bf.decompose(operator, 3, max_steps=100, rng=0).status is bf.Status.STEP_LIMIT


def test_noise_is_not_called_converged():
    rng = np.random.default_rng(0)

    def product(x):
        return np.arange(50.0)[:, None] * x + 1e-3 * symmetric(rng, 50) @ x

    for shifts in (False, True):
        operator = bf.as_operator(product, 50)
        result = bf.decompose(operator, 3, shifts=shifts, max_steps=100, rng=0)
        assert result.status is bf.Status.STEP_LIMIT
        assert np.allclose(result.eigenvalues, [49, 48, 47], atol=0.1)


@pytest.mark.parametrize("k", [1, 3])
def test_what_is_not_symmetric_is_refused(k, rng):
    with pytest.raises(bf.ObservationError, match="not symmetric"):
        bf.decompose(rng.standard_normal((40, 40)), k, rng=rng)


def test_non_finite_products_are_refused(rng):
    matrix = symmetric(rng, 20)
    for bad in (np.nan, np.inf):
        calls = itertools.count()

        def product(x, bad=bad, calls=calls):
            return matrix @ x if next(calls) != 5 else bad * x

        with pytest.raises(bf.ObservationError, match="non-finite"):
            bf.decompose(bf.as_operator(product, 20), 3, rng=rng)


@pytest.mark.parametrize("limit", [0, 1, 3, 10])
def test_a_limit_on_steps_still_gives_k_columns(limit, rng):
    operator = bf.counted(with_values(np.linspace(1, 0, 200), rng))
    result = bf.decompose(operator, 6, max_steps=limit, rng=rng)
    assert result.status is bf.Status.STEP_LIMIT
    assert result.state.steps == limit == operator.products - 1
    assert result.state.matvecs == operator.matvecs == limit + 6
    defect = result.eigenvectors.T @ result.eigenvectors - np.eye(6)
    assert np.abs(defect).max() < 100 * EPS
    assert (np.diff(result.eigenvalues) <= 0).all()


def test_a_result_speaks_of_one_basis(rng):
    matrix = with_values(SPECTRA["four copies"], rng)
    result = bf.decompose(matrix, 6, rng=rng)
    x = result.eigenvectors
    residuals = np.linalg.norm(matrix @ x - x * result.eigenvalues, axis=0)
    assert np.abs(residuals - result.residuals).max() < 100 * EPS
    assert bf.subspace_error(result.state.basis, x) < 100 * EPS
    assert (x[np.abs(x).argmax(axis=0), np.arange(6)] > 0).all()
    assert bf.certify(result.state, result.probe).eigenvalues == pytest.approx(result.eigenvalues)


@pytest.mark.parametrize("k", [None, 2])
def test_an_ensemble_is_solved_member_by_member(k, rng):
    matrices = symmetric(rng, 12, ensemble=(2, 3))
    matrices[0, 1] = np.diag([5.0] * 3 + [1.0] * 9)
    operator = bf.counted(matrices)
    result = bf.decompose(operator, k, rng=rng)
    assert result.eigenvectors.shape == (2, 3, 12, k or 12)
    assert result.status.shape == result.state.steps.shape == (2, 3)
    assert (result.missed_probability <= 1e-6).all()
    assert result.state.matvecs.max() <= operator.matvecs
    truth = np.linalg.eigvalsh(matrices)[..., ::-1][..., : k or 12]
    assert np.abs(result.eigenvalues - truth).max() < 1e-7


def test_an_ensemble_names_the_member_that_is_refused(rng):
    matrices = symmetric(rng, 12, ensemble=(2, 3))
    matrices[1, 2, 3, 4] = np.nan
    with pytest.raises(bf.ObservationError, match="non-finite") as refused:
        bf.decompose(matrices, 2, rng=rng)
    assert refused.value.members == ((1, 2),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [None, 5])
def test_tensors_stay_tensors(dtype, k):
    values = SPECTRA["torus"]
    matrix = torch.diag(torch.asarray(values.copy(), dtype=dtype))
    result = bf.decompose(matrix, k, rng=0)
    assert result.status in FOUND
    for array in (result.eigenvalues, result.eigenvectors, result.residuals, result.state.basis):
        assert array.dtype == dtype
    size = 100 * torch.finfo(dtype).eps * values.max()
    error = np.abs(result.eigenvalues.numpy() - values[: k or 100]).max()
    assert error <= 2e-8 * np.ptp(values) + size


def test_a_search_that_rounding_blurs_is_not_called_converged():
    """Residuals are below a coarse tolerance, and six equal eigenvalues are less than a rounding
    of the background away from six others: none of them may stand for one of these unnoticed.
    """
    values = sums(cycle(10), 3)
    lifted = bf.shifted(product_of(values, np.float32), 700.0)
    for seed in range(8):
        result = bf.decompose(lifted, 10, tol=1e-2, rng=seed)
        right = np.abs(result.eigenvalues - 700 - values[:10]).max() <= 1e-2 * np.ptp(values)
        assert right or result.status is bf.Status.PRECISION_FLOOR


def test_copies_of_graded_eigenvalues_are_found_within_the_limit():
    """Where three asked for are one, residuals must be down to rounding: T has to be that of C."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        values = np.sort(np.repeat(10.0 ** -rng.uniform(0, 10, 5), 3))[::-1]
        result = bf.decompose(with_values(values, rng), 3, max_steps=200, rng=rng)
        assert result.status in FOUND
        assert result.eigenvalues == pytest.approx(values[:3], abs=64 * EPS * values[0])


def test_a_search_does_not_find_the_same_for_ever():
    """Vectors of a cluster that have converged as little as they must leave a rest of which the
    second chain makes one more: that is for the first chain to settle.
    """
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = np.repeat(np.linspace(1, 0, 7), 8) - 1e-7 * rng.uniform(size=56)
        result = bf.decompose(product_of(np.sort(values)[::-1]), 15, tol=1e-6, rng=seed)
        assert result.converged
        # A chain through all of the space, one search of that length, and what measures the result.
        assert result.state.matvecs <= 2 * 56 + 15


def test_a_tensor_of_one_eigenvalue():
    """One product shows a Krylov space of one dimension, all of it."""
    result = bf.decompose(3 * torch.eye(4, dtype=torch.float64), 1, rng=0)
    assert result.status in FOUND
    assert result.eigenvalues.numpy() == pytest.approx([3.0])


def test_full_basis_takes_two_products(rng):
    operator = bf.counted(symmetric(rng, 30))
    result = bf.decompose(operator)
    assert result.converged
    assert result.missed_probability == 0
    assert operator.products == 2
    assert result.state.steps == 1
