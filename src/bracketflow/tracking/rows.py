"""EigenTracker on rows of data: centring and total variance travel in the state."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

import numpy as np

from bracketflow.core import Array, Event, Probe, State, epsilon
from bracketflow.geometry import subspace_error, upright
from bracketflow.oracles import Operator, gram
from bracketflow.streams import Moments, covariance, second_moment
from bracketflow.tracker import EigenTracker, Reading
from bracketflow.tracker.ladder import Ladder
from bracketflow.tracker.reading import Memory, eigenvalues

FAINT_KEPT = 10_000  # steps of batches that counted little, so that a run of weeks stays small


class Ledger(NamedTuple):
    """Memory of a `RowTracker`: the tracker's own, and what the rows say beside it."""

    tracker: Any
    read: int = 0
    """Rows read."""
    moments: Moments = Moments()
    """Of the rows so far; those of a loud batch count as little as its operator."""
    totals: Any = 0.0
    """Total variance tr C, averaged as each of the tracker's means is, (J,)."""
    pending: float = 0.0
    """Σ weight·tr C of the batches that wait to enter the means."""
    floor: float = float("nan")
    """Mean of the unseen eigenvalues of the last batch: (tr C_t − k s_t)/(n − k)."""
    change: float = 0.0
    """`subspace_error` between the last two bases."""
    noticed: tuple[Event, ...] = ()
    """Events of the last step."""
    batches: int = 0
    """Batches read."""
    faint: int = 0
    """How many of them counted little,"""
    faint_at: Any = np.zeros(0, dtype=np.int64)
    """and at which steps, the latest `FAINT_KEPT`."""
    series: tuple[int, str] = (0, "")
    """Of a saved state: what the series held before its line, see `series.Written`."""

    @property
    def total(self) -> float:
        """Total variance tr C, averaged as the eigenvalues are."""
        if np.ndim(self.totals) == 0:  # nothing was read
            return float(self.totals)
        ladder = Memory(*self.tracker).ladder
        mean = float(self.totals[ladder.chosen])
        return mean + (self.pending - ladder.awaited * mean) / ladder.memory


class Added(Protocol):
    """What a batch adds to a covariance: `streams.Covariance`, also of a batch spread over ranks.

    Only the operator need be known before its product.
    """

    @property
    def operator(self) -> Operator:
        """Weighted by the number of rows."""
        ...

    @property
    def total(self) -> float:
        """Its trace."""
        ...

    @property
    def moments(self) -> Moments:
        """Of all rows up to and with this batch."""
        ...


@dataclass(eq=False)
class Batch(Operator):
    """`gram(rows)` that remembers its rows."""

    rows: Any = None

    def added(self, seen: Moments, *, centre: bool) -> Added:
        """What the rows add to those seen."""
        return covariance(self.rows, seen) if centre else second_moment(self.rows, seen)


def as_batch(rows: Any) -> Batch:
    """Rows (b, n) as an observation for a `RowTracker`."""
    plain = gram(rows)
    return Batch(**{part.name: getattr(plain, part.name) for part in fields(Operator)}, rows=rows)


@dataclass(frozen=True)
class RowTracker:
    """`EigenTracker` for batches of rows: eigenvectors of their covariance.

    A method like any other, but an observation must be a `Batch`. Everything it needs to go on is
    in the state, so a checkpoint resumes to the last bit.

    Parameters
    ----------
    centre : bool
        Take the running mean of the rows out; without it the second moments Σxxᵀ/N are tracked.
    tracker : EigenTracker
    """

    centre: bool = True
    tracker: EigenTracker = field(default_factory=EigenTracker)

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis."""
        state = self.tracker.init(basis, rng)
        return state._replace(memory=Ledger(state.memory))

    def step(self, batch: Batch, state: State) -> tuple[State, Probe]:
        """One batch: new state, and the probe of the state that went in."""
        ledger, before = ledger_of(state), _bare(state)
        added = batch.added(ledger.moments, centre=self.centre)
        after, probe = self.tracker.step(added.operator, before)
        ladder, noticed = Memory(*after.memory).ladder, self.tracker.events(before, after)
        n, k = probe.basis.shape
        unseen = (added.total - k * float(probe.background)) / (n - k) if k < n else np.nan
        ledger = ledger._replace(
            tracker=after.memory,
            read=ledger.read + round(added.operator.weight),
            batches=ledger.batches + 1,
            moments=_counted(ledger.moments, added.moments, float(ladder.loudness)),
            **_averaged(ledger, added.total, Memory(*ledger.tracker).ladder, ladder),
            floor=unseen,
            change=_distance(before.basis, after.basis),
            noticed=noticed,
        )
        if any(event.kind == "outlier" for event in noticed):
            faint_at = np.append(ledger.faint_at, int(before.steps))[-FAINT_KEPT:]
            ledger = ledger._replace(faint=ledger.faint + 1, faint_at=faint_at)
        return _settled(after._replace(memory=ledger)), probe

    def events(self, before: State, after: State) -> tuple[Event, ...]:
        """What the tracker noticed in the step to `after`."""
        return ledger_of(after).noticed

    def eigenvalues(self, state: State, probe: Probe) -> Array:
        """Averaged variances along the columns, background included."""
        return self.tracker.eigenvalues(_bare(state), probe)

    def background(self, state: State) -> float:
        """Averaged mean of the eigenvalues that are not tracked; NaN for a full basis."""
        return background(state)

    def read(self, state: State, coverage: float = 0.95) -> Reading:
        """The tracker's reading: its eigenvalues are variances of the rows."""
        return self.tracker.read(_bare(state), coverage)


def ledger_of(state: State) -> Ledger:
    """The memory of a `RowTracker`'s state, also after it has been read from a file."""
    ledger = Ledger(*state.memory)
    noticed = tuple(Event(*event) for event in ledger.noticed)
    return ledger._replace(moments=Moments(*ledger.moments), noticed=noticed)


def variances(state: State) -> np.ndarray:
    """Averaged variance of the rows along each column of the basis."""
    return eigenvalues(_bare(state))


def background(state: State) -> float:
    """Averaged mean of the eigenvalues that are not tracked; NaN for a full basis."""
    n, k = state.basis.shape
    if n == k:
        return float("nan")
    return float((ledger_of(state).total - variances(state).sum()) / (n - k))


def eigenpairs(state: State, method: RowTracker) -> dict[str, np.ndarray]:
    """Figures of a state by descending eigenvalue: what `eigenpairs.npz` holds."""
    reading, values = method.read(state), variances(state)
    order = np.argsort(-values, kind="stable")
    mean = ledger_of(state).moments.mean
    return {
        "eigenvalues": values[order],
        "eigenvectors": upright(state.basis[:, order]),
        "eigenvalue_errors": known_errors(reading.eigenvalue_errors)[order],
        "vector_errors": known_errors(reading.vector_errors)[order],
        "mean": np.zeros(state.basis.shape[0]) if mean is None else mean,
        "background": np.asarray(background(state)),
        "total_variance": np.asarray(ledger_of(state).total),
    }


def known_errors(errors: np.ndarray) -> np.ndarray:
    """Error bars as read, NaN where too little has been averaged to know them."""
    return np.where((errors > 0) & np.isfinite(errors), errors, np.nan)


def vector_error_words(error: float | None) -> str:
    """The error of a vector for people: √2 is all it can be, and says nothing."""
    if error is None:
        return "unknown"
    return f"{error:.2g}" if error < 1.4 else "undetermined"


def faint_words(figures: dict[str, Any]) -> str:
    """How many batches counted little, for people; `figures` are those of a `summary`."""
    count, batches = figures["counted_little"], figures["steps"]
    return f"{count:,} of {batches:,} batches were louder than usual and counted little"


def summary(state: State, method: RowTracker) -> dict[str, Any]:
    """The figures of a state in plain numbers, None where there is none."""
    pairs, reading = eigenpairs(state, method), method.read(state)
    total = float(pairs["total_variance"])
    n, k = state.basis.shape
    numbers = {
        "eigenvalues": pairs["eigenvalues"],
        "eigenvalue_errors": pairs["eigenvalue_errors"],
        "vector_errors": pairs["vector_errors"],
        "share": pairs["eigenvalues"] / total if total > 0 else np.full(k, np.nan),
        "background": pairs["background"],
        "total_variance": pairs["total_variance"],
        "averaged_rows": reading.memory,
    }
    ledger = ledger_of(state)
    return {
        "rows": ledger.read,
        "columns": n,
        "k": k,
        "steps": int(state.steps),
        "matvecs": int(state.matvecs),
        "jumps": int(reading.jumps),
        "counted_little": ledger.faint,
        "counted_little_at": ledger.faint_at.tolist(),
        **{name: _json_ready(np.asarray(value).tolist()) for name, value in numbers.items()},
    }


def _json_ready(value: Any) -> Any:
    """Numbers for JSON, which has no NaN."""
    if isinstance(value, list):
        return [_json_ready(item) for item in value]
    return value if np.isfinite(value) else None


def _distance(before: Array, after: Array) -> float:
    """`subspace_error`, exactly 0 where nothing has turned but by rounding."""
    distance = float(subspace_error(before, after))
    return distance if distance > 8 * epsilon(after) * after.size**0.5 else 0.0


def _settled(value: Any) -> Any:
    """A state as a checkpoint gives it back: other layouts of its arrays give other last bits."""
    if isinstance(value, np.ndarray):
        return np.asarray(value, order="C")
    if not isinstance(value, tuple):
        return value
    parts = map(_settled, value)
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


def _bare(state: State) -> State:
    """The state as the tracker knows it."""
    return state._replace(memory=state.memory[0])


def _counted(before: Moments, after: Moments, loudness: float) -> Moments:
    """The moments with a batch in them, which counts 1/loudness as its operator does."""
    if loudness == 1 or after.mean is None:
        return after
    b = after.rows - before.rows
    counted = round(b / loudness)
    part = counted / (before.rows + counted) * (after.rows / b)
    return Moments(before.rows + counted, before.mean + part * (after.mean - before.mean))


def _averaged(ledger: Ledger, total: float, before: Ladder, after: Ladder) -> dict[str, Any]:
    """Totals of the means, and of what waits, with one of a batch taken in as the tracker did."""
    pending = ledger.pending + float(after.counted[-1]) * total
    if after.waiting:
        return {"totals": ledger.totals, "pending": pending}
    waited = float(after.counted[len(after.counted) - 1 - int(before.waiting) :].sum())
    past = np.broadcast_to(ledger.totals, after.gains.shape)[after.source]
    return {"totals": past + after.gains * (pending / waited - past), "pending": 0.0}
