"""What one probe proves, proves on a condition, or estimates: enclosures, gaps, angles, floors.

Everything is computed from (State, Probe) at no extra product and, but for the rounding floor,
from shift-free quantities. The bounds allow for the rounding of the product itself, which goes
with ‖C‖: a full basis shows it, k < n columns do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Probe,
    State,
    Status,
    diagonal,
    epsilon,
    frobenius_squared,
    inner,
    to_host,
)
from bracketflow.sharding import over_rows, shards
from bracketflow.stopping import as_answer, choose, residual_status, tolerance

PROVED = "proved"
CONDITIONAL = "proved if nothing hides between"
ESTIMATED = "estimated"


@dataclass(frozen=True, eq=False)
class Certificate:
    """Bounds for the columns of a probed basis, ordered by descending eigenvalue.

    How far each kind of bound can be trusted, `intervals_are` and `angles_are` say. Arrays have the
    ensemble's shape, with a last axis of k where they speak of single vectors. A bound that could
    not be given is inf, never a number that looks valid.
    """

    eigenvalues: np.ndarray
    """Rayleigh quotients θ_i, background included."""
    lower: np.ndarray
    upper: np.ndarray
    """Each interval [lower, upper] holds an eigenvalue (Weinstein): θ_i ± r_i."""
    residuals: np.ndarray
    """r_i = ‖C x_i − θ_i x_i‖ as measured, plus the bound on its rounding."""
    gaps: np.ndarray
    """Lower bound on the distance from θ_i (for k = n, from its eigenvalue) to every other
    eigenvalue; 0 where none is known."""
    angles: np.ndarray
    """Bound on sin ∠(x_i, u_i): r_i/gap_i (Davis–Kahan); for k = n, where H is the whole operator,
    the angle to its eigenvector plus rounding/gap_i."""
    subspace: np.ndarray
    """‖sin Θ‖_F ≤ ‖R‖_F/gap between the span of the basis and that of its eigenvectors."""
    distance: np.ndarray
    """Bound on `basis_error` to the true eigenvectors, from all angles."""
    precision: np.ndarray
    """rounding/gap_i: no angle below it can be promised from these products."""
    status: Any
    unseen: np.ndarray
    """Eigenvalues beyond the tracked ones are taken to lie below this; −inf when there are none."""
    assumption: str
    """The same in words."""
    intervals_are: str
    """Of `lower`, `upper` and `residuals`: "proved" where ‖C‖ is known, for the rounding goes with
    it (a full basis, or `norm` given); "estimated" where ‖C‖ is taken from the products made."""
    angles_are: str
    """Of `gaps`, `angles`, `subspace`, `distance` and `precision`: "proved" for a full basis or
    where `unseen` is given; "proved if nothing hides between" the tracked eigenvalues and those
    taken to lie below `unseen`; and "estimated" where the intervals are no more than that."""

    @property
    def converged(self) -> Any:
        """Whether the status is CONVERGED; for an ensemble a boolean array."""
        if isinstance(self.status, Status):
            return self.status is Status.CONVERGED
        return np.asarray(self.status == Status.CONVERGED, dtype=bool)


class _Evidence(NamedTuple):
    """What a certificate rests on, with the background taken out."""

    quotients: np.ndarray  # θ_i
    residuals: np.ndarray  # r_i, as measured
    ritz: np.ndarray  # k numbers, each within `slack` of an eigenvalue of its own
    slack: np.ndarray
    outside: np.ndarray  # ‖C X − X H‖_F
    background: np.ndarray
    rounding: np.ndarray
    complete: bool  # k = n: there is no other eigenvalue
    measured: bool  # whether `rounding` rests on a known ‖C‖
    margin: np.ndarray  # the distance assumed to the unseen when k = 1
    sines: np.ndarray | None = None  # of column i against the eigenvectors of H, when complete


def certify(
    state: State,
    probe: Probe,
    *,
    tol: float | None = None,
    unseen: Any = None,
    norm: Any = None,
) -> Certificate:
    """What `probe` proves about the basis it was made on.

    For k = n everything is proved. For k < n `unseen` and `norm` are what products with the basis
    cannot tell: without them the certificate assumes the one, estimates the other, and says so.

    Parameters
    ----------
    tol : float, optional
        CONVERGED needs max r_i ≤ tol · spread and every angle at most √tol. Default: √eps of the
        dtype, 1.5e-8 in float64 and 3.5e-4 in float32.
    unseen : float or array of the ensemble's shape, optional
        An upper bound, background included, on all eigenvalues beyond the k tracked ones. Without
        it they are assumed to lie below the lowest tracked one by at least the smallest distance
        between tracked ones (for k = 1, by the largest residual seen so far). Not used for k = n,
        where everything is seen.
    norm : float or array of the ensemble's shape, optional
        An upper bound on ‖C‖₂, background included (‖C‖_F of an array, say): products are rounded
        to eps of it. Without it ‖C‖ is estimated from the largest product of the run, so that
        a basis which has seen nothing but small eigenvalues does not know it.

    Examples
    --------
    >>> import numpy as np
    >>> import bracketflow as bf
    >>> A = np.diag([5.0, 4.0, 2.0, 1.0])
    >>> result = bf.decompose(A, k=2, rng=0)
    >>> bf.certify(result.state, result.probe).angles_are
    'estimated'
    >>> known = bf.certify(result.state, result.probe, norm=np.linalg.norm(A))
    >>> known.intervals_are, known.angles_are
    ('proved', 'proved if nothing hides between')
    """
    tol = tolerance(epsilon(probe.basis) ** 0.5 if tol is None else tol)
    evidence = _Evidence(
        quotients=to_host(diagonal(probe.rayleigh)),
        residuals=to_host(probe.residuals),
        ritz=to_host(probe.ritz_values),
        slack=to_host(probe.residual_norm),
        outside=np.sqrt(0.0 if probe.is_square else to_host(probe.outside)),
        background=to_host(probe.background),
        rounding=rounding_bound(state, probe) if norm is None else _rounding_of_norm(probe, norm),
        complete=probe.is_square,
        measured=probe.is_square or norm is not None,
        margin=to_host(state.seen),
        sines=_sines_to_eigenvectors(to_host(probe.rayleigh)) if probe.is_square else None,
    )
    return _conclude(evidence, residual_status(state, probe, probe.residuals, tol), tol, unseen)


def certify_record(
    record: Mapping[str, Any], *, tol: float = 1e-8, unseen: Any = None
) -> Certificate:
    """What one stored record of a `Recorder` proves: as `certify`, from quotients and residuals.

    Without H the tracked eigenvalues are known to √(Σ r_i²) only, so its gaps are a little smaller.
    """
    tol = tolerance(tol)
    try:
        background = np.asarray(record["background"], dtype=float)
        residuals = np.asarray(record["residuals"], dtype=float)
        quotients = np.asarray(record["eigenvalues"], dtype=float) - background[..., None]
        rounding = np.asarray(record["rounding"], dtype=float)
        spread, n = np.asarray(record["spread"], dtype=float), int(record["n"])
    except KeyError as missing:
        raise ValueError(
            f"record has no {missing}: it must come from a Recorder with its standard measures"
        ) from None
    except (TypeError, OverflowError) as error:
        raise ValueError(f"record holds something else than numbers: {error}") from None
    _check_record(residuals, quotients, (background, rounding, spread), n)
    total = np.sqrt(np.sum(residuals**2, axis=-1))
    evidence = _Evidence(
        quotients=quotients,
        residuals=residuals,
        ritz=quotients,
        slack=total,
        outside=total,
        background=background,
        rounding=rounding,
        complete=n == quotients.shape[-1],
        measured=n == quotients.shape[-1],
        margin=spread,
    )
    worst = residuals.max(axis=-1)
    floored = choose(worst <= rounding, Status.PRECISION_FLOOR)
    return _conclude(
        evidence, choose(worst <= tol * spread, Status.CONVERGED, floored), tol, unseen
    )


def _check_record(
    residuals: np.ndarray, quotients: np.ndarray, scalars: tuple[np.ndarray, ...], n: int
) -> None:
    """Raise unless the entries of a record are finite and belong together."""
    shape = residuals.shape
    fits = bool(shape) and quotients.shape == shape and 1 <= shape[-1] <= n
    if not fits or any(scalar.shape != shape[:-1] for scalar in scalars):
        raise ValueError(
            f"record does not fit together: {residuals.shape} residuals, {quotients.shape} "
            f"eigenvalues, n = {n}"
        )
    if not all(np.isfinite(part).all() for part in (residuals, quotients, *scalars)):
        raise ValueError("record holds numbers that are not finite: nothing is proved by it")


def rounding_bound(state: State, probe: Probe) -> np.ndarray:
    """Bound on what rounding does to residuals and quotients: 2·eps·√n·‖C‖.

    ‖C‖ ≤ |s| + √2‖H‖_F for k = n. For k < n it is estimated by |s| + √2‖H‖_F + ‖R‖_F, or by |s| and
    the largest such extent of the run: columns at the low end of the spectrum no longer see it,
    but the random ones that they started from did.
    """
    extent = to_host(probe.extent)
    if not probe.is_square:
        extent = np.maximum(extent, 2 * to_host(state.seen))  # renewed when it has doubled
    return _rounding(probe, np.abs(to_host(probe.background)) + extent)


def _rounding(probe: Probe, norm: np.ndarray) -> np.ndarray:
    """2·eps·√n·‖C‖: C + σ²I and products with it are rounded to eps; sums of n terms add √n."""
    return np.asarray(2 * epsilon(probe.basis) * probe.n**0.5 * norm)


def _rounding_of_norm(probe: Probe, norm: Any) -> np.ndarray:
    """The same for a given bound on ‖C‖₂, which no Rayleigh quotient may exceed."""
    bound = np.asarray(norm, dtype=float)
    quotients = to_host(diagonal(probe.rayleigh)) + to_host(probe.background)[..., None]
    largest = np.abs(quotients).max(axis=-1)
    if not np.all(np.isfinite(bound) & (bound * (1 + epsilon(probe.basis) ** 0.5) >= largest)):
        raise ValueError(
            f"norm must be an upper bound on ‖C‖₂, background included, got {norm!r}: the basis "
            f"has a Rayleigh quotient of size {np.max(largest):g}"
        )
    return _rounding(probe, bound)


def _conclude(evidence: _Evidence, answer: Any, tol: float, unseen: Any) -> Certificate:
    order = np.argsort(-evidence.quotients, axis=-1, kind="stable")
    quotients = np.take_along_axis(evidence.quotients, order, axis=-1)
    residuals = np.take_along_axis(evidence.residuals, order, axis=-1)
    residuals = residuals + evidence.rounding[..., None]
    level, assumption = _unseen_level(evidence, unseen)
    angles_are = PROVED if evidence.complete or unseen is not None else CONDITIONAL
    gaps = _gaps(evidence, quotients, level)
    floor = _sine_bound(np.broadcast_to(evidence.rounding[..., None], gaps.shape), gaps)
    angles = _sine_bound(residuals, gaps)
    if evidence.sines is not None:
        angles = _sine_bound(evidence.sines + floor, np.ones_like(gaps))
    shift = evidence.background[..., None]
    return Certificate(
        eigenvalues=quotients + shift,
        lower=quotients - residuals + shift,
        upper=quotients + residuals + shift,
        residuals=residuals,
        gaps=gaps,
        angles=angles,
        subspace=_subspace_bound(evidence, level),
        distance=np.sqrt(np.sum(_chord(angles) ** 2, axis=-1)),
        precision=floor,
        status=_status(answer, angles, tol),
        unseen=level + evidence.background,
        assumption=assumption,
        intervals_are=PROVED if evidence.measured else ESTIMATED,
        angles_are=angles_are if evidence.measured else ESTIMATED,
    )


def _sines_to_eigenvectors(rayleigh: np.ndarray) -> np.ndarray:
    """sin ∠(e_i, v_i) for the eigenvectors v_i of H, both in descending order."""
    vectors = np.linalg.eigh(rayleigh)[1][..., ::-1]
    order = np.argsort(-diagonal(rayleigh), axis=-1, kind="stable")
    components = np.take_along_axis(vectors, order[..., :, None], axis=-2)
    own = np.eye(rayleigh.shape[-1], dtype=bool)
    return np.asarray(np.linalg.norm(np.where(own, 0.0, components), axis=-1))


def _unseen_level(evidence: _Evidence, unseen: Any) -> tuple[np.ndarray, str]:
    """Assumed upper bound on untracked eigenvalues, and in words."""
    if evidence.complete:
        nothing = np.full(evidence.background.shape, -np.inf)
        return nothing, "none: the basis is complete, every eigenvalue is seen"
    if unseen is not None:
        words = f"no untracked eigenvalue exceeds {np.max(unseen):g}, as given"
        return np.asarray(unseen - evidence.background), words
    ritz = np.sort(evidence.ritz, axis=-1)
    if ritz.shape[-1] == 1:
        margin, words = evidence.margin, "the largest residual seen so far"
    else:
        margin = np.diff(ritz, axis=-1).min(axis=-1)
        words = "the smallest distance between tracked ones"
    return ritz[..., 0] - margin, (
        f"untracked eigenvalues lie below the lowest tracked one by at least {words}; products "
        "with the basis cannot tell whether a larger one was missed"
    )


def _gaps(evidence: _Evidence, quotients: np.ndarray, level: np.ndarray) -> np.ndarray:
    """min |θ_i − λ| over the other eigenvalues: tracked ones near Ritz values, others unseen."""
    ritz = -np.sort(-evidence.ritz, axis=-1)
    slack = (evidence.slack + evidence.rounding)[..., None]
    centres = ritz if evidence.sines is not None else quotients
    distances = np.abs(centres[..., :, None] - ritz[..., None, :])
    own = np.eye(ritz.shape[-1], dtype=bool)
    gaps = np.where(own, np.inf, distances).min(axis=-1) - slack
    gaps = np.minimum(gaps, centres - level[..., None])
    # Kahan's theorem places the k largest eigenvalues only when they clear the unseen ones.
    clear = ritz[..., -1:] - slack > level[..., None]
    return np.asarray(np.where(clear & (gaps > 0), gaps, 0.0))


def _subspace_bound(evidence: _Evidence, level: np.ndarray) -> np.ndarray:
    lowest, k = evidence.ritz.min(axis=-1), evidence.ritz.shape[-1]
    if evidence.complete:
        return np.zeros_like(lowest)
    gap = np.where(lowest - evidence.slack - evidence.rounding > level, lowest - level, 0.0)
    return _sine_bound(evidence.outside + k**0.5 * evidence.rounding, gap)


def _sine_bound(numerator: np.ndarray, gap: np.ndarray) -> np.ndarray:
    """numerator/gap; inf where it says nothing of a sine (no gap, or not below 1)."""
    safe = np.where(gap > 0, gap, 1.0)
    ratio = numerator / safe
    return np.asarray(np.where((gap > 0) & (ratio < 1), ratio, np.inf))


def _chord(sines: np.ndarray) -> np.ndarray:
    """‖x − u‖ = 2 sin(θ/2) from a bound on sin θ."""
    finite = np.isfinite(sines)
    angle = np.arcsin(np.where(finite, sines, 0.0))
    return np.asarray(np.where(finite, 2 * np.sin(angle / 2), np.inf))


def _status(answer: Any, angles: np.ndarray, tol: float) -> Any:
    """The residual rule's answer; CONVERGED only where the angles are known as well."""
    answer = as_answer(answer)
    determined = angles.max(axis=-1) <= tol**0.5
    settled = choose(determined, Status.CONVERGED, Status.GAP_TOO_SMALL)
    floored = choose(_is(answer, Status.PRECISION_FLOOR), Status.PRECISION_FLOOR, Status.MOVING)
    return choose(_is(answer, Status.CONVERGED), settled, floored)


def _is(answer: np.ndarray, status: Status) -> np.ndarray:
    return np.asarray(answer == status, dtype=bool)


class Noise(NamedTuple):
    """Size of the noise E_t in a stream, estimated from its probes."""

    frobenius: np.ndarray
    """Root mean square of ‖tf(E_t)‖_F."""
    probes: int
    """How many probes it rests on."""
    eigenvalues: np.ndarray
    """Rayleigh quotients averaged over the probes, background taken out, descending."""

    def ball(self, step: float) -> np.ndarray:
        """√f at which `DoubleBracketFlow(step)` settles in this noise (k = n)."""
        return stationary_deviation(self.eigenvalues, step, self.frobenius)


def estimate_noise(probes: Sequence[Probe]) -> Noise:
    """Root mean square ‖tf(E_t)‖_F from the changes between successive probes.

    The last probe is carried into the next frame and subtracted, so a signal that stands still or
    moves slowly drops out: E‖(C_{t+1} − C_t)X‖_F² = 2E‖E_t X‖_F². For k < n only E_t X is seen; the
    rest is filled in, by n/k, for noise without preferred directions.
    """
    if len(probes) < 2:
        raise ValueError(f"probes must be at least 2 to show a change, got {len(probes)}")
    if (probes[0].sharding is None) != (shards() is None):
        raise ValueError(
            "probes must be compared where they were made: those of a sharded basis inside "
            "`with sharded_basis(n)`, all others outside"
        )
    n, k = probes[0].n, probes[0].basis.shape[-1]
    squares = [_change(before, after) for before, after in pairwise(probes)]
    quotients = np.mean([to_host(diagonal(probe.rayleigh)) for probe in probes], axis=0)
    size = np.sqrt(np.mean(squares, axis=0) / 2 * n / k)
    return Noise(size, len(probes), -np.sort(-quotients, axis=-1))


def _change(before: Probe, after: Probe) -> np.ndarray:
    """‖(C_after − C_before)X‖_F² at X = `after.basis`, as far as `before` knows C_before X."""
    turn = over_rows(before.basis.mT @ after.basis)
    difference = after.centred - before.centred @ turn
    # A change of the level between the two is σ², not noise: take out what is along X.
    along, square = over_rows(inner(after.basis, difference), frobenius_squared(after.basis))
    difference = difference - (along / square)[..., None, None] * after.basis
    return to_host(over_rows(frobenius_squared(difference)))


def stationary_deviation(eigenvalues: np.ndarray, step: float, noise: Any) -> np.ndarray:
    """Root mean square √f of the flow on SO(n) under independent noise with ‖E‖_F = `noise`.

    To first order the pair (i, j) obeys a ← (1 − ηg²)a − ηg²E_ij with g = λ_i − λ_j, so its
    variance settles at ηg²/(2 − ηg²) times that of E_ij, noise²/((n − 1)(n + 2)).
    """
    n = eigenvalues.shape[-1]
    i, j = np.triu_indices(n, 1)
    rate = step * (eigenvalues[..., i] - eigenvalues[..., j]) ** 2
    if not np.all(rate < 2):
        raise ValueError(f"step = {step!r} is beyond the edge of stability, 2/(λ_max − λ_min)²")
    variance = np.asarray(noise) ** 2 / ((n - 1) * (n + 2))
    return np.asarray(np.sqrt(variance * np.sum(rate / (2 - rate), axis=-1)))
