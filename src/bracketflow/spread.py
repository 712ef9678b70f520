"""What products with k columns tell of λ_max − λ_min, of which they see only a part."""

from __future__ import annotations

from typing import Any

import numpy as np

from bracketflow.core import ObservationError, Probe, Scalar, namespace, to_host
from bracketflow.observation import members_of
from bracketflow.theory import haar_overlap, spread_bound, spread_floor

UNSEEN = 1e-6
"""Probability with which a Haar start may hide more than its bound allows.

One run in a million. A probability 10^k times larger would make the bound about 10 times smaller.
"""


def given_spread(spread: float, probe: Probe) -> Scalar:
    """`spread`, one a member; an observation whose product shows more is refused."""
    seen = spread_floor(probe.range, probe.residual_norm)
    excess = to_host(seen - probe.rounding)
    if not np.all(excess <= spread):
        raise ObservationError(
            "wider than given",
            f"spread = {spread!r} is below what its product shows, max(range(H), 2‖R‖₂) = "
            f"{excess.max():.6g}: give a bound of λ_max − λ_min of every observation",
            members_of(excess > spread),
        )
    return spread + 0 * seen


def bounded_spread(probe: Probe, memory: Any) -> Scalar:
    """range(H) + 2‖R‖₂/√q of the first product, raised where a later one shows more.

    `memory` is the answer of the step before, 0 at first. Each end of the spectrum may be hidden.
    """
    seen = spread_floor(probe.range, probe.residual_norm)
    overlap = haar_overlap(probe.n, probe.basis.shape[-1], UNSEEN / 2)
    xp, memory = namespace(seen), memory + 0 * seen
    first = spread_bound(probe.range, probe.residual_norm, overlap)
    return xp.where(memory > 0, xp.where(seen > memory, seen, memory), first)
