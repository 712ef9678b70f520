"""A basis whose rows are spread over ranks, in real processes on the loopback address."""

import json
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

FLOWS = ("weighted", "grassmann", "qr", "cayley", "neumann")
TRACKERS = ("tracker", "fading")
MANIFEST = "manifest.json"


@pytest.fixture(scope="module")
def ranks():
    pool = Ranks()
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def compared(ranks):
    """Each method sharded beside one process, once for all tests."""
    return {name: ranks.results("sharded:compare", name=name) for name in FLOWS + TRACKERS}


# The same as one process ------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOWS + TRACKERS)
def test_two_ranks_do_what_one_process_does(compared, name):
    first, second = compared[name]
    assert first["difference"] <= 1e-12
    assert first["residuals"] <= 1e-12
    assert first["defect"] <= 1e-14
    assert first["decisions"] == second["decisions"]
    assert {first["rows"], second["rows"]} == {250, 251}


def test_three_ranks_do_what_one_process_does(ranks):
    for result in ranks.results("sharded:compare", ranks=3, name="tracker"):
        assert result["difference"] <= 1e-12
        assert result["rows"] == 167


@pytest.mark.parametrize(("form", "dtype"), [("torch", np.float64), ("float32", np.float32)])
def test_other_arrays(ranks, form, dtype):
    for name in ("weighted", "tracker"):
        for result in ranks.results("sharded:compare", name=name, form=form, steps=20):
            assert result["difference"] <= 4500 * np.finfo(dtype).eps  # 1e-12 in double precision
            assert result["kept"]


def test_ranks_with_fewer_rows_than_columns(ranks):
    for name in ("qr", "tracker"):
        for result in ranks.results("sharded:compare", ranks=3, name=name, n=9, steps=12):
            assert result["rows"] == 3
            # One process keeps all columns of so few rows, ranks a block: both find the same.
            assert result["difference"] <= (1e-12 if name == "qr" else 0.1)
            assert result["defect"] <= 1e-12


def test_a_part_of_zeros_has_no_level_of_its_own(ranks):
    assert max(ranks.results("sharded:zero_part")) <= 25 * np.finfo(float).eps * 1e6


def test_jumps_are_found_together(ranks):
    first, second = ranks.results("sharded:jumps")
    assert first == second
    assert first["found"] == first["expected"]
    # A block that is still finding the new signal may start anew once more.
    found = [step for step, kind in first["found"] if kind == "jump"]
    assert 15 < found[0] < 15 + 8
    assert len(found) <= 2
    assert first["difference"] <= 1e-12


def test_run_stop_rules_bad_observations_and_decompose(ranks):
    first, second = ranks.results("sharded:driven")
    assert first == second
    assert first["status"] == first["found"] == "CONVERGED"
    assert first["bad"] == ["non-finite"]
    assert first["eigenvalues"] <= 1e-11
    assert first["eigenvectors"] <= 1e-12


def test_rows_of_data_spread_like_the_basis(ranks):
    for result in ranks.results("sharded:data"):
        assert result["difference"] <= 1e-12
        assert result["errors"] <= 1e-12


@pytest.mark.parametrize("name", ["weighted", "tracker"])
def test_background_changes_nothing_beyond_the_rounding_of_the_products(ranks, name):
    for result in ranks.results("sharded:invariance", name=name, steps=60):
        # The bound that one machine is held to; see test_contracts.
        assert result["worst"] <= 25 * result["unit"]


# Messages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FLOWS + TRACKERS)
def test_few_small_messages_a_step(compared, name):
    result = compared[name][0]
    # Of a tracker: the level, the product, two when the columns turn, and two where they have to
    # be made orthonormal, as in the first observations.
    assert max(result["messages"]) <= (3 if name in FLOWS else 5)
    q = 6 * 4 + 1
    assert max(result["bytes"]) <= 8 * 8 * q * q  # whatever n


def test_messages_while_the_signal_stands_still(ranks):
    result = ranks.results("sharded:compare", name="tracker", noise=0.0)[0]
    assert max(result["messages"]) <= 5
    assert result["difference"] <= 1e-12


# Checkpoints ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(ranks, tmp_path_factory):
    """A checkpoint of two ranks at step 10, and the end of the run it was taken from."""
    folder = tmp_path_factory.mktemp("shards")
    results = ranks.results("sharded:resumed", folder=str(folder), last=20, save_at=10)
    return folder, results[0]


def copied(folder, path):
    path.mkdir()
    for file in folder.iterdir():
        (path / file.name).write_bytes(file.read_bytes())
    return path


def test_resuming_is_bit_for_bit_the_uninterrupted_run(ranks, saved):
    folder, whole = saved
    for result in ranks.results("sharded:resumed", folder=str(folder), first=10, last=20):
        assert result["bits"] == whole["bits"]


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_ranks_resumes(ranks, saved, count):
    folder, whole = saved
    results = ranks.results("sharded:resumed", folder=str(folder), first=10, last=20, ranks=count)
    unit = np.finfo(float).eps * 1e4  # the background of the scene
    assert np.abs(np.array(results[0]["basis"]) - whole["basis"]).max() <= 25 * unit


def test_a_span_is_resumed_too(ranks, tmp_path):
    args = {"folder": str(tmp_path), "noise": 0.0}
    whole = ranks.results("sharded:resumed", last=12, save_at=6, **args)[0]
    again = ranks.results("sharded:resumed", first=6, last=12, **args)[0]
    assert again["bits"] == whole["bits"]


def test_a_later_checkpoint_replaces_the_earlier_one(ranks, saved, tmp_path):
    folder = copied(saved[0], tmp_path / "again")
    ranks.results("sharded:resumed", folder=str(folder), first=10, last=14, save_at=13)
    names = sorted(file.name for file in folder.iterdir())
    assert names == [MANIFEST, "shard-2-0-of-2", "shard-2-1-of-2"]


def test_a_checkpoint_of_the_same_step_touches_no_file_of_the_one_before(ranks, saved, tmp_path):
    folder = copied(saved[0], tmp_path / "same")
    ranks.results("sharded:resumed", folder=str(folder), last=10, save_at=10)
    names = sorted(file.name for file in folder.iterdir())
    assert names == [MANIFEST, "shard-2-0-of-2", "shard-2-1-of-2"]


def test_a_checkpoint_that_one_rank_cannot_write_is_told_to_all(ranks, saved, tmp_path):
    folder, whole = copied(saved[0], tmp_path / "full"), saved[1]
    for answer in ranks.run("sharded:no_room", folder=str(folder)):
        assert answer["error"] == "ValueError: checkpoint: rank 1: no space left on device"
    for result in ranks.results("sharded:resumed", folder=str(folder), first=10, last=20):
        assert result["bits"] == whole["bits"]


def without_a_shard(folder):
    (folder / "shard-1-1-of-2").unlink()


def damaged(folder):
    path = folder / "shard-1-1-of-2"
    path.write_bytes(path.read_bytes()[:-40])


def without_manifest(folder):
    (folder / MANIFEST).unlink()


def unreadable(folder):
    (folder / MANIFEST).write_text("{")


def changed(**changes):
    def change(folder):
        path = folder / MANIFEST
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


def cut_elsewhere(folder):
    path = folder / MANIFEST
    held = json.loads(path.read_text())
    (first, _, rows, mark), (second, begin, others, other) = held["shards"]
    held["shards"] = [[first, 0, rows - 1, mark], [second, begin - 1, others + 1, other]]
    path.write_text(json.dumps(held))


def swapped(folder):
    first, second = (folder / f"shard-1-{rank}-of-2" for rank in range(2))
    first.write_bytes(second.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (without_a_shard, "shard-1-1-of-2"),
        (damaged, "shard-1-1-of-2"),
        (without_manifest, "there is no such manifest"),
        (unreadable, "is no manifest of shards"),
        (changed(n=500), "with 500 rows, but this one has 501"),
        (changed(shards=[["shard-1-0-of-2", 0, 250, ""]]), "hold 250 of 501 rows"),
        (changed(shards=[["../shard-1-0-of-2", 0, 501, ""]]), "do not follow each other"),
        (changed(shards=[["shard-1-0-of-2", 0, 501]]), "is no manifest of shards"),
        (cut_elsewhere, "has 250 rows, but the manifest says 249"),
        (swapped, "is not the file that the manifest names"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_told_to_every_rank(ranks, saved, tmp_path, spoil, told):
    folder = copied(saved[0], tmp_path / "spoilt")
    spoil(folder)
    answers = ranks.run("sharded:loaded", folder=str(folder))
    assert all(told in answer["error"] for answer in answers), answers
    assert all(answer["error"].startswith("ValueError: checkpoint: rank") for answer in answers)


def test_another_basis_or_method_is_told_to_every_rank(ranks, saved):
    for answer in ranks.run("sharded:loaded", folder=str(saved[0]), n=400):
        assert "with 501 rows, but this one has 400" in answer["error"]
    for answer in ranks.run("sharded:loaded", folder=str(saved[0]), forget=0.5):
        assert "forget=0.5" in answer["error"]


def test_what_a_killed_writer_has_left_does_not_count(ranks, saved, tmp_path):
    folder, whole = copied(saved[0], tmp_path / "torn"), saved[1]
    torn = (folder / "shard-1-0-of-2").read_bytes()[:-100]
    for name in ("shard-2-0-of-2", "shard-2-1-of-3", ".shard-2-1-of-2.1.2.tmp"):
        (folder / name).write_bytes(torn)
    args = {"folder": str(folder), "first": 10, "last": 20, "save_at": 15}
    for result in ranks.results("sharded:resumed", **args):
        assert result["bits"] == whole["bits"]
    names = sorted(file.name for file in folder.iterdir())
    assert names == [MANIFEST, "shard-3-0-of-2", "shard-3-1-of-2"]


def test_killed_ranks_are_restarted_and_nothing_is_lost(ranks, tmp_path):
    steps, every, rng = 60, 5, np.random.default_rng()
    expected = ranks.results("sharded:continued", name="tracker", steps=steps)
    found = run_through_kills(
        tmp_path,
        kind="tracker",
        kills=2,
        steps=steps,
        every=every,
        pause=0.01,
        rng=rng,
        bound=180.0,
    )
    assert found.code == 0, found.output
    assert found.restarts >= 1
    assert found.results == [result["bits"] for result in expected]
    assert found.made == steps + sum(found.redone)
    assert max(found.redone, default=0) <= every


def test_any_number_of_ranks_goes_on_after_a_kill(ranks, tmp_path):
    steps, rng = 60, np.random.default_rng()
    args = {"name": "weighted", "steps": steps}
    whole = ranks.results("sharded:continued", **args)
    found = run_through_kills(
        tmp_path, kind="weighted", kills=1, restarts=0, steps=steps, every=5, pause=0.0, rng=rng,
        bound=180.0,
    )  # fmt: skip
    assert found.code != 0
    folder = str(tmp_path / "checkpoint")
    again = ranks.results("sharded:continued", folder=folder, **args)
    assert again[0]["begun"] > 0
    assert [result["bits"] for result in again] == [result["bits"] for result in whole]
    unit = np.finfo(float).eps * 1e4  # the background of the scene
    for count in (1, 3):
        result = ranks.results("sharded:continued", folder=folder, ranks=count, **args)[0]
        assert result["begun"] == again[0]["begun"]
        assert np.abs(np.array(result["basis"]) - whole[0]["basis"]).max() <= 25 * unit


# Failures of one rank ---------------------------------------------------------------------------

MOMENTS = ("before", "between", "after", "local", "shape", "no operator", "all")


@pytest.mark.parametrize(
    ("name", "count", "rank", "noise"),
    [("weighted", 2, 1, 1.0), ("tracker", 3, 0, 1.0), ("tracker", 2, 1, 0.0)],
)
def test_an_observation_that_fails_on_one_rank_is_skipped_by_all(ranks, name, count, rank, noise):
    args = {"name": name, "moments": MOMENTS, "rank": rank, "noise": noise}
    first, *others = ranks.results("sharded:failing", ranks=count, **args)
    assert all(other["bad"] == first["bad"] for other in others)
    assert first["same"]
    assert [step for step, _ in first["bad"]] == [8] * len(MOMENTS)
    culprit = f"raised observation: the product failed on rank {rank}: "
    assert all(reason.startswith(culprit) for _, reason in first["bad"][:-1])
    assert [reason.removeprefix(culprit).split(":")[0] for _, reason in first["bad"][:-1]] == [
        *["ZeroDivisionError"] * 4,
        *["ObservationError"] * 2,
    ]
    told = first["bad"][-1][1]
    assert told.count("KeyError") == count - 1
    assert f"rank {rank}: ZeroDivisionError: no luck" in told


def test_an_observation_that_fails_on_one_rank_stops_all(ranks):
    args = {"name": "tracker", "moments": ["before"], "on_bad": "raise"}
    for answer in ranks.run("sharded:failing", **args):
        assert "failed on rank 1: ZeroDivisionError: no luck" in answer["error"]


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("ends", "rank 1 has no more to do"),
        ("raises", "rank 1 raised ZeroDivisionError: outside of any product"),
        ("memory", "rank 1 raised MemoryError: 64 GB"),
        ("saves", "rank 1 raised ValueError: state: this process holds only its own rows"),
    ],
)
def test_a_rank_that_leaves_tells_the_others_why(ranks, how, told):
    first, _, last = ranks.results("sharded:leaving", how=how, ranks=3)
    assert first.startswith(f"GroupError: {told}")
    assert last.startswith(f"GroupError: {told}")


def test_a_probe_knows_that_its_rows_are_spread(ranks):
    for result in ranks.results("sharded:read_outside"):
        assert result["n"] == 501
        assert result["weighted"]
        assert result["tracker"]
        assert "compared where they were made" in result["refused"]


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("n", "n is 502 on rank 1 but 501 on rank 0"),
        ("square", "must have k < n columns"),
        ("ensemble", "must be (n, k), got shape (2, 501, 4)"),
        ("whole", "basis has 501 rows"),
        ("outside", "inside `with sharded_basis(n)`"),
        ("save", "save all of them with bracketflow.distributed.save_shards"),
        ("checkpoint", "save all of them with bracketflow.distributed.save_shards"),
        ("rows", "n is 251 on rank 1 but 250 on rank 0"),
        ("few", "needs 96 rows a rank for k = 4, got 40"),
    ],
)
def test_bad_input_is_told_to_every_rank(ranks, what, told):
    for answer in ranks.run("sharded:wrong", what=what):
        assert told in answer["error"], answer


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("k", "k is 5 on rank 1 but 4 on rank 0"),
        ("dtype", "dtype is 'float32' on rank 1 but 'float64' on rank 0"),
        ("method", "weights=(5.0, 3.0, 2.0, 1.0)"),
        ("steps", "steps is 3 on rank 1 but 0 on rank 0"),
        ("start", "weights=(6.0, 3.0, 2.0, 1.0)"),
    ],
)
def test_ranks_that_differ_are_told_so(ranks, what, told):
    for answer in ranks.run("sharded:differing", what=what):
        assert told in answer["error"], answer


def test_a_rank_that_hangs_stops_the_others_within_the_timeout(ranks):
    left, _ = ranks.run("sharded:leaving", how="hangs", timeout=1.5, bound=6.0)
    assert "GroupError: rank 0 of 2 got no answer" in left["result"]


def test_no_process_group():
    with pytest.raises(ValueError, match="torchrun"), bd.sharded_basis(10):
        pass


def test_one_machine_sums_nothing():
    basis = bf.random_basis(7, 2, rng=0)
    assert bd.over_rows(basis) is basis
