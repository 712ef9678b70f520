"""Every method goes through the same checks: pure, counted, resumable, blind to the background."""

import copy
import gc
import itertools
import pickle
import tracemalloc

import numpy as np
import pytest
import torch

import bracketflow as bf
from cases import METHODS, K, N, noise, same_bits, symmetric

STEPS = 300


@pytest.fixture(params=METHODS, ids=str)
def case(request):
    return METHODS[request.param]


def observations(rng, steps, size=0.05):
    signal = symmetric(rng, N)
    return [signal + noise(rng, N, size) for _ in range(steps)]


def drive(method, state, stream):
    for operator in stream:
        state, _ = method.step(operator, state)
    return state


BACKGROUNDS = {
    "constant 1e3": lambda rng, t: 1e3,
    "constant 1e6": lambda rng, t: 1e6,
    "constant 1e12": lambda rng, t: 1e12,
    "swinging to 2000": lambda rng, t: 1000 * (1 + np.sin(t / 7)),
    "impulses to 1e9": lambda rng, t: 10 ** rng.uniform(0, 9),
    "negative": lambda rng, t: -1e5 * rng.uniform(),
}


@pytest.mark.parametrize("background", BACKGROUNDS, ids=str)
def test_background_changes_nothing_beyond_the_rounding_of_the_products(case, background, rng):
    method, columns = case
    stream = observations(rng, STEPS)
    levels = [BACKGROUNDS[background](rng, t) for t in range(STEPS)]
    start = bf.random_basis(N, columns, rng=rng)
    plain = shifted = method.init(start)
    worst = 0.0
    for operator, level in zip(stream, levels, strict=True):
        plain, _ = method.step(operator, plain)
        shifted, _ = method.step(operator + level * np.eye(N), shifted)
        worst = max(worst, np.linalg.norm(plain.basis - shifted.basis))
    # A product with C + σ²I carries rounding of about eps·σ²; per step it turns the basis by that
    # over the gap (1), and 25 such units is the bound the benchmark holds over 4,000 steps.
    unit = np.finfo(float).eps * max(map(abs, levels))
    assert worst <= 25 * unit + 1e3 * np.finfo(float).eps


def test_step_is_pure(case, rng):
    method, columns = case
    (operator,) = observations(rng, 1)
    state = method.init(bf.random_basis(N, columns, rng=rng))
    before = copy.deepcopy(state)
    first, _ = method.step(operator, state)
    second, _ = method.step(operator, state)
    assert same_bits(state, before)
    assert same_bits(first, second)


def test_one_block_product_a_step_and_every_product_is_counted(case, rng):
    method, columns = case
    operator = bf.counted(observations(rng, 1)[0])
    state = drive(method, method.init(bf.random_basis(N, columns, rng=rng)), [operator] * 7)
    assert operator.products == 7
    assert operator.matvecs == state.matvecs
    assert state.steps == 7


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_layout_are_kept(case, dtype, rng):
    method, columns = case
    operator = observations(rng, 1)[0]
    state = method.init(bf.random_basis(N, columns, rng=rng).astype(dtype))
    state, probe = method.step(operator, state)
    state, probe = method.step(operator.astype(dtype), state)
    assert state.basis.dtype == probe.rayleigh.dtype == probe.residual.dtype == dtype
    assert state.basis.flags.c_contiguous


def test_resuming_from_a_pickled_state_is_bit_for_bit_the_uninterrupted_run(case, rng):
    method, columns = case
    stream = observations(rng, 40)
    start = method.init(bf.random_basis(N, columns, rng=rng))
    whole = bf.run(method, stream, start).state
    half = bf.run(method, stream[:20], start).state
    resumed = bf.run(method, stream[20:], pickle.loads(pickle.dumps(half))).state
    assert same_bits(whole, resumed)


def test_run_is_the_same_as_stepping_by_hand(case, rng):
    method, columns = case
    stream = observations(rng, 10)
    start = method.init(bf.random_basis(N, columns, rng=rng))
    assert np.array_equal(
        bf.run(method, stream, start).state.basis, drive(method, start, stream).basis
    )


def test_torch_agrees_with_numpy(case, rng):
    method, columns = case
    stream = observations(rng, 50)
    start = bf.random_basis(N, columns, rng=rng)
    arrays = drive(method, method.init(start), stream)
    tensors = drive(method, method.init(torch.from_numpy(start)), map(torch.from_numpy, stream))
    assert isinstance(tensors.basis, torch.Tensor)
    assert tensors.basis.is_contiguous()
    # Two libraries sum in different order: some eps a step, amplified while the basis turns.
    assert np.abs(arrays.basis - tensors.basis.numpy()).max() <= 1e-12


def test_members_of_an_ensemble_run_as_if_alone(case, rng):
    method, columns = case
    operators = symmetric(rng, N, ensemble=(2, 2))
    starts = bf.random_basis(N, columns, rng=rng, ensemble=(2, 2))
    stop = [bf.max_steps(30)]
    together = bf.run(method, itertools.repeat(operators), method.init(starts), stop=stop)
    assert together.state.steps.shape == together.status.shape == (2, 2)
    for member in np.ndindex(2, 2):
        alone = bf.run(
            method, itertools.repeat(operators[member]), method.init(starts[member]), stop=stop
        )
        if isinstance(method, bf.EigenTracker) and columns < N:
            # Alone it builds a Krylov span while the signal stands still; an ensemble averages.
            assert bf.basis_error(together.state.basis[member], alone.state.basis) <= 1e-6
            continue
        assert np.allclose(together.state.basis[member], alone.state.basis, rtol=0, atol=1e-12)
        assert np.allclose(together.eigenvalues[member], alone.eigenvalues, rtol=0, atol=1e-11)
        assert together.state.matvecs[member] == alone.state.matvecs


def test_basis_stays_orthonormal_and_keeps_its_determinant(case, rng):
    method, columns = case
    for sign in (1, -1):
        start = bf.random_basis(N, columns, rng=rng)
        start[:, 0] *= sign * (np.sign(np.linalg.det(start)) if columns == N else 1)
        basis = drive(method, method.init(start), observations(rng, 200)).basis
        assert np.linalg.norm(basis.T @ basis - np.eye(columns)) <= 1e-13
        if columns == N:
            assert np.isclose(np.linalg.det(basis), sign)


def test_memory_does_not_grow_with_the_stream(case, rng):
    method, columns = case
    stream = observations(rng, 50)
    state = drive(method, method.init(bf.random_basis(N, columns, rng=rng)), stream)
    tracemalloc.start()
    state = drive(method, state, stream)
    gc.collect()  # also empties the interpreter's lists of free tuples, which count as taken
    before = tracemalloc.get_traced_memory()[0]
    state = drive(method, state, itertools.chain(stream, stream, stream, stream))
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000  # bytes: a leak of one small array a step would be 100,000


def test_refused_observation_leaves_the_state_and_the_rest_of_the_run_untouched(case, rng):
    method, columns = case
    stream = observations(rng, 20)
    start = method.init(bf.random_basis(N, columns, rng=rng))
    clean = bf.run(method, stream, start)
    poison = [
        np.full((N, N), np.nan),
        stream[0] + 5 * np.triu(np.ones((N, N)), 1),
        np.full((N, N), np.inf),
        lambda block: 1 / 0,
        np.eye(N + 1),
        stream[0] + 1e300 * np.eye(N),
    ]
    mixed = list(itertools.chain(*zip(stream, itertools.cycle(poison), strict=False)))
    result = bf.run(method, mixed, start, on_bad="skip")
    assert same_bits(result.state, clean.state)
    refused = [entry for entry in result.bad if "loud" not in entry.reason]  # a tracker may add one
    assert len(refused) == 20
    assert result.bad[0].step == 1
    with pytest.raises(bf.ObservationError):
        bf.run(method, mixed, start)


def test_leading_columns_of_k_are_asked_for(case, rng):
    method, columns = case
    assert columns in (N, K)
    state = method.init(bf.random_basis(N, columns, rng=rng))
    assert state.basis.shape == (N, columns)
    assert (state.steps, state.matvecs) == (0, 0)
