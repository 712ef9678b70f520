"""What is wrong with an argument, a record or a file is said, with its value and the remedy."""

import os
import re

import numpy as np
import pytest
import torch
from scipy import sparse

import bracketflow as bf
from bracketflow import checkpoint, core, streams
from bracketflow.certificates import certify_record, stationary_deviation
from bracketflow.core import State
from bracketflow.observation import advance, observe
from bracketflow.oracles import as_observation
from cases import noise, symmetric

# Records and noise ------------------------------------------------------------------------------


@pytest.fixture
def record(rng):
    recorder = bf.Recorder()
    bf.run(
        bf.BrockettFlow((2, 1)),
        [symmetric(rng, 5)] * 3,
        bf.BrockettFlow((2, 1)).init(bf.random_basis(5, 2, rng=rng)),
        monitors=[recorder],
    )
    return recorder.records[-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": None}, "something else than numbers"),
        ({"n": float("inf")}, "something else than numbers"),
        ({"residuals": {}}, "something else than numbers"),
        ({"residuals": [1.0]}, r"\(1,\) residuals, \(2,\) eigenvalues, n = 5"),
        ({"n": 1}, "does not fit together: .* n = 1"),
        ({"spread": [1.0, 2.0]}, "does not fit together"),
        ({"residuals": [1.0, float("nan")]}, "not finite: nothing is proved by it"),
        ({"background": float("inf"), "eigenvalues": [1.0, 0.0]}, "not finite"),
    ],
)
def test_records_that_prove_nothing_are_refused(record, change, message):
    assert certify_record(record).eigenvalues.shape == (2,)
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match=message):
        certify_record({**record, **change})


def test_the_ball_is_where_the_flow_settles(rng):
    """√f of a long noisy run, averaged, is what the noise of its own probes predicts."""
    n, step = 6, 0.01
    signal, method = symmetric(rng, n), bf.DoubleBracketFlow(step)
    truth = np.linalg.eigh(signal)[1][:, ::-1]
    recorder = bf.Recorder(measures={"true": lambda state, probe: bf.lyapunov(state.basis, signal)})
    probes = []
    bf.run(
        method,
        (signal + noise(rng, n, 0.3) for _ in range(2500)),
        method.init(np.ascontiguousarray(truth)),
        monitors=[recorder, lambda state, probe: probes.append(probe)],
    )
    settled = np.sqrt(np.mean(recorder.column("true")[500:]))
    # The slowest pair forgets in 1/η = 100 steps: about 20 · 15 independent draws of f.
    assert bf.estimate_noise(probes).ball(step) == pytest.approx(settled, rel=0.2)
    with pytest.raises(ValueError, match=r"step = 1\.0 is beyond the edge of stability"):
        bf.estimate_noise(probes[:2]).ball(1.0)
    assert stationary_deviation(np.array([2.0, 1.0]), 1e-9, 1.0) < 1e-4


def test_coverage_is_a_probability(rng):
    method = bf.EigenTracker(2)
    state = method.init(bf.random_basis(5, 2, rng=rng))
    for coverage in (0, 1, -0.5, float("nan")):
        with pytest.raises(ValueError, match=f"coverage must be between 0 and 1, got {coverage}"):
            method.read(state, coverage)


def test_a_status_prints_its_name():
    assert f"{core.Status.CONVERGED}" == "CONVERGED"


# Operators --------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_bad_members_of_an_ensemble_are_named(library, rng):
    basis = library(bf.random_basis(4, 2, rng=rng, ensemble=(3,)))
    good = symmetric(rng, 4, ensemble=(3,))
    bad = good.copy()
    bad[1, 0, 0] = np.nan
    with pytest.raises(bf.ObservationError, match=r"ensemble members \[\(1,\)\]") as refused:
        bf.lyapunov(basis, library(bad))
    assert refused.value.reason == "non-finite"
    skewed = good.copy()
    skewed[2, 0, 1] += 5.0
    with pytest.raises(bf.ObservationError, match=r"not symmetric.*\[\(2,\)\]") as refused:
        bf.lyapunov(basis, library(skewed))
    assert refused.value.members == ((2,),)


def test_a_move_that_overflows_is_refused_with_its_members(rng):
    basis = bf.random_basis(4, 2, rng=rng, ensemble=(2,))
    state = State(basis)
    probe = observe(symmetric(rng, 4, ensemble=(2,)), state)
    moved = basis * np.array([1.0, 1e200])[:, None, None]
    with np.errstate(over="ignore"), pytest.raises(bf.ObservationError, match="overflows") as why:
        advance(state, probe, moved)
    assert why.value.members == ((1,),)


def test_integer_and_boolean_tensors_become_double():
    assert bf.as_operator(torch.eye(3, dtype=torch.int64)).like.dtype == torch.float64
    assert bf.check_symmetric(torch.eye(3, dtype=torch.bool), like=torch.empty(0).double())
    with pytest.raises(TypeError, match=r"must be real, got dtype torch\.complex64"):
        bf.as_operator(torch.eye(3, dtype=torch.complex64))


def test_symmetry_of_a_callable_needs_its_size(rng):
    c = symmetric(rng, 4)
    assert bf.check_symmetric(lambda block: c @ block, 4, rng=rng)
    with pytest.raises(ValueError, match=re.escape("check_symmetric(op, n)")):
        bf.check_symmetric(lambda block: c @ block)


def test_a_weight_that_is_no_number_counts_one_and_no_memory_is_no_observation():
    class Layer:
        weight = object()
        shape = (2, 2)

        def __matmul__(self, block):
            return block

    assert bf.as_operator(Layer()).weight == 1.0

    class Exhausted:
        @property
        def shape(self):
            raise MemoryError

    with pytest.raises(MemoryError):
        as_observation(Exhausted())
    with pytest.raises(bf.ObservationError, match="wrong type"):
        as_observation("x")


# Rows -------------------------------------------------------------------------------------------


def test_sources_that_hold_no_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"got shape \(3,\): a single column is array\[:, None\]"):
        streams.batches(np.ones(3))
    with pytest.raises(ValueError, match=r"batches \(b, n\) or rows, got the number 1\.0"):
        list(streams.batches([1.0, 2.0]))
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"a\.npy: columns can be named in CSV and Parquet files"):
        streams.batches(tmp_path / "a.npy", columns=["x"])
    np.save(tmp_path / "none.npy", np.ones((0, 2)))
    empty = streams.batches(tmp_path / "none.npy")
    assert empty.total == 0
    assert list(empty) == []


def test_objects_are_converted_or_named():
    assert np.array_equal(next(streams.batches([np.array([[1, 2.5]], dtype=object)])), [[1.0, 2.5]])
    mixed = np.array([[1, 2], [3, "x"]], dtype=object)
    with pytest.raises(ValueError, match="row 2, column 2: 'x' is not a number"):
        next(streams.batches([mixed]))


def test_sparse_blocks_are_joined_and_bad_rows_left_out_altogether(rng):
    blocks = [sparse.random_array((3, 4), density=0.5, rng=rng, format="csr") for _ in range(3)]
    (joined,) = streams.batches(blocks, 9)
    assert sparse.issparse(joined)
    assert np.array_equal(joined.toarray(), sparse.vstack(blocks).toarray())
    found = streams.batches([np.full((2, 3), np.nan), np.ones((1, 3))], on_bad="skip")
    assert [batch.tolist() for batch in found] == [[[1.0, 1.0, 1.0]]]
    assert found.refused == 2


def test_a_missing_cell_is_a_bad_row(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,2\n,4\n")
    found = streams.batches(tmp_path / "a.csv", on_bad="skip")
    assert [batch.tolist() for batch in found] == [[[1.0, 2.0]]]


def test_tables_and_containers_name_what_they_lack(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"x": [1.0], "y": [2.0]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"a\.parquet: no column 'z': choose from x, y"):
        streams.batches(tmp_path / "a.parquet", columns=["x", "z"])
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["u"], file["group/v"] = np.ones((2, 2)), np.ones((2, 2))
    with pytest.raises(ValueError, match=r"a\.h5: holds 2 arrays: choose the key from group/v, u"):
        streams.batches(tmp_path / "a.h5")
    os.remove(tmp_path / "a.h5")  # and it is not held open


def test_a_parquet_file_damaged_further_down_says_after_which_row(tmp_path, rng):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    table = arrow.table({"x": rng.standard_normal(20000)})
    parquet.write_table(table, path, row_group_size=10000, compression="gzip", use_dictionary=False)
    raw = bytearray(path.read_bytes())
    middle = int(len(raw) * 0.75)
    raw[middle : middle + 400] = bytes(400)
    path.write_bytes(raw)
    rows = streams.batches(path, 1000)
    with pytest.raises(ValueError, match=r"a\.parquet: cannot be read after row \d+"):
        list(rows)


# Checkpoints ------------------------------------------------------------------------------------


@pytest.fixture
def state(rng):
    return State(bf.random_basis(4, 2, rng=rng))


def test_a_state_of_too_many_parts_is_refused(state, tmp_path):
    with pytest.raises(ValueError, match=r"state has too many parts: \d+ bytes to describe them"):
        bf.save(tmp_path / "a", state._replace(memory=("x" * 1000,) * 1100))
    assert list(tmp_path.iterdir()) == []


def test_bases_of_whole_numbers_are_no_states(tmp_path):
    bf.save(tmp_path / "a", State(np.eye(3, dtype=np.int64)))
    with pytest.raises(ValueError, match="its basis is of int64"):
        bf.load(tmp_path / "a")


def test_configurations_that_are_no_method_are_refused(state, tmp_path):
    bf.save(tmp_path / "a", state, method=bf.Constant(0.5))
    with pytest.raises(ValueError, match="Constant is not a method"):
        bf.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"record": ["bracketflow.flows:Constant", {}]}, "is not a record"),
        ({"configuration": ["bracketflow.core:State", {}]}, "is not a configuration"),
        ({"function": "bracketflow.geometry:np"}, "is not defined there|not part of this version"),
        ({"function": "bracketflow.geometry:namespace"}, "is not defined there"),
        ({"function": "bracketflow.flows:Constant"}, "is not a retraction"),
    ],
)
def test_names_of_other_kinds_are_refused(node, message):
    with pytest.raises((TypeError, ValueError), match=message):
        checkpoint._Decoder([], None)(node)


def test_random_states_beside_their_memory_are_refused(tmp_path, state):
    arrays = []
    kind, tree = checkpoint._encode_rng(np.random.Generator(np.random.MT19937(0)), arrays)
    decoder = checkpoint._Decoder(arrays, None)
    assert decoder.rng([kind, tree]).bit_generator.state["bit_generator"] == "MT19937"
    tree["dict"]["state"]["dict"]["pos"] = 1 << 20
    with pytest.raises(ValueError, match="a random state of no generator"):
        decoder.rng([kind, tree])


def test_a_file_that_shrinks_while_it_is_read_is_damaged(tmp_path, state):
    """Its size promises the arrays, the bytes then do not come."""

    class Shrunk:
        def __init__(self, file):
            self.file, self.reads = file, 0

        def __enter__(self):
            return self

        def __exit__(self, *why):
            self.file.close()

        def fileno(self):
            return self.file.fileno()

        def read(self, size):
            self.reads += 1
            return self.file.read(size) if self.reads <= 2 else b""

    bf.save(tmp_path / "a", state)
    with (
        Shrunk((tmp_path / "a").open("rb")) as file,
        pytest.raises(ValueError, match="damaged, its checksum does not match"),
    ):
        checkpoint._contents(tmp_path / "a", file)
