"""Ranks as real processes on the loopback address: sums, bits, messages, failures, restarts."""

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this build of torch has no gloo",
)

import bracketflow as bf  # noqa: E402
from bracketflow import distributed as bd  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent / "distributed_workers"))
from launch import Ranks, run_through_kills  # noqa: E402

EPS = np.finfo(float).eps
METHODS = ("flow", "grassmann", "square", "leading", "full")


@pytest.fixture(scope="module")
def ranks():
    pool = Ranks()
    yield pool
    pool.close()


def agree(results, key="bits"):
    assert len({str(result[key]) for result in results}) == 1
    return results[0]


# Sums -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_two_ranks_do_what_one_process_does(ranks, name):
    first = agree(ranks.results("compare", name=name))
    assert first["difference"] <= 1e-12
    assert first["eigenvalues"] <= 1e-11


def test_three_ranks_do_what_one_process_does(ranks):
    first = agree(ranks.results("compare", ranks=3, name="leading"))
    assert first["difference"] <= 1e-12


@pytest.mark.parametrize("form", ["sparse", "torch", "float32"])
def test_every_kind_of_rows(ranks, form):
    first = agree(ranks.results("compare", name="leading", form=form))
    eps = np.finfo(np.float32).eps if form == "float32" else EPS
    assert first["difference"] <= 4500 * eps  # 1e-12 in double precision
    assert first["kept"]


def test_a_rank_without_rows_adds_nothing(ranks):
    first = agree(ranks.results("compare", name="leading", shape="one rank has none"))
    assert first["difference"] <= 1e-12


@pytest.mark.parametrize("name", METHODS)
def test_one_message_a_step(ranks, name):
    for result in ranks.results("messages", name=name):
        calls = result["calls"]
        assert calls.pop("all_reduce") == result["steps"]
        assert set(calls.values()) == {0}
        tail = result["bytes"] - result["block"]
        assert tail == result["steps"] * 6 * 8


def test_weight_and_trace_come_with_the_product(ranks):
    for result in ranks.results("weight_and_trace"):
        assert set(result["weight"]) == {25.0} == {result["counted"]}
        assert result["trace"] == pytest.approx(result["expected"], rel=1e-14)
        assert "ShardedRows(n=12" in result["shown"]


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_any_operator_a_rank(ranks, reduce):
    for result in ranks.results("operators", reduce=reduce):
        assert result["difference"] <= 50 * EPS
        assert result["stack"] == 0
        assert result["weight"] == result["expected"]


def test_decompose_over_ranks(ranks):
    first = agree(ranks.results("decomposed"))
    assert first["status"] == "CONVERGED"
    assert first["error"] <= 1e-12


def test_hessian_of_a_model_in_distributed_data_parallel(ranks):
    first = agree(ranks.results("ddp_hessian"))
    assert first["difference"] <= 1e-12


def test_hessian_monitor_over_ranks(ranks):
    first = agree(ranks.results("hessian_monitor"))
    assert first["difference"] <= 1e-12


# Streams ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[30, 3], [0, 8], [2, 9]])
def test_streams_that_end_at_different_times(ranks, lengths):
    first = agree(ranks.results("streams", lengths=lengths))
    assert first["steps"] == max(lengths)
    assert first["difference"] <= 1e-12


def test_streams_without_any_row_end_at_once(ranks):
    for answer in ranks.run("streams", lengths=[0, 0]):
        assert "stream is empty" in answer["error"]


def test_a_stream_that_breaks_stops_every_rank(ranks):
    for answer in ranks.run("streams", lengths=[9, 9], breaks=[1, 5]):
        assert "failed on rank 1: OSError: disk on fire" in answer["error"]


def test_a_stream_that_breaks_can_be_skipped(ranks):
    results = ranks.results("streams", lengths=[9, 9], breaks=[1, 5], on_bad="skip")
    assert agree(results)["steps"] == 8
    assert all("disk on fire" in result["bad"][0] for result in results)


def test_track_from_a_rank_that_never_has_a_row(ranks):
    assert agree(ranks.results("tracked", lengths=[0, 7]))["steps"] == 7


def test_chunks_of_a_dask_array_are_batches(ranks):
    pytest.importorskip("dask.array")
    first = agree(ranks.results("dask_rows", lengths=[5, 7, 3, 4, 4, 9, 6]))
    assert first["difference"] <= 1e-12
    assert first["steps"] == 4


def test_dask_on_one_machine():
    da = pytest.importorskip("dask.array")
    whole = np.random.default_rng(0).standard_normal((10, 4))
    batches = list(bd.row_batches(da.from_array(whole, chunks=((3, 3, 4), 2))))
    assert [len(rows) for rows in batches] == [3, 3, 4]
    assert np.array_equal(np.concatenate(batches), whole)
    with pytest.raises(ValueError, match="2-D"):
        list(bd.row_batches(da.ones(3)))


# Bits, decisions, background --------------------------------------------------------------------


def test_bits_stay_equal_over_ten_thousand_steps(ranks):
    first, second = ranks.results("many_steps", steps=10_000, bound=120)
    assert first == second
    assert len(set(first)) == 20  # the basis did move between the marks


def test_stop_rules_fire_together(ranks):
    first, second = ranks.results("stops_together", tol=1e-5)
    assert first == second
    assert first["status"] == "CONVERGED"


@pytest.mark.parametrize("name", ["flow", "leading"])
def test_background_changes_nothing_beyond_the_rounding_of_the_products(ranks, name):
    for result in ranks.results("backgrounds", name=name):
        # The bound that one machine is held to; see test_contracts.
        assert result["worst"] <= 25 * result["unit"]


# What goes wrong --------------------------------------------------------------------------------


def test_a_bad_part_is_refused_by_all(ranks):
    results = ranks.results("bad_observations")
    first = agree(results)
    assert first["same"]
    assert agree(results, "bad")["bad"] == first["bad"]
    assert [entry.split()[0] for entry in first["bad"]] == [
        "non-finite",
        "empty",
        "raised",
        "raised",
        "raised",
    ]
    assert "failed on rank 1: ZeroDivisionError: no luck" in first["bad"][2]
    assert "13 × 13" in first["bad"][3]
    assert "failed on rank 1: TypeError: operator must be" in first["bad"][4]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("n", "n is 13 on rank 1 but 12 on rank 0"),
        ("k", "k is 4 on rank 1 but 3 on rank 0"),
        ("dtype", "dtype is 'float32' on rank 1 but 'float64' on rank 0"),
        ("library", "library is 'torch' on rank 1 but 'NumPy' on rank 0"),
        ("reduce", "reduce is 'sum' on rank 1 but 'mean' on rank 0"),
        ("method", "weights=(4.0, 2.0, 1.0)"),
        ("start", "the ranks hold different bases"),
    ],
)
def test_ranks_that_differ_are_told_so(ranks, what, told):
    for answer in ranks.run("differing", what=what):
        assert told in answer["error"]


@pytest.mark.parametrize(("what", "told"), [("n", "n is 13"), ("method", "weights=(4.0,")])
def test_ranks_that_start_differently_are_told_so(ranks, what, told):
    for answer in ranks.run("differing_start", what=what):
        assert told in answer["error"]


def test_streams_of_different_size_are_told_so(ranks):
    for answer in ranks.run("differing_streams"):
        assert "different (n, dtype, library)" in answer["error"]


def test_no_process_group():
    with pytest.raises(ValueError, match="torchrun"):
        bd.ShardedRows(np.ones((3, 4)))
    with pytest.raises(ValueError, match="torchrun"):
        bd.start(bf.EigenTracker(1), bf.random_basis(4, 1))


# Checkpoints and restarts -----------------------------------------------------------------------


def test_resuming_is_bit_for_bit_the_uninterrupted_run(ranks, tmp_path):
    whole = agree(ranks.results("resumed", path=str(tmp_path / "a"), steps=30, restart=False))
    path = str(tmp_path / "b")
    agree(ranks.results("resumed", path=path, steps=18, restart=False))
    resumed = agree(ranks.results("resumed", path=path, steps=30, restart=True))
    assert resumed["begun"] == 15
    assert resumed["bits"] == whole["bits"]


def test_a_checkpoint_that_does_not_fit(ranks, tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(b"not one")
    for answer in ranks.run("differing_start", what="", path=str(path)):
        assert "not a bracketflow checkpoint" in answer["error"]
    method = bf.EigenTracker(3)
    bf.save(path, method.init(bf.random_basis(12, 3, rng=0)), method=method)
    for answer in ranks.run("differing_start", what="", path=str(path)):
        assert "written by EigenTracker" in answer["error"]
    bf.save(path, method.init(bf.random_basis(9, 3, rng=0)))
    for answer in ranks.run("differing_start", what="", path=str(path)):
        assert "'n': 9" in answer["error"]


def test_killed_ranks_are_restarted_and_nothing_is_lost(ranks, tmp_path):
    steps, every, rng = 120, 10, np.random.default_rng()
    expected = ranks.results("uninterrupted", steps=steps)
    found = run_through_kills(
        tmp_path, kills=1, steps=steps, every=every, pause=0.0, rng=rng, bound=180.0
    )
    assert found.code == 0, found.output
    assert found.results == expected
    assert len(set(expected)) == 1
    assert found.made == steps + sum(found.redone)
    assert max(found.redone, default=0) <= every


# Last, for they leave fewer ranks behind.
@pytest.mark.parametrize("how", ["raises", "dies", "hangs"])
def test_a_lost_rank_stops_the_others_within_the_timeout(ranks, how):
    left, _ = ranks.run("lost", how=how, timeout=1.5, bound=6.0)
    assert "got no answer" in left["error"]
