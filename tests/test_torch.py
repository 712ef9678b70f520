"""Curvature operators of a PyTorch model agree with dense ones and with curvlinops."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import bracketflow as bf
import bracketflow.torch as bft
from bracketflow.torch import curvature
from torch_cases import (
    CLOSE,
    F64,
    SCENES,
    damping_of,
    dense,
    dense_gauss_newton,
    dense_hessian,
    noisy_model,
    perceptron,
    sample_gradients,
    samples,
    scene,
)

# Operators --------------------------------------------------------------------------------------


@SCENES
def test_hessian_is_the_dense_one(name, seed):
    model, batch = scene(name, seed)
    operator = bft.hessian(model, cross_entropy, batch)
    expected = dense_hessian(model, cross_entropy, batch)
    assert torch.allclose(dense(operator), expected, rtol=0, atol=CLOSE)
    assert operator.loss == pytest.approx(cross_entropy(model(batch[0]), batch[1]).item())


@SCENES
def test_gauss_newton_is_the_dense_one(name, seed):
    model, batch = scene(name, seed)
    found = dense(bft.gauss_newton(model, cross_entropy, batch))
    expected = dense_gauss_newton(model, cross_entropy, batch)
    assert torch.allclose(found, expected, rtol=0, atol=CLOSE)


@SCENES
@pytest.mark.parametrize("centred", [True, False])
def test_gradient_covariance_is_the_dense_one(name, centred, seed):
    model, batch = scene(name, seed)
    found = dense(bft.gradient_covariance(model, cross_entropy, batch, centred=centred))
    rows = sample_gradients(model, cross_entropy, batch)
    rows = rows - rows.mean(0) if centred else rows
    assert torch.allclose(found, rows.T @ rows / len(rows), rtol=0, atol=CLOSE)


OPERATORS = pytest.mark.parametrize(
    "build", [bft.hessian, bft.gauss_newton, bft.gradient_covariance]
)


@OPERATORS
def test_operators_carry_loss_gradient_and_weight(build, seed):
    model, batch = perceptron(seed), samples(seed)
    operator = build(model, cross_entropy, batch)
    loss = cross_entropy(model(batch[0]), batch[1])
    gradient = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.cat([part.reshape(-1) for part in gradient])
    assert operator.loss == pytest.approx(loss.item())
    assert torch.allclose(operator.gradient, expected, rtol=0, atol=CLOSE)
    assert operator.weight == 20


@OPERATORS
def test_subset_of_parameters_gives_its_block(build, seed):
    model, batch = perceptron(seed), samples(seed)
    everything = dense(build(model, cross_entropy, batch))
    some = build(model, cross_entropy, batch, params=["2.weight", "0.bias"])
    # Flat order: 0.weight (30), 0.bias (5), 2.weight (15), 2.bias (3).
    kept = torch.cat([torch.arange(35, 50), torch.arange(30, 35)])
    assert torch.allclose(dense(some), everything[kept][:, kept], rtol=0, atol=CLOSE)


def test_frozen_parameters_are_left_out(seed):
    model, batch = perceptron(seed), samples(seed)
    model[0].requires_grad_(False)
    assert bft.hessian(model, cross_entropy, batch).n == 18


@OPERATORS
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_dtype_is_kept(build, dtype, seed):
    model, batch = perceptron(seed, dtype=dtype), samples(seed, dtype=dtype)
    operator = build(model, cross_entropy, batch)
    block = bf.random_basis(operator.n, 4, rng=seed, like=operator.like)
    image = operator @ block
    assert block.dtype == image.dtype == operator.gradient.dtype == dtype
    assert image.is_contiguous()
    assert not image.requires_grad


@OPERATORS
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_agree(build, chunk, seed):
    model, batch = perceptron(seed), samples(seed)
    block = torch.randn(53, 7, dtype=F64, generator=torch.Generator().manual_seed(seed))
    whole = build(model, cross_entropy, batch) @ block
    parts = build(model, cross_entropy, batch, chunk=chunk) @ block
    assert torch.allclose(whole, parts, rtol=0, atol=CLOSE)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("pretended"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate ..."),
    ],
)
def test_short_memory_makes_smaller_chunks(error, monkeypatch, seed):
    model, batch = perceptron(seed), samples(seed)
    operator = bft.hessian(model, cross_entropy, batch)
    block = torch.randn(53, 9, dtype=F64, generator=torch.Generator().manual_seed(seed))
    whole = operator @ block
    tried, vmap = [], curvature.vmap

    def small(function, chunk_size):
        tried.append(chunk_size)
        if chunk_size > 2:
            raise error
        return vmap(function, chunk_size=chunk_size)

    monkeypatch.setattr(curvature, "vmap", small)
    assert torch.allclose(operator @ block, whole, rtol=0, atol=CLOSE)
    assert tried == [12, 4, 2]


def test_no_memory_for_one_column_is_an_error(monkeypatch, seed):
    operator = bft.hessian(perceptron(seed), cross_entropy, samples(seed))

    def none(function, chunk_size):
        raise torch.OutOfMemoryError("pretended")

    monkeypatch.setattr(curvature, "vmap", none)
    with pytest.raises(torch.OutOfMemoryError):
        operator @ torch.zeros(53, 2, dtype=F64)


@OPERATORS
def test_operators_are_snapshots(build, seed):
    model, batch = perceptron(seed), samples(seed)
    operator = build(model, cross_entropy, batch, params=["2.weight"])
    before = dense(operator)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(1.0)
    assert torch.equal(dense(operator), before)


@OPERATORS
def test_training_mode_leaves_buffers_alone_and_stays_symmetric(build, seed):
    torch.manual_seed(seed)
    model = noisy_model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    matrix = dense(build(model, cross_entropy, samples(seed)))
    assert torch.allclose(matrix, matrix.T, rtol=0, atol=CLOSE)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_several_inputs_by_place_or_name(seed):
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 3).to(F64)

        def forward(self, first, second):
            return self.linear(first + second)

    torch.manual_seed(seed)
    model, (inputs, targets) = Sum(), samples(seed)
    expected = dense(bft.hessian(model, cross_entropy, ((inputs, 0 * inputs), targets)))
    for arguments in ([inputs, 0 * inputs], {"second": 0 * inputs, "first": inputs}):
        found = dense(bft.hessian(model, cross_entropy, (arguments, targets)))
        assert torch.equal(found, expected)


def test_penalty_on_the_parameters_shifts_the_hessian_only(seed):
    model, batch = perceptron(seed), samples(seed)

    def penalised(output, targets):
        return cross_entropy(output, targets) + damping_of(model, 100.0)

    plain = dense(bft.hessian(model, cross_entropy, batch))
    damped = dense(bft.hessian(model, penalised, batch))
    assert torch.allclose(damped - plain, 100 * torch.eye(53, dtype=F64), rtol=0, atol=CLOSE)
    plain = dense(bft.gauss_newton(model, cross_entropy, batch))
    assert torch.allclose(
        dense(bft.gauss_newton(model, penalised, batch)), plain, rtol=0, atol=CLOSE
    )


def test_batches_of_any_size_average_alike(seed):
    """Weighted by their samples, parts of a batch have the Hessian of the whole as their mean."""
    model, (inputs, targets) = perceptron(seed), samples(seed)
    cuts = torch.tensor([1, 8])
    parts = [
        bft.hessian(model, cross_entropy, pair)
        for pair in zip(inputs.tensor_split(cuts), targets.tensor_split(cuts), strict=True)
    ]
    weights = [part.weight for part in parts]
    mean = sum(w * dense(part) for w, part in zip(weights, parts, strict=True)) / sum(weights)
    whole = dense(bft.hessian(model, cross_entropy, (inputs, targets)))
    assert weights == [1, 7, 12]
    assert torch.allclose(mean, whole, rtol=0, atol=CLOSE)


# curvlinops -------------------------------------------------------------------------------------


@pytest.fixture
def curvlinops():
    with warnings.catch_warnings():  # of its own and torch's, about torch.jit
        warnings.simplefilter("ignore")
        yield pytest.importorskip("curvlinops", reason="curvlinops-for-pytorch is not installed")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("HessianLinearOperator", bft.hessian),
        ("GGNLinearOperator", bft.gauss_newton),
        ("EFLinearOperator", lambda *args: bft.gradient_covariance(*args, centred=False)),
    ],
)
def test_operators_agree_with_curvlinops(curvlinops, theirs, ours, seed):
    model, batch, loss = perceptron(seed), samples(seed), nn.CrossEntropyLoss()
    other = getattr(curvlinops, theirs)(model, loss, list(model.parameters()), [batch])
    block = bf.random_basis(53, 9, rng=seed, like=torch.empty(0, dtype=F64))
    found = ours(model, loss, batch) @ block
    assert torch.allclose(found, bf.as_operator(other) @ block, rtol=0, atol=CLOSE)


def test_curvlinops_operators_are_taken_as_they_are(curvlinops, seed):
    model, batch, loss = perceptron(seed), samples(seed), nn.CrossEntropyLoss()
    operator = curvlinops.HessianLinearOperator(model, loss, list(model.parameters()), [batch])
    result = bf.decompose(operator, k=3, rng=seed)
    expected = torch.linalg.eigvalsh(dense_hessian(model, loss, batch)).flip(0)[:3]
    assert result.converged
    assert torch.allclose(result.eigenvalues, expected, rtol=0, atol=1e-7)  # r² / gap at tol 1e-8
    result = bf.track([bf.shifted(operator, s) for s in (0.0, 2000.0) * 10], k=3, rng=seed)
    assert result.eigenvectors.dtype == F64
    assert result.eigenvectors.shape == (53, 3)


@OPERATORS
def test_loss_that_is_not_scalar(build, seed):
    model, batch = perceptron(seed), samples(seed)

    def unreduced(output, targets):
        return cross_entropy(output, targets, reduction="none")

    with pytest.raises(ValueError, match=r"loss_fn must give one number, got shape \(\d+,\).*mean"):
        build(model, unreduced, batch)
    with pytest.raises(TypeError, match="loss_fn must give a tensor, got float"):
        build(model, lambda output, targets: 1.0, batch)


@OPERATORS
def test_non_finite_loss_is_a_bad_observation(build, seed):
    model, (inputs, targets) = perceptron(seed), samples(seed)
    with pytest.raises(bf.ObservationError, match="the loss on this batch is nan"):
        build(model, cross_entropy, (inputs / 0.0 * 0.0, targets))
