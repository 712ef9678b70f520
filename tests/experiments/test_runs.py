"""The parts that experiments are made of: problems, runs that drop members, tallies, figures."""

import itertools
from collections import Counter

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.experiments import problems, retractions
from bracketflow.experiments.a2 import linear_ball
from bracketflow.experiments.figures import power_of_ten
from bracketflow.experiments.progress import Progress
from bracketflow.experiments.runs import (
    NEVER,
    RiseCounter,
    StepPerMember,
    level,
    steps_below,
    steps_until,
    walk,
)

EPS = np.finfo(float).eps


def test_signal_has_the_stated_spectrum_and_is_exactly_symmetric():
    c = problems.signal(8, np.random.default_rng(0), gap=0.5)
    np.testing.assert_array_equal(c, c.T)
    np.testing.assert_allclose(np.linalg.eigvalsh(c), 0.5 * np.arange(1, 9), atol=50 * EPS)


def test_noise_is_symmetric_trace_free_and_of_the_stated_size():
    noise = problems.trace_free_noise(np.random.default_rng(1).standard_normal((5, 7, 7)), 0.3)
    np.testing.assert_array_equal(noise, noise.mT)
    np.testing.assert_allclose(np.trace(noise, axis1=1, axis2=2), 0, atol=10 * EPS)
    np.testing.assert_allclose(np.linalg.norm(noise, axis=(1, 2)), 0.3, rtol=10 * EPS)


def test_dropping_members_does_not_change_their_counts():
    matrices, starts, _ = problems.pairs(range(6), 5)
    flow = bf.DoubleBracketFlow(step=0.05)
    together = steps_below(flow, matrices, starts, target=1e-6, limit=2000)
    alone = [
        bf.run(flow, itertools.repeat(c), flow.init(m), stop=[bf.lyapunov_below(1e-6)]).state.steps
        for c, m in zip(matrices, starts, strict=True)
    ]
    assert together.tolist() == alone
    assert len(set(alone)) > 1


def test_a_member_that_does_not_arrive_is_marked():
    matrices, starts, _ = problems.pairs(range(2), 5)
    steps = steps_below(bf.DoubleBracketFlow(step=1e-9), matrices, starts, target=1e-6, limit=300)
    assert steps.tolist() == [NEVER, NEVER]


def test_a_step_of_its_own_for_every_member_survives_dropping():
    matrices, starts, _ = problems.pairs(range(2), 5)
    etas = np.asarray([0.02, 0.08])
    steps = steps_below(
        bf.DoubleBracketFlow(step=StepPerMember(etas)), matrices, starts, target=1e-6, limit=5000
    )
    for member, eta in enumerate(etas):
        flow = bf.DoubleBracketFlow(step=float(eta))
        one = slice(member, member + 1)
        assert steps_below(flow, matrices[one], starts[one], target=1e-6, limit=5000) == steps[one]


def test_rises_are_counted_beyond_the_edge_only():
    matrices, starts, _ = problems.pairs(range(3), 6)
    edge = 2 / 5**2
    rises = []
    for factor in (0.9, 1.3):
        counter = RiseCounter(3)
        flow = bf.DoubleBracketFlow(step=factor * edge)
        steps_until(
            flow,
            lambda members: itertools.repeat(matrices[members]),
            starts,
            lambda members, counter=counter: counter.rule(members, 1e-20),
            limit=400,
        )
        rises.append(counter.rises.sum())
    assert rises[0] == 0 < rises[1]


def test_walk_ends_on_the_state_after_the_last_move():
    matrices, starts, _ = problems.pairs([0], 5)
    flow = bf.DoubleBracketFlow(step=0.05)
    path = [
        (t, int(state.steps[0]))
        for t, state, _ in walk(flow, itertools.repeat(matrices), starts, 7)
    ]
    assert path == [(t, t) for t in range(8)]


def test_linear_noise_ball_agrees_with_a_run_at_the_minimiser():
    n, eta, epsilon = 6, 0.02, 1e-3
    c = problems.signal(n, np.random.default_rng(3))
    start = np.broadcast_to(np.linalg.eigh(c)[1], (400, n, n))
    rng = np.random.default_rng(4)
    stream = (
        c + problems.trace_free_noise(rng.standard_normal((400, n, n)), epsilon)
        for _ in itertools.count()
    )
    *_, (_, state, _) = walk(bf.DoubleBracketFlow(step=eta), stream, start, 200)
    rms = np.sqrt(level(c, state.basis).mean())
    # 400 independent members, about ten modes each: 3 % is more than three standard deviations.
    assert rms == pytest.approx(linear_ball(n, eta) * epsilon, rel=0.05)


def test_tally_counts_products_and_factorisations():
    tally: Counter[str] = Counter()
    a = retractions.tallied(np.eye(4), tally)
    b = a @ a + a
    np.linalg.solve(b, a)
    np.linalg.qr(a)
    assert (tally["product"], tally["solve"], tally["qr"]) == (1, 1, 1)
    assert tally["flops"] >= 2 * 4**3
    assert isinstance(b, retractions.Tallied)


def test_progress_parts_cover_the_whole_in_order():
    seen: list[float] = []
    first, second = Progress(seen.append).parts(1, 3)
    list(first.over(range(4), 4))
    second(0.5)
    second(1.0)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert 0.25 in seen


@pytest.mark.parametrize(
    ("value", "text"), [(1e-3, "10⁻³"), (1.0, "1"), (10.0, "10"), (1e15, "10¹⁵")]
)
def test_powers_of_ten_are_plain_text(value, text):
    assert power_of_ten(value) == text
