"""The paper's diagnostics, redone: one module each, run and reported by `suite`.

Each module has TITLE, CLAIMED, PROTOCOL and CONCLUSION for the page, a frozen `Config` with
`full()` and `quick()`, `compute(config, rng, progress) → records`, `claims(records)` and
`plot(records, figure)`. Compute and plot meet in the stored records only.
"""

from types import ModuleType

from bracketflow.experiments import (
    a1,
    a2,
    a2_stiefel,
    a3,
    a4,
    a5,
    a6,
    a7,
    a7_guard,
    b1,
    b2,
    b3,
    b4,
    b5,
    b6,
    b7,
    b8,
    b9,
    counterexamples,
    neumann,
    retractions,
    rivals,
    rounding,
    sanity,
    step_rules,
)

EXPERIMENTS: dict[str, ModuleType] = {
    "A1": a1,
    "A2": a2,
    "A2-stiefel": a2_stiefel,
    "A3": a3,
    "A4": a4,
    "A5": a5,
    "A6": a6,
    "A7": a7,
    "A7-guard": a7_guard,
    "B1": b1,
    "B2": b2,
    "B3": b3,
    "B4": b4,
    "B5": b5,
    "B6": b6,
    "B7": b7,
    "B8": b8,
    "B9": b9,
    "sanity": sanity,
    "retractions": retractions,
    "counterexamples": counterexamples,
    "neumann": neumann,
    "rounding": rounding,
    "steps": step_rules,
    "rivals": rivals,
}
