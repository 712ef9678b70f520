"""A memory-mapped file of 4 GB, made on the spot, tracked in little memory and read once.

Run: python benchmarks/soak_file.py [--gigabytes 4]; a few minutes, and as much free disk.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import bracketflow as bf
from bracketflow.streams import covariances

COLUMNS, BATCH, K = 1024, 256, 5
LIMIT = 500  # MB of anonymous memory
SIGNAL = (6.0, 5.0, 4.0, 3.0, 2.0)


def make_file(path, gigabytes):
    """Rows with five strong directions over white noise, around a mean; one chunk at a time."""
    rng = np.random.default_rng(0)
    directions = bf.random_basis(COLUMNS, K, rng=rng).astype(np.float32)
    rows = int(gigabytes * 2**30) // (4 * COLUMNS)
    data = np.lib.format.open_memmap(path, "w+", np.float32, (rows, COLUMNS))
    for first in range(0, rows, 8192):
        count = min(8192, rows - first)
        chunk = rng.standard_normal((count, COLUMNS), dtype=np.float32)
        scores = rng.standard_normal((count, K), dtype=np.float32) * np.float32(SIGNAL)
        data[first : first + count] = chunk + scores @ directions.T + 10
    data.flush()
    return directions


def anonymous_megabytes(process):
    """RssAnon of a process, 0 when it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon")), 0.0)


def follow_with_command(path, out):
    """`bracketflow track` in a process of its own: its figures and its largest RssAnon."""
    command = [sys.executable, "-m", "bracketflow", "track", str(path), "-k", str(K)]
    command += ["--batch", str(BATCH), "--out", str(out), "--json"]
    peak = [0.0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def sample():
            while process.poll() is None:
                peak[0] = max(peak[0], anonymous_megabytes(process.pid))
                time.sleep(0.02)

        watcher = threading.Thread(target=sample)
        watcher.start()
        printed = process.stdout.read()
        watcher.join()
    if process.returncode:
        raise SystemExit(f"bracketflow track ended with code {process.returncode}")
    return json.loads(printed), peak[0]


class Watched:
    """A memory map that counts the rows fetched from it and remembers the last one."""

    def __init__(self, array):
        self.array, self.shape = array, array.shape
        self.fetched = self.end = 0
        self.in_order = True

    def __getitem__(self, part):
        self.in_order &= part.start == self.end
        self.end = min(part.stop, self.shape[0])
        self.fetched += self.end - part.start
        return self.array[part]


def rows_fetched(path):
    """Share of the rows that `bf.track` fetches, and whether it does so in order."""
    source = Watched(np.load(path, mmap_mode="r"))
    bf.track(covariances(source, BATCH), k=K, rng=0)
    return source.fetched / source.shape[0], source.in_order


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bracketflow-soak-") as folder:
        free = shutil.disk_usage(folder).free / 2**30
        if free < args.gigabytes + 1:
            raise SystemExit(f"{folder}: {free:.1f} GB free, {args.gigabytes + 1:.0f} are needed")
        path = Path(folder) / "data.npy"
        begin = time.perf_counter()
        truth = make_file(path, args.gigabytes)
        print(f"made {path.stat().st_size / 2**30:.2f} GB in {time.perf_counter() - begin:.0f} s")
        begin = time.perf_counter()
        figures, peak = follow_with_command(path, Path(folder) / "run")
        seconds = time.perf_counter() - begin
        pairs = np.load(Path(folder) / "run" / "eigenpairs.npz")
        error = bf.subspace_error(pairs["eigenvectors"], truth)
        print(f"tracked {figures['rows']:,} rows in {seconds:.0f} s, subspace error {error:.1e}")
        print(f"largest RssAnon {peak:.0f} MB (limit {LIMIT})")
        share, in_order = rows_fetched(path)
        print(f"rows fetched per row of the file: {share:g}, in order: {in_order}")
        if peak >= LIMIT or share != 1 or not in_order:
            raise SystemExit("FAILED")
        print("passed")


if __name__ == "__main__":
    main()
