"""What keeps running keeps its promises: figures beside their bounds.

    python benchmarks/endurance.py                    everything, about two hours on one core
    python benchmarks/endurance.py kills hostile      some parts
    python benchmarks/endurance.py steps --only SO    some methods
    python benchmarks/endurance.py --quick            the sizes that `make test` runs

kills     100 SIGKILLs at random moments, writes included: every restart resumes
poison    a fifth of the observations poisoned: as if they had been absent
hostile   10,000 hostile inputs: clear errors only
steps     10⁶ steps of every method: orthonormality, memory, error late against early
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile

import endurance_kills as kills
import endurance_poison as poison
import endurance_steps as steps

missed = []


def report(what, figure, bound=None):
    verdict = "" if bound is None else ("  ok" if figure <= bound else "  MISSED")
    limit = "" if bound is None else f"  (at most {bound:.4g})"
    if verdict.endswith("MISSED"):
        missed.append(what)
    print(f"  {what:<66s} {figure:>10.4g}{limit}{verdict}", flush=True)


# A million steps --------------------------------------------------------------------------------


def part_steps(args):
    count = 40_000 if args.quick else 1_000_000
    for name in (*steps.METHODS, *steps.BASELINES):
        for dtype in ("float64", "float32"):
            if args.only.lower() in name.lower():
                show_march(name, dtype, march_in_a_process(name, dtype, count))


def march_in_a_process(name, dtype, count):
    """The figures of a process of its own: nobody else's memory is in them."""
    code = (
        "import dataclasses, json, sys, endurance_steps as s\n"
        "name, dtype, count = sys.argv[1:]\n"
        "case = {**s.METHODS, **s.BASELINES}[name]\n"
        "print(json.dumps(dataclasses.asdict(s.march(*case, dtype, int(count)))))"
    )
    return steps.Figures(**json.loads(output_of(["-c", code, name, dtype, str(count)])))


def show_march(name, dtype, figures):
    print(f"{name}, {dtype}")
    report("largest ‖XᵀX − I‖_F", figures.defect, steps.DEFECT[dtype])
    report("largest |H − Hᵀ|", figures.crooked, 0)
    report("steps and products miscounted", figures.miscounted, 0)
    report("resident memory gained since the warm-up, MB", figures.growth / 1e6, 1.0)
    if name in steps.METHODS:
        report("median error of the last 10⁴ steps / of the early ones", figures.ageing, 1.2)
        report("median error of the last 10⁴ steps", figures.late)


# Kills ------------------------------------------------------------------------------------------


def part_kills(args):
    count = 8 if args.quick else 25
    for seed, name in enumerate(kills.METHODS):
        with tempfile.TemporaryDirectory() as folder:
            script = steps.HERE / "endurance_kills.py"
            out = output_of([str(script), folder, name, str(count), str(seed)])
        figures = json.loads(out)
        print(f"{name}: {figures['kills']} kills, {figures['in_writes']} of them inside a write")
        report("restarts that found no valid checkpoint", figures["unreadable"], 0)
        report(f"most steps lost in a kill; the interval is {kills.EVERY}", figures["lost"], 7)
        report("ends that differ from the uninterrupted run in a bit", figures["differs"], 0)
        report("files left behind", figures["left_behind"], 0)


def output_of(arguments, timeout=36_000):
    """What a Python process of its own prints; its death is ours."""
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=steps.HERE, capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode:
        raise SystemExit(f"{arguments[:3]} ended with {done.returncode}: {done.stderr[-500:]}")
    return done.stdout


# Hostile inputs ---------------------------------------------------------------------------------


def part_hostile(args):
    count = 336 if args.quick else 10_080
    figures = json.loads(output_of([str(steps.HERE / "endurance_hostile.py"), str(count), "0"]))
    print(f"{sum(figures['inputs'].values())} inputs of {len(figures['inputs'])} kinds")
    report("answers that were wrong", len(figures["wrong"]), 0)
    report("slowest answer, seconds of processor time", max(figures["slowest"].values()), 2)
    for wrong in figures["wrong"][:20]:
        print(f"    {wrong}")


# Poison -----------------------------------------------------------------------------------------


def part_poison(args):
    seeds = range(1 if args.quick else poison.SEEDS)
    for name in poison.METHODS:
        for kind in poison.POISON:
            if kind == "outliers" and "Tracker" not in name:
                continue  # the flows have no estimate of the noise
            different, ratio = poison.compare(name, kind, seeds)
            print(f"{name}, a fifth {kind}")
            report("runs that differ from the run without them", different, 0)
            report("error / error of the clean run", ratio, 1.25)


PARTS = {"kills": part_kills, "poison": part_poison, "hostile": part_hostile, "steps": part_steps}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="the sizes that `make test` runs")
    parser.add_argument("--only", default="", help="methods whose name contains this")
    args = parser.parse_args()
    for part in args.parts or PARTS:
        print(f"{part}\n{'-' * len(part)}", flush=True)
        PARTS[part](args)
    print(f"missed: {', '.join(missed)}" if missed else "every bound held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
