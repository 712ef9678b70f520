"""Watch the Hessian of a network while it learns digits: three lines in any training loop.

A look multiplies the Hessian of one minibatch with 22 vectors and averages over the looks before.
At the end the tracked subspace is compared with that of the whole data set.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import bracketflow as bf
from bracketflow.torch import HessianMonitor, hessian

digits = load_digits()
inputs, targets = torch.tensor(digits.data / 16), torch.tensor(digits.target)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

monitor = HessianMonitor(model, cross_entropy, k=5)

print("step    loss   sharpness   five leading eigenvalues             gradient in their span")
for step in range(1, 151):
    rows = torch.randperm(len(inputs))[:128]
    batch = inputs[rows], targets[rows]
    optimiser.zero_grad()
    cross_entropy(model(batch[0]), batch[1]).backward()
    monitor.step(batch)
    optimiser.step()
    if step % 25 == 0:
        values = "  ".join(f"{value:5.2f}" for value in monitor.eigenvalues)
        look = monitor.latest
        print(f"{step:4d}  {look['loss']:6.3f}  {monitor.sharpness:10.2f}   {values}", end="")
        print(f"  {monitor.alignment:18.0%}")

everything = hessian(model, cross_entropy, (inputs, targets))
exact = bf.decompose(everything, k=5, rng=0)
vectors = monitor.eigenvectors
captured = torch.sum(vectors * (everything @ vectors)) / exact.eigenvalues.sum()
print(
    f"\nThe tracked subspace holds {captured:.1%} of the curvature that any five vectors can hold."
)
look, before = (record["matvecs"] for record in monitor.records[:-3:-1])
print(f"A look took {128 * (look - before)} sample·products, the exact answer")
print(f"(bf.decompose on all samples) {len(inputs) * exact.state.matvecs}.")
