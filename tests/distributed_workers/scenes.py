"""What the ranks of a test do together. Every function runs on all ranks; results are JSON."""

import hashlib
import itertools
import os
import signal
import time
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from scipy import sparse

import bracketflow as bf
from bracketflow.distributed import (
    OverRanks,
    ShardedOperator,
    ShardedRows,
    check_ranks,
    on_first_rank,
    own_rows,
    start,
)

N, K = 12, 3
METHODS = {
    "flow": (bf.BrockettFlow((3, 2, 1)), K),
    "grassmann": (bf.BrockettFlow(), K),
    "square": (bf.DoubleBracketFlow(), N),
    "leading": (bf.EigenTracker(K), K),
    "full": (bf.EigenTracker(), N),
}


def digest(*arrays):
    """Of all bits of nested tuples of arrays."""
    mark = hashlib.sha256()

    def add(part):
        if isinstance(part, tuple):
            for item in part:
                add(item)
        elif part is not None:
            mark.update(np.ascontiguousarray(np.asarray(part)).tobytes())

    add(arrays)
    return mark.hexdigest()


def data(seed, batches, size, n=N):
    """Batches of rows with a decaying spectrum, the same on all ranks."""
    rng = np.random.default_rng(seed)
    scales = np.linspace(3.0, 0.3, n)
    return [rng.standard_normal((size, n)) * scales for _ in range(batches)]


def cut(rows, shape="uneven"):
    """This rank's part of a batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if shape == "one rank has none":
        return rows[:0] if rank == 0 else np.array_split(rows, ranks - 1)[rank - 1]
    edges = np.linspace(0, 1, ranks + 1) ** 2 * len(rows)
    return rows[int(edges[rank]) : int(edges[rank + 1])]


@contextmanager
def counting():
    """Calls and bytes of every collective."""
    names = [
        n
        for n in ("all_reduce", "broadcast", "all_gather", "all_gather_object", "barrier")
        if hasattr(dist, n)
    ]
    saved = {name: getattr(dist, name) for name in names}
    calls = {name: [] for name in names}

    def wrapped(name):
        def call(*args, **options):
            size = args[0].numel() * args[0].element_size() if name == "all_reduce" else 0
            calls[name].append(size)
            return saved[name](*args, **options)

        return call

    for name in names:
        setattr(dist, name, wrapped(name))
    try:
        yield calls
    finally:
        for name, function in saved.items():
            setattr(dist, name, function)


def kind(rows, form):
    if form == "sparse":
        return sparse.csr_array(rows)
    if form == "torch":
        return torch.from_numpy(rows)
    return rows.astype(np.float32) if form == "float32" else rows


def as_form(array, form):
    return torch.from_numpy(array) if form == "torch" else kind(array, form)


def compare(name, form="dense", shape="uneven", steps=40):
    """A run over shards beside the same run in this process alone."""
    method, k = METHODS[name]
    basis = bf.random_basis(N, k, rng=1)
    basis = basis if form == "sparse" else as_form(basis, form)
    batches = data(0, steps, 30)
    alone = bf.run(method, (bf.gram(kind(b, form)) for b in batches), method.init(basis))
    shards = (ShardedRows(kind(np.ascontiguousarray(cut(b, shape)), form)) for b in batches)
    shared = bf.run(method, shards, method.init(basis))
    difference = np.abs(np.asarray(alone.state.basis) - np.asarray(shared.state.basis)).max()
    return {
        "difference": float(difference),
        "eigenvalues": float(np.abs(np.asarray(alone.eigenvalues - shared.eigenvalues)).max()),
        "bits": digest(shared.state, shared.eigenvalues),
        "kept": type(shared.state.basis) is type(basis) and shared.state.basis.dtype == basis.dtype,
    }


def messages(name, steps=20):
    method, k = METHODS[name]
    state = method.init(bf.random_basis(N, k, rng=1))
    batches = [cut(b) for b in data(0, steps, 30)]
    state, _ = method.step(ShardedRows(batches[0]), state)  # the ranks compare their blocks once
    before = state.matvecs
    with counting() as calls:
        for rows in batches[1:]:
            state, _ = method.step(bf.shifted(ShardedRows(rows), 5.0), state)
    columns = state.matvecs - before
    return {
        "calls": {name: len(sizes) for name, sizes in calls.items()},
        "bytes": sum(calls["all_reduce"]),
        "block": int(columns) * N * 8,
        "steps": steps - 1,
    }


def weight_and_trace():
    (rows,) = data(3, 1, 25)
    early = ShardedRows(cut(rows))
    operator = ShardedRows(cut(rows))
    operator @ bf.random_basis(N, 2, rng=0)
    return {
        "weight": [early.weight, operator.weight, bf.shifted(operator, 2.0).weight],
        "counted": bf.counted(operator).weight,
        "trace": operator.trace,
        "expected": float((rows**2).sum() / len(rows)),
        "shown": repr(operator),
    }


def streams(lengths, on_bad="raise", breaks=None):
    """Streams that end at different times; the sum is that of the batches that are there."""
    rank = dist.get_rank()
    parts = [data(10 + r, length, 4 + r) for r, length in enumerate(lengths)]
    steps = max(lengths)

    def own():
        for t, rows in enumerate(parts[rank]):
            if breaks == [rank, t]:
                raise OSError("disk on fire")
            yield rows

    method = bf.EigenTracker(K)
    basis = bf.random_basis(N, K, rng=1)
    shared = bf.run(method, ShardedRows.stream(own()), method.init(basis), on_bad=on_bad)
    together = [np.concatenate([p[t] for p in parts if t < len(p)]) for t in range(steps)]
    alone = bf.run(method, map(bf.gram, together), method.init(basis))
    return {
        "difference": float(np.abs(alone.state.basis - shared.state.basis).max()),
        "steps": int(shared.state.steps),
        "bad": [entry.reason for entry in shared.bad],
        "bits": digest(shared.state),
        "weight": float(method.read(shared.state).memory),
    }


def tracked(lengths):
    """`bf.track` on a stream, also from a rank that never has a row."""
    rank = dist.get_rank()
    stream = ShardedRows.stream(data(10 + rank, lengths[rank], 5))
    result = bf.track(stream, K, rng=4)
    return {"bits": digest(result.eigenvectors), "steps": int(result.state.steps)}


def bad_observations():
    """One rank's part is NaN, raises, or has the wrong size: all skip it and stay in step."""
    rank = dist.get_rank()
    good = [cut(b) for b in data(0, 30, 20)]

    def broken(block):
        raise ZeroDivisionError("no luck")

    poison = [ShardedRows(cut(np.full((8, N), np.nan))), ShardedOperator(None)]
    poison += [ShardedOperator(broken if rank == 1 else np.eye(N))]
    poison += [ShardedRows(np.ones((3, N + (rank == 1))))]
    method = bf.EigenTracker(K)
    begin = method.init(bf.random_basis(N, K, rng=1))
    clean = bf.run(method, map(ShardedRows, good), begin)
    mixed = itertools.chain(map(ShardedRows, good[:10]), poison, map(ShardedRows, good[10:]))
    result = bf.run(method, mixed, begin, on_bad="skip")
    try:
        OverRanks(method).step({1, 2} if rank == 1 else np.eye(N), begin)
    except bf.ObservationError as error:
        refused = str(error)
    return {
        "same": digest(result.state) == digest(clean.state),
        "bits": digest(result.state),
        "bad": [*(entry.reason for entry in result.bad), refused],
    }


def operators(reduce):
    """One matrix a rank, with weights, beside the matrix they make."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rng = np.random.default_rng(0)
    parts = [a + a.T for a in rng.standard_normal((ranks, N, N))]
    weights = [1.0 + r for r in range(ranks)]
    operator = bf.as_operator(parts[rank]).derived(weight=weights[rank])
    shared = ShardedOperator(operator, reduce)
    basis = bf.random_basis(N, K, rng=1)
    image = shared @ basis
    whole = sum(parts) if reduce == "sum" else np.average(parts, axis=0, weights=weights)
    stack = shared @ np.stack([basis, -basis])
    return {
        "difference": float(np.abs(image - whole @ basis).max()),
        "stack": float(np.abs(stack[1] + image).max()),
        "weight": shared.weight,
        "expected": sum(weights),
    }


def decomposed():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = data(5, ranks, 40)
    result = bf.decompose(ShardedRows(parts[rank]), K, rng=0)
    exact = np.linalg.eigvalsh(np.concatenate(parts).T @ np.concatenate(parts) / (40 * ranks))
    return {
        "status": result.status.name,
        "error": float(np.abs(result.eigenvalues - exact[::-1][:K]).max()),
        "bits": digest(result.eigenvectors),
    }


def ddp_hessian():
    """The Hessian of each rank's minibatch, of a model that DistributedDataParallel trains."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    wrapped = torch.nn.parallel.DistributedDataParallel(model.double())
    parameters = list(wrapped.module.parameters())
    generator = torch.Generator().manual_seed(7)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs = torch.randn(ranks, 6, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(ranks, 6, 1, generator=generator, dtype=torch.float64)

    def flat(gradients):
        return torch.cat([g.reshape(-1) for g in gradients])

    def hessian(x, y):
        def product(block):
            loss = torch.nn.functional.mse_loss(wrapped.module(x), y)
            slope = flat(torch.autograd.grad(loss, parameters, create_graph=True))
            columns = [
                flat(torch.autograd.grad(slope @ v, parameters, retain_graph=True)) for v in block.T
            ]
            return torch.stack(columns, dim=-1)

        return product

    method = bf.EigenTracker(2)
    size = sum(p.numel() for p in parameters)
    basis = bf.random_basis(size, 2, rng=0, like=torch.empty(0, dtype=torch.float64))
    state = alone = method.init(basis)
    for _ in range(5):
        torch.nn.functional.mse_loss(wrapped(inputs[rank]), targets[rank]).backward()
        state, _ = method.step(ShardedOperator(hessian(inputs[rank], targets[rank])), state)
        alone, _ = method.step(hessian(inputs.flatten(0, 1), targets.flatten(0, 1)), alone)
    return {
        "bits": digest(state.basis.numpy()),
        "difference": float((state.basis - alone.basis).abs().max()),
    }


def hessian_monitor():
    """The monitor as it is, on a model in DistributedDataParallel, beside one process alone."""
    from bracketflow.torch import HessianMonitor

    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    wrapped = torch.nn.parallel.DistributedDataParallel(model.double())
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(ranks, 6, 3, generator=generator, dtype=torch.float64)
    targets = torch.randn(ranks, 6, 1, generator=generator, dtype=torch.float64)
    loss = torch.nn.functional.mse_loss
    shared, alone = (HessianMonitor(wrapped.module, loss, 2) for _ in range(2))
    shared.tracker = OverRanks(shared.tracker)
    for _ in range(4):
        loss(wrapped(inputs[rank]), targets[rank]).backward()
        shared.step((inputs[rank], targets[rank]))
        alone.step((inputs.flatten(0, 1), targets.flatten(0, 1)))
        with torch.no_grad():
            for p in wrapped.parameters():
                p -= 0.1 * p.grad
                p.grad = None
    return {
        "bits": digest(shared.state.basis.numpy()),
        "difference": float((shared.eigenvectors - alone.eigenvectors).abs().max()),
    }


def many_steps(steps, form="dense"):
    """Digests of the state along a long run."""
    method = bf.BrockettFlow((3, 2, 1))
    state = method.init(as_form(bf.random_basis(N, K, rng=1), form))
    batches = [kind(np.ascontiguousarray(cut(b)), form) for b in data(0, 50, 12)]
    marks = []
    for t, operator in zip(range(steps), itertools.cycle(map(ShardedRows, batches)), strict=False):
        state, _ = method.step(operator, state)
        if t % 500 == 499:
            marks.append(digest(state))
    return marks


def backgrounds(name, steps=300):
    """The same shards with σ² swinging to 1e9 and without."""
    method, k = METHODS[name]
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rng = np.random.default_rng(3)
    q = bf.random_basis(N, rng=rng)
    signal = (q * np.arange(N, 0, -1.0)) @ q.T
    signal = 0.5 * (signal + signal.T)
    levels = 5e8 * (1 + np.sin(np.arange(steps) / 7))
    plain = shifted = method.init(bf.random_basis(N, k, rng=rng))
    worst = 0.0
    for level in levels:
        noise = rng.standard_normal((ranks, N, N))
        noise = 0.05 * (noise + noise.transpose(0, 2, 1)) / N
        part = signal + noise[rank]
        plain, _ = method.step(ShardedOperator(part), plain)
        shifted, _ = method.step(ShardedOperator(part + level * np.eye(N)), shifted)
        worst = max(worst, float(np.linalg.norm(plain.basis - shifted.basis)))
    return {"worst": worst, "unit": float(np.finfo(float).eps * levels.max())}


def stops_together(tol):
    """A stop rule fires at the same step on all ranks."""
    (rows,) = data(0, 1, 200)
    method = bf.BrockettFlow((3, 2, 1))
    state = start(method, bf.random_basis(N, K, rng=dist.get_rank()))
    stop = [bf.residual_below(tol), bf.max_steps(5000)]
    result = bf.run(method, itertools.repeat(ShardedRows(own_rows(rows))), state, stop=stop)
    return {"steps": int(result.state.steps), "status": result.status.name}


def dask_rows(lengths):
    """Chunks of a Dask array as batches, one part a rank."""
    import dask.array as da

    whole = np.concatenate(data(0, len(lengths), max(lengths)))[: sum(lengths)]
    array = da.from_array(whole, chunks=(tuple(lengths), N // 2))
    method = bf.EigenTracker(K)
    begin = method.init(bf.random_basis(N, K, rng=1))
    result = bf.run(method, ShardedRows.stream(own_rows(array)), begin)
    chunks = np.split(whole, np.cumsum(lengths)[:-1])
    half = len(chunks) // 2
    pairs = itertools.zip_longest(chunks[:half], chunks[half:])
    together = [np.concatenate([c for c in pair if c is not None]) for pair in pairs]
    alone = bf.run(method, map(bf.gram, together), begin)
    return {
        "bits": digest(result.state),
        "difference": float(np.abs(result.state.basis - alone.state.basis).max()),
        "steps": int(result.state.steps),
    }


# What goes wrong ---------------------------------------------------------------------------------


def differing(what):
    """Something is not the same on all ranks."""
    rank = dist.get_rank()
    n, k, dtype, weights = N, K, np.float64, (3, 2, 1)
    if rank == 1:
        n, k = n + (what == "n"), k + (what == "k")
        dtype = np.float32 if what == "dtype" else dtype
        weights = (4, 2, 1) if what == "method" else weights
    method = bf.BrockettFlow(weights[:k] if k <= 3 else (4, 3, 2, 1))
    basis = bf.random_basis(n, k, rng=1 + (rank if what == "start" else 0)).astype(dtype)
    if what == "reduce":
        ShardedOperator(np.eye(n), "sum" if rank else "mean") @ basis
    if what == "method":
        check_ranks(method, method.init(basis))
    if what == "library" and rank == 1:
        basis = torch.from_numpy(basis)
    rows = np.ones((5, n), dtype=dtype)
    bf.run(method, [ShardedRows(rows if rank == 0 or what != "library" else torch.ones(5, n))] * 3,
           method.init(basis))  # fmt: skip


def differing_start(what, path=None):
    rank = dist.get_rank()
    method = bf.BrockettFlow((3 + (what == "method" and rank), 2, 1))
    start(method, bf.random_basis(N + (what == "n" and rank), K, rng=0), checkpoint=path)


def differing_streams():
    rank = dist.get_rank()
    return len(list(ShardedRows.stream([np.ones((2, N + rank))])))


def lost(how, rank_lost=1, after=5):
    """One rank dies, hangs or raises after some steps; the others must not wait for ever."""
    method = bf.BrockettFlow((3, 2, 1))
    state = method.init(bf.random_basis(N, K, rng=1))
    rows = cut(data(0, 1, 30)[0])
    for t in range(1000):
        if t == after and dist.get_rank() == rank_lost:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "hangs":
                time.sleep(60)
            if how == "raises":
                raise ZeroDivisionError("outside of any product")
        state, _ = method.step(ShardedRows(rows), state)


def uninterrupted(steps):
    """What `resumable.py` comes to when nobody disturbs it."""
    method = bf.EigenTracker(K)
    state = start(method, bf.random_basis(N, K, rng=dist.get_rank()))
    stream = (ShardedRows(cut(data(t, 1, 20)[0])) for t in range(steps))
    return digest(bf.run(method, stream, state).state)


def resumed(path, steps, restart):
    """Runs to `steps`, from the checkpoint when it is there; the first rank writes it."""
    method = bf.EigenTracker(K)
    state = start(method, bf.random_basis(N, K, rng=dist.get_rank()), checkpoint=path)
    begun = int(state.steps)
    assert (begun > 0) == restart
    batches = [cut(b) for b in data(0, steps, 20)][begun:]
    save = on_first_rank(bf.Checkpoint(path, 5, method=method))
    result = bf.run(method, map(ShardedRows, batches), state, monitors=save)
    return {"bits": digest(result.state), "begun": begun, "steps": int(result.state.steps)}
