"""Small, square, flat, repeated, negative and badly scaled operators get right answers."""

import itertools

import numpy as np
import pytest

import bracketflow as bf
from cases import symmetric


def solved(matrix, k=None, **kwargs):
    with np.errstate(all="raise", under="ignore"):
        return bf.decompose(matrix, k, max_steps=5000, rng=0, **kwargs)


def assert_eigenpairs(result, matrix, scale=1.0):
    values = np.linalg.eigvalsh(matrix / scale)[::-1][: result.eigenvalues.shape[-1]]
    assert np.allclose(result.eigenvalues / scale, values, rtol=0, atol=1e-6)
    image = matrix / scale @ result.eigenvectors
    assert np.allclose(image, result.eigenvectors * values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("k", [None, 1])
def test_one_dimension(k):
    result = solved(np.array([[3.0]]), k)
    assert result.converged
    assert result.eigenvalues == pytest.approx([3.0])
    assert result.eigenvectors.tolist() == [[1.0]]


@pytest.mark.parametrize("k", [None, 1, 3, 6])
def test_every_k_up_to_n(k, rng):
    matrix = symmetric(rng, 6)
    result = solved(matrix, k)
    assert result.converged
    assert_eigenpairs(result, matrix)


@pytest.mark.parametrize("k", [None, 1, 2])
@pytest.mark.parametrize("level", [0.0, 3.0, -1e9])
def test_zero_matrix_and_multiples_of_the_identity(k, level):
    result = solved(level * np.eye(4), k)
    assert np.allclose(result.eigenvalues, level, rtol=1e-14, atol=0)
    assert result.status in (bf.Status.CONVERGED, bf.Status.PRECISION_FLOOR)
    # Columns that are eigenvectors say nothing of what is outside of them: that takes a look, and
    # products with all n = 4 directions tell everything.
    assert result.state.steps == 0 if k is None else k < result.state.steps <= 4


@pytest.mark.parametrize("k", [None, 3])
def test_repeated_eigenvalues(k, rng):
    matrix = symmetric(rng, 6, eigenvalues=[5, 5, 5, 1, 1, 0])
    result = solved(matrix, k)
    assert result.status in (bf.Status.CONVERGED, bf.Status.PRECISION_FLOOR)
    assert_eigenpairs(result, matrix)


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("eigenvalues", [[-1, -2, -3, -4, -5], [4, 2, 0, -2, -4], [3, 2, 0, 0, 0]])
def test_negative_indefinite_and_rank_deficient(k, eigenvalues, rng):
    matrix = symmetric(rng, 5, eigenvalues=eigenvalues)
    result = solved(matrix, k)
    assert result.converged
    assert_eigenpairs(result, matrix)


@pytest.mark.parametrize("k", [None, 1, 2])
@pytest.mark.parametrize("scale", [1e-150, 1e150])
def test_extreme_scales(k, scale, rng):
    matrix = scale * symmetric(rng, 5)
    result = solved(matrix, k)
    assert result.converged
    assert_eigenpairs(result, matrix, scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_reaches_its_own_tolerance(dtype, rng):
    matrix = symmetric(rng, 6).astype(dtype)
    tol = 1e-5 if dtype == np.float32 else 1e-8
    result = solved(matrix, tol=tol)
    assert result.converged
    assert result.eigenvectors.dtype == dtype
    assert result.residuals.max() <= tol * 6


def test_diagonal_start_is_recognised_at_once():
    matrix = np.diag([4.0, 3.0, 2.0, 1.0])
    flow = bf.DoubleBracketFlow()
    stop = [bf.residual_below(1e-8), bf.max_steps(10)]
    result = bf.run(flow, itertools.repeat(matrix), flow.init(np.eye(4)), stop=stop)
    assert result.converged
    assert result.state.steps == 0


def test_no_step_rule_divides_by_zero_on_a_flat_operator():
    for step in (bf.Certified(), bf.Certified(bound="paper"), bf.Adaptive()):
        flow = bf.DoubleBracketFlow(step)
        state = flow.init(bf.random_basis(3, rng=0))
        with np.errstate(all="raise"):
            state, _ = flow.step(np.zeros((3, 3)), state)
        assert np.isfinite(state.basis).all()
    flow = bf.BrockettFlow((2, 1))
    with np.errstate(all="raise"):
        state, _ = flow.step(np.zeros((3, 3)), flow.init(bf.random_basis(3, 2, rng=0)))
    assert np.isfinite(state.basis).all()
