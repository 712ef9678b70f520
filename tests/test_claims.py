"""The core's promises at quick size; `benchmarks/core.py` prints them in full."""

import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import sparse

import bracketflow as bf
from cases import RETRACTIONS

EPS = np.finfo(float).eps
BACKGROUNDS = (0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0)
CENTRED_NORM = 4.5  # ‖C_e‖₂ of diag(10 … 1)


def protocol(seeds, n=10):
    """The paper's problems: the stream of seed s draws Q, then M0."""
    signals, starts = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        q = bf.random_basis(n, rng=rng)
        c = q * np.arange(n, 0, -1.0) @ q.T
        signals.append(0.5 * (c + c.T))
        starts.append(bf.random_basis(n, rng=rng))
    return np.stack(signals), np.stack(starts)


@pytest.mark.parametrize(("name", "mean"), [("cayley", 1594.2), ("polar", 1594.2), ("qr", 1599.6)])
def test_steps_of_the_papers_protocol_do_not_see_the_background(name, mean):
    signal, start = protocol(range(42, 47))
    stack = signal + np.reshape(BACKGROUNDS, (-1, 1, 1, 1)) * np.eye(10)
    flow = bf.DoubleBracketFlow(0.1 / CENTRED_NORM**2, RETRACTIONS[name])
    state = flow.init(np.broadcast_to(start, stack.shape))
    stop = [bf.lyapunov_below(1e-6), bf.max_steps(30_000)]
    steps = bf.run(flow, itertools.repeat(stack), state, stop=stop).state.steps
    assert np.all(steps == steps[0])
    assert steps[0].mean() == pytest.approx(mean, abs=1e-9)
    if name == "cayley":
        assert steps[0].std() == pytest.approx(96.6, abs=0.05)


@pytest.mark.parametrize("name", ["cayley", "neumann2", "neumann3", "neumann4"])
def test_trajectory_differs_by_the_rounding_of_the_products_alone(name):
    signal, start = protocol(range(42, 47))
    flow = bf.DoubleBracketFlow(0.1 / CENTRED_NORM**2, RETRACTIONS[name])
    levels = np.array([1e3, 1e6, 1e9, 1e12, 1e14])
    stack = signal + levels[:, None, None, None] * np.eye(10)
    plain, loud = flow.init(start), flow.init(np.broadcast_to(start, stack.shape))
    worst = np.zeros(stack.shape[:2])
    for _ in range(1000):
        plain, _ = flow.step(signal, plain)
        loud, _ = flow.step(stack, loud)
        worst = np.maximum(worst, np.linalg.norm(loud.basis - plain.basis, axis=(-2, -1)))
    units = worst / (EPS * levels[:, None] / CENTRED_NORM)
    assert units.max() <= 25


def test_float32_keeps_what_the_digits_of_the_observations_hold():
    signal, start = protocol(range(42, 47))
    levels = np.array([1e3, 1e4, 1e6])[:, None, None, None]
    observed = (signal + levels * np.eye(10)).astype(np.float32)
    flow = bf.DoubleBracketFlow(0.1 / CENTRED_NORM**2)
    state = flow.init(np.broadcast_to(start, observed.shape).astype(np.float32))
    for _ in range(4000):
        state, _ = flow.step(observed, state)

    def f(basis):
        h = basis.astype(float).mT @ signal @ basis.astype(float)
        return 0.5 * np.sum((h - h * np.eye(10)) ** 2, axis=(-2, -1))

    assert np.all(f(state.basis) <= 30 * f(np.linalg.eigh(observed)[1]))


def test_step_on_a_large_sparse_operator_needs_a_few_blocks_and_no_square():
    n, k = 20_000, 10
    rng = np.random.default_rng(0)
    half = sparse.random_array((n, n), density=10 / n, rng=rng, format="csr")
    operator = half + half.T
    flow = bf.BrockettFlow(tuple(range(k, 0, -1)))
    state = flow.init(bf.random_basis(n, k, rng=rng))
    tracemalloc.start()
    flow.step(operator, state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 12 * 8 * n * k  # an n × n array would be 200 times as much


def test_stiefel_trajectory_and_orthonormality():
    rng = np.random.default_rng(42)
    q = bf.random_basis(50, rng=rng)
    signal = q * np.arange(50, 0, -1.0) @ q.T
    signal = 0.5 * (signal + signal.T)
    start = bf.random_basis(50, 5, rng=rng)
    flow = bf.BrockettFlow((5, 4, 3, 2, 1), 1e-3)
    stack = np.stack([signal, signal + 1e4 * np.eye(50), signal + 1e6 * np.eye(50)])
    state = flow.init(np.stack([start] * 3))
    worst = 0.0
    for _ in range(5000):
        state, _ = flow.step(stack, state)
        worst = max(worst, np.linalg.norm(state.basis[0] - state.basis[1]))
    assert worst <= 2e-12
    defect = state.basis[2].T @ state.basis[2] - np.eye(5)
    assert np.linalg.norm(defect) <= 1e-13


def test_givens_profile_is_exact(rng):
    for _ in range(10):
        n = 8
        start = bf.random_basis(n, rng=rng)
        a = rng.standard_normal((n, n))
        a = a + a.T
        a[1, 1] = a[0, 0]
        c = start @ a @ start.T
        c = 0.5 * (c + c.T)
        f, b = bf.lyapunov(start, c), a[0, 1]
        for t in np.linspace(0, np.pi, 13):
            turn = np.eye(n)
            turn[:2, :2] = [[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]
            profile = f - b**2 * np.sin(2 * t) ** 2
            assert abs(bf.lyapunov(start @ turn, c) - profile) <= 8 * EPS * f
