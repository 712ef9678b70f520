"""Hessian eigenvectors of a network in training, as figures, each beside its bound.

    python benchmarks/hessian.py                  every point, some minutes
    python benchmarks/hessian.py speed cost       some of them

A 64-64-10 tanh network learns digits: float64, 300 steps of SGD (rate 0.1, momentum 0.9),
minibatches of 128, one look a step, damping anywhere in 0 … 2000. Every 30th step the five tracked
vectors are compared with those of the full batch by `eigsh`. Times are ratios within one run.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import warnings

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import bracketflow as bf
import bracketflow.torch as bft

K, STEPS, CHECK, SAMPLES, SEEDS = 5, 300, 30, 128, 3
GAINS = (None, 0.03, 0.1, 0.3)


def report(what, figure, *, at_most=None, at_least=None):
    bound, verdict = "", ""
    if at_most is not None:
        bound, verdict = f"  (at most {at_most:.4g})", "ok" if figure <= at_most else "MISSED"
    if at_least is not None:
        bound, verdict = f"  (at least {at_least:.4g})", "ok" if figure >= at_least else "MISSED"
    print(f"  {what:<70s} {figure:>10.4g}{bound}  {verdict}".rstrip(), flush=True)


def digits():
    data = load_digits()
    return torch.tensor(data.data / 16), torch.tensor(data.target)


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()


def shuffled(count, generator):
    """Minibatches of whole epochs, each in a new order."""
    while True:
        order = torch.randperm(count, generator=generator)
        yield from order[: count - count % SAMPLES].split(SAMPLES)


def drawn(count, generator):
    """Minibatches drawn one by one from everything."""
    while True:
        yield torch.randperm(count, generator=generator)[:SAMPLES]


def training(seed, batches):
    """Yield (step, model, minibatch) before every one of the steps."""
    inputs, targets = digits()
    model = network(seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    chosen = batches(len(inputs), torch.Generator().manual_seed(seed))
    for step in range(1, STEPS + 1):
        rows = next(chosen)
        batch = inputs[rows], targets[rows]
        yield step, model, batch
        optimiser.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimiser.step()


def leading(operator):
    """The K largest eigenvalues and their vectors by eigsh, and the products it took."""
    counted = bf.counted(operator)

    def product(vector):
        return (counted @ torch.from_numpy(vector.reshape(-1, 1).copy())).numpy()[:, 0]

    lanczos = LinearOperator(operator.shape, matvec=product, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(operator.n)
    values, vectors = eigsh(lanczos, K, which="LA", v0=start)
    return values.sum(), torch.from_numpy(vectors.copy()), counted.matvecs


# Accuracy ---------------------------------------------------------------------------------------


def followed(seed, batches):
    """Captured curvature and error of every gain at every checkpoint: (gains, 2, checkpoints)."""
    everything, rng = digits(), np.random.default_rng(seed)
    trackers = [bf.EigenTracker(K, forget=gain) for gain in GAINS]
    states, figures = None, []
    for step, model, batch in training(seed, batches):
        operator = bf.shifted(bft.hessian(model, cross_entropy, batch), rng.uniform(0, 2000))
        if states is None:
            start = bf.random_basis(operator.n, K, rng=seed, like=operator.like)
            states = [tracker.init(start) for tracker in trackers]
        states = [tracker.step(operator, s)[0] for tracker, s in zip(trackers, states, strict=True)]
        if step % CHECK == 0:
            full = bft.hessian(model, cross_entropy, everything)
            total, truth, _ = leading(full)
            figures.append([judged(state.basis, full, total, truth) for state in states])
    return np.transpose(figures, (1, 2, 0))


def judged(basis, full, total, truth):
    captured = float((basis * (full @ basis)).sum()) / total
    return captured, float(bf.subspace_error(basis, truth)) / K**0.5


def accuracy():
    for name, batches in (("epochs in new order", shuffled), ("independent draws", drawn)):
        runs = np.stack([followed(seed, batches) for seed in range(SEEDS)])
        captured, errors = np.median(runs, axis=(0, 3)).T
        report(f"{name}: captured curvature", captured[0], at_least=0.97)
        report(f"{name}: subspace error / √5", errors[0], at_most=0.25)
        for gain, error in zip(GAINS[1:], errors[1:], strict=True):
            report(f"{name}: the same at a fixed gain of {gain}", error)
        best = errors[1:].min()
        report(f"{name}: error / best fixed gain's", errors[0] / best, at_most=1.15)


# Cost -------------------------------------------------------------------------------------------


def cost():
    monitor, everything = None, digits()
    for step, model, batch in training(0, shuffled):
        monitor = monitor or bft.HessianMonitor(model, cross_entropy, K)
        monitor.step(batch)
        if step == 2 * CHECK:
            break
    products = [record["matvecs"] for record in monitor.records]
    late = products[-1] - products[-1 - CHECK]
    solver = leading(bft.hessian(model, cross_entropy, everything))[2] * len(everything[0])
    report("sample·products of a look", SAMPLES * late / CHECK)
    report(f"sample·products of {CHECK} looks", SAMPLES * late)
    report("sample·products of one full-batch eigsh", solver)
    report(
        f"{CHECK} looks / one eigsh (who gives one answer, not {CHECK})", SAMPLES * late / solver
    )
    report("a look / one eigsh", SAMPLES * late / CHECK / solver)


# Speed ------------------------------------------------------------------------------------------


def by_autograd(model, batch, block):
    """Column by column with torch.autograd alone: the gradient's graph once, then K products."""
    parameters = list(model.parameters())
    loss = cross_entropy(model(batch[0]), batch[1])
    gradient = torch.autograd.grad(loss, parameters, create_graph=True)
    flat = torch.cat([part.reshape(-1) for part in gradient])
    columns = [
        torch.autograd.grad(flat, parameters, column, retain_graph=True) for column in block.mT
    ]
    return torch.stack([torch.cat([p.reshape(-1) for p in c]) for c in columns], dim=1)


def speed(repeats=15):
    model, (inputs, targets) = network(0), digits()
    batch = inputs[:SAMPLES], targets[:SAMPLES]
    operator = bft.hessian(model, cross_entropy, batch)
    for columns in (K + 1, 4 * K + 1):
        block = bf.random_basis(operator.n, columns, rng=0, like=operator.like)
        contenders = {
            "block": lambda block=block: operator @ block,
            "its own columns one by one": lambda block=block: [
                operator @ column[:, None] for column in block.mT
            ],
            "torch.autograd column by column": lambda block=block: by_autograd(model, batch, block),
        }
        seconds = {name: [] for name in contenders}
        for _ in range(repeats):
            for name, contender in contenders.items():
                begin = time.process_time()
                contender()
                seconds[name].append(time.process_time() - begin)
        block_time = np.median(seconds.pop("block"))
        for name, times in seconds.items():
            bound = 3 if name.startswith("its own") and columns > K + 1 else None
            ratio = np.median(times) / block_time
            report(f"{columns} columns: {name} / block product", ratio, at_least=bound)


# Agreement --------------------------------------------------------------------------------------


def agreement():
    model, (inputs, targets) = network(0), digits()
    batch, loss = (inputs[:SAMPLES], targets[:SAMPLES]), nn.CrossEntropyLoss()
    head = ["2.weight", "2.bias"]
    block = bft.hessian(model, loss, batch, params=head)
    found = block @ torch.eye(block.n, dtype=torch.float64)
    difference = float((found - dense_head(model, loss, batch)).abs().max())
    report("largest difference from the dense Hessian of the last layer", difference, at_most=1e-10)
    if importlib.util.find_spec("curvlinops") is None:
        print("  curvlinops is not installed: pip install curvlinops-for-pytorch")
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        against_curvlinops(model, loss, batch)


def dense_head(model, loss, batch):
    hidden = model[:2](batch[0]).detach()

    def of_head(flat):
        weight, bias = flat[:640].view(10, 64), flat[640:]
        return loss(hidden @ weight.T + bias, batch[1])

    values = torch.cat([value.detach().reshape(-1) for value in model[2].parameters()])
    return torch.autograd.functional.hessian(of_head, values)


def against_curvlinops(model, loss, batch):
    import curvlinops

    start = bf.random_basis(4810, 4 * K + 1, rng=0, like=batch[0])
    for name, ours in (
        ("HessianLinearOperator", bft.hessian),
        ("GGNLinearOperator", bft.gauss_newton),
        ("EFLinearOperator", lambda *args: bft.gradient_covariance(*args, centred=False)),
    ):
        theirs = getattr(curvlinops, name)(model, loss, list(model.parameters()), [batch])
        difference = (ours(model, loss, batch) @ start - bf.as_operator(theirs) @ start).abs().max()
        report(f"largest difference from curvlinops.{name}", float(difference), at_most=1e-10)


POINTS = {
    "agreement": ("Operators against dense and foreign ones", agreement),
    "speed": ("Block products, processor time", speed),
    "cost": ("Samples times products", cost),
    "accuracy": ("Five leading vectors, median over checkpoints and seeds", accuracy),
}


if __name__ == "__main__":
    for key in sys.argv[1:] or POINTS:
        title, point = POINTS[key]
        print(f"{key}. {title}")
        point()
