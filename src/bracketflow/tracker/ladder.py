"""How much an observation weighs, and how much of the past to keep: one principle, one test.

A ladder holds means of different memory side by side, one of them chosen. Rung j keeps the share
1 − f_j of its past in every step, or all of it while it is younger than 1/f_j; the first rung is
the last observation alone, the last one forgets nothing.

**Weight.** The noise of an observation is measured in it. It is the usual noise unless it lies
beyond what the scatter of the last observations explains (of KEPT ordinary ones, one is beyond it
with probability α); then it is its own, and the weight falls: loudness = noise/usual, else 1. A
mean M = Σ share_s C_s has the variance Σ share_s² loudness_s/weight_s in units of the usual noise,
and takes the next observation in with the gain that makes this smallest. Shares are kept, so that
one which is recognised later as loud still loses its weight. While none is loud, M is the plain
mean.

**Memory.** Let b_j be how much more of the fresh observation rung j has captured than the chosen
one. Under the hypothesis that it captures no more, E b_j ≤ 0, the exponential of
Σ (c b_j − ½c² Var b_j) is a supermartingale for every c, b being normal: from any start it passes
m/α with probability α/m at most. Page's test runs the sum from its last zero; with m the
observations that the chosen mean remembers, and would lose, a mean that grows to m has seen false
alarms with a probability of about α log m in all. A rung that passes is chosen.
A longer rung that is found worse than the chosen one becomes a copy of it. When the first rung
captures most, the signal has jumped, and every rung starts anew from the last observation.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, log
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

RUNGS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.0)
"""Shares f that the rungs forget: half a decade apart, the best is at most 6 % off in error."""
ALPHA = 0.02
"""The one probability of a false alarm: of loud observations, another memory, a jump."""
KEPT = 64
"""Observations that the usual noise and the scatter of b are read off: 13 % of error in both."""
AGREEING = 3
"""Observations that must agree before a test may pass, however clear each of them is: two loud
ones that happen to be alike come in every long stream."""

EPS, TINY = np.finfo(float).eps, np.finfo(float).tiny


class Ladder(NamedTuple):
    """Weights and memories of one problem; J rungs. Numbers of the host, whatever the arrays."""

    # The last observations, the newest at the end; NaN and 0 where there was none.
    noise: np.ndarray
    """Noise of each for one unit of weight, (KEPT,)."""
    weight: np.ndarray
    """Weight of each, (KEPT,)."""
    shares: np.ndarray
    """Part that each has in every mean, (J, KEPT)."""
    older: np.ndarray
    """Σ share²·loudness/weight of the observations before those, (J,)."""
    variance: np.ndarray
    """The same of all: the variance of each mean in units of the usual noise, (J,)."""
    loud: np.ndarray
    """Loudness of each by what is known now: 1, or its noise over the usual one, (KEPT,)."""
    usual: np.ndarray
    """The usual noise of one unit of weight; 0 before two observations, ()."""
    # What the fresh observations have said of every rung.
    more: np.ndarray
    """Page's sum for "captures more than the chosen rung", (J,)."""
    less: np.ndarray
    """Page's sum for "captures less", (J,)."""
    captured: np.ndarray
    """Σ b since `more` was zero, (J,)."""
    centre: np.ndarray
    """Mean of y = b/√size, (J,), with `size` as of `judge`: b² grows as it does."""
    scatter: np.ndarray
    """Mean of y², (J,)."""
    judged: np.ndarray
    """Observations in that mean, (J,)."""
    # Where the ladder stands.
    chosen: np.ndarray
    """Index of the rung in use, ()."""
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
    def own(self) -> float:
        """Variance of the newest observation in units of the usual noise: loudness/weight."""
        return float(self.loud[-1] / self.weight[-1])


class Verdict(NamedTuple):
    """What the evidence asks for after an observation."""

    chosen: int
    """The rung to use from now on."""
    jumped: bool
    """Whether every rung starts anew from this observation."""
    copied: np.ndarray
    """Which rungs become copies of the chosen one, (J,)."""


def unchanged(ladder: Ladder) -> Verdict:
    """Nothing is asked for."""
    return Verdict(int(ladder.chosen), False, np.zeros(len(ladder.more), dtype=bool))


def rungs(forget: float | None) -> np.ndarray:
    """Shares to forget: those of a ladder, or the last observation and one fixed share."""
    return np.array(RUNGS if forget is None else (1.0, forget))


def start(forget: float | None) -> Ladder:
    """A ladder that has seen nothing."""
    J = len(rungs(forget))
    zero, whole = np.zeros(J), np.zeros((), dtype=np.int64)
    return Ladder(
        noise=np.full(KEPT, np.nan),
        weight=np.ones(KEPT),
        shares=np.zeros((J, KEPT)),
        older=zero,
        variance=zero,
        loud=np.ones(KEPT),
        usual=np.zeros(()),
        more=zero,
        less=zero,
        captured=zero,
        centre=zero,
        scatter=zero,
        judged=zero,
        chosen=whole + J - 1,
        observed=whole,
        typical=np.zeros(()),
        restarted=whole,
        jumps=whole,
    )


def begin(ladder: Ladder, weight: float, power: float) -> Ladder:
    """After the first observation, of that `power`: it is all that every rung knows."""
    noises, weights = ladder.noise.copy(), ladder.weight.copy()
    noises[-1], weights[-1] = power * weight, weight
    return renewed(
        ladder._replace(
            noise=noises,
            weight=weights,
            observed=ladder.observed + 1,
            typical=ladder.typical + weight,
        )
    )


@lru_cache(maxsize=KEPT)
def _quantile(count: int) -> float:
    """How far above the middle of `count` numbers, in widths of their shortest half, α/KEPT begins.

    Student's t for a new number beside `count` others; a normal scatter σ has a shortest half of
    1.349 σ; and of few numbers the shortest half is too short (Rousseeuw and Leroy: 1 + 5/(m − 1)).
    """
    if count < 2:
        return inf
    student = stdtrit(count - 1, 1 - ALPHA / KEPT) * (1 + 1 / count) ** 0.5
    return float(student * (1 + 5 / (count - 1)) / 1.349)


def _usual(noise: np.ndarray) -> tuple[float, float]:
    """The usual noise, and the largest that is still usual: from the shortest half of log noise.

    Up to half of the observations may be louder, by any factor, without moving either.
    """
    logs = np.sort(np.log(np.maximum(noise, TINY)))
    m, half = len(logs), len(logs) // 2
    widths = logs[half:] - logs[: m - half]
    first = int(np.argmin(widths))
    width, middle = float(widths[first]), float(np.mean(logs[first : first + half + 1]))
    with np.errstate(over="ignore"):
        return float(np.exp(middle)), float(np.exp(middle + min(_quantile(m) * width, 700.0)))


def memory(ladder: Ladder) -> float:
    """Weight that the chosen mean still has against the next observation."""
    return float(1 / ladder.variance[ladder.chosen]) if ladder.observed else 0.0


def span(ladder: Ladder) -> float:
    """Observations that the scatter of entries is averaged over: as many as the mean remembers.

    Not less than KEPT, if there were so many: noise is no less known after a jump.
    """
    remembered = memory(ladder) / max(float(ladder.typical), TINY)
    return max(min(float(ladder.observed), max(remembered, KEPT)), 1.0)


def weigh(
    ladder: Ladder,
    apart: float,
    apart_from_last: float,
    weight: float,
    forget: float | None,
    power: float,
) -> Ladder:
    """Enter an observation: `apart` is ‖N‖² of what the chosen mean did not foresee.

    E‖N‖² is the noise of the observation and the variance of the mean. Right after a jump the mean
    says nothing, but the last observation does: half of ‖C_t − C_{t−1}‖². Whoever fixes the share
    to forget has the plain average: then nothing is loud.
    """
    if ladder.observed == 1:
        noise = 0.5 * apart
    else:
        variance = float(ladder.variance[ladder.chosen] * ladder.usual)
        # What is subtracted is an estimate: the noise is hardly less than a quarter of ‖N‖².
        noise = min(max(apart - variance, 0.25 * apart), 0.5 * apart_from_last)
    noises = _pushed(ladder.noise, noise * weight)
    if ladder.observed == 1:
        # Of the first no more is known than its power beside that of the second.
        noises[-2] *= noise / power if power > 0 else 1.0
    # Of the first two observations one number is known, and counted once.
    usual, largest = _usual(noises[max(KEPT - int(ladder.observed), 0) :])
    loud = np.ones(KEPT)
    if forget is None:
        with np.errstate(over="ignore"):  # after a standstill everything is infinitely loud
            loud = np.where(noises > largest, np.minimum(noises / usual, EPS**-2), 1.0)
    weights, shares = _pushed(ladder.weight, weight), np.zeros_like(ladder.shares)
    shares[:, :-1] = ladder.shares[:, 1:]
    older = ladder.older + ladder.shares[:, 0] ** 2 * ladder.loud[0] / ladder.weight[0]
    return ladder._replace(
        noise=noises,
        weight=weights,
        shares=shares,
        older=older,
        variance=older + shares**2 @ (loud / weights),
        loud=loud,
        usual=np.asarray(usual),
        observed=ladder.observed + 1,
        typical=ladder.typical + (weight - ladder.typical) / (ladder.observed + 1),
    )


def _pushed(values: np.ndarray, value: float) -> np.ndarray:
    pushed = np.empty_like(values)
    pushed[:-1], pushed[-1] = values[1:], value
    return pushed


def absorb(ladder: Ladder, forget: float | None) -> tuple[Ladder, np.ndarray]:
    """Take the newest observation into every mean: the ladder, and the gain of each rung.

    The gain v/(v + loudness/weight) makes the variance of the new mean smallest; it is not below
    the share that the rung is to forget, in units of an observation of typical weight.
    """
    own = ladder.own
    fixed = 1 - (1 - rungs(forget)) ** (1 / (own * float(ladder.typical)))
    gains = np.maximum(ladder.variance / (ladder.variance + own), fixed)
    gains[0] = 1.0
    kept = 1 - gains
    shares = ladder.shares * kept[:, None]
    shares[:, -1] = gains
    return ladder._replace(
        shares=shares,
        older=ladder.older * kept**2,
        variance=ladder.variance * kept**2 + own * gains**2,
    ), gains


def judge(ladder: Ladder, more: np.ndarray, size: np.ndarray) -> tuple[Ladder, Verdict]:
    """Weigh what the newest observation says of the rungs.

    Parameters
    ----------
    more : (J,) array
        b: how much more of it each rung captures than the chosen one.
    size : (J,) array
        What b would be worth if the rung were right: the scale on which c is set, c = size/Var b.
    """
    more, size = more / ladder.own, size / ladder.own
    threshold = log(max(memory(ladder) / float(ladder.typical), 1.0) / ALPHA)
    # Young rungs are the same mean but for rounding, which must not decide.
    own = ladder.variance[ladder.chosen]
    live, limit = size > 0, threshold / AGREEING
    live &= abs(ladder.variance - own) > EPS**0.5 * own
    rate = np.where(live, 1 / np.clip(ladder.judged + 1, 1, KEPT), 0.0)
    # Var b, and of few observations nearly E b²: their scatter may be far too small.
    few = threshold / np.maximum(ladder.judged, 1)
    scatter = ladder.scatter * (1 + few) - ladder.centre**2
    usable = live & (scatter > 0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = [
            np.where(usable, np.clip((b - 0.5 * size) / scatter, -limit, limit), 0.0)
            for b in (more, -more)
        ]
        fresh = np.where(live, more / size**0.5, 0.0)
    # One observation cannot raise the scatter by more than the test would count it for.
    most = np.where(ladder.judged >= 2 * AGREEING, limit * ladder.scatter**0.5, inf)
    fresh = np.clip(fresh, -most, most)
    judged = ladder.judged + live
    sums = [np.maximum(s + d, 0.0) for s, d in zip((ladder.more, ladder.less), steps, strict=True)]
    ladder = ladder._replace(
        more=sums[0],
        less=sums[1],
        captured=np.where(sums[0] > 0, ladder.captured + more, 0.0),
        centre=ladder.centre + rate * (fresh - ladder.centre),
        scatter=ladder.scatter + rate * (fresh**2 - ladder.scatter),
        judged=judged,
    )
    return _decide(ladder, threshold)


def _decide(ladder: Ladder, threshold: float) -> tuple[Ladder, Verdict]:
    """Which rung to use: the one that has captured most, once any of them has passed the test."""
    chosen, places = int(ladder.chosen), np.arange(len(ladder.more))
    others = places != chosen
    if np.any(others & (ladder.more > threshold)):
        captured = np.where(others & (ladder.more > 0), ladder.captured, -inf)
        # Young rungs are equal but for rounding, which must not decide: the longest of them.
        most = np.max(captured)
        chosen = int(np.flatnonzero(captured >= most - EPS**0.5 * abs(most))[-1])
    copied = (ladder.less > threshold) & (places > chosen) & others
    jumped = chosen == 0
    if jumped:
        return _restarted(ladder)
    if chosen != ladder.chosen:
        ladder = _forgiven(ladder, places >= 0)._replace(chosen=ladder.chosen * 0 + chosen)
    ladder = _copied(_forgiven(ladder, copied), copied)
    return ladder, Verdict(chosen, False, copied)


def _restarted(ladder: Ladder) -> tuple[Ladder, Verdict]:
    """Every rung is the last observation; chosen is the one as long as it took to jump again."""
    everything = np.ones(len(ladder.more), dtype=bool)
    since = int(ladder.observed - ladder.restarted)
    shares = rungs(None)
    chosen = next(j for j in range(1, len(shares)) if shares[j] * since <= 1)
    ladder = _forgiven(ladder, everything)._replace(
        chosen=ladder.chosen * 0 + chosen, restarted=ladder.observed, jumps=ladder.jumps + 1
    )
    return ladder, Verdict(chosen, True, everything)


def renewed(ladder: Ladder) -> Ladder:
    """After the first observation, or a jump: the newest is all that every rung knows."""
    shares = np.zeros_like(ladder.shares)
    shares[:, -1] = 1.0
    return ladder._replace(
        shares=shares, older=0 * ladder.older, variance=np.full(len(shares), ladder.own)
    )


def _copied(ladder: Ladder, copied: np.ndarray) -> Ladder:
    chosen = int(ladder.chosen)
    return ladder._replace(
        shares=np.where(copied[:, None], ladder.shares[chosen], ladder.shares),
        older=np.where(copied, ladder.older[chosen], ladder.older),
        variance=np.where(copied, ladder.variance[chosen], ladder.variance),
    )


def _forgiven(ladder: Ladder, which: np.ndarray) -> Ladder:
    more, less, captured = (
        np.where(which, 0.0, sums) for sums in (ladder.more, ladder.less, ladder.captured)
    )
    return ladder._replace(more=more, less=less, captured=captured)
