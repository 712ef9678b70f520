"""B7: is the Stiefel iteration blind to σ²?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.baselines import PrintedStiefel
from bracketflow.driver import Method
from bracketflow.experiments import problems
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Row,
    Verdict,
    at_full_size,
    column,
    digits,
    judged,
    row,
    rows,
    same_order,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import walk
from bracketflow.flows import BrockettFlow
from bracketflow.geometry import random_basis

TITLE = "Shift invariance on the Stiefel manifold"
CLAIMED = (
    "On St(5, 50) with polar retraction the objective along the run differs by 1.7e-12 (σ² = 100) "
    "and 2.3e-12 (σ² = 10⁴) from that without background: exact to machine precision."
)
PROTOCOL = (
    "K = 5000, N = diag(5, 4, 3, 2, 1), one generator (seed 42) draws Q and the start. The step is "
    "not stated; η = 0.001 here. Three retractions: the printed (M + H)(I + HᵀH)^(−1/2), the true "
    "polar factor of M + H, and this library's centred flow."
)
CONCLUSION = (
    "The claim holds with the true polar factor. With the formula as printed it fails at exactly "
    "the backgrounds the paper speaks of: MᵀM − I is multiplied by 1 − 2ησ²(ν_a + ν_b) at each "
    "step, and blows up once that exceeds one in size. The cure costs nothing."
)
VARIANTS = ("printed retraction", "true polar", "this library")


@dataclass(frozen=True)
class Config:
    """Sizes of B7."""

    n: int = 50
    k: int = 5
    steps: int = 5000
    eta: float = 1e-3
    backgrounds: tuple[float, ...] = (0.0, 100.0, 1e4)

    @classmethod
    def full(cls) -> Config:
        """As in the paper, with three retractions."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """Fewer steps."""
        return replace(cls(), steps=1000)


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Difference of J and of M from the run without background, and the orthogonality error."""
    weights = tuple(float(w) for w in range(config.k, 0, -1))
    stream = np.random.default_rng(problems.PAPER_SEED)
    signal = problems.signal(config.n, stream)
    start = random_basis(config.n, config.k, rng=stream)
    variants: dict[str, Method] = {
        "printed retraction": PrintedStiefel(weights, config.eta),
        "true polar": PrintedStiefel(weights, config.eta, true_polar=True),
        "this library": BrockettFlow(weights=weights, step=config.eta),
    }
    found, path = [], []
    parts = progress.parts(*[1] * len(variants))
    for (name, method), part in zip(variants.items(), parts, strict=True):
        table, course = _variant(config, name, method, signal, start, weights, part)
        found += table
        path += course
    return {"sizes": sizes(config), "differences": found, "path": path}


def _variant(
    config: Config,
    name: str,
    method: Method,
    signal: Any,
    start: Any,
    weights: tuple[float, ...],
    progress: Progress,
) -> tuple[list[Row], list[Row]]:
    """The run at all backgrounds side by side, compared with the first, σ² = 0."""
    stack = problems.with_backgrounds(signal, config.backgrounds)
    bases = np.broadcast_to(start, (len(stack), *start.shape))
    nu = np.asarray(weights)
    worst_j, worst_m = np.zeros(len(stack)), np.zeros(len(stack))
    defect, path = np.zeros(len(stack)), []
    for t, state, _ in walk(method, itertools.repeat(stack), bases, config.steps, progress):
        with np.errstate(all="ignore"):
            objective = theory.brockett_objective(state.basis, signal, nu)
            worst_j = np.maximum(worst_j, np.abs(objective - objective[0]))
            move = np.linalg.norm(state.basis - state.basis[0], axis=(-2, -1))
            worst_m = np.maximum(worst_m, move)
            gram = state.basis.mT @ state.basis - np.eye(config.k)
            now = np.linalg.norm(gram, axis=(-2, -1))
        defect = np.fmax(defect, now)
        if t % (config.steps // 50) == 0:
            path += [
                {"variant": name, "sigma2": s, "step": t, "defect": _finite(d)}
                for s, d in zip(config.backgrounds, now, strict=True)
            ]
    table = [
        {
            "variant": name,
            "sigma2": s,
            "difference_J": _finite(worst_j[i]),
            "difference_M": _finite(worst_m[i]),
            "last_defect": _finite(now[i]),
        }
        for i, s in enumerate(config.backgrounds)
    ]
    return table, path


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _number(value: float | None) -> str:
    return "diverges" if value is None else digits(value, 2)


def claims(records: Records) -> list[Claim]:
    """Both printed differences, with each retraction."""
    full = at_full_size(records, Config)
    found = []
    for background, printed in ((100.0, "1.7e-12"), (1e4, "2.3e-12")):
        ours = {
            v: row(records, "differences", variant=v, sigma2=background)["difference_J"]
            for v in VARIANTS
        }
        polar = ours["true polar"]
        found.append(
            judged(
                f"Largest difference of J, σ² = {background:g} against 0",
                printed,
                f"true polar {_number(polar)}, this library {_number(ours['this library'])}, "
                f"printed retraction {_number(ours['printed retraction'])}",
                Verdict.UNSTATED,
                "Only with the true polar factor, at an unstated step (here 0.001).",
                when=polar is not None and same_order(polar, printed),
                tested=full,
            )
        )
    broken = [
        r
        for r in rows(records, "differences", variant="printed retraction")
        if r["last_defect"] is None or r["last_defect"] > 1e-3
    ]
    found.append(
        judged(
            "The printed retraction (M + H)(I + HᵀH)^(−1/2) keeps MᵀM = I",
            "exactly invariant",
            "; ".join(
                f"σ² = {r['sigma2']:g}: ‖MᵀM − I‖ = {_number(r['last_defect'])}" for r in broken
            )
            or "no failure seen",
            Verdict.WRONG,
            "It presumes MᵀM = I to the last bit and amplifies rounding by σ².",
            when=bool(broken),
        )
    )
    return found


def plot(records: Records, figure: Any) -> None:
    """Orthogonality error along the run for each retraction."""
    panels = figure.subplots(1, 3, sharey=True)
    for axes, variant in zip(panels, VARIANTS, strict=True):
        for background in records["sizes"][0]["backgrounds"]:
            mine = rows(records, "path", variant=variant, sigma2=background)
            defect = np.maximum(column(mine, "defect"), 1e-17)
            axes.plot(column(mine, "step"), defect, label=f"σ² = {background:g}")
        axes.set(yscale="log", xlabel="step", title=variant)
    panels[0].set_ylabel("‖MᵀM − I‖_F")
    panels[0].legend(fontsize="x-small")
