"""The parts of EigenTracker, each against its formula or its promise."""

import itertools

import numpy as np
import pytest
import torch
from scipy.linalg import expm
from scipy.stats import chi2

import bracketflow as bf
from bracketflow.core import State
from bracketflow.observation import observe
from bracketflow.oracles import as_operator
from bracketflow.tracker import average, full, reading, running, turn
from bracketflow.tracker import gain as g
from bracketflow.tracker import quotients as q
from bracketflow.tracker.identity import continued
from bracketflow.tracker.leading import STEADY
from bracketflow.tracker.view import looked
from cases import noise, symmetric

EPS = np.finfo(float).eps
LIBRARIES = [np.asarray, torch.from_numpy]
ENSEMBLES = [(), (3,), (2, 2)]


# Quotients --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ensemble", ENSEMBLES)
@pytest.mark.parametrize(("kept", "steps"), [(0.9, None), (0.51, None), (0.4, 10), (0.0, 4)])
def test_a_column_is_lost_with_half_of_its_height(kept, steps, ensemble):
    """Not by less, however long it lasts, and by more the sooner, but by no single observation."""
    rates = {"g": 1e-3, "rate": 1e-3, "ready": True, "rounding": 0.0}
    usual = np.zeros((*ensemble, 3)) + np.array([9.0, 4.0, 0.0])
    watch = q.start(ensemble, 3)._replace(mean=usual, variance=np.ones_like(usual))
    taken = 0
    while taken < 60 and not q.lost(watch).any():
        watch = q.watched(watch, usual * (1, kept, 1), 1.0, **rates)
        taken += 1
    assert taken == (steps or 60)
    assert q.lost(watch).all() == (steps is not None)


# Gain -------------------------------------------------------------------------------------------


def learned(gain, weight, covariance, variance, forget):
    """Gain after an innovation with this <innovation, lean> and variance of it."""
    judged = g.judged(gain, g.fraction(gain, weight), covariance, variance)
    return g.grown(judged, weight, forget)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_without_evidence_the_mean_is_that_of_everything(ensemble, rng):
    weights = rng.uniform(0.5, 20, 30)
    gain = g.restarted(weights[0], 1, g.start_gain(ensemble))
    mean, total = np.zeros(ensemble) + rng.standard_normal(), weights[0]
    numbers = [mean]
    for weight in weights[1:]:
        number = rng.standard_normal(ensemble)
        numbers.append(number)
        mean = mean + g.fraction(gain, weight) * (number - mean)
        gain = learned(gain, weight, np.zeros(ensemble), np.zeros(ensemble), None)
        total += weight
    plain = np.tensordot(weights, np.stack(numbers), axes=1) / total
    assert np.allclose(mean, plain, rtol=1e-12)
    assert np.allclose(gain.memory, total, rtol=1e-12)
    # Σ (w_i/W)²/w_i = 1/W: the variance of a weighted mean of unit noise.
    assert np.allclose(gain.noise, 1 / total, rtol=1e-12)
    assert np.array_equal(gain.count, np.full(ensemble, 30))
    assert gain.count.dtype == np.int64


@pytest.mark.parametrize("forget", [0.0, 0.05, 0.3])
def test_a_fixed_share_is_forgotten_with_every_observation(forget):
    gain = g.restarted(1.0, 1, g.start_gain(()))
    numbers, mean = [1.0], 1.0
    for t in range(200):
        number = float(t % 7)
        numbers.append(number)
        mean += g.fraction(gain, 1.0) * (number - mean)
        gain = learned(gain, 1.0, 5.0, 1.0, forget)  # whatever the evidence
    ages = np.arange(len(numbers))[::-1]
    shares = (1 - forget) ** ages
    shares[0] /= 1 - forget  # the first came as a mean of its own
    assert mean == pytest.approx(np.sum(shares * numbers) / shares.sum(), rel=1e-9)
    assert gain.noise == pytest.approx(np.sum((shares / shares.sum()) ** 2), rel=1e-9)
    assert gain.count == 201


def settled_gain(memory=50.0, count=50, **parts):
    zero = np.zeros(())
    return g.Gain(
        zero + memory, zero + 1 / memory, zero, zero, np.zeros((), np.int64) + count, zero, zero
    )._replace(**parts)


def test_evidence_of_a_lag_shortens_the_memory_and_is_then_spent():
    gain, memories = settled_gain(), []
    while gain.memory > 25.1:
        memories.append(float(gain.memory))
        gain = learned(gain, 1.0, 1.0, 1.0, None)  # one standard error each time
    # n agreeing standard errors are √n together: nine are LAGGING = 3, a little more with fading.
    assert 8 <= len(memories) <= 14
    assert all(b < a + 1 for a, b in itertools.pairwise(memories))
    assert gain.memory == pytest.approx(memories[-1] / 2)
    assert (gain.evidence, gain.doubt) == (0, 0)
    assert gain.count == 50 + len(memories)


def test_evidence_is_a_fading_sum_and_its_variance():
    gain = settled_gain()._replace(evidence=np.float64(1.5), doubt=np.float64(4.0))
    rate = g.fraction(gain, 2.0) / g.WINDOW
    after = learned(gain, 2.0, 3.0, 16.0, None)
    assert after.evidence == pytest.approx((1 - rate) * 1.5 + 3 / 4)
    assert after.doubt == pytest.approx((1 - rate) ** 2 * 4 + 1)
    unknown = learned(gain, 2.0, 3.0, 0.0, None)
    assert unknown.evidence == pytest.approx((1 - rate) * 1.5)
    assert unknown.doubt == pytest.approx((1 - rate) ** 2 * 4)


def test_memory_grows_by_evidence_against_a_lag_and_never_beyond_what_it_holds():
    def grown(score, noise=1e-3):
        gain = settled_gain(evidence=np.float64(0), doubt=np.float64(0), noise=np.float64(noise))
        return float(learned(gain, 2.0, score, 1.0, None).memory) - 50

    assert grown(0.0) == pytest.approx(2.0 * g.PATIENCE)
    assert grown(1.0) == pytest.approx(2.0 * (g.PATIENCE - 0.5))
    assert grown(-1.0) == pytest.approx(2.0 * (g.PATIENCE + 0.5))
    assert grown(-30.0) == pytest.approx(2.0 * 2)  # at most
    # The variance of the mean says how many observations can be in it.
    share = 2 / 52
    most = 1 / ((1 - share) ** 2 / 50 + share**2 / 2)
    assert grown(-30.0, 1 / 50) == pytest.approx(most - 50)


def test_the_first_few_innovations_judge_nothing():
    for count in range(1, 8):
        gain = settled_gain(memory=float(count), count=count)
        lagging = learned(gain, 1.0, 30.0, 1.0, None)
        early = count < g.CAUTIOUS_STEPS
        assert lagging.memory == pytest.approx(count + 1 if early else count / 2)
        assert (lagging.evidence > 0) == early


def test_eigenvalues_that_lag_shorten_the_memory_too_but_need_more_evidence():
    gain, count = settled_gain(), 0
    while gain.memory > 25.1:
        gain = g.grown(g.pulled(gain, g.fraction(gain, 1.0), 1.0, 1.0), 1.0, None)
        count += 1
    assert g.PULLED**2 - 1 <= count <= 4 * g.PULLED**2  # more than its square, with fading
    assert (gain.pull, gain.strain, gain.evidence) == (0, 0, 0)


def test_members_are_judged_each_by_their_own():
    gain = g.Gain(*(np.stack([part, part]) for part in settled_gain()))
    both = learned(gain, 1.0, np.array([30.0, 0.0]), np.array([1.0, 0.0]), None)
    assert both.memory == pytest.approx([25, 51])
    assert both.evidence.tolist() == [0, 0]


# Alarm ------------------------------------------------------------------------------------------


def alarmed(usual=1.0, ensemble=()):
    alarm = g.quiet(ensemble, np.zeros((*ensemble, 4, 2)))
    return alarm._replace(usual=alarm.usual + usual)


def test_nothing_has_been_heard_at_first():
    alarm = g.quiet((3,), np.ones((3, 4, 2)))
    assert alarm.usual.tolist() == [0, 0, 0]
    assert not alarm.suspect.any()
    for part, value in ((alarm.alike, 0), (alarm.held, 0), (alarm.jumps, 0), (alarm.jumped_at, -1)):
        assert part.tolist() == [value] * 3
        assert part.dtype == np.int64
    assert (
        g.heard(alarm, g.Gain(*map(np.atleast_1d, settled_gain())), 1e9, np.ones((3, 4, 2)), 0)
        is None
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_three_alike_are_a_jump_made_of_their_mean(library, rng):
    alarm, gain = alarmed(), settled_gain()
    alarm = alarm._replace(suspect=library(alarm.suspect))
    shape = rng.standard_normal((4, 2))
    innovations = [library(shape + 0.1 * rng.standard_normal((4, 2))) for _ in range(3)]
    for count, innovation in enumerate(innovations, 1):
        verdict = g.heard(alarm, gain, 100.0, innovation, 0.0)
        assert (verdict.held, verdict.jumped) == (count < 3, count == 3)
        alarm = verdict.waiting
        assert alarm.alike == alarm.held == count
        assert np.allclose(alarm.suspect, sum(innovations[:count]) / count)
    after = g.after_jump(alarm, 17)
    assert (after.jumps, after.jumped_at, after.alike, after.held) == (1, 17, 0, 0)
    assert not np.asarray(after.suspect).any()
    assert after.usual == alarm.usual


def test_loud_ones_that_do_not_agree_are_held_until_they_are_usual(rng):
    alarm, gain = alarmed(), settled_gain()
    shape, held = rng.standard_normal((4, 2)), 0
    for t in range(20):
        verdict = g.heard(alarm, gain, 100.0, shape * (-1) ** t, 0.0)
        assert not verdict.jumped
        if not verdict.held:
            break
        held += 1
        assert verdict.waiting.alike == 1
        assert np.allclose(verdict.waiting.suspect, shape * (-1) ** t)
        alarm = verdict.waiting
    assert held == g.GIVE_UP


def test_directions_agree_within_sixty_degrees():
    along, across = np.zeros((2, 4, 2))
    along[0, 0] = across[1, 0] = 1
    gain = settled_gain()
    waiting = g.heard(alarmed(), gain, 100.0, along, 0.0).waiting
    for degrees, agrees in ((0, True), (59, True), (61, False), (120, False), (180, False)):
        angle = np.deg2rad(degrees)
        turned = 7 * (np.cos(angle) * along + np.sin(angle) * across)
        assert g.agreement(turned, waiting) == pytest.approx(np.cos(angle), abs=1e-12)
        again = g.heard(waiting, gain, 100.0, turned, 0.0).waiting
        assert again.alike == (2 if agrees else 1)
    assert g.agreement(along, alarmed()) == 0


def test_loud_is_loud_beside_what_is_usual_and_above_rounding():
    innovation, gain = np.ones((4, 2)), settled_gain()
    for usual in (1.0, 25.0):
        limit = g.LOUD * usual**0.5
        assert g.heard(alarmed(usual), gain, limit * 0.99, innovation, 0.0) is None
        assert g.heard(alarmed(usual), gain, limit * 1.01, innovation, 0.0).held
        assert g.heard(alarmed(usual), gain, limit * 1.01, innovation, limit * 1.02) is None
    # Among the first few only what is out of all proportion, by the n = 4 rows, counts.
    for count in (g.CAUTIOUS_STEPS, g.CAUTIOUS_STEPS + 1):
        early = settled_gain(count=count)
        startled = g.heard(alarmed(), early, g.STARTLING * 4 * 0.99, innovation, 0.0)
        assert (startled is None) == (count == g.CAUTIOUS_STEPS)
        assert g.heard(alarmed(), early, g.STARTLING * 4 * 1.01, innovation, 0.0).held


def test_the_alarm_of_one_member_leaves_the_others_alone(rng):
    alarm = alarmed(ensemble=(3,))
    gain = g.Gain(*(np.stack([part] * 3) for part in settled_gain()))
    innovation = rng.standard_normal((3, 4, 2))
    for count in range(1, 4):
        size = np.array([1.0, 100.0, 1.0])
        verdict = g.heard(alarm, gain, size, innovation, np.zeros(3))
        assert verdict.held.tolist() == [False, count < 3, False]
        assert verdict.jumped.tolist() == [False, count == 3, False]
        assert verdict.waiting.held.tolist() == [0, count, 0]
        assert verdict.waiting.alike.tolist() == [0, count, 0]
        alarm = verdict.waiting
    assert np.allclose(alarm.suspect[1], innovation[1])


def test_what_is_usual_follows_slowly_and_at_first_at_once():
    for count, rate in ((1, 1.0), (g.CAUTIOUS_STEPS, 1.0), (g.CAUTIOUS_STEPS + 1, 0.02)):
        alarm = g.listened(alarmed(9.0), settled_gain(count=count), 5.0)
        assert alarm.usual == pytest.approx(9 + rate * (25 - 9))
    held = alarmed()._replace(
        held=np.int64(2), alike=np.int64(2), suspect=np.ones((4, 2)), jumps=np.int64(3)
    )
    calm = g.listened(held, settled_gain(), np.float32(np.inf))
    assert np.isfinite(calm.usual)
    assert (calm.held, calm.alike, calm.jumps) == (0, 0, 3)
    assert not calm.suspect.any()
    assert g.calmed(alarmed()).suspect.shape == (4, 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_members_multiply_blocks(dtype):
    for library in LIBRARIES:
        like = library(np.ones((3, 4, 2), dtype=dtype))
        block = g.per_member(np.arange(3), like) * like
        assert type(block) is type(like)
        assert block.dtype == like.dtype
        assert np.array_equal(block, np.arange(3)[:, None, None] * np.ones((3, 4, 2)))
    meta = torch.empty((3, 4, 2), device="meta")
    assert g.per_member(np.arange(3), meta).device.type == "meta"


# Identity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_columns_are_put_back_in_place_with_their_signs(library, ensemble, rng):
    old = bf.random_basis(7, 4, rng=rng, ensemble=ensemble)
    new, orders = np.empty((*ensemble, 7, 5)), {}
    for member in np.ndindex(ensemble):
        orders[member] = rng.permutation(4)
        new[member][:, :4] = old[member][:, orders[member]] * rng.choice([-1, 1], 4)
        new[member][:, 4] = rng.standard_normal(7)
    new += 0.01 * rng.standard_normal(new.shape)
    order, sign = continued(library(old.mT @ new[..., :4]), 5, settled=True)
    assert type(order) is type(sign) is type(library(old))
    for member in np.ndindex(ensemble):
        back = new[member][:, np.asarray(order)[member]] * np.asarray(sign)[member]
        assert np.abs(back[:, :4] - old[member]).max() < 0.1
        assert np.array_equal(back[:, 4], new[member][:, 4])


def test_columns_are_not_exchanged_while_close_or_before_they_have_settled():
    def turned(degrees):
        angle = np.deg2rad(degrees)
        return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])

    for settled in (True, False):
        order, sign = continued(turned(40), 2, settled=settled)  # cos 40° = 0.766
        assert order is None
        assert sign.tolist() == [1, 1]
        order, sign = continued(turned(170), 2, settled=settled)
        assert order is None
        assert sign.tolist() == [-1, -1]
    order, sign = continued(turned(100), 2, settled=True)
    assert order.tolist() == [1, 0]
    assert sign.tolist() == [-1, 1]
    order, sign = continued(turned(100), 2, settled=False)
    assert order is None
    assert sign.tolist() == [-1, -1]
    order, _ = continued(turned(42), 2, settled=True)  # no longer close, and still itself
    assert order.tolist() == [0, 1]


def test_members_that_stay_are_not_exchanged_with_those_that_are():
    overlap = np.stack([np.eye(2), np.eye(2)[::-1], -np.eye(2)])
    order, sign = continued(overlap, 3, settled=True)
    assert order.tolist() == [[0, 1, 2], [1, 0, 2], [0, 1, 2]]
    assert sign.tolist() == [[1, 1, 1], [1, 1, 1], [-1, -1, 1]]
    assert continued(overlap.astype(np.float32), 3, settled=True)[1].dtype == np.float32


# Full basis -------------------------------------------------------------------------------------


def nearly_diagonal(rng, size, n=6):
    """diag(n … 1) and an off-diagonal part of Frobenius norm `size`."""
    e = noise(rng, n, 1.0)
    e -= np.diag(np.diag(e))
    return np.diag(np.arange(n, 0, -1.0)) + size * e / np.linalg.norm(e)


SIZES = [1e-12, 1e-8, 1e-5, 1e-3, 1e-2, 0.1, 1.0]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("size", SIZES)
def test_a_turn_is_a_rotation_that_leaves_second_order(library, size, rng):
    mean, x = nearly_diagonal(rng, size), bf.random_basis(6, rng=rng)
    angles = full.newton_angles(mean)
    state = State(library(x), steps=1)
    basis, after = full._turned(state, library(mean), library(angles), 0.0)
    basis, after = np.asarray(basis), np.asarray(after)
    assert np.linalg.norm(basis.T @ basis - np.eye(6)) <= 40 * EPS
    assert np.linalg.det(basis) == pytest.approx(np.linalg.det(x))
    turned = basis.T @ (x @ mean @ x.T) @ basis
    # Newton's angles over gaps of 1 leave the square of what was there; the rest is rounding.
    assert np.linalg.norm(turned - np.diag(np.diag(turned))) <= 4 * size**2 + 100 * EPS
    assert np.linalg.norm(after - turned) <= 4 * size**2 + 100 * EPS
    assert np.array_equal(after, after.T)
    if size < 0.1:
        exact = x @ expm(angles)
        assert np.linalg.norm(basis - exact) <= 4 * size**3 + 40 * EPS


def test_a_turn_that_is_not_worth_it_is_left_for_later(rng):
    mean, x = nearly_diagonal(rng, 1e-3), bf.random_basis(6, rng=rng)
    angles = full.newton_angles(mean)
    square = np.sum(angles**2)
    basis, after = full._turned(State(x), mean, angles, 1.01 * square)
    assert basis is x
    assert after is mean
    basis, _ = full._turned(State(x), mean, angles, 0.99 * square)
    assert np.abs(basis - x).max() > 1e-5


def test_members_are_turned_each_by_what_it_needs(rng):
    means = np.stack([nearly_diagonal(rng, size) for size in SIZES])
    bases = bf.random_basis(6, rng=rng, ensemble=(len(SIZES),))
    angles = full.newton_angles(means)
    worth = np.zeros(len(SIZES))
    worth[1] = 1.0  # not worth it
    state = State(bases, steps=np.ones(len(SIZES), dtype=int))
    together, after = full._turned(state, means, angles, worth)
    for i in range(len(SIZES)):
        alone, mean = full._turned(State(bases[i], steps=1), means[i], angles[i], worth[i])
        assert np.allclose(together[i], alone, rtol=0, atol=40 * EPS)
        assert np.allclose(after[i], mean, rtol=0, atol=1e-9)
    assert np.array_equal(together[1], bases[1])


def test_rounding_of_the_basis_is_taken_off_every_few_turns(rng):
    mean, x = nearly_diagonal(rng, 1e-6), bf.random_basis(6, rng=rng) * (1 + 1e-9)
    angles = full.newton_angles(mean)
    for steps, corrected in ((1, False), (full.POLISH_EVERY, True), (3 * full.POLISH_EVERY, True)):
        basis, _ = full._turned(State(x, steps=steps), mean, angles, 0.0)
        defect = np.linalg.norm(basis.T @ basis - np.eye(6))
        assert (defect < 1e-13) == corrected


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_a_reflection_becomes_a_rotation_in_its_weakest_column(library, ensemble, rng):
    turns = bf.random_basis(5, rng=rng, ensemble=ensemble)
    proper = np.asarray(full._proper(library(turns)))
    for member in np.ndindex(ensemble):
        assert np.linalg.det(proper[member]) == pytest.approx(1)
        changed = (proper[member] != turns[member]).any(axis=0)
        weakest = np.abs(np.diag(turns[member])).argmin()
        assert changed.tolist() == [
            i == weakest and np.linalg.det(turns[member]) < 0 for i in range(5)
        ]


def test_newton_angles_diagonalise_every_pair(rng):
    for library in LIBRARIES:
        for scale in (1e-60, 1.0, 1e60):
            matrix = scale * symmetric(rng, 5, ensemble=(2,))
            angles = np.asarray(full.newton_angles(library(matrix)))
            assert np.array_equal(angles, -angles.mT)
            assert np.abs(angles).max() <= 1 + 4 * EPS
            for member in range(2):
                for i, j in itertools.combinations(range(5), 2):
                    pair = matrix[member][np.ix_([i, j], [i, j])]
                    t = angles[member][i, j]
                    turned = np.array([[1, t], [-t, 1]])
                    assert abs((turned.T @ pair @ turned)[0, 1]) <= 1e-12 * scale


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_angles_are_skew_where_roundings_make_eigenvalues_equal(dtype):
    matrix = np.full((3, 3), 1e-3, dtype=dtype)
    matrix[np.arange(3), np.arange(3)] = 1 + np.array([2, 0, 4], dtype) * np.finfo(dtype).eps
    angles = bf.tracker.newton_angles(matrix)
    assert np.array_equal(angles, -angles.T)
    assert np.all(np.abs(angles[~np.eye(3, dtype=bool)]) > 0.9)


def test_a_jump_starts_from_what_was_held_back_and_keeps_rank_and_sign(rng):
    """After it the frame is that of the mean and the suspect, as an average of three."""
    frame = full.start(np.eye(5))._replace(
        mean=np.diag([3.0, 5, 1, 4, 2]), variance=np.full((5, 5), 0.25)
    )
    jump = 0.1 * noise(rng, 5, 1.0)
    alarm = frame.alarm._replace(suspect=jump, held=np.int64(3), alike=np.int64(3))
    frame = frame._replace(alarm=alarm)
    basis, after = full._reset(State(np.eye(5), steps=7), jump, g.JUMP, frame, 2.0)
    values, vectors = np.linalg.eigh(frame.mean + jump)
    order = [2, 4, 0, 3, 1]  # ranks, ascending, of the diagonal above
    assert np.allclose(np.diag(after.mean), values[order])
    assert np.allclose(np.abs(np.sum(basis * vectors[:, order], axis=0)), 1)
    assert np.all(np.diag(basis) > 0)
    assert np.allclose(after.variance, 0.25)
    assert not after.lean.any()
    assert after.gain.memory == 2.0 * g.JUMP
    assert after.gain.count == g.JUMP
    assert (after.alarm.jumps, after.alarm.jumped_at, after.alarm.held) == (1, 7, 0)


@pytest.mark.parametrize("weight", [1.0, 5.0])
def test_an_innovation_is_as_loud_as_its_noise_is_usual(weight, rng):
    """For noise of the variance that is known: weight·(1 − g), a hundredth less; floor 64 times."""
    variance = rng.uniform(1, 2, (4, 4))
    gain = settled_gain(memory=3.0)
    frame = full.start(np.eye(4))._replace(variance=variance, gain=gain)
    probe = observe(np.diag([4.0, 3, 2, 1]), State(np.eye(4)))
    scale = weight * 3 / (3 + weight)
    size, floor = full._loudness(variance.copy(), frame, probe, weight)
    assert scale / 1.02 < size < scale
    assert floor == pytest.approx(64 * scale)
    louder, _ = full._loudness(9 * variance, frame, probe, weight)
    assert louder == pytest.approx(9 * size)


# Running mean -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_a_mean_starts_with_columns_and_nothing_else(ensemble, rng):
    basis = bf.random_basis(9, 2, rng=rng, ensemble=ensemble)
    mean = running.start(basis, None)
    both = np.concatenate([basis, mean.extra], axis=-1)
    assert np.allclose(both.mT @ both, np.eye(7), rtol=0, atol=20 * EPS)
    assert mean.reference.shape == (*ensemble, 9, 1)
    assert np.allclose(np.linalg.norm(mean.reference, axis=-2), 1)
    empty = {
        "image": (9, 1),
        "values": (7,),
        "ritz": (2,),
        "reach": (1, 2),
        "variance": (2, 7),
        "power": (2,),
        "flicker": (),
        "lean": (9, 2),
        "mapped": (9, 8 if ensemble else 0),
        "inside": (7, 2),
        "bulk": (),
        "whole": (9, 1),
        "spread": (),
        "since": (2,),
    }
    for name, shape in empty.items():
        part = getattr(mean, name)
        assert np.shape(part) == (*ensemble, *shape), name
        assert not np.any(part), name
    assert np.array_equal(mean.carry, np.ones(ensemble))
    assert np.array_equal(mean.anchor, np.broadcast_to(np.eye(7)[:2], (*ensemble, 2, 7)))
    assert mean.since.dtype == np.int64
    assert mean.base is basis


@pytest.mark.parametrize("ensemble", [(), (2,)])
def test_a_mean_that_is_forgotten_is_one_that_has_seen_nothing(ensemble, rng):
    c = symmetric(rng, 9, ensemble=ensemble)
    state = bf.EigenTracker().init(bf.random_basis(9, 2, rng=rng, ensemble=ensemble))
    for _ in range(12):
        state, _ = bf.EigenTracker().step(c + noise(rng, 9, 0.5), state)
    mean = running.restored(state.memory[0])
    fresh = running.start(state.basis, None)
    empty = running.forgotten(mean, state.basis)
    for name in ("lean", "carry", "anchor", "mapped", "inside", "whole", "base"):
        assert np.array_equal(getattr(empty, name), getattr(fresh, name)), name
    assert all(np.array_equal(a, b) for a, b in zip(empty.gain, fresh.gain, strict=True))
    for name in ("block", "values", "variance", "power", "since"):
        assert getattr(empty, name) is getattr(mean, name), name


@pytest.mark.parametrize("ensemble", [(), (2,)])
def test_the_block_of_a_mean_holds_the_basis_whatever_happens(ensemble, rng):
    """Still, noisy, an outlier, a jump, and noise again; while it stands still nobody reads it."""
    tracker, still, other = bf.EigenTracker(), symmetric(rng, 20), symmetric(rng, 20)
    state = tracker.init(bf.random_basis(20, 2, rng=rng, ensemble=ensemble))
    scenes = [(still, 0.0)] * 5 + [(still, 1.0)] * 30 + [(1e6 * other, 1.0)] + [(other, 1.0)] * 30
    averaged, kinds = 0, set()
    for matrix, size in scenes:
        before = state
        state, _ = tracker.step(matrix + noise(rng, 20, size), state)
        kinds |= {event.kind for event in tracker.events(before, state)}
        mean, _, steady = state.memory
        if steady < STEADY:
            averaged += 1
            assert np.array_equal(mean.block[..., :2], state.basis)
    assert averaged >= 60
    assert {"outlier", "jump"} <= kinds


def test_reach_is_one_over_the_height_and_nothing_for_a_flat_mean():
    # A column that hardly stands out counts as a twentieth of the first.
    assert np.allclose(average._reach(np.array([8.0, 4, 0.01])), [[1 / 8, 1 / 4, 1 / 0.4]])
    assert not average._reach(np.zeros(3)).any()
    two = average._reach(np.array([[2.0, 1], [0, 0]]))
    assert np.array_equal(two, [[[0.5, 1]], [[0, 0]]])


@pytest.mark.parametrize("noise_size", [0.0, 5.0])
def test_the_spectrum_outside_is_known_by_its_mean_and_variance(noise_size, rng):
    """From one random column, so to a few standard errors √(2/n); the noise is taken off."""
    n, k, members = 60, 2, 30
    truth = bf.random_basis(n, rng=rng, ensemble=(members,))
    matrix = (truth * np.concatenate([[20.0, 15], np.linspace(4, 0, n - k)])) @ truth.mT
    tracker = bf.EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng, ensemble=(members,)))
    for _ in range(40):
        state, _ = tracker.step(matrix + noise(rng, n, noise_size), state)
    mean = running.restored(state.memory[0])
    columns = np.concatenate([state.basis, mean.extra], axis=-1)
    outside = np.eye(n) - columns @ columns.mT
    rest = n - columns.shape[-1]
    bulk = np.trace(outside @ matrix, axis1=-2, axis2=-1) / rest
    variance = np.trace(outside @ matrix @ outside @ matrix, axis1=-2, axis2=-1) / rest - bulk**2
    level = (mean.reference.mT @ matrix @ mean.reference)[..., 0, 0]
    assert np.mean(mean.bulk + level - bulk) == pytest.approx(0, abs=0.1)
    assert np.mean(mean.spread) == pytest.approx(np.mean(variance), rel=0.15)


def pending(rng, ensemble=()):
    """A mean some way into a window, with the block [X, z] it speaks of."""
    basis = bf.random_basis(9, 2, rng=rng, ensemble=ensemble)
    mean = running.start(basis, None)
    block = np.concatenate([basis, mean.extra, mean.reference], axis=-1)
    m = symmetric(rng, 9, ensemble=ensemble, eigenvalues=[9, 8, 7, 2, 2, 2, 2, 2, 2])
    mapped = m @ block
    return block, mean._replace(
        mapped=mapped,
        inside=block[..., :-1].mT @ mapped[..., :2],
        reach=0 * mean.reach + [0.1, 0.2],
        bulk=0 * mean.bulk + 2.0,
        base=bf.random_basis(9, 2, rng=rng, ensemble=ensemble),
    )


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_a_move_goes_out_of_the_span_of_all_columns(ensemble, rng):
    block, mean = pending(rng, ensemble)
    columns, images = block[..., :-1], mean.mapped[..., :2]
    move = average._move(block, mean, turns=False)
    outside = images - columns @ (columns.mT @ images)
    assert np.allclose(move, outside * [0.1, 0.2], rtol=0, atol=1e-13)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_at_a_turn_the_move_is_all_that_the_columns_have_done_since_the_last(ensemble, rng):
    block, mean = pending(rng, ensemble)
    basis, images = block[..., :2], mean.mapped[..., :2]
    whole = average._move(block, mean, turns=True)
    outside = images - basis @ (basis.mT @ images)
    assert np.allclose(whole, outside * [0.1, 0.2] + basis - mean.base, rtol=0, atol=1e-13)


@pytest.mark.parametrize("reach", [1.0, 1e9])
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_columns_that_moved_are_orthonormal_and_know_their_image(ensemble, reach, rng):
    block, mean = pending(rng, ensemble)
    mean = mean._replace(reach=reach * mean.reach)
    basis = np.ascontiguousarray(block[..., :2])
    move, images = average._move(block, mean, turns=False), mean.mapped[..., :2].copy()
    moved = basis + move
    gram, cross = moved.mT @ moved, moved.mT @ images
    after, memory = average._moved(basis, move, gram, cross, mean)
    columns = np.concatenate([after, mean.extra], axis=-1)
    assert np.allclose(columns.mT @ columns, np.eye(7), rtol=0, atol=100 * EPS)
    lengths = np.linalg.norm(move, axis=-2, keepdims=True)
    move = move / np.maximum(lengths, 1)  # 45 degrees at most
    assert bf.subspace_error(after, np.linalg.qr(basis + move)[0]).max() < 1e-13
    # A mean that is flat outside of its columns makes bulk · move of the move.
    assert np.allclose(memory.mapped[..., :2], images + 2.0 * move, rtol=0, atol=1e-14)
    assert np.array_equal(memory.mapped[..., 2:], mean.mapped[..., 2:])
    inside = columns.mT @ memory.mapped[..., :2]
    assert np.allclose(memory.inside, inside, rtol=0, atol=1e-13)


# Turn -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_the_level_lies_below_the_mean_and_the_bulk(library, ensemble, rng):
    within = symmetric(rng, 5, ensemble=ensemble, eigenvalues=[5, 4, 3, 0, -1])

    def below(lowest):
        """By a thousandth of the norm of what is above."""
        height = np.linalg.norm(within - lowest * np.eye(5), axis=(-2, -1), keepdims=True)
        return lowest - 1e-3 * height

    for height in (-3.0, -0.5, 2.0):
        bulk = np.full(ensemble, height)
        level, kept = turn.levels(library(within), library(np.asarray(bulk)))
        assert level.shape == (*ensemble, 1, 1)
        assert np.allclose(kept, height)
        assert kept.shape == (*ensemble, 1)
        assert np.allclose(level, below(min(-1.0, height)), rtol=0, atol=1e-9)
    level, kept = turn.levels(library(within), None)
    assert np.allclose(level, below(-1.0), rtol=0, atol=1e-9)
    assert np.allclose(kept, -1)


def test_the_level_of_a_vanishing_mean_is_still_below_it():
    level, _ = turn.levels(np.zeros((3, 3)), None)
    assert level < 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_noisy_extra_columns_are_evened_where_the_gain_is_large(library):
    values = library(np.array([[20.0, 15, 3, 4, 5, 40], [20.0, 15, 3, 4, 5, 40]]))
    bulk = library(np.array([[1.0], [1.0]]))
    for gain, part in ((0.0, 0), (0.05, 0), (0.075, 0.5), (0.1, 1), (0.7, 1)):
        even = np.asarray(turn.evened(values, bulk, 2, np.array([gain, 0.0])))
        # 2, 3 and 4 above the bulk are noise, 39 is not.
        expected = [20, 15, *(np.array([3, 4, 5]) * (1 - part) + 4 * part), 40]
        assert np.allclose(even[0], expected)
        assert np.allclose(even[1], values[1])


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_singular_vectors_come_from_small_matrices(library, ensemble, rng):
    x = bf.random_basis(12, 4, rng=rng, ensemble=ensemble)
    within = symmetric(rng, 4, ensemble=ensemble, eigenvalues=[9, 7, 4, 2])
    outside = rng.standard_normal((*ensemble, 12, 4))
    outside -= x @ (x.mT @ outside)
    z = x @ within + outside
    # M with MX = Z, and nothing outside of span[X, R].
    m = x @ within @ x.mT + outside @ x.mT + x @ outside.mT
    gram = z.mT @ z
    values, turned = turn.singular(library(gram))
    leading = turned[..., :2]
    ritz = turn.ritz_values(library(within), library(gram), leading, library(within) @ leading)
    u = z @ np.asarray(turned)
    assert np.allclose(values, np.linalg.svd(z, compute_uv=False), rtol=1e-10)
    assert np.allclose(u.mT @ u, np.eye(4), rtol=0, atol=1e-11)
    assert np.allclose(
        (u.mT @ z @ z.mT @ u) - np.asarray(values)[..., None] ** 2 * np.eye(4), 0, atol=1e-8
    )
    assert np.allclose(ritz, (u.mT @ m @ u).diagonal(axis1=-2, axis2=-1)[..., :2], rtol=1e-10)


def test_a_singular_image_has_finite_singular_vectors():
    gram = np.diag([4.0, 1.0, 0.0])
    values, turned = turn.singular(gram)
    assert np.allclose(values[:2], [2, 1])
    assert values[2] == pytest.approx((4 * 3 * EPS) ** 0.5)
    assert np.isfinite(turned).all()


@pytest.mark.parametrize("size", [1e-15, 1e-9, 1e-4, 1e-2])
def test_nearly_orthonormal_columns_are_polished_to_rounding(size, rng):
    for library in LIBRARIES:
        basis = bf.random_basis(9, 4, rng=rng) + size * rng.standard_normal((9, 4))
        polished = np.asarray(turn.polished(library(basis)))
        assert np.linalg.norm(polished.T @ polished - np.eye(4)) <= 2 * turn.DEFECT * EPS
        assert np.linalg.norm(polished - basis) <= 10 * size


def test_columns_that_are_orthonormal_to_rounding_are_left_alone(rng):
    basis = bf.random_basis(9, 4, rng=rng)
    assert turn.polished(basis) is basis


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_column_has_left_when_most_of_it_is_outside(library):
    values = np.array([10.0, 5.0, 4.9, 1.0])  # the second and third are close
    places = np.eye(4)[:2]
    assert np.array_equal(turn.places(library(values), 2), places)
    still = np.array([[1.0, 0, 0, 0], [0, 0.8, 0.6, 0]])
    anchor, left = turn.followed(library(still), library(values))
    assert left.tolist() == [False, False]
    # The first stands apart and starts anew; the second may be leaving, and is kept in mind.
    assert np.array_equal(anchor, [[1, 0, 0, 0], [0, 0.8, 0.6, 0]])
    gone = np.array([[0.9, 0, 0, 0.1], [0, 0.6, 0.8, 0]])
    anchor, left = turn.followed(library(gone), library(values))
    assert left.tolist() == [False, True]
    assert np.array_equal(anchor, places)
    lost = np.array([[1.0, 0, 0, 0], [0, 0.6, 0.3, 0]])  # most of it is in no column
    anchor, left = turn.followed(library(lost), library(values))
    assert left.tolist() == [False, False]
    assert np.array_equal(anchor, places)


@pytest.mark.parametrize("library", LIBRARIES)
def test_what_belongs_to_a_column_moves_with_it(library):
    inside = np.eye(4)[[1, 0, 2, 3]] * [-1, 1, -1, 1]  # new column 0 is old 1, reversed
    parts = [library(part) for part in (np.array([4.0, 3, 2, 1]), inside, 10 * inside)]
    values, within, turned = turn.identified(*parts, 2, True)
    assert values.tolist() == [3, 4, 2, 1]
    assert np.array_equal(within, np.diag([1, 1, -1, 1]))  # columns beyond k keep their sign
    assert np.array_equal(turned, 10 * np.diag([1, 1, -1, 1]))


# View -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_a_view_is_the_product_at_the_level_of_its_reference(library, ensemble, rng):
    n, k, p = 9, 2, 3
    c = symmetric(rng, n, ensemble=ensemble) + 50 * np.eye(n)
    block = bf.random_basis(n, k + p, rng=rng, ensemble=ensemble)
    reference = bf.random_basis(n, 1, rng=rng, ensemble=ensemble)
    state = State(library(np.ascontiguousarray(block[..., :k])))
    both = np.concatenate([block, reference], axis=-1)
    probe, view = looked(as_operator(library(c)), state, library(both))
    plain = observe(library(c), state)
    for name in ("background", "rayleigh", "extent", "centred", "residual"):
        assert np.allclose(getattr(probe, name), getattr(plain, name), rtol=0, atol=1e-12), name
    assert probe.matvecs == k + p + 1
    level = (reference.mT @ c @ reference)[..., 0, 0]
    centred = c - level[..., None, None] * np.eye(n)
    assert np.array_equal(view.block, both)
    assert np.allclose(view.image, centred @ both, rtol=0, atol=1e-12)
    assert np.allclose(view.rayleigh, block.mT @ centred @ block[..., :k], rtol=0, atol=1e-12)
    # 16 eps √(nq)|level| and 64 eps ‖H‖_F.
    rounding = 16 * EPS * (n * (k + p + 1)) ** 0.5 * np.abs(level)
    rounding += 64 * EPS * np.linalg.norm(block.mT @ centred @ block[..., :k], axis=(-2, -1))
    assert np.allclose(view.rounding, rounding, rtol=1e-9)


@pytest.mark.parametrize("where", ["columns", "reference"])
def test_a_view_of_what_is_not_symmetric_is_refused(where, rng):
    """An asymmetry is seen among the columns, and between them and the reference."""
    c = np.diag(np.arange(6.0, 0, -1))
    i, j = (0, 1) if where == "columns" else (0, 5)
    c[i, j] += 1e-3
    block = np.eye(6)[:, [0, 1, 2, 3, 5]]
    with pytest.raises(bf.ObservationError, match="not symmetric"):
        looked(as_operator(c), State(block[:, :2]), block)


# Reading ----------------------------------------------------------------------------------------


def averaged(k, rng, members=40, steps=60, size=0.5):
    truth = bf.random_basis(10, rng=rng, ensemble=(members,))
    values = np.concatenate([[20.0, 15, 11, 8], np.zeros(6)]) if k else np.arange(20.0, 0, -2)
    matrix = (truth * values) @ truth.mT
    tracker = bf.EigenTracker()
    state = tracker.init(truth[..., :k])
    for _ in range(steps):
        errors = np.stack([noise(rng, 10, size) for _ in range(members)])
        state, _ = tracker.step(0.5 * (matrix + matrix.mT) + errors, state)
    return tracker, state, truth, values


@pytest.mark.parametrize("k", [None, 3])
def test_error_bars_hold_as_often_as_they_say(k, rng):
    tracker, state, truth, values = averaged(k, rng)
    columns = state.basis.shape[-1]
    values = values[:columns] - values[:columns].mean()
    distance = np.minimum(
        np.linalg.norm(state.basis - truth[..., :columns], axis=-2),
        np.linalg.norm(state.basis + truth[..., :columns], axis=-2),
    )
    for coverage in (0.5, 0.9):
        read = tracker.read(state, coverage)
        # At least 120 bars, five standard deviations; and the bars of a finite run are estimates.
        slack = 5 * (coverage * (1 - coverage) / 120) ** 0.5
        inside = np.abs(read.eigenvalues - values) <= read.eigenvalue_errors
        assert abs(inside.mean() - coverage) <= slack
        assert abs((distance <= read.vector_errors).mean() - coverage) <= slack
    assert read.memory.max() <= 60 * (1 + 1e-12)
    assert np.median(read.memory) > 30
    assert np.array_equal(read.order, np.broadcast_to(np.arange(columns), read.order.shape))
    assert not read.jumps.any()
    assert np.all(read.jumped_at == -1)


def test_equal_eigenvalues_have_bars_as_long_as_can_be(rng):
    tracker, values = bf.EigenTracker(), [5.0, 3, 3, 1]
    state = tracker.init(np.eye(4))
    for _ in range(200):
        state, _ = tracker.step(np.diag(values) + noise(rng, 4, 1e-3), state)
    bars = tracker.read(state).vector_errors
    assert np.all(bars[[0, 3]] < 1e-2)
    assert np.all(bars[[1, 2]] > 0.1)
    assert np.all(bars <= 2**0.5)


@pytest.mark.parametrize("coverage", [0.3, 0.9, 0.99])
@pytest.mark.parametrize("others", [3, 8, 40])
def test_an_error_bar_is_a_quantile_of_the_distance(coverage, others):
    """Alike towards `others` columns, or towards as many outside of them: χ² of that many."""
    size = others * 0.01 * (chi2.ppf(coverage, others) / others)
    values = np.concatenate([[5.0], np.ones(others)])
    variance = np.full((1, others + 1), 0.01 * 16 / 0.5)  # times 0.5, over a gap of 4
    none, gain, alarm = np.zeros(1), settled_gain(), alarmed()
    inside = reading._Spread(values, variance, none, none, 1, gain, alarm)
    found = reading._radius(inside, np.full(1, 0.5), 1, coverage)
    # Wilson and Hilferty are good to a percent from three degrees of freedom on.
    assert found == pytest.approx(size**0.5, rel=0.02)
    power = np.full(1, others * 0.01 * 25 / 0.5)  # 5 above the bulk
    outside = reading._Spread(values[:1], 0 * variance[:, :1], power, none, others, gain, alarm)
    found = reading._radius(outside, np.full(1, 0.5), 1, coverage)
    assert found == pytest.approx(size**0.5, rel=0.02)
    wide = outside._replace(bulk=np.full(1, 0.5))  # eigenvalues outside are not all alike
    longer = reading._radius(wide, np.full(1, 0.5), 1, coverage)
    assert longer == pytest.approx(found * (1 + 3 * 0.5 / 25) ** 0.5)


def test_where_nothing_is_known_a_bar_is_as_long_as_can_be():
    equal = reading._Spread(
        np.array([2.0, 2.0]),
        np.ones((2, 2)),
        np.zeros(2),
        np.zeros(2),
        1,
        settled_gain(),
        alarmed(),
    )
    assert reading._radius(equal, np.ones(1), 2, 0.95) == pytest.approx([2**0.5] * 2)


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.5, 2, np.nan])
def test_coverage_is_a_probability(coverage):
    tracker = bf.EigenTracker()
    with pytest.raises(ValueError, match="coverage must be between 0 and 1, got"):
        tracker.read(tracker.init(np.eye(3)), coverage)


def test_what_rises_is_told_from_noise_and_from_what_falls(rng):
    """Of four columns: noise, noise below, a slow rise, a fast one."""
    rise = q.flat((2,), 4)
    memory, weight = np.full(2, 1000.0), np.full(2, 2.0)
    for step in range(400):
        truth = np.array([0.0, -1.0, 0.002, 0.02]) * np.array([1, 1, step, step])
        seen = truth + rng.standard_normal((2, 4)) * (0.1 / 2) ** 0.5
        rate = np.full(2, 1 / min(step + 1, 50))
        rise = q.rising(rise, seen, weight, memory=memory, rate=rate)
    added, square = q.risen(rise)
    assert not added[:, :2].any()
    assert not square[:, :2].any()
    late = np.abs(added - truth)[:, 2:] / np.sqrt(square[:, 2:])
    assert np.all(late < 4)
    assert np.all(square[:, 2:] < 0.1 / 2 / 2)
    assert np.all(rise.noise[:, 3] > rise.noise[:, 2])  # the faster, the briefer


def test_nothing_rises_where_nothing_is_seen():
    rise = q.flat((), 3)
    for _ in range(3):
        rise = q.rising(rise, np.zeros(3), np.float64(1.0), memory=np.float64(0.0), rate=1.0)
    added, square = q.risen(rise)
    assert not added.any()
    assert not square.any()
