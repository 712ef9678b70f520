"""What EigenTracker reports: outliers, jumps, crossings, columns that leave the top k."""

import numpy as np
import pytest
from scipy.linalg import expm

import bracketflow as bf
from bracketflow.tracker import EigenTracker
from test_tracker import CASES, EPS, bulk_values, followed, signal, stream, symmetric_noise


def kinds(result):
    return [event.kind for event in result.events]


def ran(observations, start, **options):
    tracker = EigenTracker()
    return bf.run(tracker, observations, tracker.init(start), **options)


@pytest.mark.parametrize("k", CASES)
def test_outliers_leave_no_trace(k):
    """Bit for bit the run in which they were absent, and every one of them reported."""
    rng = np.random.default_rng(0)
    truth, start = bf.random_basis(12, rng=rng), bf.random_basis(12, k, rng=rng)
    clean = list(stream(rng, signal(truth), 0.1, 300))
    poisoned, bad = [], []
    for t, observed in enumerate(clean):
        while t > 8 and rng.random() < 0.2:
            bad.append(t)
            poisoned.append(observed + symmetric_noise(rng, 12, 1e5))
        poisoned.append(observed)
    without, with_them = ran(clean, start), ran(poisoned, start)
    assert np.array_equal(without.state.basis, with_them.state.basis)
    assert np.array_equal(without.eigenvalues, with_them.eigenvalues)
    assert without.state.steps == with_them.state.steps == 300
    assert without.bad == ()
    assert [entry.step for entry in with_them.bad] == bad
    assert all("outlier" in entry.reason for entry in with_them.bad)


@pytest.mark.parametrize("k", CASES)
def test_outlier_in_a_still_signal_leaves_no_trace(k):
    rng = np.random.default_rng(1)
    truth, start = bf.random_basis(30, rng=rng), bf.random_basis(30, k, rng=rng)
    clean = list(stream(rng, signal(truth), 0.0, 40))
    poisoned = [*clean[:20], clean[20] + symmetric_noise(rng, 30, 1.0), *clean[20:]]
    without, with_it = ran(clean, start), ran(poisoned, start)
    assert np.array_equal(without.state.basis, with_it.state.basis)
    assert [entry.step for entry in with_it.bad] == [20]


def test_callable_hears_of_outliers_and_raise_does_not():
    rng = np.random.default_rng(2)
    truth = bf.random_basis(8, rng=rng)
    observations = list(stream(rng, signal(truth), 0.1, 40))
    observations[30] = observations[30] + symmetric_noise(rng, 8, 1e4)
    heard = []
    assert ran(observations, truth, on_bad=heard.append).bad == tuple(heard)
    assert [entry.step for entry in heard] == [30]
    assert len(ran(observations, truth, on_bad="raise").bad) == 1


@pytest.mark.parametrize("k", CASES)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_jump_is_reported_once_and_the_determinant_kept(k, noise):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        before, after = bf.random_basis(10, rng=rng), bf.random_basis(10, rng=rng)
        start = bf.random_basis(10, k, rng=rng)
        observations = [
            *stream(rng, signal(before), noise, 60),
            *stream(rng, signal(after), noise, 60),
        ]
        result = ran(observations, start)
        assert kinds(result).count("jump") == 1
        error = bf.subspace_error(result.state.basis, after[:, : start.shape[-1]])
        assert error < 0.2 * (noise > 0) + 1e-6
        if k is None:
            assert np.linalg.det(result.state.basis) * np.linalg.det(start) > 0


@pytest.mark.parametrize("k", CASES)
def test_a_jump_is_found_although_the_noise_began_late(k):
    """After a standstill any noise is beyond measure, which must not make the tracker deaf."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        before, after = bf.random_basis(10, rng=rng), bf.random_basis(10, rng=rng)
        observations = [
            *stream(rng, signal(before), 0.0, 12),
            *stream(rng, signal(before), 0.3, 60),
            *stream(rng, signal(after), 0.3, 60),
        ]
        result = ran(observations, bf.random_basis(10, k, rng=rng))
        jumps = [event.step for event in result.events if event.kind == "jump"]
        assert jumps
        assert 55 <= jumps[-1] <= 75
        assert bf.basis_error(result.state.basis, after[:, :k]) < 0.1


def spiked(rng, shape, spikes):
    """Rows of unit noise with the columns of `spikes` in them."""
    return rng.standard_normal(shape) + rng.standard_normal((*shape[:-1], len(spikes.T))) @ spikes.T


@pytest.mark.parametrize(
    ("n", "k", "deviations", "batch"),
    [(12, 2, (5, 3), 24), (60, 3, (5, 4, 3), 10), (60, 5, (5, 3), 20), (60, 2, (2, 1.5), 50)],
)
def test_a_jump_of_rows_is_found_although_no_batch_is_loud(n, k, deviations, batch):
    """Also with more columns than there are signals."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = [bf.random_basis(n, len(deviations), rng=rng) for _ in range(2)]
        batches = [spiked(rng, (batch, n), truth[t >= 100] * deviations) for t in range(140)]
        levels = rng.uniform(0, 1e3, 140)
        observed = (bf.shifted(bf.gram(b), s) for b, s in zip(batches, levels, strict=True))
        result = ran(observed, bf.random_basis(n, k, rng=rng))
        jumps = [event.step for event in result.events if event.kind == "jump"]
        assert len(jumps) == 1
        assert 100 < jumps[0] < 120
        since = np.concatenate(batches[100:])
        limit = np.linalg.eigh(since.T @ since)[1][:, : -len(deviations) - 1 : -1]
        found = result.state.basis[:, result.state.order[: len(deviations)]]
        error = bf.subspace_error(limit, truth[1])
        assert bf.subspace_error(found, truth[1]) < 1.5 * error


@pytest.mark.parametrize("noise", [5.0, 15.0])
def test_a_jump_of_a_basis_is_found_although_no_observation_is_loud(noise, rng):
    tracker, members = EigenTracker(), (10,)
    state = tracker.init(bf.random_basis(12, rng=rng, ensemble=members))
    for part in range(2):
        truth, total = bf.random_basis(12, rng=rng, ensemble=members), 0.0
        for _ in range(200 if part == 0 else 40):
            observed = signal(truth) + symmetric_noise(rng, 12, noise, members)
            total = total + observed
            state, _ = tracker.step(bf.shifted(observed, rng.uniform(0, 1e3)), state)
    reading = tracker.read(state)
    assert np.all(reading.jumps == 1)
    assert np.all((reading.jumped_at >= 200) & (reading.jumped_at < 220))
    limit = np.flip(np.linalg.eigh(total)[1], axis=-1)
    error = np.mean(bf.basis_error(state.basis, truth))
    assert error < 1.5 * np.mean(bf.basis_error(limit, truth))


@pytest.mark.parametrize("speed", [0.0, 0.01, 0.2])
def test_a_basis_that_turns_in_noise_brings_no_jump(speed, rng):
    tracker, members = EigenTracker(), (20,)
    truth = bf.random_basis(12, rng=rng)
    skew = np.triu(rng.standard_normal((12, 12)), 1)
    turn = expm((skew - skew.T) * (speed / np.linalg.norm(skew - skew.T)))
    state = tracker.init(bf.random_basis(12, rng=rng, ensemble=members))
    for _ in range(300):
        truth = truth @ turn
        observed = signal(truth) + symmetric_noise(rng, 12, 5.0, members)
        state, _ = tracker.step(observed, state)
    assert not tracker.read(state).jumps.any()


@pytest.mark.parametrize(("n", "k", "batch"), [(12, 3, 24), (30, 3, 5), (30, 1, 10), (30, 2, 1)])
def test_rows_alike_for_long_bring_no_jump(n, k, batch, rng):
    """Once the columns have been found: of the first batches three may be loud and alike."""
    tracker = EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng, ensemble=(30,)))
    spikes = np.eye(n)[:, :2] * (5, 3)
    for step in range(300):
        before = state
        state, _ = tracker.step(bf.gram(spiked(rng, (30, batch, n), spikes)), state)
        jumped = any(event.kind == "jump" for event in tracker.events(before, state))
        assert not jumped or step < 30


def test_eigenvalues_that_shrink_by_and_by_are_no_jump(rng):
    truth, values, leading = bf.random_basis(40, rng=rng), bulk_values(40), np.arange(40) < 4
    shrinking = (values * np.where(leading, 1 - t / 900, 1.0) for t in range(300))
    observations = [
        *stream(rng, signal(truth, values), 3.0, 200),
        *(signal(truth, now) + symmetric_noise(rng, 40, 3.0) for now in shrinking),
    ]
    assert "jump" not in kinds(ran(observations, bf.random_basis(40, 4, rng=rng)))


def test_noise_that_grows_is_no_jump():
    rng = np.random.default_rng(4)
    truth = bf.random_basis(12, rng=rng)
    quiet, loud = stream(rng, signal(truth), 0.01, 60), stream(rng, signal(truth), 1.0, 200)
    result = ran([*quiet, *loud], truth)
    assert "jump" not in kinds(result)
    assert 1 <= len(result.bad) <= 12
    assert result.state.steps >= 248


def test_crossing_is_reported():
    rng = np.random.default_rng(5)
    truth = bf.random_basis(8, rng=rng)

    def crossing():
        for t in np.linspace(0, 2, 300):
            values = np.array([9 - t, 7 + t, 6, 5, 4, 3, 2, 1])
            yield signal(truth, values) + symmetric_noise(rng, 8, 0.05)

    result = ran(crossing(), bf.random_basis(8, rng=rng))
    crossings = [event for event in result.events if event.kind == "crossing"]
    assert crossings
    assert all("[0, 1]" in event.message for event in crossings)
    assert len(crossings) % 2 == 1  # there, and perhaps back and there again
    assert set(kinds(result)) == {"crossing"}


@pytest.mark.parametrize("steps", [40, 600])
@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_column_that_leaves_the_top_is_reported(steps, noise):
    """λ_3 and λ_4 cross, fast or slowly: at a slow crossing noise turns the column bit by bit."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        truth = bf.random_basis(40, rng=rng)

        def crossing(truth=truth, rng=rng):
            for t in np.concatenate([np.zeros(40), np.linspace(0, 2, steps), np.full(100, 2)]):
                values = np.concatenate([[10, 8, 6 - t, 4 + t], np.linspace(1, 0, 36)])
                yield signal(truth, values) + symmetric_noise(rng, 40, noise)

        result = ran(crossing(), bf.random_basis(40, 3, rng=rng))
        left = [event for event in result.events if event.kind == "left"]
        assert len(left) % 2 == 1
        assert all("column 2" in event.message for event in left)
        assert bf.subspace_error(result.state.basis, truth[:, [0, 1, 3]]) < 0.3


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_a_long_rest_does_not_hide_that_a_column_leaves_the_top(noise, rng):
    """On vectors that stay: only the falling eigenvalue tells that the memory is too long."""
    truth = bf.random_basis(40, rng=rng)
    start = bf.random_basis(40, 4, rng=rng)
    moved = np.concatenate([np.zeros(600), np.linspace(0, 2, 200), np.full(60, 2)])
    spectra = ([14, 12, 10, 8 - t, 6 + t, 4, 2, *np.zeros(33)] for t in moved)
    noisy = (signal(truth, np.array(s)) + symmetric_noise(rng, 40, noise) for s in spectra)
    result = ran(noisy, start)
    left = [event.step for event in result.events if event.kind == "left"]
    assert len(left) % 2 == 1  # there, and perhaps back and there again
    assert min(left) > 690
    assert bf.subspace_error(result.state.basis, truth[:, [0, 1, 2, 4]]) < 0.1 * (1 + noise)


@pytest.mark.parametrize("k", CASES)
def test_drift_alone_reports_nothing(k):
    """The basis turns by more than a right angle; no eigenvalue crosses another."""
    rng = np.random.default_rng(6)
    truth = bf.random_basis(12, rng=rng)
    skew = rng.standard_normal((12, 12))
    turn = bf.cayley(np.eye(12), 5e-3 * (skew - skew.T) / np.linalg.norm(skew))
    values = np.concatenate([[20, 17, 14], np.arange(9, 0, -1.0)])

    def drifting():
        frame = truth
        for _ in range(800):
            frame = turn @ frame
            yield signal(frame, values) + symmetric_noise(rng, 12, 0.2)

    result = ran(drifting(), truth[:, :k])
    assert result.events == ()
    turned = np.linalg.norm(np.linalg.matrix_power(turn, 800) @ truth - truth, axis=0)
    assert turned.max() > 2**0.5


def test_background_changes_no_event():
    rng = np.random.default_rng(7)
    truth, other = bf.random_basis(20, rng=rng), bf.random_basis(20, rng=rng)
    values = bulk_values(20)
    plain = [
        signal(frame, values) + symmetric_noise(rng, 20, 0.3)
        for frame in (*[truth] * 50, other, *[truth] * 50, *[other] * 50)
    ]
    levels = 10.0 ** rng.uniform(0, 9, len(plain))
    swung = [observed + s * np.eye(20) for observed, s in zip(plain, levels, strict=True)]
    for k in (None, 4):
        start = bf.random_basis(20, k, rng=8)
        ours, theirs = ran(plain, start), ran(swung, start)
        assert [event[:2] for event in ours.events] == [event[:2] for event in theirs.events]
        assert {"outlier", "jump"} <= set(kinds(ours))


def test_members_of_an_ensemble_are_named():
    rng = np.random.default_rng(9)
    truth = np.stack([bf.random_basis(8, rng=i) for i in range(3)])
    tracker = EigenTracker()
    state = tracker.init(truth)
    observed = signal(truth) + symmetric_noise(rng, 8, 0.1, (3,))
    state = followed([signal(truth) + symmetric_noise(rng, 8, 0.1, (3,)) for _ in range(20)], state)
    observed[1] += symmetric_noise(rng, 8, 1e4)
    following, _ = tracker.step(observed, state)
    (event,) = tracker.events(state, following)
    assert event.kind == "outlier"
    assert event.message.startswith("member (1,)")
    assert following.steps.tolist() == [21, 20, 21]
    assert np.linalg.norm(following.basis[1] - state.basis[1]) < EPS


def exchanging(truth, values, i, j, step, start=60, rate=0.02):
    """Eigenvalues i and j change places by and by, on vectors that stay."""
    values = values.copy()
    moved = np.clip((step - start) * rate, 0, values[i] - values[j])
    values[[i, j]] += [-moved, moved]
    return (truth * values) @ truth.T


@pytest.mark.parametrize("noise", [0.0, 1e-6, 1e-2])
def test_columns_of_a_full_basis_keep_their_vectors_when_eigenvalues_cross_quietly(noise, rng):
    truth, values = bf.random_basis(8, rng=rng), 2 * np.arange(8.0, 0, -1)
    tracker = bf.EigenTracker()
    state, kinds = tracker.init(bf.random_basis(8, rng=rng)), []
    for step in range(300):
        before, e = state, rng.standard_normal((8, 8))
        observed = exchanging(truth, values, 1, 2, step) + noise * (e + e.T)
        state, _ = tracker.step(0.5 * (observed + observed.T), before)
        kinds += [event.kind for event in tracker.events(before, state)]
    assert np.abs(np.sum(state.basis * truth, axis=0)).min() > 0.99
    assert state.order.tolist() == [0, 2, 1, 3, 4, 5, 6, 7]
    assert kinds.count("crossing") == 1
    assert len(kinds) < 20


def test_a_vector_that_is_replaced_without_any_noise_is_reported(rng):
    for level in (0.0, 1000.0):
        truth, values = bf.random_basis(40, rng=rng), 2 * np.arange(40.0, 0, -1)
        tracker = bf.EigenTracker()
        state, kinds = tracker.init(bf.random_basis(40, 4, rng=rng)), []
        for step in range(250):
            before, observed = state, exchanging(truth, values, 3, 4, step)
            shifted = bf.shifted(0.5 * (observed + observed.T), level * (1 + np.sin(step)))
            state, _ = tracker.step(shifted, before)
            kinds += [event.kind for event in tracker.events(before, state)]
        assert bf.subspace_error(state.basis, truth[:, [0, 1, 2, 4]]) < 1e-6
        assert kinds.count("left") == 1
