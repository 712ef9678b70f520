"""What the theory promises for a matrix, in numbers, words and on the command line."""

import itertools
import json

import numpy as np
import pytest
from scipy import io, sparse

import bracketflow as bf
from bracketflow import theory
from bracketflow.certificates import stationary_deviation
from bracketflow.cli import main
from bracketflow.guarantees import guarantees
from bracketflow.monitor import JSONLines
from bracketflow.streams import load_matrix
from cases import noise, symmetric


def test_numbers_are_those_of_the_paper(rng):
    g = guarantees(symmetric(rng, 15), 0.05, target=1e-8)
    assert g.gap == pytest.approx(1)
    assert g.centred_norm == pytest.approx(7)
    assert g.steps["printed"] == pytest.approx(1 / ((4 * 15**0.5 + 8) * 49))
    assert g.steps["sharp"] == pytest.approx(1 / (12 * 49))
    assert g.steps["edge"] == pytest.approx(2 / 14**2)
    # Diagnostic A6 needs 14,681 steps with 0.9 of the printed step; the estimate is a mean.
    assert g.expected["printed"] / 0.9 == pytest.approx(14_681, rel=0.1)
    assert "guarantees nothing here" in g.limit
    assert not g.checks["no escape from the domain"].holds


def test_expected_steps_are_close_to_a_real_run(rng):
    signal = symmetric(rng, 8, ensemble=(20,))
    flow = bf.DoubleBracketFlow(bf.Certified(fraction=1.0))
    start = flow.init(bf.random_basis(8, rng=rng, ensemble=(20,)))
    stop = [bf.lyapunov_below(1e-6)]
    steps = bf.run(flow, itertools.repeat(signal), start, stop=stop).state.steps
    assert guarantees(signal[0]).expected["sharp"] == pytest.approx(steps.mean(), rel=0.25)


def test_stationary_deviation_is_what_independent_noise_gives(rng):
    n, size = 6, 0.1
    values = np.arange(n, 0, -1.0)
    signal, eta = np.diag(values), 0.5 / 25
    flow = bf.DoubleBracketFlow(eta)
    state, squares, probes = flow.init(np.eye(n)), [], []
    for t in range(4000):
        state, probe = flow.step(signal + noise(rng, n, size), state)
        if t > 200:
            squares.append(bf.lyapunov(state.basis, signal))
            probes.append(probe)
    # About 4,000·ηg² ≈ 80 independent samples of the slowest mode: 10% is about two sigma of f.
    measured = np.sqrt(np.mean(squares))
    assert measured == pytest.approx(stationary_deviation(values, eta, size), rel=0.1)
    assert measured == pytest.approx(bf.estimate_noise(probes).ball(eta), rel=0.1)
    with pytest.raises(ValueError, match="edge of stability"):
        stationary_deviation(values, 1.0, size)


@pytest.mark.parametrize(
    ("matrix", "noise_level", "words"),
    [
        (np.eye(3), 0.0, "multiple of the identity"),
        (np.diag([2.0, 2.0, 1.0]), 0.0, "repeated eigenvalue"),
        (np.diag([3.0, 2.0, 1.0]), 2.0, "only averaging can separate"),
        (np.diag([1000.0, 2.0, 1.0]), 0.0, "gradient flows are slow"),
        (np.diag([3.0, 2.0, 1.0]), 0.0, "Nothing"),
    ],
)
def test_what_limits_it_is_said_in_words(matrix, noise_level, words):
    assert words in guarantees(matrix, noise_level).limit


def test_the_sharper_ball_says_something_where_the_papers_does_not():
    """n = 15, λ = 15 … 1, noise 1e-3: y_thr = 0.177, between the two."""
    g = guarantees(np.diag(np.arange(15.0)), 1e-3)
    assert g.ball["independent"] < g.ball["sharp"] < theory.entry_threshold(1.0, 0.5)
    assert g.ball["sharp"] * 56 == pytest.approx(g.ball["bound"])  # 4‖C_e‖/δ = 4·7/0.5
    assert theory.entry_threshold(1.0, 0.5) < g.ball["bound"]
    assert g.checks["no escape from the domain"].holds


def test_entry_is_promised_below_the_noise_limit_only():
    matrix = np.diag(np.arange(15.0))
    limit = guarantees(matrix).entry.noise_limit
    assert np.ceil(guarantees(matrix).entry.steps) == 956
    assert 956 < guarantees(matrix, 0.99 * limit).entry.steps < np.inf
    above = guarantees(matrix, 1.01 * limit)
    assert above.entry.steps == np.inf
    assert not above.checks["entry from every start"].holds


def test_what_is_proved_of_the_leading_vectors(rng):
    matrix, name = symmetric(rng, 10), "noise ball of the leading 3"
    g = guarantees(matrix, 0.05, k=3, weights=(3, 2, 1))
    assert g.leading.step == pytest.approx(1 / (2 * 3 * 9))
    assert (g.leading.rate, g.leading.reach) == pytest.approx((1, 1))
    assert g.leading.noise_limit == pytest.approx(0.5**0.5 / (2**0.5 * 3))
    assert g.leading.independent < g.leading.ball < g.leading.basin < 1
    assert g.checks[name].holds
    above = guarantees(matrix, 1.01 * g.leading.noise_limit, k=3, weights=(3, 2, 1))
    assert (above.leading.ball, above.leading.basin) == (np.inf, 0)
    assert not above.checks[name].holds
    assert guarantees(matrix, k=3).leading.rate == pytest.approx(2)  # N = I: 2(λ_3 − λ_4)


def test_a_gap_that_the_weights_do_not_ask_for_may_be_missing():
    tied = np.diag([3.0, 3.0, 1.0, 0.0])
    assert guarantees(tied, 0.01, k=2).checks["noise ball of the leading 2"].holds
    for weights, k in (((2, 1), 2), (None, 1)):
        g = guarantees(tied, 0.01, k=k, weights=weights)
        assert g.leading.ball == g.leading.independent == np.inf
        assert (g.leading.rate, g.leading.reach, g.leading.noise_limit) == (0, 0, 0)
        assert "repeated" in g.checks[f"noise ball of the leading {k}"].reason
    assert guarantees(np.eye(3), k=1).leading.step == np.inf


def test_no_gap_gives_no_number_that_looks_valid():
    g = guarantees(np.diag([2.0, 2.0, 1.0]), 0.1)
    assert (g.entry.steps, g.entry.noise_limit) == (np.inf, 0)
    assert g.gap == 0
    assert all(np.isinf(list(g.expected.values())))
    assert all(np.isinf(list(g.ball.values())))
    assert not g.checks["vectors determined"].holds


@pytest.mark.parametrize(
    ("matrix", "kwargs", "error", "match"),
    [
        (np.ones((2, 3)), {}, ValueError, "must be square"),
        (np.full((2, 2), np.nan), {}, ValueError, "NaN or Inf"),
        (np.eye(2) * 1j, {}, TypeError, "must be real"),
        (np.triu(np.ones((5, 5))), {}, ValueError, "not symmetric"),
        (np.eye(3), {"noise": -1.0}, ValueError, "noise must be"),
        (np.eye(3), {"target": 0.0}, ValueError, "target must be"),
        (np.eye(3), {"k": 3}, ValueError, r"at most 2 \(n = 3: leave k out.*got 3"),
        (np.eye(3), {"k": 0}, ValueError, "k must be at least 1"),
        (np.eye(3), {"k": 1.5}, TypeError, "k must be a whole number"),
        (np.eye(3), {"weights": (1,)}, ValueError, "give k, too"),
        (np.eye(3), {"k": 2, "weights": (1, 2)}, ValueError, "2 positive numbers that do not rise"),
        (np.eye(3), {"k": 2, "weights": (1,)}, ValueError, r"must be 2 positive.*got \(1,\)"),
        (np.eye(3), {"k": 2, "weights": (2, 0)}, ValueError, "must be 2 positive"),
        (sparse.eye_array(5000).tocsr(), {}, ValueError, r"n = 5000, too large.*bf\.certify"),
    ],
)
def test_bad_hypotheses_raise(matrix, kwargs, error, match):
    with pytest.raises(error, match=match):
        guarantees(matrix, **kwargs)


# Files and the command line ---------------------------------------------------------------------


def test_every_kind_of_matrix_file_is_read(tmp_path, rng):
    matrix = symmetric(rng, 5)
    np.save(tmp_path / "a.npy", matrix)
    np.savez(tmp_path / "b.npz", matrix)
    sparse.save_npz(tmp_path / "c.npz", sparse.csr_array(matrix))
    io.mmwrite(tmp_path / "d.mtx", sparse.coo_array(matrix))
    for name in ("a.npy", "b.npz", "c.npz", "d.mtx"):
        loaded = load_matrix(tmp_path / name)
        dense = loaded.toarray() if sparse.issparse(loaded) else loaded
        assert np.allclose(dense, matrix, rtol=1e-12)


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "broken.npy").write_bytes(b"not an array")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 nor a zip")
    (tmp_path / "broken.mtx").write_text("nonsense")
    np.savez(tmp_path / "two.npz", np.eye(2), np.eye(3))
    np.save(tmp_path / "vector.npy", np.ones(3))
    np.save(tmp_path / "objects.npy", np.array([[{}]], dtype=object), allow_pickle=True)
    (tmp_path / "data.xyz").write_text("")
    for name in ("broken.npy", "broken.npz", "broken.mtx", "two.npz", "vector.npy", "objects.npy"):
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            load_matrix(tmp_path / name)
    with pytest.raises(ValueError, match="unknown ending"):
        load_matrix(tmp_path / "data.xyz")
    with pytest.raises(ValueError, match="no such file"):
        load_matrix(tmp_path / "absent.npy")


def test_certify_prints_a_table_and_json(tmp_path, rng, capsys):
    np.save(tmp_path / "A.npy", symmetric(rng, 12))
    assert main(["certify", str(tmp_path / "A.npy")]) == 0
    shown = capsys.readouterr().out
    for words in ("smallest gap    1", "sharp, 1/(12 r²)", "What limits it", "[yes]"):
        assert words in shown
    assert main(["certify", str(tmp_path / "A.npy"), "--noise", "0.5", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["noise"] == 0.5
    assert found["entry"]["steps"] is None
    arguments = ["certify", str(tmp_path / "A.npy"), "-k", "3", "--weights", "3", "2", "1"]
    assert main([*arguments, "--noise", "1e-5"]) == 0
    shown = capsys.readouterr().out
    for words in ("leading 3, weights 3, 2, 1", "with guard=True", "worst case, sharper"):
        assert words in shown
    assert main([*arguments[:-1]]) == 2
    assert "weights must be 3 positive numbers" in capsys.readouterr().err


def test_certify_reads_a_recorded_run(tmp_path, rng, capsys):
    signal, flow = symmetric(rng, 6), bf.BrockettFlow((2, 1))
    path = tmp_path / "run.jsonl"
    for limit, code in ((3000, 0), (3, 1)):
        with JSONLines(path) as sink:
            bf.run(
                flow,
                itertools.repeat(signal),
                flow.init(bf.random_basis(6, 2, rng=rng)),
                stop=[bf.residual_below(1e-9), bf.max_steps(limit)],
                monitors=[bf.Recorder(sinks=[sink])],
            )
        assert main(["certify", str(path)]) == code
        assert ("CONVERGED" if code == 0 else "MOVING") in capsys.readouterr().out
        assert main(["certify", str(path), "--json"]) == code
        assert json.loads(capsys.readouterr().out)["eigenvalues"][0] == pytest.approx(6, abs=3)


def test_certify_exits_with_2_on_bad_input(tmp_path, capsys):
    np.save(tmp_path / "B.npy", np.triu(np.ones((4, 4))))
    (tmp_path / "empty.jsonl").write_text("")
    for name in ("B.npy", "absent.npy", "empty.jsonl"):
        assert main(["certify", str(tmp_path / name)]) == 2
        assert capsys.readouterr().err.startswith("bracketflow: ")
