"""What the theory promises for a given matrix and noise level, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.certificates import stationary_deviation
from bracketflow.observation import check_symmetric
from bracketflow.theory.hypotheses import Check

LARGEST = 4000  # beyond it a dense spectrum takes minutes and gigabytes


@dataclass(frozen=True)
class Guarantees:
    """The paper's guarantees for the full basis of one symmetric matrix under noise."""

    n: int
    eigenvalues: list[float]
    """Descending."""
    spread: float
    gap: float
    """Smallest distance between neighbours."""
    gap_at: int
    """The smallest gap lies between λ_i and λ_{i+1}, counted from 1."""
    centred_norm: float
    """‖C_e‖₂, C_e the trace-free part."""
    noise: float
    """Given bound on ‖E_e‖_F."""
    steps: dict[str, float]
    """Admissible step sizes η: printed 1/L_C, sharp 1/(12r²), and the edge of local stability."""
    expected: dict[str, float]
    """Steps from a Haar start to f < target with each of them; inf without a gap."""
    target: float
    ball: dict[str, float]
    """√f in the long run: the paper's bound, and what independent noise gives on average."""
    checks: dict[str, Check]
    limit: str
    """In plain words, what limits the answer."""

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings, for JSON."""
        plain = asdict(self)
        plain["checks"] = {
            name: {"holds": check.holds, "reason": check.reason}
            for name, check in self.checks.items()
        }
        return plain


def guarantees(matrix: Any, noise: float = 0.0, *, target: float = 1e-6) -> Guarantees:
    """Spectrum, steps, noise ball and conditions of the paper for a dense symmetric `matrix`.

    Parameters
    ----------
    noise : float
        Bound on the Frobenius norm of the trace-free noise in one observation.
    target : float
        The level of f at which a run counts as finished.
    """
    dense = _dense(matrix)
    if not (np.isfinite(noise) and noise >= 0):
        raise ValueError(f"noise must be a finite number and not negative, got {noise!r}")
    if not (np.isfinite(target) and target > 0):
        raise ValueError(f"target must be a positive finite number, got {target!r}")
    values = np.linalg.eigvalsh(dense)[::-1]
    n, spread = len(values), float(np.ptp(values))
    distances = -np.diff(values)
    gap = float(distances.min()) if n > 1 else np.inf
    # Neighbours closer than the rounding of the matrix itself are one eigenvalue twice.
    gap = 0.0 if gap <= 4 * np.finfo(float).eps * n * np.abs(values).max() else gap
    norm = float(np.abs(values - values.mean()).max())
    steps = _steps(n, spread, norm)
    return Guarantees(
        n=n,
        eigenvalues=values.tolist(),
        spread=spread,
        gap=gap,
        gap_at=int(distances.argmin()) + 1 if n > 1 else 0,
        centred_norm=norm,
        noise=float(noise),
        steps=steps,
        expected={name: _expected_steps(values, gap, eta, target) for name, eta in steps.items()},
        target=float(target),
        ball=_balls(values, gap, norm, noise, steps),
        checks=_checks(gap, norm, noise),
        limit=_limit(spread, gap, norm, noise),
    )


def _dense(matrix: Any) -> np.ndarray:
    n = matrix.shape[0] if getattr(matrix, "ndim", 0) == 2 else 0
    if n == 0 or matrix.shape != (n, n):
        shape = tuple(getattr(matrix, "shape", ()))
        raise ValueError(f"matrix must be square, n × n, got shape {shape}")
    if n > LARGEST:
        raise ValueError(
            f"matrix has n = {n}, too large for a dense spectrum (at most {LARGEST}): run "
            "bf.decompose(A, k) and read bf.certify(result.state, result.probe)"
        )
    dense = np.asarray(matrix.toarray() if hasattr(matrix, "toarray") else matrix)
    if np.iscomplexobj(dense) or dense.dtype.kind not in "fiub":
        raise TypeError(f"matrix must be real, got dtype {dense.dtype}")
    dense = dense.astype(float)
    if not np.isfinite(dense).all():
        raise ValueError("matrix holds NaN or Inf: remove them first")
    check_symmetric(dense)
    return np.asarray(0.5 * (dense + dense.T))


def _steps(n: int, spread: float, norm: float) -> dict[str, float]:
    if spread == 0:
        return {}
    return {
        "printed": float(theory.admissible_step(theory.descent_constant(norm, n))),
        "sharp": float(theory.admissible_step(theory.sharp_descent_constant(spread / 2))),
        "edge": float(theory.local_step_edge(spread / 2)),
    }


def _expected_steps(values: np.ndarray, gap: float, eta: float, target: float) -> float:
    """ln(f_0/target)/(2ηg²): the last mode decays by 1 − ηg² a step; f_0 is the mean Haar f."""
    if gap == 0:
        return float("inf")
    moments = theory.haar_moments(values)
    centred = values - values.mean()
    start = 0.5 * float(np.sum(centred**2) - len(values) * moments.variance)
    return max(0.0, float(np.log(start / target) / (2 * eta * gap**2)))


def _balls(
    values: np.ndarray, gap: float, norm: float, noise: float, steps: dict[str, float]
) -> dict[str, float]:
    """The paper's worst case at δ = g/2, and the mean for independent noise at the sharp step."""
    if gap == 0 or not steps:
        return {"bound": float("inf"), "independent": float("inf")}
    return {
        "bound": float(theory.noise_ball_from_noise(norm, gap / 2, noise)),
        "independent": float(stationary_deviation(values, steps["sharp"], noise)),
    }


def _checks(gap: float, norm: float, noise: float) -> dict[str, Check]:
    """Whether the hypotheses of the local theorems hold at δ = g/2."""
    if not 0 < gap < np.inf:
        reason = "an eigenvalue is repeated: its eigenvectors are not determined"
        return {"vectors determined": Check(gap > 0, reason if gap == 0 else "only one eigenvalue")}
    separation = gap / 2
    threshold = float(theory.entry_threshold(gap, separation))
    push = float(theory.input_bound(norm, noise))
    return {
        "vectors determined": Check(True, f"smallest gap {gap:.3g} > 0"),
        "no escape from the domain": theory.non_escape(0.0, gap, separation, norm, push),
        "noise below the invariance threshold": _below(
            push, float(theory.invariance_threshold(gap, separation, norm))
        ),
        "perturbation theory": Check(
            2 * noise < gap, f"2·noise = {2 * noise:.3g} against the smallest gap {gap:.3g}"
        ),
        "domain": Check(True, f"local theory holds where sqrt(f) <= {threshold:.3g}"),
    }


def _below(push: float, threshold: float) -> Check:
    return Check(push <= threshold, f"input up to {push:.3g} against {threshold:.3g}")


def _limit(spread: float, gap: float, norm: float, noise: float) -> str:
    if spread == 0:
        return "The matrix is a multiple of the identity: every basis is an eigenbasis."
    if gap == 0:
        return (
            "A repeated eigenvalue: its eigenspace can be found, its single vectors are arbitrary."
        )
    if 2 * noise >= gap:
        return (
            "The noise in one observation is larger than half the smallest gap: single "
            "observations mix neighbouring vectors, only averaging can separate them."
        )
    if gap < 1e-2 * spread:
        return (
            f"The smallest gap is {gap / spread:.1e} of the spread: the number of steps grows like "
            "(spread/gap)², so gradient flows are slow here."
        )
    if noise and theory.noise_ball_from_noise(norm, gap / 2, noise) > theory.entry_threshold(
        gap, gap / 2
    ):
        return (
            "The paper's worst-case noise ball is larger than the domain it holds in, so its bound "
            "guarantees nothing here; for independent noise the mean error above is the realistic "
            "figure."
        )
    return "Nothing: gap, noise and step sizes are within what the theory covers."
