"""The flows are the paper's: generator, gradient, step sizes, descent, escape."""

import itertools

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow.core import State
from bracketflow.flows import brockett_move, generator
from bracketflow.observation import centre, observe
from cases import symmetric

N = 7


def double_bracket(c, m):
    """[A, diag A] with A = MᵀCM, as printed."""
    a = m.T @ c @ m
    d = np.diag(np.diag(a))
    return a @ d - d @ a


def test_generator_is_the_commutator_and_exactly_skew(rng):
    c, m = symmetric(rng, N), bf.random_basis(N, rng=rng)
    omega = generator(observe(c, State(m)).rayleigh)
    assert np.allclose(omega, double_bracket(c, m), rtol=0, atol=1e-12)
    assert np.array_equal(omega, -omega.T)


def test_step_is_the_papers_cayley_update(rng):
    c, m, eta = symmetric(rng, N), bf.random_basis(N, rng=rng), 0.01
    state, _ = bf.DoubleBracketFlow(eta).step(c, bf.DoubleBracketFlow(eta).init(m))
    half = eta / 2 * double_bracket(c, m)
    printed = m @ np.linalg.solve(np.eye(N) - half, np.eye(N) + half)
    assert np.allclose(state.basis, printed, rtol=0, atol=1e-13)


def test_minus_generator_is_the_gradient_of_f(rng):
    c, m = symmetric(rng, N), bf.random_basis(N, rng=rng)
    omega = generator(observe(c, State(m)).rayleigh)
    xi = rng.standard_normal((N, N))
    xi -= xi.T
    h = 1e-6
    slope = (bf.lyapunov(bf.cayley(m, h * xi), c) - bf.lyapunov(bf.cayley(m, -h * xi), c)) / (2 * h)
    # Central differences at h = 1e-6: truncation h² and rounding eps/h, both about 1e-10 relative.
    assert slope == pytest.approx(-np.sum(omega * xi), rel=1e-6)


@pytest.mark.parametrize("k", [1, 3, N])
def test_brockett_move_is_the_gradient_of_the_weighted_objective(k, rng):
    c, x = symmetric(rng, N), bf.random_basis(N, k, rng=rng)
    weights = tuple(np.arange(k, 0, -1.0))
    rotation, normal = brockett_move(observe(c, State(x)), weights, 1.0)
    gradient = x @ rotation + (0 if normal is None else normal)
    a, n = x.T @ c @ x, np.diag(weights)
    printed = 2 * (c @ x - x @ a) @ n + x @ (a @ n - n @ a)
    assert np.allclose(gradient, printed, rtol=0, atol=1e-12)
    objective = lambda m: np.trace(m.T @ c @ m @ n)  # noqa: E731
    k_ = rng.standard_normal((k, k))
    z = rng.standard_normal((N, k))
    k_, z = k_ - k_.T, z - x @ (x.T @ z)
    h = 1e-6
    z_ = None if k == N else z
    ahead = objective(bf.polar(x, h * k_, None if z_ is None else h * z_))
    behind = objective(bf.polar(x, -h * k_, None if z_ is None else -h * z_))
    direction = x @ k_ + (0 if z_ is None else z_)
    expected = np.sum(gradient * direction)
    assert (ahead - behind) / (2 * h) == pytest.approx(expected, rel=1e-6, abs=1e-7)


def test_grassmann_projector_follows_its_double_bracket(rng):
    c, x, eta = symmetric(rng, N), bf.random_basis(N, 3, rng=rng), 1e-6
    flow = bf.BrockettFlow(step=eta)
    moved = flow.step(c, flow.init(x))[0].basis
    p = x @ x.T
    bracket = p @ c - c @ p
    speed = 2 * (p @ bracket - bracket @ p)
    # One Euler step of length 1e-6 agrees to first order; P moves by 2[P, [P, C]].
    assert np.allclose((moved @ moved.T - p) / eta, speed, rtol=0, atol=1e-3)


@pytest.mark.parametrize("n", [3, 10])
def test_certified_steps_are_the_stated_bounds_and_descend(n, rng):
    c = symmetric(rng, n, ensemble=(20,))
    start = bf.random_basis(n, rng=rng, ensemble=(20,))
    spread, norm = n - 1.0, (n - 1) / 2
    for rule, eta in (
        (bf.Certified(), 0.9 / (12 * (spread / 2) ** 2)),
        (bf.Certified(0.5, "paper"), 0.5 / ((4 * n**0.5 + 8) * norm**2)),
    ):
        flow = bf.DoubleBracketFlow(rule)
        probe = observe(c, State(start))
        assert np.allclose(rule.size(probe, 0, None, None)[0], eta, rtol=1e-10)
        state, last = flow.init(start), np.inf
        for _ in range(50):
            state, probe = flow.step(c, state)
            assert np.all(probe.lyapunov <= last)
            last = probe.lyapunov


def test_adaptive_steps_descend_on_so_and_ascend_on_stiefel(rng):
    c = symmetric(rng, N, ensemble=(50,))
    flow = bf.DoubleBracketFlow(bf.Adaptive())
    state, last = flow.init(bf.random_basis(N, rng=rng, ensemble=(50,))), np.inf
    for _ in range(100):
        state, probe = flow.step(c, state)
        assert np.all(probe.lyapunov <= last * (1 + 1e-12))
        last = probe.lyapunov
    weights = (3.0, 2.0, 1.0)
    flow = bf.BrockettFlow(weights)
    state, last = flow.init(bf.random_basis(N, 3, rng=rng, ensemble=(50,))), -np.inf
    for _ in range(100):
        value = np.sum((c @ state.basis) * state.basis * weights, axis=(-2, -1))
        assert np.all(value >= last - 1e-12)
        state, _ = flow.step(c, state)
        last = value


def test_adaptive_on_stiefel_remembers_the_largest_reach(rng):
    c, x = symmetric(rng, N), bf.random_basis(N, 3, rng=rng)
    probe = observe(c, State(x))
    values = np.linalg.eigvalsh(probe.rayleigh)
    reach = values[-1] - values[0] + 2 * np.linalg.norm(probe.residual, 2)
    eta, memory = bf.Adaptive().size(probe, 0, 0.0, 3.0)
    assert memory == pytest.approx(reach)
    assert eta == pytest.approx(0.9 / (2 * 3.0 * reach))
    eta, memory = bf.Adaptive().size(probe, 0, 10 * reach, 3.0)
    assert memory == pytest.approx(10 * reach)


def test_decay_is_c_over_t_plus_k0(rng):
    c = symmetric(rng, N)
    flow = bf.DoubleBracketFlow(bf.Decay(2.0, 100.0))
    state = flow.init(bf.random_basis(N, rng=rng))
    state, _ = flow.step(c, state)
    by_decay, _ = flow.step(c, state)
    constant = bf.DoubleBracketFlow(2.0 / 101)
    by_hand, _ = constant.step(c, state._replace(memory=None))
    assert np.array_equal(by_decay.basis, by_hand.basis)


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_adaptive_step_on_so_is_the_stated_one_for_every_member(library, rng):
    c = symmetric(rng, N, ensemble=(3,)) * np.array([1.0, 10.0, 0.1])[:, None, None]
    probe = observe(library(c), State(library(bf.random_basis(N, rng=rng, ensemble=(3,)))))
    eta, memory = bf.Adaptive().size(probe, 0, "memory", None)
    assert np.allclose(eta, 1.8 / (6 * np.array([1, 10, 0.1])) ** 2, rtol=1e-10)
    assert memory == "memory"


def test_every_rule_keeps_its_memory_on_so_and_those_that_look_back_start_with_nothing_seen(rng):
    probe = observe(symmetric(rng, N), State(bf.random_basis(N, rng=rng)))
    for rule in (bf.Constant(0.1), bf.Decay(1, 2), bf.Certified(), bf.Certified(bound="paper")):
        assert rule.size(probe, 3, "memory", None)[1] == "memory"
    assert bf.Constant(0.1).start() is bf.Decay(1, 2).start() is None
    assert bf.Adaptive().start() == bf.Certified().start() == 0


def test_a_flat_operator_is_not_moved_and_a_tiny_one_is():
    """0 where the square of the spread vanishes in double precision; the stated step elsewhere."""
    for scale, moves in ((0.0, False), (1e-160, False), (1e-140, True)):
        probe, _ = centre(np.eye(2), scale * np.diag([1.0, -1.0]))
        for rule, times in ((bf.Adaptive(), 1.8 / 4), (bf.Certified(1.0), 1 / 12)):
            eta, _ = rule.size(probe, 0, None, None)
            assert eta == (pytest.approx(times / scale**2, rel=1e-12) if moves else 0)


def test_paper_bound_reads_the_largest_size_of_a_lopsided_spectrum():
    """Of eigenvalues 1, 1, −2 about their mean the norm is 2."""
    for values in ([1.0, 1.0, -2.0], [2.0, -1.0, -1.0]):
        probe = observe(np.diag(values), State(np.eye(3)))
        eta, _ = bf.Certified(1.0, "paper").size(probe, 0, None, None)
        assert eta == pytest.approx(1 / ((4 * 3**0.5 + 8) * 4))


@pytest.mark.parametrize(("weights", "top"), [(None, 1.0), ((3, 2, 1), 3.0)])
def test_brockett_step_is_the_stated_move_with_the_largest_weight(weights, top, rng):
    c, x = symmetric(rng, N), bf.random_basis(N, 3, rng=rng)
    flow = bf.BrockettFlow(weights)
    state, probe = flow.step(c, flow.init(x))
    reach = probe.range + 2 * probe.residual_norm
    eta = 0.9 / (2 * top * reach)
    nu = np.ones(3) if weights is None else np.array(weights, float)
    rotation = eta * probe.rayleigh * (nu[None, :] - nu[:, None])
    moved = bf.polar(x, rotation, 2 * eta * probe.residual * nu)
    assert np.allclose(state.basis, moved, rtol=0, atol=1e-14)
    assert state.memory == pytest.approx(reach)


def test_square_brockett_flow_has_no_normal_part(rng):
    probe = observe(symmetric(rng, N), State(bf.random_basis(N, rng=rng)))
    rotation, normal = brockett_move(probe, None, 0.1)
    assert normal is None
    assert np.array_equal(rotation, np.zeros((N, N)))
    assert brockett_move(probe, tuple(range(N, 0, -1)), 0.1)[1] is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_members_take_steps_of_their_own_in_the_dtype_of_the_basis(dtype, rng):
    c = (symmetric(rng, N, ensemble=(2,)) * np.array([1.0, 5.0])[:, None, None]).astype(dtype)
    x = bf.random_basis(N, 3, rng=rng, ensemble=(2,)).astype(dtype)
    flow = bf.BrockettFlow((3, 2, 1))
    for library in (np.asarray, torch.from_numpy):
        together, _ = flow.step(library(c), flow.init(library(x)))
        assert together.basis.dtype == library(x).dtype
        for member in range(2):
            alone, _ = flow.step(library(c[member]), flow.init(library(x[member])))
            tolerance = 50 * np.finfo(dtype).eps
            assert np.allclose(together.basis[member], alone.basis, rtol=0, atol=tolerance)


# Givens escape ----------------------------------------------------------------------------------


def saddle(rng, pair=(1, 4)):
    """C and M with Ω(M) = 0 but f(M) = b² > 0: one degenerate block."""
    i, j = pair
    a = np.diag(np.arange(N, 0, -1.0))
    a[i, i] = a[j, j]
    a[i, j] = a[j, i] = b = 0.7
    m = np.eye(N)[:, rng.permutation(N)] * rng.choice([-1.0, 1.0], N)  # exact arithmetic below
    c = m @ a @ m.T
    return c, m, b


def test_gradient_is_stuck_at_a_degenerate_block_and_the_escape_is_not(rng):
    c, m, b = saddle(rng)
    f = bf.lyapunov(m, c)
    assert f == pytest.approx(b**2)
    plain = bf.DoubleBracketFlow(0.01)
    assert bf.lyapunov(plain.step(c, plain.init(m))[0].basis, c) == pytest.approx(f)
    escaping = bf.DoubleBracketFlow(0.01, givens_escape=True)
    after = bf.lyapunov(escaping.step(c, escaping.init(m))[0].basis, c)
    assert f - after == pytest.approx(b**2, rel=8 * np.finfo(float).eps)


def test_escape_acts_member_by_member(rng):
    c, m, _ = saddle(rng)
    other, start = symmetric(rng, N), bf.random_basis(N, rng=rng)
    flow = bf.DoubleBracketFlow(0.01, givens_escape=True)
    both, _ = flow.step(np.stack([c, other]), flow.init(np.stack([m, start])))
    assert np.allclose(both.basis[0], flow.step(c, flow.init(m))[0].basis, rtol=0, atol=1e-14)
    plain = bf.DoubleBracketFlow(0.01)
    alone = plain.step(other, plain.init(start))[0].basis
    assert np.allclose(both.basis[1], alone, rtol=0, atol=1e-14)


def two_blocks(small, large, gap=0.0):
    """A symmetric matrix with Ω = 0 but for `gap`: two degenerate pairs, H_ij = small and large."""
    a = np.diag([9.0, 9.0, 5.0, 5.0 + gap, 1.0])
    a[0, 1] = a[1, 0] = small
    a[2, 3] = a[3, 2] = large
    return a


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("sizes", [(0.3, 0.8), (0.8, 0.3)])
def test_escape_turns_the_larger_of_two_pairs_and_keeps_the_determinant(sign, sizes):
    a, flow = two_blocks(*sizes) * sign, bf.DoubleBracketFlow(0.01, givens_escape=True)
    moved = flow.step(a, flow.init(np.eye(5)))[0].basis
    # f = ½‖off‖² falls by b² of the pair that was turned.
    assert bf.lyapunov(np.eye(5), a) - bf.lyapunov(moved, a) == pytest.approx(0.8**2)
    assert np.linalg.det(moved) == pytest.approx(1)
    pair = slice(2, 4) if sizes[1] > sizes[0] else slice(0, 2)
    assert np.allclose(np.abs(moved[pair, pair]), 0.5**0.5)
    rest = np.delete(np.arange(5), np.arange(5)[pair])
    assert np.array_equal(moved[np.ix_(rest, rest)], np.eye(3))


@pytest.mark.parametrize(("part", "turned"), [(0.9e-3, True), (1.1e-3, False)])
def test_escape_takes_a_pair_for_degenerate_up_to_a_thousandth_of_its_size(part, turned):
    a = two_blocks(0.0, 0.8, gap=part * 0.8)
    flow = bf.DoubleBracketFlow(0.01, givens_escape=True)
    moved = flow.step(a, flow.init(np.eye(5)))[0].basis
    assert (np.abs(moved[2, 3]) > 0.5) == turned


def test_escape_waits_while_the_gradient_promises_more(rng):
    """The pair would give b² = 0.01; the gradient promises η‖Ω‖² of a large coupling elsewhere."""
    a = two_blocks(0.1, 0.0)
    a[2, 4] = a[4, 2] = 1.0  # Ω_24 = (1 − 5)·1, ‖Ω‖_F² = 32
    for eta, turned in ((0.5 * 0.01 / 32, True), (2 * 0.01 / 32, False)):
        flow = bf.DoubleBracketFlow(eta, givens_escape=True)
        moved = flow.step(a, flow.init(np.eye(5)))[0].basis
        assert (np.abs(moved[0, 1]) > 0.5) == turned
        if not turned:
            plain = bf.DoubleBracketFlow(eta)
            assert np.array_equal(moved, plain.step(a, plain.init(np.eye(5)))[0].basis)


def test_escape_turns_by_the_angle_that_it_says():
    """e^{tΞ} with Ξ = E_ij − E_ji, for the first of the two entries of a pair."""
    a, flow = two_blocks(0.0, 0.8), bf.DoubleBracketFlow(0.01, givens_escape=True)
    moved = flow.step(a, flow.init(np.eye(5)))[0].basis
    half = 0.5**0.5
    assert np.allclose(moved[2:4, 2:4], [[half, half], [-half, half]])


def test_memory_of_a_rule_goes_from_step_to_step(rng):
    """The reach of `Adaptive` on St(k, n), and whatever a rule of one's own keeps on SO(n)."""

    class Counting:
        def start(self):
            return 5

        def size(self, probe, steps, memory, top_weight):
            return 0.01, memory + 1

    flow = bf.DoubleBracketFlow(Counting())
    state = flow.init(bf.random_basis(N, rng=rng))
    assert state.memory == 5
    for steps in range(1, 4):
        state, _ = flow.step(symmetric(rng, N), state)
        assert state.memory == 5 + steps
    flow = bf.BrockettFlow((2, 1))
    state = flow.init(bf.random_basis(N, 2, rng=rng))
    assert state.memory == 0
    state, _ = flow.step(100 * symmetric(rng, N), state)
    reach = state.memory
    state, _ = flow.step(symmetric(rng, N), state)
    assert state.memory == reach


def test_escape_of_an_ensemble_on_torch_is_that_of_numpy(rng):
    a = np.stack([two_blocks(0.3, 0.8), two_blocks(0.8, 0.3), symmetric(rng, 5)])
    flow, start = bf.DoubleBracketFlow(0.01, givens_escape=True), np.stack([np.eye(5)] * 3)
    ours = flow.step(a, flow.init(start))[0].basis
    theirs = flow.step(torch.from_numpy(a), flow.init(torch.from_numpy(start)))[0].basis
    assert np.allclose(ours, theirs, rtol=0, atol=1e-14)
    for member in range(3):
        alone = flow.step(a[member], flow.init(start[member]))[0].basis
        assert np.allclose(ours[member], alone, rtol=0, atol=1e-14)


# Convergence ------------------------------------------------------------------------------------


def test_brockett_columns_come_ordered_and_grassmann_finds_the_subspace(rng):
    c = symmetric(rng, N)
    vectors = np.linalg.eigh(c)[1][:, ::-1][:, :3]
    for weights, rule in (
        ((3, 2, 1), bf.residual_below(1e-8)),
        (None, bf.aligned_below(vectors, 1e-9)),
    ):
        flow = bf.BrockettFlow(weights)
        state = flow.init(bf.random_basis(N, 3, rng=rng))
        result = bf.run(flow, itertools.repeat(c), state, stop=[rule, bf.max_steps(5000)])
        assert result.converged
        if weights is not None:
            overlaps = np.abs(np.sum(result.state.basis * vectors, axis=0))
            assert np.allclose(overlaps, 1, rtol=0, atol=1e-12)
        # Both are read off in order; the Grassmann columns through the eigenvectors of H.
        assert np.allclose(np.abs(np.sum(result.eigenvectors * vectors, axis=0)), 1, atol=1e-12)


# Construction -----------------------------------------------------------------------------------


def test_configuration_is_kept_as_plain_numbers_and_flags():
    assert bf.Constant(np.float32(0.5)) == bf.Constant(0.5)
    assert type(bf.Constant(np.float32(0.5)).eta) is float
    assert type(bf.Decay(1, 2).c) is type(bf.Decay(1, 2).k0) is float
    assert bf.Certified() == bf.Certified(0.9, "sharp")
    assert bf.Certified(1).fraction == 1
    default = bf.DoubleBracketFlow()
    assert default == bf.DoubleBracketFlow(bf.Certified(), bf.cayley, False)
    assert default.givens_escape is default.guard is False
    assert bf.DoubleBracketFlow(guard=1).guard is True
    assert bf.Certified(spread=np.float32(2)) == bf.Certified(0.9, "sharp", 2.0)
    assert bf.DoubleBracketFlow(givens_escape=1).givens_escape is True
    for step in (1, 1.0, np.int64(1), np.float32(1)):
        assert bf.DoubleBracketFlow(step).step_size == bf.Constant(1.0)
        assert type(bf.BrockettFlow(step=step).step_size.eta) is float
    assert bf.BrockettFlow() == bf.BrockettFlow(None, bf.Adaptive(), bf.polar)
    assert bf.BrockettFlow((3, 1)).weights == (3.0, 1.0)
    assert bf.BrockettFlow([5]).weights == (5.0,)
    assert bf.BrockettFlow((3, 1)).rotates is False
    assert bf.BrockettFlow().rotates is True


class HalfARule:
    def size(self, probe, steps, memory, top_weight):
        return 0.1, memory


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: bf.Constant(-1), ValueError, "eta must be a positive finite number, got -1"),
        (lambda: bf.Constant(np.inf), ValueError, "eta must be"),
        (lambda: bf.Constant("1"), ValueError, "eta must be"),
        (lambda: bf.Certified(0.0), ValueError, r"fraction must be in \(0, 1\], got 0\.0"),
        (lambda: bf.DoubleBracketFlow(HalfARule()), TypeError, "step must be a number or a rule"),
        (lambda: bf.BrockettFlow((np.inf, 1)), ValueError, "strictly decreasing"),
        (lambda: bf.Constant(np.nan), ValueError, "eta must be"),
        (lambda: bf.DoubleBracketFlow(step=0.0), ValueError, "eta must be"),
        (lambda: bf.DoubleBracketFlow(step="fast"), TypeError, "step must be a number or a rule"),
        (lambda: bf.Decay(0, 1), ValueError, "c must be"),
        (lambda: bf.Decay(1, -1), ValueError, "k0 must be"),
        (lambda: bf.Certified(1.5), ValueError, r"fraction must be in \(0, 1\], got 1\.5"),
        (lambda: bf.Certified(bound="best"), ValueError, "bound must be"),
        (lambda: bf.BrockettFlow((1, 2)), ValueError, "strictly decreasing and positive"),
        (lambda: bf.BrockettFlow((2, 2)), ValueError, "strictly decreasing"),
        (lambda: bf.BrockettFlow((2, 0)), ValueError, "strictly decreasing and positive"),
        (lambda: bf.BrockettFlow((3, 2, -1)), ValueError, "strictly decreasing and positive"),
        (lambda: bf.BrockettFlow(()), ValueError, "strictly decreasing"),
        (lambda: bf.BrockettFlow((np.nan, 1)), ValueError, "strictly decreasing"),
        (lambda: bf.Certified(spread=0.0), ValueError, r"spread must be .* got 0\.0"),
        (lambda: bf.Certified(spread=np.nan), ValueError, "spread must be"),
        (lambda: bf.DoubleBracketFlow(bf.Certified(spread=3)), ValueError, r"spread = 3\.0 is for"),
        (
            lambda: bf.BrockettFlow((2, 1), bf.Certified(bound="paper")),
            ValueError,
            'bound = "paper',
        ),
        (
            lambda: bf.BrockettFlow((2, 1), bf.Certified(), bf.qr),
            ValueError,
            r"proved for bf\.polar.*retraction = <function qr",
        ),
        (lambda: bf.BrockettFlow(None, bf.Certified(), bf.cayley), ValueError, "proved for"),
        (lambda: bf.BrockettFlow((2, 1), guard=True), ValueError, "guard = True has no meaning on"),
        (
            lambda: bf.DoubleBracketFlow(guard=True).init(np.eye(4)[:, :3]),
            ValueError,
            "n = 4, k = 3",
        ),
        (
            lambda: bf.BrockettFlow(step=bf.Certified()).init(np.eye(4)),
            ValueError,
            r"k = n = 4 and no weights.*the same for every basis",
        ),
        (lambda: bf.BrockettFlow(retraction="polar"), TypeError, "retraction must be a function"),
        (
            lambda: bf.BrockettFlow((2, 1)).init(np.eye(4)[:, :3]),
            ValueError,
            "2 entries for a basis of k = 3",
        ),
        (
            lambda: bf.DoubleBracketFlow().init(np.eye(4)[:, :3]),
            ValueError,
            "use bf.BrockettFlow",
        ),
    ],
)
def test_bad_configuration_is_refused_at_construction(make, error, match):
    with pytest.raises(error, match=match):
        make()
