"""The pictures of the page: tracks, errors, noise floor, noise bursts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bracketflow.demo.bursts import KNOWN, LOUD, TRACKER
from bracketflow.demo.contest import OURS, Contest
from bracketflow.demo.words import labels
from bracketflow.experiments.figures import CYCLE, STYLE, inline_svg, plain_powers
from bracketflow.experiments.store import FIGURES

TRUTH = "#8d95a1"  # readable on white and on near-black
Picture = Callable[[Contest, Any], None]


def picture(contest: Contest, directory: Path, name: str) -> str | None:
    """The picture `name` as SVG for a page, also kept in `directory`; None without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return None
    draw, height = PICTURES[name]
    style: Any = {**STYLE, "svg.hashsalt": name}
    (directory / FIGURES).mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, height), layout="constrained")
        draw(contest, figure)
        path = directory / FIGURES / f"{name}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None})
    return inline_svg(directory, name)


def _tracks(contest: Contest, figure: Any) -> None:
    """Angles against batches, one panel a contender, the truth behind them."""
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for colour, (name, label), axes in zip(CYCLE, labels(contest).items(), panels, strict=False):
        axes.plot(_with_jump(contest), color=TRUTH, linewidth=4, alpha=0.6)
        axes.plot(contest.tracks[name].angles, ".", color=colour, markersize=2)
        axes.set_title(label)
    for axes in figure.axes[len(contest.tracks) :]:
        axes.remove()
    figure.axes[0].set_ylim(-75, 50)
    figure.supylabel("direction, degrees")
    figure.supxlabel("batch")


def _with_jump(contest: Contest) -> np.ndarray:
    """The true angles, with a gap in the line where the source jumps."""
    angles = contest.scene.angles.copy()
    angles[contest.scene.jump, 0] = np.nan
    return np.asarray(angles)


def _errors(contest: Contest, figure: Any) -> None:
    """Subspace error against batches; batches that alone hide a source are shaded."""
    axes = figure.subplots()
    for i, (name, label) in enumerate(labels(contest).items()):
        width, order = (2.0, 3) if name == OURS else (0.9, 2)
        errors = contest.subspace_errors(name)
        axes.semilogy(errors, color=CYCLE[i], linewidth=width, zorder=order, label=label)
    axes.set(xlabel="batch", ylabel="subspace error", ylim=(None, 1.1))
    _shade(contest, axes)
    plain_powers(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=3)


def _shade(contest: Contest, axes: Any) -> None:
    hidden = contest.scene.hidden
    axes.fill_between(
        np.arange(len(hidden)),
        0,
        1,
        where=hidden,
        step="mid",
        transform=axes.get_xaxis_transform(),
        color=TRUTH,
        alpha=0.25,
        linewidth=0,
        label="one batch alone hides a source",
    )


def _floor(contest: Contest, figure: Any) -> None:
    """σ² and our estimate; below them how far the tracker's vectors are, and its error bars."""
    upper, lower = figure.subplots(2, 1, sharex=True)
    upper.semilogy(contest.scene.floor, color=TRUTH, linewidth=4, alpha=0.6, label="noise floor σ²")
    upper.semilogy(contest.floor, color=CYCLE[0], linewidth=1, label="our estimate")
    upper.set_ylabel("σ²")
    plain_powers(upper.yaxis)
    distances, bars = contest.vector_errors
    for i, (distance, bar) in enumerate(zip(distances.T, bars.T, strict=True)):
        name = f"vector {i + 1}: error (dots), bar"
        lower.semilogy(distance, ".", color=CYCLE[i], markersize=2)
        lower.semilogy(bar, color=CYCLE[i], linewidth=1, label=name)
    lower.set(xlabel="batch", ylabel="error of the vectors", ylim=(0.01, 2))
    plain_powers(lower.yaxis)
    figure.legend(loc="outside lower center", ncols=3)


def _bursts(contest: Contest, figure: Any) -> None:
    """Subspace error of every way against batches; loud batches are shaded."""
    axes, bursts = figure.subplots(), contest.bursts
    ours = {TRACKER: (CYCLE[0], 2.0, "-"), KNOWN: (TRUTH, 3.0, "-")}
    for i, (name, errors) in enumerate(bursts.errors.items(), 1):
        colour, width, line = ours.get(name, (CYCLE[i], 1.2, "-"))
        axes.semilogy(errors, line, color=colour, linewidth=width, label=name)
    loud = bursts.noise > 1
    axes.vlines(
        np.flatnonzero(loud), 0, 0.04, transform=axes.get_xaxis_transform(), color=TRUTH,
        linewidth=1, label=f"noise {LOUD:g} times as strong",
    )  # fmt: skip
    axes.set(xlabel="batch", ylabel="subspace error", ylim=(None, 1.1))
    plain_powers(axes.yaxis)
    figure.legend(loc="outside lower center", ncols=3)


PICTURES: dict[str, tuple[Picture, float]] = {
    "tracks": (_tracks, 5.6),
    "errors": (_errors, 4.2),
    "floor": (_floor, 5.4),
    "bursts": (_bursts, 4.2),
}
