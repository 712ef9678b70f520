"""Steps are pure: one method object serves many threads, each with a state of its own."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import bracketflow as bf
from cases import METHODS, N, noise, same_bits, symmetric

THREADS = 8


@pytest.fixture(autouse=True)
def switch_often():
    """Threads that change places as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def problem(name, seed, library):
    """A start and a stream, for one thread; every third observation is bad."""
    rng = np.random.default_rng(seed)
    _, columns = METHODS[name]
    signal = symmetric(rng, N)
    stream = [library(signal + noise(rng, N, 0.2)) for _ in range(15)]
    stream[::3] = [c * float("nan") for c in stream[::3]]
    return library(bf.random_basis(N, columns, rng=rng)), stream


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", METHODS)
def test_one_method_in_many_threads_with_separate_states(name, library):
    method, _ = METHODS[name]
    problems = [problem(name, seed, library) for seed in range(THREADS)]

    def follow(start, stream):
        return bf.run(method, stream, method.init(start), on_bad="skip")

    alone = [follow(*part) for part in problems]
    together = threading.Barrier(THREADS)

    def begin(part):
        together.wait()
        return follow(*part)

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(begin, problems))
    for result, expected in zip(results, alone, strict=True):
        assert same_bits(result.state, expected.state)
        assert same_bits(result.eigenvalues, expected.eigenvalues)
        assert result.bad == expected.bad


def test_one_state_may_be_stepped_from_many_threads_at_once(rng):
    method = bf.EigenTracker()
    signal = symmetric(rng, N)
    stream = [signal + noise(rng, N, 0.2) for _ in range(20)]
    state = bf.run(method, stream[:10], method.init(bf.random_basis(N, rng=rng))).state
    expected = [method.step(c, state)[0] for c in stream]
    with ThreadPoolExecutor(THREADS) as pool:
        followed = list(pool.map(lambda c: method.step(c, state)[0], stream))
    assert all(map(same_bits, followed, expected))


def test_checkpoints_of_many_threads_do_not_meet(tmp_path, rng):
    method = bf.BrockettFlow((2, 1))
    states = [method.init(bf.random_basis(5, 2, rng=rng)) for _ in range(THREADS)]

    def write(i):
        for _ in range(5):
            bf.save(tmp_path / "shared", states[i])
            bf.save(tmp_path / f"own{i}", states[i])
            assert same_bits(bf.load(tmp_path / f"own{i}").state, states[i])
            shared = bf.load(tmp_path / "shared").state
            assert any(same_bits(shared, state) for state in states)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(THREADS)))
    assert {p.name for p in tmp_path.iterdir()} == {"shared", *(f"own{i}" for i in range(THREADS))}
