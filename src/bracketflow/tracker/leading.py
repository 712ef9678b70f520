"""The leading k columns: a Krylov span while the signal stands still, a running mean otherwise."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from bracketflow.core import (
    Array,
    Probe,
    State,
    any_member,
    epsilon,
    identity_like,
    namespace,
    to_host,
)
from bracketflow.observation import advance
from bracketflow.oracles import as_operator
from bracketflow.sharding import over_rows
from bracketflow.tracker import average, krylov, running
from bracketflow.tracker.gain import CAUTIOUS_STEPS, after_jump, calmed
from bracketflow.tracker.span import Span, empty, leading_vectors, restored, ritz_values

STEADY = 2  # products of the reference that must agree before the signal is taken to stand still
ESTABLISHED = STEADY + 3  # from then on a single one that disagrees is an outlier


class Leading(NamedTuple):
    """Memory of the leading tracker."""

    mean: running.Mean
    span: Span
    steady: Any
    """Agreeing products of the reference in a row; from STEADY on the span is used."""


def start(basis: Array, rng: Any) -> Leading:
    """A single problem is taken to stand still until it is seen to move; an ensemble to move.

    The members of an ensemble share their array shapes, which a growing span cannot.
    """
    steady = STEADY if basis.ndim == 2 else 0
    return Leading(running.start(basis, rng), empty(basis), np.int64(steady))


def step(operator: Any, state: State, forget: float | None) -> tuple[State, Probe]:
    """One observation: new state, and the probe of the state that went in."""
    operator = as_operator(operator)
    mean, span, steady = state.memory
    mean, span = running.restored(mean), restored(span)
    if any_member(steady >= STEADY):
        basis, probe, longer = krylov.step(operator, state, span, mean.extra)
        if basis is not None:
            calm = mean._replace(alarm=calmed(mean.alarm))
            found = steady < ESTABLISHED or longer.doubts > 0 or longer.rounds > span.rounds
            if found and mean.gain.count > CAUTIOUS_STEPS:
                calm = _replaced(calm, basis, state.steps + 1)
            memory = Leading(calm, longer, np.minimum(steady + 1, ESTABLISHED))
        elif steady == ESTABLISHED and not mean.alarm.held:
            waiting = mean.alarm._replace(held=mean.alarm.held + 1)
            basis, memory = state.basis, Leading(mean._replace(alarm=waiting), span, steady)
        else:
            basis, memory = _moving(state, mean, longer)
        return advance(state, probe, basis, memory), probe
    basis, probe, after, change = average.step(operator, state, mean, forget)
    steady = _steadier(steady, probe, change)
    return advance(state, probe, basis, Leading(after, span, steady)), probe


def in_doubt(memory: Any) -> bool:
    """Whether the span still has to look for repeated eigenvalues."""
    mean, span, steady = memory
    return bool(steady >= STEADY) and krylov.in_doubt(restored(span), running.restored(mean).extra)


def searching(memory: Any) -> bool:
    """Whether it does so now."""
    mean, span, steady = memory
    return bool(steady >= STEADY) and krylov.searching(restored(span), running.restored(mean).extra)


def _moving(state: State, mean: running.Mean, span: Span) -> tuple[Array, Leading]:
    """The signal has moved: start a mean from the basis, with the next Ritz vectors beside it."""
    basis = state.basis
    xp = namespace(basis)
    basis = basis + 0.5 * (basis @ (identity_like(basis) - over_rows(basis.mT @ basis)))
    k, p = basis.shape[-1], mean.extra.shape[-1]
    others = span.combined(leading_vectors(span, k + p)[:, k:])
    extra = running.filled(basis, xp.concat([others, mean.extra], axis=-1)[:, :p])
    alarm = after_jump(mean.alarm, state.steps) if mean.alarm.held else mean.alarm
    ritz = ritz_values(span) if span.turn.shape[-1] else mean.ritz
    block = xp.concat([basis, extra, mean.reference], axis=-1)
    mean = mean._replace(block=block, alarm=alarm, ritz=ritz)
    fresh = running.forgotten(mean, basis)
    return basis, Leading(fresh, empty(basis), np.int64(0))


def _replaced(mean: running.Mean, basis: Array, steps: Any) -> running.Mean:
    """The mean with it in its books which of its columns a span that found more has replaced."""
    overlap = to_host(over_rows(mean.base.mT @ basis))
    left = np.sum(overlap**2, axis=-1) < 0.5
    if not left.any():
        return mean
    base = namespace(basis).concat(
        [(basis if out else mean.base)[:, i : i + 1] for i, out in enumerate(left)], axis=-1
    )
    return mean._replace(base=base, since=np.where(left, steps, mean.since))


def _steadier(steady: Any, probe: Probe, change: Any) -> Any:
    """One more agreeing image of the reference, or none; `change` is that of the image, squared."""
    if probe.basis.ndim > 2:
        return steady
    slack = to_host(probe.rounding / 8 + 64 * epsilon(probe.basis) * probe.extent)
    return np.int64(steady + 1 if to_host(change) ** 0.5 <= slack else 0)
