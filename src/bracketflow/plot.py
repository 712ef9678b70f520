"""Pictures of runs: each function takes a run and, if given, Axes to draw on, and returns the Axes.

A run is a `Recorder` (or its list of records), drawn over its steps, or a `Result`, drawn over its
vectors. Nothing here changes a style or shows a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bracketflow.certificates import certify, certify_record
from bracketflow.core import Result, to_host
from bracketflow.monitor import Record, Recorder

Run = Recorder | Sequence[Record] | Result
Axes = Any  # matplotlib.axes.Axes

WIDE = 100  # ratio of largest to smallest from which a logarithmic axis reads better
NEAR = 1e-4  # of the residuals: rounding below this part of them limits nothing
LABELLED = 10  # more lines than this are not told apart by a legend

NEEDS = {
    "change": 'bf.Recorder(measures={"change": bracketflow.monitor.SubspaceChange()})',
}


def eigenvalues(run: Run, axes: Axes | None = None, *, above: str | None = None) -> Axes:
    """Eigenvalue tracks with error bars as bands; of a Result, the intervals of its certificate.

    Parameters
    ----------
    above : str, optional
        A recorded measure to take off, such as "unseen" (the averaged level of `error_bars`): the
        tracks then do not move with it.

    Notes
    -----
    Bands need the measure "eigenvalue_errors": `Recorder(measures=monitor.error_bars(method))`.
    """
    axes = _axes(axes)
    if isinstance(run, Result):
        return _enclosures(run, axes)
    records = _records(run, "eigenvalues")
    when = _abscissa(axes, records)
    values = _column(records, "eigenvalues")
    if above is not None:
        values = values - _column(_records(run, above), above)
    errors = _column(records, "eigenvalue_errors") if _has(records, "eigenvalue_errors") else None
    for i, track in enumerate(values.T):
        (line,) = axes.plot(when, track, label=_name(i))
        if errors is not None:
            band = (track - errors[:, i], track + errors[:, i])
            axes.fill_between(when, *band, alpha=0.25, linewidth=0, color=line.get_color())
    axes.set_ylabel("eigenvalue" if above is None else f"eigenvalue − {above}")
    return _legend(axes, values.shape[1])


def background(run: Run, axes: Axes | None = None) -> Axes:
    """The background: mean of the unseen eigenvalues ("floor") where recorded, else the level s.

    The level s is σ² plus the mean of the tracked eigenvalues.
    """
    records = _records(run, "background")
    axes = _axes(axes)
    when = _abscissa(axes, records)
    seen = "floor" if _has(records, "floor") else "background"
    levels = _column(records, seen)
    axes.plot(when, levels)
    _maybe_log(axes, levels)
    axes.set_ylabel(
        "mean of the unseen eigenvalues" if seen == "floor" else "σ² + mean of tracked eigenvalues"
    )
    return axes


def residuals(run: Run, axes: Axes | None = None) -> Axes:
    """Residuals r_i on a logarithmic axis, and, where it is near, the rounding that limits them."""
    axes = _axes(axes)
    if isinstance(run, Result):
        return _per_vector(axes, to_host(run.residuals), "residual r")
    records = _records(run, "residuals")
    when = _abscissa(axes, records)
    values = _column(records, "residuals")
    for i, track in enumerate(values.T):
        axes.plot(when, _positive(track), label=_name(i))
    rounding = _column(records, "rounding").max(axis=1) if _has(records, "rounding") else None
    if rounding is not None and np.nanmax(rounding) > NEAR * np.nanmin(values):
        axes.plot(when, _positive(rounding), color="0.5", linestyle=":", label="rounding")
    axes.set_yscale("log")
    axes.set_ylabel("residual r")
    return _legend(axes, values.shape[1])


def subspace_change(run: Run, axes: Axes | None = None) -> Axes:
    """How far the subspace has moved from one record to the next, where it has."""
    records = _records(run, "change")
    axes = _axes(axes)
    when = _abscissa(axes, records)
    for track in _column(records, "change").T:
        moved = track > 0
        axes.plot(when[moved], track[moved], marker=".", markersize=3)
    axes.set_yscale("log")
    axes.set_ylabel("subspace change")
    return axes


def lyapunov(run: Run, axes: Axes | None = None) -> Axes:
    """f = ½‖off H‖² + ‖R‖² on a logarithmic axis."""
    records = _records(run, "lyapunov")
    axes = _axes(axes)
    when = _abscissa(axes, records)
    for track in _column(records, "lyapunov").T:
        axes.plot(when, _positive(track))
    axes.set_yscale("log")
    axes.set_ylabel("f = ½‖off H‖² + ‖R‖²")
    return axes


def certificate(run: Run, axes: Axes | None = None) -> Axes:
    """Bounds on sin ∠(x_i, u_i), one line a vector; a gap where there is none.

    They are those of `certify`: proved for a full basis, estimated for the leading k. A bound
    speaks of one observation: of noisy ones it says little, and the dashed lines, the errors that
    averages are expected to have ("vector_errors" where recorded), say more.
    """
    axes = _axes(axes)
    if isinstance(run, Result):
        proof = certify(run.state, run.probe)
        return _per_vector(axes, proof.angles, "sin of the angle, at most")
    recorded = _records(run)
    records = recorded if _has(recorded, "angles") else _records(run, "residuals", "rounding")
    when = _abscissa(axes, records)
    angles = _proved_angles(records)
    expected = _column(records, "vector_errors") if _has(records, "vector_errors") else None
    for i, track in enumerate(angles.T):
        (line,) = axes.plot(when, _positive(track), label=_name(i))
        if expected is not None:
            errors = _positive(expected[:, i])
            axes.plot(when, errors, linestyle="--", color=line.get_color(), linewidth=1)
    axes.set_yscale("log")
    axes.set_ylabel("sin of the angle, at most")
    return _legend(axes, angles.shape[1])


# Reading runs -----------------------------------------------------------------------------------


def _records(run: Run, *names: str) -> Sequence[Record]:
    if isinstance(run, Result):
        raise ValueError("a Result holds one moment: pass the Recorder that watched the run")
    records = run.records if isinstance(run, Recorder) else run
    if not records:
        raise ValueError("the run holds no records: pass bf.Recorder() among the monitors of a run")
    for name in names:
        if not _has(records, name):
            how = NEEDS.get(name, f'bf.Recorder(measures={{"{name}": …}})')
            raise ValueError(f"the records hold no {name!r}: record it with {how}")
    return records


def _has(records: Sequence[Record], name: str) -> bool:
    return name in records[0]


def _column(records: Sequence[Record], name: str) -> np.ndarray:
    """One measure as (records, values), the members of an ensemble side by side."""
    values = np.asarray([record[name] for record in records], dtype=float)
    return values.reshape(len(records), -1)


def _proved_angles(records: Sequence[Record]) -> np.ndarray:
    if _has(records, "angles"):
        return _column(records, "angles")
    proved = [np.ravel(certify_record(record).angles) for record in records]
    return np.asarray(proved, dtype=float)


# Drawing ----------------------------------------------------------------------------------------


def _axes(axes: Axes | None) -> Axes:
    if axes is not None:
        return axes
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("plots need matplotlib: pip install 'bracketflow[cli]'") from None
    return pyplot.subplots(layout="constrained")[1]


def _abscissa(axes: Axes, records: Sequence[Record]) -> np.ndarray:
    """Where the records stand: by rows read where they are counted, by steps otherwise."""
    name = "rows" if _has(records, "rows") else "step"
    axes.set_xlabel("rows read" if name == "rows" else "step")
    when = _column(records, name)
    axes.margins(x=0.01)
    return np.asarray(when.max(axis=1))


def _positive(values: np.ndarray) -> np.ndarray:
    """What a logarithmic axis can show; the rest is left open."""
    return np.where((values > 0) & np.isfinite(values), values, np.nan)


def _maybe_log(axes: Axes, values: np.ndarray) -> None:
    finite = values[np.isfinite(values)]
    if finite.size and finite.min() > 0 and finite.max() > WIDE * finite.min():
        axes.set_yscale("log")


def _name(i: int) -> str:
    return f"vector {i + 1}"


def _legend(axes: Axes, lines: int) -> Axes:
    if 1 < lines <= LABELLED:
        axes.legend(loc="best", ncols=2 if lines > 4 else 1)
    return axes


def _per_vector(axes: Axes, values: np.ndarray, label: str) -> Axes:
    flat = np.atleast_2d(values).reshape(-1, values.shape[-1])
    for member in flat:
        axes.plot(range(1, member.size + 1), _positive(member), "o")
    axes.set_yscale("log")
    axes.set_xlabel("vector")
    axes.set_ylabel(label)
    return axes


def _enclosures(result: Result, axes: Axes) -> Axes:
    proof = certify(result.state, result.probe)
    places = np.arange(1, proof.eigenvalues.shape[-1] + 1)
    for value, radius in zip(
        proof.eigenvalues.reshape(-1, places.size),
        proof.residuals.reshape(-1, places.size),
        strict=True,
    ):
        axes.errorbar(places, value, yerr=radius, fmt="o", capsize=3)
    axes.set_xlabel("vector")
    axes.set_ylabel("eigenvalue, ± residual")
    return axes
