"""Certificates hold against the truth, and no background can fake one."""

import itertools
import json

import numpy as np
import pytest
import torch
from scipy.linalg import expm

import bracketflow as bf
from bracketflow import Status
from bracketflow.certificates import certify_record, rounding_bound
from bracketflow.core import State
from bracketflow.observation import observe
from cases import noise, symmetric
from certificates import BACKGROUNDS, certified, low_end, problems, starts


def stops(method, operators, start, steps):
    stream = itertools.repeat(operators, steps + 1)
    for t, pair in enumerate(bf.trajectory(method, stream, method.init(start))):
        if t in (0, 2, steps // 3, steps):
            yield pair


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("n", [5, 12, 30])
def test_full_basis_is_never_falsely_called_converged(n, dtype, rng):
    signal, _, truth = problems(rng, n, 9)
    stack = (signal + BACKGROUNDS[:, None, None, None] * np.eye(n)).astype(dtype)
    start = starts(rng, truth, stack.shape[:2]).astype(dtype)
    said = 0
    for state, probe in stops(bf.DoubleBracketFlow(bf.Adaptive()), stack, start, 300):
        certificate = bf.certify(state, probe)
        error = bf.basis_error(state.basis, truth)
        assert np.all(error <= certificate.distance)
        said += certificate.converged.sum()
    assert said > 0  # the flag is not silent either


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(("n", "k"), [(20, 1), (20, 3), (60, 8), (200, 4)])
def test_leading_bounds_hold_whenever_their_assumption_does(n, k, told, rng):
    signal, values, vectors = problems(rng, n, 6)
    stack = signal + BACKGROUNDS[:, None, None, None] * np.eye(n)
    start = starts(rng, vectors[..., :k], stack.shape[:2])
    given = 0
    for state, probe in stops(bf.BrockettFlow(tuple(range(k, 0, -1))), stack, start, 200):
        shifted = values + BACKGROUNDS[:, None, None]
        c = bf.certify(state, probe, unseen=shifted[..., k] if told else None)
        held = (shifted[..., None, :] >= c.lower[..., None]) & (
            shifted[..., None, :] <= c.upper[..., None]
        )
        assert held.any(axis=-1).all()  # every enclosure holds an eigenvalue
        order = np.argsort(-probe.rayleigh.diagonal(axis1=-2, axis2=-1), axis=-1)
        columns = np.take_along_axis(state.basis, order[..., None, :], axis=-1)
        top = vectors[..., :k]
        sines = np.linalg.norm(columns - np.sum(columns * top, -2)[..., None, :] * top, axis=-2)
        assumed = shifted[..., k] <= c.unseen
        assert np.all((sines <= c.angles) | ~assumed[..., None])
        subspace = bf.subspace_error(state.basis, np.broadcast_to(top, state.basis.shape))
        assert np.all((subspace <= c.subspace) | ~assumed)
        given += (np.isfinite(c.angles) & assumed[..., None]).sum()
    # Untold and with one vector, there is nothing to compare its distance to the rest with.
    assert given > 0 or (k == 1 and not told)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_intervals_far_below_the_norm_hold_an_eigenvalue(dtype):
    """The low end of a spectrum: what rounding leaves there goes with ‖C‖, which is not in H."""
    said = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        matrix, vectors, values = low_end(rng, dtype)
        for c, turned in certified(rng, matrix, vectors):
            truth = -values if turned else values
            held = (truth >= c.lower[:, None]) & (truth <= c.upper[:, None])
            assert held.any(axis=1).all()
            said += bool(c.converged)
    assert said > 0


def test_a_given_norm_makes_an_estimate_a_proof(rng):
    signal = symmetric(rng, 12)
    result = bf.decompose(signal, 2, rng=rng)
    norm = np.linalg.norm(signal, 2)

    def words(**known):
        c = bf.certify(result.state, result.probe, **known)
        return c.intervals_are, c.angles_are

    condition = "proved if nothing hides between"
    assert words() == ("estimated", "estimated")
    assert words(unseen=10.5) == ("estimated", "estimated")
    assert words(norm=norm) == ("proved", condition)
    assert words(norm=norm, unseen=10.5) == ("proved", "proved")
    wide = bf.certify(result.state, result.probe, norm=1e9 * norm)
    narrow = bf.certify(result.state, result.probe, norm=norm)
    rounding = 2 * np.finfo(float).eps * 12**0.5 * 1e9 * norm
    assert np.allclose(wide.residuals - narrow.residuals, rounding, rtol=1e-6)
    full = bf.decompose(signal, rng=rng)
    c = bf.certify(full.state, full.probe)
    assert (c.intervals_are, c.angles_are) == ("proved", "proved")


@pytest.mark.parametrize("norm", [np.nan, np.inf, -1.0, 1.0])
def test_a_norm_below_what_was_seen_is_refused(norm, rng):
    result = bf.decompose(np.diag(np.arange(12.0)), 2, rng=rng)
    with pytest.raises(ValueError, match=r"norm must be an upper bound.*of size 11"):
        bf.certify(result.state, result.probe, norm=norm)


def test_bounds_are_violated_where_k_cuts_a_cluster_and_the_words_say_so(rng):
    """Three equal eigenvalues and k = 2: the columns span no eigenspace of their own."""
    values = np.array([5.0, 4.0, 4.0 - 1e-13, 4.0 - 2e-13, 1.0, 0.0])
    basis = bf.random_basis(6, rng=rng)
    result = bf.decompose((basis * values) @ basis.T, 2, rng=rng)
    c = bf.certify(result.state, result.probe, norm=5.0)
    assert bf.basis_error(result.eigenvectors, basis[:, :2]) > c.distance
    assert c.angles_are == "proved if nothing hides between"
    assert "cannot tell whether" in c.assumption
    told = bf.certify(result.state, result.probe, norm=5.0, unseen=4.0)
    assert np.isinf(told.distance)
    assert told.angles_are == "proved"


def test_large_background_does_not_make_a_wrong_basis_converged(rng):
    n, k = 30, 3
    signal = symmetric(rng, n)
    start = bf.random_basis(n, k, rng=rng)
    for level in (1e3, 1e6, 1e9):
        state = State(start)
        probe = observe(signal + level * np.eye(n), state)
        assert bf.certify(state, probe).status is Status.MOVING


def test_certificates_do_not_see_the_background_but_for_rounding(rng):
    signal, start = symmetric(rng, 10), bf.random_basis(10, 3, rng=rng)
    plain = bf.certify(State(start), observe(signal, State(start)))
    for level in (1e3, 1e6):
        shifted = observe(signal + level * np.eye(10), State(start))
        other = bf.certify(State(start), shifted)
        slack = 2 * float(rounding_bound(State(start), shifted))
        assert np.allclose(plain.residuals, other.residuals, rtol=0, atol=slack)
        assert np.allclose(plain.gaps, other.gaps, rtol=0, atol=slack)
        assert np.allclose(plain.lower + level, other.lower, rtol=0, atol=2 * slack)
        assert plain.status is other.status


def test_statuses_tell_gap_precision_and_motion_apart():
    turn = expm(1e-9 * np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 0]]))
    quarter = expm(np.pi / 8 * np.array([[0.0, 1, 0], [-1, 0, 0], [0, 0, 0]]))
    clear, tight = np.diag([3.0, 2.0, 1.0]), np.diag([2.0 + 1e-9, 2.0, 1.0])

    def status(basis, matrix):
        return bf.certify(State(basis), observe(matrix, State(basis))).status

    assert status(turn, clear) is Status.CONVERGED
    assert status(quarter, tight) is Status.GAP_TOO_SMALL
    assert status(quarter, clear) is Status.MOVING
    assert status(expm(1e-6 * (quarter - quarter.T)), clear + 1e11 * np.eye(3)) is (
        Status.PRECISION_FLOOR
    )


def test_unseen_spectrum_is_an_argument_and_a_sentence(rng):
    n, k = 12, 2
    signal = symmetric(rng, n)
    truth = np.linalg.eigh(signal)[1][:, ::-1][:, :k]
    probe = observe(signal, State(truth))
    given = bf.certify(State(truth), probe, unseen=n - k + 0.5)
    assert given.unseen == n - k + 0.5
    assert "as given" in given.assumption
    assert given.gaps[-1] == pytest.approx(0.5, rel=1e-6)
    assert (
        "cannot tell whether a larger one was missed" in bf.certify(State(truth), probe).assumption
    )
    full = bf.random_basis(n, rng=rng)
    assert (
        "every eigenvalue is seen"
        in bf.certify(State(full), observe(signal, State(full))).assumption
    )


def test_bound_that_cannot_be_given_is_inf(rng):
    start = bf.random_basis(20, 4, rng=rng)
    certificate = bf.certify(State(start), observe(symmetric(rng, 20), State(start)))
    assert np.isinf(certificate.angles).any()
    assert np.isinf(certificate.distance)
    assert not certificate.converged


def test_result_carries_the_probe_of_its_vectors(rng):
    signal = symmetric(rng, 12)
    result = bf.decompose(signal, k=3, rng=rng)
    certificate = bf.certify(result.state, result.probe)
    assert certificate.converged
    assert np.allclose(certificate.eigenvalues, result.eigenvalues, rtol=0, atol=1e-12)
    truth = np.linalg.eigh(signal)[1][:, ::-1][:, :3]
    assert bf.basis_error(result.eigenvectors, truth) <= certificate.distance


def test_torch_probes_can_be_certified(rng):
    signal, start = symmetric(rng, 6), bf.random_basis(6, 2, rng=rng)
    arrays = bf.certify(State(start), observe(signal, State(start)))
    state = State(torch.from_numpy(start))
    tensors = bf.certify(state, observe(torch.from_numpy(signal), state))
    assert np.allclose(arrays.residuals, tensors.residuals, rtol=0, atol=1e-12)


def test_recorded_run_proves_nearly_the_same(rng):
    signal = symmetric(rng, 8) + 1e4 * np.eye(8)
    for columns, method in (
        (3, bf.BrockettFlow((3, 2, 1))),
        (8, bf.DoubleBracketFlow(bf.Adaptive())),
    ):
        recorder = bf.Recorder()
        start = method.init(bf.random_basis(8, columns, rng=rng))
        stop = [bf.residual_below(1e-9), bf.max_steps(4000)]
        result = bf.run(method, itertools.repeat(signal), start, stop=stop, monitors=[recorder])
        live = bf.certify(result.state, result.probe)
        stored = certify_record(json.loads(json.dumps(recorder.records[-1])))
        assert stored.status is live.status is Status.CONVERGED
        assert (stored.intervals_are, stored.angles_are) == (live.intervals_are, live.angles_are)
        assert np.allclose(stored.eigenvalues, live.eigenvalues)
        # H is not stored: its angles rest on residual over gap, which is larger but not by much.
        assert np.all(stored.angles <= 10 * live.angles + 1e-12)
        assert np.all(stored.angles >= 0.5 * live.angles)
    with pytest.raises(ValueError, match="record has no 'background'"):
        certify_record({"step": 1})


@pytest.mark.parametrize("k", [None, 3])
def test_noise_is_estimated_from_probes_whatever_the_background(k, rng):
    n, size = 20, 0.3
    signal = symmetric(rng, n)
    method = bf.DoubleBracketFlow(1e-3) if k is None else bf.BrockettFlow((3, 2, 1), 1e-3)
    truth = np.linalg.eigh(signal)[1][:, ::-1][:, :k]
    stream = [signal + noise(rng, n, size) + rng.uniform(0, 1e6) * np.eye(n) for _ in range(200)]
    probes = [probe for _, probe in bf.trajectory(method, stream, method.init(truth))]
    estimate = bf.estimate_noise(probes)
    assert estimate.probes == 200
    # 200 draws: a relative standard error of about 1/√(200·dof), dof ≥ 57 for k = 3; 10% is 10 σ.
    assert estimate.frobenius == pytest.approx(size, rel=0.1)
    with pytest.raises(ValueError, match="at least 2"):
        bf.estimate_noise(probes[:1])


def test_senseless_tolerance_is_refused(rng):
    start = bf.random_basis(4, rng=rng)
    with pytest.raises(ValueError, match="tol must be"):
        bf.certify(State(start), observe(np.eye(4), State(start)), tol=-1)
