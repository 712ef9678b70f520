"""Parts of EigenTracker: the two means, and what other memories would turn."""

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.tracker import EigenTracker, block, ladder, offers, whole
from tracker_cases import EPS, followed, signal, spectrum, stream, symmetric_noise


def observed(n, k, steps, noise=1.0, forget=None, seed=0):
    """A tracker's memory after a stream, and the observations, their levels taken out."""
    rng = np.random.default_rng(seed)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    start = EigenTracker(forget=forget).init(bf.random_basis(n, k, rng=rng))
    seen = list(stream(rng, matrix, noise, steps))
    state = followed(seen, start, EigenTracker(forget=forget))
    centred = [c - np.trace(c) / n * np.eye(n) for c in seen]
    return state, centred


def rung(mean, j):
    """M_j, from its parts."""
    arrays = [*mean.means, *mean.recent]
    return sum(part * array for part, array in zip(mean.parts[j], arrays, strict=True))


@pytest.mark.parametrize("n", [9, 70])
@pytest.mark.parametrize("steps", [2, 9, 30])
def test_rungs_are_exponential_averages_however_they_are_summed_up(n, steps):
    state, centred = observed(n, None, steps)
    mean, _rungs, _ = state.memory
    for j, share in enumerate(ladder.RUNGS):
        wanted = centred[0]
        for t, c in enumerate(centred[1:], 2):
            wanted = wanted + max(share, 1 / t) * (c - wanted)
        assert np.abs(rung(mean, j) - wanted).max() < 1e-3  # one early one may be called loud
    assert len(mean.recent) == (1 if n <= whole.SMALL else 1 + len(mean.means))


@pytest.mark.parametrize(("n", "k"), [(9, None), (9, 3), (70, None)])
def test_rungs_are_seen_from_the_frame(n, k):
    """Carried from observation to observation, as if turned anew."""
    state, _ = observed(n, k, 25)
    mean, columns = state.memory.mean, mean.watched
    X = mean.frame
    for j in range(len(ladder.RUNGS)):
        turned = X.T @ rung(mean, j) @ X
        assert np.abs(mean.held[j] - turned[:, columns]).max() < 1e4 * EPS
        if k is not None:
            assert np.abs(mean.quotients[j] - np.diagonal(turned)).max() < 1e4 * EPS


def test_a_large_frame_waits_and_a_small_one_does_not():
    for n, waits in ((whole.SMALL, False), (whole.SMALL + 1, True)):
        state, _ = observed(n, None, 60)
        frames = []
        rng = np.random.default_rng(1)
        for c in stream(rng, signal(np.eye(n), spectrum(n)), 1.0, 3):
            before = state.basis
            state, _ = EigenTracker().step(c, state)
            frames.append(np.array_equal(before, state.basis))
        assert any(frames) == waits


def captured(entries, turns, gaps, theta):
    """What is captured more when every pair is turned by its own angle."""
    a, i = turns
    return np.sum(
        entries[a, i] * np.sin(2 * theta) - (entries[i, i] - entries[a, a]) * np.sin(theta) ** 2
    )


@pytest.mark.parametrize("size", [1e-6, 0.1, 3.0])
def test_an_offer_is_judged_by_the_turns_of_its_pairs(size):
    rng = np.random.default_rng(2)
    n, k = 6, 2
    values, fresh = np.array([9.0, 7, 4, 3, 2, 1]), symmetric_noise(rng, 6, 5.0)
    difference = symmetric_noise(rng, n, size)
    entries = fresh + np.diag(values)
    found = offers.offered(
        difference[None, :, :k],
        np.diagonal(difference)[None],
        values,
        np.arange(k),
        0.0,
        full=False,
    )
    pairs = np.array([(a, i) for a in range(k, n) for i in range(k)]).T
    a, i = pairs
    gaps = values[i] - values[a] + np.diagonal(difference)[i] - np.diagonal(difference)[a]
    theta = 0.5 * np.arctan2(2 * difference[a, i], gaps)
    wanted = captured(entries, pairs, gaps, theta)
    judged = found.judge(entries[:, :k], np.diagonal(entries))
    assert judged[0] == pytest.approx(wanted, rel=1e-9)
    least = np.minimum(np.sin(theta) ** 2, np.cos(theta) ** 2)
    assert found.size[0] == pytest.approx(np.sum((values[i] - values[a]) * least), rel=1e-9)


def test_the_last_column_of_a_block_is_the_rest_of_a_random_one():
    state, _ = observed(90, 3, 12)
    mean = state.memory.mean
    X, z = mean.columns, mean.random
    assert X.shape == (90, block.WIDTH * 3 + 1)
    assert np.abs(X.T @ X - np.eye(16)).max() < 100 * EPS
    assert np.abs(X @ (X.T @ z) - z).max() < 100 * EPS
    assert np.abs(X.T @ z - mean.along[:, None]).max() < 100 * EPS
    assert mean.values[-1] == 0
    assert np.all(np.diff(mean.values[3:-1]) <= 0)


@pytest.mark.parametrize("level", [0.0, 1e3])
def test_what_a_block_did_not_foresee(level):
    state, centred = observed(90, 3, 12)
    mean = state.memory.mean
    fresh = centred[-1] + level * np.eye(90)
    view, probe, _ = block.observe(mean, mean.columns, fresh @ mean.columns, state.basis, 0.0)
    X, r = mean.columns, mean.columns[:, -1]
    seen = r @ fresh @ r
    unforeseen = fresh @ X - seen * X - X * mean.values
    assert view.level == pytest.approx(seen, abs=1e-9)
    assert np.abs(view.inside - X.T @ unforeseen).max() < 1e-9
    outside = unforeseen[:, :3] - X @ (X.T @ unforeseen[:, :3])
    assert np.linalg.norm(view.outside) == pytest.approx(np.linalg.norm(outside), rel=1e-9)
    assert (
        np.abs(
            probe.rayleigh + probe.background * np.eye(3) - state.basis.T @ fresh @ state.basis
        ).max()
        < 1e-9
    )


def test_a_block_turns_to_the_singular_vectors_of_its_mean():
    state, centred = observed(90, 3, 40)
    before = state.memory.mean
    J = len(before.levels)
    none = ladder.Verdict(J - 1, False, np.zeros(J, dtype=bool))
    view, _, _ = block.observe(
        before, before.columns, centred[0] @ before.columns, state.basis, 0.0
    )
    absorbed = block.absorb(before, view, np.full(J, 0.5), none, 0)
    after, _ = block.turn(absorbed, J - 1, J - 1, 3)
    X = before.columns
    Z = X * ((1 - absorbed.stale) * before.values) + absorbed.image
    A = X.T @ Z
    ritz = np.linalg.eigvalsh(0.5 * (A + A.T))
    lowest = min(ritz[0], 0.0) - block.CLEARANCE * (ritz[-1] - ritz[0])
    left, lengths, _ = np.linalg.svd(Z - lowest * X, full_matrices=False)
    assert bf.subspace_error(np.ascontiguousarray(after.columns[:, :-1]), left[:, :-1]) < 1e-6
    assert np.allclose(np.sort(after.values[:-1])[::-1], lengths[:-1] + lowest, atol=1e-9)


def test_a_sketch_keeps_inner_products():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40_000, 4))
    signs = rng.standard_normal((40_000, 1))
    sketch = block._sketch(rows, signs, block.BUCKETS)
    exact = rows.T @ rows
    # Each entry is blurred by √(2/512) of the lengths: four times that in the worst of sixteen.
    assert np.abs(sketch @ sketch.T - exact).max() < 4 * (2 / block.BUCKETS) ** 0.5 * exact.max()
    few = rng.standard_normal((300, 4))
    small = block._sketch(few, signs[:300], 300)
    assert np.allclose(small @ small.T, few.T @ few)
