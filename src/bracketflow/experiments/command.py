"""The sub-commands `reproduce` and `report`: parse, call one public function, show."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from bracketflow.experiments import EXPERIMENTS, suite

EXAMPLES = """examples:
  bracketflow reproduce                        every experiment at quick size, half a minute
  bracketflow reproduce --full --out results   the paper's sizes, a few minutes
  bracketflow reproduce A1 B7 --full           two of them
  bracketflow reproduce --full --resume        go on after an interruption
  bracketflow reproduce all --skip A1
"""


JSON_HELP = "end with one JSON object: the page, and the experiments that failed"


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
    reproduce.add_argument("--json", action="store_true", help=JSON_HELP)
    reproduce.set_defaults(handler=run_reproduce)
    report = subparsers.add_parser(
        "report",
        help="redraw figures, tables and page from stored records",
        description="Redraw figures, tables and page from stored records; nothing is computed.",
        epilog="example:\n  bracketflow report out/reproduce-full",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument("directory", metavar="DIR", help="folder that `reproduce` has written")
    report.add_argument("--json", action="store_true", help=JSON_HELP)
    report.set_defaults(handler=run_report)


def run_reproduce(args: argparse.Namespace) -> int:
    """`bracketflow reproduce`."""
    out = args.out or f"out/reproduce-{'full' if args.full else 'quick'}"
    skip = [name for group in args.skip for name in group.split(",") if name]
    try:
        with ended_by_signals(), make_display(args.json) as show:
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
    except KeyboardInterrupt as stop:
        print("interrupted: finished experiments are kept, go on with --resume", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is to end a run as Ctrl-C does: workers stopped, the lock freed."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Raise `Terminated` where SIGTERM would have killed the process at once."""
    if threading.current_thread() is not threading.main_thread():  # signals are not ours there
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_report(args: argparse.Namespace) -> int:
    """`bracketflow report`."""
    try:
        with ended_by_signals(), make_display(args.json) as show:
            suite.report(args.directory, show)
    except (ValueError, OSError) as error:
        return _complain(error)
    except KeyboardInterrupt as stop:
        print("interrupted: nothing is half written, call it again", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    return 0


def _complain(error: Exception) -> int:
    print(f"bracketflow: {error}", file=sys.stderr)
    return 2


# Showing progress -------------------------------------------------------------------------------


def make_display(as_json: bool = False) -> AbstractContextManager[suite.Show]:
    """Bars in a terminal that has rich, plain lines elsewhere."""
    if as_json:
        return Outcome()
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


class Outcome(Lines):
    """Lines beside the answer, and one JSON object as the answer."""

    def __init__(self) -> None:
        self._failed: list[str] = []

    def __call__(self, event: suite.Event) -> None:
        """Say what ended; the page comes last."""
        if event.kind == "failed":
            self._failed.append(event.name)
        if event.kind == "page":
            print(json.dumps({"page": event.text, "failed": self._failed}), flush=True)
        else:
            super().__call__(event)


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
