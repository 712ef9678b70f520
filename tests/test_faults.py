"""Bad observations are refused, counted, and leave no trace: every method, NumPy and torch."""

import copy
import itertools
import warnings

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import Status
from cases import METHODS, N, noise, same_bits, symmetric

LIBRARIES = {"numpy": np.asarray, "torch": lambda array: torch.from_numpy(np.array(array))}


class Scribbler:
    """An operator that writes into its input before it fails."""

    shape = (N, N)

    def __matmul__(self, block):
        block *= 0
        raise OSError("the sensor is gone")


def raising(block):
    raise RuntimeError("the sensor is gone")


def scribbling(block):
    block += 1e9
    raise ZeroDivisionError


# name: (the bad observation, made from a good one; the reasons it may be refused for)
FAULTS = {
    "nan": (lambda c: c * np.nan, {"non-finite"}),
    "one nan": (lambda c: one_entry(c, np.nan), {"non-finite"}),
    "inf": (lambda c: one_entry(c, np.inf), {"non-finite"}),
    "minus inf": (lambda c: one_entry(c, -np.inf), {"non-finite"}),
    "overflow": (lambda c: c * 1e300, {"non-finite"}),
    "drowning impulse": (lambda c: c + 1e300 * np.eye(N), {"non-finite", "drowned"}),
    "impulse of 1e18": (lambda c: c + 1e18 * np.eye(N), {"drowned"}),
    "too large": (lambda c: np.eye(N + 1), {"wrong shape"}),
    "too small": (lambda c: np.eye(N - 1), {"wrong shape"}),
    "not square": (lambda c: c[:3], {"wrong shape"}),
    "flat": (lambda c: c[0], {"wrong shape"}),
    "complex": (lambda c: c + 1j, {"wrong type"}),
    "asymmetric": (lambda c: c + np.triu(c, 1), {"not symmetric"}),
    "slightly asymmetric": (lambda c: c + 1e-3 * np.triu(np.ones((N, N)), 1), {"not symmetric"}),
}
# The same for operators that are no arrays.
PROCEDURES = {
    "raises": (raising, {"raised"}),
    "scribbles and raises": (scribbling, {"raised"}),
    "scribbling object": (Scribbler(), {"raised"}),
    "returns nothing": (lambda block: None, {"wrong type", "raised"}),
    "returns a list": (lambda block: [[1.0]], {"wrong type", "raised"}),
    "returns too little": (lambda block: block[:2], {"wrong shape"}),
    "returns too much": (lambda block: block[None], {"wrong shape"}),
    "returns nan": (lambda block: block * float("nan"), {"non-finite"}),
    "turns": (lambda block: block[[*range(1, N), 0]] * 9, {"not symmetric"}),
    "no operator": ("matrix", {"wrong type"}),
    "nothing": (None, {"wrong type"}),
}


def one_entry(c, value):
    spoilt = np.array(c)
    spoilt[1, 2] = spoilt[2, 1] = value
    return spoilt


def observations(rng, count, size=0.05):
    signal = symmetric(rng, N)
    return [signal + noise(rng, N, size) for _ in range(count)]


def settled(name, library, rng, count=6, more=0):
    """A method, its state after some observations, one further of them, and `more` if asked for."""
    method, columns = METHODS[name]
    stream = observations(rng, count + 1 + more)
    state = method.init(library(bf.random_basis(N, columns, rng=rng)))
    state = bf.run(method, map(library, stream[:count]), state).state
    return (method, state, *stream[count : count + 1], *([stream[count + 1 :]] if more else []))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", METHODS)
def test_a_bad_observation_is_refused_and_leaves_no_trace(name, library, rng):
    make = LIBRARIES[library]
    method, state, good = settled(name, make, rng)
    before = copy.deepcopy(state)
    bad = {kind: (make(spoil(good)), reasons) for kind, (spoil, reasons) in FAULTS.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind, (observation, reasons) in {**bad, **PROCEDURES}.items():
            with pytest.raises(bf.ObservationError) as caught:
                list(bf.trajectory(method, [observation], state))
            assert caught.value.reason in reasons, kind
            assert same_bits(state, before), kind


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", METHODS)
def test_skipping_is_bit_for_bit_as_if_the_bad_ones_had_not_come(name, library, rng):
    make = LIBRARIES[library]
    method, state, good, stream = settled(name, make, rng, more=30)
    stream = [make(c) for c in stream]
    poison = [make(spoil(good)) for spoil, _ in FAULTS.values()]
    poison += [observation for observation, _ in PROCEDURES.values()]
    mixed = list(itertools.chain(*itertools.zip_longest(stream, poison)))
    mixed = mixed[: 2 * len(poison)] + stream[len(poison) :]
    clean = bf.run(method, stream, state)
    recorder = bf.Recorder()
    result = bf.run(method, mixed, state, on_bad="skip", monitors=recorder)
    assert same_bits(result.state, clean.state)
    assert same_bits(result.eigenvalues, clean.eigenvalues)
    assert [bad.step for bad in result.bad] == [6 + 1 + i for i in range(len(poison))]
    # The record after a bad observation names it.
    named = [record["bad"] for record in recorder.records if record["bad"]]
    assert named == [f"step {bad.step}: {bad.reason}" for bad in result.bad]


def test_the_cause_of_a_raising_operator_is_chained(rng):
    method, state, _ = settled("so-adaptive", np.asarray, rng)
    with pytest.raises(bf.ObservationError, match="RuntimeError: the sensor is gone") as caught:
        bf.run(method, [raising], state)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(bf.ObservationError, match="must be real") as caught:
        bf.run(method, [np.eye(N) * 1j], state)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
@pytest.mark.parametrize("name", ["so-adaptive", "tracker-full", "tracker-leading"])
def test_what_is_no_fault_of_the_observation_passes_through(stop, name, rng):
    method, state, _ = settled(name, np.asarray, rng)

    def operator(block):
        raise stop

    with pytest.raises(stop):
        bf.run(method, [operator], state, on_bad="skip")
    with pytest.raises(stop):
        method.step(operator, state)


def test_errors_of_the_stream_itself_are_not_skipped(rng):
    method, state, good = settled("so-adaptive", np.asarray, rng)

    def stream():
        yield good
        raise OSError("the file is gone")

    with pytest.raises(OSError, match="the file is gone"):
        bf.run(method, stream(), state, on_bad="skip")


# What operators may do ---------------------------------------------------------------------------


def test_products_of_strange_kinds_are_made_plain_or_refused(rng):
    method, state, c = settled("st-adaptive", np.asarray, rng)
    expected, _ = method.step(c, state)
    masked = np.ma.masked_array
    for plain in (
        masked(c),
        lambda block: masked(c @ block),
        lambda block: (c @ block).view(np.matrix),
        lambda block: np.asfortranarray(c @ block),
        lambda block: (c @ block).astype(np.longdouble),
    ):
        following, _ = method.step(plain, state)
        assert np.abs(following.basis - expected.basis).max() <= 1e-15
    for refused in (
        masked(c, mask=np.eye(N)),
        lambda block: masked(c @ block, mask=np.ones(block.shape)),
        lambda block: (c @ block).astype(str),
        lambda block: (c @ block).astype(object),
        lambda block: (c @ block) * (1 + 0j),
    ):
        with pytest.raises(bf.ObservationError):
            bf.run(method, [refused], state)


def test_a_graph_does_not_grow_with_the_stream(rng):
    for name in ("so-cayley", "st-adaptive", "tracker-full", "tracker-leading"):
        method, state, c = settled(name, LIBRARIES["torch"], rng)
        leaf = LIBRARIES["torch"](c).requires_grad_()
        for operator in (leaf, lambda block, leaf=leaf: leaf @ block):
            following, probe = method.step(operator, state)
            assert not following.basis.requires_grad
            assert not probe.rayleigh.requires_grad


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf")])
def test_senseless_weights_are_refused(weight, rng):
    method, state, c = settled("tracker-full", np.asarray, rng)
    operator = type("Weighted", (), {"shape": c.shape, "__matmul__": lambda self, x: c @ x})()
    operator.weight = weight
    with pytest.raises(ValueError, match="weight must be a positive finite number"):
        bf.as_operator(operator)
    result = bf.run(method, [c, operator, c], state, on_bad="skip")
    assert len(result.bad) == 1


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", METHODS)
def test_a_batch_of_zeros_is_survived(name, library, rng):
    make = LIBRARIES[library]
    method, state, good = settled(name, make, rng, count=40)
    zeros = bf.gram(make(np.zeros((5, N))))
    result = bf.run(method, [make(good), zeros, make(good), zeros], state)
    basis = np.asarray(result.state.basis)
    assert np.linalg.norm(basis.T @ basis - np.eye(basis.shape[1])) <= 1e-13
    before = np.asarray(state.basis)
    # However much they count, four in forty-five observations turn no column away.
    assert bf.basis_error(basis, before) <= 0.1
    flat = bf.run(method, [zeros] * 3, method.init(state.basis))
    assert np.isfinite(np.asarray(flat.state.basis)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", METHODS)
def test_an_observation_of_any_size_is_refused_or_leaves_a_sound_basis(name, library, dtype, rng):
    method, columns = METHODS[name]
    make = LIBRARIES[library]
    state = method.init(make(bf.random_basis(N, columns, rng=rng).astype(dtype)))
    state = bf.run(method, [make(c.astype(dtype)) for c in observations(rng, 6)], state).state
    top = np.finfo(dtype).maxexp
    for exponent in np.linspace(-top, top - 2, 24):
        wild = symmetric(rng, N, eigenvalues=rng.standard_normal(N)) * 2.0**exponent
        try:
            following, _ = method.step(make(wild.astype(dtype)), state)
        except bf.ObservationError:
            continue
        basis = np.asarray(following.basis)
        defect = np.linalg.norm(basis.T @ basis - np.eye(columns))
        assert defect <= (1e-5 if dtype is np.float32 else 1e-12)


# Streams and limits ------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["largest", "smallest"])
def test_track_skips_what_is_no_operator_even_at_the_start(which, rng):
    stream = observations(rng, 40)
    mixed = [
        None,
        stream[0] * 1j,
        *stream[:20],
        "x",
        stream[0][:3],
        np.nan * stream[0],
        *stream[20:],
    ]
    clean = bf.track(stream, 2, which=which, rng=3)
    result = bf.track(mixed, 2, which=which, rng=3, on_bad="skip")
    assert same_bits(result.state, clean.state)
    refused = [bad.step for bad in result.bad if "loud" not in bad.reason]
    assert refused == [0, 0, 20, 20, 20]
    with pytest.raises(TypeError, match="operator must be"):
        bf.track(mixed, 2, which=which)
    with pytest.raises(ValueError, match="no operator among its 2 observations"):
        bf.track(["x", None], on_bad="skip")
    with pytest.raises(TypeError, match="operator must be"):
        bf.track(itertools.repeat("x"), on_bad="skip")  # not for ever


@pytest.mark.parametrize("name", METHODS)
def test_a_long_run_of_bad_ones_ends_with_a_status_and_the_state_before_it(name, rng):
    method, state, good = settled(name, np.asarray, rng)
    clean = bf.run(method, [good] * 3, state)
    for poison, status in (
        (good * np.nan, Status.TOO_MANY_BAD),
        (raising, Status.TOO_MANY_BAD),
        (good + np.triu(good, 1), Status.NOT_SYMMETRIC),
    ):
        stream = itertools.chain([good] * 3, itertools.repeat(poison))
        result = bf.run(method, stream, state, on_bad="skip", bad_limit=11)
        assert result.status is status
        assert len(result.bad) == 11
        assert {bad.step for bad in result.bad} == {9}
        assert same_bits(result.state, clean.state)
        assert "bad" in result.status.value or "check_symmetric" in result.status.value
    # One good observation in between starts the count again.
    stream = ([good * np.nan] * 10 + [good]) * 3
    assert bf.run(method, stream, state, on_bad="skip", bad_limit=11).status is Status.STREAM_ENDED


def test_on_bad_may_end_the_run_itself(rng):
    method, state, good = settled("so-adaptive", np.asarray, rng)

    class Enough(Exception):
        pass

    def listen(bad):
        assert bad.step == 7
        assert "non-finite" in bad.reason
        raise Enough

    with pytest.raises(Enough):
        bf.run(method, [good, good * np.nan, good], state, on_bad=listen)


def test_one_bad_member_refuses_the_observation_for_all_and_is_named(rng):
    method = bf.BrockettFlow((2, 1))
    operators = symmetric(rng, N, ensemble=(3,))
    state = method.init(bf.random_basis(N, 2, rng=rng, ensemble=(3,)))
    spoilt = operators.copy()
    spoilt[1] = np.nan
    result = bf.run(method, [operators, spoilt, operators], state, on_bad="skip")
    assert same_bits(result.state, bf.run(method, [operators] * 2, state).state)
    assert "members [(1,)]" in result.bad[0].reason


# A fifth of the stream poisoned ------------------------------------------------------------------


POISON = {
    "nan": lambda c, rng: c * np.nan,
    "raising": lambda c, rng: raising,
    "asymmetric": lambda c, rng: c + np.triu(rng.standard_normal(c.shape), 1),
}


def poisoned(stream, spoil, rng):
    """The stream with a fifth of it spoilt, and the stream without that fifth."""
    bad = np.zeros(len(stream), bool)
    bad[rng.choice(len(stream), len(stream) // 5, replace=False)] = True
    mixed = [spoil(c, rng) if b else c for c, b in zip(stream, bad, strict=True)]
    return mixed, [c for c, b in zip(stream, bad, strict=True) if not b]


@pytest.mark.parametrize("kind", POISON)
@pytest.mark.parametrize("name", METHODS)
def test_a_poisoned_fifth_is_as_if_absent(name, kind, rng):
    method, columns = METHODS[name]
    mixed, rest = poisoned(observations(rng, 60, size=0.5), POISON[kind], rng)
    start = method.init(bf.random_basis(N, columns, rng=rng))
    result = bf.run(method, mixed, start, on_bad="skip")
    assert same_bits(result.state, bf.run(method, rest, start).state)
    assert len(result.bad) == 12


@pytest.mark.parametrize("columns", [N, 3])
def test_outliers_a_million_times_the_noise_count_next_to_nothing(columns, rng):
    # The noise must be known before an observation can deviate from it.
    stream = observations(rng, 420, size=0.5)
    opening, stream = stream[:20], stream[20:]
    mixed, rest = poisoned(stream, lambda c, rng: c + noise(rng, N, 0.5e6), rng)
    method = bf.EigenTracker()
    start = bf.run(method, opening, method.init(bf.random_basis(N, columns, rng=rng))).state
    result, absent = bf.run(method, mixed, start, on_bad="skip"), bf.run(method, rest, start)
    assert len(result.bad) == 80
    assert {event.kind for event in result.events} == {"outlier"}
    assert result.state.steps == 420
    # Each counts 1e-12 of an ordinary one, and is 1e6 times as far off.
    assert bf.basis_error(result.state.basis, absent.state.basis) <= 1e-6
    memories = [method.read(run.state).memory for run in (result, absent)]
    assert memories[0] == pytest.approx(memories[1], rel=1e-6)
