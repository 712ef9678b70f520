"""Ranks of `bracketflow track` that are killed, in five ways of starting them.

    python benchmarks/endurance_ranks.py KILLS SEED

prints one JSON line a kill, and fails unless every run has come to its end within `BOUND`. Every
third kill strikes while the ranks are still starting.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

RANKS, RESTARTS = 2, 2
ROWS, BATCH = 16_000, 16
STARTING = 8.0  # seconds in which ranks start on a machine with other work
BOUND = 60.0  # seconds from the kill to the end
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
VARIABLE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def ways():
    """Options of every torchrun of a job, and what is added to the environment."""
    port, here = free_port(), f"--nproc-per-node={RANKS}"
    address = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    return {
        "standalone": ([["--standalone", here]], {}),
        "standalone, a store an attempt": ([["--standalone", here]], {VARIABLE: "1"}),
        "master-port": ([[f"--master-port={port}", here]], {}),
        "c10d": ([["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", here]], {}),
        "two nodes": (
            [
                [f"--nnodes={RANKS}", f"--node-rank={node}", "--nproc-per-node=1", *address]
                for node in range(RANKS)
            ],
            {},
        ),
    }


def start(way, source, out, log):
    """The torchruns of a job, each leading a session."""
    agents, extra = ways()[way]
    track = ["-m", "bracketflow", "track", source, "-k", "2", "--batch", str(BATCH)]
    options = [f"--max-restarts={RESTARTS}", "--monitor-interval=0.05"]
    plain = {name: value for name, value in os.environ.items() if name != VARIABLE}
    return [
        subprocess.Popen(
            [*TORCHRUN, *agent, *options, *track, "--out", str(out), "--json"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**plain, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **extra},
            start_new_session=True,
        )
        for agent in agents
    ]


def ranks_of(jobs):
    """Process numbers by rank."""
    found = {}
    for job in jobs:
        with contextlib.suppress(OSError):  # one that has ended meanwhile
            children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
            for child in map(int, children):
                entries = Path(f"/proc/{child}/environ").read_bytes().decode().split("\0")
                environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
                if "RANK" in environment:
                    found[int(environment["RANK"])] = child
    return found


def wait_for(condition, jobs, bound):
    deadline = time.monotonic() + bound
    while not condition() and time.monotonic() < deadline:
        if any(job.poll() is not None for job in jobs):
            return
        time.sleep(0.01)


def _lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def kill_once(way, victim, while_starting, fate, folder, source):
    """One job of which one rank is killed: what came of it."""
    out = folder / f"run{fate.getrandbits(40)}"
    series = out / "series.csv"
    with (folder / "log").open("w+") as log:
        jobs = start(way, source, out, log)
        wait_for(lambda: victim in ranks_of(jobs), jobs, BOUND)
        if while_starting:
            time.sleep(fate.uniform(0, STARTING))
        else:
            wait_for(lambda: _lines(series) > 50, jobs, BOUND)
            time.sleep(fate.uniform(0, 0.3))
        lost = ranks_of(jobs).get(victim)
        if lost is not None:
            os.kill(lost, signal.SIGKILL)
        begin = time.monotonic()
        for job in jobs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(timeout=max(0.1, BOUND - (time.monotonic() - begin)))
        took = time.monotonic() - begin
        for pid in [*ranks_of(jobs).values(), *(job.pid for job in jobs)]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        codes = [job.wait() for job in jobs]
        log.seek(0)
        said = log.read()
    manifest = out / "run.json"
    status = json.loads(manifest.read_text())["status"] if manifest.exists() else None
    return {
        "way": way,
        "rank": victim,
        "killed": lost is not None,
        "while": "starting" if while_starting else "running",
        "seconds": round(took, 1),
        "codes": codes,
        "status": status,
    }, said


def main(kills, seed):
    fate, failed = random.Random(seed), 0
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory(prefix="bracketflow-") as name:
        folder = Path(name)
        source = str(folder / "a.npy")
        np.save(source, rng.standard_normal((ROWS, 10)) * np.r_[5.0, 3.0, np.ones(8)])
        for number in range(kills):
            way = list(ways())[number % len(ways())]
            found, said = kill_once(
                way, fate.randrange(RANKS), number % 3 == 2, fate, folder, source
            )
            print(json.dumps(found), flush=True)
            if found["status"] != "STREAM_ENDED" or any(found["codes"]):
                failed += 1
                print(said[-3000:], flush=True)
    return failed


if __name__ == "__main__":
    raise SystemExit(main(*map(int, sys.argv[1:])))
