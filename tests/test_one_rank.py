"""Spread operators in a process group of one: what they compute and refuse, in this process."""

import itertools
from datetime import timedelta

import numpy as np
import pytest
from scipy import sparse

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this build of torch has no gloo", allow_module_level=True)

import bracketflow as bf  # noqa: E402
from bracketflow import distributed as bd  # noqa: E402
from bracketflow.distributed import alarm, ranks  # noqa: E402
from bracketflow.distributed.covariance import ShardedCovariance  # noqa: E402
from bracketflow.distributed.message import Tail, refuse_different_bases  # noqa: E402
from bracketflow.streams import Moments, covariance, second_moment  # noqa: E402
from cases import symmetric  # noqa: E402

N, K = 6, 2
LIBRARIES = [np.asarray, torch.from_numpy]
PRECISIONS = [np.float64, np.float32]


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group(
            "gloo",
            init_method=f"file://{tmp_path_factory.mktemp('group') / 'store'}",
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=30),
        )
        yield
        dist.destroy_process_group()


@pytest.fixture
def rows(rng):
    return rng.standard_normal((40, N)) * np.arange(N, 0, -1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_products_are_those_of_the_part(library, precision, rows, rng):
    part = library(rows.astype(precision))
    block = library(bf.random_basis(N, K, rng=rng).astype(precision))
    shared, plain = bd.ShardedRows(part), bf.gram(part)
    assert np.isnan(shared.trace)
    image = shared @ block
    assert type(image) is type(block)
    assert image.dtype == block.dtype
    assert np.allclose(image, plain @ block, rtol=8 * np.finfo(precision).eps)
    assert shared.weight == 40
    assert shared.trace == pytest.approx(float((rows**2).sum() / 40), rel=1e-5)


def test_sums_are_not_divided_by_the_weight(rows, rng):
    block = bf.random_basis(N, K, rng=rng)
    part = bf.gram(rows)
    total = bd.ShardedOperator(part, reduce="sum")
    assert np.array_equal(total @ block, part @ block)
    assert np.allclose(bd.ShardedOperator(part) @ block, part @ block)
    assert "ShardedOperator(n=6, rank 0)" in repr(total)
    with pytest.raises(ValueError, match='reduce must be "mean" or "sum", got \'median\''):
        bd.ShardedOperator(part, reduce="median")


def test_the_weight_can_be_asked_for_before_any_product(rows):
    shared = bd.ShardedRows(rows)
    assert shared.weight == 40
    derived = bf.shifted(shared, 3.0)
    assert derived.weight == 40
    assert "derived from ShardedRows(n=6, rank 0)" in repr(derived)
    assert derived.derived(weight=2).weight == 2
    block = np.eye(N)[:, :K]
    assert np.allclose(derived.derived() @ block, bf.gram(rows) @ block + 3 * block)


def test_nothing_to_add_is_refused(rng):
    block = bf.random_basis(N, K, rng=rng)
    with pytest.raises(bf.ObservationError, match="no rank has anything to add") as refused:
        bd.ShardedOperator(None) @ block
    assert refused.value.reason == "empty"
    assert np.array_equal(bd.ShardedOperator(None, reduce="sum") @ block, 0 * block)


def test_a_failed_product_is_refused_and_names_its_cause(rng):
    def broken(block):
        raise ZeroDivisionError("the sensor is gone")

    with pytest.raises(
        bf.ObservationError,
        match="the product failed on rank 0: ZeroDivisionError: the sensor is gone",
    ):
        bd.ShardedOperator(broken) @ bf.random_basis(N, K, rng=rng)


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy, sparse.csr_array])
def test_a_stream_of_rows_is_tracked_like_the_plain_one(form, rows):
    parts = [form(rows[i : i + 10]) for i in range(0, 40, 10)]
    shared = bf.track(bd.ShardedRows.stream(parts), K, rng=0)
    plain = bf.track(map(bf.gram, parts), K, rng=0)
    assert np.allclose(shared.eigenvectors, plain.eigenvectors, atol=1e-10)
    assert type(shared.eigenvectors) is type(plain.eigenvectors)


def test_a_stream_of_dask_chunks_is_tracked_like_the_plain_one(rows):
    dask = pytest.importorskip("dask.array")
    chunked = dask.from_array(rows, chunks=(10, N))
    assert np.array_equal(bd.own_rows(chunked).compute(scheduler="synchronous"), rows)
    assert np.array_equal(bd.own_rows(rows), rows)
    shared = bf.track(bd.ShardedRows.stream(chunked), K, rng=0)
    plain = bf.track((bf.gram(rows[i : i + 10]) for i in range(0, 40, 10)), K, rng=0)
    assert np.allclose(shared.eigenvectors, plain.eigenvectors, atol=1e-10)
    with pytest.raises(ValueError, match=r"rows must be a 2-D Dask array, got shape \(40,\)"):
        next(bd.ShardedRows.stream(chunked[:, 0])) @ np.eye(N)


def test_batches_without_rows_know_their_width(rows):
    for part in (rows[:0], torch.from_numpy(rows[:0])):
        empty = bd.ShardedRows(part)
        assert empty.n == N
        assert empty.weight == 0
        assert type(empty.like) is type(part)
    with pytest.raises(
        ValueError, match=r"local_rows must be rows \(b, n\), b ≥ 0, got shape \(6,"
    ):
        bd.ShardedRows([1.0] * N)


def test_a_stream_of_nothing_ends_at_once():
    assert list(bd.ShardedRows.stream([])) == []


def test_what_is_no_operator_is_a_bad_observation_of_the_stream(rows):
    good = symmetric(np.random.default_rng(0), N)
    stream = bd.ShardedOperator.stream([good, "no operator", good])
    result = bf.track(stream, K, on_bad="skip", rng=0)
    assert [bad.step for bad in result.bad] == [1]
    assert "raised" in result.bad[0].reason
    assert result.state.steps == 2


def test_a_stream_that_raises_is_a_bad_observation_and_its_end(rows):
    def failing():
        yield rows[:10]
        raise OSError("the disk is gone")

    result = bf.track(bd.ShardedRows.stream(failing()), K, on_bad="skip", rng=0)
    assert result.state.steps == 1
    assert len(result.bad) == 1


def test_methods_over_ranks_step_like_their_own(rng):
    method, operator = bf.EigenTracker(K), symmetric(rng, N)
    over = bd.OverRanks(method)
    basis = bf.random_basis(N, K, rng=rng)
    (mine, _), (plain, _) = (m.step(operator, m.init(basis)) for m in (over, method))
    assert np.allclose(mine.basis, plain.basis)
    assert over.k == K  # what it does not have itself is the method's
    with pytest.raises(AttributeError, match="nothing"):
        _ = over.nothing


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_checkpoint_is_the_start_where_there_is_one(library, rng, tmp_path):
    method = bf.BrockettFlow((2, 1))
    basis = library(bf.random_basis(N, K, rng=rng))
    path = tmp_path / "checkpoint"
    assert bd.start(method, basis).steps == 0
    begun = bd.start(method, basis, checkpoint=path)
    assert np.array_equal(begun.basis, basis)
    operator = library(symmetric(rng, N))
    monitor = bd.on_first_rank(bf.Checkpoint(path, every=2, method=method))
    bf.run(method, itertools.repeat(operator, 5), begun, monitors=[monitor])
    assert bd.start(method, basis, checkpoint=path).steps == 4
    with pytest.raises(ValueError, match=r"checkpoint: written by BrockettFlow.*use that one"):
        bd.start(bf.BrockettFlow((3, 1)), basis, checkpoint=path)
    with pytest.raises(ValueError, match=r"checkpoint: its basis is .*'n': 6.*'n': 7"):
        bd.start(method, library(bf.random_basis(7, K, rng=rng)), checkpoint=path)
    with pytest.raises(ValueError, match=r"checkpoint: .* cannot be read: .*irectory"):
        bd.start(method, basis, checkpoint=tmp_path)


def test_several_monitors_run_on_the_first_rank(rng):
    seen = []
    monitor = bd.on_first_rank([lambda s, p: seen.append("a"), lambda s, p: seen.append("b")])
    monitor(None, None)
    assert seen == ["a", "b"]


def test_a_lost_rank_is_a_group_error():
    def collective(*args, group):
        raise RuntimeError("connection closed by peer")

    with pytest.raises(bd.GroupError, match=r"rank 0 of 1 got no answer: .*closed by peer"):
        ranks.together(collective, group=ranks.process_group())


def shy(block):
    raise ZeroDivisionError("the sensor is gone")


def test_a_failed_product_on_a_sharded_basis_is_refused(rng):
    method = bf.BrockettFlow((2, 1))
    with bd.sharded_basis(N):
        begin = method.init(bf.random_basis(N, K, rng=rng))
        result = bf.run(method, [shy, "none", symmetric(rng, N)], begin, on_bad="skip")
    assert [bad.reason.partition(" failed on rank 0: ")[2] for bad in result.bad] == [
        "ZeroDivisionError: the sensor is gone",
        "ObservationError: wrong type observation: operator must be an array, a sparse matrix, a "
        "LinearOperator, a callable or an object with `shape` and `@`, got str",
    ]
    assert result.state.steps == 1


def test_without_a_store_a_failed_product_ends_the_run(rng, monkeypatch):
    monkeypatch.setattr(alarm, "_store_of", lambda group: None)
    method = bf.BrockettFlow((2, 1))
    with bd.sharded_basis(N):
        state = method.init(bf.random_basis(N, K, rng=rng))
        with pytest.raises(bd.GroupError, match=r"failed on rank 0, and .* cannot be told"):
            bf.run(method, [shy], state, on_bad="skip")


def test_arrays_of_no_type_stay_unknown():
    group = ranks.process_group()
    assert ranks.array_type(None) == ("", "")
    assert ranks.empty_array("", "", group) is None
    assert ranks.empty_array("float32", "torch", group).dtype == torch.float32
    assert ranks.empty_array("float32", "NumPy", group).dtype == np.float32


def test_marks_that_differ_are_refused():
    refuse_different_bases(Tail(mark=3.0, square=9.0), ranks.process_group())
    with pytest.raises(bd.GroupError, match="the ranks hold different bases"):
        refuse_different_bases(Tail(mark=3.0, square=8.0), ranks.process_group())


@pytest.mark.parametrize("centre", [True, False])
@pytest.mark.parametrize("form", ["dense", "sparse", "single"])
def test_covariance_over_ranks_is_that_of_streams(form, centre, rng):
    """Around a mean that is far away, that moves, and that is known only after the product."""
    precision = np.float32 if form == "single" else np.float64
    block = bf.random_basis(N, K, rng=rng).astype(precision)
    seen = told = Moments()
    far = 3.0 if form == "sparse" else 30.0  # sparse rows are squared with their mean in them
    near = far + rng.standard_normal(N)
    for offset in (far, far + 1, far - 10):
        rows = (rng.standard_normal((12, N)) + offset).astype(precision)
        rows = sparse.csr_array(rows) if form == "sparse" else rows
        plain = (covariance if centre else second_moment)(rows, seen)
        shared = ShardedCovariance(rows, told, near if centre else None)
        image, expected = shared.operator @ block, plain.operator @ block
        seen, told = plain.moments, shared.moments
        slack = 1000 * float(np.finfo(precision).eps)
        assert np.abs(image - expected).max() <= slack * np.abs(expected).max()
        assert image.dtype == precision
        assert shared.total == pytest.approx(plain.total, rel=slack)
        assert shared.operator.weight == 12
        assert told.rows == seen.rows
        if centre:
            assert told.mean == pytest.approx(seen.mean, rel=slack)
            assert told.mean.dtype == np.float64
