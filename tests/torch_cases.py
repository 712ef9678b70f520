"""Models, batches and dense curvature for the tests of `bracketflow.torch`."""

import itertools

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev

F64 = torch.float64
EPS = torch.finfo(F64).eps
CLOSE = 1e-10  # the agreement that is promised; the entries here are of order 1


def perceptron(seed, widths=(6, 5, 3), dtype=F64):
    torch.manual_seed(seed)
    layers = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def samples(seed, count=20, features=6, classes=3, dtype=F64):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, features, dtype=dtype, generator=generator)
    return inputs, torch.randint(0, classes, (count,), generator=generator)


def convolution(seed):
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 3, 3), nn.Softplus(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    return nn.Sequential(*layers).to(F64)


class Attention(nn.Module):
    """Two tied embeddings around attention, whose fused kernels have no second derivative."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        embedded = self.embed(tokens)
        return self.out(self.attend(embedded, embedded, embedded, need_weights=False)[0][:, -1])


def scene(name, seed):
    """A model in evaluation mode and a batch."""
    generator = torch.Generator().manual_seed(seed)
    if name == "perceptron":
        return perceptron(seed), samples(seed)
    if name == "convolution":
        images = torch.randn(9, 1, 6, 6, dtype=F64, generator=generator)
        return convolution(seed), (images, torch.randint(0, 3, (9,), generator=generator))
    torch.manual_seed(seed)
    tokens = torch.randint(0, 7, (8, 5), generator=generator)
    return Attention().to(F64).eval(), (tokens, torch.randint(0, 7, (8,), generator=generator))


SCENES = pytest.mark.parametrize("name", ["perceptron", "convolution", "attention"])


def dense(operator):
    return operator @ torch.eye(operator.n, dtype=operator.like.dtype)


def flat_function(model, compute):
    """`compute(output)` as a function of the flat parameters, and their values now."""
    shapes = {name: value.shape for name, value in model.named_parameters()}
    values = torch.cat([value.detach().reshape(-1) for value in model.parameters()])

    def function(flat, inputs):
        parts = flat.split([shape.numel() for shape in shapes.values()])
        named = {n: p.view(s) for (n, s), p in zip(shapes.items(), parts, strict=True)}
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return compute(functional_call(model, named, (inputs,)))

    return function, values


def dense_hessian(model, loss_fn, batch):
    inputs, targets = batch
    loss, values = flat_function(model, lambda output: loss_fn(output, targets))
    return torch.autograd.functional.hessian(lambda flat: loss(flat, inputs), values)


def dense_gauss_newton(model, loss_fn, batch):
    """Jᵀ A J with A the Hessian in the output, both dense."""
    inputs, targets = batch
    predict, values = flat_function(model, lambda output: output)
    output = predict(values, inputs)
    jacobian = jacrev(lambda flat: predict(flat, inputs))(values).reshape(output.numel(), -1)

    def loss(flat):
        return loss_fn(flat.view_as(output), targets)

    curvature = torch.autograd.functional.hessian(loss, output.reshape(-1))
    return jacobian.T @ curvature @ jacobian


def sample_gradients(model, loss_fn, batch):
    rows = []
    for i in range(len(batch[1])):
        loss, values = flat_function(model, lambda out, i=i: loss_fn(out, batch[1][i : i + 1]))
        values.requires_grad_(True)
        (row,) = torch.autograd.grad(loss(values, batch[0][i : i + 1]), values)
        rows.append(row)
    return torch.stack(rows)


def damping_of(model, level):
    return 0.5 * level * sum((value**2).sum() for value in model.parameters())


def noisy_model():
    parts = [nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 3)]
    return nn.Sequential(*parts).to(F64).train()
