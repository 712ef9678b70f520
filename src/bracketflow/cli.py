"""The command line: parse, call one public function, show."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import bracketflow
from bracketflow import demo as demonstration
from bracketflow.monitor import Progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `bracketflow` and `python -m bracketflow`; returns the exit code."""
    args = _parser().parse_args(arguments)
    handler = args.handler
    return int(handler(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bracketflow",
        description="Find and track eigenvectors of a matrix you can only multiply with.",
    )
    parser.add_argument("--version", action="version", version=bracketflow.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="track a signal under a background that swings a thousandfold",
        description="Run bracketflow and raw Oja on the same noisy stream and plot their errors.",
        epilog="example: bracketflow demo --out out/demo.png",
    )
    demo.add_argument("--out", type=Path, default=Path("out/demo.png"), help="where the plot goes")
    demo.add_argument("--steps", type=int, default=600, help="observations (default 600)")
    demo.set_defaults(handler=_demo)
    return parser


def _demo(args: argparse.Namespace) -> int:
    problem = demonstration.scene(steps=args.steps)
    print(
        f"{args.steps} observations C_t = C_sig + σ²I + noise, n = {len(problem.signal)}, leading "
        f"k = {problem.truth.shape[1]}; σ² swings over 0 … 2000, with impulses to 1e6.\n"
    )
    recorders = {}
    for name, method in demonstration.CONTENDERS.items():
        with Progress(args.steps, f"{name:<26s}") as bar:
            recorders[name] = demonstration.follow(problem, method, [bar])
    print(f"\n{'subspace error after':<28s}" + "".join(f"{t:>12d}" for t in _marks(args.steps)))
    for name, recorder in recorders.items():
        errors = recorder.column("error")
        print(f"{name:<28s}" + "".join(f"{errors[t - 1]:>12.4f}" for t in _marks(args.steps)))
    demonstration.draw(problem, recorders, args.out)
    print(f"\nThe plot is in {args.out}")
    return 0


def _marks(steps: int) -> list[int]:
    return sorted({max(1, steps * part // 6) for part in (1, 2, 4, 6)})
