"""Run under torchrun: tracks a stream, saves as it goes, resumes after a restart.

resumable.py FOLDER STEPS EVERY: leaves `result.RANK`, the digest of the last state; `log`, the
steps the first rank has made, in order; and `pid.RANK`.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))


def work(folder, steps, every, pause):
    from scenes import K, N, cut, data, digest

    import bracketflow as bf
    from bracketflow.distributed import ShardedRows, on_first_rank, start

    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    rank = dist.get_rank()
    (folder / f"pid.{rank}").write_text(str(os.getpid()))
    method = bf.EigenTracker(K)
    path = folder / "checkpoint"
    state = start(method, bf.random_basis(N, K, rng=rank), checkpoint=path)

    def note(state, probe):
        time.sleep(pause)
        with (folder / "log").open("a") as log:
            log.write(f"{state.steps}\n")

    stream = (ShardedRows(cut(data(t, 1, 20)[0])) for t in range(state.steps, steps))
    monitors = on_first_rank([bf.Checkpoint(path, every, method=method), note])
    result = bf.run(method, stream, state, monitors=monitors)
    (folder / f"result.{rank}").write_text(digest(result.state))
    dist.destroy_process_group()


if __name__ == "__main__":
    work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
