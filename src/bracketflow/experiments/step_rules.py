"""Added: step sizes that see the background, and step sizes that do not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.core import Probe, diagonal, frobenius_squared
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
    rows,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import (
    NEVER,
    RiseCounter,
    StepPerMember,
    steps_until,
)
from bracketflow.flows import DoubleBracketFlow
from bracketflow.oracles import as_operator

TITLE = "Step-size rules"
CLAIMED = (
    "One may take η from ‖C_k‖₂ of the raw observation, since ‖C_k‖₂ ≥ ‖C_e‖₂: this “does not "
    "degrade convergence”."
)
PROTOCOL = (
    "n = 10, five seeds, f < 1e-6. Two rules that divide by ‖C_k‖₂² and eight that read only the "
    "centred Rayleigh matrix, the latter at σ² = 0, 10³, 10⁶ and 10⁹."
)
CONCLUSION = (
    "Dividing by ‖C_k‖₂² makes the trajectory blind to σ² and the clock not: iterations grow like "
    "σ⁴. Every rule that reads the centred matrix gives the same count at every background, and "
    "the range of its eigenvalues gives by far the longest steps that still descend."
)


@dataclass(frozen=True)
class Config:
    """Sizes of the step-size experiment."""

    n: int = 10
    seeds: int = 5
    target: float = 1e-6
    raw_backgrounds: tuple[float, ...] = (0, 1, 5, 10)
    backgrounds: tuple[float, ...] = (0, 1e3, 1e6, 1e9)
    limit: int = 90_000

    @classmethod
    def full(cls) -> Config:
        """As in the paper's A1."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """A small matrix."""
        return replace(
            cls(), n=4, seeds=2, raw_backgrounds=(0, 5), backgrounds=(0, 1e6), limit=20_000
        )


@dataclass(frozen=True)
class Rule:
    """A step rule that reads the centred probe: η = numerator/size(probe)."""

    numerator: float
    size_of: Callable[[Probe], Any]

    def start(self) -> None:
        """Nothing to remember."""

    def size(
        self, probe: Probe, steps: Any, memory: Any, top_weight: float | None
    ) -> tuple[Any, Any]:
        """η of each member."""
        return self.numerator / self.size_of(probe), memory


def _spectral(probe: Probe) -> Any:
    return np.abs(probe.ritz_values).max(axis=-1) ** 2


def _frobenius(probe: Probe) -> Any:
    return frobenius_squared(probe.rayleigh)


def _discs(probe: Probe) -> tuple[Any, Any]:
    """Lower and upper ends of the Gershgorin discs of H."""
    d = diagonal(probe.rayleigh)
    radius = np.abs(probe.rayleigh).sum(axis=-1) - np.abs(d)
    return (d - radius).min(axis=-1), (d + radius).max(axis=-1)


def _gershgorin(probe: Probe) -> Any:
    low, high = _discs(probe)
    return np.maximum(np.abs(low), np.abs(high)) ** 2


def _gershgorin_range(probe: Probe) -> Any:
    low, high = _discs(probe)
    return (high - low) ** 2


def _range(probe: Probe) -> Any:
    return probe.range**2


RULES = {
    "0.1/‖tf A‖₂²": Rule(0.1, _spectral),
    "0.1/‖tf A‖_F²": Rule(0.1, _frobenius),
    "0.1/Gershgorin²": Rule(0.1, _gershgorin),
    "1/(3 range²), certified": Rule(1 / 3, _range),
    "1/(2‖tf A‖_F²)": Rule(0.5, _frobenius),
    "1/Gershgorin range²": Rule(1.0, _gershgorin_range),
    "1/range²": Rule(1.0, _range),
    "1.8/range²": Rule(1.8, _range),
}


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Iterations with every rule at every background."""
    seeds = range(problems.PAPER_SEED, problems.PAPER_SEED + config.seeds)
    matrices, starts, _ = problems.pairs(seeds, config.n)
    raw, free = progress.parts(3, 1)
    found = _raw_rules(config, matrices, starts, raw)
    for (name, rule), part in zip(RULES.items(), free.parts(*[1] * len(RULES)), strict=True):
        stack = problems.with_backgrounds(matrices, config.backgrounds)
        flow = DoubleBracketFlow(step=rule)
        found += _count(config, name, flow, stack, starts, config.backgrounds, part)
    return {"sizes": sizes(config), "iterations": found, "slowdown": _slowdown(config)}


def _raw_rules(config: Config, matrices: Any, starts: Any, progress: Progress) -> list[Row]:
    """η = c/‖C_k‖₂², constant since C_k is; both c side by side."""
    numerators = {
        "1/(c_n‖C_k‖₂²)": problems.norm(config.n) ** 2 / problems.printed_constant(config.n),
        "0.1/‖C_k‖₂²": 0.1,
    }
    norms = config.n + np.asarray(config.raw_backgrounds, dtype=float)
    etas = [np.repeat(c / norms**2, config.seeds) for c in numerators.values()]
    stack = problems.with_backgrounds(matrices, config.raw_backgrounds)
    both = np.concatenate([stack, stack])
    flow = DoubleBracketFlow(step=StepPerMember(np.concatenate(etas)))
    labels = [(name, s) for name in numerators for s in config.raw_backgrounds]
    counted = _count(config, "", flow, both, starts, [s for _, s in labels], progress)
    return [{**r, "rule": name} for r, (name, _) in zip(counted, labels, strict=True)]


def _count(
    config: Config,
    name: str,
    flow: Any,
    stack: Any,
    starts: Any,
    levels: Any,
    progress: Progress,
) -> list[Row]:
    flat = stack.reshape(-1, config.n, config.n)
    bases = np.tile(starts, (len(stack), 1, 1))
    counter = RiseCounter(len(flat))
    steps = steps_until(
        flow,
        lambda members: _forever(as_operator(flat[members])),
        bases,
        lambda members: counter.rule(members, config.target),
        limit=config.limit,
        progress=progress,
    )
    found = []
    for index, background in enumerate(levels):
        mine = slice(index * config.seeds, (index + 1) * config.seeds)
        done = bool(np.all(steps[mine] != NEVER))
        found.append(
            {
                "rule": name,
                "sigma2": float(background),
                "mean": float(steps[mine].mean()) if done else None,
                "rises": int(counter.rises[mine].sum()),
            }
        )
    return found


def _forever(operator: Any) -> Any:
    while True:
        yield operator


def _slowdown(config: Config) -> list[Row]:
    """Predicted factor on the iterations where they would take too long to count."""
    return [
        {"sigma2": s, "factor": float(theory.raw_norm_slowdown(config.n + s, float(config.n)))}
        for s in (20.0, 1000.0)
    ]


def claims(records: Records) -> list[Claim]:
    """The remark about ‖C_k‖₂, and the rules that do not see σ²."""
    full = at_full_size(records, Config)
    printed = rows(records, "iterations", rule="1/(c_n‖C_k‖₂²)")
    counts = [f"{r['mean']:.0f}" if r["mean"] else "> limit" for r in printed]
    levels = ", ".join(f"{r['sigma2']:g}" for r in printed)
    predicted = ", ".join(
        f"{digits(printed[0]['mean'] * r['factor'], 2)} at {r['sigma2']:g}"
        for r in records["slowdown"]
    )
    free = [rows(records, "iterations", rule=name) for name in RULES]
    flat = all(len({r["mean"] for r in table}) == 1 for table in free)
    rises = sum(r["rises"] for table in free for r in table)
    return [
        judged(
            "η = 1/(c_n‖C_k‖₂²) does not degrade convergence",
            "no degradation",
            f"{', '.join(counts)} iterations at σ² = {levels}; predicted {predicted}",
            Verdict.WRONG,
            "The step shrinks like σ⁻⁴ and the count grows accordingly.",
            when=printed[0]["mean"] < 0.6 * next(r["mean"] for r in printed if r["sigma2"] == 5),
        ),
        judged(
            "Rules that read the centred matrix",
            "not in the paper",
            "; ".join(f"{name}: {t[0]['mean']:.0f}" for name, t in zip(RULES, free, strict=True)),
            Verdict.ADDED,
            ("The same count at every background" if flat else "The counts differ with σ²")
            + f"; {rises} rises of f.",
            tested=full,
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """Raw rules against σ², and the σ-free rules as bars."""
    left, right = figure.subplots(1, 2)
    for name in ("1/(c_n‖C_k‖₂²)", "0.1/‖C_k‖₂²"):
        table = rows(records, "iterations", rule=name)
        left.plot(column(table, "sigma2"), column(table, "mean"), "o-", ms=4, label=name)
    free = [rows(records, "iterations", rule=name)[0]["mean"] for name in RULES]
    left.axhline(min(free), color="C2", ls="--", label="1.8/range², every σ²")
    left.set(yscale="log", xlabel="σ²", ylabel="iterations", title="(a) rules that see σ²")
    left.legend(fontsize="x-small")
    right.barh(list(RULES), free, color="C0")
    right.invert_yaxis()
    right.set(xlabel="iterations, the same for σ² = 0 … 10⁹", title="(b) rules that do not")
