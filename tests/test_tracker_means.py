"""Parts of EigenTracker: the mean on all columns, that on a block, and what rungs would capture."""

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.tracker import EigenTracker, block, offers
from bracketflow.tracker import ladder as ladders
from tracker_cases import EPS, eventful, leading, signal, spectrum, stream, symmetric_noise

# A large full basis is seen through a window; what does not fit is a block.
WINDOWED, LEADING, BLOCK = (70, None), (128, 3), (150, 3)


def still(n, k, steps, seed=0):
    """A still signal under noise and backgrounds, and a start."""
    rng = np.random.default_rng(seed)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    return list(stream(rng, matrix, 3.0, steps)), bf.random_basis(n, k, rng=rng)


def followed(observations, start, forget=None):
    """Mean, ladder, and what came since the last turn, after every observation; mixed weights."""
    tracker, since = EigenTracker(forget=forget), []
    state = tracker.init(start)
    for t, C in enumerate(observations):
        state, _ = tracker.step(bf.as_operator(C).derived(weight=1.0 + t % 3), state)
        since.append(C)
        yield state.memory.mean, state.memory.ladder, list(since)
        since = since if state.memory.ladder.waiting else []


def waiting(shape, forget=None):
    """The same after a still stream, at a moment when some observations wait."""
    return [parts for parts in followed(*still(*shape, 100), forget) if parts[1].waiting > 1][-1]


def close(found, wanted, size=1e4):
    """But for the rounding of numbers of this size."""
    return np.abs(np.asarray(found) - wanted).max() < 1e4 * EPS * size


@pytest.mark.parametrize("forget", [None, 0.0, 0.2])
@pytest.mark.parametrize("shape", [(9, None), (9, 3), (64, None), WINDOWED, (65, 2), LEADING])
def test_rungs_are_the_averages_that_the_ladder_says_and_views_and_frame_are_theirs(shape, forget):
    """Through noise, an outlier, drift and a jump: gains, copies, weights, what waits."""
    n, J = shape[0], len(ladders.rungs(forget))
    rungs, levels, copied = np.zeros((J, n, n)), np.zeros(J), False
    for mean, ladder, since in followed(*eventful(np.random.default_rng(3), *shape)[:2], forget):
        if ladder.waiting:
            continue
        counted, g = ladder.counted[-len(since) :], ladder.gains
        new = np.tensordot(counted / counted.sum(), since, 1)
        height = np.trace(new) / n
        new = new - height * np.eye(n)
        rungs = rungs[ladder.source] + g[:, None, None] * (new - rungs[ladder.source])
        levels = levels[ladder.source] + g * (height - levels[ladder.source])
        copied = copied or any(np.diff(ladder.source) != 1)
        W = mean.through if mean.means else np.eye(n)
        assert close(mean.window, W.T @ rungs @ W, 1e4 * n)
        assert close(mean.levels, levels)
        assert close((mean.frame * mean.values) @ mean.frame.T, rungs[ladder.chosen], 1e4 * n)
        assert bool(mean.means) == (shape == WINDOWED)
        assert not mean.means or close(np.stack(mean.means), rungs)
    assert copied == (forget is None)
    assert close(W.T @ W, np.eye(W.shape[1]), 1)  # error bars stand for columns of unit length


@pytest.mark.parametrize("shape", [WINDOWED, LEADING, BLOCK])
def test_figures_are_those_of_the_plain_mean_with_what_waits(shape):
    tracker, (observations, start) = EigenTracker(forget=0.0), still(*shape, 100)
    state, waited, known = tracker.init(start), 0, None
    for t, C in enumerate(observations, 1):
        state, _ = tracker.step(C, state)
        X, values = state.basis, tracker.eigenvalues(state, None)
        if shape != BLOCK:
            assert close(values, np.diagonal(X.T @ np.mean(observations[:t], axis=0) @ X))
        elif waits := int(state.memory.ladder.waiting):
            recent, waited = np.diagonal(X.T @ sum(observations[t - waits : t]) @ X), waited + 1
            assert close(t * values, (t - waits) * known + recent)
        else:
            known = values
    assert waited > 1 or shape != BLOCK


@pytest.mark.parametrize("shape", [LEADING, BLOCK])
def test_what_waits_and_what_comes_are_beside_the_mean_and_the_last_two(shape):
    (mean, ladder, since), (n, k) = waiting(shape), shape
    X = mean.frame if shape == LEADING else mean.columns
    rungs = X.T @ mean.window @ X if shape == LEADING else mean.inside[:-2]

    def seen(C):
        level = np.trace(C) / n if shape == LEADING else X[:, -1] @ C @ X[:, -1]
        H, Y = X.T @ C @ X - level * np.eye(X.shape[1]), C @ X[:, :k]
        return level, H, np.sum((Y - X @ (X.T @ Y)) ** 2, axis=0)

    weights, fresh = ladder.counted[-len(since) :], mean.fresh(k, ladder)
    level, H, _ = seen(np.average(since, axis=0, weights=weights))
    N, tops = (H - rungs[ladder.chosen])[:, :k], [leading(A, k) for A in rungs]
    assert close(fresh.entries[: len(N)], N)
    assert close(fresh.quotients, np.diagonal(N) + level - mean.levels[ladder.chosen])
    assert fresh.captured == pytest.approx([np.trace(top.T @ H @ top) for top in tops])
    rest = (weights**2 @ [seen(C)[2] for C in since]) ** 0.5 / weights.sum()  # of independent ones
    assert shape == LEADING or close(fresh.entries[-1], rest)
    C = still(*shape, 1, seed=5)[0][0]
    view, *_ = mean.observe(mean.multiplied, C @ mean.multiplied, mean.basis(k), 0.0)
    others = [rungs[ladder.chosen], rungs[-1], *[seen(C)[1] for C in since[-2:]]]
    own = [0.0, 0.0, *[seen(C)[2].sum() for C in since[-2:-1]]]
    apart = [np.sum((seen(C)[1] - H)[k:, :k] ** 2) + seen(C)[2].sum() for H in others]
    apart[:3] = np.add(apart[:3], own)
    apart[3] += seen(C - since[-1])[2].sum() - seen(C)[2].sum()
    variances = [ladder.variance[ladder.chosen], ladder.variance[-1], *1 / weights[-2:]]
    pairs = zip(apart, variances, strict=True)
    assert mean.compare(view, k, ladder).apart == [pytest.approx(pair) for pair in pairs]


def turned(forget=None, **parts):
    """A block before and after a turn by a new observation and some that waited; H, R of these."""
    mean, ladder, since = waiting(BLOCK, forget)
    C, X, k = 100 * still(*BLOCK, 1, seed=5)[0][0], mean.columns, BLOCK[1]
    view, *_ = mean.observe(X, C @ X, mean.basis(k), 0.0)
    ordinary = ladders.Beside([(float(ladder.usual) / 2.0, ladders.TINY)], 1.0, False)
    ladder = ladders.weigh(ladder, 2.0, view.power, ordinary, forget)
    mean, waited, count = mean.wait(view, 2.0, ladder.counted[-1]), ladder.awaited, len(since) + 1
    ladder = ladders.absorb(ladder, forget)._replace(**parts)
    after, _ = mean.follow(ladder, waited, k)
    seen, r = np.stack([*since, C]), X[:, -1]
    Y = seen @ X - (r @ seen @ r)[:, None, None] * X
    Y = np.tensordot(ladder.counted[-count:] / waited, Y, 1)
    return mean, after, ladder, X.T @ Y, Y - X @ (X.T @ Y)


@pytest.mark.parametrize("level", [0.0, 1e4])
def test_a_block_sees_h_and_r_of_an_observation_and_not_its_level(level):
    *_, (mean, _, _) = followed(*still(*BLOCK, 30), forget=0.0)
    (n, k), X, r, C = BLOCK, mean.columns, mean.columns[:, -1], still(*BLOCK, 1, seed=5)[0][0]
    shifted, seen, basis = C + level * np.eye(n), C - (r @ C @ r) * np.eye(n), mean.basis(k)
    view, probe, _ = mean.observe(X, shifted @ X, basis, 0.0)
    H, outside = X.T @ seen @ X, np.sum((seen @ X - X @ (X.T @ seen @ X))[:, :k] ** 2, axis=0)
    assert close(view.level, r @ shifted @ r)
    assert close(view.inside, H)
    assert close(view.image, seen @ X)
    assert view.beyond == pytest.approx(outside)
    assert view.power == pytest.approx(np.sum((seen @ r) ** 2))
    assert close(probe.rayleigh + probe.background * np.eye(k), basis.T @ shifted @ basis)


@pytest.mark.parametrize("source", [[0, 1, 2, 3, 4, 5, 6], [0, 0, 2, 2, 4, 0, 3]])
def test_rungs_follow_to_orthonormal_columns_by_what_is_known_of_the_observations(source):
    before, after, ladder, H, R = turned(source=np.array(source))
    X, following, gains = before.columns, after.columns[:, :-1], ladder.gains[:, None, None]
    rungs = (1 - gains) * (X @ before.inside[source] @ X.T)
    rungs = rungs + gains * (X @ H @ X.T + R @ X.T + X @ R.T)
    lasts = X @ before.inside[-2:] @ X.T  # of single ones what was inside
    wanted = following.T @ np.concatenate([rungs, lasts]) @ following
    assert close(after.inside[:, :-1, :-1], wanted)
    assert not after.inside[:, -1].any()
    assert close(after.inside[ladder.chosen], np.diag(after.values))
    assert np.all(np.diff(after.values[BLOCK[1] : -1]) <= 0)
    rest = after.random - following @ (following.T @ after.random)
    assert close(after.columns.T @ after.columns, np.eye(block.WIDTH * BLOCK[1] + 1), 1)
    assert close(after.columns[:, -1:], rest / np.linalg.norm(rest), 1)


@pytest.mark.parametrize("forget", [0.0, 0.03, None])
def test_a_block_turns_to_the_left_singular_vectors_of_its_mean_and_of_a_shorter_one(forget):
    """(M − μ)X; beside it, unless the memory is fixed, LEAN times the top k of a leaner one."""
    gains = np.array([1, 0.9, 0.8, 0.7, 0.6, 0.3, 1e-6]) if forget is None else np.array([1, 0.1])
    before, after, ladder, H, R = turned(forget, gains=gains)
    X, chosen, k = before.columns, int(ladder.chosen), BLOCK[1]
    g = gains[:, None, None]
    products = X @ ((1 - g) * before.inside[:-2] + g * H) + g * R
    ritz = np.linalg.eigvalsh(X.T @ products[chosen])
    lowest = min(ritz[0], 0.0) - block.CLEARANCE * (ritz[-1] - ritz[0])
    Z = products[chosen] - lowest * X
    if forget is None:
        lean = products[chosen - block.SHORTER]
        lean = (lean - lowest * X) @ leading(X.T @ lean, k)
        Z = np.hstack([Z, block.LEAN * lean])
        # Where the signal moves to is in the block before the memory is shortened.
        outside = lean - X @ (X.T @ lean)
        assert np.sum((after.columns.T @ outside) ** 2) > 0.5 * np.sum(outside**2)
    left = np.linalg.svd(Z, full_matrices=False)[0][:, : X.shape[1] - 1]
    assert bf.subspace_error(np.ascontiguousarray(after.columns[:, :-1]), left) < 1e-6


@pytest.mark.parametrize("size", [1e-6, 0.1, 3.0])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_turn_of_every_pair_captures_what_its_angle_says(size, noise):
    rng = np.random.default_rng(11)
    chosen, C = signal(bf.random_basis(6, rng=rng)), symmetric_noise(rng, 6, 5.0)
    mean, (values, X) = chosen + symmetric_noise(rng, 6, size), np.linalg.eigh(chosen)
    P, H, gap = X.T @ (mean - chosen) @ X, X.T @ C @ X, values - values[:, None]
    theta = 0.5 * np.arctan2(2 * P, abs(gap)) * (1 - np.eye(6))
    known = gap**2 / (gap**2 + 4 * noise + np.eye(6))
    squares, wanted = known * np.tan(theta) ** 2, 0.0
    for i in range(6):
        for a in range(i):  # the lower one; either is turned by all its pairs
            share = known[a, i] / (1 + max(squares[a].sum(), squares[i].sum()))
            wanted += share * 2 * np.tan(theta[a, i]) * H[a, i]
            wanted -= share * np.tan(theta[a, i]) ** 2 * (H[i, i] - H[a, a])
    found = offers.of_pairs(np.stack([chosen, mean, mean]), np.array([1, 2, 2]), chosen, noise)
    assert np.tensordot(found, C) == pytest.approx([0, wanted, wanted], rel=1e-6, abs=1e-12)
