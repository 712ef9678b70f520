"""B3: the diagonal separation against its lower bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import expm

from bracketflow import theory
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
from bracketflow.geometry import random_basis

TITLE = "Domain radius"
CLAIMED = (
    "δ(M) ≥ g − 2√(2f(M)) without violation in 5000 Haar bases; smallest margin 26.5, mean 30.4."
)
PROTOCOL = (
    "n = 15, one generator (seed 42) draws Q and 5000 Haar bases. For a Haar basis the right-hand "
    "side is negative, so that nothing is tested; we add bases near the minimiser, where it is not."
)
CONCLUSION = (
    "Reproduced, but a Haar basis cannot violate the inequality: its right-hand side is below −20. "
    "Near the minimiser, where it says something, it holds as well, and there the margin comes "
    "close to zero."
)


@dataclass(frozen=True)
class Config:
    """Sizes of B3."""

    n: int = 15
    samples: int = 5000
    near: int = 5000

    @classmethod
    def full(cls) -> Config:
        """As in the paper, and as many near the minimiser."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """The paper's samples, fewer near the minimiser."""
        return cls(near=500)


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Margins δ(M) − (g − 2√(2f)) of Haar bases and of bases near the minimiser."""
    stream = np.random.default_rng(problems.PAPER_SEED)
    frame = random_basis(config.n, rng=stream)
    signal = problems.from_frame(frame)
    haar = np.stack([random_basis(config.n, rng=stream) for _ in range(config.samples)])
    progress(0.5)
    near = _near(frame, config, rng)
    scenes = {"Haar": _margins(signal, haar), "near the minimiser": _margins(signal, near)}
    summary, points = [], []
    for name, (margin, bound) in scenes.items():
        summary.append(
            {
                "scene": name,
                "samples": int(margin.size),
                "non_vacuous": int(np.sum(bound > 0)),
                "violations": int(np.sum(margin < 0)),
                "min": float(margin.min()),
                "mean": float(margin.mean()),
            }
        )
        points += [
            {"scene": name, "bound": float(b), "separation": float(m + b)}
            for m, b in zip(margin[:300], bound[:300], strict=True)
        ]
    progress(1.0)
    return {"sizes": sizes(config), "margins": summary, "points": points}


def _near(frame: Any, config: Config, rng: np.random.Generator) -> Any:
    """Ue^Ξ with ‖Ξ‖_F so small that the bound stays positive: √f ≤ √2‖C_e‖₂‖Ξ‖_F."""
    largest = 1 / (8**0.5 * 2**0.5 * problems.norm(config.n))
    bases: list[Any] = []
    for size in largest * rng.uniform(0.05, 1.0, config.near):
        gaussian = rng.standard_normal((config.n, config.n))
        skew: Any = gaussian - gaussian.T
        # Half of them turn one plane only, which is where the bound is hardest.
        if len(bases) % 2:
            i, j = rng.choice(config.n, 2, replace=False)
            skew = theory.givens_direction(config.n, int(i), int(j))
        bases.append(frame @ expm(size / np.linalg.norm(skew) * skew))
    return np.stack(bases)


def _margins(signal: Any, bases: Any) -> tuple[Any, Any]:
    rotated = theory.rotated_operator(signal, bases)
    bound = theory.separation_bound(1.0, np.sqrt(theory.lyapunov(rotated)))
    return theory.diagonal_separation(rotated) - bound, bound


def claims(records: Records) -> list[Claim]:
    """Margins, and that Haar bases do not test the inequality."""
    full = at_full_size(records, Config)
    haar = row(records, "margins", scene="Haar")
    near = row(records, "margins", scene="near the minimiser")
    same = records["sizes"][0]["samples"] == Config.full().samples
    return [
        judged(
            "Violations", "0", str(haar["violations"]), Verdict.HOLDS, when=not haar["violations"]
        ),
        numeric("Smallest margin", "26.5", haar["min"], tested=same),
        numeric("Mean margin", "30.4", haar["mean"], tested=same),
        judged(
            "Haar bases test the inequality",
            "5000 trials",
            f"the bound is positive for {haar['non_vacuous']} of {haar['samples']}",
            Verdict.VACUOUS,
            "A negative bound cannot be violated.",
            when=haar["non_vacuous"] == 0,
        ),
        judged(
            "Near the minimiser",
            "not tested",
            f"{near['violations']} violations in {near['non_vacuous']} samples with a positive "
            f"bound, smallest margin {near['min']:.2g}",
            Verdict.ADDED,
            "The inequality holds where it says something.",
            tested=full,
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """Separation against its bound, both kinds of bases."""
    panels = figure.subplots(1, 2)
    for axes, scene in zip(panels, ("Haar", "near the minimiser"), strict=True):
        points: list[Row] = rows(records, "points", scene=scene)
        bound = column(points, "bound")
        axes.plot(bound, column(points, "separation"), ".", ms=4, label="bases")
        line = np.linspace(bound.min(), bound.max(), 2)
        axes.plot(line, line, "--", color="C6", label="equality")
        axes.set(xlabel="g − 2√(2f)", ylabel="δ(M)", title=scene)
        axes.legend(fontsize="x-small")
