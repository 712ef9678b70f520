"""Operators of every kind multiply alike; the probe is centred; bad products are refused."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import bracketflow as bf
from bracketflow.core import State
from bracketflow.observation import WIDE, centre, observe
from cases import noise, symmetric

N = 9


class Duck:
    """Anything with `shape` and `@`."""

    def __init__(self, matrix):
        self.matrix, self.shape = matrix, matrix.shape

    def __matmul__(self, block):
        return self.matrix @ block


KINDS = {
    "ndarray": lambda c: c,
    "list": lambda c: c.tolist(),
    "fortran": np.asfortranarray,
    "csr array": sparse.csr_array,
    "csc matrix": sparse.csc_matrix,
    "LinearOperator": aslinearoperator,
    "matmat only": lambda c: LinearOperator(c.shape, matvec=lambda x: c @ x, dtype=c.dtype),
    "callable": lambda c: lambda block: c @ block,
    "duck": Duck,
    "operator": bf.as_operator,
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_operator_gives_the_same_product(kind, rng):
    matrix = symmetric(rng, N)
    block = bf.random_basis(N, 4, rng=rng)
    operator = bf.as_operator(KINDS[kind](matrix), N)
    assert operator.shape == (N, N)
    assert np.allclose(operator @ block, matrix @ block, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_kind_of_operator_can_be_tracked(kind, rng):
    matrix = symmetric(rng, N)
    stream = [bf.as_operator(KINDS[kind](matrix), N)] * 3
    assert bf.track(stream, k=2, rng=rng).state.steps == 3


def test_torch_operators_stay_in_torch(rng):
    matrix = torch.from_numpy(symmetric(rng, N))
    result = bf.decompose(matrix, k=2, rng=rng)
    assert all(
        isinstance(x, torch.Tensor)
        for x in (result.eigenvalues, result.eigenvectors, result.residuals, result.state.basis)
    )
    expected = torch.linalg.eigvalsh(matrix).flip(0)[:2]
    assert torch.allclose(result.eigenvalues, expected, rtol=0, atol=1e-8)


def test_float32_decides_what_goes_out(rng):
    result = bf.decompose(symmetric(rng, N).astype(np.float32), k=2, tol=1e-4, rng=rng)
    assert result.eigenvectors.dtype == result.eigenvalues.dtype == np.float32


def test_integers_and_booleans_become_float64():
    block = np.eye(3)[:, :2]
    for matrix in (np.diag([3, 2, 1]), np.eye(3, dtype=bool), sparse.eye_array(3, dtype=int)):
        assert (bf.as_operator(matrix) @ block).dtype == np.float64


@pytest.mark.parametrize(
    "bad", [np.eye(3) + 0j, np.eye(3).astype(object), sparse.eye_array(3) * 1j]
)
def test_complex_and_object_operators_raise_and_name_the_dtype(bad):
    with pytest.raises(TypeError, match=r"operator must be real, got dtype (complex|object)"):
        bf.as_operator(bad)


@pytest.mark.parametrize("shape", [(3, 4), (3,), (0, 0)])
def test_operators_that_are_not_square_raise(shape):
    with pytest.raises(ValueError, match=r"must be square.*bf\.gram"):
        bf.as_operator(np.ones(shape))


def test_things_that_cannot_multiply_raise():
    with pytest.raises(TypeError, match="operator must be"):
        bf.as_operator("matrix")
    with pytest.raises(ValueError, match="n must be at least 1"):
        bf.as_operator(lambda x: x, 0)


# gram -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", [1, 2, 50])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array, sparse.coo_array, torch.from_numpy])
def test_gram_is_the_second_moment_of_the_rows_and_never_forms_it(b, kind, rng):
    n = 4000  # n × n would be 128 MB
    rows = rng.standard_normal((b, n))
    block = bf.random_basis(n, 3, rng=rng)
    operator = bf.gram(kind(rows))
    image = operator @ (torch.from_numpy(block) if kind is torch.from_numpy else block)
    assert np.allclose(image, rows.T @ (rows @ block) / b, rtol=0, atol=1e-12)
    assert operator.weight == b
    assert operator.shape == (n, n)


def test_gram_of_a_stack_is_an_ensemble(rng):
    rows = rng.standard_normal((4, 20, 5))
    block = bf.random_basis(5, 2, rng=rng, ensemble=(4,))
    expected = np.stack([bf.gram(r) @ x for r, x in zip(rows, block, strict=True)])
    assert np.allclose(bf.gram(rows) @ block, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("bad", [np.ones(4), np.ones((0, 4)), np.ones((4, 0))])
def test_gram_refuses_what_is_not_rows(bad):
    with pytest.raises(ValueError, match=r"batch must be rows.*x\[None, :\]"):
        bf.gram(bad)
    with pytest.raises(TypeError, match="batch must be real"):
        bf.gram(np.ones((2, 3)) * 1j)


# shifted, counted, check_symmetric --------------------------------------------------------------


def test_shifted_adds_a_multiple_of_the_identity_and_keeps_the_weight(rng):
    rows = rng.standard_normal((7, N))
    block = bf.random_basis(N, 2, rng=rng)
    operator = bf.shifted(bf.gram(rows), 3.5)
    assert np.allclose(operator @ block, bf.gram(rows) @ block + 3.5 * block, rtol=0, atol=1e-13)
    assert operator.weight == 7
    levels = np.array([1.0, 20.0])
    stack = bf.random_basis(N, 2, rng=rng, ensemble=(2,))
    expected = levels[:, None, None] * stack
    assert np.allclose(bf.shifted(np.zeros((N, N)), levels) @ stack, expected, rtol=0, atol=1e-13)


def test_shifted_keeps_float32(rng):
    block = bf.random_basis(N, 2, rng=rng).astype(np.float32)
    assert (bf.shifted(np.eye(N, dtype=np.float32), np.float64(2)) @ block).dtype == np.float32


def test_counted_counts_products_and_columns(rng):
    operator = bf.counted(symmetric(rng, N))
    for columns in (1, 4):
        operator @ bf.random_basis(N, columns, rng=rng)
    assert (operator.products, operator.matvecs) == (2, 5)


@pytest.mark.parametrize("level", [0.0, 1.0, 1e9])
def test_check_symmetric_is_not_fooled_by_a_shift(level, rng):
    matrix = symmetric(rng, N) + level * np.eye(N)
    assert bf.check_symmetric(matrix, rng=rng)
    assert bf.check_symmetric(lambda x: matrix @ x, N, rng=rng)
    crooked = matrix + np.triu(np.ones((N, N)), 1)
    with pytest.raises(bf.ObservationError, match="not symmetric"):
        bf.check_symmetric(crooked, rng=rng)
    with pytest.raises(ValueError, match="n must be given"):
        bf.check_symmetric(lambda x: x)


# The probe --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [1, 4, N])
@pytest.mark.parametrize("orthonormal", [True, False])
def test_probe_does_not_see_a_shift_for_any_basis(columns, orthonormal, rng):
    matrix = symmetric(rng, N)
    basis = bf.random_basis(N, columns, rng=rng)
    if not orthonormal:
        basis = basis + 0.1 * rng.standard_normal(basis.shape)
    probe, _ = centre(basis, matrix @ basis)
    for alpha in (-3.0, 1e3, 1e6):
        other, _ = centre(basis, matrix @ basis + alpha * basis)
        slack = 50 * np.finfo(float).eps * abs(alpha)
        assert np.allclose(probe.rayleigh, other.rayleigh, rtol=0, atol=slack)
        assert np.allclose(probe.residual, other.residual, rtol=0, atol=slack)
        assert np.isclose(other.background - probe.background, alpha, rtol=1e-12, atol=0)


def test_probe_has_the_defining_formulas(rng):
    matrix, basis = symmetric(rng, N), bf.random_basis(N, 4, rng=rng)
    probe = observe(matrix, State(basis))
    image = matrix @ basis
    level = np.trace(basis.T @ image) / np.trace(basis.T @ basis)
    compressed = basis.T @ (image - level * basis)
    rayleigh = 0.5 * (compressed + compressed.T)
    residual = image - level * basis - basis @ rayleigh
    assert np.isclose(probe.background, level)
    assert np.allclose(probe.rayleigh, rayleigh, rtol=0, atol=1e-13)
    assert np.array_equal(probe.rayleigh, probe.rayleigh.T)
    assert np.allclose(probe.residual, residual, rtol=0, atol=1e-13)
    off = rayleigh - np.diag(np.diag(rayleigh))
    f = 0.5 * np.sum(off**2) + np.sum(residual**2)
    assert np.isclose(probe.lyapunov, f)
    assert np.isclose(bf.lyapunov(basis, matrix), f)
    r = np.sqrt(np.sum(residual**2, axis=0) + np.sum(off**2, axis=0))
    assert np.allclose(probe.residuals, r)
    values = np.linalg.eigvalsh(rayleigh)
    spread = values[-1] - values[0] + np.linalg.norm(residual, 2)
    assert np.isclose(probe.spread, spread)


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("ensemble", [(), (2,)])
@pytest.mark.parametrize("columns", [WIDE, 300])
def test_many_columns_are_probed_by_blocks_alike(columns, ensemble, library, rng):
    """Full and not, with a last block that is whole and one that is not."""
    n = 300
    matrix = symmetric(rng, n, ensemble=ensemble)
    basis = bf.random_basis(n, columns, rng=rng, ensemble=ensemble)
    for alpha in (0.0, 1e6):
        image = matrix @ basis + alpha * basis
        probe, asymmetry = centre(library(basis), library(image))
        compressed = basis.mT @ (image - np.asarray(probe.background)[..., None, None] * basis)
        slack = 1e-11 + 50 * np.finfo(float).eps * alpha
        rayleigh = np.asarray(probe.rayleigh)
        assert np.allclose(rayleigh, 0.5 * (compressed + compressed.mT), rtol=0, atol=slack)
        assert np.array_equal(rayleigh, rayleigh.mT)
        assert np.linalg.norm(np.asarray(asymmetry), axis=(-2, -1)).max() < n * slack


@pytest.mark.parametrize("place", [(10, 200), (200, 10), (70, 71), (299, 298)])
def test_many_columns_do_not_hide_an_asymmetry(place):
    """Above and below the diagonal, within a block and across."""
    matrix = np.diag(np.arange(300.0))
    matrix[place] = 1e-3
    refuse(matrix, State(np.eye(300)), "not symmetric", "check_symmetric")


def test_the_asymmetry_of_many_columns_is_seen_at_its_size(rng):
    skew = rng.standard_normal((300, 300))
    skew = 0.5 * (skew - skew.T)
    basis = bf.random_basis(300, rng=rng)
    _, asymmetry = centre(basis, (symmetric(rng, 300) + skew) @ basis)
    # Twice its square but for the blocks on the diagonal, and a tenth for chance.
    assert 0.9 < np.sum(asymmetry**2) / np.sum(skew**2) < 2.2


def test_residuals_are_those_of_the_eigenvalue_equation(rng):
    matrix, basis = symmetric(rng, N), bf.random_basis(N, 3, rng=rng)
    probe = observe(matrix, State(basis))
    values = np.diag(probe.rayleigh) + probe.background
    expected = np.linalg.norm(matrix @ basis - basis * values, axis=0)
    assert np.allclose(probe.residuals, expected, rtol=1e-12)


# Refusals ---------------------------------------------------------------------------------------


def refuse(operator, state, reason, match):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(bf.ObservationError, match=match) as caught:
            observe(operator, state)
    assert caught.value.reason == reason
    assert isinstance(caught.value, ValueError)
    return caught.value


def test_bad_observations_are_refused_with_reason_and_remedy(rng):
    matrix = symmetric(rng, N)
    state = State(bf.random_basis(N, 4, rng=rng))
    for value in (np.nan, np.inf, -np.inf):
        poisoned = matrix.copy()
        poisoned[3, 5] = poisoned[5, 3] = value
        refuse(poisoned, state, "non-finite", "NaN or Inf")
    refuse(matrix * 1e300, state, "non-finite", "scale the operator down")
    refuse(matrix + np.triu(matrix, 1), state, "not symmetric", "check_symmetric")
    refuse(np.eye(N + 1), state, "wrong shape", "keep the size")
    refuse(lambda x: x[:2], state, "wrong shape", "same shape")
    refuse(lambda x: 1 / 0, state, "raised", "ZeroDivisionError")
    refuse(lambda x: torch.ones(N, 4), state, "wrong type", "one array library")
    tensors = State(torch.asarray(state.basis))
    for operator in (matrix, bf.gram(matrix), bf.shifted(matrix, 1.0), sparse.eye_array(N)):
        refuse(operator, tensors, "wrong type", "one array library")
    loud = matrix + 1e18 * np.eye(N)
    refuse(loud, state._replace(seen=8.0), "drowned", "leaves no digit")
    observe(loud, state)  # never the first observation


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("columns", [3, N])
def test_what_is_too_small_to_be_squared_is_refused_and_nothing_is_not(columns, dtype, rng):
    matrix, basis = symmetric(rng, N), bf.random_basis(N, columns, rng=rng).astype(dtype)
    least = float(np.finfo(dtype).smallest_normal) ** 0.5
    small, smaller = (scale * least * matrix.astype(dtype) for scale in (2.0, 1e-3))
    for library in (np.asarray, torch.from_numpy):
        state = State(library(basis))
        refuse(library(smaller), state, "too small", "scale the operator up")
        observe(library(small), state)
        observe(library(0 * matrix.astype(dtype)), state)
        observe(library(smaller), state._replace(seen=1.0))  # beside what was seen it is nothing
    several = np.stack([small, smaller, 0 * small, smaller])
    state = State(np.stack([basis] * 4), seen=np.array([0.0, 0.0, 0.0, 1.0]))
    assert refuse(several, state, "too small", r"members \[\(1,\)\]").members == ((1,),)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("k", [2, None])
def test_what_is_too_large_to_be_squared_is_refused_before_it_overflows(k, dtype, rng):
    """At every power of ten: absorbed without a warning, or refused with the remedy."""
    matrix, remedies = symmetric(rng, 20), []
    tracker, start = bf.EigenTracker(), bf.random_basis(20, k, rng=rng).astype(dtype)
    top = np.log10(np.finfo(dtype).max)
    powers = np.arange(0.4 * top, 0.6 * top, 0.2)
    for power in powers:
        observed = (10.0**power * (matrix + noise(rng, 20, 0.5))).astype(dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                state, _ = tracker.step(observed, tracker.init(start))
                tracker.step(observed + np.diag(observed[0]), state)
            except bf.ObservationError as error:
                remedies.append(str(error).rpartition(": ")[2])
    assert 0 < len(remedies) < len(powers)
    assert all("scale the operator down" in remedy for remedy in remedies)


def test_a_tiny_matrix_is_never_called_converged_by_mistake(rng):
    """Below 1e-154, and in single precision 1e-19, all residuals used to vanish."""
    for dtype, scales in ((np.float32, (1e-25, 1e-36)), (np.float64, (1e-160, 1e-300))):
        for scale, k in itertools.product(scales, (None, 3)):
            with pytest.raises(bf.ObservationError, match="scale the operator up"):
                bf.decompose((scale * symmetric(rng, 30)).astype(dtype), k=k)


def test_sparse_operators_refuse_a_stack_and_name_the_remedy(rng):
    state = State(bf.random_basis(N, 4, rng=rng, ensemble=(2,)))
    refuse(sparse.eye_array(N), state, "wrong shape", r"array \(\.\.\., n, n\)")


def test_refusal_names_the_members(rng):
    operators = symmetric(rng, N, ensemble=(2, 3))
    operators[1, 2] = np.nan
    operators[0, 1] = np.nan
    state = State(bf.random_basis(N, 4, rng=rng, ensemble=(2, 3)))
    error = refuse(operators, state, "non-finite", r"members \[\(0, 1\), \(1, 2\)\]")
    assert error.members == ((0, 1), (1, 2))


def test_a_multiple_of_the_identity_never_drowns(rng):
    levels = (1.0, 1e6, 1e12, 0.0, 1e15)
    for k in (None, 1, 3):
        result = bf.track([level * np.eye(5) for level in levels], k=k, rng=rng)
        assert result.state.steps == len(levels)
