"""Several ranks on this machine: results, bits, messages, speed, restarts, background.

    python benchmarks/distributed.py            every point, about ten minutes
    python benchmarks/distributed.py 1 3        some of them

Each line prints a measured figure beside its bound. Times are ratios within one run: one process
and all ranks take turns on the same rows, one thread each.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "distributed_workers"))

from launch import Ranks, run_through_kills

METHODS = ("flow", "grassmann", "square", "leading", "full")
SPREAD = ("weighted", "grassmann", "qr", "cayley", "neumann", "tracker", "fading")
RANKS = Ranks()


def report(what, figure, bound=None, *, least=False):
    kept = bound is None or (figure >= bound if least else figure <= bound)
    limit = "" if bound is None else f"  (at {'least' if least else 'most'} {bound:.4g})"
    verdict = "" if bound is None else ("  ok" if kept else "  MISSED")
    print(f"  {what:<66s} {figure:>10.4g}{limit}{verdict}", flush=True)


def point_1_the_same_as_one_process_and_equal_bits():
    for name in METHODS:
        first, second = RANKS.results("compare", name=name)
        report(f"{name}: largest difference from one process", first["difference"], 1e-12)
        report(f"{name}: ranks with other bits", float(first["bits"] != second["bits"]), 0)
    for name in SPREAD:
        first, second = RANKS.results("sharded:compare", name=name)
        report(f"sharded {name}: largest difference from one process", first["difference"], 1e-12)
        differ = float(first["decisions"] != second["decisions"])
        report(f"sharded {name}: ranks with other decisions", differ, 0)
    first, second = RANKS.results("many_steps", steps=10_000, bound=300)
    differ = sum(a != b for a, b in zip(first, second, strict=True))
    report("10,000 steps: marks along the way that differ", differ, 0)


def point_2_one_message_a_step():
    for name in METHODS:
        result = RANKS.results("messages", name=name)[0]
        steps = result["steps"]
        report(f"{name}: all-reduces a step", result["calls"]["all_reduce"] / steps, 1)
        others = sum(n for call, n in result["calls"].items() if call != "all_reduce")
        report(f"{name}: other collectives", others, 0)
        tail = (result["bytes"] - result["block"]) / steps
        report(f"{name}: bytes a step beyond the block itself", tail)
    for name in SPREAD:
        result = RANKS.results("sharded:compare", name=name)[0]
        settled = result["messages"][2:]  # a tracker begins with a test whether the signal moves
        report(f"sharded {name}: all-reduces a step beyond the product's", max(settled), 3)
        report(f"sharded {name}: their bytes and the product's", max(result["bytes"]))
    result = RANKS.results("sharded:compare", name="tracker", noise=0.0)[0]
    report("sharded tracker, signal stands still: the same", max(result["messages"]), 3)


def point_3_speed():
    n, k = 2000, 10
    for count, steps in ((2_000, 40), (20_000, 8), (200_000, 2)):
        first, _ = RANKS.results(
            "figures:speed", count=count, n=n, k=k, steps=steps, rounds=7, bound=900, timeout=600
        )
        alone, shared = np.array(first["alone"]), np.array(first["shared"])
        wall, busy = np.median(alone / shared, axis=0)
        bound = 1.6 if count == 200_000 else None
        what = f"{count:,} × {n:,} rows, k = {k}: 2 ranks against 1, times faster"
        report(what, wall, bound, least=True)
        # On a machine that others use too, the time on the processor says what a free one gives.
        report("    the same in processor time of one rank", busy)
        print(
            f"    a step: {alone[:, 0].min():.4f} s alone, {shared[:, 0].min():.4f} s on 2 ranks; "
            f"efficiency {wall / 2:.0%}"
        )
    sizes = [8 * 10**e for e in range(0, 7)]
    for size, took in RANKS.results("figures:wire", sizes=sizes, repeats=30)[0].items():
        rate = int(size) / took / 1e6
        print(f"    all-reduce of {int(size):>9,d} bytes: {took * 1e6:>9.0f} µs, {rate:>7.1f} MB/s")


def point_4_memory():
    n, k = 2_000_000, 10
    for kind, steps in (("flow", 4), ("tracker", 6)):
        told = {}
        for ranks in (1, 2):
            fresh = Ranks()  # the peak is that of a process's whole life
            try:
                args = {"kind": kind, "n": n, "k": k, "steps": steps, "sharded": ranks > 1}
                told[ranks] = fresh.results(
                    "figures:spread", ranks=ranks, bound=900, timeout=600, **args
                )
            finally:
                fresh.close()
        (one,), two = told[1], told[2]
        most = max(rank["peak"] for rank in two)
        report(f"{kind}: peak memory of a rank, of one process's", most / one["peak"], 0.6)
        report("    one process, MB", one["peak"] / 1e6)
        report("    each of 2 ranks, MB", most / 1e6)
        report("    of it before the first array, MB", one["idle"] / 1e6)
        report("    seconds of a step, one process", one["seconds"])
        report("    seconds of a step, 2 ranks", max(rank["seconds"] for rank in two))
        report("    small all-reduces of the last step beyond the product's", two[0]["messages"], 3)
        report("    their bytes and the product's", two[0]["bytes"])


def point_5_kills():
    steps = 400
    disturbed("replicated", steps, RANKS.results("uninterrupted", steps=steps))
    for name in ("weighted", "tracker"):
        undisturbed = RANKS.results("sharded:continued", name=name, steps=steps)
        disturbed(name, steps, [result["bits"] for result in undisturbed])
    for name, count in (("weighted", 2), ("tracker", 3)):
        moments = ["before", "between", "after", "local", "shape", "no operator", "all"]
        args = {"name": name, "moments": moments}
        results = RANKS.results("sharded:failing", ranks=count, **args)
        differ = sum(not r["same"] or r["bad"] != results[0]["bad"] for r in results)
        what = f"sharded {name}: a rank of {count} fails {len(moments)} times"
        report(f"{what}: ranks that differ", differ, 0)
        report("    seconds of the run; a group's timeout is 30", max(r["took"] for r in results))


def disturbed(kind, steps, expected):
    kills, every = 10, 10
    with tempfile.TemporaryDirectory() as folder:
        found = run_through_kills(
            folder,
            kind=kind,
            kills=kills,
            steps=steps,
            every=every,
            pause=0.01,
            rng=np.random.default_rng(),
            bound=500,
        )
    lost = found.results != expected
    report(f"{kind}, {kills} kills: exit code", found.code, 0)
    report("    restarts", found.restarts)
    report("    of them with files of an unfinished checkpoint", found.torn)
    report("    most steps made again after a kill", max(found.redone, default=0), every)
    report("    steps beyond those made again", found.made - sum(found.redone) - steps, 0)
    report("    ranks' ends differ from the undisturbed run", float(lost), 0)
    if found.code:
        print(found.output[-2000:])


def point_6_background():
    for name in ("flow", "leading", "full", "square"):
        result = RANKS.results("backgrounds", name=name)[0]
        what = f"{name}: σ² swinging to 1e9, difference in units of eps·σ²"
        report(what, result["worst"] / result["unit"], 25)
    for name in SPREAD:
        result = max(RANKS.results("sharded:invariance", name=name), key=lambda r: r["worst"])
        what = f"sharded {name}: σ² swinging to 1e9, difference in units of eps·σ²"
        report(what, result["worst"] / result["unit"], 25)


POINTS = {
    name.split("_")[1]: function
    for name, function in list(globals().items())
    if name.startswith("point_")
}


def main():
    try:
        for number in sys.argv[1:] or POINTS:
            print(POINTS[number].__name__.replace("_", " "), flush=True)
            POINTS[number]()
    finally:
        RANKS.close()


if __name__ == "__main__":
    main()
