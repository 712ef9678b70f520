"""The sub-commands `reproduce` and `report`: parse, call one public function, show."""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self

from bracketflow.experiments import EXPERIMENTS, suite

EXAMPLES = """examples:
  bracketflow reproduce                        every experiment at quick size, half a minute
  bracketflow reproduce --full --out results   the paper's sizes, a few minutes
  bracketflow reproduce A1 B7 --full           two of them
  bracketflow reproduce --full --resume        go on after an interruption
  bracketflow reproduce all --skip A1
"""


def add_arguments(subparsers: Any) -> None:
    """Register `reproduce` and `report` with argparse; `handler(args)` returns an exit code."""
    known = "\n".join(f"  {name:<16s}{module.TITLE}" for name, module in EXPERIMENTS.items())
    reproduce = subparsers.add_parser(
        "reproduce",
        help="redo the paper's experiments and write a page: paper, ours, verdict",
        description="Redo the paper's experiments and write a page: paper, ours, verdict.",
        epilog=f"experiments:\n{known}\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    reproduce.add_argument("names", nargs="*", metavar="NAME", help="experiments, or all (default)")
    size = reproduce.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="small sizes, half a minute (default)")
    size.add_argument("--full", action="store_true", help="the paper's sizes, a few minutes")
    reproduce.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="NAME",
        help="leave this one out; may be given again, or as A1,A2",
    )
    reproduce.add_argument(
        "--out", metavar="DIR", help="output folder (default: out/reproduce-quick or -full)"
    )
    reproduce.add_argument("--resume", action="store_true", help="keep finished experiments")
    reproduce.add_argument(
        "--force", action="store_true", help="write into a folder with other contents"
    )
    reproduce.add_argument(
        "--seed", type=int, default=42, help="for problems beyond the paper's own seeds"
    )
    reproduce.set_defaults(handler=run_reproduce)
    report = subparsers.add_parser(
        "report",
        help="redraw figures, tables and page from stored records",
        description="Redraw figures, tables and page from stored records; nothing is computed.",
        epilog="example:\n  bracketflow report out/reproduce-full",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("directory", metavar="DIR", help="folder that `reproduce` has written")
    report.set_defaults(handler=run_report)


def run_reproduce(args: argparse.Namespace) -> int:
    """`bracketflow reproduce`."""
    out = args.out or f"out/reproduce-{'full' if args.full else 'quick'}"
    skip = [name for group in args.skip for name in group.split(",") if name]
    try:
        with make_display() as show:
            return suite.reproduce(
                args.names,
                quick=not args.full,
                out=out,
                skip=skip,
                resume=args.resume,
                force=args.force,
                show=show,
                seed=args.seed,
            )
    except (ValueError, OSError) as error:
        return _complain(error)
    except KeyboardInterrupt:
        print("interrupted: finished experiments are kept, go on with --resume", file=sys.stderr)
        return 130


def run_report(args: argparse.Namespace) -> int:
    """`bracketflow report`."""
    try:
        with make_display() as show:
            suite.report(args.directory, show)
    except (ValueError, OSError) as error:
        return _complain(error)
    return 0


def _complain(error: Exception) -> int:
    print(f"bracketflow: {error}", file=sys.stderr)
    return 2


# Showing progress -------------------------------------------------------------------------------


def make_display() -> AbstractContextManager[suite.Show]:
    """Bars in a terminal that has rich, plain lines elsewhere."""
    if sys.stderr.isatty():
        try:
            return Bars()
        except ImportError:
            pass
    return Lines()


def _sentence(event: suite.Event) -> str | None:
    """What a finished event says, None for those that only move a bar."""
    return {
        "done": f"{event.name}: done" + (f" ({event.text})" if event.text else ""),
        "failed": f"{event.name}: FAILED: {event.text}",
        "kept": f"{event.name}: kept",
        "damaged": f"{event.text}; not trusted",
        "page": f"page: {event.text}",
    }.get(event.kind)


class Lines(AbstractContextManager["Lines"]):
    """One line for each experiment that ends."""

    def __call__(self, event: suite.Event) -> None:
        """Say what ended."""
        text = _sentence(event)
        if text is not None:
            print(text, file=sys.stdout if event.kind == "page" else sys.stderr, flush=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to close."""


class Bars(AbstractContextManager["Bars"]):
    """A bar for each experiment, with the time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self._bars = Progress(
            TextColumn("{task.description:<16s}"),
            BarColumn(),
            TaskProgressColumn(),
            Left(compact=True, elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the finished bars on the screen."""
        self._bars.stop()

    def __call__(self, event: suite.Event) -> None:
        """Move a bar; say what needs words."""
        if event.kind == "start":
            self._tasks[event.name] = self._bars.add_task(event.name, total=1.0)
        elif event.name in self._tasks:
            self._bars.update(self._tasks[event.name], completed=event.fraction)
        if event.kind not in ("start", "progress", "done") or event.text:
            text = _sentence(event)
            if text is not None:
                self._bars.console.print(text, highlight=False, markup=False)
