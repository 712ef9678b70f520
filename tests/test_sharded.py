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
from launch import Ranks  # noqa: E402

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
            assert result["difference"] <= 1e-12


def test_a_part_of_zeros_has_no_level_of_its_own(ranks):
    assert max(ranks.results("sharded:zero_part")) <= 25 * np.finfo(float).eps * 1e6


def test_jumps_are_found_together(ranks):
    first, second = ranks.results("sharded:jumps")
    assert first == second
    assert first["found"] == first["expected"]
    assert [15 + 2, "jump"] in first["found"]
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
def test_three_small_messages_a_step(compared, name):
    result = compared[name][0]
    counts = list(result["messages"])
    # The one step at which a tracker finds that the signal moves sets up its mean.
    setting_up = counts.pop(1) if name in TRACKERS else 0
    assert max(counts) <= 3
    assert setting_up <= 8
    q = 4 * 4 + 1
    assert max(result["bytes"]) <= 8 * 8 * q * q  # nothing as long as a column travels with q


def test_messages_while_the_signal_stands_still(ranks):
    result = ranks.results("sharded:compare", name="tracker", noise=0.0)[0]
    assert max(result["messages"]) <= 3
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
    assert names == [MANIFEST, "shard-13-0-of-2", "shard-13-1-of-2"]


def without_a_shard(folder):
    (folder / "shard-10-1-of-2").unlink()


def damaged(folder):
    path = folder / "shard-10-1-of-2"
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


def swapped(folder):
    first, second = (folder / f"shard-10-{rank}-of-2" for rank in range(2))
    first.write_bytes(second.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (without_a_shard, "shard-10-1-of-2"),
        (damaged, "shard-10-1-of-2"),
        (without_manifest, "there is no such manifest"),
        (unreadable, "is no manifest of shards"),
        (changed(n=500), "with 500 rows, but this one has 501"),
        (changed(shards=[["shard-10-0-of-2", 0, 250]]), "hold 250 of 501 rows"),
        (changed(shards=[["../shard-10-0-of-2", 0, 501]]), "do not follow each other"),
        (swapped, "but the manifest says 250"),
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


# Bad input --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("n", "n is 502 on rank 1 but 501 on rank 0"),
        ("square", "must have k < n columns"),
        ("ensemble", "must be (n, k), got shape (2, 501, 4)"),
        ("whole", "basis has 501 rows"),
        ("outside", "inside `with sharded_basis(n)`"),
        ("start", "use method.init(bf.random_basis(n, k)) or load_shards"),
        ("rows", "n is 251 on rank 1 but 250 on rank 0"),
        ("few", "needs 96 rows a rank for k = 4, got 40"),
    ],
)
def test_bad_input_is_told_to_every_rank(ranks, what, told):
    for answer in ranks.run("sharded:wrong", what=what):
        assert told in answer["error"], answer


def test_no_process_group():
    with pytest.raises(ValueError, match="torchrun"), bd.sharded_basis(10):
        pass


def test_one_machine_sums_nothing():
    basis = bf.random_basis(7, 2, rng=0)
    assert bd.over_rows(basis) is basis
