"""How fast to learn: memory, gain and alarm, the same for the full basis and the leading columns.

All numbers here live on the host, one per member of an ensemble, whatever the arrays are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import Array, Scalar, any_member, frobenius_squared, inner, namespace, to_host
from bracketflow.sharding import over_rows, row_count

CAUTIOUS_STEPS = 5  # too few moves to judge the gain by
WARM_UP = 30  # observations in which columns that still search look like noise, soon forgotten
WINDOW = 4.0  # evidence is kept for this many memory lengths
PATIENCE = 1.0  # growth of the memory at zero evidence, in weights of an observation
LAGGING = 3.0  # standard errors of evidence at which the memory is halved,
PULLED = 4.5  # and of that of eigenvalues
LOUD = 9.0  # times the usual size of an innovation: a jump or an outlier
STARTLING = 1e2  # the same times n, for the first few: columns that turn see more, by √n at most
AGREE = 0.5  # cosine above which loud innovations point the same way
JUMP = 3  # of those in a row are a jump
GIVE_UP = 10  # loud ones in a row, however they point, are what is usual now


class Gain(NamedTuple):
    """Memory W of the running mean and the evidence for or against it.

    The mean moves by g = w/(W + w) of an innovation of weight w. Were g right, innovations would
    be uncorrelated with the lean of the basis (what a larger gain would have added to it).
    """

    memory: Any
    """W: what the mean counts for against the next observation."""
    noise: Any
    """Variance of the mean when one observation of weight 1 has variance 1."""
    evidence: Any
    doubt: Any
    """Discounted sum of <innovation, lean> and its variance."""
    count: Any
    """Observations in the mean."""
    pull: Any
    strain: Any
    """The same sum for eigenvalues, which may move while the vectors stay, and its variance."""


def start_gain(ensemble: tuple[int, ...]) -> Gain:
    """Nothing seen."""
    zero = np.zeros(ensemble)
    return Gain(zero, zero, zero, zero, np.zeros(ensemble, dtype=np.int64), zero, zero)


def fraction(gain: Gain, weight: float) -> Any:
    """g = w/(W + w)."""
    return weight / (gain.memory + weight)


def judged(gain: Gain, share: Any, covariance: Any, variance: Any) -> Gain:
    """Gain with the evidence of innovations that make up this share of the mean."""
    evidence, doubt = _summed(gain.evidence, gain.doubt, share, covariance, variance)
    return gain._replace(evidence=evidence, doubt=doubt)


def pulled(gain: Gain, share: Any, covariance: Any, variance: Any) -> Gain:
    """Gain with the evidence of eigenvalues."""
    pull, strain = _summed(gain.pull, gain.strain, share, covariance, variance)
    return gain._replace(pull=pull, strain=strain)


def _summed(
    evidence: Any, doubt: Any, share: Any, covariance: Any, variance: Any
) -> tuple[Any, Any]:
    """Discounted sums of a covariance, made to have variance 1, and of that variance."""
    rate = np.minimum(share / WINDOW, 1.0)
    variance = to_host(variance)
    known = variance > 0
    score = _where(known, to_host(covariance) / np.sqrt(_where(known, variance, 1.0)), 0.0)
    return (1 - rate) * evidence + score, (1 - rate) ** 2 * doubt + known


def grown(gain: Gain, weight: float, forget: float | None) -> Gain:
    """Gain after one more observation.

    Without evidence of a lag W grows by w up to 1/noise: the mean of everything. The growth falls
    with the evidence; at LAGGING standard errors the memory is halved.
    """
    g = fraction(gain, weight)
    noise, count = (1 - g) ** 2 * gain.noise + g * g / weight, gain.count + 1
    if forget is not None:
        memory = (1 - forget) * (gain.memory + weight)
        return gain._replace(memory=memory, noise=noise, count=count)
    score = gain.evidence / np.sqrt(_where(gain.doubt > 0, gain.doubt, 1.0))
    early = gain.count < CAUTIOUS_STEPS
    growth = _where(early, 1.0, np.minimum(np.maximum(PATIENCE - 0.5 * score, -1.0), 2.0))
    memory = np.minimum(np.maximum(gain.memory + weight * growth, 0.0), 1 / noise)
    lagging = ~early & ((score > LAGGING) | (gain.pull > PULLED * np.sqrt(gain.strain)))
    if not any_member(lagging):
        return gain._replace(memory=memory, noise=noise, count=count)
    return Gain(
        _where(lagging, 0.5 * gain.memory, memory),
        noise,
        _where(lagging, 0.0, gain.evidence),
        _where(lagging, 0.0, gain.doubt),
        count,
        _where(lagging, 0.0, gain.pull),
        _where(lagging, 0.0, gain.strain),
    )


def _where(mask: Any, chosen: Any, other: Any) -> Any:
    """np.where, which takes its time for a single number."""
    return np.where(mask, chosen, other) if np.ndim(mask) else chosen if mask else other


def restarted(weight: float, count: int, like: Gain) -> Gain:
    """Gain of a mean of `count` observations of this weight, and of nothing before them."""
    zero = np.zeros_like(like.memory)
    total = zero + count * weight
    return Gain(total, 1 / total, zero, zero, np.zeros_like(like.count) + count, zero, zero)


class Alarm(NamedTuple):
    """Watch for observations that deviate: one is an outlier, three alike in a row are a jump."""

    usual: Any
    """Running mean square of the innovations' sizes."""
    suspect: Array
    """Mean of the last loud innovations that point the same way; zero elsewhere."""
    alike: Any
    """How many those are."""
    held: Any
    """Loud observations held back in a row, up to the last one."""
    jumps: Any
    """Jumps found so far."""
    jumped_at: Any
    """Step of the last of them, −1 for none."""


class Verdict(NamedTuple):
    """What to do with an observation, member by member; absorb it where neither holds."""

    held: np.ndarray
    jumped: np.ndarray
    waiting: Alarm
    """The alarm where it was held back, and what the jump is made of where it jumped."""


def quiet(ensemble: tuple[int, ...], like: Array) -> Alarm:
    """No deviation seen."""
    none = np.zeros(ensemble, dtype=np.int64)
    return Alarm(np.zeros(ensemble), 0 * like, none, none, none, none - 1)


def heard(alarm: Alarm, gain: Gain, size: Any, innovation: Array, floor: Any) -> Verdict | None:
    """The verdict on a loud innovation; None, the usual case, when no member is loud.

    Loud ones that never agree are noise that has grown: from GIVE_UP in a row on they are absorbed.
    """
    size = to_host(size)
    limit = _where(gain.count > CAUTIOUS_STEPS, LOUD, STARTLING * row_count(innovation))
    loud = (size > limit * np.sqrt(alarm.usual)) & (size > floor) & (alarm.usual > 0)
    if not any_member(loud):
        return None
    agrees = agreement(innovation, alarm) > AGREE
    alike = np.where(loud, np.where(agrees, alarm.alike, 0) + 1, 0)
    jumped = alike >= JUMP
    share = per_member(1 / np.maximum(alike, 1), innovation)
    mean = per_member(agrees, innovation) * alarm.suspect
    waiting = alarm._replace(
        suspect=mean + share * (innovation - mean), alike=alike, held=alarm.held + loud
    )
    return Verdict(loud & ~jumped & (alarm.held < GIVE_UP), jumped, waiting)


def agreement(innovation: Array, alarm: Alarm) -> Any:
    """Cosine between an innovation and the suspect; 0 where none is held."""
    if not np.any(alarm.alike):
        return np.zeros(alarm.alike.shape)
    along, left, right = over_rows(
        inner(innovation, alarm.suspect),
        frobenius_squared(innovation),
        frobenius_squared(alarm.suspect),
    )
    floor = np.finfo(np.float64).tiny
    return to_host(along) / (np.sqrt(to_host(left)) * np.sqrt(to_host(right)) + floor)


def listened(alarm: Alarm, gain: Gain, size: Any) -> Alarm:
    """Alarm after an innovation that was absorbed; what is usual is learned anew after GIVE_UP."""
    rate = _where((gain.count > CAUTIOUS_STEPS) & (alarm.usual > 0), 0.02, 1.0)
    square = np.minimum(to_host(size).astype(float), 1e150) ** 2
    usual = alarm.usual + rate * (square - alarm.usual)
    return calmed(alarm)._replace(usual=_where(alarm.held < GIVE_UP, usual, 0.0))


def calmed(alarm: Alarm) -> Alarm:
    """Alarm with nothing held back."""
    if not any_member(alarm.held > 0):
        return alarm
    none = np.zeros_like(alarm.held)
    return alarm._replace(suspect=0 * alarm.suspect, alike=none, held=none)


def after_jump(alarm: Alarm, steps: Any) -> Alarm:
    """Alarm with a jump at this step in its books.

    One jump after the other is a signal that moves fast: what is usual is then learned anew.
    """
    jumped_at = np.zeros_like(alarm.jumps) + steps
    again = (alarm.jumps > 0) & (jumped_at - alarm.jumped_at <= GIVE_UP)
    usual = _where(again, 0.0, alarm.usual)
    return calmed(alarm)._replace(jumps=alarm.jumps + 1, jumped_at=jumped_at, usual=usual)


def per_member(value: Scalar, like: Array) -> Array:
    """Host numbers made to multiply (..., n, k) arrays of the library and dtype of `like`."""
    if isinstance(like, np.ndarray):
        return np.asarray(value, dtype=like.dtype)[..., None, None]
    xp = namespace(like)
    return xp.asarray(value, dtype=like.dtype, device=like.device)[..., None, None]
