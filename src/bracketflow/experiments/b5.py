"""B5: the exact profile of f along a Givens rotation at a degenerate block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.experiments import problems
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Row,
    Verdict,
    column,
    digits,
    judged,
    matches,
    rows,
    same_order,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.geometry import random_basis

TITLE = "Givens escape profile"
CLAIMED = (
    "At a degenerate block, A_ii = A_jj and b = A_ij, f(Me^{tΞ}) = f(M) − b² sin²(2t): the largest "
    "error over all trials and angles is 7.1e-15."
)
PROTOCOL = (
    "n = 8, ten Haar bases (seed 42): one diagonal entry of A is set equal to another, then t runs "
    "over 200 points of [0, π/2]."
)
CONCLUSION = "The formula is exact; what is left is one or two units in the last place of f."


@dataclass(frozen=True)
class Config:
    """Sizes of B5."""

    n: int = 8
    trials: int = 10
    points: int = 200

    @classmethod
    def full(cls) -> Config:
        """As in the paper."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """The same: it takes no time."""
        return cls()


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Profile and error at every angle of every trial."""
    stream = np.random.default_rng(problems.PAPER_SEED)
    angles = np.linspace(0, np.pi / 2, config.points)
    source = problems.signal(config.n, stream)
    trials, profile = [], []
    for trial in range(config.trials):
        basis = random_basis(config.n, rng=stream)
        signal, entry = _degenerate(source, basis)
        numeric, exact = _profile(signal, basis, entry, angles)
        trials.append(
            {
                "trial": trial,
                "f": float(exact[0]),
                "error": float(np.abs(numeric - exact).max()),
                "one_ulp_of_f": float(np.spacing(exact[0])),
            }
        )
        profile += [
            {"trial": trial, "t": float(t), "numeric": float(a), "exact": float(b)}
            for t, a, b in zip(angles[::4], numeric[::4], exact[::4], strict=True)
        ]
    progress(1.0)
    return {"sizes": sizes(config), "trials": trials, "profile": profile}


def _turn(basis: Any, angle: Any) -> Any:
    """Me^{tΞ}, Ξ = E_01 − E_10."""
    first, second = basis[..., :, 0], basis[..., :, 1]
    cosine, sine = np.cos(angle), np.sin(angle)
    turned = basis.copy()
    turned[:, 0] = cosine * first - sine * second
    turned[:, 1] = sine * first + cosine * second
    return turned


def _degenerate(source: Any, basis: Any) -> tuple[Any, float]:
    """`source` changed in one entry, A_11 := A_00 in this basis; and b = A_01."""
    rotated = theory.rotated_operator(source, basis)
    rotated = 0.5 * (rotated + rotated.T)
    rotated[1, 1] = rotated[0, 0]
    signal = theory.rotated_operator(rotated, basis.T)
    return 0.5 * (signal + signal.T), float(rotated[0, 1])


def _profile(signal: Any, basis: Any, entry: float, angles: Any) -> tuple[Any, Any]:
    bases = np.stack([_turn(basis, t) for t in angles])
    numeric = theory.lyapunov(theory.rotated_operator(signal, bases))
    start = theory.lyapunov(theory.rotated_operator(signal, basis))
    return numeric, theory.givens_profile(start, entry, angles)


def claims(records: Records) -> list[Claim]:
    """The largest error, and what it is made of."""
    worst = max(records["trials"], key=lambda r: float(r["error"]))
    ulps = worst["error"] / worst["one_ulp_of_f"]
    return [
        judged(
            "Largest |f(Me^{tΞ}) − (f − b² sin² 2t)|",
            "7.1e-15",
            f"{digits(worst['error'])}: {ulps:.0f} units in the last place of f = {worst['f']:.1f}",
            Verdict.HOLDS if matches(worst["error"], "7.1e-15") else Verdict.ORDER,
            "The digits are rounding: which ones appear depends on the order of summation.",
            when=same_order(worst["error"], "7.1e-15"),
        )
    ]


def plot(records: Records, figure: Any) -> None:
    """Profiles with the formula on top, and the errors."""
    left, right = figure.subplots(1, 2)
    trials: list[Row] = records["trials"]
    for index, trial in enumerate(trials[:4]):
        mine = rows(records, "profile", trial=trial["trial"])
        t = column(mine, "t")
        color = f"C{index}"
        left.plot(t, column(mine, "numeric"), lw=3, alpha=0.4, color=color)
        left.plot(t, column(mine, "exact"), "--", color=color, lw=1)
    left.set(xlabel="t", ylabel="f(Me^{tΞ})", title="(a) thick: numeric, dashed: formula")
    for trial in trials:
        mine = rows(records, "profile", trial=trial["trial"])
        error = np.abs(column(mine, "numeric") - column(mine, "exact"))
        right.plot(column(mine, "t"), error, ".", ms=3, color="C0")
    right.axhline(7.1e-15, color="C6", ls="--", label="printed largest error")
    right.set(ylim=(-5e-16, 9e-15), xlabel="t", ylabel="|error|", title="(b) errors of all trials")
    right.legend(fontsize="x-small", loc="upper right")
