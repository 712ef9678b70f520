"""Critical points of f on SO(n): minimum or saddle, and how one leaves a saddle."""

import numpy as np
from numpy.typing import NDArray

from .algebra import generator, lyapunov
from .hypotheses import Array, Real, count, non_negative, positive, require, separated


def is_critical(rotated: Array, tolerance: Real = 0.0) -> NDArray[np.bool_]:
    """M is critical iff Ω(M) = 0, i.e. (A_jj − A_ii)A_ij = 0 for all i ≠ j  [lem:critical].

    ``tolerance`` is absolute, in the units of A².
    """
    non_negative(tolerance=tolerance)
    return np.asarray(np.abs(generator(rotated)).max(axis=(-2, -1)) <= tolerance)


def degenerate_block(rotated: Array, tolerance: float = 0.0) -> tuple[int, int] | None:
    """None at a minimum, else i < j with A_ii = A_jj and |A_ij| largest  [lem:dichotomy].

    ``tolerance`` as in ``is_critical``; off-diagonal entries up to its root count as zero.
    """
    if not is_critical(rotated, tolerance):
        raise ValueError(f"rotated is not critical to within tolerance = {tolerance!r}: raise it")
    size = np.triu(np.abs(rotated), 1)
    i, j = np.unravel_index(np.argmax(size), size.shape)
    return None if size[i, j] <= tolerance**0.5 else (int(i), int(j))


def givens_direction(n: int, i: int, j: int) -> Array:
    """Ξ = E_ij − E_ji  [prop:givens]."""
    direction = np.zeros((n, n))
    direction[i, j], direction[j, i] = 1, -1
    return direction


def givens_entry(first: Real, second: Real, entry: Real, angle: Real) -> Real:
    """A_ij(t) = A_ij cos 2t + ½(A_ii − A_jj) sin 2t along Me^{tΞ}  [lem:directional_hessian].

    The appendix prints A_jj − A_ii; harmless there, since only the square is used.
    """
    return entry * np.cos(2 * angle) + (first - second) / 2 * np.sin(2 * angle)


def printed_givens_entry(first: Real, second: Real, entry: Real, angle: Real) -> Real:
    """A_ij cos 2t + ½(A_jj − A_ii) sin 2t as printed: that of −Ξ  [lem:directional_hessian]."""
    return givens_entry(second, first, entry, angle)


def givens_profile(level: Real, entry: Real, angle: Real) -> Real:
    """f(Me^{tΞ}) = f(M) − b² sin²2t where A_ii = A_jj, b = A_ij  [prop:givens].

    One Givens step of t = π/4 lowers f by exactly b²  [rem:escape].
    """
    non_negative(level=level, angle=abs(angle))
    fits = entry**2 <= (1 + 1e-12) * level  # f sums the squares of all entries; 1e-12 is rounding
    require(fits, "entry", entry, f"its square cannot exceed the level {level!r}")
    return level - entry**2 * np.sin(2 * angle) ** 2


def givens_curvature(rotated: Array, i: int, j: int) -> Array:
    """d²/dt² f(Me^{tΞ}) at 0 = 2((A_jj − A_ii)² − 4A_ij²)  [lem:directional_hessian]."""
    difference = rotated[..., j, j] - rotated[..., i, i]
    return np.asarray(2 * (difference**2 - 4 * rotated[..., i, j] ** 2))


def saddle_curvature(entry: Real) -> Real:
    """λ_min(Hess f) ≤ −4b² at a degenerate block  [prop:givens, lem:negative_curvature]."""
    return -4 * entry**2


def largest_block_bound(rotated: Array) -> Array:
    """max_{i<j} A_ij² ≥ 2f/(n(n−1)): no saddle without a sizeable block  [lem:explicit_gamma]."""
    n = rotated.shape[-1]
    return np.asarray(2 * lyapunov(rotated) / (n * (n - 1)))


def curvature_floor(gap: Real, separation: Real, n: Real) -> Real:
    """λ_min(Hess f) ≤ −(g−δ)²/(n(n−1)) at saddles with f ≥ (g−δ)²/8  [lem:explicit_gamma]."""
    separated(gap, separation)
    count(2, n=n)
    return (gap - separation) ** 2 / (n * (n - 1))


def block_floor(gap: Real, separation: Real, n: Real) -> Real:
    """b₀ = (g−δ)/(2√(n(n−1))) ≤ the largest block entry of such a saddle  [lem:nc_radius]."""
    return curvature_floor(gap, separation, n) ** 0.5 / 2


def preservation_radius(gap: Real, separation: Real, n: Real, norm: Real) -> Real:
    """r_nc = b₀/(16‖C_e‖₂): within it the Givens curvature stays ≤ −6b₀²  [lem:nc_radius]."""
    positive(norm=norm)
    return block_floor(gap, separation, n) / (16 * norm)


def escape_curvature(gap: Real, separation: Real, n: Real) -> Real:
    """γ_loc = (15/32)(g−δ)²/(n(n−1))  [prop:escape_time_stat]."""
    return 15 / 32 * curvature_floor(gap, separation, n)


def escape_radius(gap: float, separation: float, n: int, norm: float, constant: float) -> float:
    """r⋆ = min{r_nc, γ_loc/(16L)}  [prop:escape_time_stat]."""
    positive(constant=constant)
    curvature = escape_curvature(gap, separation, n)
    return float(min(preservation_radius(gap, separation, n, norm), curvature / (16 * constant)))


def escape_steps(step: Real, curvature: Real, radius: Real, start: Real) -> Real:
    """log(r⋆/w)/log(1 + ηγ/2) steps lead from |α| = w to r⋆  [prop:escape_time_stat].

    The paper prints 2/(ηγ) log(r⋆/w), which is too few since log(1+x) < x
    (``printed_escape_steps``). With its own log(1+x) ≥ x/2 one gets 4/(ηγ) log(r⋆/w), which holds.
    """
    _escape_hypotheses(step, curvature, radius, start)
    return np.log(radius / start) / np.log1p(step * curvature / 2)


def printed_escape_steps(step: Real, curvature: Real, radius: Real, start: Real) -> Real:
    """2/(ηγ) log(r⋆/w) as printed; too few, see ``escape_steps``  [prop:escape_time_stat]."""
    _escape_hypotheses(step, curvature, radius, start)
    return 2 / (step * curvature) * np.log(radius / start)


def _escape_hypotheses(step: Real, curvature: Real, radius: Real, start: Real) -> None:
    positive(step=step, curvature=curvature, radius=radius, start=start)
    require(start <= radius, "start", start, f"is already beyond the radius {radius!r}")
