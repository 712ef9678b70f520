"""The ladder: what an observation weighs, which memory is used, and how often it is wrong."""

import numpy as np
import pytest
from scipy.stats import binom

from bracketflow.tracker import ladder as ladders
from tracker_cases import EPS

KEPT, ALPHA, RUNGS = ladders.KEPT, ladders.ALPHA, np.array(ladders.RUNGS)
J, LONGEST = len(RUNGS), len(RUNGS) - 1
LUCK = 1e-4  # with which a test over many seeds fails


def entered(ladder, noise, weight=1.0, forget=None):
    """The ladder with an observation of this noise for a unit of weight, seen beside the truth."""
    seen = noise / weight
    beside = ladders.Beside([(seen, ladders.TINY)], 1.0, False) if ladder.observed else None
    return ladders.weigh(ladder, weight, seen, beside, forget)


def fed(noises, weights=1.0, forget=None, together=1):
    """The ladder after these, `together` of them taken in at once; their shares by the gains."""
    ladder, shares = ladders.start(forget), np.zeros((len(ladders.rungs(forget)), len(noises)))
    for t, (noise, weight) in enumerate(np.broadcast(noises, weights), 1):
        ladder = entered(ladder, noise, weight, forget)
        if (waits := int(ladder.waiting)) == together or t == len(noises):
            new = ladder.counted[KEPT - waits :]
            ladder = ladders.absorb(ladder, forget)
            shares *= 1 - ladder.gains[:, None]
            shares[:, t - waits : t] = ladder.gains[:, None] * new / new.sum()
    return ladder, shares


def ordinary(seed, count):
    return np.exp(0.1 * np.random.default_rng(seed).standard_normal(count))


@pytest.mark.parametrize("together", [1, 7, 64])
@pytest.mark.parametrize("count", [1, 10, 64, 65, 400])
def test_while_none_is_loud_the_longest_mean_is_the_plain_one(count, together):
    """Also of mixed weights, and when all but the last KEPT are only known as a sum."""
    weights = np.random.default_rng(count).integers(1, 9, count).astype(float)
    ladder, shares = fed(ordinary(count, count), weights, together=together)
    assert ladder.loudness == 1
    assert np.allclose(shares[-1], weights / weights.sum(), rtol=1e4 * EPS, atol=0)
    assert ladder.memory == pytest.approx(weights.sum(), rel=1e4 * EPS)
    assert np.allclose(ladder.shares[:, -count:], shares[:, -KEPT:], rtol=1e-9, atol=0)
    assert np.allclose(ladder.variance, shares**2 @ (1 / weights), rtol=1e-9, atol=0)


def test_a_rung_forgets_its_share_for_a_typical_weight_once_it_is_older_than_that():
    for count in (20, 400):
        ladder = fed(np.ones(count), 3.0)[0]
        assert ladder.gains == pytest.approx(np.maximum(RUNGS, 1 / count), rel=1e4 * EPS)
    ladder = ladders.absorb(entered(ladder, 1.0, 12.0), None)
    of_four = np.maximum(1 - (1 - RUNGS) ** (12 * 401 / 1212), 12 / 1212)
    assert ladder.gains == pytest.approx(of_four, rel=1e4 * EPS)


@pytest.mark.parametrize("forget", [0.0, 0.1, 0.6])
def test_a_fixed_share_gives_the_exponential_average_whatever_happens(forget):
    noises, wanted = ordinary(0, 300), np.zeros(300)
    noises[[50, 299]] = 1e6
    ladder, shares = fed(noises, forget=forget)
    for t in range(300):
        wanted *= 1 - max(forget, 1 / (t + 1))
        wanted[t] = max(forget, 1 / (t + 1))
    assert ladder.loudness == 1
    assert np.allclose(shares, [np.eye(300)[-1], wanted], rtol=1e-9, atol=0)
    assert ladder.memory == pytest.approx(1 / (wanted @ wanted), rel=1e-9)


def test_the_gain_makes_the_variance_smallest_of_loud_ones_and_of_what_waits_together():
    ladder = fed(ordinary(4, 100))[0]
    for noise, weight in [(30.0, 2.0), (1.0, 1.0), (4.0, 5.0)]:
        ladder = entered(ladder, noise, weight)
    after, own = ladders.absorb(ladder, None), (ladder.loud / ladder.weight)[-3:]
    new, gain = after.shares[-1, -3:] / after.gains[-1], after.gains[-1]
    assert new == pytest.approx(1 / own / np.sum(1 / own), rel=0.05)
    for other in gain * np.array([0.8, 0.99, 1.01, 1.2]):
        assert after.variance[-1] < (1 - other) ** 2 * ladder.variance[-1] + other**2 * new**2 @ own


@pytest.mark.parametrize("factor", [1e2, 1e6, 1e100])
def test_nearly_half_may_be_loud_by_any_factor_and_count_as_their_noise_allows(factor):
    loud = np.random.default_rng(7).permutation(KEPT) < KEPT // 2 - 1
    ladder = fed(np.where(loud, factor, 1.0) * ordinary(7, KEPT))[0]
    assert float(ladder.usual) == pytest.approx(1, rel=0.1)
    assert np.array_equal(ladder.loud > 1, loud)
    after = ladders.absorb(entered(ladder, factor), None)
    assert after.loudness == pytest.approx(min(factor, EPS**-2), rel=0.1)
    assert after.memory == pytest.approx(ladder.memory + 1 / after.loudness)
    assert after.gains[0] < 0.1  # it is not what came last


@pytest.mark.parametrize("place", [0, 1, 2, 8])
def test_an_observation_recognised_later_as_loud_still_loses_its_weight(place):
    noises = ordinary(5, 60)
    noises[place] = 1e4
    ladder, shares = fed(noises)
    assert ladder.loud[place - 60] > 1e3
    assert shares[-1, place] < 1e-3
    assert 60 - 9 < ladder.memory < 60  # with it goes at most what was averaged before


@pytest.mark.parametrize("scatter", [1e-3, 0.3, 1.0])
@pytest.mark.parametrize(("kind", "known"), [("normal", 0), ("normal", KEPT), ("logistic", KEPT)])
def test_of_kept_ordinary_observations_one_is_loud_with_probability_alpha(kind, known, scatter):
    """Of normal logarithms also of the first ones; noise with logistic ones is a power law."""
    streams, alarmed = 300, 0
    for seed in range(streams):
        logs = getattr(np.random.default_rng(seed), kind)(0, scatter, known + KEPT)
        ladder, loud = ladders.start(None), []
        for noise in np.exp(logs):
            ladder = entered(ladder, noise)
            loud.append(ladder.loudness > 1)
        alarmed += any(loud[known:])
    assert alarmed <= binom.ppf(1 - LUCK, streams, ALPHA)


def test_the_noise_is_the_least_that_any_mean_allows_but_not_below_the_usual():
    ladder, first = fed(np.ones(5))[0], ladders.weigh(ladders.start(None), 1.0, 101.0)
    for apart, weight, wanted in [
        ([(7.2, 0.2), (1e9, 1.0)], 1.0, 7.0),  # E‖C − M‖² less v times the usual noise
        ([(0.03, 0.25)], 2.0, 0.02),  # the two share it by their variances, 1/2 and 1/4
    ]:
        noise = ladders.weigh(ladder, weight, 1e9, ladders.Beside(apart, 1.0, False)).noise[-1]
        assert noise == pytest.approx(weight * wanted)
    # Of the first one no more is known than its power beside that of the second.
    assert ladders.weigh(first, 1.0, 2.0, ladders.Beside([(8.0, 1.0)], 1.0, False)).noise[
        -2:
    ] == pytest.approx([202, 4])


OLD = fed(np.ones(400))[0]  # enough for all rungs to differ


def until_copied(ladder, draws, rung=LONGEST):
    """The ladder right after this rung was forgotten for good, that before, and the step."""
    for step, captured in enumerate(draws, 1):
        before, ladder = entered(ladder, 1.0), ladders.judge(entered(ladder, 1.0), captured)
        if ladder.source[rung] != rung:
            return ladder, before, step
        ladder = ladders.absorb(ladder, None)
    return None


def wavering(*captured):
    """Nearly the same again and again."""
    rng = np.random.default_rng(14)
    return (np.array(captured) * (1 + 0.3 * rng.standard_normal()) for _ in range(200))


@pytest.mark.parametrize("loud", [1.0, 50.0])
def test_a_rung_is_chosen_once_it_is_ahead_by_one_standard_error_and_enough_were_judged(loud):
    rng, chosen, ladder = np.random.default_rng(10), [], OLD
    gained, squared = np.zeros((J, J)), np.zeros((J, J))
    for step in range(150):
        ladder = entered(ladder, loud if step % 9 == 1 else 1.0, rng.uniform(0.8, 1.2))
        count = ladder.awaited / ladder.typical
        captured = rng.permutation(J) - 0.2 * np.sin(step / 20) * np.arange(J)
        ladder = ladders.absorb(ladders.judge(ladder, captured), None)
        assert np.array_equal(ladder.source, np.arange(J))  # nothing is beyond doubt
        for i, j in np.ndindex(J, J):
            more, kept = captured[i] - captured[j], (1 - RUNGS[i] / ladders.HORIZON) ** count
            squared[i, j] = kept * squared[i, j] + (count * more) ** 2
            gained[i, j] = max(kept * gained[i, j] + count * more, -(squared[i, j] ** 0.5))
        better = np.triu(gained > squared**0.5) & (step + 1 >= ladders.AGREEING)
        chosen.append(max(j for j in range(J) if not better[:, j].any()))
        assert ladder.chosen == chosen[-1]
    assert len(set(chosen)) > 2


def test_where_a_shorter_rung_is_better_beyond_doubt_the_longer_one_becomes_its_copy():
    ladder, before, _ = until_copied(OLD, wavering(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.2))
    assert ladder.source.tolist() == [0, 1, 2, 3, 4, 5, 3]
    for part in ("shares", "older", "variance"):
        assert np.array_equal(getattr(ladder, part), getattr(before, part)[ladder.source])
    for pairs in (ladder.gained, ladder.squared, ladder.ahead, ladder.square, ladder.judged):
        assert not pairs[LONGEST].any()  # what they said was of another mean
        assert not pairs[:, LONGEST].any()
        assert pairs[3, 0]
    assert (ladder.jumps, ladder.restarted, ladder.chosen) == (0, 0, LONGEST)
    least_old, *_ = until_copied(OLD, wavering(-2.0, 0.8, 1.5, 1.0, 0.0, 0.0, -1.0))
    assert least_old.source[LONGEST] == 1
    assert until_copied(OLD, wavering(*np.arange(J)), rung=3) is None


def test_the_signal_has_jumped_where_the_first_rung_replaces_the_longest_in_a_new_ladder():
    untouched = [np.copy(part) for part in OLD]
    ladder, before, _ = until_copied(OLD, wavering(2.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.0))
    assert not ladder.source.any()
    assert np.array_equal(ladder.shares, np.tile(before.shares[0], (J, 1)))
    assert (ladder.jumps, ladder.chosen, ladder.memory) == (1, LONGEST, 2)
    assert ladder.restarted == ladder.observed
    other, *_ = until_copied(OLD, wavering(1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0), rung=5)
    assert other.source.tolist() == [0, 1, 2, 3, 4, 0, 6]
    assert other.jumps == other.restarted == 0
    assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(OLD, untouched, strict=True))


@pytest.mark.parametrize("scatter", [0.1, 1.0])
def test_forgetting_waits_for_the_sum_to_pass_and_not_for_much_longer(scatter):
    """L = Σ x/s − ½ since it was last zero passes log(m/α), with s² found anew from the draws."""
    doubt = np.log(OLD.memory / ALPHA)
    for seed in range(10):
        draws = 1 + scatter * np.random.default_rng(seed).standard_normal(1000)
        draws[:50] -= 2  # at first the longer one is better
        *_, step = until_copied(OLD, (-more * np.eye(J)[LONGEST] for more in draws))
        scales = [np.mean(draws[:t] ** 2) ** 0.5 for t in range(1, step + 1)]
        L, most = 0.0, 0.0
        for more, scale in zip(draws[:step], scales, strict=True):
            L = max(L + more / scale - 0.5, 0.0)
            most = max(most, L)
        # The scatter of few draws is taken for larger than it looks: at most that makes L smaller.
        assert most > 0.7 * doubt
        assert step >= 50 + ladders.AGREEING


@pytest.mark.parametrize("clear", [1.0, 1e3, 1e9])
def test_enough_must_agree_before_anything_is_forgotten_however_clear_each_is(clear):
    draws = [1e-3 * (-1.0) ** step for step in range(100)] + [-clear] * 20
    *_, step = until_copied(OLD, (more * np.eye(J)[LONGEST] for more in draws))
    assert ladders.AGREEING <= step - 100 <= ladders.AGREEING + 1


@pytest.mark.parametrize("freedom", [2, 4, 1000])
def test_a_mean_that_grows_to_m_is_lost_with_probability_alpha_log_m(freedom):
    """While no shorter rung captures more; from heavy tails to none, the first, all alike, too."""
    streams, m, lost = 50, 200, 0
    for seed in range(streams):
        draws = np.random.default_rng(seed).standard_t(freedom, (m, J))
        lost += until_copied(fed(np.ones(1))[0], draws) is not None
    assert lost <= binom.ppf(1 - LUCK, streams, ALPHA * np.log(m))


def test_the_scales_of_noise_and_weights_and_of_what_is_captured_change_nothing():
    rng = np.random.default_rng(12)
    noises, weights = np.where(rng.random(120) < 0.2, 1e3, 1.0), rng.integers(1, 4, 120)
    noises *= ordinary(12, 120)
    draws = 0.3 * np.arange(J)[::-1] + rng.standard_normal((120, J))

    def verdicts(noisier=1.0, heavier=1.0, more=1.0):
        ladder = fed(noisier * noises, heavier * weights)[0]
        for noise, weight, captured in zip(noises, weights, draws, strict=True):
            ladder = entered(ladder, noisier * noise, heavier * weight)
            ladder = ladders.absorb(ladders.judge(ladder, more * captured), None)
            yield int(ladder.chosen), *ladder.source, *ladder.gains, ladder.loudness

    plain = np.array(list(verdicts()))
    assert len(np.unique(plain[:, :8], axis=0)) > 3
    for scales in [(2.0**-300, 1, 1), (2.0**300, 1, 1), (1, 2.0**40, 1), (1, 1, 2.0**-40)]:
        assert np.allclose(list(verdicts(*scales)), plain, rtol=1e-6)
