"""The three numerical counterexamples against the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.baselines import EuclideanGradient, QROja, SubspaceIteration
from bracketflow.driver import Method
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Row,
    Verdict,
    column,
    digits,
    judged,
    numeric,
    row,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import level, walk
from bracketflow.flows import DoubleBracketFlow
from bracketflow.geometry import orthonormalise

TITLE = "Three counterexamples"
CLAIMED = (
    "Even without a trace, one step of subspace iteration raises f from 3.212 to 3.489 and one of "
    "QR-Oja from 1.411 to 1.730; a background turns one Euclidean gradient step from −96.5 % to "
    "+20.7 %."
)
PROTOCOL = (
    "The printed matrices, one step each; the printed starts are orthonormal to five digits and "
    "are projected first. We add the steps that follow, the reversed column order, and the polar "
    "factor in place of QR."
)
CONCLUSION = (
    "All values of f are right. They are not failures: f is not what these methods minimise, and "
    "both of the first two examples converge when they are run on. The percentages of the third "
    "do not belong to its values of f."
)

SUBSPACE = (
    [[0.11537, 1.77881, -0.52963], [1.77881, -0.44274, 0.09983], [-0.52963, 0.09983, 0.32737]],
    [[-0.18742, 0.73430, 0.65244], [-0.84085, -0.46329, 0.27987], [0.50778, -0.49616, 0.70427]],
)
OJA = (
    [[0.81739, 0.78860, -0.87209], [0.78860, 0.27574, 0.73028], [-0.87209, 0.73028, -1.09313]],
    [[-0.50527, 0.73623, -0.45018], [-0.86296, -0.43194, 0.26216], [-0.00144, 0.52095, 0.85359]],
)
GRADIENT = (
    [[0.35377, 0.35731], [0.35731, 1.12382]],
    [[0.77485, 0.63214], [-0.63214, 0.77485]],
)


@dataclass(frozen=True)
class Config:
    """Sizes of the counterexamples."""

    steps: int = 200
    eta_oja: float = 0.2
    eta_gradient: float = 0.5
    sigma: float = 5.0

    @classmethod
    def full(cls) -> Config:
        """As printed, and the steps that follow."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """The same: it takes no time."""
        return cls()


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """f before and after one step, in the variants, and along the steps that follow."""
    oja = QROja(numerator=config.eta_oja, power=0)
    subspace, gradient = SubspaceIteration(), EuclideanGradient(config.eta_gradient)
    examples: list[tuple[str, Method, Any, float]] = [
        ("Ex. 1: subspace iteration", subspace, SUBSPACE, 0.0),
        ("Ex. 2: QR-Oja", oja, OJA, 0.0),
        ("Ex. 3: Euclidean gradient, σ = 0", gradient, GRADIENT, 0.0),
        ("Ex. 3: Euclidean gradient, σ = 5", gradient, GRADIENT, config.sigma**2),
    ]
    table, path = [], []
    for name, method, (matrix, start), background in examples:
        signal, basis = np.asarray(matrix), orthonormalise(np.asarray(start))
        observed = signal + background * np.eye(len(signal))
        table.append(_one_step(name, method, signal, observed, basis))
        path += _course(name, method, signal, observed, basis, config.steps)
        if "Ex. 3" not in name:
            flow = DoubleBracketFlow(step=0.1)
            path += _course(name + " / Cayley", flow, signal, observed, basis, config.steps)
    progress(1.0)
    return {"sizes": sizes(config), "steps": table, "path": path}


def _one_step(name: str, method: Method, signal: Any, observed: Any, basis: Any) -> Row:
    after = method.step(observed, method.init(basis))[0].basis
    reversed_ = method.step(observed, method.init(basis[:, ::-1]))[0].basis
    return {
        "example": name,
        "before": float(level(signal, basis)),
        "after": float(level(signal, after)),
        "reversed_columns": float(level(signal, reversed_)),
        "polar": float(level(signal, _with_polar(method, observed, basis))),
    }


def _with_polar(method: Method, observed: Any, basis: Any) -> Any:
    """The same move, made orthonormal by its polar factor in place of QR."""
    image = observed @ basis
    if isinstance(method, SubspaceIteration):
        return orthonormalise(image)
    if isinstance(method, QROja):
        return orthonormalise(basis + method.numerator * image)
    assert isinstance(method, EuclideanGradient)
    return orthonormalise(theory.euclidean_step(basis, observed, method.eta))


def _course(
    name: str, method: Method, signal: Any, observed: Any, basis: Any, steps: int
) -> list[Row]:
    course = walk(method, iter([observed] * (steps + 1)), basis, steps)
    return [
        {"example": name, "step": t, "f": float(level(signal, state.basis))}
        for t, state, _ in course
        if t < 10 or t % 5 == 0
    ]


def claims(records: Records) -> list[Claim]:
    """All printed f values, and the percentages."""
    table = {r["example"]: r for r in records["steps"]}
    last = {p["example"]: p["f"] for p in records["path"]}
    printed = {
        "Ex. 1: subspace iteration": ("3.212", "3.489"),
        "Ex. 2: QR-Oja": ("1.411", "1.730"),
    }
    found = []
    for name, (before, after) in printed.items():
        found.append(numeric(f"{name}, f(M₀)", before, table[name]["before"], count=6))
        reason = (
            f"Reversed columns give {table[name]['reversed_columns']:.3f}, the polar factor in "
            f"place of QR {table[name]['polar']:.3f}; after more steps "
            f"f = {digits(last[name], 2)}: no failure of a method that does not minimise f."
        )
        found.append(numeric(f"{name}, f(M₁)", after, table[name]["after"], count=6, reason=reason))
    return found + _gradient_claims(records)


def _gradient_claims(records: Records) -> list[Claim]:
    found = []
    for sigma, printed, percent in ((0, "0.00450", "-96.5"), (5, "0.15477", "20.7")):
        r = row(records, "steps", example=f"Ex. 3: Euclidean gradient, σ = {sigma}")
        change = 100 * (r["after"] / r["before"] - 1)
        implied = r["after"] / (1 + float(percent) / 100)
        found.append(numeric(f"Ex. 3, σ = {sigma}: f(M₁)", printed, r["after"], count=5))
        found.append(
            judged(
                f"Ex. 3, σ = {sigma}: change",
                f"{float(percent):+.1f} %",
                f"{change:+.1f} %",
                Verdict.WRONG,
                f"f(M₀) = {r['before']:.4f}; the printed change would need {implied:.4f}.",
                when=abs(change - float(percent)) > 0.1,
                otherwise=Verdict.HOLDS,
            )
        )
    return found


def plot(records: Records, figure: Any) -> None:
    """f along the steps that follow the first."""
    panels = figure.subplots(1, 2)
    names = ("Ex. 1: subspace iteration", "Ex. 2: QR-Oja")
    for axes, name in zip(panels, names, strict=True):
        for suffix, label in (("", "baseline"), (" / Cayley", "Cayley, η = 0.1")):
            mine = [p for p in records["path"] if p["example"] == name + suffix]
            axes.plot(column(mine, "step"), np.maximum(column(mine, "f"), 1e-32), label=label)
        after = row(records, "steps", example=name)["after"]
        axes.plot([1], [after], "o", color="C6", label="the printed step")
        axes.set(xscale="symlog", yscale="log", xlabel="step", ylabel="f", title=name)
        axes.legend(fontsize="x-small")
