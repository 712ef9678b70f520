"""Certified on St(k, n): ascent is proved by a bound of the spread, given or from a product."""

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import theory
from bracketflow.core import State
from bracketflow.observation import observe
from bracketflow.spread import UNSEEN
from cases import noise, symmetric

N = 8


def objective(basis, c, weights):
    return np.sum((c @ basis) * basis * weights, axis=(-2, -1))


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_step_is_fraction_over_l_with_the_spread_given(library, rng):
    probe = observe(library(symmetric(rng, N)), State(library(bf.random_basis(N, 3, rng=rng))))
    eta, memory = bf.Certified(0.5, spread=10.0).size(probe, 0, 0.0, 3.0)
    assert float(eta) == pytest.approx(0.5 / theory.brockett_constant(3.0, 10.0))
    assert float(memory) == 10


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_the_first_product_bounds_the_spread_and_later_ones_only_raise_it(library, rng):
    c = symmetric(rng, N)
    probe = observe(library(c), State(library(bf.random_basis(N, 3, rng=rng))))
    rule, overlap = bf.Certified(1.0), theory.haar_overlap(N, 3, UNSEEN / 2)
    bound = float(probe.range + 2 * probe.residual_norm / overlap**0.5)
    eta, memory = rule.size(probe, 0, rule.start(), 2.0)
    assert float(memory) == pytest.approx(bound)
    assert float(eta) == pytest.approx(1 / (4 * bound))
    for scale, expected in ((1.0, bound), (100 * bound, None)):
        later = observe(library(scale * c), State(library(bf.random_basis(N, 3, rng=rng))))
        seen = max(float(later.range), 2 * float(later.residual_norm))
        assert float(rule.size(later, 1, memory, 2.0)[1]) == pytest.approx(expected or seen)


def test_a_square_basis_shows_the_whole_spread(rng):
    c = symmetric(rng, N)
    probe = observe(c, State(bf.random_basis(N, rng=rng)))
    assert bf.Certified().size(probe, 0, 0.0, 1.0)[1] == pytest.approx(N - 1)


@pytest.mark.parametrize("weights", [(3.0, 2.0, 1.0), (5.0, 0.1), (1.0,)])
@pytest.mark.parametrize("background", [0.0, 1e4])
def test_the_given_spread_makes_every_step_an_ascent_even_beside_a_hidden_eigenvector(
    weights, background, rng
):
    """Near the worst: a tiny part along an eigenvector far below, which hardly shows."""
    k, members = len(weights), 200
    far = -(10.0 ** rng.uniform(0, 4, members))
    values = np.concatenate(
        [np.sort(rng.uniform(0, 1, (members, N - 1)))[:, ::-1], far[:, None]], 1
    )
    c = values[..., None] * np.eye(N) + background * np.eye(N)
    start = bf.random_basis(N - 1, k, rng=rng, ensemble=(members,))
    hidden = (1 / np.abs(far))[:, None, None] * rng.standard_normal((members, 1, k))
    start = bf.polar(
        np.concatenate([start, 0 * hidden], 1),
        np.zeros((members, k, k)),
        np.concatenate([0 * start, hidden], 1),
    )
    spread = np.ptp(values, axis=-1)
    scaled = c / spread[:, None, None]
    flow = bf.BrockettFlow(weights, bf.Certified(fraction=1.0, spread=1.0))
    state = flow.init(start)
    for _ in range(30):
        before, probe = objective(state.basis, scaled, weights), observe(scaled, state)
        field = theory.brockett_field(state.basis, scaled, np.asarray(weights))
        state, _ = flow.step(scaled, state)
        gain = objective(state.basis, scaled, weights) - before
        least = np.sum(field**2, (-2, -1)) / (2 * theory.brockett_constant(weights[0], 1.0))
        assert np.all(gain >= least - 1e-12 - 50 * np.finfo(float).eps * background)
        assert probe.matvecs == k


def test_the_first_product_of_a_haar_start_bounds_the_spread_of_every_kind_of_spectrum(rng):
    """A one-eigenvalue spectrum makes the inequality tight; P(failure) ≤ 1e-6 a member."""
    for values in (np.eye(N)[0], -np.eye(N)[0], np.arange(N) / N, np.r_[np.zeros(N - 1), -1e6]):
        c = np.broadcast_to(np.diag(values), (500, N, N))
        probe = observe(c, State(bf.random_basis(N, 3, rng=rng, ensemble=(500,))))
        bound = bf.Certified().size(probe, 0, 0.0, 1.0)[1]
        assert np.all(bound >= np.ptp(values))


def test_a_spread_below_what_was_seen_is_refused_and_the_state_stays(rng):
    c, flow = symmetric(rng, N), bf.BrockettFlow((2, 1), bf.Certified(spread=1.0))
    state = flow.init(bf.random_basis(N, 2, rng=rng))
    with pytest.raises(bf.ObservationError, match=r"spread = 1\.0 is below what.* = \d"):
        flow.step(c, state)
    assert state.steps == 0
    result = bf.run(flow, [c, 0.1 * c, c + noise(rng, N, 0.1)], state, on_bad="skip")
    assert [bad.step for bad in result.bad] == [0, 1]
    assert result.state.steps == 1
    both = flow.init(bf.random_basis(N, 2, rng=rng, ensemble=(2,)))
    with pytest.raises(bf.ObservationError, match=r"wider than given.*\[\(1,\)\]"):
        flow.step(np.stack([0.1 * c, c]), both)


def test_a_tight_spread_is_not_refused_for_the_rounding_of_a_large_background(rng):
    """k = n shows the spread itself, give or take the rounding of the product."""
    c = symmetric(rng, N)
    for background in (0.0, 1e6, 1e10):
        flow = bf.BrockettFlow(tuple(range(N, 0, -1)), bf.Certified(spread=N - 1.0))
        state = flow.init(bf.random_basis(N, rng=rng))
        for _ in range(20):
            state, _ = flow.step(c + background * np.eye(N), state)


def test_without_weights_qr_raises_the_objective_as_the_polar_factor_does(rng):
    """Both span the same space, on which alone tr(XᵀCX) depends."""
    c, start = symmetric(rng, N), bf.random_basis(N, 3, rng=rng)
    values = []
    for retraction in (bf.polar, bf.qr):
        flow = bf.BrockettFlow(None, bf.Certified(spread=N - 1.0), retraction)
        values.append(objective(flow.step(c, flow.init(start))[0].basis, c, np.ones(3)))
    assert values[0] == pytest.approx(values[1], rel=1e-13)
    assert values[0] > objective(start, c, np.ones(3))


def test_it_arrives_at_the_leading_eigenvectors(rng):
    c = symmetric(rng, N)
    vectors = np.linalg.eigh(c)[1][:, ::-1][:, :2]
    for flow in (
        bf.BrockettFlow((2, 1), bf.Certified(spread=N - 1.0)),
        bf.BrockettFlow(None, bf.Certified(spread=N - 1.0), bf.qr),
    ):
        state = flow.init(bf.random_basis(N, 2, rng=rng))
        result = bf.run(flow, [c] * 5000, state, stop=[bf.aligned_below(vectors, 1e-6)])
        assert result.converged
