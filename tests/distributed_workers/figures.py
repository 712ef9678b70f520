"""What the ranks of `benchmarks/distributed.py` do together."""

import contextlib
import itertools
import resource
import time

import numpy as np
import torch
import torch.distributed as dist
from scenes import counting

import bracketflow as bf
from bracketflow.distributed import ShardedRows, over_rows, sharded_basis

BLOCK = 1000
_held = {}  # rows are made once for all rounds


def rows(first, last, n):
    """Rows first … last of the same table on every rank, made in blocks."""
    key = (first, last, n)
    if key not in _held:
        _held.clear()
        table = np.empty((last - first, n))
        scales = np.linspace(3.0, 0.3, n)
        for begin in range(first, last, BLOCK):
            part = table[begin - first : begin - first + BLOCK]
            np.random.default_rng(begin).standard_normal(out=part)
            part *= scales
        _held[key] = table
    return _held[key]


def seconds(operator, n, k, steps):
    """Least wall and processor time of `steps` steps of the flow, after one that warms up."""
    method = bf.BrockettFlow(tuple(range(k, 0, -1)))
    state, _ = method.step(operator, method.init(bf.random_basis(n, k, rng=0)))
    times = []
    for _ in range(steps):
        wall, busy = time.perf_counter(), time.process_time()
        state, _ = method.step(operator, state)
        times.append((time.perf_counter() - wall, time.process_time() - busy))
    return [min(column) for column in zip(*times, strict=True)]


def speed(count, n, k, steps, rounds):
    """One process beside all ranks, by turns, on the same table: [wall, processor] of a step."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    edges = [count * r // ranks // BLOCK * BLOCK for r in range(ranks)] + [count]
    own = rows(0, count, n) if rank == 0 else rows(edges[rank], edges[rank + 1], n)
    shard = ShardedRows(own[: edges[1]] if rank == 0 else own)
    alone, shared = [], []
    for _ in range(rounds):
        if rank == 0:
            alone.append(seconds(bf.gram(own), n, k, steps))
        dist.barrier()  # the others wait, without work
        shared.append(seconds(shard, n, k, steps))
    return {"alone": alone, "shared": shared}


def wire(sizes, repeats):
    """Seconds of an all-reduce of so many bytes: the least of `repeats`."""
    answer = {}
    for size in sizes:
        message = torch.zeros(size // 8, dtype=torch.float64)
        times = []
        for _ in itertools.repeat(None, repeats):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(message)
            times.append(time.perf_counter() - begin)
        answer[str(size)] = min(times)
    return answer


def spread(kind, n, k, steps, sharded):
    """Peak memory and least time of a step on n rows, held by one process or by all ranks."""
    method = bf.BrockettFlow(tuple(range(k, 0, -1))) if kind == "flow" else bf.EigenTracker(k)
    torch.set_num_threads(1)
    idle = peak_bytes()
    with sharded_basis(n) if sharded else contextlib.nullcontext(slice(0, n)) as own:
        low, diagonal = waves(own, n, k + 2), np.arange(own.start, own.stop)[:, None] / n
        strengths = 5.0 * np.arange(k + 2, 0, -1)
        rng, times = np.random.default_rng(1), []
        state = method.init(bf.random_basis(n, k, rng=0))
        with counting() as calls:
            for t in range(steps):
                weights = strengths * (1 + 0.05 * rng.standard_normal(k + 2))
                level = 5e5 * (1 + np.sin(t / 7))
                operator = bf.as_operator(
                    lambda x, w=weights, s=level: product(low, w, diagonal, s, x)
                )
                begin, before = time.perf_counter(), len(calls["all_reduce"])
                state, _ = method.step(operator, state)
                times.append(time.perf_counter() - begin)
        last = calls["all_reduce"][before:]
    return {
        "idle": idle,
        "peak": peak_bytes(),
        "seconds": min(times[-2:]),
        "messages": len(last) - 1,
        "bytes": sum(last),
    }


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def waves(own, n, count):
    """Rows `own` of `count` orthonormal cosines."""
    rows = np.arange(own.start, own.stop)
    waves = np.empty((len(rows), count))
    for j in range(count):
        waves[:, j] = (2 / n) ** 0.5 * np.cos(np.pi * (rows + 0.5) * (j + 1) / n)
    return waves


def product(low, weights, diagonal, level, block):
    """(L diag(w) Lᵀ + D + level) X, in place by pieces: one all-reduce where rows are spread."""
    image = low @ (weights[:, None] * over_rows(low.T @ block))
    for begin in range(0, len(block), 1 << 16):
        part = slice(begin, begin + (1 << 16))
        image[part] += (diagonal[part] + level) * block[part]
    return image
