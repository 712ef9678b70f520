"""A full eigenbasis for SOAP-style preconditioning, kept in four ways.

SOAP runs Adam in the eigenbasis of Shampoo's factors L ← βL + (1 − β)GGᵀ and R ← βR + (1 − β)GᵀG,
and refreshes that basis by one orthogonal iteration, the Q factor of LQ. What else keeps it:

* `eigh` at every step: exact, but columns change place and sign under Adam's second moments;
* `bf.EigenTracker(forget=1 - β)`: fed with GGᵀ, it keeps the mean itself, columns stay in place;
* `bf.DoubleBracketFlow` on L: products only, no factorisation, lags a little.
"""

import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import bracketflow as bf

BETA, RATE, STEPS = 0.95, 3e-3, 150

digits = load_digits()
inputs, targets = torch.tensor(digits.data / 16), torch.tensor(digits.target)


class Eigh:
    """The eigenbasis of the factor, anew at every step, in descending order."""

    def __init__(self, first):
        self.basis = torch.linalg.eigh(first)[1].flip(1)

    def update(self, factor, new):
        self.basis = torch.linalg.eigh(factor)[1].flip(1)
        return slice(None)


class OrthogonalIteration(Eigh):
    """SOAP's own: sort by diag(QᵀLQ), then the Q factor of LQ. Second moments are sorted along."""

    def update(self, factor, new):
        image = factor @ self.basis
        order = torch.argsort((self.basis * image).sum(0), descending=True)
        self.basis = torch.linalg.qr(image[:, order])[0]
        return order


class Tracked(Eigh):
    """EigenTracker with the memory of the factor; it sees only the new term."""

    def __init__(self, first):
        self.method = bf.EigenTracker(forget=1 - BETA)
        start = self.method.init(torch.eye(len(first), dtype=first.dtype))
        self.state, _ = self.method.step(first, start)

    @property
    def basis(self):
        return self.state.basis

    def update(self, factor, new):
        self.state, _ = self.method.step(new, self.state)
        return slice(None)


class Flowing(Tracked):
    """The double-bracket flow, one step a refresh, on the factor."""

    def __init__(self, first):
        self.method = bf.DoubleBracketFlow(step=bf.Adaptive())
        self.state = self.method.init(torch.linalg.eigh(first)[1].flip(1))

    def update(self, factor, new):
        self.state, _ = self.method.step(factor, self.state)
        return slice(None)


class Side:
    """One factor of a weight with its basis."""

    def __init__(self, keeper, new):
        self.factor = new
        self.keeper = keeper(new)
        self.seconds, self.coupling = [], []

    def update(self, new):
        self.factor = BETA * self.factor + (1 - BETA) * new
        begin = time.process_time()
        order = self.keeper.update(self.factor, new)
        self.seconds.append(time.process_time() - begin)
        inside = self.basis.T @ self.factor @ self.basis
        diagonal = torch.diag(torch.diag(inside))
        self.coupling.append((torch.norm(inside - diagonal) / torch.norm(inside)).item())
        return order

    @property
    def basis(self):
        return self.keeper.basis


def train(keeper, seed=0):
    """Train with SOAP on the first weight and Adam on the rest: losses, and the two sides."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()
    weight, *rest = model.parameters()
    adam = torch.optim.Adam(rest, lr=RATE)
    sides, momentum, squares, losses = None, 0, torch.zeros_like(weight), []
    for step in range(1, STEPS + 1):
        rows = torch.randperm(len(inputs))[:128]
        loss = cross_entropy(model(inputs[rows]), targets[rows])
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        adam.step()
        gradient = weight.grad
        news = gradient @ gradient.T, gradient.T @ gradient
        if sides is None:
            sides = [Side(keeper, new) for new in news]
        else:
            left, right = (side.update(new) for side, new in zip(sides, news, strict=True))
            squares = squares[left][:, right]
        (p, q), momentum = (side.basis for side in sides), 0.9 * momentum + 0.1 * gradient
        squares = BETA * squares + (1 - BETA) * (p.T @ gradient @ q) ** 2
        scale = torch.sqrt(squares / (1 - BETA**step)) + 1e-8
        with torch.no_grad():
            weight -= RATE * p @ (p.T @ momentum @ q / (1 - 0.9**step) / scale) @ q.T
    return losses, sides


KEEPERS = {
    "eigh at every step": Eigh,
    "one orthogonal iteration (SOAP)": OrthogonalIteration,
    "EigenTracker": Tracked,
    "DoubleBracketFlow": Flowing,
}

print(f"{'basis kept by':32s}  off-diagonal   ms a refresh   mean loss of the last 50 steps")
found = {}
for name, keeper in KEEPERS.items():
    losses, sides = train(keeper)
    coupling = sum(sum(side.coupling[-50:]) for side in sides) / 100
    milliseconds = 1e3 * sum(sorted(side.seconds)[len(side.seconds) // 2] for side in sides) / 2
    loss = sum(losses[-50:]) / 50
    found[name] = {"cheapest": milliseconds, "closest to exact": coupling, "lowest loss": loss}
    print(f"{name:32s}  {coupling:12.1e}  {milliseconds:12.2f}  {loss:16.3f}")

print("\nIn this one run, eigh aside:")
del found["eigh at every step"]
for what in ("cheapest", "closest to exact", "lowest loss"):
    print(f"  {what:17s} {min(found, key=lambda name, what=what: found[name][what])}")
