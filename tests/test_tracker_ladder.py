"""The ladder: what an observation weighs, which memory is used, and how often it is wrong."""

import numpy as np
import pytest
from scipy.stats import binom, poisson

from bracketflow.tracker import ladder as ladders

EPS = np.finfo(float).eps
J = len(ladders.RUNGS)
# Of three observations two may be so alike that the third counts a little less.
EARLY = 0.05
LONGEST = J - 1


def entered(ladder, noise, weight=1.0):
    """The ladder with an observation of this noise for one unit of weight."""
    noise = noise / weight
    # The first pair is told apart by half of its distance; later a mean that is far off says
    # nothing, and half of the distance from the last observation counts.
    return ladders.weigh(
        ladder,
        2 * noise if ladder.observed == 1 else 1e9 * noise,
        2 * noise,
        weight,
        None,
        1 / weight,
    )


def fed(noises, weights=None, forget=None):
    """The ladder after observations of these noises (the first one's cannot be seen), all gains."""
    weights = np.ones(len(noises)) if weights is None else weights
    ladder, gains = ladders.begin(ladders.start(forget), weights[0], 1 / weights[0]), []
    for noise, weight in zip(noises[1:], weights[1:], strict=True):
        ladder, gain = ladders.absorb(entered(ladder, noise, weight), forget)
        gains.append(gain)
    return ladder, np.array(gains)


def ordinary(rng, count):
    """Noises that scatter by 10 %, with no tail beyond 2.5 standard deviations."""
    noises = np.exp(0.1 * np.clip(rng.standard_normal(count), -2.5, 2.5))
    noises[2] = noises[1]
    return noises


def shares_of(gains):
    """Part of every observation in the means that were made with these gains, (t, J)."""
    shares = np.ones((1, gains.shape[1]))
    for gain in gains:
        shares = np.concatenate([shares * (1 - gain), gain[None]])
    return shares


# Weights ----------------------------------------------------------------------------------------


def test_a_ladder_that_has_seen_nothing_remembers_nothing():
    ladder = ladders.start(None)
    assert ladders.memory(ladder) == 0
    assert (ladder.observed, ladder.jumps, ladder.restarted, ladder.loudness) == (0, 0, 0, 1)
    assert ladder.chosen == LONGEST
    assert ladders.start(0.2).chosen == 1


def test_the_first_observation_is_all_that_every_rung_knows():
    ladder = ladders.begin(ladders.start(None), 4.0, 0.25)
    assert np.array_equal(ladder.variance, np.full(J, 0.25))
    assert ladders.memory(ladder) == 4
    assert (ladder.observed, ladder.typical, ladder.loudness) == (1, 4, 1)


def test_the_rungs_are_the_last_observation_alone_and_ever_longer_memories():
    shares = ladders.rungs(None)
    assert shares[0] == 1
    assert shares[-1] == 0
    assert np.all(np.diff(shares) < 0)
    # Half a decade apart, or a little more.
    assert np.all(shares[:-2] / shares[1:-1] < 3.5)
    assert ladders.rungs(0.07).tolist() == [1, 0.07]


@pytest.mark.parametrize("steps", [10, 64, 65, 400])
def test_an_ordinary_stream_gives_the_plain_mean(steps):
    """Also when the observations before the last KEPT are only known as a sum."""
    ladder, gains = fed(ordinary(np.random.default_rng(0), steps))
    assert ladder.loudness == 1
    counts = np.arange(2, steps + 1)
    assert np.allclose(gains[:, -1], 1 / counts, rtol=EARLY, atol=0)
    assert ladders.memory(ladder) == pytest.approx(steps, rel=1e-3)
    # A younger rung is the mean of all, an older one forgets its share.
    for rung, forgotten in enumerate(ladders.RUNGS):
        assert np.allclose(gains[:, rung], np.maximum(1 / counts, forgotten), rtol=EARLY, atol=0)


def test_observations_count_by_their_weights():
    rng = np.random.default_rng(1)
    weights = rng.integers(1, 100, 200).astype(float)
    ladder, gains = fed(ordinary(rng, 200), weights)
    total = np.cumsum(weights)
    assert np.allclose(gains[:, -1], weights[1:] / total[1:], rtol=EARLY, atol=0)
    assert ladders.memory(ladder) == pytest.approx(total[-1], rel=1e-3)
    assert ladder.typical == pytest.approx(weights.mean(), rel=1e3 * EPS)
    assert ladder.observed == 200


def test_a_rung_forgets_by_the_weight_of_an_observation():
    """(1 − f) to the power of its weight beside the typical one."""
    weights = np.full(301, 3.0)
    weights[-1] = 12.0
    ladder, gains = fed(np.ones(301), weights)
    of_typical = weights[-1] / float(ladder.typical)
    for rung, forgotten in enumerate(ladders.RUNGS[:4]):
        assert gains[-2, rung] == pytest.approx(forgotten, abs=1e-3)
        assert gains[-1, rung] == pytest.approx(1 - (1 - forgotten) ** of_typical, rel=1e-9)


@pytest.mark.parametrize("forget", [0.0, 0.1, 0.6])
def test_a_fixed_memory_is_that_of_the_exponential_average(forget):
    ladder, gains = fed(np.ones(400), forget=forget)
    assert gains.shape == (399, 2)
    assert np.array_equal(gains[:, 0], np.ones(399))
    assert gains[-1, 1] == pytest.approx(max(forget, 1 / 400), rel=1e-12)
    # Σ share² of a geometric series is f/(2 − f).
    expected = (2 - forget) / forget if forget else 400
    assert ladders.memory(ladder) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("steps", [3, 20, 64, 65, 66, 150])
def test_the_variance_is_that_of_the_shares(steps):
    rng = np.random.default_rng(2)
    noises = ordinary(rng, steps)
    weights = rng.uniform(1, 5, steps)
    ladder, gains = fed(noises, weights)
    shares = shares_of(gains)
    assert np.allclose(shares.sum(axis=0), 1)
    assert np.allclose(ladder.variance, (1 / weights) @ shares**2, rtol=1e-12, atol=0)


def test_a_loud_observation_counts_as_its_noise_allows():
    quiet = ordinary(np.random.default_rng(3), 100)
    ladder, _ = fed(quiet)
    before = ladders.memory(ladder)
    for factor in (10.0, 1e3, 1e9):
        loud = entered(ladder, factor)
        # The usual noise is known to 0.1/√64·3.
        assert loud.loudness == pytest.approx(factor, rel=0.04)
        after, gain = ladders.absorb(loud, None)
        share = 1 / float(loud.loudness)
        assert ladders.memory(after) == pytest.approx(before + share, rel=1e-9)
        assert gain[-1] == pytest.approx(share / (before + share), rel=1e-6)
        assert gain[0] == 1


def test_the_gain_makes_the_variance_smallest():
    quiet = ordinary(np.random.default_rng(4), 100)
    ladder, _ = fed(quiet)
    loud = entered(ladder, 30.0, 2.0)
    before, own = loud.variance[-1], float(loud.loudness) / 2.0
    after, gain = ladders.absorb(loud, None)
    smallest = after.variance[-1]
    assert smallest == pytest.approx((1 - gain[-1]) ** 2 * before + gain[-1] ** 2 * own)
    for other in gain[-1] * np.array([0.8, 0.99, 1.01, 1.2]):
        assert (1 - other) ** 2 * before + other**2 * own > smallest


@pytest.mark.parametrize("place", [1, 2, 3, 8])
def test_an_observation_that_is_recognised_later_as_loud_still_loses_its_weight(place):
    noises = ordinary(np.random.default_rng(5), 40)
    noises[place] = 1e4
    ladder, gains = fed(noises)
    if place == 1:  # beside the first alone it cannot be told from an ordinary one
        assert gains[0, -1] == 0.5
    assert shares_of(gains)[place, -1] < 1e-3 / 40
    # Gains of the first few were those of ordinary ones; nothing else is lost.
    assert 35 < ladders.memory(ladder) < 40


def test_weights_known_give_nearly_the_same_means():
    """Bursts of ten times the noise in 30 % of the observations: the ideal is Σ 1/noise."""
    rng = np.random.default_rng(6)
    for _ in range(5):
        loud = np.where(rng.random(300) < 0.3, 100.0, 1.0)
        ladder, _ = fed(loud * ordinary(rng, 300))
        # 1.3 times the error, which is what benchmarks/tracker.py holds it to, is 1.69 in variance.
        assert np.sum(1 / loud) / 1.69 < ladders.memory(ladder) < 1.1 * np.sum(1 / loud)


def test_nearly_half_of_the_observations_may_be_louder_by_any_factor():
    """The shortest half of 64 logarithms holds 33 of them."""
    rng = np.random.default_rng(7)
    for factor in (1e2, 1e6, 1e100):
        loud = rng.permutation(64) < 30
        noises = np.where(loud, factor, 1.0) * ordinary(rng, 64)
        ladder = ladders.begin(ladders.start(None), 1.0, 1.0)
        for noise in (1.0, *noises):
            ladder = entered(ladder, noise)
        assert 0.8 < float(entered(ladder, 1.0).usual) < 1.25
        loudness = entered(ladder, factor).loudness
        assert loudness == pytest.approx(min(factor, ladders.EPS**-2), rel=0.25)
        assert entered(ladder, 1.0).loudness == 1


@pytest.mark.parametrize("more", [1.01, 1.5, 3.0])
def test_the_third_observation_is_not_loud_beside_a_pair_that_was_measured_once(more):
    ladder, gains = fed([1.0, 1.0, more])
    assert ladder.loudness == 1
    assert gains[-1, -1] == pytest.approx(1 / 3)


@pytest.mark.parametrize("scale", [2.0**-300, 2.0**300])
def test_the_scale_of_the_noise_changes_nothing(scale):
    rng = np.random.default_rng(8)
    noises = np.where(rng.random(120) < 0.2, 1e3, 1.0) * ordinary(rng, 120)
    ladder, gains = fed(noises)
    scaled, scaled_gains = fed(scale * noises)
    assert np.allclose(gains, scaled_gains, rtol=1e-9, atol=0)
    assert scaled.loudness == pytest.approx(ladder.loudness)
    assert float(scaled.usual) == pytest.approx(scale * float(ladder.usual))


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0])
def test_ordinary_observations_are_rarely_called_loud(sigma):
    """α/KEPT each is stated, for a scatter of the logarithms that is known; it is estimated."""
    loud, total = 0, 0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        ladder = ladders.begin(ladders.start(None), 1.0, 1.0)
        for _ in range(1000):
            ladder = entered(ladder, np.exp(sigma * rng.standard_normal()))
            loud += ladder.loudness > 1
            total += 1
    # A shortest half of 64 numbers is uncertain by a quarter, and normal tails at 3.6 σ are steep:
    # ten times the stated rate is where the estimate and not luck is at fault (1e-4 for luck).
    assert loud <= binom.ppf(1 - 1e-4, total, 10 * ladders.ALPHA / ladders.KEPT)


def test_an_exactly_still_stream_has_no_loud_observations():
    ladder, gains = fed(np.zeros(100))
    assert ladder.loudness == 1
    assert ladders.memory(ladder) == pytest.approx(100)
    assert np.allclose(gains[:, -1], 1 / np.arange(2, 101))


# The noise of an observation --------------------------------------------------------------------


def test_a_loud_first_observation_is_told_from_a_quiet_one_by_its_power():
    ladder = ladders.begin(ladders.start(None), 1.0, 101.0)
    ladder = ladders.weigh(ladder, 2.0, 99.0, 1.0, None, 1.01)
    assert ladder.noise[-2:] == pytest.approx([100.0, 1.0])
    for _ in range(20):
        ladder = entered(ladder, 1.0 + 0.01 * float(ladder.observed % 3))
    assert ladder.loud[-22] == pytest.approx(100, rel=0.1)


def test_the_noise_of_the_first_pair_is_half_of_their_distance():
    ladder = ladders.weigh(ladders.begin(ladders.start(None), 2.0, 0.5), 6.0, 99.0, 4.0, None, 0.25)
    assert np.array_equal(ladder.noise[-2:], [12.0, 12.0])  # for one unit of weight
    assert np.all(np.isnan(ladder.noise[:-2]))
    assert ladder.weight[-2:].tolist() == [2.0, 4.0]


def test_the_variance_of_the_mean_is_taken_out_of_what_it_did_not_foresee():
    ladder, _ = fed(np.ones(5))
    variance = ladder.variance[-1]
    assert variance == pytest.approx(0.2)
    assert ladders.weigh(ladder, 1.2, 99.0, 1.0, None, 1.0).noise[-1] == pytest.approx(1.0)
    assert ladders.weigh(ladder, 1.2, 99.0, 3.0, None, 1.0).noise[-1] == pytest.approx(3.0)
    # Never less than a quarter of what was seen.
    assert ladders.weigh(ladder, 0.2, 99.0, 1.0, None, 1.0).noise[-1] == pytest.approx(0.05)
    # After a jump the mean says nothing, the last observation does.
    assert ladders.weigh(ladder, 1e9, 2.0, 1.0, None, 1.0).noise[-1] == pytest.approx(1.0)


def test_the_noise_that_is_measured_is_that_of_the_observations():
    """E‖C_t − mean‖² = σ²(1 + variance): of vectors with 400 entries."""
    rng = np.random.default_rng(9)
    mean = last = rng.standard_normal(400)
    ladder, found = ladders.begin(ladders.start(None), 1.0, 1.0), []
    for _ in range(60):
        fresh = rng.standard_normal(400)
        ladder = ladders.weigh(
            ladder, np.sum((fresh - mean) ** 2), np.sum((fresh - last) ** 2), 1, None, 1.0
        )
        found.append(ladder.noise[-1])
        ladder, gains = ladders.absorb(ladder, None)
        mean, last = mean + gains[-1] * (fresh - mean), fresh
    # χ² of 400: each is known to 7 %, and the smaller of two estimates is taken.
    assert np.mean(found) == pytest.approx(400, rel=0.05)


# Memory -----------------------------------------------------------------------------------------


def remembering(count, chosen=LONGEST):
    """A ladder with `count` ordinary observations, the last of them not yet judged."""
    ladder, _ = fed(np.ones(count - 1))
    ladder = entered(ladder, 1.0)._replace(chosen=np.asarray(chosen))
    # Young rungs are the same mean, and are not judged: make them others.
    return ladder._replace(variance=ladder.variance * (1 + 0.01 * (np.arange(J) != chosen)))


def verdicts(ladder, draws, sizes):
    """Judge the same ladder with one draw of b after the other."""
    for more, size in zip(draws, sizes, strict=True):
        ladder, verdict = ladders.judge(ladder, more, size)
        yield ladder, verdict


def only(rung, value=1.0):
    """`value` in one place."""
    found = np.zeros(J)
    found[rung] = value
    return found


@pytest.mark.parametrize("mean", [0.0, -0.2])
@pytest.mark.parametrize("kind", ["normal", "signs", "loud"])
def test_a_rung_that_captures_no_more_is_rarely_chosen(kind, mean):
    """Of each start of the sum, with probability α/m at most; there is one start a step at most."""
    rng = np.random.default_rng(10)
    alarms, expected, size = 0, 0.0, only(3)
    for _ in range(40):
        ladder = ladders.begin(ladders.start(None), 1.0, 1.0)
        for count in range(2, 200):
            ladder = entered(ladder, 1.0)
            b = {
                "normal": rng.standard_normal(),
                "signs": rng.choice([-1.0, 1.0]),
                "loud": 3 * rng.standard_normal(),
            }[kind]
            ladder, verdict = ladders.judge(ladder, only(3, b + mean), size)
            alarms += verdict.chosen != LONGEST
            expected += ladders.ALPHA / count
            ladder = ladder._replace(chosen=np.asarray(LONGEST), restarted=np.asarray(0))
            ladder, _ = ladders.absorb(ladder, None)
    # E b² is read off KEPT observations: known to 13 %, which the exponential of a sum up to
    # log(m/α) raises to a factor of about e. The test itself fails by chance with 1e-4.
    assert alarms <= poisson.ppf(1 - 1e-4, np.e * expected)


def test_a_rung_that_captures_more_is_chosen_soon():
    """The sum grows by ½ size²/Var b a step, so log(m/α) is passed after that many."""
    rng = np.random.default_rng(11)
    for scatter in (1.0, 3.0):
        took = []
        for _ in range(20):
            ladder = remembering(50)
            for step in range(1, 1001):
                b = only(4, 1 + scatter * rng.standard_normal())
                ladder, verdict = ladders.judge(ladder, b, only(4))
                if verdict.chosen == 4:
                    took.append(step)
                    break
        assert len(took) == 20
        # Of few observations E b² stands for Var b.
        steps = 2 * np.log(50 / ladders.ALPHA)
        assert 0.5 * steps * scatter**2 < np.mean(took) < 2 * steps * (1 + scatter**2)


def test_three_observations_must_agree_however_clear_each_is():
    ladder = remembering(30)
    for _ in range(200):  # the scatter is known
        ladder, verdict = ladders.judge(ladder, only(5, -1e-3), only(5))
    assert verdict.chosen == LONGEST
    chosen = []
    while len(chosen) < 9 and 5 not in chosen:
        ladder, verdict = ladders.judge(ladder, only(5, 1e9), only(5))
        chosen.append(verdict.chosen)
    assert ladders.AGREEING <= len(chosen) <= ladders.AGREEING + 1


def test_one_loud_difference_raises_the_scatter_by_no_more_than_it_counts():
    ladder = remembering(30)
    for b in np.resize([1.0, -1.0], 100):
        ladder, _ = ladders.judge(ladder, only(5, b), only(5))
    shocked, _ = ladders.judge(ladder, only(5, 1e6), only(5))
    threshold = np.log(ladders.memory(ladder) / ladders.ALPHA)
    highest = 1 + (threshold / ladders.AGREEING) ** 2 / ladders.KEPT
    assert shocked.scatter[5] <= 1.01 * highest
    assert shocked.scatter[5] > ladder.scatter[5]


def test_the_scatter_is_the_mean_of_squares_beside_their_size():
    ladder = remembering(10)
    bs, sizes = [2.0, -1.0, 3.0], [1.0, 4.0, 2.0]
    for b, size in zip(bs, sizes, strict=True):
        ladder, _ = ladders.judge(ladder, only(2, b), only(2, size))
    assert ladder.scatter[2] == pytest.approx(np.mean(np.square(bs) / sizes))
    assert ladder.judged[2] == 3
    assert np.array_equal(ladder.scatter == 0, np.arange(J) != 2)
    assert not np.any(ladder.judged[np.arange(J) != 2])


def test_nothing_is_judged_where_no_rung_would_turn_anything():
    ladder = remembering(10)
    after, verdict = ladders.judge(ladder, np.full(J, 5.0), np.zeros(J))
    assert verdict.chosen == LONGEST
    assert not verdict.copied.any()
    assert not after.more.any()
    assert not after.judged.any()


def test_the_scale_and_weight_of_observations_do_not_change_the_verdict():
    rng = np.random.default_rng(12)
    draws = 0.4 + rng.standard_normal(300)

    def chosen_after(ladder, scale):
        for step, b in enumerate(draws):
            ladder, verdict = ladders.judge(ladder, only(2, scale * b), only(2, scale))
            if verdict.chosen == 2:
                return step
        return None

    plain = chosen_after(remembering(20), 1.0)
    assert plain is not None
    assert chosen_after(remembering(20), 2.0**40) == plain
    weighted, _ = fed(np.ones(19), np.full(19, 8.0))
    weighted = entered(weighted, 1.0, 8.0)
    assert chosen_after(weighted, 1.0) == plain


def test_a_loud_observation_says_less_of_the_rungs():
    ladder, _ = fed(np.exp(0.1 * np.random.default_rng(13).standard_normal(80)))
    for noise, expected in ((1.0, 1.0), (100.0, 0.01)):
        heard, _ = ladders.judge(entered(ladder, noise), only(2, 5.0), only(2))
        assert heard.scatter[2] == pytest.approx(25 * expected, rel=0.1)


def passed(rungs, values, ladder=None, size=1.0):
    """Judge until some rung is chosen: b alternates around `values` in the places `rungs`."""
    ladder, more = remembering(40) if ladder is None else ladder, np.zeros(J)
    more[list(rungs)] = values
    sizes = np.where(np.isin(np.arange(J), rungs), size, 0.0)
    before = int(ladder.chosen)
    for step in range(1000):
        ladder, verdict = ladders.judge(ladder, more * (1 + 0.1 * (-1) ** step), sizes)
        if verdict.chosen != before or verdict.copied.any():
            return ladder, verdict
    return ladder, verdict


def test_of_the_rungs_that_have_not_failed_the_one_that_captured_most_is_chosen():
    ladder, verdict = passed([2, 3, 4], [1.0, 3.0, 2.0])
    assert verdict.chosen == ladder.chosen == 3
    assert not verdict.jumped
    for sums in (ladder.more, ladder.less, ladder.captured):
        assert not sums.any()  # a new choice begins anew
    assert ladder.jumps == 0


def test_a_longer_memory_is_chosen_like_a_shorter_one():
    _, verdict = passed([6], [1.0], remembering(40, chosen=2))
    assert verdict.chosen == 6


def test_a_longer_rung_that_is_worse_becomes_a_copy():
    before = remembering(40, chosen=2)
    ladder, verdict = passed([1, 5], [-1.0, -1.0], before)
    assert verdict.chosen == 2
    assert np.flatnonzero(verdict.copied).tolist() == [5]  # a shorter one is kept as it is
    assert np.array_equal(ladder.shares[5], ladder.shares[2])
    assert ladder.variance[5] == ladder.variance[2]
    assert np.array_equal(ladder.shares[[1, 3, 4, 6]], before.shares[[1, 3, 4, 6]])
    assert ladder.less[5] == 0
    assert ladder.less[1] > 0


def test_a_copy_also_takes_over_what_is_older_than_the_kept_ones():
    ladder, _ = fed(np.ones(200))
    ladder = entered(ladder, 1.0)._replace(chosen=np.asarray(3))
    assert ladder.older[6] > 2 * ladder.older[3] > 0
    after, _ = passed([6], [-1.0], ladder)
    assert after.older[6] == ladder.older[3]
    assert after.older[5] == ladder.older[5]


@pytest.mark.parametrize(
    ("since", "chosen"), [(3, 1), (5, 2), (30, 3), (60, 4), (250, 5), (400, 6)]
)
def test_after_a_jump_the_memory_is_as_long_as_the_time_between_jumps(since, chosen):
    before = remembering(500)._replace(restarted=np.asarray(500 - since))
    ladder, verdict = passed([0, 2], [2.0, 1.0], before)
    assert verdict.jumped
    assert verdict.copied.all()
    assert ladder.chosen == verdict.chosen == chosen
    assert ladders.RUNGS[chosen] * since <= 1 < ladders.RUNGS[chosen - 1] * since
    assert ladder.jumps == before.jumps + 1
    assert ladder.restarted == ladder.observed == 500
    assert not ladder.more.any()


def test_after_a_jump_the_last_observation_is_all_that_is_known():
    ladder = ladders.renewed(remembering(200))
    assert np.array_equal(ladder.variance, np.ones(J))
    assert np.array_equal(ladder.shares[:, -1], np.ones(J))
    assert not ladder.shares[:, :-1].any()
    assert ladders.memory(ladder) == 1


def test_no_step_changes_the_ladder_it_was_given():
    ladder = remembering(70)
    before = [np.copy(part) for part in ladder]
    other, _ = passed([0, 2, 5], [3.0, 1.0, -1.0], ladder)
    ladders.absorb(ladder, None)
    entered(ladder, 7.0)
    ladders.renewed(other)
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, ladder, strict=True))
