"""The guard of DoubleBracketFlow: every step takes off the largest square at least."""

import itertools

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import theory
from cases import RETRACTIONS, noise, symmetric

N = 7
EPS = np.finfo(float).eps


def largest_square(a):
    off = a - np.einsum("...ii->...i", a)[..., None] * np.eye(a.shape[-1])
    return np.max(off**2, axis=(-2, -1))


def outside(a):
    """Where the guard promises its decrease: 10√f > min |A_ii − A_jj|."""
    return 10 * theory.lyapunov(a) ** 0.5 > theory.diagonal_separation(a)


def fourier(n):
    """Real Fourier basis: it makes the diagonal of an increasing spectrum nearly flat."""
    t = np.arange(n)
    waves = [np.ones(n) / 2**0.5]
    for j in range(1, (n + 1) // 2):
        waves += [np.cos(2 * np.pi * j * t / n), np.sin(2 * np.pi * j * t / n)]
    return np.stack(waves, axis=1) * (2 / n) ** 0.5


def rotated(a, basis):
    return basis.mT @ a @ basis


@pytest.mark.parametrize("step", [bf.Certified(), bf.Adaptive(), 1e-9, 0.3, 1e3, bf.Decay(1, 1)])
@pytest.mark.parametrize("retraction", RETRACTIONS.values(), ids=RETRACTIONS)
def test_no_step_and_no_retraction_makes_f_fall_by_less_than_the_largest_square(
    step, retraction, rng
):
    c = symmetric(rng, N, ensemble=(40,))
    flow = bf.DoubleBracketFlow(step, retraction, guard=True)
    state = flow.init(bf.random_basis(N, rng=rng, ensemble=(40,)))
    for _ in range(30):
        a = rotated(c, state.basis)
        before, promise = bf.lyapunov(state.basis, c), largest_square(a) * outside(a)
        state, _ = flow.step(c, state)
        # f sums N² squares of numbers up to N, each with a rounding of eps·N or so
        assert np.all(bf.lyapunov(state.basis, c) <= before - promise + 100 * N**4 * EPS)


def test_where_the_flow_brings_more_its_move_is_kept_and_elsewhere_one_pair_is_turned(rng):
    kept = turned = 0
    guarded = bf.DoubleBracketFlow(bf.Adaptive(), guard=True)
    plain = bf.DoubleBracketFlow(bf.Adaptive())
    c = symmetric(rng, N)
    state = guarded.init(bf.random_basis(N, rng=rng))
    for _ in range(40):
        after, _ = guarded.step(c, state)
        flow, _ = plain.step(c, state)
        changed = np.linalg.norm(after.basis - state.basis, axis=0) > 1e-12
        if np.array_equal(after.basis, flow.basis):
            kept += 1
            a = rotated(c, state.basis)
            promise = largest_square(a) * outside(a)
            assert bf.lyapunov(flow.basis, c) <= bf.lyapunov(state.basis, c) - (1 - 1e-9) * promise
        else:
            turned += 1
            a = np.abs(rotated(c, after.basis))
            i, j = np.flatnonzero(changed)
            assert a[i, j] <= 100 * N * EPS
        state = after
    assert min(kept, turned) > 0


def test_the_turn_is_the_smaller_one_and_keeps_the_determinant(rng):
    for sign, b in itertools.product((1, -1), (0.5, -0.5)):
        a = np.diag([2.0 * sign, 0.0])
        a[0, 1] = a[1, 0] = b
        flow = bf.DoubleBracketFlow(1e-6, guard=True)
        moved = flow.step(a, flow.init(np.eye(2)))[0].basis
        assert np.linalg.det(moved) == pytest.approx(1)
        assert moved[0, 0] >= 0.5**0.5
        assert abs(rotated(a, moved)[0, 1]) <= 10 * EPS


def test_entry_takes_no_more_steps_than_the_theorem_allows_saddles_included(rng):
    n = 9
    c = np.diag(np.arange(n, 0, -1.0))
    starts = np.concatenate(
        [bf.random_basis(n, rng=rng, ensemble=(30,)), [np.ascontiguousarray(fourier(n))]]
    )
    target = theory.entry_threshold(1.0, 0.5) ** 2 / 2
    flow = bf.DoubleBracketFlow(guard=True)
    result = bf.run(flow, itertools.repeat(c), flow.init(starts), stop=[bf.lyapunov_below(target)])
    allowed = theory.guard_entry_steps(bf.lyapunov(starts, c), 1.0, n)
    assert np.all(result.state.steps <= allowed)
    assert theory.in_domain(rotated(c, result.state.basis), 0.5).all()


def test_a_saddle_holds_the_flow_and_not_the_guard():
    a = np.diag([3.0, 3.0, 1.0])
    a[0, 1] = a[1, 0] = 0.7
    plain, guarded = bf.DoubleBracketFlow(), bf.DoubleBracketFlow(guard=True)
    assert np.array_equal(plain.step(a, plain.init(np.eye(3)))[0].basis, np.eye(3))
    assert bf.lyapunov(guarded.step(a, guarded.init(np.eye(3)))[0].basis, a) <= 100 * EPS


@pytest.mark.parametrize("still", [False, True])
def test_under_noise_every_step_obeys_the_recursion_and_runs_enter_and_stay(still, rng):
    n, members = 6, 20
    size = 0.99 * theory.guard_noise_limit(n, 1.0)
    signal = np.diag(np.arange(n, 0, -1.0))
    starts = bf.random_basis(n, rng=rng, ensemble=(members,))
    draw = lambda: np.stack([noise(rng, n, size) for _ in range(members)])  # noqa: E731
    fixed = draw()
    flow = bf.DoubleBracketFlow(guard=True)
    state, y = flow.init(starts), bf.lyapunov(starts, signal) ** 0.5
    allowed = theory.guard_entry_steps(y**2, 1.0, n, size)
    for t in range(1, 400):
        state, _ = flow.step(signal + (fixed if still else draw()), state)
        after = bf.lyapunov(state.basis, signal) ** 0.5
        assert np.all(after <= theory.guard_step(y, 1.0, n, size))
        entered = theory.in_domain(rotated(signal, state.basis), 0.5)
        assert np.all(entered | (t < allowed))
        y = after


def test_inside_it_leaves_the_flow_to_its_averaging(rng):
    n, size = 6, 0.02
    signal, start = np.diag(np.arange(n, 0, -1.0)), np.eye(n)
    guarded, plain = bf.DoubleBracketFlow(guard=True), bf.DoubleBracketFlow()
    one, two = guarded.init(start), plain.init(start)
    for _ in range(50):
        observation = signal + noise(rng, n, size)
        one, two = guarded.step(observation, one)[0], plain.step(observation, two)[0]
        assert np.array_equal(one.basis, two.basis)


@pytest.mark.parametrize(("b", "turns"), [(0.0999, False), (0.1001, True)])
def test_it_lets_go_where_ten_roots_of_f_are_the_separation(b, turns):
    a = np.diag([2.0, 1.0, 0.0])
    a[0, 1] = a[1, 0] = b
    guarded, plain = bf.DoubleBracketFlow(guard=True), bf.DoubleBracketFlow()
    moved = guarded.step(a, guarded.init(np.eye(3)))[0].basis
    flow = plain.step(a, plain.init(np.eye(3)))[0].basis
    assert np.array_equal(moved, flow) != turns
    assert (bf.lyapunov(moved, a) <= 100 * EPS) == turns


def test_inside_a_move_that_would_raise_f_is_replaced_by_the_turn(rng):
    c = np.diag(np.arange(5, 0, -1.0))
    start = bf.cayley(np.eye(5), 1e-3 * theory.givens_direction(5, 0, 4))
    flow = bf.DoubleBracketFlow(2.5 / 16, guard=True)  # the edge of stability is 2/4²
    assert not outside(rotated(c, start))
    assert bf.lyapunov(flow.step(c, flow.init(start))[0].basis, c) <= 1e3 * EPS


def test_a_flat_operator_is_left_alone():
    flow = bf.DoubleBracketFlow(guard=True)
    for a in (np.zeros((3, 3)), 5 * np.eye(3), np.diag([3.0, 1.0, 2.0])):
        assert np.array_equal(flow.step(a, flow.init(np.eye(3)))[0].basis, np.eye(3))
    assert np.array_equal(flow.step(np.ones((1, 1)), flow.init(np.eye(1)))[0].basis, np.eye(1))


def test_members_turn_pairs_of_their_own_on_torch_as_on_numpy(rng):
    a = symmetric(rng, 5, ensemble=(3,))
    flow, start = bf.DoubleBracketFlow(1e-6, guard=True), np.stack([np.eye(5)] * 3)
    ours = flow.step(a, flow.init(start))[0].basis
    theirs = flow.step(torch.from_numpy(a), flow.init(torch.from_numpy(start)))[0].basis
    assert np.allclose(ours, theirs, rtol=0, atol=1e-14)
    for member in range(3):
        alone = flow.step(a[member], flow.init(start[member]))[0].basis
        assert np.allclose(ours[member], alone, rtol=0, atol=1e-14)


def test_a_move_that_overflows_is_replaced_by_the_turn(rng):
    c, start = symmetric(rng, 4), bf.random_basis(4, rng=rng)
    flow = bf.DoubleBracketFlow(1e200, bf.neumann(2), guard=True)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = flow.step(c, flow.init(start))[0].basis
    before = bf.lyapunov(start, c)
    assert bf.lyapunov(moved, c) == pytest.approx(before - largest_square(rotated(c, start)))
