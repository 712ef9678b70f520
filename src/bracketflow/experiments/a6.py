"""A6: convergence from everywhere on SO(n)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.core import Probe, State
from bracketflow.experiments import problems
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Row,
    Verdict,
    at_full_size,
    column,
    judged,
    numeric,
    row,
    rows,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import NEVER, StepPerMember, steps_until
from bracketflow.flows import DoubleBracketFlow
from bracketflow.oracles import as_operator
from bracketflow.stopping import Stop, lyapunov_below

TITLE = "Convergence from random starts"
CLAIMED = (
    "From 100 Haar starts on SO(15) the Cayley iteration reaches f < 1e-8 every time, in 14681 "
    "iterations on average and 19471 at most; the figure's caption speaks of n = 10, 30 seeds and "
    "f < 1e-14."
)
PROTOCOL = (
    "n = 15, η = 0.9/L_C, at most 30000 steps. One matrix from seed 42, starts from seeds 43 … "
    "142: the paper's “100 seeds” are 100 starts on one matrix. We add 100 fresh matrices, the "
    "caption's variant, and two longer steps."
)
CONCLUSION = (
    "Global convergence holds without exception, on fresh matrices too. What the experiment does "
    "not say is that the certified step is the slow one: with the sharp constant 12‖C_e‖₂² the "
    "same runs take less than half the iterations, with 1/(λ_max − λ_min)² about a seventh. "
    "Protocol and caption contradict each other; both hold."
)


@dataclass(frozen=True)
class Config:
    """Sizes of A6."""

    n: int = 15
    starts: int = 100
    limit: int = 30_000
    target: float = 1e-8
    caption_n: int = 10
    caption_starts: int = 30
    caption_target: float = 1e-14

    @classmethod
    def full(cls) -> Config:
        """As in the protocol and as in the caption."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """A few starts, to a coarser target."""
        return replace(
            cls(), n=8, starts=8, target=1e-6, caption_n=6, caption_starts=6, caption_target=1e-8
        )


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Steps to the target: the protocol, fresh matrices, two longer steps, the caption."""
    main, caption = progress.parts(8, 1)
    matrix, starts = problems.shared_signal(config.starts, config.n)
    fresh, fresh_starts = problems.fresh(config.starts, config.n, rng)
    same = np.broadcast_to(matrix, fresh.shape)
    printed = 0.9 / problems.printed_constant(config.n)
    sharp = 1 / float(theory.sharp_descent_constant(problems.norm(config.n)))
    longest = float(theory.local_step_edge(problems.norm(config.n))) / 2
    scenes = {
        "protocol": (same, starts, printed),
        "fresh matrices": (fresh, fresh_starts, printed),
        "η = 1/(12‖C_e‖₂²)": (same, starts, sharp),
        "η = 1/(λ_max − λ_min)²": (same, starts, longest),
    }
    found, path = _race(scenes, config.target, config.limit, main)
    small, small_starts = problems.shared_signal(config.caption_starts, config.caption_n)
    small = np.broadcast_to(small, small_starts.shape)
    step = 0.9 / problems.printed_constant(config.caption_n)
    as_captioned = {"caption": (small, small_starts, step)}
    more, more_path = _race(as_captioned, config.caption_target, config.limit, caption)
    return {"sizes": sizes(config), "runs": found + more, "path": path + more_path}


def _race(
    scenes: dict[str, Any], target: float, limit: int, progress: Progress
) -> tuple[list[Row], list[Row]]:
    """All scenes side by side; the paths are those of 30 members of the first scene."""
    matrices = np.concatenate([matrices for matrices, _, _ in scenes.values()])
    starts = np.concatenate([starts for _, starts, _ in scenes.values()])
    counts = [len(starts) for _, starts, _ in scenes.values()]
    etas = np.repeat([eta for _, _, eta in scenes.values()], counts)
    first = next(iter(scenes))
    path: list[Row] = []
    steps = steps_until(
        DoubleBracketFlow(step=StepPerMember(etas)),
        lambda members: itertools.repeat(as_operator(matrices[members])),
        starts,
        lambda members: _recording(first, members, min(counts[0], 30), target, path),
        limit=limit,
        progress=progress,
    )
    found, at = [], 0
    for name, count in zip(scenes, counts, strict=True):
        taken = steps[at : at + count]
        at += count
        found.append(
            {
                "scene": name,
                "runs": count,
                "failed": int(np.sum(taken == NEVER)),
                "mean": float(taken.mean()),
                "max": int(taken.max()),
                "target": target,
            }
        )
    return found, path


def _recording(scene: str, members: Any, watched: int, target: float, path: list[Row]) -> Stop:
    """`lyapunov_below(target)` that notes f of the watched members every 250 steps."""
    below = lyapunov_below(target)
    places = np.flatnonzero(members < watched)

    def rule(state: State, probe: Probe) -> Any:
        for place in places:
            if state.steps[place] % 250 == 0 and probe.lyapunov[place] >= target:
                f = float(probe.lyapunov[place])
                path.append(
                    {
                        "scene": scene,
                        "member": int(members[place]),
                        "step": int(state.steps[place]),
                        "f": f,
                    }
                )
        return below(state, probe)

    return rule


def claims(records: Records) -> list[Claim]:
    """Counts of the protocol, of the caption, and what longer steps do."""
    full = at_full_size(records, Config)
    protocol = row(records, "runs", scene="protocol")
    caption = row(records, "runs", scene="caption")
    fresh = row(records, "runs", scene="fresh matrices")
    faster = [row(records, "runs", scene=r["scene"]) for r in records["runs"][2:4]]
    return [
        judged(
            "Runs that converge",
            "100/100",
            f"{protocol['runs'] - protocol['failed']}/{protocol['runs']}; "
            f"{fresh['runs'] - fresh['failed']}/{fresh['runs']} on fresh matrices",
            Verdict.HOLDS,
            "The 100 seeds are 100 starts on one matrix; fresh matrices converge too.",
            when=protocol["failed"] == fresh["failed"] == 0,
        ),
        numeric("Mean iterations", "14681", protocol["mean"], count=6, tested=full),
        numeric("Most iterations", "19471", protocol["max"], count=6, tested=full),
        judged(
            "Caption: n = 10, 30 seeds, f < 1e-14",
            "all",
            f"{caption['runs'] - caption['failed']}/{caption['runs']}, at most {caption['max']}",
            Verdict.HOLDS,
            "Holds, but the caption contradicts the protocol (n = 15, 100 seeds, 1e-8).",
            when=caption["failed"] == 0,
        ),
        Claim(
            "Iterations on fresh matrices and with longer steps",
            "not given",
            f"fresh matrices {fresh['mean']:.0f} (at most {fresh['max']}); "
            + "; ".join(f"{r['scene']}: {r['mean']:.0f}" for r in faster),
            Verdict.ADDED,
            "The certified step 0.9/L_C is the slow one.",
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """Trajectories of the protocol and of the caption."""
    panels = figure.subplots(1, 2)
    for axes, scene in zip(panels, ("protocol", "caption"), strict=True):
        points = rows(records, "path", scene=scene)
        for member in sorted({p["member"] for p in points}):
            mine = [p for p in points if p["member"] == member]
            axes.plot(column(mine, "step"), column(mine, "f"), lw=0.8, alpha=0.7, color="C0")
        target = row(records, "runs", scene=scene)["target"]
        axes.axhline(target, color="C6", ls="--", label=f"target {target:.0e}")
        axes.set(yscale="log", xlabel="iteration", ylabel="f", title=scene)
        axes.legend(fontsize="x-small")
