"""Run under torchrun: tracks a stream, saves as it goes, resumes after a restart.

resumable.py FOLDER STEPS EVERY PAUSE KIND: leaves `result.RANK`, the digest of the last state;
`log`, the steps the first rank has made, in order; `starts`, a line a start; and `pid.RANK`. KIND
is "replicated", or the name of a method of `sharded.py`, on a sharded basis: then `unsealed` has a
line for every start that found files of a checkpoint that was being written.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))


def work(folder, steps, every, pause, kind):
    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    if rank == 0:
        note_down(folder / "starts", os.getpid())

    def note(state, probe):
        time.sleep(pause)
        if rank == 0:
            note_down(folder / "log", state.steps)

    follow = replicated if kind == "replicated" else sharded
    (folder / f"result.{rank}").write_text(follow(folder / "checkpoint", steps, every, note, kind))
    dist.destroy_process_group()


def replicated(path, steps, every, note, kind):
    from scenes import K, N, cut, data, digest

    import bracketflow as bf
    from bracketflow.distributed import ShardedRows, on_first_rank, start

    method = bf.EigenTracker(K)
    state = start(method, bf.random_basis(N, K, rng=dist.get_rank()), checkpoint=path)
    stream = (ShardedRows(cut(data(t, 1, 20)[0])) for t in range(state.steps, steps))
    save = on_first_rank(bf.Checkpoint(path, every, method=method))
    return digest(bf.run(method, stream, state, monitors=[save, note]).state)


def sharded(path, steps, every, note, kind):
    from scenes import digest
    from sharded import finished

    if dist.get_rank() == 0 and unsealed(path):
        note_down(path.with_name("unsealed"), unsealed(path))
    dist.barrier()
    return digest(finished(kind, steps, path, every, note)[1])


def note_down(path, what):
    with path.open("a") as log:
        log.write(f"{what}\n")


def unsealed(path):
    """Names of files in a folder of shards that its manifest does not name, newer ones only."""
    manifest = path / "manifest.json"
    named = json.loads(manifest.read_text())["shards"] if manifest.exists() else []
    last = max((int(name.split("-")[1]) for name, *_ in named), default=0)
    files = [file.name for file in path.glob("*shard-*")] if path.exists() else []
    return [name for name in files if int(name.split("-")[1]) > last]


if __name__ == "__main__":
    folder, steps, every, pause, kind = sys.argv[1:]
    work(Path(folder), int(steps), int(every), float(pause), kind)
