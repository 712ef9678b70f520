"""What the ranks of `benchmarks/distributed.py` do together."""

import itertools
import time

import numpy as np
import torch
import torch.distributed as dist

import bracketflow as bf
from bracketflow.distributed import ShardedRows

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
