"""examples/private_covariance.py: the mechanism is the one that is accounted for."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("dp_accounting")
pytest.importorskip("sklearn")
if importlib.util.find_spec("diffprivlib") is None:
    pytest.skip("needs diffprivlib", allow_module_level=True)

PATH = Path(__file__).parents[1] / "examples" / "private_covariance.py"
SIGMAS = 6  # a Gaussian exceeds six standard errors with probability 1e-9


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("private_covariance", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_row_moves_no_gram_matrix_by_more_than_the_sensitivity(example, rng):
    rows = rng.standard_normal((500, 8)) * 10 ** rng.uniform(-3, 3, (500, 1))
    short = example.clipped(rows)
    moved = np.linalg.norm(short[:, :, None] * short[:, None, :], axis=(1, 2))
    bound = example.CLIP**2
    assert np.all(moved <= bound * (1 + 1e-12))
    assert np.max(moved) == pytest.approx(bound)
    inside = np.linalg.norm(rows, axis=1) <= example.CLIP
    assert np.array_equal(short[inside], rows[inside])
    assert np.array_equal(example.clipped(np.zeros((2, 3))), np.zeros((2, 3)))


def test_the_noise_is_as_strong_as_calibrated_in_every_symmetric_direction(example, rng):
    n, draws, epsilon = 5, 20_000, 0.7
    sigma = example.CLIP**2 * example.get_sigma_gaussian(epsilon, example.DELTA)
    noises = np.stack([example.released(np.zeros((n, n)), epsilon, rng) for _ in range(draws)])
    assert np.array_equal(noises, noises.mT)
    direction = rng.standard_normal((n, n))
    direction += direction.T
    pair = np.zeros((n, n))
    pair[0, 1] = pair[1, 0] = 1
    for symmetric in (np.eye(n), np.diag(np.arange(n)), pair, direction):
        along = np.sum(noises * symmetric, axis=(1, 2)) / np.linalg.norm(symmetric)
        error = SIGMAS * sigma**2 * (2 / draws) ** 0.5
        assert np.mean(along**2) == pytest.approx(sigma**2, abs=error)


def test_the_calibration_is_the_analytic_one(example):
    """δ = Φ(1/(2σ) − εσ) − e^ε Φ(−1/(2σ) − εσ) for sensitivity 1."""
    from scipy.stats import norm

    for epsilon in example.EPSILONS:
        sigma = example.get_sigma_gaussian(epsilon, example.DELTA)
        first = norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        second = np.exp(epsilon) * norm.cdf(-1 / (2 * sigma) - epsilon * sigma)
        assert first - second == pytest.approx(example.DELTA, rel=1e-6)


def test_every_row_is_in_one_batch_and_rows_never_leave_unclipped(example, monkeypatch):
    rows = np.random.default_rng(0).standard_normal((2 * example.BATCH + 7, 4))
    monkeypatch.setattr(example, "released", lambda gram, epsilon, rng: gram)
    batches = list(example.released_batches(rows, 1.0, None))
    assert len(batches) == 3
    everything = example.clipped(rows).T @ example.clipped(rows)
    assert np.allclose(sum(batches) * example.BATCH, everything, rtol=1e-12)


def test_passes_add_up_and_zcdp_never_promises_more_than_is_exact(example):
    spent = [example.accounting(passes, 1.0) for passes in (1, 2, 5)]
    assert spent[0][1] == pytest.approx(1, rel=1e-6)
    for by_zcdp, exactly in spent:
        assert by_zcdp >= exactly
    assert spent[0] < spent[1] < spent[2]


def test_the_range_of_the_rows_is_known_beforehand(example):
    for height, width in ((4, 2), (8, 8)):
        rows = example.private_rows(height, width)
        assert rows.shape[1] == height * width
        assert np.linalg.norm(rows, axis=1).max() <= 0.5


def test_next_to_nothing_of_the_noise_is_a_multiple_of_the_identity(example, rng):
    """One of n(n + 1)/2 directions."""
    assert example.background_share(10, rng) == pytest.approx(1 / 55, rel=0.3)


def test_the_tracker_loses_little_beside_the_sum_of_the_releases(example):
    table = example.utility(example.private_rows(4, 2))
    tracked = np.array(table["released batches, tracker"])
    summed = np.array(table["released batches, eigh of their sum"])
    once = np.array(table["one release (Analyze-Gauss)"])
    # Means of 10 draws; the shares scatter by up to 0.1 a draw at the smallest ε.
    assert np.all(tracked >= summed - 0.1)
    assert np.all(once >= summed - 0.1)
    assert example.RIVAL in table
