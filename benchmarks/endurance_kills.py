"""A run that is killed again and again, at random moments and in the middle of its writes.

    python benchmarks/endurance_kills.py FOLDER METHOD KILLS SEED

prints one JSON object: see `Figures`. The process forks a child for every life of the run, so that
a life begins in milliseconds and not after an import.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import bracketflow as bf
from bracketflow import atomic, checkpoint

N, EVERY = 12, 7
SPAN = 40  # steps that a life may hope for
METHODS = {
    "flow": (bf.DoubleBracketFlow(bf.Adaptive()), N),
    "stiefel": (bf.BrockettFlow((3, 2, 1)), 3),
    "tracker": (bf.EigenTracker(), N),
    "tracker-leading": (bf.EigenTracker(3), 3),
}
STAGES = ("write", "fsync", "replace", "folder")


@dataclass
class Figures:
    """What became of a run through its lives."""

    kills: int = 0
    in_writes: int = 0
    """Kills between the first byte of a checkpoint and the end of its saving."""
    unreadable: int = 0
    """Restarts that did not find a valid checkpoint."""
    lost: int = 0
    """Most steps lost in one kill; the interval is `EVERY`."""
    differs: int = 0
    """1 when the end is not bit for bit that of the uninterrupted run."""
    left_behind: int = 0
    """Files in the folder at the end besides the checkpoint."""


def observations(rng, drawn):
    """Noisy observations of one signal; `drawn` is told of every one."""
    frame = bf.random_basis(N, rng=0)
    signal_ = (frame * np.arange(N, 0, -1.0)) @ frame.T
    while True:
        noise = rng.standard_normal((N, N))
        drawn()
        yield 0.5 * (signal_ + signal_.T) + 0.1 * (noise + noise.T)


def live(path, name, total, drawn):
    """One life: resume from the checkpoint if there is one, and go on to the end."""
    method, columns = METHODS[name]
    rng = np.random.default_rng(1)
    state = method.init(bf.random_basis(N, columns, rng=2))
    if path.exists():
        state, method, rng, _ = bf.load(path)
    keeper = bf.Checkpoint(path, EVERY, method=method, rng=rng)
    stop = bf.max_steps(total)
    return bf.run(method, observations(rng, drawn), state, stop=stop, monitors=keeper).state


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def die_in_a_write(stage, turn):
    """Make this process kill itself at a stage of its `turn`-th write."""
    writes = iter(range(10**9))
    real = {"fsync": os.fsync, "replace": os.replace, "write": atomic.write_atomically}
    calls = {"fsync": 0, "write": -1}

    def write(path, parts):
        calls["write"] = next(writes)
        calls["fsync"] = 0

        def halted():
            for i, part in enumerate(parts):
                if stage == "write" and calls["write"] == turn and i:
                    die()
                yield part + b""

        real["write"](path, halted())

    def fsync(handle):
        calls["fsync"] += 1  # the first is the file's, the second the folder's
        if calls["write"] == turn and stage == ("fsync", "folder")[calls["fsync"] - 1]:
            die()
        real["fsync"](handle)

    def replace(*names):
        if calls["write"] == turn and stage == "replace":
            die()
        real["replace"](*names)

    checkpoint.write_atomically, os.fsync, os.replace = write, fsync, replace


def kill_again_and_again(folder, name, kills, seed=0):
    """Live `kills` + 1 lives of one run and compare its end with the uninterrupted run's."""
    path = Path(folder) / "run.checkpoint"
    fate, figures = random.Random(seed), Figures()
    total = kills * SPAN
    counter = mmap.mmap(-1, 8)

    def drawn():
        counter[:] = struct.pack("q", struct.unpack("q", counter[:])[0] + 1)

    while figures.kills < kills:
        resumed = 0
        if path.exists():
            try:
                resumed = int(bf.load(path).state.steps)
            except ValueError:
                figures.unreadable += 1
        counter[:] = struct.pack("q", 0)
        stage = fate.choice((None, *STAGES)) if figures.kills % 2 else None
        turn = fate.randrange(3)
        child = os.fork()
        if child == 0:
            if stage is not None:
                die_in_a_write(stage, turn)
            live(path, name, total, drawn)
            os._exit(0)
        if stage is None:  # at any moment of the next steps
            wanted = fate.randrange(1, SPAN)
            while struct.unpack("q", counter[:])[0] < wanted and not os.waitid(
                os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT
            ):
                time.sleep(1e-4)
            time.sleep(fate.uniform(0, 1e-3))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            break  # it came to its end
        figures.kills += 1
        figures.in_writes += stage is not None
        reached = resumed + struct.unpack("q", counter[:])[0] - 1  # the last one drawn was not kept
        after = int(bf.load(path).state.steps) if path.exists() else 0
        figures.lost = max(figures.lost, reached - after)
    final = live(path, name, total, lambda: None)
    whole = live(Path(folder) / "whole", name, total, lambda: None)
    bf.save(path, final)
    bf.save(Path(folder) / "whole", whole)
    figures.differs = int(path.read_bytes() != (Path(folder) / "whole").read_bytes())
    figures.left_behind = len(list(Path(folder).iterdir())) - 2
    return figures


if __name__ == "__main__":
    where, which, count, seed = sys.argv[1:]
    print(json.dumps(asdict(kill_again_and_again(where, which, int(count), int(seed)))))
