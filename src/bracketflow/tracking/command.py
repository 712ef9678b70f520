"""The sub-command `track`: parse, call one function, show."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bracketflow.core import Probe, State, Status
from bracketflow.driver import Monitor
from bracketflow.monitor import Progress
from bracketflow.tracking.interruption import Interruption
from bracketflow.tracking.ranks import HowFar, Ranks, Stuck, launched
from bracketflow.tracking.rows import (
    RowTracker,
    background,
    faint_words,
    variances,
    vector_error_words,
)
from bracketflow.tracking.session import Outcome, follow, nobody
from bracketflow.tracking.settings import Settings

DESCRIPTION = """\
Follow the leading eigenvectors of the covariance of the rows of a file: online PCA that averages
while the data stand still, forgets as fast as they move, and does not see a noise floor that is
the same in all directions. The file is read once, a batch at a time.

FILE ends in .npy (memory-mapped), .npz, .csv, .tsv, .txt, .parquet, .h5 or .hdf5, or is - for
standard input (a .npy array or CSV). The mean of the rows so far is taken out of every batch, so
that the eigenvalues are variances, Σ(x − mean)²/N, as in PCA; --no-centre leaves it in.

Started by torchrun (extra torch), every rank reads its part of each batch, and only the first shows
and writes anything. With {rank} in FILE each rank has a file of its own."""

EPILOG = """\
examples:
  bracketflow track data.npy -k 5 --batch 256 --out run
  bracketflow track data.npy --out run --resume            go on after an interruption
  bracketflow track sensors.csv -k 3 --columns x,y,z,w
  bracketflow track store.h5 --key readings -k 8 --json
  zcat data.csv.gz | bracketflow track - -k 5
  torchrun --nproc-per-node 4 -m bracketflow track data.npy -k 5 --batch 1024 --out run

the folder:
  index.html        a page with plots: eigenvalues, background, residuals, certificate, events
  eigenpairs.npz    eigenvalues, eigenvectors (columns), their errors, the mean of the rows
  series.csv        one line a batch (also series.parquet where pyarrow is installed)
  checkpoint.bf     what --resume goes on from
  run.json          settings, status and figures

exit code:
  0    all rows were read
  2    bad usage or bad input; rows read before the trouble are saved and can be resumed
  130  interrupted by Ctrl-C, 143 by SIGTERM: saved, go on with --resume"""


SAVED = "what was read before it is saved; when it is repaired"


def add_arguments(subparsers: Any) -> None:
    """Register `track` with argparse; `handler(args)` returns an exit code."""
    track = subparsers.add_parser(
        "track",
        help="follow the eigenvectors of the rows of a file, with a page of plots",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    track.add_argument("file", metavar="FILE", help="where the rows are, - for standard input")
    track.add_argument("-k", type=int, help="how many eigenvectors (default 5, or all columns)")
    track.add_argument("--batch", type=int, metavar="ROWS", help="rows of a batch (default 256)")
    track.add_argument(
        "--out", type=Path, default=Path("out/track"), help="output folder (default out/track)"
    )
    track.add_argument("--resume", action="store_true", help="go on with the run in --out")
    track.add_argument(
        "--force", action="store_true", help="start anew; an earlier run goes to OUT/previous"
    )
    track.add_argument(
        "--no-centre",
        dest="centre",
        action="store_false",
        default=None,
        help="do not take the mean out: eigenvectors of Σxxᵀ/N",
    )
    track.add_argument(
        "--forget",
        type=float,
        metavar="SHARE",
        help="share of the memory lost with a batch; 0 averages over all rows as PCA does "
        "(default: learned from the data)",
    )
    track.add_argument("--key", help="the array to take from a .npz or HDF5 file with several")
    track.add_argument(
        "--columns", metavar="NAME,NAME", help="columns to take from a CSV or Parquet file"
    )
    track.add_argument(
        "--skip-bad",
        action="store_true",
        default=None,
        help="leave out rows with NaN, Inf or a missing value",
    )
    track.add_argument("--json", action="store_true", help="print the figures as JSON, no bar")
    track.set_defaults(handler=run_track)


def run_track(args: argparse.Namespace) -> int:
    """`bracketflow track`."""
    try:
        return _tracked(args)
    except Stuck as error:
        print(f"bracketflow: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def _tracked(args: argparse.Namespace) -> int:
    settings = Settings(
        k=args.k,
        batch=args.batch,
        centre=args.centre,
        forget=args.forget,
        key=args.key,
        columns=None if args.columns is None else tuple(args.columns.split(",")),
        skip_bad=args.skip_bad,
    )
    with launched(args.file) as ranks:
        with Interruption() as interruption:
            outcome = follow(
                args.file,
                args.out,
                settings,
                resume=args.resume,
                force=args.force,
                interruption=interruption,
                watchers=nobody if args.json else on_screen,
                ranks=ranks,
            )
        if ranks.first:
            _show(args, outcome)
        again = _again(args, ranks)
        if outcome.problem is not None:
            print(f"bracketflow: {outcome.problem}", file=sys.stderr)
            if ranks.first:
                print(f"{SAVED}, {again}", file=sys.stderr)
            return 2
        if interruption.signal is not None:
            if ranks.first:
                print(f"interrupted, nothing is lost: {again}", file=sys.stderr)
            return 128 + interruption.signal
        return 0


def _again(args: argparse.Namespace, ranks: Ranks) -> str:
    if ranks.count > 1:
        return "go on with the same command and --resume"
    return f"go on with: bracketflow track {args.file} --out {args.out} --resume"


# Showing ----------------------------------------------------------------------------------------


def _show(args: argparse.Namespace, outcome: Outcome) -> None:
    if args.json:
        print(json.dumps(as_dict(args, outcome)))
    else:
        print("\n".join(report(args, outcome)), flush=True)


@contextmanager
def on_screen(rows: HowFar, method: RowTracker) -> Iterator[Sequence[Monitor]]:
    """A bar with the eigenvalues under it, in a terminal that has rich."""
    bar = _bar(rows, method) if sys.stderr.isatty() else None
    if bar is None:
        yield ()
        return
    with bar:
        yield (bar,)
    print("drawing the page …", end="\r", file=sys.stderr, flush=True)


def _bar(rows: HowFar, method: RowTracker) -> Progress | None:
    def eigenvalues(state: State, probe: Probe) -> str:
        return live_line(method, state)

    def read(state: State, probe: Probe) -> int:
        return rows.read

    try:
        return Progress(rows.total, "rows", done=read, below=eigenvalues, stderr=True)
    except ImportError:
        return None


def live_line(method: RowTracker, state: State) -> str:
    """Eigenvalues now, with their error bars, and the background."""
    if state.steps == 0:
        return ""
    reading, values = method.read(state), variances(state)
    shown = [f"{values[i]:.4g} ±{reading.eigenvalue_errors[i]:.1g}" for i in reading.order.tolist()]
    level = background(state)
    return f"λ  {'   '.join(shown)}" + (f"   background {level:.4g}" if level == level else "")


def report(args: argparse.Namespace, outcome: Outcome) -> Iterator[str]:
    """What a run has found, in lines."""
    figures = outcome.summary
    name = "standard input" if args.file == "-" else args.file
    yield f"{name}: {figures['rows']:,} rows × {figures['columns']:,} columns"
    if outcome.refused:
        yield f"  {outcome.refused:,} rows with missing or non-finite values were left out"
    yield ""
    yield "  vector      variance     ± 95 %     share    vector error"
    columns = ("eigenvalues", "eigenvalue_errors", "share", "vector_errors")
    for i, (value, error, share, angle) in enumerate(
        zip(*(figures[c] for c in columns), strict=True), 1
    ):
        cells = (_cell(error, 9), _cell(share, 8, ".1%"), f"{vector_error_words(angle):>14s}")
        yield f"  {i:>6d}  {value:>12.6g}  {'  '.join(cells)}"
    yield ""
    if figures["background"] is not None:
        unseen = figures["columns"] - figures["k"]
        yield f"  background      {figures['background']:.6g}, the mean of the other {unseen:,}"
    if figures["total_variance"] is not None:
        yield f"  total variance  {figures['total_variance']:.6g}"
    if figures["counted_little"]:
        yield f"  {faint_words(figures)}"
    if figures["jumps"]:
        yield f"  the data have jumped {figures['jumps']} times: see the events on the page"
    yield ""
    yield f"The page is {outcome.page}"


def _cell(value: float | None, width: int, form: str = ".2g") -> str:
    return f"{'unknown' if value is None else format(value, form):>{width}s}"


def as_dict(args: argparse.Namespace, outcome: Outcome) -> dict[str, Any]:
    """The same for machines."""
    return {
        "file": args.file,
        "out": str(args.out),
        "page": str(outcome.page),
        "status": outcome.status.name,
        "finished": outcome.status is Status.STREAM_ENDED,
        "problem": outcome.problem,
        "refused_rows": outcome.refused,
        **outcome.summary,
    }
