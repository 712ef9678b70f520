"""The outcome in figures and sentences, all computed from it: for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import wrap

import numpy as np

from bracketflow.demo.bursts import KNOWN, LOUD, PART, PLAIN, TRACKER, Bursts
from bracketflow.demo.contest import AVERAGE, OJA, OURS, PCA, RATES, STEPS, Contest
from bracketflow.demo.scene import HIGHEST, IMPULSE, QUIET

CLOSE = 1.0  # degrees: the sources count as found when all are this near
FARTHEST = 1.41  # unit vectors are hardly farther apart, with the sign that fits best
SETTLED = 5  # batches in a row that must be close before the jump counts as overcome
NOTES = {
    OURS: "nothing to set",
    OJA: f"step relative to ‖XᵀCX‖, the best of {', '.join(f'{s:g}' for s in STEPS)}",
    AVERAGE: f"all n columns; share of the newest batch, the best of "
    f"{', '.join(f'{r:g}' for r in RATES)} (1: each batch alone)",
    PCA: "scikit-learn; all rows count alike for ever",
}


@dataclass(frozen=True)
class Figures:
    """One contender in numbers."""

    median: float
    """Of the worst angle's error, degrees."""
    usual: float
    """95 % of the batches are below this."""
    close: float
    """Share of batches with all angles within `CLOSE`."""
    back: int | None
    """Batches from the jump until all angles are close and stay so for a while."""
    subspace: float
    """Mean subspace error."""
    products: int
    seconds: float


def figures(contest: Contest, name: str) -> Figures:
    """The numbers of one contender over all batches, the first included."""
    angle, track = contest.angle_errors(name), contest.tracks[name]
    return Figures(
        float(np.median(angle)),
        float(np.quantile(angle, 0.95)),
        float(np.mean(angle < CLOSE)),
        _back(angle[contest.scene.jump :]),
        float(contest.subspace_errors(name).mean()),
        track.products,
        track.seconds,
    )


def _back(errors: np.ndarray) -> int | None:
    run = 0
    for batch, error in enumerate(errors):
        run = run + 1 if error < CLOSE else 0
        if run == SETTLED:
            return batch - SETTLED + 1
    return None


HEAD = ("median", "95 %", f"within {CLOSE:g}°", "after jump", "subspace", "products", "seconds")
CAPTION = (
    "Error of the worst angle: its median, what 95 % of the batches stay below, the share of "
    f"batches with all angles within {CLOSE:g}°; batches after the jump until that holds again; "
    "mean subspace error; products with observations; seconds."
)


def cells(contest: Contest, name: str) -> tuple[str, ...]:
    """A row under `HEAD`."""
    f = figures(contest, name)
    return (
        f"{f.median:.2f}°",
        f"{f.usual:.1f}°",
        f"{100 * f.close:.0f} %",
        "never" if f.back is None else f"{f.back}",
        f"{f.subspace:.3f}",
        f"{f.products}" if f.products else "rows",
        f"{f.seconds:.1f}",
    )


def labels(contest: Contest) -> dict[str, str]:
    """Name → name with the setting it was given."""
    return {
        name: f"{name}, {track.setting}" if track.setting else name
        for name, track in contest.tracks.items()
    }


def setting_words(contest: Contest) -> str:
    """What was simulated, in two sentences."""
    scene = contest.scene
    steps, k = scene.angles.shape
    low, high, impulse = (f"{10 * np.log10(v):+.0f}" for v in (QUIET, HIGHEST, IMPULSE))
    return (
        f"{k} moving sources, {scene.sensors} sensors, {steps} batches of {scene.snapshots} "
        f"snapshots. The noise floor swings from {low} to {high} dB of the strongest source, with "
        f"impulses of {impulse} dB; {100 * scene.hidden.mean():.0f} % of the batches are too noisy "
        "to show all sources by themselves."
    )


def verdict(contest: Contest) -> str:
    """Who is closest, judged by the mean subspace error, in a sentence."""
    errors = {name: figures(contest, name).subspace for name in contest.tracks}
    rivals = {name: error for name, error in errors.items() if name != OURS}
    rival = min(rivals, key=lambda name: rivals[name])
    ratio = rivals[rival] / errors[OURS]
    if ratio < 1:
        return f"{rival} at its best setting is {1 / ratio:.2g} times closer than {OURS} here."
    return f"{OURS} is closest; the next is {rival}, {ratio:.3g} times as far on average."


def exactness(contest: Contest) -> str:
    """What an exact background does, in a sentence."""
    found = np.max(abs(contest.drowned[OJA].angles - contest.scene.angles), axis=-1) < CLOSE
    return (
        f"With an exact background up to 1e6·I added to every observation, {OURS}'s angles change "
        f"by {contest.change:.1g}° at most; {OJA} then finds all sources in "
        f"{100 * found.mean():.0f} % of the batches."
    )


def bar_words(contest: Contest) -> str:
    """How often the truth is inside the error bars, in a sentence."""
    distances, bars = contest.vector_errors
    told = bars < FARTHEST
    inside = np.mean(distances[told] < bars[told]) if told.any() else np.nan
    return (
        f"{100 * np.mean(told):.0f} % of the bars are below √2, where they say something, and the "
        f"truth is inside {100 * inside:.0f} % of these: they speak of a signal that stands still, "
        "and this one moves."
    )


def burst_words(bursts: Bursts) -> str:
    """What noise bursts do to each way, in sentences."""
    ours, known = bursts.late(TRACKER), bursts.late(KNOWN)
    plain = bursts.late(PLAIN)
    return (
        f"A signal that stands still, noise {LOUD:g} times as strong in {100 * PART:.0f} % of the "
        f"batches. {PLAIN} counts every batch alike, so the loud ones drown the others: its error "
        f"is {plain:.2f} over the last quarter. {TRACKER} reads the noise of a batch off the batch "
        "itself, in what its mean did not foresee outside of its columns, and lets it count the "
        f"less the louder it is: {ours:.3f}, {ours / known:.2f} times the error of a mean that "
        "is told the noise of every batch."
    )


def summary(contest: Contest) -> Iterator[str]:
    """The table for the terminal."""
    names = labels(contest)
    width = max(map(len, names.values()))
    yield " " * width + "".join(f"{title:>{len(title) + 3}s}" for title in HEAD)
    for name, label in names.items():
        row = zip(HEAD, cells(contest, name), strict=True)
        yield f"{label:<{width}s}" + "".join(f"{cell:>{len(title) + 3}s}" for title, cell in row)
    yield ""
    yield from wrap(CAPTION, 92)
    if contest.absent:
        yield contest.absent
