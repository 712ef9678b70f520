"""A4: how long a step may be before f stops descending."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.experiments import problems
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Verdict,
    at_full_size,
    column,
    judged,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import RiseCounter, StepPerMember, walk
from bracketflow.flows import DoubleBracketFlow
from bracketflow.oracles import as_operator

TITLE = "The longest step that descends"
CLAIMED = (
    "f descends at every step for all ten step sizes up to 2.5/L_C; the bound is tight to about "
    "3 % in a supremum sense; 1/L_C is the maximal stable step."
)
PROTOCOL = (
    "n = 15, K = 2000, five seeds, step sizes from 0.1/L_C to 2.5/L_C; steps at which f grows are "
    "counted. We go on to 13/L_C."
)
CONCLUSION = (
    "L_C is safe, and far from tight: descent goes on up to the edge 2/(λ_max − λ_min)², which is "
    "what the Hessian at the minimiser gives, more than ten times the paper's “maximal stable "
    "step”. The 3 % belongs to another constant."
)
PAPER_RATIOS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0, 1.2, 1.5, 2.0, 2.5)


@dataclass(frozen=True)
class Config:
    """Sizes of A4."""

    n: int = 15
    seeds: int = 5
    steps: int = 2000
    ratios: tuple[float, ...] = (*PAPER_RATIOS, 5.0, 8.0, 11.0, 11.5, 12.0, 13.0)

    @classmethod
    def full(cls) -> Config:
        """As in the paper, and beyond the edge."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """Fewer steps."""
        return replace(cls(), steps=400)


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Steps at which f grew, for every ratio, all ratios and seeds side by side."""
    seeds = range(problems.PAPER_SEED, problems.PAPER_SEED + config.seeds)
    matrices, starts, _ = problems.pairs(seeds, config.n)
    constant = problems.printed_constant(config.n)
    etas = np.repeat(np.asarray(config.ratios) / constant, config.seeds)
    count = len(config.ratios)
    stack, bases = np.tile(matrices, (count, 1, 1)), np.tile(starts, (count, 1, 1))
    counter = RiseCounter(len(stack))
    look = counter.rule(np.arange(len(stack)), target=1e-300)
    flow = DoubleBracketFlow(step=StepPerMember(etas))
    stream = itertools.repeat(as_operator(stack))
    for _, state, probe in walk(flow, stream, bases, config.steps, progress):
        look(state, probe)
    rises = counter.rises.reshape(count, config.seeds).sum(axis=1)
    final = np.asarray(probe.lyapunov).reshape(count, config.seeds).max(axis=1)
    edge = float(theory.local_step_edge(problems.norm(config.n)))
    return {
        "sizes": sizes(config),
        "ratios": [
            {"ratio": float(r), "rises": int(k), "final_f": float(f)}
            for r, k, f in zip(config.ratios, rises, final, strict=True)
        ],
        "edge": [{"edge": edge, "edge_times_L_C": edge * constant}],
    }


def claims(records: Records) -> list[Claim]:
    """No rises, and how far from tight the bound is."""
    full = at_full_size(records, Config)
    table = records["ratios"]
    paper = [r for r in table if r["ratio"] in PAPER_RATIOS]
    beyond = {r["ratio"]: r["rises"] for r in table if r["ratio"] > 2.5}
    edge = records["edge"][0]["edge_times_L_C"]
    good = max(r["ratio"] for r in table if r["rises"] == 0)
    total = sum(r["rises"] for r in paper)
    return [
        judged(
            "Steps at which f grows, ten ratios up to 2.5",
            "0",
            str(total),
            Verdict.HOLDS,
            when=total == 0,
            tested=True,
        ),
        judged(
            "L_C is tight to about 3 %",
            "~3 %",
            f"loose by {edge:.1f}: no rise up to {good:g}/L_C, "
            + ", ".join(f"{k} rises at {r:g}" for r, k in beyond.items() if k),
            Verdict.WRONG,
            f"The measured edge is 2/(λ_max − λ_min)² = {edge:.2f}/L_C.",
            when=good >= 11,
            tested=full,
        ),
        judged(
            "1/L_C is the maximal stable step",
            "maximal",
            f"f still descends at {good:g}/L_C",
            Verdict.WRONG,
            "It is a sufficient step, not the largest.",
            when=good > 2,
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """Rises of f against the step size."""
    axes = figure.subplots()
    table = records["ratios"]
    axes.plot(column(table, "ratio"), column(table, "rises"), "o-", label="steps at which f grows")
    edge = records["edge"][0]["edge_times_L_C"]
    axes.axvline(1.0, color="C2", ls="--", label="paper: 1/L_C")
    axes.axvline(edge, color="C3", ls="--", label="edge 2/(λ_max − λ_min)²")
    axes.axvspan(0.1, 2.5, alpha=0.12, color="C2", label="tested in the paper")
    axes.set(xscale="log", yscale="symlog", ylim=(-0.2, None), xlabel="η L_C", ylabel="rises of f")
    axes.legend(fontsize="x-small", loc="upper left")
