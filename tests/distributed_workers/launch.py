"""Starts ranks as real processes on this machine, bounds their time, and leaves none behind."""

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from resumable import unsealed

HERE = Path(__file__).parent
STARTUP = 120.0  # seconds in which torch must have been imported
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    # Otherwise restarted ranks may find the addresses of the dead ones in torchrun's store.
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}


class Rank:
    """One process that serves scenes."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "serve.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        self.lines = queue.Queue()
        self.noise = []
        self.threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._overhear, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _listen(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def _overhear(self):
        for line in self.process.stderr:
            self.noise.append(line)

    def order(self, order):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()

    def answer(self, deadline):
        """The answer; {"died": …} for a process that is gone; {"silent": …} after the deadline."""
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return {"silent": "".join(self.noise[-30:])}
            if line is None:
                return {"died": "".join(self.noise[-30:])}
            if line.startswith("ANSWER "):
                return json.loads(line.removeprefix("ANSWER "))

    def close(self):
        """End the process: an idle one ends with its input, any other is killed."""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for thread in self.threads:
            thread.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Ranks:
    """Several ranks that run scenes together; processes are started once and used again."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.processes = []
        self.stores = 0

    def run(self, scene, *, ranks=2, bound=60.0, timeout=30.0, **args):
        """Answers of all ranks to a scene; the processes that fall silent are ended."""
        fresh = [Rank() for _ in range(ranks - len(self.processes))]
        self.processes += fresh
        for process in fresh:
            process.lines.get(timeout=STARTUP)  # its first line says that it is ready
        chosen = self.processes[:ranks]
        self.stores += 1
        store = str(Path(self.folder.name, f"store{self.stores}"))
        order = {"scene": scene, "ranks": ranks, "store": store, "timeout": timeout, "args": args}
        for number, process in enumerate(chosen):
            process.order({**order, "rank": number})
        deadline = time.monotonic() + bound
        answers = [process.answer(deadline) for process in chosen]
        for process, answer in zip(chosen, answers, strict=True):
            if "silent" in answer or "died" in answer:
                process.process.kill()
                process.close()
                self.processes.remove(process)
        return answers

    def results(self, scene, **options):
        """The results of all ranks; an error on any of them fails."""
        answers = self.run(scene, **options)
        assert all("result" in answer for answer in answers), answers
        return [answer["result"] for answer in answers]

    def close(self):
        for process in self.processes:
            process.close()
        self.folder.cleanup()


class Torchrun:
    """`torchrun` of a worker script, in a process group of its own that ends with it."""

    def __init__(self, script, *args, ranks=2, restarts=0):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        command += ["--monitor-interval=0.05", str(HERE / script), *map(str, args)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
            start_new_session=True,
        )

    def wait(self, bound):
        """Exit code and output."""
        try:
            output, _ = self.process.communicate(timeout=bound)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, output


class Disturbed(NamedTuple):
    """What came of a run in which ranks were killed."""

    code: int
    output: str
    results: list[str]
    """Digests of the ranks' ends; none of a run that did not come to its end."""
    redone: list[int]
    """For every restart, how many steps were made a second time."""
    made: int
    restarts: int
    torn: int
    """Restarts that found files of a checkpoint that was being written."""


def run_through_kills(
    folder, *, kills, steps, every, pause, rng, bound, kind="replicated", restarts=None
):
    """A resumable run in which a random rank is killed at `kills` random moments.

    On a sharded basis every second kill waits for the next checkpoint and strikes while it is
    written.
    """
    folder = Path(folder)
    restarts = kills if restarts is None else restarts
    job = Torchrun("resumable.py", folder, steps, every, pause, kind, restarts=restarts)
    aims = [None if kind == "replicated" or number % 2 else "write" for number in range(kills)]
    killer = threading.Thread(target=_kill, args=(folder, aims, steps, rng, job), daemon=True)
    killer.start()
    code, output = job.wait(bound)
    killer.join()
    results = [path.read_text() for path in sorted(folder.glob("result.*"))]
    made = [int(line) for line in lines(folder / "log")]
    redone = [
        before - after + 1 for before, after in itertools.pairwise(made) if after != before + 1
    ]
    starts, torn = len(lines(folder / "starts")), len(lines(folder / "unsealed"))
    return Disturbed(code, output, results, redone, len(made), starts - 1, torn)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def _kill(folder, aims, steps, rng, job):
    """Spread over the run: each kill waits until its share of the steps has been made."""
    log = folder / "log"
    for number, aim in enumerate(aims):
        least = int(steps * (number + rng.uniform(0.1, 0.8)) / len(aims))
        while job.process.poll() is None and _last(log) < least:
            time.sleep(0.02)
        if aim == "write":
            while job.process.poll() is None and not unsealed(folder / "checkpoint"):
                time.sleep(0.0005)
            time.sleep(rng.uniform(0, 0.004))
        else:
            time.sleep(rng.uniform(0, 0.05))
        victim = int((folder / f"pid.{rng.integers(2)}").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


def _last(log):
    return int((lines(log) or [-1])[-1])
