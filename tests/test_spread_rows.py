"""Rows spread over threads that play ranks: the same as one process, without torch or sockets."""

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.core import Probe, State
from bracketflow.geometry import _gaussian, check_basis, orthonormalise, signs, triangular
from bracketflow.observation import observe
from bracketflow.sharding import Shards, over_rows, spread_rows

EPS = np.finfo(float).eps
N, K = 11, 2


@pytest.fixture(autouse=True)
def _no_common_lock(monkeypatch):
    """Python 3.11 computes a cached property under one lock for all threads; ranks share none."""
    for part in vars(Probe).values():
        if isinstance(part, cached_property):
            monkeypatch.setattr(part, "lock", nullcontext(), raising=False)


@dataclass(frozen=True)
class ThreadShards(Shards):
    """Rows of one thread. What fails there ends the test, so nothing is told to the others."""

    summed: Callable

    def total(self, sums):
        return self.summed(sums)

    def attempted(self, product, block):
        return product()

    def refuse_failures(self):
        pass

    def agree(self, facts):
        pass


class Ranks:
    """`count` threads, each with its part of n rows; sums meet at a barrier."""

    def __init__(self, n=N, count=2):
        self.n, self.count = n, count
        self._barrier = threading.Barrier(count, timeout=20)
        self._parts = [None] * count

    def shards(self, rank):
        return ThreadShards(self.n, rank, self.count, lambda sums: self._total(rank, sums))

    def __call__(self, work):
        """What work(own rows) gives on each rank."""
        with ThreadPoolExecutor(self.count) as pool:
            waiting = [
                pool.submit(contextvars.copy_context().run, self._one, work, rank)
                for rank in range(self.count)
            ]
            errors = [error for future in waiting if (error := future.exception())]
            for error in errors:
                if not isinstance(error, threading.BrokenBarrierError):
                    raise error
            return [future.result() for future in waiting]

    def _one(self, work, rank):
        shards = self.shards(rank)
        try:
            with spread_rows(shards):
                return work(shards.own)
        except BaseException:
            self._barrier.abort()
            raise

    def _total(self, rank, sums):
        self._parts[rank] = sums
        self._barrier.wait()
        total = [np.sum(parts, axis=0) for parts in zip(*self._parts, strict=True)]
        self._barrier.wait()
        return total


def scene(own, t, *, n=N, noise=0.3, level=0.0, flipped=False):
    """Rows `own` of four directions, a diagonal, and noise of low rank."""
    fixed, fresh = np.random.default_rng(0), np.random.default_rng(100 + t)
    signal = np.linalg.qr(fixed.standard_normal((n, 4)))[0][:: -1 if flipped else 1]
    diagonal = fixed.uniform(0, 0.5, n)
    loud = noise * fresh.standard_normal((n, 2)) / n**0.5
    low = np.concatenate([signal * np.sqrt([12, 9, 6, 3]), loud], axis=-1)[own]
    lift = (diagonal[own] + level)[:, None]
    return bf.as_operator(lambda x: low @ over_rows(low.T @ x) + lift * x)


def followed(method, own, steps=25, n=N, k=K, jump=None, **options):
    """States and probes of a run, and what its probes and events say."""
    state, states, said = method.init(bf.random_basis(n, k, rng=1)), [], []
    for t in range(steps):
        before = state
        flipped = jump is not None and t >= jump
        state, probe = method.step(scene(own, t, n=n, flipped=flipped, **options), state)
        states.append(state)
        said.append(
            np.concatenate(
                [
                    np.ravel(part)
                    for part in (
                        probe.rayleigh,
                        probe.residuals,
                        probe.residual_norm,
                        probe.outside,
                        probe.lyapunov,
                        probe.extent,
                        probe.background,
                        probe.matvecs,
                        state.seen,
                        state.steps,
                        state.matvecs,
                    )
                ]
            )
        )
        found = method.events(before, state) if hasattr(method, "events") else ()
        said[-1] = np.append(said[-1], [sum(map(ord, event.kind)) for event in found])
    return states, said


METHODS = {
    "weighted": bf.BrockettFlow((2, 1)),
    "grassmann": bf.BrockettFlow(),
    "qr": bf.BrockettFlow((2, 1), retraction=bf.qr),
    "cayley": bf.BrockettFlow((2, 1), retraction=bf.cayley),
    "neumann": bf.BrockettFlow((2, 1), step=0.01, retraction=bf.neumann(3)),
    "tracker": bf.EigenTracker(K),
    "fading": bf.EigenTracker(K, forget=0.2),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("n", [N, 140])
def test_ranks_do_what_one_process_does(name, count, n):
    method = METHODS[name]
    if n == N and isinstance(method, bf.EigenTracker):
        pytest.skip("one process keeps all columns of so few rows, see the next test")
    alone, expected = followed(method, slice(None), n=n)
    ranks = Ranks(n, count)
    for (states, said), own in zip(
        ranks(lambda own: followed(method, own, n=n)),
        [ranks.shards(rank).own for rank in range(count)],
        strict=True,
    ):
        for state, other, words, others in zip(states, alone, said, expected, strict=True):
            assert np.abs(state.basis - other.basis[own]).max() <= 1e-12
            assert words == pytest.approx(others, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("count", [2, 3])
def test_a_tracker_of_few_rows_finds_what_one_process_finds(count):
    """Ranks keep a block of 11 rows, one process all: the same within the error bar."""
    method, ranks = METHODS["tracker"], Ranks(N, count)
    alone, _ = followed(method, slice(None))
    found = ranks(lambda own: followed(method, own))
    assert all(np.array_equal(words[-1], found[0][1][-1]) for _, words in found)
    basis = np.concatenate([states[-1].basis for states, _ in found])
    assert np.linalg.norm(basis.T @ basis - np.eye(K)) <= 50 * EPS
    bar = np.linalg.norm(method.read(alone[-1]).vector_errors)
    assert bf.subspace_error(basis, alone[-1].basis) <= bar


@pytest.mark.parametrize("options", [{"noise": 0.0}, {"noise": 0.0, "jump": 12}, {"jump": 12}])
def test_a_still_signal_and_a_jump_are_seen_together(options):
    method, ranks = bf.EigenTracker(K), Ranks(140)
    alone, expected = followed(method, slice(None), n=140, **options)
    for rank, (states, said) in enumerate(
        ranks(lambda own: followed(method, own, n=140, **options))
    ):
        own = ranks.shards(rank).own
        # Directions that have converged are rounding, and are dropped at a measured size.
        assert np.abs(states[-1].basis - alone[-1].basis[own]).max() <= 1e-11
        assert [len(words) for words in said] == [len(words) for words in expected]
        assert said[-1][-3:] == pytest.approx(expected[-1][-3:], rel=1e-11)


def test_a_background_of_spread_rows_changes_nothing_beyond_rounding():
    method = bf.EigenTracker(K)
    plain = Ranks()(lambda own: followed(method, own)[0])
    loud = Ranks()(lambda own: followed(method, own, level=1e8)[0])
    for ours, theirs in zip(plain, loud, strict=True):
        worst = max(np.abs(a.basis - b.basis).max() for a, b in zip(ours, theirs, strict=True))
        assert worst <= 25 * EPS * 1e8  # the bound that one machine is held to; see test_contracts


# Geometry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_ranks_draw_the_basis_that_one_process_draws(count):
    ranks = Ranks(N, count)
    whole = bf.random_basis(N, 3, rng=5)
    parts = ranks(lambda own: bf.random_basis(N, 3, rng=5))
    for rank, part in enumerate(parts):
        assert np.abs(part - whole[ranks.shards(rank).own]).max() <= 20 * EPS


@pytest.mark.parametrize("block", [1, 2, 3, 4, 5, 11, 100])
def test_numbers_are_drawn_alike_however_they_are_cut(block):
    whole = np.random.default_rng(3).standard_normal((N, 2))
    ranks = Ranks(N, 3)
    for rank in range(3):
        shards = ranks.shards(rank)
        drawn = _gaussian(np.random.default_rng(3), (N, 2), shards, block)
        assert np.array_equal(drawn, whole[shards.own])


def test_factors_of_spread_rows(rng):
    steep = rng.standard_normal((N, 4)) * [1e6, 1, 1, 1e-3]
    u, _, vt = np.linalg.svd(steep, full_matrices=False)
    for matrix in (steep, rng.standard_normal((N, 4))):
        for count in (2, 3, 5):  # with 5 a rank has fewer rows than columns
            ranks = Ranks(N, count)
            polar = np.concatenate(ranks(lambda own, m=matrix: orthonormalise(m[own])))
            # The factor of a matrix of condition 1e9 is known to 1e9 roundings.
            assert np.abs(polar - orthonormalise(matrix)).max() <= 1e9 * 10 * EPS
            assert np.linalg.norm(polar.T @ polar - np.eye(4)) <= 50 * EPS
            factors = ranks(lambda own, m=matrix: triangular(m[own]))
            q, r = np.concatenate([q for q, _ in factors]), factors[0][1]
            assert all(np.array_equal(r, other) for _, other in factors)
            assert np.allclose(r, np.triu(r), rtol=0, atol=0)
            assert np.allclose(q @ r, matrix, rtol=0, atol=20 * EPS * np.abs(matrix).max())
            assert np.linalg.norm(q.T @ q - np.eye(4)) <= 50 * EPS
    assert np.abs(orthonormalise(steep) - u @ vt).max() <= 1e9 * 10 * EPS


def test_signs_follow_the_largest_entry_wherever_it_is(rng):
    vectors = rng.standard_normal((N, 6))
    vectors[2, :2], vectors[9, 2:4] = [9, -9], [9, -9]
    vectors[1, 4:], vectors[8, 4:] = [9, -9], [-9, 9]  # a tie: the first counts
    for found in Ranks(N, 3)(lambda own: signs(vectors[own])):
        assert found.tolist() == [1, -1, 1, -1, 1, -1]


def test_distances_of_spread_rows(rng):
    basis, other = bf.random_basis(N, 3, rng=rng), bf.random_basis(N, 2, rng=rng)
    expected = np.linalg.norm(other - basis @ (basis.T @ other))
    for found in Ranks()(lambda own: bf.subspace_error(basis[own], other[own])):
        assert found == pytest.approx(expected, rel=1e-14)


def test_a_probe_of_spread_rows_is_that_of_all(rng):
    c, basis = np.diag(np.arange(N, 0, -1.0)), bf.random_basis(N, 3, rng=rng)
    whole = observe(c, State(basis))
    for rank, probe in enumerate(
        Ranks()(
            lambda own: _fully_read(
                observe(lambda x: np.arange(N, 0, -1.0)[own, None] * x, State(basis[own]))
            )
        )
    ):
        own = Ranks().shards(rank).own
        assert np.allclose(probe["residual"], whole.residual[own], rtol=0, atol=1e-13)
        for name in ("residuals", "residual_gram", "outside", "rounding", "spread", "lyapunov"):
            assert np.allclose(probe[name], getattr(whole, name), rtol=1e-12, atol=1e-14), name


def _fully_read(probe):
    names = ("residual", "residuals", "residual_gram", "outside", "rounding", "spread", "lyapunov")
    return {name: getattr(probe, name) for name in names}


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda own: bf.random_basis(12, 2, rng=0), "n must be 11, the rows of the sharded basis"),
        (
            lambda own: bf.random_basis(N, 2, rng=0, ensemble=(3,)),
            r"must be \(n, k\), got shape \(3, 11, 2\): run the members",
        ),
        (lambda own: check_basis(np.eye(N)[own]), "must have k < n columns, got k = n = 11"),
        (lambda own: check_basis(np.eye(N)[:, :2]), "basis has 11 rows, but rank . of 2 holds"),
        (lambda own: check_basis(np.eye(N)[own][None, :, :2]), r"got shape \(1, ., 2\)"),
    ],
)
def test_a_basis_that_is_not_the_part_of_its_rank_is_refused(work, told):
    with pytest.raises(ValueError, match=told):
        Ranks()(work)
