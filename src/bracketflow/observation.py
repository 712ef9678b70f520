"""The one block product of a step: made, centred, checked; and the state after a move.

Everything a method may know of an observation is in the probe that `observe` returns.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from bracketflow.core import (
    Array,
    ObservationError,
    Probe,
    Scalar,
    State,
    any_member,
    contiguous,
    contracted,
    diagonal,
    epsilon,
    every_member,
    frobenius_squared,
    inner,
    least_squared,
    namespace,
    to_host,
)
from bracketflow.geometry import random_basis, random_columns
from bracketflow.oracles import Operator, as_operator
from bracketflow.sharding import over_rows, shards

HEADROOM = 1 / 64  # of the largest number that can be squared, or so: sums of squares are larger
WIDE = 256  # columns from which on H is made of blocks
BLOCK = 64


def observe(operator: Any, state: State) -> Probe:
    """Make the step's one block product and centre it; refuse a bad observation.

    Raises
    ------
    ObservationError
        The product is non-finite, of the wrong shape, not symmetric, so small that squares
        underflow, or drowned: eps·|s| is above the spread of all H seen so far. Nothing has
        changed then.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        probe, asymmetry = centre(state.basis, multiplied(operator, state.basis))
        refuse_bad(probe, asymmetry, state.seen)
    return probe


def lyapunov(basis: Array, A: Any) -> Any:
    """f = ½‖off H‖_F² + ‖R‖_F² of `basis` on the operator `A`: one block product."""
    return observe(A, State(basis)).lyapunov


def multiplied(operator: Any, basis: Array, *, identity: bool = False) -> Array:
    """C X, X perhaps known to be the `identity`; what the operator raises is a bad observation.

    Where rows are spread it is one for all processes: NaN, which `refuse_bad` finds in the sums.
    """
    operator = as_operator(operator)
    spread = shards()
    if spread is not None:
        return spread.attempted(lambda: operator @ basis, basis)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
            return operator.on_identity(basis) if identity else operator @ basis
    except (ObservationError, MemoryError, ConnectionError):  # a lost peer is no observation
        raise
    except Exception as error:
        reason, remedy = "raised", ""
        if isinstance(error, TypeError) and _of_another_library(operator, basis):
            reason = "wrong type"
            remedy = f" (the basis is a {type(basis).__name__}: keep both in one array library)"
        raise ObservationError(
            reason, f"the operator raised {type(error).__name__}: {error}{remedy}"
        ) from error


def _of_another_library(operator: Operator, basis: Array) -> bool:
    known = operator.like is not None
    return known and isinstance(operator.like, np.ndarray) != isinstance(basis, np.ndarray)


def centre(basis: Array, image: Array) -> tuple[Probe, Array]:
    """Probe of Y = `image` at X = `basis`, and the skew part of A = Xᵀ(Y − sX)."""
    level = own_level(basis, image)
    centred = -level[..., None, None] * basis
    centred += image
    if shards() is None and basis.shape[-1] >= WIDE:
        rayleigh, asymmetry = _by_blocks(basis, centred)
        return Probe(basis, centred, level, rayleigh, basis.shape[-1]), asymmetry
    compressed = contracted(basis, centred)
    if shards() is not None:
        own = level
        level, compressed, _ = common_level(own, compressed, basis.mT @ basis, diagonal)
        centred += (own - level) * basis
    rayleigh = compressed + compressed.mT
    rayleigh *= 0.5
    return Probe(basis, centred, level, rayleigh, basis.shape[-1]), compressed - rayleigh


def _by_blocks(basis: Array, centred: Array) -> tuple[Array, Array]:
    """H of many columns from the upper blocks of A = XᵀY alone, and what of A that leaves out.

    Half of the product, and no pass over a transposed matrix. What is left out, A − H, is seen by
    two random columns W: √½(A − H)W, squared, has a mean from 1 to 2 times that of the skew part.
    """
    k = basis.shape[-1]
    rayleigh = namespace(basis).empty_like(centred[..., :k, :])
    for first in range(0, k, BLOCK):
        last = first + BLOCK
        upper = basis[..., first:last].mT @ centred[..., first:]
        own = upper[..., :BLOCK]
        upper[..., :BLOCK] = 0.5 * (own + own.mT)
        rayleigh[..., first:last, first:] = upper
        rayleigh[..., last:, first:last] = upper[..., BLOCK:].mT
    seen = random_columns(k, 2, rng=0, like=basis)
    return rayleigh, 0.5**0.5 * (basis.mT @ (centred @ seen) - rayleigh @ seen)


def own_level(basis: Array, image: Array) -> Scalar:
    """tr(XᵀY)/tr(XᵀX) of the rows that this process holds."""
    along, square = inner(basis, image), frobenius_squared(basis)
    if shards() is None or square > 0:
        return along / square
    return 0 * square  # nothing is here, and no level is missed


def common_level(
    own: Scalar, compressed: Array, gram: Array, seen: Callable[[Array], Array], *others: Array
) -> Any:
    """s, Aᵀ(Y − sX) and AᵀX of all rows, and `others` summed: one message.

    From Aᵀ(Y − s_r X) and AᵀX of each process, at the level s_r of its own rows: so nothing is
    lost to a large background. s is read off what `seen` takes of AᵀY and AᵀX.
    """
    compressed, gram, lifted, *others = over_rows(compressed, gram, own * gram, *others)
    xp = namespace(compressed)
    level = xp.sum(seen(compressed + lifted)) / xp.sum(seen(gram))
    return level, compressed + (lifted - level * gram), gram, *others


def advance(state: State, probe: Probe, basis: Array, memory: Any = None) -> State:
    """State after the move to `basis`: one step and the probe's products more.

    A move that overflowed is refused: the observation was far too large for the step. (On spread
    rows all processes see it: what makes a basis orthonormal are sums over all rows.)
    """
    if basis is state.basis:
        return advance_unchecked(state, probe, basis, memory)
    finite = frobenius_squared(basis) < inf
    if not every_member(finite):
        raise ObservationError(
            "non-finite",
            "the move that it asks for overflows: check the data, or take a shorter step",
            members_of(~finite),
        )
    return advance_unchecked(state, probe, basis, memory)


def advance_unchecked(state: State, probe: Probe, basis: Array, memory: Any = None) -> State:
    """`advance` for algorithms that are shown as they are, divergence included."""
    return State(
        contiguous(basis),
        state.steps + 1,
        state.matvecs + probe.matvecs,
        _seen_after(state, probe),
        memory,
    )


def _seen_after(state: State, probe: Probe) -> Scalar:
    """Largest spread seen so far, `probe` included where it stands clear of its own rounding.

    Only its order of magnitude matters, so it is renewed when it has doubled.
    """
    extent = probe.extent
    grown = extent > 2 * state.seen
    if not any_member(grown):
        return state.seen
    grown = grown & (extent > probe.rounding)
    return namespace(probe.basis).where(grown, extent, 0 * extent + state.seen)


def refuse_bad(probe: Probe, asymmetry: Array, seen: Scalar) -> None:
    """Raise where H, or what of it is not symmetric, is not what a usable product gives."""
    eps = epsilon(probe.basis)
    size, skew = probe.size, frobenius_squared(asymmetry) ** 0.5
    level = abs(probe.background)
    # NaN fails every comparison, so one negated test finds all that is wrong.
    finite = level + size + skew < inf
    symmetric = skew <= eps**0.5 * (size + skew) + probe.rounding_of(level + seen)
    audible = (seen == 0) | (eps * level <= seen)
    least = least_squared(probe.basis)
    squarable = (level + size + seen >= least) & (size * float(probe.n) ** 0.5 * least <= HEADROOM)
    if every_member(finite & symmetric & audible & squarable):
        return
    if not every_member(finite):
        spread = shards()
        if spread is not None:
            spread.refuse_failures()
        raise ObservationError(
            "non-finite",
            "the product holds NaN or Inf, or overflows when multiplied with the basis: "
            "check the data, or scale the operator down",
            members_of(~finite),
        )
    if not every_member(symmetric):
        raise ObservationError(
            "not symmetric",
            f"XᵀCX has a skew part of {float(skew.max()):.2g} beside ‖H‖ = "
            f"{float(size.max()):.2g}: check the operator with bf.check_symmetric, "
            "or pass (A + A.T) / 2",
            members_of(~symmetric),
        )
    if every_member(audible):
        _refuse_unsquarable(probe, seen)
        return
    raise ObservationError(
        "drowned",
        f"the background {float(level.max()):.3g} leaves no digit for a signal whose spread so "
        f"far was {np.max(to_host(seen)):.3g}: use float64, or subtract the known part of the "
        "background inside the operator",
        members_of(~audible),
    )


def _refuse_unsquarable(probe: Probe, seen: Scalar) -> None:
    """Raise where squares of a product that is not zero under- or overflow."""
    xp, count = namespace(probe.basis), float(probe.n * probe.basis.shape[-1])
    least = least_squared(probe.basis)
    size = over_rows(xp.sum(abs(probe.centred), axis=(-2, -1))) / count**0.5  # ‖Y − sX‖_F at most
    tiny = size + abs(probe.background) + seen < least
    tiny &= size + abs(probe.background) > 0
    for reason, mask, way in (
        ("too small", tiny, "up"),
        ("non-finite", size * least > HEADROOM, "down"),
    ):
        if any_member(mask):
            raise ObservationError(
                reason,
                f"the product is of size {float(size.max()):.2g}, and squares of it cannot be "
                f"written in {probe.basis.dtype}: scale the operator {way}",
                members_of(mask),
            )


def members_of(mask: Array) -> tuple[tuple[int, ...], ...]:
    """Where a per-member condition holds; () for a single problem."""
    if not mask.ndim:
        return ()
    return tuple(tuple(int(i) for i in index) for index in np.argwhere(to_host(mask)))


def check_symmetric(
    op: Any, n: int | None = None, *, rng: Any = None, like: Array | None = None
) -> bool:
    """Adjoint dot-test: True when uᵀCv = vᵀCu for random orthonormal u, v; raises otherwise.

    Because the columns are orthogonal, a multiple of the identity neither hides an asymmetry nor
    fakes one. Costs one block product of min(n, 8) columns.
    """
    operator = as_operator(op, n)
    if operator.n is None:
        raise ValueError("n must be given for a callable, got None: check_symmetric(op, n)")
    basis = random_basis(operator.n, min(operator.n, 8), rng=rng, like=like)
    observe(operator, State(basis))
    return True
