"""What a running mean on the leading columns remembers: at the start, after a jump, from a file."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import Array, contiguous, frobenius_squared, namespace
from bracketflow.geometry import orthonormalise, random_columns
from bracketflow.sharding import over_rows, row_count
from bracketflow.tracker import quotients
from bracketflow.tracker.gain import Alarm, Gain, quiet, start_gain
from bracketflow.tracker.quotients import Quotients, Rise
from bracketflow.tracker.turn import places

COLUMNS = 4  # multiplied for each one asked for, the reference among them


class Mean(NamedTuple):
    """Memory of the leading tracker."""

    block: Array
    """[X, z]: the basis, p oversampled columns, and one fixed random column z, for the level of the
    bulk, and whether the signal stands still. (While it does, its basis is an old one.)"""
    image: Array
    """The reference's last image, less its part along the reference."""
    values: Array
    """Λ of all q columns, above the level of the reference."""
    ritz: Array
    """Averaged eigenvalues of the k columns, at that level: without the noise that is in Λ."""
    reach: Array
    """How far an image outside of the k columns moves them, 1 × k: one over Λ above the bulk."""
    variance: Array
    """Variance of the entries of H, k × q, for an observation of weight 1."""
    power: Array
    """Mean ‖R e_i‖² for an observation of weight 1."""
    flicker: Array
    """Mean ‖Cz − E Cz‖² for an observation of weight 1."""
    lean: Array
    """Where a larger gain would have put the k columns."""
    mapped: Array
    """Z: what the mean makes of X, and of z since the columns turned. See `_nothing`."""
    inside: Array
    """XᵀZ of the k columns, q × k."""
    base: Array
    """The k columns as they were after the last turn."""
    carry: Any
    """Part of the mean that was there then."""
    bulk: Array
    """Averaged level of all that is outside of the q columns, above that of the reference."""
    whole: Array
    """What the mean makes of z, as of the last turn."""
    spread: Array
    """Variance of the eigenvalues outside of the q columns."""
    anchor: Array
    """The k columns as they last stood apart from the others, written in the q columns of now."""
    since: Any
    """Step at which the vector in each of the k columns came in."""
    quotients: Quotients
    rise: Rise
    gain: Gain
    alarm: Alarm

    @property
    def extra(self) -> Array:
        """The oversampled columns."""
        return self.block[..., self.lean.shape[-1] : -1]

    @property
    def reference(self) -> Array:
        """z, n × 1."""
        return self.block[..., -1:]


def start(basis: Array, rng: Any) -> Mean:
    """Memory before the first observation; the columns beyond k come from `rng`, default 0."""
    n, k = row_count(basis), basis.shape[-1]
    ensemble = tuple(basis.shape[:-2])
    p = min((COLUMNS - 1) * k - 1, n - k)
    random = random_columns(n, p + 1, rng=0 if rng is None else rng, ensemble=ensemble, like=basis)
    extra, reference = filled(basis, random[..., :p]), random[..., p:]
    reference = reference / over_rows(frobenius_squared(reference))[..., None, None] ** 0.5
    xp, first = namespace(basis), [part[..., :1, :] for part in (basis, extra)]
    values = 0 * xp.concat(first, axis=-1)[..., 0, :]
    inside = values[..., None] + 0 * basis[..., :1, :]
    return Mean(
        block=xp.concat([basis, extra, reference], axis=-1),
        image=0 * reference,
        values=values,
        ritz=values[..., :k],
        reach=inside[..., :1, :],
        variance=inside.mT,
        power=values[..., :k],
        flicker=values[..., 0],
        lean=0 * basis,
        mapped=_nothing(basis, extra, reference),
        inside=inside,
        base=basis,
        carry=np.ones(ensemble),
        bulk=values[..., 0],
        whole=0 * reference,
        spread=values[..., 0],
        anchor=places(values, k),
        since=np.zeros((*ensemble, k), dtype=np.int64),
        quotients=quotients.start(ensemble, k),
        rise=quotients.flat(ensemble, k),
        gain=start_gain(ensemble),
        alarm=quiet(ensemble, basis),
    )


def filled(basis: Array, candidates: Array) -> Array:
    """`candidates` made orthonormal and orthogonal to `basis`."""
    for _ in range(2):
        candidates = candidates - basis @ over_rows(basis.mT @ candidates)
        candidates = orthonormalise(candidates)
    return contiguous(candidates)


def _nothing(*columns: Array) -> Array:
    """No image yet: no columns, but in an ensemble, whose shapes must not change, zeros."""
    if columns[0].ndim == 2:
        return 0 * columns[0][:, :0]
    return 0 * namespace(columns[0]).concat(columns, axis=-1)


def forgotten(mean: Mean, basis: Array) -> Mean:
    """The columns alone, with nothing averaged in them."""
    return mean._replace(
        lean=0 * mean.lean,
        mapped=_nothing(mean.mapped),
        inside=0 * mean.inside,
        whole=0 * mean.whole,
        base=basis,
        carry=np.ones_like(mean.carry),
        anchor=places(mean.values, mean.lean.shape[-1]),
        quotients=quotients.start(mean.gain.count.shape, mean.lean.shape[-1]),
        rise=quotients.flat(mean.gain.count.shape, mean.lean.shape[-1]),
        gain=start_gain(mean.gain.count.shape),
    )


def restored(memory: Any) -> Mean:
    """A `Mean` from nested tuples."""
    if isinstance(memory, Mean):
        return memory
    mean = Mean(*memory)
    return mean._replace(
        quotients=Quotients(*mean.quotients),
        rise=Rise(*mean.rise),
        gain=Gain(*mean.gain),
        alarm=Alarm(*mean.alarm),
    )
