"""What ranks do together on a basis whose rows are spread over them."""

import contextlib
import time

import numpy as np
import torch
import torch.distributed as dist
from scenes import counting, digest

import bracketflow as bf
from bracketflow.distributed import (
    ShardedRows,
    load_shards,
    over_rows,
    save_shards,
    sharded_basis,
    sharded_gram,
    start,
)

N, K = 501, 4
METHODS = {
    "weighted": bf.BrockettFlow((4, 3, 2, 1)),
    "grassmann": bf.BrockettFlow(),
    "qr": bf.BrockettFlow((4, 3, 2, 1), retraction=bf.qr),
    "cayley": bf.BrockettFlow((4, 3, 2, 1), retraction=bf.cayley),
    "neumann": bf.BrockettFlow((4, 3, 2, 1), step=0.01, retraction=bf.neumann(4)),
    "tracker": bf.EigenTracker(K),
    "fading": bf.EigenTracker(K, forget=0.2),
}


class Scene:
    """Six directions, a diagonal, noise of low rank, a background; of all rows, or of some."""

    def __init__(self, own, n=N, form="numpy"):
        self.own, self.n, self.form = own, n, form
        rng = np.random.default_rng(0)
        self.signal = np.linalg.qr(rng.standard_normal((n, 6)))[0]
        self.strengths = 3.0 * np.arange(6, 0, -1)
        self.diagonal = rng.uniform(0, 1, n)

    def operator(self, t, level=0.0, noise=1.0, jump=False):
        """Of step t: this rank's rows of X to this rank's rows of C X, in one all-reduce."""
        rng = np.random.default_rng(1000 + t)
        loud = noise * rng.standard_normal((self.n, 3)) / self.n**0.5
        signal = self.signal[::-1] if jump else self.signal
        low = np.concatenate([signal * self.strengths**0.5, loud], axis=-1)[self.own]
        diagonal = (self.diagonal[self.own] + level)[:, None]
        if self.form == "torch":
            low, diagonal = torch.from_numpy(low), torch.from_numpy(diagonal)
        if self.form == "float32":
            low, diagonal = low.astype(np.float32), diagonal.astype(np.float32)
        return bf.as_operator(lambda x: low @ over_rows(low.T @ x) + diagonal * x)

    def begin(self, method):
        likes = {"torch": torch.empty(0, dtype=torch.float64), "float32": np.empty(0, np.float32)}
        return method.init(bf.random_basis(self.n, K, rng=1, like=likes.get(self.form)))


def whole(part):
    """The rows of all ranks."""
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, np.asarray(part))
    return np.concatenate(parts)


def background(swing, steps):
    return 0.5 * swing * (1 + np.sin(np.arange(steps) / 7))


def followed(method, scene, levels, **options):
    """State after each step, and how many all-reduces it took beyond the product's own."""
    state, states, counts, sizes = scene.begin(method), [], [], []
    for t, level in enumerate(levels):
        with counting() as calls:
            state, probe = method.step(scene.operator(t, level, **options), state)
        states.append(state)
        counts.append(len(calls["all_reduce"]) - 1)
        sizes.append(sum(calls["all_reduce"]))
        assert sum(len(found) for found in calls.values()) == len(calls["all_reduce"])
    return states, probe, counts, sizes


def compare(name, steps=40, swing=0.0, noise=1.0, form="numpy", n=N):
    """A sharded run beside the same run in this process alone."""
    method, levels = METHODS[name], background(swing, steps)
    alone, alone_probe, _, _ = followed(method, Scene(slice(None), n, form), levels, noise=noise)
    with sharded_basis(n) as own:
        states, probe, counts, sizes = followed(method, Scene(own, n, form), levels, noise=noise)
        residuals = probe.residuals
    together = [whole(state.basis) for state in states[:: max(steps // 10, 1)] + states[-1:]]
    expected = [np.asarray(s.basis) for s in alone[:: max(steps // 10, 1)] + alone[-1:]]
    return {
        "difference": max(
            float(np.abs(a - b).max()) for a, b in zip(together, expected, strict=True)
        ),
        "residuals": float(np.abs(np.asarray(residuals - alone_probe.residuals)).max()),
        "defect": float(np.linalg.norm(together[-1].T @ together[-1] - np.eye(K))),
        "unit": float(np.finfo(float).eps * max(levels.max(), 1.0)),
        "messages": counts,
        "bytes": sizes,
        "rows": int(states[-1].basis.shape[0]),
        "decisions": digest(states[-1].steps, states[-1].seen, states[-1].order, probe.rayleigh),
        "kept": type(states[-1].basis) is type(alone[-1].basis)
        and states[-1].basis.dtype == alone[-1].basis.dtype,
    }


def invariance(name, steps=100):
    """The same sharded run with σ² swinging to 1e9 and without."""
    method, levels = METHODS[name], background(1e9, steps)
    with sharded_basis(N) as own:
        plain = followed(method, Scene(own), 0 * levels)[0]
        shifted = followed(method, Scene(own), levels)[0]
    pairs = zip(plain, shifted, strict=True)
    worst = max(float(np.abs(a.basis - b.basis).max()) for a, b in pairs)
    return {"worst": worst, "unit": float(np.finfo(float).eps * levels.max())}


def jumps(steps=30):
    """The signal jumps: found at the same step on all ranks and by one process."""
    method = METHODS["tracker"]

    def run(scene):
        state, found = scene.begin(method), []
        for t in range(steps):
            before = state
            operator = scene.operator(t, noise=0.3, jump=t >= 15)
            state, _ = method.step(operator, state)
            found += [[t, event.kind] for event in method.events(before, state)]
        return state, found

    alone, expected = run(Scene(slice(None)))
    with sharded_basis(N) as own:
        state, found = run(Scene(own))
    difference = float(np.abs(whole(state.basis) - alone.basis).max())
    return {"found": found, "expected": expected, "difference": difference}


def driven():
    """`run`, stop rules, a bad observation and `decompose` on a sharded basis."""
    with sharded_basis(N) as own:
        scene = Scene(own)
        fixed = scene.operator(0, level=100.0, noise=0.0)
        poison = bf.as_operator(lambda x: (fixed @ x) * (np.nan if own.start == 0 else 1.0))
        method = METHODS["weighted"]
        stream = [fixed, poison, *[fixed] * 3000]
        result = bf.run(
            method, stream, scene.begin(method), stop=[bf.residual_below(1e-2)], on_bad="skip"
        )
        found = bf.decompose(fixed, K, rng=0)
        vectors = whole(found.eigenvectors)
    fixed = Scene(slice(None)).operator(0, level=100.0, noise=0.0).derived(n=N)
    alone = bf.decompose(fixed, K, rng=0)
    return {
        "status": result.status.name,
        "steps": int(result.state.steps),
        "bad": [entry.reason.split()[0] for entry in result.bad],
        "found": found.status.name,
        "eigenvalues": float(np.abs(found.eigenvalues - alone.eigenvalues).max()),
        "eigenvectors": float(np.abs(vectors - alone.eigenvectors).max()),
    }


def data():
    """Rows whose entries are spread like the basis."""
    rows = np.random.default_rng(2).standard_normal((20, 30, N)) * np.linspace(3, 0.3, N)
    method = METHODS["tracker"]
    alone = bf.run(method, map(bf.gram, rows), method.init(bf.random_basis(N, K, rng=1)))
    with sharded_basis(N) as own:
        stream = (sharded_gram(batch[:, own]) for batch in rows)
        shared = bf.run(method, stream, method.init(bf.random_basis(N, K, rng=1)))
        read = method.read(shared.state)
    return {
        "difference": float(np.abs(whole(shared.state.basis) - alone.state.basis).max()),
        "errors": float(np.abs(read.vector_errors - method.read(alone.state).vector_errors).max()),
    }


def resumed(folder, name="tracker", first=0, last=20, save_at=None, noise=1.0):
    """Steps first … last, from the shards when first > 0; saved at a step on the way."""
    method = METHODS[name]
    with sharded_basis(N) as own:
        scene = Scene(own)
        state = scene.begin(method) if first == 0 else load_shards(folder, method)
        assert int(state.steps) == first
        for t in range(first, last):
            state, _ = method.step(scene.operator(t, 1e4, noise), state)
            if t + 1 == save_at:
                save_shards(folder, state, method=method)
        basis = whole(state.basis)
    return {"bits": digest(basis), "basis": basis.tolist()}


def finished(name, steps, folder=None, every=None, monitor=None):
    """Where it began and the state after `steps`, from the checkpoint where there is one."""
    method = METHODS[name]

    def keep(state, probe):
        if every is not None and state.steps % every == 0:
            save_shards(folder, state, method=method)

    with sharded_basis(N) as own:
        scene = Scene(own)
        state = start(method, bf.random_basis(N, K, rng=1), checkpoint=folder)
        stream = (scene.operator(t, 1e4) for t in range(state.steps, steps))
        monitors = [keep] if monitor is None else [keep, monitor]
        return int(state.steps), bf.run(method, stream, state, monitors=monitors).state


def continued(name, steps, folder=None):
    """The end of a run that nobody disturbs, from the checkpoint of one that was disturbed."""
    begun, state = finished(name, steps, folder)
    return {"begun": begun, "bits": digest(state), "basis": whole(state.basis).tolist()}


def loaded(folder, n=N, forget=None):
    with sharded_basis(n):
        load_shards(folder, bf.EigenTracker(K, forget=forget))


def wrong(what):
    """Something that every rank must refuse."""
    rank = dist.get_rank()
    dist.barrier()  # else one that refuses at once is gone before the other has found it
    n = N + rank if what == "n" else N
    rows = contextlib.nullcontext() if what == "outside" else sharded_basis(n)
    with rows:
        basis = bf.random_basis(N, N if what == "square" else K, rng=0)
        if what == "ensemble":
            bf.random_basis(N, K, ensemble=(2,))
        if what == "outside":
            save_shards("nowhere", METHODS["tracker"].init(basis))
        if what == "save":
            bf.save("nowhere", METHODS["tracker"].init(basis))
        if what == "checkpoint":
            bf.Checkpoint("nowhere", 10)
        if what == "rows":
            METHODS["weighted"].step(
                ShardedRows(np.ones((3, len(basis)))), METHODS["weighted"].init(basis)
            )
        if what == "whole":
            basis = np.linalg.qr(np.ones((N, K)) + np.eye(N, K))[0]
        if what == "few":
            save_shards("nowhere", METHODS["tracker"].init(basis)._replace(basis=basis[:40]))
        METHODS["tracker"].init(basis)


def zero_part():
    """A start of unit vectors leaves nothing on the other ranks: their own level is 0/0."""
    method = METHODS["weighted"]

    def run(scene):
        state = method.init(np.ascontiguousarray(np.eye(N, K)[scene.own]))
        for t in range(10):
            state, _ = method.step(scene.operator(t, 1e6), state)
        return state.basis

    alone = run(Scene(slice(None)))
    with sharded_basis(N) as own:
        basis = run(Scene(own))
    return float(np.abs(whole(basis) - alone).max())


# What goes wrong on one rank ----------------------------------------------------------------------


def unlucky(when, rank, good):
    """`good`, but that `rank` raises in it; for "all" every rank does, each at another moment."""
    mine = dist.get_rank() == rank

    def product(block):
        if when == "all":
            if mine:
                raise ZeroDivisionError("no luck")
            over_rows(block.T @ block)
            raise KeyError("none here either")
        if mine and when == "before":
            raise ZeroDivisionError("no luck")
        image = good @ block
        if mine and when == "between":
            raise ZeroDivisionError("no luck")
        over_rows(block.T @ image, block.T @ block)
        if mine and when == "after":
            raise ZeroDivisionError("no luck")
        return image

    if when == "local":  # a product without any message
        return bf.as_operator(lambda x: 1 / 0 if mine else x)
    if when == "shape":
        return bf.as_operator(lambda x: (good @ x)[: -1 if mine else None])
    if when == "no operator":
        return "rows" if mine else good
    return bf.as_operator(product)


def failing(name, moments, rank=1, steps=24, noise=1.0, on_bad="skip"):
    """Bad observations between good ones: the others must leave no trace, and nobody waits."""
    method = METHODS[name]
    with sharded_basis(N) as own:
        scene = Scene(own)
        good = [scene.operator(t, 1e4, noise) for t in range(steps)]
        clean = bf.run(method, good, scene.begin(method))
        bad = [unlucky(when, rank, good[0]) for when in moments]
        begin = time.monotonic()
        mixed = bf.run(method, good[:8] + bad + good[8:], scene.begin(method), on_bad=on_bad)
        took = time.monotonic() - begin
    return {
        "same": digest(mixed.state) == digest(clean.state),
        "bad": [[entry.step, entry.reason] for entry in mixed.bad],
        "took": took,
    }


def leaving(how, rank=1, after=5):
    """One rank raises outside of any product, or ends; the others are told why."""
    method = METHODS["weighted"]
    try:
        with sharded_basis(N) as own:
            scene = Scene(own)
            state = scene.begin(method)
            for t in range(1000):
                if t == after and dist.get_rank() == rank:
                    if how == "ends":
                        break
                    if how == "raises":
                        raise ZeroDivisionError("outside of any product")
                    if how == "hangs":
                        time.sleep(60)
                    if how == "memory":
                        method.step(bf.as_operator(short_of_memory), state)
                    if how == "saves":
                        bf.save("nowhere", state)
                state, _ = method.step(scene.operator(t), state)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "came to its end"


def short_of_memory(block):
    raise MemoryError("64 GB")


def told_by(probe):
    values = [probe.n, probe.lyapunov, probe.spread, probe.rounding, *probe.residuals]
    return digest(*values), repr(bf.certify(bf.State(probe.basis), probe))


def read_outside():
    """Probes and results of a sharded run, read when it is over."""
    answers = {}
    for name in ("weighted", "tracker"):
        method = METHODS[name]
        with sharded_basis(N) as own:
            scene = Scene(own)
            _, probe = method.step(scene.operator(0, 1e4), scene.begin(method))
            _, fresh = method.step(scene.operator(0, 1e4), scene.begin(method))
            inside = told_by(fresh)
        answers[name] = inside == told_by(probe) and not probe.is_square
    answers["n"] = probe.n
    try:
        bf.estimate_noise([probe, probe])
    except ValueError as error:
        answers["refused"] = str(error)
    return answers


def no_room(folder):
    """A checkpoint that only one of the ranks can write."""
    from bracketflow.distributed import shards

    def write(*args, **options):
        raise OSError("no space left on device")

    kept, method = shards.write, METHODS["tracker"]
    with sharded_basis(N) as own:
        state = Scene(own).begin(method)
        shards.write = write if dist.get_rank() == 1 else kept
        try:
            save_shards(folder, state, method=method)
        finally:
            shards.write = kept


def differing(what):
    """Ranks that do not bring the same to a sharded basis."""
    other = dist.get_rank() == 1
    with sharded_basis(N) as own:
        scene = Scene(own)
        basis = bf.random_basis(N, K + (what == "k" and other), rng=0)
        if what == "dtype" and other:
            basis = basis.astype(np.float32)
        weights = (5, 3, 2, 1) if what == "method" and other else (4, 3, 2, 1)
        method = bf.BrockettFlow(weights)
        state = method.init(basis)
        if what == "steps" and other:
            state = state._replace(steps=3)
        if what == "start":
            start(bf.BrockettFlow((5 + other, 3, 2, 1)), basis)
        bf.run(method, [scene.operator(0)], state)
