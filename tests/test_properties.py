"""Invariances that hold for every matrix, found or refuted by Hypothesis."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import bracketflow as bf
from bracketflow.core import State
from bracketflow.observation import observe
from cases import noise, symmetric

EPS = np.finfo(float).eps
sizes = st.integers(2, 12)
seeds = st.integers(0, 2**32 - 1)
levels = st.floats(-1e12, 1e12)


def draw_problem(seed, n, columns):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4)
    return symmetric(rng, n, eigenvalues=values), bf.random_basis(n, columns, rng=rng), rng


@settings(deadline=None)
@given(seeds, sizes, st.data(), levels)
def test_probe_is_blind_to_any_shift(seed, n, data, level):
    c, x, _ = draw_problem(seed, n, data.draw(st.integers(1, n)))
    plain = observe(c, State(x))
    shifted = observe(c + level * np.eye(n), State(x))
    slack = 8 * n * EPS * (abs(level) + np.linalg.norm(c))
    assert np.abs(plain.rayleigh - shifted.rayleigh).max() <= slack
    assert np.abs(plain.residual - shifted.residual).max() <= slack


@settings(deadline=None)
@given(seeds, sizes, st.sampled_from([bf.DoubleBracketFlow(bf.Adaptive()), bf.BrockettFlow()]))
def test_turning_the_problem_turns_the_trajectory(seed, n, method):
    square = isinstance(method, bf.DoubleBracketFlow)
    c, x, rng = draw_problem(seed, n, n if square else max(1, n // 2))
    q = bf.random_basis(n, rng=rng)
    turned = q @ c @ q.T
    turned = 0.5 * (turned + turned.T)
    one, two = method.init(x), method.init(q @ x)
    for _ in range(3):
        one, _ = method.step(c, one)
        two, _ = method.step(turned, two)
    assert np.abs(q @ one.basis - two.basis).max() <= 1e4 * n * EPS


@settings(deadline=None)
@given(seeds, sizes, st.floats(1e-6, 1e6))
def test_automatic_steps_do_not_see_the_scale(seed, n, scale):
    c, x, _ = draw_problem(seed, n, n)
    for step in (bf.Adaptive(), bf.Certified(), bf.Certified(bound="paper")):
        flow = bf.DoubleBracketFlow(step)
        one = flow.step(c, flow.init(x))[0].basis
        two = flow.step(scale * c, flow.init(x))[0].basis
        assert np.abs(one - two).max() <= 1e3 * n * EPS


@settings(deadline=None)
@given(seeds, sizes)
def test_f_does_not_depend_on_order_and_sign_of_the_columns(seed, n):
    c, x, rng = draw_problem(seed, n, n)
    other = x[:, rng.permutation(n)] * rng.choice([-1.0, 1.0], n)
    slack = 100 * n * EPS * np.linalg.norm(c) ** 2
    assert abs(bf.lyapunov(x, c) - bf.lyapunov(other, c)) <= slack


@settings(deadline=None)
@given(seeds, st.integers(1, 40), st.integers(2, 8))
def test_order_of_rows_does_not_matter(seed, b, n):
    rng = np.random.default_rng(seed)
    rows, block = rng.standard_normal((b, n)), bf.random_basis(n, rng=rng)
    shuffled = rows[rng.permutation(b)]
    difference = bf.gram(rows) @ block - bf.gram(shuffled) @ block
    assert np.abs(difference).max() <= 10 * b * EPS * np.linalg.norm(rows) ** 2 / b + EPS


@settings(deadline=None, max_examples=30)
@given(seeds, st.integers(3, 8), st.lists(st.floats(0, 1e9), min_size=20, max_size=20))
def test_stop_rules_fire_at_the_same_step_whatever_the_background(seed, n, backgrounds):
    rng = np.random.default_rng(seed)
    c, x = symmetric(rng, n), bf.random_basis(n, rng=rng)
    stream = [c + noise(rng, n, 0.01) for _ in range(20)]
    flow = bf.DoubleBracketFlow(bf.Adaptive())
    # A level that the trajectory crosses well above rounding: its own value after ten steps.
    states = [s for s, _ in bf.trajectory(flow, stream, flow.init(x))]
    tol = 1.001 * bf.lyapunov(states[10].basis, stream[10])
    stop = [bf.lyapunov_below(tol)]
    plain = bf.run(flow, stream, flow.init(x), stop=stop)
    shifted = [o + s * np.eye(n) for o, s in zip(stream, backgrounds, strict=True)]
    assert bf.run(flow, shifted, flow.init(x), stop=stop).state.steps == plain.state.steps
