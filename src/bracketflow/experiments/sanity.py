"""The table of sanity checks, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.experiments import b1, b3, b4, b5, b7, b8
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Row,
    Verdict,
    at_full_size,
    digits,
    judged,
    matches,
    row,
    same_order,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress

TITLE = "Sanity table"
CLAIMED = (
    "Six identities are verified to machine precision “with n = 10–15 and 500–5000 random trials”."
)
PROTOCOL = (
    "Each row comes from one of the experiments B1 … B8 and is computed anew here from that "
    "experiment's code."
)
CONCLUSION = (
    "All six rows hold, the last only with the true polar factor. The caption does not describe "
    "them: half of the rows have another dimension and far fewer trials."
)


@dataclass(frozen=True)
class Config:
    """Whether the rows are computed at full size."""

    size: str = "full"

    @classmethod
    def full(cls) -> Config:
        """All rows as in the paper."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """Rows at quick size."""
        return cls(size="quick")


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """The six rows, with the dimension and the number of trials behind each."""
    modules = {"B1": b1, "B3": b3, "B4": b4, "B5": b5, "B7": b7, "B8": b8}
    found: dict[str, Records] = {}
    for (name, module), part in zip(modules.items(), progress.parts(1, 1, 1, 1, 6, 1), strict=True):
        chosen: Any = getattr(module.Config, config.size)()
        found[name] = module.compute(chosen, rng, part)
    return {"sizes": sizes(config), "rows": _rows(found)}


def _rows(found: dict[str, Records]) -> list[Row]:
    quadratic = found["B4"]["summary"][0]
    radius = row(found["B3"], "margins", scene="Haar")
    shift = row(found["B7"], "differences", variant="true polar", sigma2=1e4)
    spectrum = found["B8"]["spectrum"]
    results: dict[str, tuple[str, float, int, int]] = {
        "Givens profile": ("B5", max(r["error"] for r in found["B5"]["trials"]), 8, 10),
        "Input bound, largest ratio": (
            "B1",
            max(r["max_ratio"] for r in found["B1"]["ratios"]),
            15,
            found["B1"]["sizes"][0]["samples"],
        ),
        "Domain radius violations": ("B3", radius["violations"], 15, radius["samples"]),
        "Quadratic growth violations": (
            "B4",
            quadratic["lower_violations"] + quadratic["upper_violations"],
            10,
            quadratic["samples"],
        ),
        "Stiefel spectrum residual": (
            "B8",
            max(r["residual"] for r in spectrum),
            10,
            len(spectrum),
        ),
        "St(5, 50) difference at σ² = 10⁴": ("B7", shift["difference_J"], 50, 1),
    }
    return [
        {"check": check, "source": source, "value": float(value), "n": n, "trials": trials}
        for check, (source, value, n, trials) in results.items()
    ]


def claims(records: Records) -> list[Claim]:
    """The six rows and the caption."""
    full = at_full_size(records, Config)
    table = {r["check"]: r for r in records["rows"]}
    value = {check: float(r["value"]) for check, r in table.items()}
    ratio = value["Input bound, largest ratio"]
    found = [
        _small("Givens profile", "7.1e-15", value, True),
        judged(
            "Input bound, largest ratio",
            "≤ 0.154",
            f"{ratio:.4f}",
            Verdict.HOLDS,
            when=matches(ratio, "0.154"),
        ),
        _none("Domain radius violations", value),
        _none("Quadratic growth violations", value),
        _small("Stiefel spectrum residual", "2.8e-14", value, True),
        _small("St(5, 50) difference at σ² = 10⁴", "2.3e-12", value, full, polar=True),
    ]
    odd = [r for r in table.values() if not (10 <= r["n"] <= 15 and 500 <= r["trials"] <= 5000)]
    found.append(
        judged(
            "Caption: n = 10–15, 500–5000 random trials",
            "all rows",
            "; ".join(f"{r['check']}: n = {r['n']}, {r['trials']} trials" for r in odd),
            Verdict.WRONG,
            "Three of the six rows are not of that kind.",
            when=len(odd) == 3,
        )
    )
    return found


def _small(
    check: str, printed: str, value: dict[str, float], tested: bool, polar: bool = False
) -> Claim:
    ours = value[check]
    exact = Verdict.HOLDS if matches(ours, printed) else Verdict.ORDER
    return judged(
        check,
        printed,
        digits(ours, 2),
        Verdict.UNSTATED if polar else exact,
        "With the true polar factor; the printed retraction fails (B7)." if polar else "Rounding.",
        when=same_order(ours, printed),
        tested=tested,
    )


def _none(check: str, value: dict[str, float]) -> Claim:
    return judged(check, "0", f"{value[check]:.0f}", Verdict.HOLDS, when=value[check] == 0)


PRINTED = {
    "Givens profile": 7.1e-15,
    "Input bound, largest ratio": 0.154,
    "Stiefel spectrum residual": 2.8e-14,
    "St(5, 50) difference at σ² = 10⁴": 2.3e-12,
}


def plot(records: Records, figure: Any) -> None:
    """Printed and reproduced values of the four rows that are numbers."""
    axes = figure.subplots()
    table = [r for r in records["rows"] if r["check"] in PRINTED]
    place = np.arange(len(table))
    axes.plot([r["value"] for r in table], place, "o", ms=8, label="ours")
    axes.plot([PRINTED[r["check"]] for r in table], place, "x", ms=9, mew=2, label="printed")
    axes.set_yticks(place, [r["check"] for r in table])
    axes.invert_yaxis()
    axes.set(xscale="log", ylim=(len(table) - 0.5, -0.5), xlabel="value")
    axes.legend(fontsize="x-small")
