"""A7: when does the iteration enter the separated domain?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.core import Probe, State, Status
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
    row,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import NEVER, steps_until
from bracketflow.flows import DoubleBracketFlow
from bracketflow.geometry import random_basis
from bracketflow.stopping import Stop

TITLE = "Entering the separated domain"
CLAIMED = (
    "From Haar starts every run enters N_δ, after about 6630 steps at every tested noise fraction, "
    "which confirms the finite-time entry theorem."
)
PROTOCOL = (
    "n = 15, η = 0.5/L_C, 20 starts (seeds 43 … 62) on one matrix (seed 42), δ = 0.5. The text "
    "speaks of noise fractions of Ū_inv and of ε ≈ 0.001; both are shown. Entry is the first step "
    "with δ(M) ≥ 0.5, which reproduces the number; the theorem's own hitting time asks for "
    "f ≤ ½f_thr. We add 300 fresh starts."
)
CONCLUSION = (
    "All runs enter. The printed time belongs to ε = 0.001, more than twelve times what Ū_inv "
    "allows, and to a weaker notion of entry than the theorem's; over fresh starts the entry time "
    "varies so much that a mean over 20 says little. The theorem is not confirmed by this: it also "
    "asks for noise below Ū_trans, a number with hundreds of zeros after the point."
)


@dataclass(frozen=True)
class Config:
    """Sizes of A7."""

    n: int = 15
    starts: int = 20
    limit: int = 20_000
    fractions: tuple[float, ...] = (0.1, 0.5, 0.9, 1.0, 1.5, 2.0)
    text_noise: float = 0.001
    fresh: int = 300
    separation: float = 0.5

    @classmethod
    def full(cls) -> Config:
        """As in the paper, and 300 fresh starts."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """A smaller matrix."""
        return replace(cls(), n=8, starts=6, fractions=(0.1, 2.0), fresh=20)


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """First steps with δ(M) ≥ δ, and of f ≤ f_thr and ½f_thr at the text's noise."""
    matrix = problems.signal(config.n, np.random.default_rng(problems.PAPER_SEED))
    generators = [np.random.default_rng(problems.PAPER_SEED + 1 + s) for s in range(config.starts)]
    starts = np.stack([random_basis(config.n, rng=g) for g in generators])
    more = random_basis(config.n, rng=rng, ensemble=(config.fresh,))
    norm = problems.norm(config.n)
    threshold = float(theory.invariance_threshold(1.0, config.separation, norm))
    scenes = {f"Ū/Ū_inv = {f:g}": f * threshold / (4 * norm) for f in config.fractions}
    scenes["ε of the text"] = config.text_noise
    blocks = len(scenes)
    sizes_of = np.concatenate([np.repeat(list(scenes.values()), config.starts), 0 * more[:, 0, 0]])
    bases = np.concatenate([np.tile(starts, (blocks, 1, 1)), more])
    watch = _Entry(config, matrix, len(bases), wait_for=(blocks - 1) * config.starts)
    units = problems.noise_stream(generators, config.n)
    steps_until(
        DoubleBracketFlow(step=0.5 / problems.printed_constant(config.n)),
        lambda members: _observed(matrix, units, members, sizes_of[members], config.starts),
        bases,
        watch.rule,
        limit=config.limit,
        progress=progress,
    )
    table = [
        _summary(name, epsilon, watch, slice(i * config.starts, (i + 1) * config.starts))
        for i, (name, epsilon) in enumerate(scenes.items())
    ]
    table.append(
        _summary("fresh starts, no noise", 0.0, watch, slice(blocks * config.starts, None))
    )
    return {
        "sizes": sizes(config),
        "entry": table,
        "constants": [_constants(config, threshold, table)],
        "fresh": [{"entry": int(t)} for t in watch.hits["separated"][blocks * config.starts :]],
    }


def _observed(
    matrix: Any, units: Iterator[Any], members: Any, sizes_of: Any, starts: int
) -> Iterator[Any]:
    """C + εE, the same unit noise for all scenes of one start."""
    for unit in units:
        yield matrix + sizes_of[:, None, None] * unit[members % starts]


class _Entry:
    """Notes the first steps with δ(M) ≥ δ, f ≤ f_thr and f ≤ ½f_thr.

    A member is done with the first of them, unless its index is in [wait_for, wait_for + starts):
    those run until the last.
    """

    def __init__(self, config: Config, matrix: Any, members: int, wait_for: int):
        self.matrix, self.separation = matrix, config.separation
        self.f_threshold = float(theory.entry_threshold(1.0, config.separation)) ** 2
        names = ("separated", "below", "half")
        self.hits = {name: np.full(members, NEVER, dtype=np.int64) for name in names}
        index = np.arange(members)
        self.patient = (index >= wait_for) & (index < wait_for + config.starts)

    def rule(self, members: Any) -> Stop:
        """The stop rule for these members."""

        def look(state: State, probe: Probe) -> Any:
            rotated = theory.rotated_operator(self.matrix, state.basis)
            f = theory.lyapunov(rotated)
            seen = {
                "separated": theory.in_domain(rotated, self.separation),
                "below": f <= self.f_threshold,
                "half": f <= self.f_threshold / 2,
            }
            for name, hit in seen.items():
                new = hit & (self.hits[name][members] == NEVER)
                self.hits[name][members[new]] = state.steps[new]
            first, last = self.hits["separated"][members], self.hits["half"][members]
            wanted = np.where(self.patient[members], last, first)
            answer = np.full(len(members), None, dtype=object)
            answer[wanted != NEVER] = Status.CONVERGED
            return answer

        return look


def _summary(name: str, epsilon: float, watch: _Entry, members: slice) -> Row:
    hits = watch.hits["separated"][members]
    later = {key: watch.hits[key][members] for key in ("below", "half")}
    return {
        "scene": name,
        "epsilon": float(epsilon),
        "runs": int(hits.size),
        "entered": int(np.sum(hits != NEVER)),
        "mean": float(hits.mean()),
        "std": float(hits.std()),
        **{key: float(t.mean()) if np.all(t != NEVER) else None for key, t in later.items()},
    }


def _constants(config: Config, threshold: float, table: list[Row]) -> Row:
    hitting = next(r["half"] for r in table if r["scene"] == "ε of the text")
    norm = problems.norm(config.n)
    log_transfer = theory.log10_transfer_threshold(
        round(hitting),
        1.0,
        config.separation,
        0.5 / problems.printed_constant(config.n),
        norm,
        config.n,
    )
    return {
        "U_inv": threshold,
        "log10_U_trans": float(log_transfer),
        "text_over_allowed": config.text_noise / (threshold / (4 * norm)),
    }


def claims(records: Records) -> list[Claim]:
    """The entry time, and what the theorem would need."""
    full = at_full_size(records, Config)
    table, constants = records["entry"], records["constants"][0]
    text = row(records, "entry", scene="ε of the text")
    fresh = row(records, "entry", scene="fresh starts, no noise")
    fractions = [r for r in table if r["scene"].startswith("Ū")]
    means = column(fractions, "mean")
    return [
        judged(
            "Runs that enter, all noise fractions",
            "100 %",
            f"{sum(r['entered'] for r in table)} of {sum(r['runs'] for r in table)}",
            Verdict.HOLDS,
            when=all(r["entered"] == r["runs"] for r in table),
        ),
        judged(
            "Mean entry time",
            "6630",
            f"{text['mean']:.1f} at ε = 0.001; {means.min():.1f} … {means.max():.1f} at the stated "
            "fractions",
            Verdict.UNSTATED,
            f"ε = 0.001 is {constants['text_over_allowed']:.1f} times what Ū_inv allows, and entry "
            "means the first δ(M) ≥ 0.5.",
            when=matches(text["mean"], "6630"),
            tested=full,
        ),
        judged(
            "The theorem's own hitting times",
            "not given",
            f"f ≤ f_thr after {text['below']:.0f}, f ≤ ½f_thr after {text['half']:.0f}",
            Verdict.ADDED,
            "δ(M) ≥ 0.5 at one step does not keep the run inside; these do.",
            tested=full,
        ),
        judged(
            "How sure is the mean of 20 starts?",
            "not given",
            f"{fresh['mean']:.0f} ± {fresh['std']:.0f} over {fresh['runs']} fresh starts",
            Verdict.ADDED,
            "The printed value is a fluctuation of a widely spread time.",
            tested=full,
        ),
        judged(
            "Confirms the entry theorem",
            "confirmed",
            f"the theorem also needs Ū ≤ Ū_trans, log₁₀ Ū_trans = {constants['log10_U_trans']:.0f}",
            Verdict.VACUOUS,
            "No noise of any run is that small, so nothing here tests it.",
            when=constants["log10_U_trans"] < -300,
            tested=full,
        ),
    ]


def plot(records: Records, figure: Any) -> None:
    """Entry times of fresh starts, with the printed mean; entry against noise."""
    left, right = figure.subplots(1, 2)
    times = column(records["fresh"], "entry")
    left.hist(times, bins=30, color="C0")
    left.axvline(times.mean(), color="C2", label=f"mean {times.mean():.0f}")
    text = row(records, "entry", scene="ε of the text")
    left.axvline(text["mean"], color="C6", ls="--", label="mean of the protocol's starts")
    left.set(xlabel="first step with δ(M) ≥ 0.5", ylabel="runs", title="(a) fresh starts")
    left.legend(fontsize="x-small")
    noisy = [r for r in records["entry"] if r["epsilon"] > 0]
    noise, mean, std = (column(noisy, name) for name in ("epsilon", "mean", "std"))
    right.errorbar(noise, mean, std, fmt="o", capsize=3)
    for key, label in (("below", "f ≤ f_thr"), ("half", "f ≤ ½ f_thr (theorem)")):
        right.plot(text["epsilon"], text[key], "s", label=label)
    right.set(xscale="log", ylim=(0, None), xlabel="noise ε", ylabel="step")
    right.set_title("(b) entry, mean ± std over starts")
    right.legend(fontsize="x-small", loc="lower left")
