"""B1: how tight is the bound on the input that noise makes?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

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
    matches,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.geometry import random_basis

TITLE = "The input bound"
CLAIMED = (
    "‖U‖_F ≤ 4‖C_e‖₂‖E_e‖_F + 2‖E_e‖_F² holds without violation, with ratios from 0.127 "
    "to 0.154: a tightness of about 15 %."
)
PROTOCOL = (
    "n = 15, 500 random pairs (M, E) for each of seven noise levels; one generator, seed 42, draws "
    "Q and then M and E in turn. We add the worst pair that can be written down: the minimiser, "
    "and noise in the plane of the extreme eigenvectors."
)
CONCLUSION = (
    "All seven ratios are reproduced. They speak of random pairs, though: in the extreme plane the "
    "ratio is one half, so the bound is tight to a factor of two and not of six."
)
PRINTED = {
    0.01: ("0.280", "0.154"),
    0.05: ("1.405", "0.140"),
    0.1: ("2.820", "0.145"),
    0.2: ("5.680", "0.139"),
    0.5: ("14.50", "0.139"),
    1.0: ("30.00", "0.129"),
    2.0: ("64.00", "0.127"),
}


@dataclass(frozen=True)
class Config:
    """Sizes of B1."""

    n: int = 15
    samples: int = 500
    noises: tuple[float, ...] = tuple(PRINTED)

    @classmethod
    def full(cls) -> Config:
        """As in the paper."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """The same: it takes a second."""
        return replace(cls())


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Largest ratio of ‖U‖_F to its bound for every noise level, random and adversarial."""
    stream = np.random.default_rng(problems.PAPER_SEED)
    frame = random_basis(config.n, rng=stream)
    signal = theory.trace_free(problems.from_frame(frame))
    found = []
    for noise in progress.over(config.noises, len(config.noises)):
        ratios = _ratios(config, signal, noise, stream)
        found.append(
            {
                "epsilon": noise,
                "bound": float(theory.input_bound(problems.norm(config.n), noise)),
                "max_ratio": float(ratios.max()),
                "mean_ratio": float(ratios.mean()),
                "violations": int(np.sum(ratios > 1)),
                "adversarial_ratio": _adversarial(config, signal, frame, noise),
            }
        )
    return {"sizes": sizes(config), "ratios": found}


def _ratios(config: Config, signal: Any, noise: float, stream: np.random.Generator) -> Any:
    bases, noises = [], []
    for _ in range(config.samples):
        bases.append(random_basis(config.n, rng=stream))
        noises.append(stream.standard_normal((config.n, config.n)))
    return _ratio(
        signal, np.stack(bases), problems.trace_free_noise(np.stack(noises), noise), noise, config.n
    )


def _ratio(signal: Any, basis: Any, error: Any, noise: float, n: int) -> Any:
    rotated = theory.rotated_operator(signal, basis)
    seen = theory.rotated_operator(error, basis)
    size = np.linalg.norm(theory.effective_input(rotated, seen), axis=(-2, -1))
    return size / theory.input_bound(problems.norm(n), noise)


def _adversarial(config: Config, signal: Any, frame: Any, noise: float) -> float:
    """At the minimiser, E in the plane of the first and the last eigenvector."""
    first, last = frame[:, 0], frame[:, -1]
    error = noise / 2**0.5 * (np.outer(first, last) + np.outer(last, first))
    return float(_ratio(signal, frame, error, noise, config.n))


def claims(records: Records) -> list[Claim]:
    """Seven bounds, seven ratios, no violations, and the true tightness."""
    full = at_full_size(records, Config)
    found = [_ratio_claim(r, full) for r in records["ratios"]]
    total = sum(r["violations"] for r in records["ratios"])
    worst = max(r["adversarial_ratio"] for r in records["ratios"])
    found.append(judged("Violations of the bound", "0", str(total), Verdict.HOLDS, when=total == 0))
    found.append(
        judged(
            "The bound is tight to about 15 %",
            "~15 %",
            f"{worst:.3f} at the minimiser with E in the extreme plane",
            Verdict.WRONG,
            "15 % is what random pairs show; the bound is tight to a factor of two.",
            when=worst > 0.4,
        )
    )
    return found


def _ratio_claim(r: Row, full: bool) -> Claim:
    bound, ratio = PRINTED[r["epsilon"]]
    return judged(
        f"ε = {r['epsilon']:g}: bound, largest ratio",
        f"{bound}, {ratio}",
        f"{r['bound']:.3f}, {r['max_ratio']:.4f}",
        Verdict.HOLDS,
        when=matches(r["bound"], bound) and matches(r["max_ratio"], ratio),
        tested=full,
    )


def plot(records: Records, figure: Any) -> None:
    """Ratios against the noise level."""
    axes = figure.subplots()
    table = records["ratios"]
    noise = column(table, "epsilon")
    axes.plot(noise, column(table, "max_ratio"), "o-", label="largest of 500 random pairs")
    axes.plot(noise, column(table, "mean_ratio"), "s:", label="mean of 500 random pairs")
    axes.plot(noise, column(table, "adversarial_ratio"), "^-", label="extreme plane")
    printed = [float(PRINTED[r["epsilon"]][1]) for r in table]
    axes.plot(noise, printed, "x", color="C6", ms=8, label="printed")
    axes.axhline(1, color="0.5", ls="--", label="the bound")
    axes.set(xscale="log", ylim=(0, 1.1), xlabel="noise ε", ylabel="‖U‖_F / bound")
    axes.legend(fontsize="x-small", loc=(0.72, 0.52))
