"""B4: quadratic growth of f around a minimiser."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import expm

from bracketflow import theory
from bracketflow.experiments import problems
from bracketflow.experiments.claims import Claim, Records, Verdict, column, judged, sizes
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.geometry import random_basis

TITLE = "Quadratic growth"
CLAIMED = "(g²/4)·dist² ≤ f ≤ 2‖C_e‖₂²·dist² near a minimiser: no violation in 1000 perturbations."
PROTOCOL = (
    "n = 10, M = M⋆e^Ξ with ‖Ξ‖_F ≤ 0.3, one generator (seed 42). We add the plane of two "
    "neighbouring eigenvectors, where the lower bound is hardest, up to large turns."
)
CONCLUSION = (
    "Both sides hold, with room. In the gap plane the lower bound goes on holding almost to "
    "distance one, far beyond the neighbourhood for which it is proved."
)


@dataclass(frozen=True)
class Config:
    """Sizes of B4."""

    n: int = 10
    samples: int = 1000
    radius: float = 0.3
    turns: int = 200

    @classmethod
    def full(cls) -> Config:
        """As in the paper, and along the gap plane."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """The same: it takes a second."""
        return cls()


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Ratios of f to both bounds, for random perturbations and along the gap plane."""
    stream = np.random.default_rng(problems.PAPER_SEED)
    frame = random_basis(config.n, rng=stream)
    signal = problems.from_frame(frame)
    bases = np.stack([frame @ expm(_skew(config, stream)) for _ in range(config.samples)])
    distance, f = _measure(signal, frame, bases)
    lower = f / theory.growth_floor(1.0, distance)
    upper = f / theory.growth_ceiling(problems.norm(config.n), distance)
    summary = {
        "samples": config.samples,
        "lower_violations": int(np.sum(lower < 1)),
        "upper_violations": int(np.sum(upper > 1)),
        "lower_min": float(lower.min()),
        "upper_max": float(upper.max()),
    }
    points = [
        {"distance": float(d), "f": float(v)} for d, v in zip(distance[:400], f[:400], strict=True)
    ]
    return {
        "sizes": sizes(config),
        "summary": [summary],
        "points": points,
        "gap_plane": _gap_plane(config, signal, frame),
    }


def _skew(config: Config, stream: np.random.Generator) -> Any:
    gaussian = stream.standard_normal((config.n, config.n))
    skew = gaussian - gaussian.T
    return stream.uniform(0, config.radius) / np.linalg.norm(skew) * skew


def _measure(signal: Any, frame: Any, bases: Any) -> tuple[Any, Any]:
    distance = np.linalg.norm(bases - frame, axis=(-2, -1))
    return distance, theory.lyapunov(theory.rotated_operator(signal, bases))


def _gap_plane(config: Config, signal: Any, frame: Any) -> list[dict[str, float]]:
    direction = theory.givens_direction(config.n, 0, 1)
    bases = np.stack([frame @ expm(t * direction) for t in np.linspace(0.01, 0.78, config.turns)])
    distance, f = _measure(signal, frame, bases)
    ratio = f / theory.growth_floor(1.0, distance)
    return [{"distance": float(d), "ratio": float(r)} for d, r in zip(distance, ratio, strict=True)]


def claims(records: Records) -> list[Claim]:
    """No violations, and how far the lower bound goes on."""
    summary = records["summary"][0]
    plane = records["gap_plane"]
    held = max(p["distance"] for p in plane if p["ratio"] >= 1)
    return [
        judged(
            "Violations of the lower bound",
            "0",
            f"{summary['lower_violations']} (smallest ratio {summary['lower_min']:.1f})",
            Verdict.HOLDS,
            when=summary["lower_violations"] == 0,
        ),
        judged(
            "Violations of the upper bound",
            "0",
            f"{summary['upper_violations']} (largest ratio {summary['upper_max']:.3f})",
            Verdict.HOLDS,
            when=summary["upper_violations"] == 0,
        ),
        Claim(
            "How far the lower bound holds in the gap plane",
            "local",
            f"to dist_F = {held:.2f}",
            Verdict.ADDED,
            "There f = g² sin²(2t)/4 falls again after t = π/4.",
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """f between its bounds, and the lower ratio along the gap plane."""
    left, right = figure.subplots(1, 2)
    n = records["sizes"][0]["n"]
    distance = column(records["points"], "distance")
    left.plot(distance, column(records["points"], "f"), ".", ms=4, label="perturbations")
    line = np.geomspace(max(distance.min(), 1e-3), distance.max(), 40)
    left.plot(line, theory.growth_floor(1.0, line), "--", color="C2", label="g²/4 · dist²")
    ceiling = theory.growth_ceiling(problems.norm(n), line)
    left.plot(line, ceiling, "--", color="C6", label="2‖C_e‖² · dist²")
    left.set(xscale="log", yscale="log", xlabel="dist_F", ylabel="f", title="(a) random")
    left.legend(fontsize="x-small")
    plane = records["gap_plane"]
    right.plot(column(plane, "distance"), column(plane, "ratio"))
    right.axhline(1, color="C2", ls="--", label="lower bound")
    right.set(ylim=(0, None), xlabel="dist_F", ylabel="f / (g²/4 · dist²)", title="(b) gap plane")
    right.legend(fontsize="x-small")
