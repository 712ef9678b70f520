"""Trajectory, run, stop rules and results mean what the contract says."""

import itertools

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import Status
from cases import noise, symmetric

N = 6
FLOW = bf.DoubleBracketFlow(bf.Adaptive())


def problem(rng, k=None, ensemble=()):
    return symmetric(rng, N, ensemble=ensemble), bf.random_basis(N, k, rng=rng, ensemble=ensemble)


def test_trajectory_yields_state_and_probe_of_the_same_step(rng):
    c, start = problem(rng)
    pairs = list(bf.trajectory(FLOW, [c] * 5, FLOW.init(start)))
    assert [state.steps for state, _ in pairs] == [0, 1, 2, 3, 4]
    for state, probe in pairs:
        a = state.basis.T @ c @ state.basis
        assert np.allclose(probe.rayleigh, a - probe.background * np.eye(N), rtol=0, atol=1e-12)


def test_fired_rule_returns_the_probed_state_and_counts_its_product(rng):
    c, start = problem(rng)
    operator = bf.counted(c)
    result = bf.run(FLOW, itertools.repeat(operator), FLOW.init(start), stop=[bf.max_steps(9)])
    assert result.state.steps == 9
    assert result.state.matvecs == operator.matvecs == 10 * N
    assert result.status is Status.STEP_LIMIT
    a = result.state.basis.T @ c @ result.state.basis
    off = np.linalg.norm(a - np.diag(np.diag(a)), axis=0)
    order = np.argsort(-np.diag(a))
    assert np.allclose(result.residuals, off[order], rtol=1e-10)
    assert np.allclose(result.eigenvalues, np.diag(a)[order], rtol=0, atol=1e-12)


def test_ended_stream_has_absorbed_every_observation(rng):
    c, start = problem(rng)
    result = bf.run(FLOW, [c] * 5, FLOW.init(start))
    assert result.status is Status.STREAM_ENDED
    assert not result.converged
    assert (result.state.steps, result.state.matvecs) == (5, 5 * N)


def test_max_matvecs_is_never_exceeded(rng):
    c, start = problem(rng, 2)
    flow = bf.BrockettFlow()
    for budget in (2, 3, 10, 11):
        operator = bf.counted(c)
        stop = bf.max_matvecs(budget)
        result = bf.run(flow, itertools.repeat(operator), flow.init(start), stop=stop)
        assert budget - 2 < operator.matvecs <= budget
        assert result.state.matvecs == operator.matvecs
        assert result.status is Status.STEP_LIMIT


@pytest.mark.parametrize("k", [None, 2])
@pytest.mark.parametrize("level", [0.0, 1e6])
def test_lyapunov_and_residual_rules_measure_what_they_say(k, level, rng):
    c, start = problem(rng, k)
    flow = FLOW if k is None else bf.BrockettFlow((2, 1))
    shifted = itertools.repeat(c + level * np.eye(N))
    result = bf.run(flow, shifted, flow.init(start), stop=[bf.lyapunov_below(1e-6)])
    assert result.converged
    assert 1e-9 < bf.lyapunov(result.state.basis, c) < 1e-6
    result = bf.run(flow, shifted, flow.init(start), stop=[bf.residual_below(1e-5)])
    assert result.converged
    spread = np.ptp(np.linalg.eigvalsh(result.state.basis.T @ c @ result.state.basis))
    assert result.residuals.max() <= 1.1e-5 * spread


def test_precision_floor_is_its_own_status(rng):
    c, start = problem(rng)
    stop = [bf.residual_below(1e-12), bf.max_steps(5000)]
    result = bf.run(FLOW, itertools.repeat(c + 1e9 * np.eye(N)), FLOW.init(start), stop=stop)
    assert result.status is Status.PRECISION_FLOOR
    assert not result.converged
    assert result.residuals.max() <= 4 * np.finfo(float).eps * 1.1e9


def test_aligned_below_knows_the_answer(rng):
    c, start = problem(rng)
    vectors = np.linalg.eigh(c)[1]
    stop = [bf.aligned_below(vectors, 1e-5), bf.max_steps(5000)]
    result = bf.run(FLOW, itertools.repeat(c), FLOW.init(start), stop=stop)
    assert result.converged
    assert bf.basis_error(result.state.basis, vectors) <= 1e-5


@pytest.mark.parametrize("rule", [bf.lyapunov_below, bf.residual_below])
@pytest.mark.parametrize("bad", [0, -1.0, np.nan, "small"])
def test_stop_rules_refuse_senseless_tolerances(rule, bad):
    with pytest.raises(ValueError, match="tol must be a positive finite number"):
        rule(bad)


def test_counting_rules_refuse_fractions():
    with pytest.raises(TypeError, match=r"max_steps must be a whole number, got 2\.5"):
        bf.max_steps(2.5)
    with pytest.raises(ValueError, match="max_matvecs must be at least 1, got 0"):
        bf.max_matvecs(0)


def test_result_is_ordered_signed_and_never_better_than_the_state(rng):
    c, start = problem(rng)
    result = bf.run(FLOW, [c] * 3, FLOW.init(start))
    assert np.all(np.diff(result.eigenvalues) <= 0)
    top = np.argmax(np.abs(result.eigenvectors), axis=0)
    assert np.all(result.eigenvectors[top, range(N)] > 0)
    assert bf.basis_error(result.eigenvectors, result.state.basis) <= 1e-14


# Streams ----------------------------------------------------------------------------------------


def test_bare_matrix_empty_stream_and_non_iterables_are_refused_with_the_remedy(rng):
    c, start = problem(rng)
    for call in (bf.track, lambda s: bf.run(FLOW, s, FLOW.init(start))):
        with pytest.raises(ValueError, match=r"bare array.*itertools\.repeat\(A\)"):
            call(c)
        with pytest.raises(ValueError, match="stream is empty"):
            call([])
        with pytest.raises(TypeError, match=r"iterable of operators.*itertools\.repeat"):
            call(lambda x: x)
    with pytest.raises(ValueError, match=r"itertools\.repeat"):
        bf.track(torch.from_numpy(c))
    with pytest.raises(ValueError, match=r"bf\.as_operator\(f, n\)"):
        bf.track([lambda x: c @ x])
    with pytest.raises(ValueError, match=r"bf\.as_operator\(A, n\)"):
        bf.decompose(lambda x: c @ x)


def test_operator_that_changes_shape_is_refused_and_can_be_skipped(rng):
    c, _ = problem(rng)
    stream = [c, c[:4, :4], c]
    with pytest.raises(bf.ObservationError, match="4 × 4 but the basis has columns of length 6"):
        bf.track(stream, rng=rng)
    result = bf.track(stream, rng=rng, on_bad="skip")
    assert result.state.steps == 2
    assert result.bad[0].step == 1


def test_on_bad_function_is_told_and_a_long_run_of_bad_ones_ends_the_run(rng):
    c, start = problem(rng)
    heard = []
    poison = itertools.repeat(np.nan * c)
    stream = itertools.chain([c, c], poison)
    state = FLOW.init(start)
    result = bf.run(FLOW, stream, state, on_bad=heard.append, bad_limit=7)
    assert result.status is Status.TOO_MANY_BAD
    assert len(result.bad) == len(heard) == 7
    assert result.state.steps == 2
    crooked = itertools.chain([c], itertools.repeat(c + np.triu(np.ones((N, N)), 1)))
    result = bf.run(FLOW, crooked, state, on_bad="skip", bad_limit=3)
    assert result.status is Status.NOT_SYMMETRIC
    with pytest.raises(ValueError, match="no usable observation, all 3 were refused"):
        bf.run(FLOW, [np.nan * c] * 3, state, on_bad="skip")
    with pytest.raises(ValueError, match="on_bad must be"):
        bf.run(FLOW, [c], state, on_bad="ignore")


def test_interrupt_keeps_what_was_reached(rng):
    c, start = problem(rng)

    def stream():
        yield c
        yield c
        raise KeyboardInterrupt

    result = bf.run(FLOW, stream(), FLOW.init(start))
    assert result.status is Status.INTERRUPTED
    assert result.state.steps == 2


# Ensembles --------------------------------------------------------------------------------------


def test_members_stop_one_by_one_and_stay_frozen(rng):
    c, start = problem(rng, ensemble=(5,))
    operators = [c + noise(rng, N, 1e-6) for _ in range(3000)]
    result = bf.run(FLOW, operators, FLOW.init(start), stop=[bf.lyapunov_below(1e-4)])
    assert result.converged.shape == (5,)
    assert result.converged.all()
    assert len(set(result.state.steps.tolist())) > 1
    for i in range(5):
        alone = bf.run(
            FLOW, [o[i] for o in operators], FLOW.init(start[i]), stop=[bf.lyapunov_below(1e-4)]
        )
        assert result.state.steps[i] == alone.state.steps
        assert result.state.matvecs[i] == alone.state.matvecs
        assert np.allclose(result.state.basis[i], alone.state.basis, rtol=0, atol=1e-11)
        assert np.allclose(result.residuals[i], alone.residuals, rtol=1e-6)
        assert np.allclose(result.eigenvalues[i], alone.eigenvalues, rtol=0, atol=1e-10)


def test_torch_ensembles_stop_like_numpy_ones(rng):
    c, start = problem(rng, ensemble=(3,))
    stop = [bf.lyapunov_below(1e-6), bf.max_steps(2000)]
    arrays = bf.run(FLOW, itertools.repeat(c), FLOW.init(start), stop=stop)
    tensors = bf.run(
        FLOW, itertools.repeat(torch.from_numpy(c)), FLOW.init(torch.from_numpy(start)), stop=stop
    )
    assert np.array_equal(arrays.state.steps, tensors.state.steps)
    assert isinstance(tensors.eigenvalues, torch.Tensor)
    assert np.allclose(arrays.eigenvalues, tensors.eigenvalues, rtol=0, atol=1e-10)


# One call ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["largest", "smallest"])
@pytest.mark.parametrize("k", [None, 1, 3])
@pytest.mark.parametrize("level", [0.0, 1e4])
def test_decompose_finds_the_eigenpairs(which, k, level, rng):
    c = symmetric(rng, N)
    result = bf.decompose(c + level * np.eye(N), k, which=which, max_steps=5000, rng=rng)
    values, vectors = np.linalg.eigh(c)
    values, vectors = values[::-1], vectors[:, ::-1]
    if k is not None:
        chosen = slice(0, k) if which == "largest" else slice(N - k, N)
        values, vectors = values[chosen], vectors[:, chosen]
    assert result.converged
    assert np.allclose(result.eigenvalues, values + level, rtol=0, atol=1e-6)
    assert bf.basis_error(result.eigenvectors, vectors) < 1e-6


def test_decompose_refuses_bad_arguments(rng):
    c = symmetric(rng, N)
    for bad, error, match in (
        ({"k": N + 1}, ValueError, "k must be at least 1 and at most 6"),
        ({"k": 2.5}, TypeError, "k must be a whole number"),
        ({"which": "biggest"}, ValueError, 'which must be "largest" or "smallest"'),
        ({"tol": -1}, ValueError, "tol must be"),
        ({"max_steps": 1.5}, TypeError, "max_steps must be a whole number"),
    ):
        with pytest.raises(error, match=match):
            bf.decompose(c, **bad)
    with pytest.raises(bf.ObservationError, match="not symmetric"):
        bf.decompose(np.triu(c))


def test_track_follows_a_stream_under_a_swinging_background(rng):
    c = symmetric(rng, N)
    stream = [c + 1e3 * rng.uniform() * np.eye(N) for _ in range(600)]
    for k in (None, 2):
        result = bf.track(stream, k, rng=rng)
        vectors = np.linalg.eigh(c)[1][:, ::-1][:, :k]
        assert bf.subspace_error(result.eigenvectors, vectors) < 1e-6
        assert result.status is Status.STREAM_ENDED
