"""B8: the spectrum of the linearisation at the Stiefel maximiser."""

from __future__ import annotations

import itertools
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
    rows,
    same_order,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.geometry import random_basis

TITLE = "Stiefel linearisation"
CLAIMED = (
    "At the maximiser on St(3, 10) all 24 eigenvalues (3 internal, 21 external) are negative; the "
    "formulas hold with residual 2.8e-14."
)
PROTOCOL = (
    "C from seed 42, N = diag(3, 2, 1). DG_C(M⋆)[H] = γH is checked for all 24 directions. We add "
    "the signature at all 720 ordered triples of eigenvectors."
)
CONCLUSION = (
    "All 24 formulas hold to rounding. The signature is right at each of the 720 critical frames: "
    "only the ordered leading triple attracts."
)


@dataclass(frozen=True)
class Config:
    """Sizes of B8."""

    n: int = 10
    weights: tuple[float, ...] = (3.0, 2.0, 1.0)

    @classmethod
    def full(cls) -> Config:
        """As in the paper, and all 720 triples."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """The same: it takes a second."""
        return cls()


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Eigenvalues with residuals at the maximiser, and the signature at every triple."""
    frame = random_basis(config.n, rng=np.random.default_rng(problems.PAPER_SEED))
    signal, values = problems.from_frame(frame), problems.eigenvalues(config.n)
    weights = np.asarray(config.weights)
    leading = tuple(range(len(weights)))
    spectrum = theory.linearisation_spectrum(values, weights, leading)
    vectors = theory.linearisation_eigenvectors(frame, leading)
    basis = theory.critical_frame(frame, leading)
    table = []
    for kind in ("internal", "external"):
        gammas = getattr(spectrum, kind).ravel()
        directions = getattr(vectors, kind).reshape(-1, config.n, len(weights))
        for gamma, direction in zip(gammas, directions, strict=True):
            image = theory.field_derivative(basis, signal, weights, direction)
            residual = float(np.linalg.norm(image - gamma * direction))
            table.append({"kind": kind, "eigenvalue": float(gamma), "residual": residual})
    return {
        "sizes": sizes(config),
        "spectrum": table,
        "triples": [_triples(config, values, weights, progress)],
    }


def _triples(config: Config, values: Any, weights: Any, progress: Progress) -> Row:
    """Signatures at all critical frames against a direct count of the signs."""
    every = list(itertools.permutations(range(config.n), len(weights)))
    attracting, hyperbolic = [], 0
    for indices in progress.over(every, len(every)):
        spectrum = theory.linearisation_spectrum(values, weights, indices)
        hyperbolic += theory.is_hyperbolic(spectrum)
        if theory.signature(spectrum).positive == 0:
            attracting.append(indices)
    return {
        "frames": len(every),
        "hyperbolic": int(hyperbolic),
        "attracting": len(attracting),
        "attracting_is_leading": attracting == [tuple(range(len(weights)))],
    }


def claims(records: Records) -> list[Claim]:
    """24 negative eigenvalues, the residual, the signatures."""
    table, triples = records["spectrum"], records["triples"][0]
    negative = sum(r["eigenvalue"] < 0 for r in table)
    worst = max(r["residual"] for r in table)
    inside = len(rows(records, "spectrum", kind="internal"))
    return [
        judged(
            "Eigenvalues at the maximiser, all negative",
            "24 (3 + 21)",
            f"{negative} of {len(table)} ({inside} + {len(table) - inside})",
            Verdict.HOLDS,
            when=negative == len(table) == 24 and inside == 3,
        ),
        judged(
            "Largest residual ‖DG[H] − γH‖_F",
            "2.8e-14",
            digits(worst, 2),
            Verdict.ORDER,
            "Rounding; the digits depend on the order of the products.",
            when=same_order(worst, "2.8e-14"),
        ),
        judged(
            "Signature at the other critical frames",
            "not tested",
            f"{triples['hyperbolic']} of {triples['frames']} hyperbolic, "
            f"{triples['attracting']} attracting",
            Verdict.ADDED,
            "Only the ordered leading frame attracts.",
            when=triples["attracting_is_leading"] and triples["hyperbolic"] == triples["frames"],
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """The 24 eigenvalues, and their residuals."""
    left, right = figure.subplots(1, 2)
    for kind, color in (("internal", "C1"), ("external", "C0")):
        values = np.sort(column(rows(records, "spectrum", kind=kind), "eigenvalue"))
        left.plot(values, "o", ms=5, color=color, label=f"{kind} ({values.size})")
        residual = column(rows(records, "spectrum", kind=kind), "residual")
        right.plot(np.maximum(residual, 1e-17), "o", ms=5, color=color, label=kind)
    left.axhline(0, color="C6", ls="--")
    left.set(xlabel="index", ylabel="eigenvalue", title="(a) all negative: it attracts")
    right.axhline(2.8e-14, color="C6", ls="--", label="printed largest")
    right.set(
        yscale="log", ylim=(1e-16, 1e-12), xlabel="index", ylabel="residual", title="(b) residuals"
    )
    for axes in (left, right):
        axes.legend(fontsize="x-small")
