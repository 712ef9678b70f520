"""The shared nouns: Probe, State, Status, Result and the error of a bad observation.

Arrays are NumPy or PyTorch, (..., n, k): leading axes are an ensemble of independent problems.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import array_api_compat
import numpy as np

from bracketflow.sharding import Shards, shards

Array = Any  # a NumPy array or a torch tensor; what comes in decides what goes out
Scalar = Any  # a number, or an array of the ensemble's shape

CACHED = 2**17  # numbers of long columns that are worked on at a time
DIRECT = 10**6  # multiplications up to which BLAS makes a product without copies


def namespace(array: Array) -> Any:
    """Array API namespace of `array`: NumPy itself, unwrapped, for an ndarray."""
    return np if isinstance(array, np.ndarray) else array_api_compat.array_namespace(array)


def epsilon(array: Array) -> float:
    """Machine epsilon of the array's dtype."""
    return _epsilon(namespace(array), array.dtype)


@lru_cache(maxsize=16)
def _epsilon(xp: Any, dtype: Any) -> float:
    return float(xp.finfo(dtype).eps)


def least_squared(array: Array) -> float:
    """The least number whose square is a normal one of the array's dtype."""
    return _least_squared(namespace(array), array.dtype)


@lru_cache(maxsize=16)
def _least_squared(xp: Any, dtype: Any) -> float:
    return float(xp.finfo(dtype).smallest_normal ** 0.5)


def contiguous(array: Array) -> Array:
    """`array` in C order: other layouts give other last bits, and resuming must not."""
    return np.ascontiguousarray(array) if isinstance(array, np.ndarray) else array.contiguous()


def any_member(mask: Any) -> bool:
    """Whether a per-member condition holds for any member."""
    return bool(mask.any()) if mask.ndim else bool(mask)


def every_member(mask: Any) -> bool:
    """Whether a per-member condition holds for all members."""
    return bool(mask.all()) if mask.ndim else bool(mask)


def diagonal(matrix: Array) -> Array:
    """Diagonals (..., k) of (..., k, k)."""
    if isinstance(matrix, np.ndarray):
        return matrix.diagonal(axis1=-2, axis2=-1)
    return namespace(matrix).linalg.diagonal(matrix)


def trace(matrix: Array) -> Scalar:
    """tr A of (..., k, k), one number a member."""
    if isinstance(matrix, np.ndarray):
        return matrix.trace(axis1=-2, axis2=-1)
    return namespace(matrix).linalg.trace(matrix)


@lru_cache(maxsize=64)
def _identity(size: int, dtype: Any) -> np.ndarray:
    identity = np.eye(size, dtype=dtype)
    identity.flags.writeable = False
    return identity


def identity_like(matrix: Array) -> Array:
    """I of the last axis' size, with the dtype and device of `matrix`."""
    if isinstance(matrix, np.ndarray):
        return _identity(matrix.shape[-1], matrix.dtype)
    return namespace(matrix).eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)


def off_diagonal(matrix: Array) -> Array:
    """off(A) = A − diag(A) of (..., k, k)."""
    return matrix - diagonal(matrix)[..., None] * identity_like(matrix)


def inner(left: Array, right: Array) -> Scalar:
    """<A, B> = tr(AᵀB) of (..., m, n), one number a member."""
    if not isinstance(left, np.ndarray):
        return namespace(left).sum(left * right, axis=(-2, -1))
    if left.ndim == 2:
        return np.vdot(left, right)
    return np.einsum("...ij,...ij->...", left, right)  # no temporary, unlike sum(A * B)


def row_blocks(*parts: Array, most: int = 8192) -> Iterator[slice]:
    """The rows of long (n, k) arrays, so many at a time that they stay in the cache.

    Of no rows one block of none: sums over them have their shape all the same.
    """
    n, width = parts[0].shape[-2], sum(part.shape[-1] for part in parts)
    rows = min(max(CACHED // max(width, 1), 1024), most)
    return (slice(first, first + rows) for first in range(0, max(n, 1), rows))


def contracted(left: Array, right: Array) -> Array:
    """AᵀB of (..., n, k); of long ones in blocks: BLAS itself takes up to four times as long."""
    n, most = left.shape[-2], DIRECT // max(left.shape[-1] * right.shape[-1], 1)
    if left.ndim > 2 or most < 256:
        return left.mT @ right
    if left is right and 4 * n > most:  # BLAS takes a way of its own for AᵀA, and a longer one
        half = left.shape[-1] // 2
        parts = (contracted(part, left) for part in (left[:, :half], left[:, half:]))
        return namespace(left).concat(list(parts), axis=-2)
    if n <= most:
        return left.mT @ right
    if left.shape[-1] > right.shape[-1]:
        return contiguous(contracted(right, left).mT)
    blocks = row_blocks(left, right, most=min(most, 8192))
    return sum(left[rows].mT @ right[rows] for rows in blocks)


def frobenius_squared(matrix: Array) -> Scalar:
    """‖A‖_F² of (..., m, n), one number a member."""
    return inner(matrix, matrix)


def column_inner(left: Array, right: Array) -> Array:
    """<a_i, b_i> of the columns of (..., n, k), (..., k)."""
    if not isinstance(left, np.ndarray):
        return namespace(left).sum(left * right, axis=-2)
    return np.einsum("...ij,...ij->...j", left, right)


_HOST_TYPES = (np.ndarray, np.generic, float, int)


def to_host(value: Scalar) -> np.ndarray:
    """A small per-member quantity as a NumPy array, for decisions and records."""
    if isinstance(value, _HOST_TYPES):
        return np.asarray(value)
    return np.asarray(value.detach().cpu())


def on_host(array: Array) -> np.ndarray:
    """A small array as NumPy's, in double precision."""
    return np.asarray(to_host(array), dtype=float)


def as_array_of(small: np.ndarray, like: Array) -> Array:
    """A small array of the host in the library, dtype and device of another."""
    if isinstance(like, np.ndarray):
        return small.astype(like.dtype, copy=False)
    return namespace(like).asarray(small, dtype=like.dtype, device=like.device)


def select(mask: np.ndarray, chosen: Any, other: Any) -> Any:
    """Member by member `chosen` where `mask` holds, `other` elsewhere, through nested tuples."""
    if mask.all():
        return chosen
    if not mask.any():
        return other
    if isinstance(chosen, tuple):
        parts = (select(mask, a, b) for a, b in zip(chosen, other, strict=True))
        return type(chosen)(*parts) if hasattr(chosen, "_fields") else tuple(parts)
    if chosen is None:
        return None
    return _select_array(mask, chosen, other)


def _select_array(mask: np.ndarray, chosen: Any, other: Any) -> Any:
    rank = max(np.ndim(chosen), np.ndim(other))
    wide = mask.reshape(mask.shape + (1,) * (rank - mask.ndim))
    tensor = next((a for a in (chosen, other) if not isinstance(a, _HOST_TYPES)), None)
    if tensor is None:
        return np.where(wide, chosen, other)
    xp = namespace(tensor)
    return xp.where(xp.asarray(wide, device=tensor.device), chosen, other)


def whole_number(
    value: Any, name: str, *, at_least: int, at_most: int | None = None, limit: str = ""
) -> int:
    """`value` as an int, or an error that names the argument, its value and the remedy."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}") from None
    if number < at_least or (at_most is not None and number > at_most):
        upper = f" and at most {at_most} ({limit})" if at_most is not None else ""
        raise ValueError(f"{name} must be at least {at_least}{upper}, got {number}")
    return number


class Status(Enum):
    """Why a run ended. The value is the advice."""

    CONVERGED = (
        "The residuals are below the tolerance, measured on a shift-free scale: these are "
        "eigenvectors. Whether one before them was passed over, a further copy of a repeated "
        "eigenvalue, say, no residual shows: `missed_probability` bounds the chance of that, and "
        "where it is None nobody has looked: decompose does."
    )
    NOISE_FLOOR = (
        "The error is down to what the noise in the observations allows: "
        "give more observations, or larger batches."
    )
    PRECISION_FLOOR = (
        "The residuals are down to the rounding of the products, about 4·eps times the size of "
        "the operator, its background included: "
        "use float64, or remove a known background before the product."
    )
    GAP_TOO_SMALL = (
        "Neighbouring eigenvalues are too close to tell their vectors apart: "
        "trust the subspace, ask for another k, or run on."
    )
    MOVING = "The basis is still moving: run on, or stop by a rule that fits a drifting signal."
    STEP_LIMIT = (
        "The limit on steps or products was reached first: raise it, or resume from `state`."
    )
    STREAM_ENDED = "The stream ended before any stop rule fired: resume from `state` with more."
    TOO_MANY_BAD = "Too many observations in a row were refused: see `bad` for steps and reasons."
    NOT_SYMMETRIC = (
        "The operator is not symmetric: check it with bf.check_symmetric, or pass (A + A.T) / 2."
    )
    INTERRUPTED = "Interrupted from outside: the state is whole, resume from `state`."

    def __str__(self) -> str:
        return self.name


class ObservationError(ValueError):
    """An observation was refused; the state is as it was.

    Attributes
    ----------
    reason : str
        The short cause: "non-finite", "wrong shape", "wrong type", "not symmetric", "too small",
        "drowned", "wider than given" or "raised".
    members : tuple of index tuples
        The ensemble members concerned; empty for a single problem.
    """

    def __init__(self, reason: str, message: str, members: tuple[tuple[int, ...], ...] = ()):
        where = f" (ensemble members {list(members)})" if members else ""
        super().__init__(f"{reason} observation{where}: {message}")
        self.reason = reason
        self.members = members


class BadObservation(NamedTuple):
    """One refused observation: the step at which it came and why it was refused."""

    step: int
    reason: str


class Event(NamedTuple):
    """Something a method noticed in the stream, or did to its columns, at a step."""

    step: int
    kind: str
    """"outlier", "jump", "crossing" (two columns change rank) or "left" (one leaves the top k)."""
    message: str


@dataclass(frozen=True, eq=False)
class Probe:
    """What one block product Y = C X tells of the basis X, with the level s taken out.

    s = tr(XᵀY)/tr(XᵀX),  H = sym(Xᵀ(Y − sX)),  R = (Y − sX) − X H.

    H and R are the same for C and C + αI, for every X; everything downstream reads only them.
    """

    basis: Array
    image: Array | Callable[[], Array]
    """`centred`, or what makes it once it is asked for."""
    background: Scalar
    """The level s. Its changes on a settled basis are those of σ²; it contains the mean of the
    tracked eigenvalues."""
    rayleigh: Array
    """H, exactly symmetric, (..., k, k)."""
    matvecs: int
    """Products with the operator that this probe cost, per member."""
    gram: Array | None = None
    """RᵀR where a method has summed it already,"""
    square: Scalar | None = None
    """and ‖Y − sX‖_F²."""
    sharding: Shards | None = field(default_factory=shards, repr=False)
    """How the rows were spread over processes when the product was made."""

    @cached_property
    def centred(self) -> Array:
        """Y − sX, (..., n, k)."""
        return self.image() if callable(self.image) else self.image

    @property
    def n(self) -> int:
        """Rows of the basis, those of all processes."""
        return int(self.basis.shape[-2]) if self.sharding is None else self.sharding.n

    @cached_property
    def size(self) -> Scalar:
        """‖H‖_F."""
        return frobenius_squared(self.rayleigh) ** 0.5

    @cached_property
    def extent(self) -> Scalar:
        """√2‖H‖_F + ‖R‖_F: bounds the spread from above without an eigenvalue."""
        size = 2**0.5 * self.size
        if self.is_square:
            return size
        if not self._has_all_rows and self.square is None:
            return size + self.outside**0.5
        # ‖Y − sX‖² − ‖H‖² spares R; that it is blurred where R is tiny does not matter here.
        square = frobenius_squared(self.centred) if self.square is None else self.square
        outside = square - 0.5 * size**2
        return size + (0.5 * (outside + abs(outside))) ** 0.5

    @property
    def rounding(self) -> Scalar:
        """Generous bound on what the rounding of the product leaves in H: 16·eps·√(nk)·|s|."""
        return self.rounding_of(abs(self.background))

    def rounding_of(self, size: Scalar) -> Scalar:
        """The same for an operator of this size: 16·eps·√(nk)·size."""
        n, k = self.n, self.basis.shape[-1]
        return 16 * epsilon(self.basis) * float(n * k) ** 0.5 * size

    @cached_property
    def residual(self) -> Array:
        """R, (..., n, k): what of C X leaves the span of X."""
        return self.centred - self.basis @ self.rayleigh

    @cached_property
    def residual_gram(self) -> Array:
        """RᵀR, (..., k, k); of spread rows a message, unless the step has summed it."""
        if self.gram is not None:
            return self.gram
        own = self.residual.mT @ self.residual
        return own if self.sharding is None else self.sharding.total([own])[0]

    @property
    def _has_all_rows(self) -> bool:
        return self.gram is None and self.sharding is None

    @property
    def outside(self) -> Scalar:
        """‖R‖_F²."""
        if self._has_all_rows:
            return frobenius_squared(self.residual)
        return namespace(self.rayleigh).sum(diagonal(self.residual_gram), axis=-1)

    @property
    def is_square(self) -> bool:
        """Whether k = n, where R = 0 but for rounding."""
        return bool(self.basis.shape[-1] == self.n)

    @cached_property
    def ritz_values(self) -> Array:
        """Eigenvalues of H, ascending."""
        return namespace(self.rayleigh).linalg.eigvalsh(self.rayleigh)

    @cached_property
    def residual_norm(self) -> Scalar:
        """‖R‖₂, zero for k = n."""
        if self.is_square:
            return 0 * self.rayleigh[..., 0, 0]
        xp = namespace(self.rayleigh)
        largest = xp.linalg.eigvalsh(self.residual_gram)[..., -1]
        return xp.sqrt(xp.where(largest > 0, largest, 0 * largest))

    @cached_property
    def range(self) -> Scalar:
        """λ_max(H) − λ_min(H)."""
        return self.ritz_values[..., -1] - self.ritz_values[..., 0]

    @cached_property
    def spread(self) -> Scalar:
        """λ_max(H) − λ_min(H) + ‖R‖₂: the shift-free scale of every relative statement."""
        return self.range + self.residual_norm

    @cached_property
    def lyapunov(self) -> Scalar:
        """f = ½‖off H‖_F² + ‖R‖_F²; for k = n, where R is rounding only, the paper's f."""
        inside = 0.5 * frobenius_squared(off_diagonal(self.rayleigh))
        return inside if self.is_square else inside + self.outside

    @cached_property
    def residuals(self) -> Array:
        """r_i with r_i² = ‖R e_i‖² + Σ_{j≠i} H_ji²: how far column i is from an eigenvector."""
        xp = namespace(self.rayleigh)
        squares = xp.sum(off_diagonal(self.rayleigh) ** 2, axis=-2)
        if not self.is_square:
            alone = self._has_all_rows
            squares = squares + (
                xp.sum(self.residual**2, axis=-2) if alone else diagonal(self.residual_gram)
            )
        return xp.sqrt(0.5 * (squares + abs(squares)))  # sums of a turned RᵀR may round below 0


class State(NamedTuple):
    """All that a method carries from one observation to the next. O(nk) memory."""

    basis: Array
    """X, (..., n, k), orthonormal columns, C-contiguous."""
    steps: Any = 0
    """Moves since `init`; for an ensemble an integer array of its shape."""
    matvecs: Any = 0
    """Products with the operator since `init`."""
    seen: Any = 0.0
    """Largest spread of H seen so far: what a drowned observation is measured against."""
    memory: Any = None
    """The method's own: nested tuples of arrays and numbers."""
    order: Any = None
    """Permutation that sorts the columns by descending eigenvalue, where the method keeps one."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a run found. Never better than its `state`.

    When a stop rule fired, vectors, residuals and status speak of one basis. When the stream
    ended, `state` has absorbed the last observation and `residuals` are those that this
    observation showed of the basis before that last move.
    """

    eigenvalues: Array
    """Descending, background included; averaged, the background too, where the method averages."""
    eigenvectors: Array
    """The columns of `state.basis` in the order of `eigenvalues`, largest entry positive."""
    residuals: Array
    """r_i² = ‖R e_i‖² + Σ_{j≠i} H_ji²."""
    background: Scalar
    """The last level s: σ² plus the mean of the tracked eigenvalues. Of a tracker the averaged
    level outside of its columns."""
    status: Any
    """A `Status`; for an ensemble an object array of them."""
    state: State
    probe: Probe
    """The last probe, of the columns that `residuals` speak of: what `bf.certify` reads."""
    bad: tuple[BadObservation, ...] = ()
    """Observations that were refused or counted little, each with its step and reason."""
    events: tuple[Event, ...] = ()
    """What the method noticed: loud observations, jumps, crossings, columns that left."""
    missed_probability: Any = None
    """Bound on the probability that one of the eigenvalues asked for was missed, a further copy of
    a repeated one, say. Of `decompose`: random draws of the solver are what it speaks of. 0 for
    k = n, where none can be missed. None where nobody looked: in any other run. For an ensemble an
    array."""

    @property
    def converged(self) -> Any:
        """Whether the status is CONVERGED; for an ensemble a boolean array.

        These are eigenvectors then. Whether they are the leading ones `missed_probability` says.
        """
        if isinstance(self.status, Status):
            return self.status is Status.CONVERGED
        return np.asarray(self.status == Status.CONVERGED, dtype=bool)
