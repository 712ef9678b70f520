"""EigenTracker: promises at quick size. The figures at full size are in benchmarks/tracker.py."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bracketflow as bf
from bracketflow.tracker import EigenTracker
from bracketflow.tracker.members import members_of
from tracker_cases import (
    EPS,
    SHAPES,
    angles,
    eventful,
    followed,
    leading,
    observed_by,
    parts,
    rotation,
    same,
    signal,
    spectrum,
    stream,
    symmetric_noise,
)

# The contract of a method -----------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_step_is_pure_and_makes_one_product(n, k, noise):
    rng = np.random.default_rng(0)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    state = EigenTracker().init(bf.random_basis(n, k, rng=rng))
    total = 0
    for observed in stream(rng, matrix, noise, 12):
        before = [np.copy(leaf) for leaf in parts(state)]
        operator = bf.counted(observed)
        following, probe = EigenTracker().step(operator, state)
        assert operator.products == 1
        # All n columns of a small problem or of a full basis; else 6k and a reference.
        assert operator.matvecs == probe.matvecs == (n if n == 12 else 19)
        total += probe.matvecs
        assert all(
            np.array_equal(a, b, equal_nan=a.dtype != object)
            for a, b in zip(before, map(np.asarray, parts(state)), strict=True)
        )
        assert same(EigenTracker().step(observed, state)[0], following)
        state = following
    assert state.matvecs == total
    assert state.steps == 12


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_probe_is_that_of_the_basis(n, k, noise):
    rng = np.random.default_rng(1)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    state = EigenTracker().init(bf.random_basis(n, k, rng=rng))
    for observed in stream(rng, matrix, noise, 25):
        following, probe = EigenTracker().step(observed, state)
        image = observed @ state.basis
        level = np.sum(state.basis * image) / state.basis.shape[-1]
        centred = image - level * state.basis
        # Sums of n products of a background of 2000, each rounded.
        tolerance = 10 * n * EPS * 2000
        assert np.array_equal(probe.basis, state.basis)
        assert abs(probe.background - level) < tolerance
        np.testing.assert_allclose(probe.rayleigh, state.basis.T @ centred, atol=tolerance)
        np.testing.assert_allclose(probe.centred, centred, atol=tolerance)
        state = following


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_resumed_from_a_pickled_state_bit_for_bit(n, k):
    observations, start, _ = eventful(np.random.default_rng(2), n, k)
    tracker = EigenTracker()
    whole = followed(observations, tracker.init(start))
    half = pickle.loads(pickle.dumps(followed(observations[:45], tracker.init(start))))
    assert same(whole, followed(observations[45:], half))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_resumed_from_a_checkpoint_bit_for_bit(n, k, tmp_path):
    observations, start, _ = eventful(np.random.default_rng(2), n, k)
    tracker = EigenTracker()
    whole = followed(observations, tracker.init(start))
    half = followed(observations[:45], tracker.init(start))
    bf.save(tmp_path / "half", half)
    loaded = bf.load(tmp_path / "half").state
    assert same(whole, followed(observations[45:], loaded))


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_layout_and_orthonormality(n, k, dtype):
    rng = np.random.default_rng(3)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    state = EigenTracker().init(bf.random_basis(n, k, rng=rng).astype(dtype))
    for observed in stream(rng, matrix, 0.5, 60, top=10.0):
        state, probe = EigenTracker().step(observed.astype(dtype), state)
        gram = state.basis.T @ state.basis
        assert np.linalg.norm(gram - np.eye(gram.shape[0])) < 100 * np.finfo(dtype).eps
    assert state.basis.dtype == probe.rayleigh.dtype == probe.centred.dtype == dtype
    assert state.basis.flags.c_contiguous


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_single_precision_finds_what_double_precision_finds(n, k):
    rng = np.random.default_rng(3)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    observations = list(stream(rng, matrix, 0.5, 60, top=10.0))
    start = bf.random_basis(n, k, rng=rng)
    double = followed(observations, EigenTracker().init(start))
    single = followed(
        [observed.astype(np.float32) for observed in observations],
        EigenTracker().init(start.astype(np.float32)),
    )
    # Products of size 34 are rounded to some eps of that; the gaps are 0.8 and more.
    allowed = 20 * np.finfo(np.float32).eps * 34 * n**0.5
    assert np.abs(single.basis - double.basis).max() < allowed


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_torch_agrees_with_numpy(n, k, noise):
    rng = np.random.default_rng(4)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    start = bf.random_basis(n, k, rng=rng)
    ours = EigenTracker().init(start)
    theirs = EigenTracker().init(torch.from_numpy(start))
    for observed in stream(rng, matrix, noise, 40):
        ours, _ = EigenTracker().step(observed, ours)
        theirs, _ = EigenTracker().step(torch.from_numpy(observed), theirs)
    assert isinstance(theirs.basis, torch.Tensor)
    # Two libraries sum in another order; roundings of a background of 2000 over gaps of 0.8. Where
    # a block stands still rounding chooses among memories, which agree to √eps.
    allowed = 1e3 * EPS * 2000 if n == 12 or noise else EPS**0.5
    np.testing.assert_allclose(theirs.basis.numpy(), ours.basis, atol=allowed)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_members_of_an_ensemble_go_their_own_way(n, k):
    streams, starts = zip(
        *(eventful(np.random.default_rng(seed), n, k)[:2] for seed in range(4)), strict=True
    )
    order = [np.arange(91), np.r_[60:91, :60], np.r_[61:91, :61], np.arange(91)[::-1]]
    streams = [[own[i] for i in places] for own, places in zip(streams, order, strict=True)]
    tracker = EigenTracker()
    state = tracker.init(np.reshape(starts, (2, 2, *starts[0].shape)))
    # Columns beyond k are drawn one member after the other.
    alone = members_of(state)
    for observed in zip(*streams, strict=True):
        before, previous = state, alone
        state, _ = tracker.step(np.reshape(observed, (2, 2, n, n)), state)
        alone = [tracker.step(c, own)[0] for c, own in zip(observed, alone, strict=True)]
        told = [
            f"member {place}: {event.message}"
            for place, old, new in zip(np.ndindex(2, 2), previous, alone, strict=True)
            for event in tracker.events(old, new)
        ]
        assert [event.message for event in tracker.events(before, state)] == told
    assert state.steps.tolist() == [[91, 91], [91, 91]]
    reading = tracker.read(state)
    for place, own in zip(np.ndindex(2, 2), alone, strict=True):
        # One product of four matrices may be summed otherwise than four products.
        np.testing.assert_allclose(state.basis[place], own.basis, atol=1e4 * EPS)
        assert np.array_equal(state.order[place], own.order)
        for together, single in zip(reading, tracker.read(own), strict=True):
            np.testing.assert_allclose(together[place], single, rtol=1e-8)


@settings(max_examples=20, deadline=None)
@given(
    levels=st.lists(st.floats(0, 9), min_size=30, max_size=30),
    shape=st.sampled_from([(12, None), (12, 3), (80, 3)]),
    noise=st.sampled_from([0.0, 1.0]),
)
def test_any_background_changes_nothing_beyond_rounding(levels, shape, noise):
    rng, n = np.random.default_rng(6), shape[0]
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n))
    plain = loud = EigenTracker().init(bf.random_basis(*shape, rng=rng))
    for level in levels:
        observed = matrix + symmetric_noise(rng, n, noise)
        plain, _ = EigenTracker().step(observed, plain)
        loud, _ = EigenTracker().step(observed + 10**level * np.eye(n), loud)
    # A unit of rounding over the gap, 0.8, with room for what the first steps amplify.
    floor = 1e3 * EPS * 10 ** max(levels)
    assert np.linalg.norm(plain.basis - loud.basis) < floor


@pytest.mark.parametrize("n", [32, 80])
@pytest.mark.parametrize("moving", [False, True])
def test_roundings_die_out_in_a_long_noisy_run(n, moving):
    """Noise that swings over three decades, far above the signal at times, for 300 batches."""
    rng = np.random.default_rng(19)
    truth = bf.random_basis(n, 3, rng=rng)
    turn = rotation(rng, n, 0.02 * moving)
    plain = shifted = EigenTracker().init(bf.random_basis(n, 3, rng=rng))
    for t in range(300):
        truth = turn @ truth
        floor = 10 ** (0.75 + 0.75 * np.sin(t / 20))
        rows = rng.standard_normal((200, 3)) * (6, 5, 4) @ truth.T
        rows += floor * rng.standard_normal((200, n))
        plain, _ = EigenTracker().step(bf.gram(rows), plain)
        shifted, _ = EigenTracker().step(bf.shifted(bf.gram(rows), 1.0), shifted)
    difference = np.linalg.norm(plain.basis @ plain.basis.T - shifted.basis @ shifted.basis.T)
    # Roundings of eps · floor² = 1e3 eps over a gap of 10; room for six decades of growth is none
    # for a run that amplifies: it loses a decade in 20 batches.
    assert difference < 1e6 * 1e2 * EPS


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_eigenvalues_have_the_library_and_dtype_of_the_basis(n, k):
    rng = np.random.default_rng(24)
    matrix = signal(bf.random_basis(n, rng=rng), spectrum(n)).astype(np.float32)
    for library in (np.asarray, torch.from_numpy):
        state = EigenTracker().init(library(bf.random_basis(n, k, rng=0).astype(np.float32)))
        for _ in range(3):
            state, probe = EigenTracker().step(library(matrix), state)
            values = EigenTracker().eigenvalues(state, probe)
            assert type(values) is type(library(matrix))
            assert values.dtype == library(matrix).dtype


def test_columns_asked_for_are_a_whole_number():
    assert EigenTracker(np.int64(1)) == EigenTracker(1)
    assert type(EigenTracker(np.int64(3)).k) is int
    with pytest.raises(ValueError, match=r"^k must be at least 1, got 0$"):
        EigenTracker(0)
    with pytest.raises(TypeError, match=r"^k must be a whole number, got 2.5$"):
        EigenTracker(2.5)


def test_wrong_arguments_are_named():
    for wrong in (-0.1, 1.0, "half"):
        with pytest.raises(ValueError, match=r"^forget must be None or a number in \[0, 1\), got"):
            EigenTracker(forget=wrong)
    with pytest.raises(ValueError, match=r"2 columns .* k = 3: pass bf.random_basis\(n, 3\)"):
        EigenTracker(k=3).init(bf.random_basis(8, 2))
    state = EigenTracker().init(bf.random_basis(8, 2))
    for wrong in (0, 1, -0.5, 95):
        with pytest.raises(ValueError, match="coverage must be between 0 and 1, got"):
            EigenTracker().read(state, wrong)
    assert EigenTracker(forget=np.float32(0.5)).forget == 0.5


def test_members_that_are_refused_are_named_and_nothing_else_happens():
    start = EigenTracker().init(bf.random_basis(6, ensemble=(2, 2)))
    matrices = signal(bf.random_basis(6, ensemble=(2, 2)))
    matrices[1, 0, 2, 3] = np.nan
    matrices[1, 1] = np.nan
    with pytest.raises(bf.ObservationError, match="non-finite") as refused:
        EigenTracker().step(matrices, start)
    assert refused.value.members == ((1, 0), (1, 1))


def test_columns_beyond_k_come_from_a_fixed_seed_or_from_the_one_given():
    rng = np.random.default_rng(25)
    observations = list(stream(rng, signal(bf.random_basis(140, rng=rng), spectrum(140)), 0.5, 10))
    start = bf.random_basis(140, 2, rng=rng)

    def ended(seed):
        return followed(observations, EigenTracker().init(start, seed)).memory

    assert same(ended(None), ended(0))
    assert same(ended(7), ended(7))
    assert not same(ended(7), ended(0))


@pytest.mark.parametrize(
    ("n", "k", "products"), [(128, 1, 128), (129, 1, 7), (129, 21, 127), (129, 22, 129)]
)
def test_products_are_with_all_columns_where_six_times_k_are_no_fewer(n, k, products):
    state = EigenTracker().init(bf.random_basis(n, k, rng=0))
    _, probe = EigenTracker().step(np.diag(np.arange(n, 0.0, -1)), state)
    assert probe.matvecs == products


# Invariances ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("forget", [None, 0.1])
def test_weights_count_beside_each_other_only(n, k, forget):
    observations, start, _ = eventful(np.random.default_rng(20), n, k)
    tracker = EigenTracker(forget=forget)
    plain, read, kinds = observed_by(tracker, observations, start)
    heavy, heavy_read, heavy_kinds = observed_by(tracker, observations, start, weight=8.0)
    assert kinds == heavy_kinds
    assert ("outlier" in kinds) == (forget is None)
    assert np.allclose(plain.basis, heavy.basis, rtol=0, atol=1e-9)
    assert np.allclose(8 * read.memory, heavy_read.memory, rtol=1e-9)
    for name in ("eigenvalues", "eigenvalue_errors", "vector_errors", "loudness"):
        assert np.allclose(getattr(read, name), getattr(heavy_read, name), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize(("dtype", "power"), [("f8", -60), ("f8", 60), ("f4", -27), ("f4", 27)])
def test_the_scale_of_the_operator_changes_nothing_but_its_eigenvalues(n, k, dtype, power):
    observations, start, _ = eventful(np.random.default_rng(21), n, k)
    observations, start = [part.astype(dtype) for part in observations], start.astype(dtype)
    scale = start.dtype.type(2) ** power
    tracker = EigenTracker()
    plain, read, kinds = observed_by(tracker, observations, start)
    scaled, scaled_read, scaled_kinds = observed_by(
        tracker, [scale * observed for observed in observations], start
    )
    assert kinds == scaled_kinds
    assert "outlier" in kinds
    # A power of two changes no digit of a product; logarithms of noises round otherwise.
    unit = 100 * np.finfo(dtype).eps
    assert np.allclose(plain.basis, scaled.basis, rtol=0, atol=unit)
    assert np.allclose(read.memory, scaled_read.memory, rtol=unit)
    for name in ("eigenvalues", "eigenvalue_errors"):
        found = getattr(scaled_read, name) / scale
        assert np.allclose(getattr(read, name), found, rtol=unit, atol=30 * unit)
    assert np.allclose(read.vector_errors, scaled_read.vector_errors, rtol=100 * unit)


def test_turning_the_problem_turns_the_full_basis():
    rng = np.random.default_rng(22)
    observations, start, _ = eventful(rng, 12, None)
    turn = bf.random_basis(12, rng=rng)
    plain, read, kinds = observed_by(EigenTracker(), observations, start)
    turned, turned_read, turned_kinds = observed_by(
        EigenTracker(), [turn @ observed @ turn.T for observed in observations], turn @ start
    )
    assert kinds == turned_kinds
    assert np.allclose(turn @ plain.basis, turned.basis, rtol=0, atol=1e-9)
    assert np.allclose(read.vector_errors, turned_read.vector_errors, rtol=1e-6)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_an_eventful_stream_is_followed_to_its_end(n, k):
    for seed in range(3):
        observations, start, truth = eventful(np.random.default_rng(seed), n, k)
        state, read, kinds = observed_by(EigenTracker(), observations, start)
        assert "outlier" in kinds
        assert state.steps == len(observations)
        # The memory of a block may follow a jump rung by rung, which is no event.
        assert kinds.count("jump") == read.jumps <= 1
        if n == 12:
            assert 61 < read.jumped_at < 70
        limit = angles(leading(sum(observations[61:]), k), truth[:, :k])
        found = state.basis[:, read.order]
        # A block has to find its new columns first, product by product: 30 observations later it
        # has twice the error of the mean since the jump.
        most = 1.5 if n == 12 else 3.0
        assert np.linalg.norm(angles(found, truth[:, :k])) <= most * np.linalg.norm(limit)


# What it finds ----------------------------------------------------------------------------------


def test_first_observation_gives_the_full_basis_and_keeps_the_determinant():
    for seed in range(4):
        truth, start = bf.random_basis(9, rng=seed), bf.random_basis(9, rng=seed + 50)
        state, _ = EigenTracker().step(signal(truth), EigenTracker().init(start))
        assert bf.basis_error(state.basis, truth) < 1e3 * EPS
        assert np.linalg.det(state.basis) * np.linalg.det(start) > 0
        assert np.all(angles(state.basis, truth) < 1e3 * EPS)  # in descending order
        state, _ = EigenTracker().step(signal(truth), EigenTracker().init(start[:, :4]))
        assert np.all(angles(state.basis, truth[:, :4]) < 1e3 * EPS)


@pytest.mark.parametrize("k", [None, 3])
@pytest.mark.parametrize("level", [0.0, 2000.0])
def test_at_rest_a_small_problem_is_the_mean_and_its_eigenvectors(k, level):
    """One loud observation among a few is possible by chance: then one counts less."""
    rng = np.random.default_rng(8)
    errors, limits = [], []
    for _ in range(5):
        truth = bf.random_basis(12, rng=rng)
        observations = list(stream(rng, signal(truth), 1.0, 200, top=level))
        state = followed(observations, EigenTracker().init(bf.random_basis(12, k, rng=rng)))
        mean = sum(o - np.trace(o) / 12 * np.eye(12) for o in observations)
        errors.append(angles(state.basis, truth[:, :k]))
        limits.append(angles(leading(mean, k), truth[:, :k]))
    assert np.linalg.norm(errors) < 1.02 * np.linalg.norm(limits)
    assert np.abs(np.subtract(errors, limits)).max() < 0.2 * np.max(limits)


@pytest.mark.parametrize("k", [None, 4])
def test_a_memory_that_forgets_nothing_gives_the_mean_itself(k):
    """Whatever is observed, as long as it is equally loud."""
    rng = np.random.default_rng(9)
    rows = rng.standard_normal((40, 30, 10)) * np.linspace(3, 1, 10)
    tracker = EigenTracker(forget=0.0)
    state = followed(map(bf.gram, rows), tracker.init(bf.random_basis(10, k, rng=rng)), tracker)
    if tracker.read(state).memory == pytest.approx(1200):
        mean = np.einsum("tbi,tbj->ij", rows, rows) / 1200
        values = np.linalg.eigvalsh(mean)[::-1][:k]
        found = np.sort(tracker.read(state).eigenvalues)[::-1]
        assert np.allclose(found, values, rtol=1e-12)
        assert bf.subspace_error(state.basis, leading(mean, k)) < 1e-10
    else:  # a batch was called loud
        assert 1100 < tracker.read(state).memory < 1200


def spiked(rng, rows, truth, deviations, noise=1.0):
    scores = rng.standard_normal((rows, len(deviations))) * deviations
    return scores @ truth.T + noise * rng.standard_normal((rows, len(truth)))


def test_at_rest_a_block_is_about_as_good_as_pca_of_all_rows():
    errors, limits = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = bf.random_basis(200, 4, rng=rng)
        rows = spiked(rng, 6000, truth, (5, 4, 3, 2.5))
        state = EigenTracker().init(bf.random_basis(200, 4, rng=rng))
        state = followed((bf.gram(part) for part in np.split(rows, 100)), state)
        errors.append(bf.subspace_error(state.basis, truth))
        limits.append(bf.subspace_error(leading(rows.T @ rows, 4), truth))
    # 1.10 at n = 1000 and higher noise is what benchmarks/tracker.py holds it to.
    assert np.linalg.norm(errors) < 1.10 * np.linalg.norm(limits)


@pytest.mark.parametrize("n", [20, 90])
def test_batches_of_any_size_agree(n):
    rng = np.random.default_rng(17)
    truth = bf.random_basis(n, 2, rng=rng)
    rows = spiked(rng, 2000, truth, (3, 2))
    limit = bf.subspace_error(leading(rows.T @ rows, 2), truth)
    for batch in (1, 7, 50):
        state = EigenTracker().init(bf.random_basis(n, 2, rng=1))
        batches = (bf.gram(rows[i : i + batch]) for i in range(0, len(rows), batch))
        state = followed(batches, state)
        assert bf.subspace_error(state.basis, truth) < 1.15 * limit


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_still_operator_is_found_to_rounding_under_any_background(n, k):
    """All n columns at once; a block as far as captured variance tells: it is flat at its top."""
    rng = np.random.default_rng(10)
    truth = bf.random_basis(n, rng=rng)
    state = EigenTracker().init(bf.random_basis(n, k, rng=rng))
    steps = 500 if n > 128 else 20
    state = followed(stream(rng, signal(truth, spectrum(n)), 0.0, steps, top=1e3), state)
    most = 1e3 * EPS * 1e3 if n == 12 else EPS**0.5
    assert bf.subspace_error(state.basis, truth[:, : state.basis.shape[-1]]) < most
    assert np.all(angles(state.basis, truth[:, :k]) < 10 * most)


@pytest.mark.parametrize(
    ("n", "k", "noise", "since"), [(12, None, 0.5, 8), (12, 3, 0.5, 8), (80, 3, 8.0, 20)]
)
def test_soon_after_a_jump_it_is_the_mean_since_the_jump(n, k, noise, since):
    """1.5 times its error: a mean of t observations that misses the first half is 1.4 times."""
    errors, limits, kept = [], [], k or n - 1
    for seed in range(6):
        rng = np.random.default_rng(seed)
        before, after = bf.random_basis(n, rng=rng), bf.random_basis(n, rng=rng)
        tracker = EigenTracker()
        state = tracker.init(bf.random_basis(n, k, rng=rng))
        state = followed(stream(rng, signal(before, spectrum(n)), noise, 60), state)
        assert tracker.read(state).jumps == 0
        assert tracker.read(state).jumped_at == -1
        total = np.zeros((n, n))
        for count, observed in enumerate(stream(rng, signal(after, spectrum(n)), noise, 30), 1):
            state = followed([observed], state)
            total += observed - np.trace(observed) / n * np.eye(n)
            if count >= since:
                found = state.basis[:, np.argsort(-tracker.read(state).eigenvalues)]
                errors.append(angles(found[:, :kept], after[:, :kept]))
                limits.append(angles(leading(total, kept), after[:, :kept]))
        assert tracker.read(state).jumps == 1
        assert 62 <= tracker.read(state).jumped_at <= 60 + since
    assert np.linalg.norm(errors) < 1.5 * np.linalg.norm(limits)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_single_outlier_counts_next_to_nothing(n, k):
    rng = np.random.default_rng(10)
    truth, tracker = bf.random_basis(n, rng=rng), EigenTracker()
    state = tracker.init(truth[:, :k])
    state = followed(stream(rng, signal(truth, spectrum(n)), 0.1, 60), state)
    error, memory = angles(state.basis, truth[:, :k]), tracker.read(state).memory
    outlier = signal(truth, spectrum(n)) + symmetric_noise(rng, n, 100.0)
    state = followed([outlier], state)
    reading = tracker.read(state)
    # Noise a thousand times as strong counts a millionth: the mean moves by 100·1e-6/60.
    assert 1e5 < reading.loudness < 1e7
    assert reading.memory == pytest.approx(memory, rel=1e-6)
    assert reading.jumps == 0
    assert np.all(np.abs(angles(state.basis, truth[:, :k]) - error) < 1e-4)


@pytest.mark.parametrize(("n", "k"), [(18, None), (18, 3), (100, 3)])
@pytest.mark.parametrize(("factor", "share"), [(10, 0.3), (100, 0.03)])
def test_bursts_of_noise_cost_at_most_what_known_weights_would(n, k, factor, share):
    errors, limits = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        truth = bf.random_basis(n, rng=rng)
        matrix = signal(truth, spectrum(n))
        state = EigenTracker().init(bf.random_basis(n, k, rng=rng))
        total, k_all = np.zeros((n, n)), k or n
        for _ in range(150):
            size = 1.0 if rng.random() >= share else factor
            observed = matrix + symmetric_noise(rng, n, (2 if n == 18 else 10) * size)
            state = followed([observed], state)
            total += observed / size**2
        order = np.argsort(-EigenTracker().read(state).eigenvalues)
        errors.append(np.linalg.norm(angles(state.basis[:, order], truth[:, :k_all])))
        limits.append(np.linalg.norm(angles(leading(total, k), truth[:, :k_all])))
    # Of each of 20 draws the same is asked by benchmarks/tracker.py.
    assert np.linalg.norm(errors) < 1.3 * np.linalg.norm(limits)


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("speed", [0.003, 0.03])
def test_drift_is_followed_about_as_well_as_by_the_best_average(n, k, speed):
    rng = np.random.default_rng(11)
    truth, values = bf.random_basis(n, rng=rng), spectrum(n)
    turn, tracker = rotation(rng, n, speed * (n / 12) ** 0.5), EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    shares = np.array([0.003, 0.01, 0.03, 0.1, 0.3, 0.9])
    means, ours, theirs = np.zeros((6, n, n)), [], []
    for t in range(260):
        truth = turn @ truth
        observed = signal(truth, values) + symmetric_noise(rng, n, 5.0 if n == 12 else 15.0)
        state = followed([observed], state)
        gains = np.maximum(shares, 1 / (t + 1))
        means += gains[:, None, None] * (observed - means)
        if t >= 60 and t % 4 == 0:
            order = np.argsort(-tracker.read(state).eigenvalues)
            ours.append(angles(state.basis[:, order], truth[:, :k]))
            theirs.append(angles(leading(means, k), truth[:, :k]))
    best = np.sqrt(np.mean(np.square(theirs), axis=(0, 2))).min()
    # Memories are judged by the next observation: where the basis turns by more than the noise of
    # one, that asks for a shorter memory than what has been seen already does.
    assert np.sqrt(np.mean(np.square(ours))) < (1.3 if speed < 0.01 else 1.4) * best


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_columns_keep_place_and_sign_under_drift(n, k):
    rng = np.random.default_rng(11)
    truth, turn, tracker = bf.random_basis(n, rng=rng), rotation(rng, n, 1e-3), EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    for t in range(200):
        observed = signal(truth, spectrum(n)) + symmetric_noise(rng, n, 0.1)
        state, _ = tracker.step(observed, state)
        along = np.sum(state.basis * truth[:, : state.basis.shape[-1]], axis=0)
        if t == 20:
            sign = np.sign(along)
        assert t < 20 or np.all(along * sign > 0.9)
        truth = turn @ truth
    assert tracker.read(state).order.tolist() == list(range(state.basis.shape[-1]))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_crossing_changes_the_order_and_not_the_columns(n, k):
    rng = np.random.default_rng(12)
    truth, tracker = bf.random_basis(n, rng=rng), EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    for t in np.concatenate([np.linspace(0, 5, 100), np.full(200, 5.0)]):
        values = spectrum(n) + np.append([-t, t], np.zeros(n - 2))
        state, _ = tracker.step(signal(truth, values) + symmetric_noise(rng, n, 0.05), state)
    reading = tracker.read(state)
    assert np.all(np.abs(np.sum(state.basis * truth[:, :k], axis=0)) > 0.9)
    assert reading.order[:3].tolist() == state.order[:3].tolist() == [1, 0, 2]


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("ensemble", [(), (3,)])
def test_order_and_eigenvalues_are_those_that_were_averaged(n, k, ensemble):
    rng = np.random.default_rng(23)
    truth = bf.random_basis(n, rng=rng, ensemble=ensemble)
    tracker = EigenTracker()
    state = tracker.init(truth[..., :k])
    assert state.order is None
    for _ in range(20):
        observed = signal(truth, spectrum(n)) + symmetric_noise(rng, n, 0.2, ensemble)
        state, probe = tracker.step(observed + 50 * np.eye(n), state)
        reading = tracker.read(state)
        assert np.array_equal(reading.order, np.argsort(-reading.eigenvalues, axis=-1))
        assert np.array_equal(state.order, reading.order)
        assert np.allclose(tracker.eigenvalues(state, probe), reading.eigenvalues, rtol=1e-12)
        assert reading.eigenvalues.shape == (*ensemble, state.basis.shape[-1])
        assert reading.memory.shape == reading.jumps.shape == ensemble
    # 50 of background, and entries of the noise of 0.2·√2/n, over 20 observations.
    expected = (spectrum(n) + 50)[:k]
    assert np.abs(reading.eigenvalues - expected).max() < 0.1


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.parametrize("n", [10, 100])
def test_no_eigenvalue_of_a_gram_operator_is_negative(n, k):
    """Neither those averaged nor the background, with few rows, steep spectra and growing noise."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        scales = 10.0 ** -np.linspace(0, 6, n)
        growing = 10.0 ** rng.uniform(-2, 2, 40)
        batches = [rng.standard_normal((3, n)) * scales * growth for growth in growing]
        result = bf.track(map(bf.gram, batches), k, rng=rng)
        scale = max(growing) ** 2
        # Sums of squares: nothing is negative but for rounding.
        assert np.all(result.eigenvalues >= -100 * EPS * scale)
        assert result.background >= -100 * EPS * scale
        assert np.all(np.diff(result.eigenvalues) <= 0)


@pytest.mark.parametrize(("n", "k"), [(12, None), (12, 2), (100, 2)])
def test_a_result_has_the_averaged_eigenvalues_and_the_averaged_background(n, k):
    rng = np.random.default_rng(14)
    truth = bf.random_basis(n, 2, rng=rng)
    rows = spiked(rng, 12000, truth, (5, 3), noise=2.0)
    result = bf.track((bf.gram(part) for part in np.split(rows, 60)), k, rng=rng)
    mean = rows.T @ rows / len(rows)
    values = np.linalg.eigvalsh(mean)[::-1]
    # One batch in some hundred may be called loud by chance, and counts less; a block of 5k columns
    # takes what it does not hold for level.
    assert np.allclose(result.eigenvalues[:2], values[:2], rtol=1e-3 if n == 12 else 0.03)
    if k is None:
        assert result.background == pytest.approx(np.trace(mean) / 12, rel=1e-3)
    elif n == 12:
        assert result.background == pytest.approx(values[2:].mean(), rel=1e-3)
    else:  # σ² = 4 as one random direction sees it in 12,000 rows: four standard deviations
        assert result.background == pytest.approx(4.0, rel=4 * (2 / 12000) ** 0.5)
    assert result.eigenvalues.shape == (k or n,)
    assert np.all(result.residuals >= 0)


def test_small_and_degenerate_problems():
    for n, k in ((2, 1), (3, 2), (5, 4), (6, 1)):
        rng = np.random.default_rng(n)
        truth = bf.random_basis(n, rng=rng)
        for noise in (0.0, 0.1):
            start = EigenTracker().init(bf.random_basis(n, k, rng=rng))
            state = followed(stream(rng, signal(truth), noise, 40), start)
            assert bf.subspace_error(state.basis, truth[:, :k]) < 0.1 * (noise > 0) + 1e-8


@pytest.mark.parametrize("n", [1, 6, 80])
@pytest.mark.parametrize("kind", ["zero", "flat", "one"])
def test_operators_without_a_gap_leave_the_basis_finite_and_orthonormal(n, kind):
    matrix = {"zero": np.zeros((n, n)), "flat": 5 * np.eye(n), "one": np.diag(np.eye(n)[0])}[kind]
    for k in {None, 1, min(n, 3)}:
        tracker = EigenTracker()
        state = tracker.init(bf.random_basis(n, k, rng=0))
        state = followed([matrix] * 10, state)
        reading = tracker.read(state)
        columns = state.basis.shape[-1]
        assert np.linalg.norm(state.basis.T @ state.basis - np.eye(columns)) < 1e3 * EPS
        assert np.all(np.isfinite(reading.eigenvalues))
        top = {"zero": 0, "flat": 5, "one": 1}[kind]
        # A block of 80 finds a direction by and by.
        rough = 0.3 if n == 80 and kind == "one" and columns < n else 1e3 * EPS
        assert reading.eigenvalues.max() == pytest.approx(top, abs=rough)
        assert reading.jumps == 0


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_fixed_memory_is_kept_whatever_happens(n, k):
    observations, start, truth = eventful(np.random.default_rng(18), n, k)
    tracker = EigenTracker(forget=0.2)
    state, reading, kinds = observed_by(tracker, observations, start)
    # Shares 0.2·0.8^t: the sum of their squares is 0.2/1.8.
    assert reading.memory == pytest.approx(9, rel=1e-6)
    assert reading.jumps == 0
    assert reading.jumped_at == -1
    assert "jump" not in kinds
    # Of what was before the jump 0.8^30 is left.
    assert np.all(angles(state.basis[:, reading.order], truth[:, :k]) < 0.3)


@pytest.mark.parametrize("k", [None, 3])
def test_a_fixed_memory_is_the_exponential_average(k):
    rng = np.random.default_rng(19)
    observations = [signal(bf.random_basis(9, rng=rng)) for _ in range(40)]
    tracker = EigenTracker(forget=0.3)
    state = followed(observations, tracker.init(bf.random_basis(9, k, rng=rng)), tracker)
    if "outlier" not in observed_by(tracker, observations, bf.random_basis(9, k, rng=0))[2]:
        mean = np.zeros((9, 9))
        for t, observed in enumerate(observations):
            mean += max(0.3, 1 / (t + 1)) * (observed - mean)
        found = np.sort(tracker.read(state).eigenvalues)[::-1]
        assert np.allclose(found, np.linalg.eigvalsh(mean)[::-1][:k], rtol=1e-10)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_members_of_an_ensemble_stop_one_by_one(n, k):
    truth = np.stack([bf.random_basis(n, rng=i) for i in range(3)])
    start = EigenTracker().init(np.stack([bf.random_basis(n, k, rng=10 + i) for i in range(3)]))
    stop = [bf.residual_below(1e-6), bf.max_steps(200)]
    matrices = signal(truth, spectrum(n))
    result = bf.run(EigenTracker(), itertools.repeat(matrices), start, stop=stop)
    assert np.all(result.converged)
    columns = result.state.basis.shape[-1]
    assert np.all(bf.subspace_error(result.state.basis, truth[..., :columns]) < 1e-5)


@pytest.mark.parametrize("above", [1, 2, 56])
@pytest.mark.parametrize("n", [60, 80])
def test_an_invariant_subspace_that_is_not_the_leading_one_is_left(n, above, rng):
    matrix = np.diag(np.append([100.0, 90, 80, 70], np.arange(n - 4, 0.0, -1) / 2))
    state = EigenTracker().init(np.eye(n)[:, above : above + 4])
    state = followed((bf.shifted(matrix, rng.uniform(0, 1e3)) for _ in range(200)), state)
    assert bf.subspace_error(state.basis, np.eye(n)[:, :4]) < 1e-6


@pytest.mark.parametrize(("n", "k"), [(40, 4), (80, 4)])
def test_a_long_rest_does_not_hide_that_it_is_over(n, k):
    rng = np.random.default_rng(26)
    truth, values = (
        bf.random_basis(n, rng=rng),
        np.append([40.0, 34, 28, 22], np.linspace(9, 0, n - 4)),
    )
    turn, tracker = rotation(rng, n, 0.04), EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    state = followed(stream(rng, signal(truth, values), 2.0, 800), state)
    rested = tracker.read(state).memory
    assert rested > 600
    errors = []
    for _ in range(150):
        truth = turn @ truth
        state = followed(stream(rng, signal(truth, values), 2.0, 1), state)
        errors.append(bf.subspace_error(state.basis, truth[:, :k]))
    assert tracker.read(state).memory < 0.2 * rested
    # The mean of all is behind by half of 150 turns at the end.
    behind = 150 * 0.04 * (k / n) ** 0.5 * 0.5
    assert np.mean(errors[-50:]) < 0.3 * behind


@pytest.mark.parametrize("k", [None, 4])
def test_eigenvalues_that_cross_on_vectors_that_stay_are_told_apart(k, rng):
    truth, tracker = bf.random_basis(12, rng=rng), EigenTracker()
    state = tracker.init(bf.random_basis(12, k, rng=rng))
    for step in range(500):
        values = 2 * np.arange(12.0, 0, -1)
        moved = np.clip((step - 100) / 100, 0, 1) * 3
        values[1:3] += [-moved, moved]
        state = followed(stream(rng, signal(truth, values), 0.3, 1), state, tracker)
    reading = tracker.read(state)
    assert reading.order.tolist()[:4] == [0, 2, 1, 3]
    assert np.all(np.abs(np.sum(state.basis * truth[:, :k], axis=0)) > 0.9)
