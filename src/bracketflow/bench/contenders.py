"""Who takes part: the tracker, the paper's flows, and every rival at its best setting."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import Any

import numpy as np

from bracketflow.baselines import (
    CCIPCA,
    AdaOja,
    Eigsh,
    ExponentialAverage,
    Lobpcg,
    OrthogonalIteration,
    PASTd,
    ProjectedOja,
    QROja,
)
from bracketflow.bench.scenes import Scene
from bracketflow.core import Array, Probe, State
from bracketflow.flows import Adaptive, BrockettFlow, DoubleBracketFlow
from bracketflow.geometry import initial_state
from bracketflow.oracles import as_operator
from bracketflow.tracker import EigenTracker

OURS = "EigenTracker"
RATES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
STEPS = (0.003, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9, 1.5)


@dataclass(frozen=True)
class RowPCA:
    """scikit-learn's IncrementalPCA, fed with the rows of each observation."""

    def init(self, basis: Array, rng: Any = None) -> State:
        """A fresh estimator in the state's memory."""
        from sklearn.decomposition import IncrementalPCA

        return initial_state(basis, IncrementalPCA(n_components=basis.shape[-1]))

    def step_rows(self, rows: np.ndarray, state: State) -> State:
        """One `partial_fit`; a batch counts as k products, as for the others."""
        estimator = state.memory.partial_fit(rows)
        basis = np.ascontiguousarray(estimator.components_.T)
        k = basis.shape[1]
        return state._replace(basis=basis, steps=state.steps + 1, matvecs=state.matvecs + k)


@dataclass(frozen=True)
class Repeated:
    """A solver that multiplies many times with each observation, as if it stood still."""

    solver: Any

    def init(self, basis: Array, rng: Any = None) -> State:
        """The solver's own."""
        state: State = self.solver.init(basis, rng)
        return state

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """The solver on an operator that allows it."""
        stepped: tuple[State, Probe] = self.solver.step(as_operator(operator, static=True), state)
        return stepped


Variants = dict[str, Any]


def contenders(scene: Scene, k: int) -> dict[str, Variants]:
    """Name → its settings; the best one is chosen afterwards, in its favour."""
    if scene.full:
        return {
            OURS: {"": EigenTracker()},
            "DoubleBracketFlow, Adaptive": {"": DoubleBracketFlow(Adaptive())},
            "DoubleBracketFlow, Certified": {"": DoubleBracketFlow()},
            "exponential average + eigh": {f"rate {r}": ExponentialAverage(r) for r in RATES},
            "orthogonal iteration + QR": {f"rate {r}": OrthogonalIteration(r) for r in RATES},
        }
    chosen: dict[str, Variants] = {
        OURS: {"": EigenTracker(k)},
        "BrockettFlow, N = I": {"": BrockettFlow()},
        "BrockettFlow, weighted": {"": BrockettFlow(tuple(range(k, 0, -1)))},
        "projected Oja + Ritz": {f"fraction {s}": ProjectedOja(s) for s in STEPS},
        "raw Oja": {f"numerator {s}": QROja(s) for s in STEPS},
        "AdaOja": {"": AdaOja()},
        "CCIPCA": {"": CCIPCA()},
        "PASTd": {"": PASTd()},
    }
    if scene.static:
        chosen["eigsh, cold"] = {"": Repeated(Eigsh(warm=False))}
        chosen["lobpcg, cold"] = {"": Repeated(Lobpcg(warm=False))}
        chosen["lobpcg, warm"] = {"": Repeated(Lobpcg())}
    if scene.rows:
        chosen["IncrementalPCA"] = {"": RowPCA()}
    return chosen


def versions() -> dict[str, str]:
    """Versions of the packages whose methods take part."""
    names = ("bracketflow", "numpy", "scipy", "scikit-learn")
    return {name: importlib.metadata.version(name) for name in names}
