"""How much an observation weighs, and how much of the past to keep.

A ladder holds means of different memory side by side, one of them chosen. Rung j forgets the share
f_j of its past for an observation of typical weight, or nothing while it is younger than 1/f_j; the
first rung is what came last alone, the last one forgets nothing. Observations may wait and enter
the means together, as one of their summed weight.

**Weight.** The noise of an observation is measured in it. It is the usual noise unless it lies
beyond what the scatter of the last observations explains (of KEPT ordinary ones, one is beyond it
with probability α); then it is its own, and the weight falls: loudness = noise/usual, else 1. A
mean M = Σ share_s C_s has the variance Σ share_s² loudness_s/weight_s in units of the usual noise,
and takes the next one in with the gain that makes this smallest. Shares are kept, so that one
which is recognised later as loud still loses its weight. While none is loud, M is the plain mean.

**Memory.** Every observation says how much more each rung would have captured of it. Of two rungs
the shorter one is better if its advantage, summed, exceeds one standard error; the longest rung
that no shorter one is better than is chosen. Nothing is lost by that: it is asked anew every time.

**Forgetting for good.** Where a shorter rung is better beyond doubt, the longer one becomes a copy
of the shortest with half of that evidence; if the first rung replaces the last one, the signal has
jumped. With x the advantage in one observation and s² its usual square, L ← max(L + x/s − ½, 0) is
Page's cumulative sum for a rung that is better by s: while it is no better, exp(Σ x/s − ½) is a
supermartingale, and L passes log(m/α) with probability α/m at most. m being the observations that
would be lost, a mean that grows to m has seen false alarms with a probability of about α log m.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

RUNGS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.0)
"""Shares f that the rungs forget: half a decade apart, the best is at most 6 % off in error."""
ALPHA = 0.02
"""The one probability of a false alarm: of loud observations, and of forgetting for good."""
KEPT = 64
"""Observations that the usual noise is read off: 13 % of error in it."""
HORIZON = 10.0
"""Memories 1/f over which the advantage of a rung is summed: its standard error is known to 22 %
where the advantages of neighbouring observations are one memory long correlated."""
AGREEING = 3
"""Observations that must agree before anything is forgotten for good, however clear each of them
is: two loud ones that happen to be alike come in every long stream."""
EPS, TINY = float(np.finfo(float).eps), float(np.finfo(float).tiny)


class Beside(NamedTuple):
    """An observation C beside means M that do not contain it."""

    apart: list[tuple[float, float]]
    """‖C − M‖² and the variance of M in units of the usual noise, for every one of them."""
    larger: float
    """h where C is h times the mean, 1 for an ordinary one."""
    foretold: bool
    """Whether it lies nearer to one of the last two than to the mean: after a jump."""


def larger(along: float, square: float, noise: float) -> float:
    """h ≥ 1 from <C, M> = `along`, <M, M> = `square`; 1 where noise could make it as much.

    With ν the variance of an entry of the noise E, <E, M> has the variance 2ν‖M‖².
    """
    square = max(square, TINY)
    size, deviation = along / square, (2 * noise / square) ** 0.5
    beyond = NormalDist().inv_cdf(1 - ALPHA / KEPT)  # of KEPT ordinary ones, with probability α
    return size if size > max(1.0, beyond * deviation) else 1.0


class Ladder(NamedTuple):
    """Weights and memories of one problem; J rungs. Numbers of the host, whatever the arrays."""

    # The last observations, the newest at the end; NaN, 1 and 0 where there was none.
    noise: np.ndarray
    """Noise of each for one unit of weight, (KEPT,)."""
    weight: np.ndarray
    """Weight of each, (KEPT,)."""
    counted: np.ndarray
    """Weight with which each was taken in: weight/loudness as known then, (KEPT,)."""
    loud: np.ndarray
    """Loudness of each by what is known now: 1, or its noise over the usual one, (KEPT,)."""
    usual: np.ndarray
    """The usual noise of one unit of weight; 0 before two observations, ()."""
    # The means.
    shares: np.ndarray
    """Part that each of these observations has in every mean, (J, KEPT)."""
    older: np.ndarray
    """Σ share²·loudness/weight of the observations before those, (J,)."""
    variance: np.ndarray
    """The same of all: the variance of each mean in units of the usual noise, (J,)."""
    source: np.ndarray
    """Rung whose past each mean continued when it was made last: its own, or that copied, (J,)."""
    gains: np.ndarray
    """Part that what was new had in each mean then, (J,)."""
    # What observations have said of every pair of rungs, (J, J): [i, j] of i beside j.
    gained: np.ndarray
    """Σ of how much more rung i captured, over HORIZON of its memories."""
    squared: np.ndarray
    """Σ of the squares of that."""
    ahead: np.ndarray
    """L: log of the evidence that rung i is better."""
    square: np.ndarray
    """s²: usual square of how much more rung i captured of one, in units of √|v_i − v_j|."""
    judged: np.ndarray
    """How often they were not the same mean."""
    # Where the ladder stands.
    chosen: np.ndarray
    """Index of the rung in use, ()."""
    waiting: np.ndarray
    """Observations that are in no mean yet, ()."""
    observed: np.ndarray
    """Observations so far, ()."""
    typical: np.ndarray
    """Their mean weight, ()."""
    restarted: np.ndarray
    """Observations at the last jump, 0 for none, ()."""
    jumps: np.ndarray
    """Jumps so far, ()."""

    @property
    def loudness(self) -> float:
        """Of the newest observation."""
        return float(self.loud[-1])

    @property
    def awaited(self) -> float:
        """Weight of what waits."""
        return float(self.counted[KEPT - int(self.waiting) :].sum())

    @property
    def memory(self) -> float:
        """Weight that the chosen mean and what waits have against the next observation."""
        variance = float(self.variance[self.chosen])
        return (1 / variance if variance > 0 else 0.0) + self.awaited


def rungs(forget: float | None) -> np.ndarray:
    """Shares to forget: those of a ladder, or the last observation and one fixed share."""
    return np.array(RUNGS if forget is None else (1.0, forget))


def start(forget: float | None) -> Ladder:
    """A ladder that has seen nothing."""
    J = len(rungs(forget))
    none, zero, rung, pair = np.zeros((), int), np.zeros(()), np.zeros(J), np.zeros((J, J))
    return Ladder(
        noise=np.full(KEPT, np.nan),
        weight=np.ones(KEPT),
        counted=np.zeros(KEPT),
        loud=np.ones(KEPT),
        usual=zero,
        shares=np.zeros((J, KEPT)),
        older=rung,
        variance=rung,
        source=np.arange(J),
        gains=rung,
        gained=pair,
        squared=pair,
        ahead=pair,
        square=pair,
        judged=pair,
        chosen=none + J - 1,
        waiting=none,
        observed=none,
        typical=zero,
        restarted=none,
        jumps=none,
    )


@lru_cache(maxsize=KEPT)
def _quantile(count: int) -> float:
    """How far above the middle of `count` numbers, in widths of their shortest half, α/KEPT begins.

    Student's t for a new number beside `count` others. Of many, the tail is that of the logistic
    distribution (t with 9 degrees of freedom is as heavy), so that of the noise itself is a power
    law. Normal numbers have a shortest half of 1.349 σ, and of few it is too short (Rousseeuw and
    Leroy: 1 + 5/(m − 1)).
    """
    if count < 2:
        return inf
    student = stdtrit(min(count - 1, 9), 1 - ALPHA / KEPT) * (1 + 1 / count) ** 0.5
    return float(student * (1 + 5 / (count - 1)) / 1.349)


def _usual(noise: np.ndarray) -> tuple[float, float]:
    """The usual noise, and the largest that is still usual: from the shortest half of log noise.

    Up to half of the observations may be louder, by any factor, without moving either.
    """
    logs = np.log(np.maximum(noise, TINY))
    logs.sort()
    m, half = len(logs), len(logs) // 2
    widths = logs[half:] - logs[: m - half]
    first = int(widths.argmin())
    width, middle = float(widths[first]), float(logs[first : first + half + 1].mean())
    with np.errstate(over="ignore"):
        return float(np.exp(middle)), float(np.exp(min(middle + _quantile(m) * width, 700.0)))


def weigh(
    ladder: Ladder,
    weight: float,
    power: float,
    beside: Beside | None = None,
    forget: float | None = None,
) -> Ladder:
    """Enter an observation of this weight, of which ‖C − level‖² = `power`: it waits.

    Every mean M says at most how large its noise is: E‖C − M‖² is that noise, v times the usual
    one, and what M has wrong. An observation of h times the size and of h² times the noise is a
    larger one, not a noisier one, if with both taken out it is an ordinary one. Whoever fixes the
    share to forget has the plain average: then nothing is loud.
    """
    older = ladder.older + ladder.shares[:, 0] ** 2 * (ladder.loud[0] / ladder.weight[0])
    noise, usual, observed = power, float(ladder.usual), int(ladder.observed)
    if beside is not None:
        # No less than if it were as usual; right after the first observation nothing is usual.
        known = usual if observed > 1 else inf
        noise = min(max(a - v * known, a / (1 + v * weight)) for a, v in beside.apart)
    larger = 1.0 if beside is None else beside.larger * beside.larger
    noises, weights = _pushed(ladder.noise, noise / larger * weight), _pushed(ladder.weight, weight)
    if observed == 1:
        # Of the first no more is known than its power beside that of the second.
        noises[-2] *= noise / power if power > 0 else 1.0
    usual, loud = 0.0, np.ones(KEPT)
    if observed:
        usual, largest = _usual(noises[max(KEPT - observed - 1, 0) :])
        if noises[-1] > largest:
            noises[-1] = noise * weight
        exceeds = noises > largest
        if forget is None and exceeds.any():
            with np.errstate(over="ignore"):  # after a standstill everything is infinitely loud
                loud[exceeds] = np.minimum(noises[exceeds] / usual, EPS**-2)
    shares = np.zeros_like(ladder.shares)
    shares[:, :-1] = ladder.shares[:, 1:]
    return ladder._replace(
        noise=noises,
        weight=weights,
        counted=_pushed(ladder.counted, weight / loud[-1]),
        loud=loud,
        usual=np.asarray(usual),
        shares=shares,
        older=older,
        variance=older + shares**2 @ (loud / weights),
        waiting=ladder.waiting + 1,
        observed=ladder.observed + 1,
        typical=ladder.typical + (weight - ladder.typical) / (observed + 1),
    )


def _pushed(values: np.ndarray, value: float) -> np.ndarray:
    pushed = np.empty_like(values)
    pushed[:-1], pushed[-1] = values[1:], value
    return pushed


def absorb(ladder: Ladder, forget: float | None) -> Ladder:
    """Take what waits into every mean.

    The gain v/(v + own), with the variances v of the mean and own of what waits, makes the variance
    of the new mean smallest. It is not below the share that the rung is to forget.
    """
    first, weight = KEPT - int(ladder.waiting), ladder.awaited
    new = ladder.counted[first:] / weight
    variance, own = ladder.variance, float(new**2 @ (ladder.loud / ladder.weight)[first:])
    count = weight / float(ladder.typical)
    fixed = 1 - (1 - rungs(forget)) ** count
    fixed[0] = min(count, 1.0)  # of a typical weight: a loud observation is not what came last
    gains = np.maximum(variance / (variance + own), fixed)
    if ladder.observed == ladder.waiting:
        gains = np.ones_like(gains)
    shares = ladder.shares * (1 - gains)[:, None]
    shares[:, first:] = gains[:, None] * new
    older = ladder.older * (1 - gains) ** 2
    return ladder._replace(
        shares=shares,
        older=older,
        variance=older + shares**2 @ (ladder.loud / ladder.weight),
        gains=gains,
        waiting=ladder.waiting * 0,
    )


def judge(ladder: Ladder, captured: np.ndarray) -> Ladder:
    """Weigh what waits against the rungs: which one is chosen, and which are copies from now on.

    `captured` is how much of it each rung would have captured for one unit of weight, (J,).
    """
    places, typical = np.arange(len(captured)), float(ladder.typical)
    count, variance = ladder.awaited / typical, np.maximum(ladder.variance, TINY)
    shorter = places[:, None] < places
    more = count * (captured[:, None] - captured)
    # Young rungs are the same mean but for rounding, which must not decide.
    distance = abs(variance[:, None] - variance)
    live = distance > EPS**0.5 * variance
    more[~live] = 0.0
    scale = (distance + TINY) ** 0.5  # how far the two means lie apart: what it goes with
    doubt = np.log(np.maximum(1 / (variance * typical), 1.0) / ALPHA)
    ladder, certain = _compared(ladder, more / scale, live, count, doubt)
    kept = (1 - rungs(None)[:, None] / HORIZON) ** count
    squared = kept * ladder.squared + more**2
    gained = np.maximum(kept * ladder.gained + more, -(squared**0.5))  # or a change would be late
    ladder = ladder._replace(gained=gained, squared=squared, source=places)
    certain &= shorter
    if certain.any():
        ladder = _copied(ladder, certain, doubt)
    better = shorter & (ladder.judged >= AGREEING) & (ladder.gained > ladder.squared**0.5)
    chosen = np.flatnonzero(~better.any(axis=0))[-1]
    return ladder._replace(chosen=ladder.chosen * 0 + chosen)


def _compared(
    ladder: Ladder, more: np.ndarray, live: np.ndarray, count: float, doubt: np.ndarray
) -> tuple[Ladder, np.ndarray]:
    """Which rungs are better than which beyond `doubt` = log(m/α), (J, J)."""
    # Of few observations nearly E G², whose own scatter may be far too small.
    deviation = (ladder.square * (1 + doubt / np.maximum(ladder.judged, 1.0))) ** 0.5
    # So much of one observation counts that AGREEING of them are needed.
    most = doubt / AGREEING + 0.5 * count
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        units = np.where(deviation > 0, np.clip(more / deviation, -most, most), 0.0)
    gained = np.where(deviation > 0, units - 0.5 * count, 0.0)
    fresh = np.where(deviation > 0, units * deviation, more)
    ahead = np.maximum(ladder.ahead + gained, 0.0)
    rate = live / np.minimum(ladder.judged + 1, KEPT)
    return ladder._replace(
        ahead=ahead,
        square=ladder.square + rate * (fresh**2 / count - ladder.square),
        judged=ladder.judged + live,
    ), ahead > doubt


def _copied(ladder: Ladder, certain: np.ndarray, doubt: np.ndarray) -> Ladder:
    """Rungs that another one is better than beyond doubt, [i, j], become copies of a shorter one.

    Of the shortest with half of that evidence: what it holds is the least old. Where that is the
    first rung, and the longest one is replaced, the signal has jumped: then all start anew.
    """
    J = len(certain)
    source, best = np.arange(J), np.argmax(np.triu(ladder.ahead > 0.5 * doubt, 1), axis=0)
    lost = np.asarray(certain.any(axis=0))
    for j in np.flatnonzero(lost):
        source[j] = source[best[j]]
    jumped = bool(source[-1] == 0)
    if jumped:
        source[:] = 0
    anew = source != np.arange(J)
    pairs = {
        name: np.where(anew[:, None] | anew, 0.0, getattr(ladder, name))
        for name in ("gained", "squared", "ahead", "square", "judged")
    }
    return ladder._replace(
        shares=ladder.shares[source],
        older=ladder.older[source],
        variance=ladder.variance[source],
        source=source,
        restarted=ladder.observed if jumped else ladder.restarted,
        jumps=ladder.jumps + jumped,
        **pairs,
    )
