"""Baselines: the method contract, what each is known to do, and what the printed ones get wrong."""

import itertools

import numpy as np
import pytest

import bracketflow as bf
from bracketflow import baselines as bl

EPS = np.finfo(float).eps

ANY_K = [
    bl.SubspaceIteration(),
    bl.QROja(),
    bl.QROja(power=2, offset=1.0),
    bl.QROja(trace_free=True),
    bl.EuclideanGradient(1e-3),
    bl.ProjectedOja(),
    bl.AdaOja(),
    bl.CCIPCA(),
    bl.PASTd(),
]
SQUARE = [
    bl.ExponentialAverage(),
    bl.OrthogonalIteration(),
    bl.CyclicJacobi(),
    bl.PrintedCayley(1e-3),
    bl.PrintedNeumann(1e-3, order=2),
    bl.PrintedNeumann(1e-3, order=4, skew=True, centred=True),
]
STIEFEL = [bl.PrintedStiefel((3.0, 2.0, 1.0), 1e-3)]
CASES = [(m, 3) for m in ANY_K + STIEFEL] + [(m, 6) for m in SQUARE]


def name_of(value):
    return type(value).__name__ if hasattr(value, "step") else str(value)


def signal(n=6, seed=0):
    q = bf.random_basis(n, rng=seed)
    c = q * np.arange(n, 0, -1.0) @ q.T
    return 0.5 * (c + c.T), q


@pytest.mark.parametrize(("method", "k"), CASES, ids=name_of)
def test_step_is_pure_counted_and_orthonormal(method, k):
    c, _ = signal()
    start = bf.random_basis(6, k, rng=1)
    kept = start.copy()
    operator = bf.counted(c)
    state = method.init(start)
    following, probe = method.step(operator, state)
    again, _ = method.step(c, state)
    assert operator.products == 1
    assert operator.matvecs == following.matvecs == k
    assert following.steps == 1
    assert state.steps == 0
    np.testing.assert_array_equal(start, kept)
    np.testing.assert_array_equal(following.basis, again.basis)
    np.testing.assert_array_equal(probe.basis, start)
    # One truncated or printed step leaves a defect far below 1e-6 at this step size.
    assert np.linalg.norm(following.basis.T @ following.basis - np.eye(k)) < 1e-6


@pytest.mark.parametrize(("method", "k"), CASES, ids=name_of)
def test_ensemble_is_its_members_side_by_side(method, k):
    problems = [signal(seed=s)[0] for s in range(3)]
    starts = bf.random_basis(6, k, rng=1, ensemble=(3,))
    together = method.init(starts)
    alone = [method.init(start) for start in starts]
    for _ in range(5):
        together, _ = method.step(np.stack(problems), together)
        alone = [method.step(c, state)[0] for c, state in zip(problems, alone, strict=True)]
    for member, state in enumerate(alone):
        np.testing.assert_allclose(together.basis[member], state.basis, atol=1e3 * EPS)
    assert together.steps.tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    "method",
    [
        bl.SubspaceIteration(),
        bl.QROja(),
        bl.QROja(trace_free=True),
        bl.ProjectedOja(),
        bl.AdaOja(),
        bl.PASTd(),
    ],
    ids=name_of,
)
def test_finds_the_leading_subspace(method):
    c, q = signal(n=12)
    state = method.init(bf.random_basis(12, 3, rng=2))
    first = bf.subspace_error(state.basis, q[:, :3])
    for _ in range(3000):
        state, _ = method.step(c, state)
    # AdaOja's step decays like 1/√t, so "much better" is what all of them have in common.
    assert bf.subspace_error(state.basis, q[:, :3]) < 1e-2 * first


def test_ccipca_converges_at_its_own_slow_rate():
    c, q = signal(n=12)
    method = bl.CCIPCA()
    state = method.init(bf.random_basis(12, 3, rng=2))
    errors = []
    for t in range(8001):
        if t in (1000, 8000):
            errors.append(bf.subspace_error(state.basis, q[:, :3]))
        state, _ = method.step(c, state)
    # The average forgets like t^−((1 + l)·gap/λ) with l = 2, gap/λ₃ = 1/10: slope −0.3.
    slope = np.log(errors[1] / errors[0]) / np.log(8)
    assert -0.5 < slope < -0.2


@pytest.mark.parametrize(
    "method", [bl.ExponentialAverage(), bl.CyclicJacobi(), bl.OrthogonalIteration()], ids=name_of
)
def test_full_basis_rivals_diagonalise_a_fixed_matrix(method):
    c, q = signal()
    state = method.init(bf.random_basis(6, rng=3))
    for _ in range(300):
        state, _ = method.step(c, state)
    assert bf.basis_error(state.basis, q) < 1e-10


@pytest.mark.parametrize(
    ("method", "k"),
    [
        (bl.ProjectedOja(), 3),
        (bl.QROja(trace_free=True), 6),
        (bl.ExponentialAverage(), 6),
        (bl.CyclicJacobi(), 6),
    ],
    ids=name_of,
)
def test_fair_rivals_do_not_see_the_background(method, k):
    c, _ = signal()
    start = bf.random_basis(6, k, rng=4)
    plain, shifted = method.init(start), method.init(start)
    for _ in range(20):
        plain, _ = method.step(c, plain)
        shifted, _ = method.step(c + 1e6 * np.eye(6), shifted)
    # 20 steps, each adding a few times eps·σ².
    assert np.linalg.norm(plain.basis - shifted.basis) < 1e3 * EPS * 1e6


def test_a_background_freezes_subspace_iteration():
    c, q = signal()
    start = bf.random_basis(6, 2, rng=5)
    errors = []
    for level in (0.0, 1e3):
        state = bl.SubspaceIteration().init(start)
        for _ in range(50):
            state, _ = bl.SubspaceIteration().step(c + level * np.eye(6), state)
        errors.append(bf.subspace_error(state.basis, q[:, :2]))
    assert errors[0] < 1e-3 * errors[1]


def test_recovered_oja_step_is_the_printed_formula():
    c, _ = signal()
    start = bf.random_basis(6, rng=6)
    eta = 0.1 / (1 + np.linalg.norm(c, 2) ** 2)
    q, r = np.linalg.qr(start + eta * c @ start)
    state, _ = bl.QROja(power=2, offset=1.0).step(c, bl.QROja().init(start))
    np.testing.assert_allclose(state.basis, q * np.sign(np.diag(r)), atol=10 * EPS)


def test_printed_cayley_is_the_flow_up_to_rounding():
    c, _ = signal()
    start = bf.random_basis(6, rng=7)
    ours, printed = bf.DoubleBracketFlow(step=1e-3), bl.PrintedCayley(1e-3)
    a, b = ours.init(start), printed.init(start)
    for _ in range(100):
        a, _ = ours.step(c, a)
        b, _ = printed.step(c, b)
    np.testing.assert_allclose(a.basis, b.basis, atol=1e3 * EPS)


def test_printed_cayley_loses_the_signal_under_a_large_background():
    c, _ = signal(n=10)
    loud = c + 1e9 * np.eye(10)
    start = bf.random_basis(10, rng=8)
    levels = []
    for method in (bl.PrintedCayley(5e-3), bl.PrintedCayley(5e-3, skew=True, centred=True)):
        state = method.init(start)
        for _ in range(1500):
            state, _ = method.step(loud, state)
        levels.append(bf.lyapunov(np.linalg.qr(state.basis)[0], c))
    assert levels[0] > 1 > 1e-3 > levels[1]


def test_printed_neumann_of_odd_order_leaks_more_than_the_even_one_below():
    c, _ = signal(n=10)
    start = bf.random_basis(10, rng=9)
    deviation = {}
    for order in (2, 3):
        method = bl.PrintedNeumann(5e-3, order=order, skew=True)
        quiet, loud = method.init(start), method.init(start)
        for _ in range(200):
            quiet, _ = method.step(c, quiet)
            loud, _ = method.step(c + 1e2 * np.eye(10), loud)
        deviation[order] = np.linalg.norm(quiet.basis - loud.basis)
    assert deviation[3] > 100 * deviation[2]


def test_printed_stiefel_explodes_and_the_true_polar_factor_does_not():
    c, _ = signal(n=20)
    weights = (3.0, 2.0, 1.0)
    start = bf.random_basis(20, 3, rng=10)
    defects = []
    for method in (
        bl.PrintedStiefel(weights, 1e-3),
        bl.PrintedStiefel(weights, 1e-3, true_polar=True),
    ):
        state = method.init(start)
        for _ in range(500):
            state, _ = method.step(c + 1e4 * np.eye(20), state)
        defects.append(np.linalg.norm(state.basis.T @ state.basis - np.eye(3)))
    # 2ησ²ν₁ = 60 > 1: the defect grows from rounding to order one within ten steps.
    assert defects[0] > 1e-3
    assert defects[1] < 1e3 * EPS


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("make", [bl.Eigsh, lambda warm: bl.Lobpcg(100, warm=warm)])
def test_solvers_find_the_vectors_and_count_every_product(make, warm):
    c, q = signal(n=30)
    operator = bf.counted(bf.as_operator(c, static=True))
    method = make(warm=warm)
    state, _ = method.step(operator, method.init(bf.random_basis(30, 3, rng=11)))
    assert bf.subspace_error(state.basis, q[:, :3]) < 1e-6
    assert operator.matvecs == state.matvecs > 3


def test_solvers_refuse_what_they_cannot_do():
    c, _ = signal()
    state = bl.Lobpcg().init(bf.random_basis(6, 2, rng=0))
    with pytest.raises(ValueError, match="static=True"):
        bl.Lobpcg().step(c, state)
    with pytest.raises(ValueError, match="k < n"):
        bl.Eigsh().init(bf.random_basis(6, rng=0))
    with pytest.raises(ValueError, match="must be square"):
        bl.ExponentialAverage().init(bf.random_basis(6, 2, rng=0))


def test_baselines_run_in_the_library_loop():
    c, q = signal()
    method = bl.CyclicJacobi()
    state = method.init(bf.random_basis(6, rng=12))
    result = bf.run(method, itertools.repeat(c), state, stop=[bf.lyapunov_below(1e-20)])
    assert result.converged
    assert bf.basis_error(result.eigenvectors, q) < 1e-9
