"""One worker process: reads jobs as JSON lines, answers with progress, "done" or "failed".

Started by `suite`; a worker that dies loses its own experiment only.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bracketflow.experiments import EXPERIMENTS, figures, store
from bracketflow.experiments.progress import Progress


def carry_out(name: str, mode: str, seed: int, directory: Path, progress: Progress) -> str | None:
    """Compute, store and draw one experiment; returns a note when the figure is missing."""
    module = EXPERIMENTS[name]
    # Numbers drawn beyond the paper's own seeds: a stream of its own for every experiment.
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    records = module.compute(getattr(module.Config, mode)(), rng, progress)
    store.write_record(directory, name, mode, seed, records)
    store.error_path(directory, name).unlink(missing_ok=True)
    return redraw(directory, name)


def redraw(directory: Path, name: str) -> str | None:
    """Figure and CSV tables from the stored record; returns a note when the figure is missing."""
    content = store.read_record(directory, name)
    store.write_tables(directory, name, content)
    return figures.draw(directory, name, content["records"])


def lines_while_wanted(source: TextIO) -> Iterator[str]:
    """Lines of `source`; when it ends, so does this process, whatever it is doing.

    The input ends with the process that wants the answers, even if that was killed: another one
    may have taken over the folder.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in source:
            lines.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def serve(source: Iterable[str], sink: TextIO) -> None:
    """Answer jobs until the input ends."""

    def tell(**message: Any) -> None:
        sink.write(json.dumps(message) + "\n")
        sink.flush()

    for line in source:
        job = json.loads(line)
        wall, cpu = time.perf_counter(), time.process_time()
        directory = Path(job["directory"])
        try:
            if job["mode"] is None:
                note = redraw(directory, job["name"])
            else:
                progress = Progress(lambda fraction: tell(kind="progress", fraction=fraction))
                note = carry_out(job["name"], job["mode"], job["seed"], directory, progress)
        except Exception:
            tell(kind="failed", text=traceback.format_exc())
        else:
            seconds = round(time.perf_counter() - wall, 3)
            cpu_seconds = round(time.process_time() - cpu, 3)
            tell(kind="done", seconds=seconds, cpu_seconds=cpu_seconds, text=note)


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing else may speak on the answer line
    serve(lines_while_wanted(sys.stdin), answers)
