"""The command line: parse, call one public function, show."""

from __future__ import annotations

import argparse
import io
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import bracketflow
from bracketflow.atomic import write_atomically
from bracketflow.bench import SCENES, run_bench
from bracketflow.bench.page import write_page
from bracketflow.bench.race import table
from bracketflow.certificates import Certificate, certify_record
from bracketflow.core import Result, Status
from bracketflow.demo import exactness, run_demo, setting_words, summary, verdict
from bracketflow.demo import write_page as write_demo_page
from bracketflow.demo.words import figures as demo_figures
from bracketflow.experiments import command as experiments
from bracketflow.guarantees import Guarantees, Leading, guarantees
from bracketflow.solve import decompose
from bracketflow.streams import load_matrix
from bracketflow.tracking import command as tracking


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `bracketflow` and `python -m bracketflow`; returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        return int(args.handler(args))
    except (ValueError, TypeError, ImportError, OSError) as error:
        print(f"bracketflow: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bracketflow",
        description="Find and track eigenvectors of a matrix you can only multiply with.",
    )
    parser.add_argument("--version", action="version", version=bracketflow.__version__)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="find moving sources with a sensor array whose noise floor swings",
        description="Track sources with a sensor array under a swinging noise floor, beside raw "
        "Oja and IncrementalPCA; writes a page with plots.",
        epilog="example: bracketflow demo --out out/demo",
    )
    demo.add_argument("--out", type=Path, default=Path("out/demo"), help="output folder")
    demo.add_argument("--steps", type=int, default=600, help="observations (default 600)")
    demo.add_argument("--seed", type=int, default=0, help="of the scene (default 0)")
    demo.add_argument("--json", action="store_true", help="machine-readable output")
    demo.set_defaults(handler=_demo)
    tracking.add_arguments(commands)
    fixed = commands.add_parser(
        "decompose",
        help="leading eigenvectors of one fixed matrix in a file",
        description=(
            "Leading eigenvectors of a fixed symmetric matrix (.npy, .npz, .mtx), each with its\n"
            "residual. It is made for operators that change; of a fixed matrix in memory NumPy's\n"
            "eigh or SciPy's eigsh find the same with fewer products."
        ),
        epilog=(
            "examples:\n  bracketflow decompose A.mtx -k 6\n"
            "  bracketflow decompose A.npy -k 3 --which smallest --out pairs.npz --json\n\n"
            "exit code: 0 converged, 1 stopped before (see the advice), 2 bad usage or input"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fixed.add_argument("file", type=Path, help="matrix (.npy, .npz, .mtx)")
    fixed.add_argument("-k", type=int, help="how many eigenvectors (default 6, or all)")
    fixed.add_argument("--which", choices=("largest", "smallest"), default="largest")
    fixed.add_argument("--tol", type=float, default=1e-8, help="residual / spread (default 1e-8)")
    fixed.add_argument("--max-steps", type=int, default=1000, help="products (default 1000)")
    fixed.add_argument("--out", type=Path, help="write eigenvalues and eigenvectors here (.npz)")
    fixed.add_argument("--json", action="store_true", help="machine-readable output")
    fixed.set_defaults(handler=_decompose)
    certify = commands.add_parser(
        "certify",
        help="say what is guaranteed for a matrix, or what a recorded run shows",
        description=(
            "For a matrix file (.npy, .npz, .mtx): its spectrum, admissible steps, noise ball,\n"
            "and what the theory does and does not guarantee. For a recorded run (.jsonl):\n"
            "enclosures, gaps and angles by its last record, and how far each is proved."
        ),
        epilog=(
            "examples:\n  bracketflow certify A.npy --noise 0.05\n"
            "  bracketflow certify A.npy --noise 0.05 -k 3 --weights 3 2 1\n"
            "  bracketflow certify run.jsonl\n\n"
            "exit code: 0 everything holds, 1 something is not guaranteed, 2 bad input"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    certify.add_argument("file", type=Path, help="matrix (.npy, .npz, .mtx) or run (.jsonl)")
    certify.add_argument(
        "--noise", type=float, default=0.0, help="bound on ‖E‖_F of one observation (default 0)"
    )
    certify.add_argument(
        "--target", type=float, default=1e-6, help="level of f to be reached (default 1e-6)"
    )
    certify.add_argument("-k", type=int, help="also what is proved of the leading k vectors")
    certify.add_argument(
        "--weights", type=float, nargs="+", help="k decreasing weights (default: all equal)"
    )
    certify.add_argument("--json", action="store_true", help="machine-readable output")
    certify.set_defaults(handler=_certify)
    experiments.add_arguments(commands)
    bench = commands.add_parser(
        "bench",
        help="race the tracker against its rivals on the same observations",
        description="Race the tracker against its rivals; writes bench.json and index.html.",
        epilog=(
            "scenes:\n"
            + "\n".join(f"  {name:<10s} {scene.title}" for name, scene in SCENES.items())
            + "\n\nexamples:\n  bracketflow bench\n  bracketflow bench noise drift --seeds 10\n"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    bench.add_argument("scenes", nargs="*", metavar="SCENE", help="scenes (default: all)")
    bench.add_argument("--seeds", type=int, default=5, help="draws of each scene (default 5)")
    bench.add_argument("--quick", action="store_true", help="one draw, a tenth of the steps")
    bench.add_argument("--out", type=Path, default=Path("out/bench"), help="output folder")
    bench.add_argument("--json", action="store_true", help="print the record instead of tables")
    bench.set_defaults(handler=_bench)
    return parser


def _bench(args: argparse.Namespace) -> int:
    def announce(scene: str, contender: str) -> None:
        print(f"\r{scene}: {contender:<40s}", end="", file=sys.stderr, flush=True)

    record = run_bench(
        args.scenes, seeds=args.seeds, quick=args.quick, out=args.out, announce=announce
    )
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr, flush=True)
    page = write_page(record, args.out)
    if args.json:
        print(json.dumps(record))
        return 0
    for name, curves in record["scenes"].items():
        print(f"{SCENES[name].title}\n  {SCENES[name].words}")
        print("\n".join(table(curves)), end="\n\n")
    print(f"The page is {page}")
    return 0


def _certify(args: argparse.Namespace) -> int:
    if args.file.suffix == ".jsonl":
        proof = certify_record(_last_record(args.file))
        print(json.dumps(_proof_as_dict(proof)) if args.json else "\n".join(_proof_lines(proof)))
        return 0 if proof.converged else 1
    promised = guarantees(
        load_matrix(args.file), args.noise, target=args.target, k=args.k, weights=args.weights
    )
    if args.json:
        print(json.dumps(_json_numbers({"file": str(args.file), **promised.as_dict()})))
    else:
        print("\n".join(_guarantee_lines(str(args.file), promised)))
    return 0 if all(check.holds for check in promised.checks.values()) else 1


def _last_record(path: Path) -> dict[str, Any]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        record = json.loads(lines[-1])
    except (OSError, UnicodeDecodeError, IndexError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: no record can be read from it: {error}") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path}: its last line is not a record")
    return record


def _guarantee_lines(name: str, g: Guarantees) -> Iterator[str]:
    values = [f"{v:.6g}" for v in g.eigenvalues]
    shown = values if g.n <= 8 else [*values[:4], "…", *values[-3:]]
    yield f"{name}: {g.n} × {g.n}, symmetric"
    yield f"  spectrum        {', '.join(shown)}"
    yield f"  spread          {g.spread:.6g}"
    yield f"  smallest gap    {g.gap:.6g}, between λ_{g.gap_at} and λ_{g.gap_at + 1}"
    yield f"  ‖C_e‖₂          {g.centred_norm:.6g}"
    yield ""
    yield f"  {'step size η':<30s}{'value':>12s}{f'steps to f < {g.target:g}':>24s}"
    notes = {
        "printed": "printed, 1/L_C",
        "sharp": "sharp, 1/(12 r²), proved",
        "edge": "edge of local stability",
    }
    for kind, eta in g.steps.items():
        yield f"  {notes[kind]:<30s}{eta:>12.4g}{g.expected[kind]:>24,.0f}"
    yield ""
    yield f"  noise ‖E‖_F up to {g.noise:g}: √f in the long run"
    yield f"    paper's worst case            {g.ball['bound']:.4g}"
    yield f"    worst case, sharper           {g.ball['sharp']:.4g}"
    yield f"    independent noise, on average {g.ball['independent']:.4g}"
    if np.isfinite(g.entry.steps):
        yield f"  with guard=True, entry from every start in {g.entry.steps:,.0f} steps at most"
    yield ""
    if g.leading is not None:
        yield from _leading_lines(g.leading)
        yield ""
    for what, check in g.checks.items():
        yield f"  [{'yes' if check.holds else 'no ':<3s}] {what}: {check.reason}"
    yield ""
    yield from _wrapped(f"What limits it: {g.limit}")


def _leading_lines(leading: Leading) -> Iterator[str]:
    weights = ", ".join(f"{weight:g}" for weight in leading.weights)
    yield f"  leading {leading.k}, weights {weights}: y is the root of what is missing of tr(XᵀCXN)"
    yield f"    step η = 1/(2ν₁·spread)       {leading.step:.4g}, raises it from everywhere"
    yield f"    rate without noise            1 − {leading.step * leading.rate:.3g} a step, nearby"
    yield f"    y in the long run, at most    {leading.ball:.4g}, from y < {leading.basin:.4g}"
    yield f"    independent noise, on average {leading.independent:.4g}"


def _proof_as_dict(proof: Certificate) -> dict[str, Any]:
    names = ("eigenvalues", "lower", "upper", "residuals", "gaps", "angles", "precision")
    return {
        **{name: _json_numbers(getattr(proof, name).tolist()) for name in names},
        "subspace": _json_numbers(float(proof.subspace)),
        "distance": _json_numbers(float(proof.distance)),
        "status": proof.status.name,
        "advice": proof.status.value,
        "assumption": proof.assumption,
        "intervals_are": proof.intervals_are,
        "angles_are": proof.angles_are,
    }


def _json_numbers(values: Any) -> Any:
    """Numbers for JSON, which has no inf: a bound that could not be given is null."""
    if isinstance(values, dict):
        return {name: _json_numbers(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_json_numbers(value) for value in values]
    return None if isinstance(values, float) and not np.isfinite(values) else values


def _proof_lines(proof: Certificate) -> Iterator[str]:
    head = ("eigenvalue", "enclosed in", "residual", "gap", "sin angle")
    yield "  {:>14s}  {:^32s}  {:>9s}  {:>9s}  {:>9s}".format(*head)
    rows = zip(
        proof.eigenvalues,
        proof.lower,
        proof.upper,
        proof.residuals,
        proof.gaps,
        proof.angles,
        strict=True,
    )
    for value, low, high, residual, gap, angle in rows:
        known = f"≤ {angle:.1e}" if np.isfinite(angle) else "unknown"
        yield (
            f"  {value:>14.8g}  [{low:>14.8g}, {high:>14.8g}]   {residual:>9.1e}  {gap:>9.2g}  "
            f"{known:>9s}"
        )
    yield ""
    yield from _wrapped(f"Intervals: {proof.intervals_are}. Angles: {proof.angles_are}.")
    yield from _wrapped(f"Assumed: {proof.assumption}.")
    yield from _wrapped(f"{proof.status.name}: {proof.status.value}")


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, 96, initial_indent="  ", subsequent_indent="    ")


def _decompose(args: argparse.Namespace) -> int:
    matrix = load_matrix(args.file)
    n = matrix.shape[0]
    if matrix.shape != (n, n):
        raise ValueError(f"{args.file}: expected a square matrix, got shape {matrix.shape}")
    if args.k is not None and args.k > n:
        raise ValueError(f"{args.file}: k = {args.k} is more than its {n} columns")
    try:
        result = decompose(
            matrix,
            min(6, n) if args.k is None else args.k,
            which=args.which,
            tol=args.tol,
            max_steps=args.max_steps,
            rng=0,
        )
    except ValueError as error:
        raise ValueError(f"{args.file}: {error}") from error
    if args.out is not None:
        _write_pairs(args.out, result)
    if args.json:
        print(json.dumps({"file": str(args.file), "n": n, **_result_as_dict(result)}))
    else:
        print("\n".join(_result_lines(args, n, result)))
    return 0 if result.status in (Status.CONVERGED, Status.PRECISION_FLOOR) else 1


def _write_pairs(path: Path, result: Result) -> None:
    if path.suffix != ".npz":
        raise ValueError(f"--out must end in .npz, got {path}")
    buffer = io.BytesIO()
    names = ("eigenvalues", "eigenvectors", "residuals")
    np.savez(buffer, **{name: getattr(result, name) for name in names})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [buffer.getvalue()])


def _result_as_dict(result: Result) -> dict[str, Any]:
    return {
        "eigenvalues": result.eigenvalues.tolist(),
        "residuals": result.residuals.tolist(),
        "status": result.status.name,
        "advice": result.status.value,
        "converged": bool(result.converged),
        "missed_probability": float(result.missed_probability),
        "steps": int(result.state.steps),
        "matvecs": int(result.state.matvecs),
    }


def _result_lines(args: argparse.Namespace, n: int, result: Result) -> Iterator[str]:
    yield f"{args.file}: {n} × {n}, the {len(result.eigenvalues)} {args.which} eigenvalues"
    yield ""
    yield f"  {'eigenvalue':>20s}  {'residual':>9s}"
    for value, residual in zip(result.eigenvalues, result.residuals, strict=True):
        yield f"  {value:>20.14g}  {residual:>9.1e}"
    yield ""
    yield f"  {int(result.state.matvecs)} products with the matrix"
    yield f"  an eigenvalue was missed with probability {result.missed_probability:.0e} at most"
    yield from _wrapped(f"{result.status.name}: {result.status.value}")
    if args.out is not None:
        yield f"  Written to {args.out}"


def _demo(args: argparse.Namespace) -> int:
    def announce(name: str) -> None:
        if sys.stderr.isatty():
            print(f"\r{name:<60s}", end="", file=sys.stderr, flush=True)

    contest = run_demo(args.steps, args.seed, announce)
    announce("")
    args.out.mkdir(parents=True, exist_ok=True)
    page = write_demo_page(contest, args.out)
    if args.json:
        found = {name: asdict(demo_figures(contest, name)) for name in contest.tracks}
        print(json.dumps({"page": str(page), "contenders": found}))
        return 0
    print("\r" + "\n".join(_wrapped(setting_words(contest))), end="\n\n")
    print("\n".join(summary(contest)), end="\n\n")
    print("\n".join(_wrapped(f"{verdict(contest)} {exactness(contest)}")))
    print(f"\nThe page is {page}")
    return 0
