"""What the theory promises for a given matrix and noise level, in numbers and in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bracketflow import theory
from bracketflow.certificates import stationary_deviation
from bracketflow.core import whole_number
from bracketflow.observation import check_symmetric
from bracketflow.theory.hypotheses import Check

LARGEST = 4000  # beyond it a dense spectrum takes minutes and gigabytes


@dataclass(frozen=True)
class Entry:
    """What `DoubleBracketFlow(guard=True)` promises from every start, at the separation gap/2."""

    steps: float
    """Until it is in the domain and stays there; inf without a gap, or above the limit."""
    noise_limit: float
    """‖E_e‖_F below which that is proved."""


@dataclass(frozen=True)
class Leading:
    """What is proved of `BrockettFlow(weights, Certified())` on the leading k vectors.

    h = J_max − J is what is missing of the maximum of tr(XᵀCXN), y = √h.
    """

    k: int
    weights: list[float]
    step: float
    """η = 1/L, L = 2ν₁(λ_max − λ_min): every step up to it raises J."""
    rate: float
    """μ: without noise h falls by the factor 1 − ημ(1 − h/κ) a step at least."""
    reach: float
    """κ, below which that holds; 0 where the weights ask for a gap that is not there."""
    noise_limit: float
    """‖E_e‖_F up to which a ball is proved."""
    ball: float
    """y in the long run, at most; inf above the limit."""
    basin: float
    """y from which runs are sure to end in the ball; 0 above the limit."""
    independent: float
    """Root mean square y that independent noise gives, to first order."""


@dataclass(frozen=True)
class Guarantees:
    """What theory promises for the eigenvectors of one symmetric matrix under noise."""

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
    """√f in the long run: the paper's bound, our sharper one, and what independent noise gives."""
    entry: Entry
    leading: Leading | None
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


def guarantees(
    matrix: Any,
    noise: float = 0.0,
    *,
    target: float = 1e-6,
    k: int | None = None,
    weights: Any = None,
) -> Guarantees:
    """Spectrum, steps, noise ball and conditions of the theory for a dense symmetric `matrix`.

    Parameters
    ----------
    noise : float
        Bound on the Frobenius norm of the trace-free noise in one observation.
    target : float
        The level of f at which a run counts as finished.
    k : int, optional
        Also what is proved of the leading k vectors, k < n.
    weights : sequence of k numbers, optional
        Of `BrockettFlow`: positive, decreasing; None is N = I, where only the subspace matters.
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
    entry = _entry(values, gap, noise)
    leading = _leading(values, noise, k, weights)
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
        entry=entry,
        leading=leading,
        checks={**_checks(gap, norm, noise, entry), **_leading_checks(noise, leading)},
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
    """Worst cases at δ = g/2, the paper's and ours; the mean for independent noise, sharp step."""
    if gap == 0 or not steps:
        return dict.fromkeys(("bound", "sharp", "independent"), float("inf"))
    return {
        "bound": float(theory.noise_ball_from_noise(norm, gap / 2, noise)),
        "sharp": _sharp_ball(norm, gap, noise),
        "independent": float(stationary_deviation(values, steps["sharp"], noise)),
    }


def _sharp_ball(norm: float, gap: float, noise: float) -> float:
    return float(theory.sharp_noise_ball(gap / 2, theory.input_bound(norm, noise)))


def _entry(values: np.ndarray, gap: float, noise: float) -> Entry:
    """From the highest f there is, that of a flat diagonal."""
    if not 0 < gap < np.inf:
        return Entry(float("inf"), 0.0)
    n, level = len(values), 0.5 * float(np.sum((values - values.mean()) ** 2))
    limit = float(theory.guard_noise_limit(n, gap))
    steps = float(theory.guard_entry_steps(level, gap, n, noise)) if noise < limit else float("inf")
    return Entry(steps, limit)


def _leading(values: np.ndarray, noise: float, k: Any, weights: Any) -> Leading | None:
    if k is None:
        if weights is not None:
            raise ValueError(f"weights = {weights!r} belong to leading vectors: give k, too")
        return None
    n = len(values)
    k = whole_number(
        k, "k", at_least=1, at_most=n - 1, limit=f"n = {n}: leave k out for the full basis"
    )
    nu = np.ones(k) if weights is None else np.asarray(weights, dtype=float)
    if nu.shape != (k,) or not (np.all(nu > 0) and np.all(np.diff(nu) <= 0) and nu[0] < np.inf):
        raise ValueError(f"weights must be {k} positive numbers that do not rise, got {weights!r}")
    spread, infinite = float(np.ptp(values)), float("inf")
    drops = -np.diff(np.append(nu, 0.0))
    # Neighbours closer than rounding are one eigenvalue twice, as above.
    least = 4 * np.finfo(float).eps * n * np.abs(values).max()
    if np.any(-np.diff(values)[:k][drops > 0] <= least):
        step = 1 / float(theory.brockett_constant(nu[0], spread)) if spread else infinite
        return Leading(k, nu.tolist(), step, 0.0, 0.0, 0.0, infinite, 0.0, infinite)
    constant = float(theory.brockett_constant(nu[0], spread))
    rate, reach = theory.brockett_basin(values, nu)
    push = theory.brockett_input_bound(nu[0], noise)
    limit = float(theory.brockett_input_limit(rate, reach))
    radius, basin = (
        theory.brockett_noise_ball(rate, reach, push) if push <= limit else (infinite, 0.0)
    )
    return Leading(
        k=k,
        weights=nu.tolist(),
        step=1 / constant,
        rate=rate,
        reach=reach,
        noise_limit=limit / float(theory.brockett_input_bound(nu[0], 1.0)),
        ball=float(radius),
        basin=float(basin),
        independent=theory.brockett_stationary_deviation(values, nu, 1 / constant, noise),
    )


def _checks(gap: float, norm: float, noise: float, entry: Entry) -> dict[str, Check]:
    """Whether the hypotheses of the local theorems hold at δ = g/2."""
    if not 0 < gap < np.inf:
        reason = "an eigenvalue is repeated: its eigenvectors are not determined"
        return {"vectors determined": Check(gap > 0, reason if gap == 0 else "only one eigenvalue")}
    threshold, ball = float(theory.entry_threshold(gap, gap / 2)), _sharp_ball(norm, gap, noise)
    return {
        "vectors determined": Check(True, f"smallest gap {gap:.3g} > 0"),
        "no escape from the domain": Check(
            ball <= threshold, f"noise ball {ball:.3g} against its edge, √f = {threshold:.3g}"
        ),
        "entry from every start": Check(
            noise < entry.noise_limit,
            f"noise {noise:.3g} against {entry.noise_limit:.3g}, with guard=True",
        ),
        "perturbation theory": Check(
            2 * noise < gap, f"2·noise = {2 * noise:.3g} against the smallest gap {gap:.3g}"
        ),
        "domain": Check(True, f"local theory holds where sqrt(f) <= {threshold:.3g}"),
    }


def _leading_checks(noise: float, leading: Leading | None) -> dict[str, Check]:
    if leading is None:
        return {}
    name = f"noise ball of the leading {leading.k}"
    if leading.reach == 0:
        return {name: Check(False, "an eigenvalue is repeated where the weights ask for a gap")}
    words = f"noise {noise:.3g} against {leading.noise_limit:.3g}"
    return {name: Check(noise <= leading.noise_limit, words)}


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
    if noise and _sharp_ball(norm, gap, noise) > theory.entry_threshold(gap, gap / 2):
        return (
            "The worst-case noise ball is larger than the domain it holds in, so that it "
            "guarantees nothing here; for independent noise the mean error above is the realistic "
            "figure."
        )
    return "Nothing: gap, noise and step sizes are within what the theory covers."
