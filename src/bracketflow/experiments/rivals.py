"""Added: what else finds the leading k vectors, counted in products with C."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bracketflow.baselines import (
    CCIPCA,
    AdaOja,
    Eigsh,
    Lobpcg,
    PASTd,
    ProjectedOja,
    QROja,
    SubspaceIteration,
)
from bracketflow.driver import Method
from bracketflow.experiments import problems
from bracketflow.experiments.claims import (
    Claim,
    Records,
    Row,
    Verdict,
    column,
    judged,
    rows,
    sizes,
)
from bracketflow.experiments.progress import SILENT, Progress
from bracketflow.experiments.runs import NEVER, steps_until
from bracketflow.flows import BrockettFlow
from bracketflow.geometry import orthonormalise, random_basis, subspace_error
from bracketflow.oracles import as_operator
from bracketflow.stopping import aligned_below

TITLE = "Rivals for the leading k"
CLAIMED = (
    "Online methods such as Oja's depend on λ₂/λ₁, which a background drives to one: they freeze. "
    "The commutator flow does not. Shift-free rivals are not compared."
)
PROTOCOL = (
    "St(3, 20), eigenvalues 20 … 1, fixed C + σ²I, three starts: products with C until the "
    "subspace is right to 0.001. Streaming methods make one block product a step. `eigsh` and "
    "`lobpcg` may use one matrix many times; warm means started from a basis that is wrong by 0.01."
)
CONCLUSION = (
    "The raw methods do freeze. But moving along the residual (I − XXᵀ)CX is blind to σ² as well "
    "and needs no commutator: projected Oja with a Rayleigh–Ritz rotation takes as many products "
    "as the unweighted flow and fewer than the weighted one. On a matrix that stands still, Krylov "
    "methods need far fewer, and hardly notice the background."
)
BLIND = ("Brockett flow, weighted", "Brockett flow, N = I", "Projected Oja + Ritz")
RAW = ("Subspace iteration", "QR-Oja, 0.1/‖C‖₂", "AdaOja", "CCIPCA", "PASTd")
SOLVERS = ("eigsh, cold", "eigsh, warm", "lobpcg, cold", "lobpcg, warm")


@dataclass(frozen=True)
class Config:
    """Sizes of the comparison."""

    n: int = 20
    k: int = 3
    starts: int = 3
    backgrounds: tuple[float, ...] = (0.0, 100.0, 1e4)
    tolerance: float = 1e-3
    limit: int = 8000

    @classmethod
    def full(cls) -> Config:
        """At most 8000 steps."""
        return cls()

    @classmethod
    def quick(cls) -> Config:
        """At most 600 steps."""
        return replace(cls(), starts=2, backgrounds=(0.0, 1e4), limit=600)


def streaming_methods(k: int) -> dict[str, Method]:
    """One block product a step: three that are blind to σ², five that are not."""
    return {
        "Brockett flow, weighted": BrockettFlow(weights=range(k, 0, -1)),
        "Brockett flow, N = I": BrockettFlow(),
        "Projected Oja + Ritz": ProjectedOja(),
        "Subspace iteration": SubspaceIteration(),
        "QR-Oja, 0.1/‖C‖₂": QROja(),
        "AdaOja": AdaOja(),
        "CCIPCA": CCIPCA(),
        "PASTd": PASTd(),
    }


def compute(config: Config, rng: np.random.Generator, progress: Progress = SILENT) -> Records:
    """Products until the subspace is found, for every method, background and start."""
    frame = random_basis(config.n, rng=np.random.default_rng(problems.PAPER_SEED))
    signal, truth = problems.from_frame(frame), frame[:, : config.k]
    starts = random_basis(config.n, config.k, rng=rng, ensemble=(config.starts,))
    chosen = streaming_methods(config.k)
    *parts, last = progress.parts(*[1] * (len(chosen) + 1))
    found = []
    for (name, method), part in zip(chosen.items(), parts, strict=True):
        found += _streaming(config, name, method, signal, truth, starts, part)
    near = orthonormalise(truth + 1e-2 * starts)
    for background in last.over(config.backgrounds, len(config.backgrounds)):
        observed = signal + background * np.eye(config.n)
        found += _solvers(config, observed, truth, starts, near, background)
    return {"sizes": sizes(config), "products": found}


def _streaming(
    config: Config,
    name: str,
    method: Method,
    signal: Any,
    truth: Any,
    starts: Any,
    progress: Progress,
) -> list[Row]:
    stack = problems.with_backgrounds(signal, np.repeat(config.backgrounds, config.starts).tolist())
    bases = np.tile(starts, (len(config.backgrounds), 1, 1))
    steps = steps_until(
        method,
        lambda members: itertools.repeat(as_operator(stack[members])),
        bases,
        lambda members: aligned_below(truth, config.tolerance),
        limit=config.limit,
        progress=progress,
    )
    by_level = steps.reshape(len(config.backgrounds), config.starts)
    return [
        {
            "method": name,
            "sigma2": float(background),
            "products": None if np.any(taken == NEVER) else float(config.k * taken.mean()),
        }
        for background, taken in zip(config.backgrounds, by_level, strict=True)
    ]


def _solvers(
    config: Config, observed: Any, truth: Any, starts: Any, near: Any, background: float
) -> list[Row]:
    """One call of each solver, cold from random starts and warm from nearby ones."""
    operator = as_operator(observed, static=True)
    makers = {
        "eigsh": lambda warm: Eigsh(tol=1e-6, warm=warm),
        # lobpcg measures absolute residuals; ‖CX − XΛ‖ ≤ gap·tolerance makes the angle that small.
        "lobpcg": lambda warm: Lobpcg(400, tol=config.tolerance, warm=warm),
    }
    found = []
    for (solver, make), temperature in itertools.product(makers.items(), ("cold", "warm")):
        method = make(temperature == "warm")
        spent = []
        for seed, start in enumerate(starts if temperature == "cold" else near):
            state, _ = method.step(operator, method.init(start, rng=seed))
            arrived = subspace_error(state.basis, truth) <= config.tolerance
            spent.append(float(state.matvecs) if arrived else np.nan)
        mean = float(np.mean(spent))
        found.append(
            {
                "method": f"{solver}, {temperature}",
                "sigma2": float(background),
                "products": mean if np.isfinite(mean) else None,
            }
        )
    return found


def claims(records: Records) -> list[Claim]:
    """Who freezes, who does not, and what it costs."""
    table = {name: rows(records, "products", method=name) for name in (*BLIND, *RAW, *SOLVERS)}
    arrive = [name for name in RAW if table[name][0]["products"] is not None]
    frozen = [name for name in arrive if table[name][-1]["products"] is None]
    flat = [name for name in BLIND if len({r["products"] for r in table[name]}) == 1]
    return [
        judged(
            "A background freezes Oja-like methods",
            "freezes",
            "; ".join(f"{name}: {_listed(table[name])}" for name in RAW),
            Verdict.HOLDS,
            f"Products at σ² = {_levels(records)}; – means not within the limit.",
            when=bool(frozen) and len(frozen) == len(arrive),
        ),
        judged(
            "Blind without a commutator",
            "not compared",
            "; ".join(f"{name}: {_listed(table[name])}" for name in BLIND),
            Verdict.ADDED,
            "Projected Oja moves along the residual alone and is as blind, at no higher cost.",
            when=len(flat) == len(BLIND),
        ),
        Claim(
            "Krylov solvers on a fixed matrix",
            "not compared",
            "; ".join(f"{name}: {_listed(table[name])}" for name in SOLVERS),
            Verdict.ADDED,
            "They may use one observation many times, which a stream does not allow.",
        ),
    ]


def _levels(records: Records) -> str:
    return ", ".join(f"{s:g}" for s in records["sizes"][0]["backgrounds"])


def _listed(table: list[Row]) -> str:
    return ", ".join("–" if r["products"] is None else f"{r['products']:.0f}" for r in table)


def plot(records: Records, figure: Any) -> None:
    """Products of every method at every background."""
    axes = figure.subplots()
    names = (*BLIND, *RAW, *SOLVERS)
    config = records["sizes"][0]
    width = 0.8 / len(config["backgrounds"])
    ceiling = config["k"] * config["limit"]
    for index, background in enumerate(config["backgrounds"]):
        table = rows(records, "products", sigma2=background)
        by_name = {r["method"]: r for r in table}
        height = column([by_name[name] for name in names], "products")
        place = np.arange(len(names)) + width * (index - 1)
        axes.bar(place, np.nan_to_num(height), width, label=f"σ² = {background:g}")
        lost = np.isnan(height)
        axes.plot(place[lost], np.full(lost.sum(), 1.3 * ceiling), "x", color=f"C{index}", ms=4)
    axes.set_xticks(range(len(names)), names, rotation=25, ha="right", fontsize="small")
    axes.set(yscale="log", ylabel="products with C", title="× = not within the limit")
    axes.legend(fontsize="x-small")
