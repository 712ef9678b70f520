"""A million noisy, drifting observations under a swinging background, one method at a time."""

from __future__ import annotations

import ctypes
import gc
import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

import bracketflow as bf
from bracketflow import baselines as bl

HERE = Path(__file__).parent
N, K = 20, 5
CHUNK = 250  # observations drawn at a time
WARM = 10_000  # steps before the first window of errors, and the length of a window
DRIFT = 1e-4  # radians a step
NOISE = 0.5  # ‖E_t‖_F; the gaps of the signal are 1
SWING = {"float64": 1e9, "float32": 1e4}
DEFECT = {"float64": 1e-12, "float32": 1e-5}
GROWTH = 1e6  # bytes of resident memory
AGEING = 1.2  # late median error over early

RETRACTIONS = {
    "cayley": bf.cayley,
    "neumann": bf.neumann(4),
    "qr": bf.qr,
    "polar": bf.polar,
}
# name: (method, columns)
METHODS = {
    **{f"SO(n) {r}": (bf.DoubleBracketFlow(bf.Adaptive(), f), N) for r, f in RETRACTIONS.items()},
    **{
        f"Stiefel {r}": (bf.BrockettFlow((5, 4, 3, 2, 1), bf.Adaptive(), f), K)
        for r, f in RETRACTIONS.items()
    },
    "EigenTracker full": (bf.EigenTracker(), N),
    "EigenTracker k = 5": (bf.EigenTracker(K), K),
}
# The printed algorithms are not among them: that they lose orthonormality is what they show.
BASELINES = {
    "SubspaceIteration": (bl.SubspaceIteration(), K),
    "QROja": (bl.QROja(), K),
    "EuclideanGradient": (bl.EuclideanGradient(1e-4), K),
    "ProjectedOja": (bl.ProjectedOja(), K),
    "AdaOja": (bl.AdaOja(), K),
    "CCIPCA": (bl.CCIPCA(), K),
    "PASTd": (bl.PASTd(), K),
    "ExponentialAverage": (bl.ExponentialAverage(), N),
    "OrthogonalIteration": (bl.OrthogonalIteration(), N),
}


@dataclass(frozen=True)
class Figures:
    """What one march showed."""

    defect: float
    """Largest ‖XᵀX − I‖_F of all steps."""
    crooked: float
    """Largest |H − Hᵀ| of all steps."""
    miscounted: int
    """Steps and products that the state's counters are off by."""
    growth: float
    """Bytes of resident memory gained since the warm-up."""
    early: float
    """Median error of steps 10⁴ … 2·10⁴."""
    late: float
    """Median error of the last 10⁴ steps."""

    @property
    def ageing(self) -> float:
        return self.late / self.early


def resident() -> int:
    """Bytes of memory that this process holds, without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Scene:
    """C_t = U_t Λ U_tᵀ + E_t + σ_t² I; U_t turns in n/2 fixed planes, Λ = diag(n … 1)."""

    def __init__(self, dtype, seed=0):
        self.dtype = np.dtype(dtype)
        self.rng = np.random.default_rng(seed)
        self.frame = bf.random_basis(N, rng=self.rng)
        self.planes = self.rng.permutation(N).reshape(-1, 2)

    def truth(self, t):
        """U_t for an array of steps t."""
        angle = DRIFT * np.asarray(t, float)[..., None]
        turn = np.zeros((*np.shape(t), N, N))
        i, j = self.planes.T
        turn[..., i, i] = turn[..., j, j] = np.cos(angle)
        turn[..., i, j] = np.sin(angle)
        turn[..., j, i] = -np.sin(angle)
        return self.frame @ turn

    def observations(self, t):
        """C_t for an array of steps t."""
        truth = self.truth(t)
        noise = self.rng.standard_normal((len(t), N, N))
        noise += noise.mT
        signal = (truth * np.arange(N, 0, -1.0)) @ truth.mT + noise * (NOISE / (2**0.5 * N))
        signal = 0.5 * (signal + signal.mT)
        level = SWING[self.dtype.name] * np.sin(np.asarray(t) / 50) ** 2
        return (signal + level[:, None, None] * np.eye(N)).astype(self.dtype)


def march(method, columns, dtype="float64", steps=1_000_000, warm=WARM, seed=0):
    """Drive `method` for `steps` observations and measure it at every one of them."""
    scene = Scene(dtype, seed)
    start = bf.random_basis(N, columns, rng=seed + 1, like=np.empty(0, dtype))
    state = method.init(start)
    bases = np.empty((CHUNK, N, columns), dtype)
    grams = np.empty((CHUNK, columns, columns), dtype)
    defect = crooked = 0.0
    products, early, late, settled = 0, [], [], 0
    for begin in range(0, steps, CHUNK):
        t = np.arange(begin, begin + CHUNK)
        for i, observation in enumerate(scene.observations(t)):
            state, probe = method.step(observation, state)
            bases[i], grams[i] = state.basis, probe.rayleigh
            products += probe.matvecs
        gap = bases.mT.astype(float) @ bases.astype(float) - np.eye(columns)
        defect = max(defect, np.linalg.norm(gap, axis=(-2, -1)).max())
        crooked = max(crooked, np.abs(grams - grams.mT).max())
        window = early if warm <= begin < 2 * warm else late if begin >= steps - warm else None
        if window is not None:
            window.extend(bf.basis_error(bases, scene.truth(t)[..., :columns]))
        if begin + CHUNK == 2 * warm:
            settled = resident()
    return Figures(
        float(defect),
        float(crooked),
        abs(int(state.steps) - steps) + abs(int(state.matvecs) - products),
        resident() - settled,
        float(median(early)),
        float(median(late)),
    )
