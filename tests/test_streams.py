"""Rows come out of every kind of source alike, once, in order; what is wrong is named."""

import io
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import bracketflow as bf
from bracketflow import streams
from bracketflow.streams import Moments, batches, covariance, covariances

ROWS, COLUMNS = 23, 4


@pytest.fixture
def rows(rng):
    return rng.standard_normal((ROWS, COLUMNS))


def as_npy(rows, path):
    np.save(path / "a.npy", rows)
    return path / "a.npy"


def as_fortran_npy(rows, path):
    np.save(path / "a.npy", np.asfortranarray(rows))
    return path / "a.npy"


def as_npz(rows, path):
    np.savez_compressed(path / "a.npz", rows)
    return path / "a.npz"


def as_fortran_npz(rows, path):
    np.savez(path / "a.npz", np.asfortranarray(rows))
    return path / "a.npz"


def as_csv(rows, path):
    np.savetxt(path / "a.csv", rows, delimiter=",", fmt="%.17g")
    return path / "a.csv"


def as_csv_with_header(rows, path):
    np.savetxt(path / "a.csv", rows, delimiter=";", header="a;b;c;d", comments="", fmt="%.17g")
    return path / "a.csv"


def as_text(rows, path):
    np.savetxt(path / "a.txt", rows, header="written by a machine", fmt="%.17g")
    return path / "a.txt"


def as_parquet(rows, path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table({f"c{i}": rows[:, i] for i in range(COLUMNS)})
    parquet.write_table(table, path / "a.parquet", row_group_size=5)
    return path / "a.parquet"


def as_hdf5(rows, path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "a.h5", "w") as file:
        file["group/rows"] = rows
    return path / "a.h5"


def as_memory_map(rows, path):
    return np.load(as_npy(rows, path), mmap_mode="r")


def as_list_of_rows(rows, path):
    return rows.tolist()


def as_uneven_batches(rows, path):
    return iter(np.split(rows, [1, 2, 9, 20]))


def as_loader(rows, path):
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.asarray(rows), torch.zeros(len(rows)))
    return torch.utils.data.DataLoader(data, batch_size=6)


def as_npy_stream(rows, path):
    return as_npy(rows, path).open("rb")


def as_sparse(rows, path):
    return sparse.csr_array(rows)


def as_csv_stream(rows, path):
    return io.BytesIO(as_csv(rows, path).read_bytes())


SOURCES = [
    as_npy,
    as_fortran_npy,
    as_npz,
    as_fortran_npz,
    as_csv,
    as_csv_with_header,
    as_text,
    as_parquet,
    as_hdf5,
    as_memory_map,
    as_list_of_rows,
    as_uneven_batches,
    as_loader,
    as_npy_stream,
    as_csv_stream,
]


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("start", [0, 7, 22, 23, 40])
def test_every_source_gives_the_same_batches(make, start, rows, tmp_path):
    source = make(rows, tmp_path)
    found = [np.asarray(b) for b in batches(source, 5, start=start)]
    expected = [rows[i : i + 5] for i in range(start, ROWS, 5)]
    assert [b.shape for b in found] == [b.shape for b in expected]
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
    assert all(b.flags.c_contiguous for b in found)
    if hasattr(source, "close"):
        source.close()


@pytest.mark.parametrize("make", [as_sparse, *(s for s in SOURCES if s is not as_loader)])
@pytest.mark.parametrize("on_bad", ["raise", "skip"])
@pytest.mark.parametrize("start", [0, 7, 22, 40])
def test_parts_of_every_source_are_its_batches(make, start, on_bad, rows, tmp_path):
    """What two processes read is together what one reads, batch by batch."""
    whole = [rows[i : i + 5] for i in range(start, ROWS, 5)]
    for part in (slice(0, 2), slice(2, 5)):
        source = make(rows, tmp_path)
        opened = batches(source, 5, start=start, part=part, on_bad=on_bad)
        found = [b.toarray() if sparse.issparse(b) else b for b in opened]
        expected = [batch[part] for batch in whole if len(batch[part])]
        assert [b.shape for b in found] == [b.shape for b in expected]
        assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))
        if hasattr(source, "close"):
            source.close()


@pytest.mark.parametrize("make", [as_npy, as_csv, as_npz, as_parquet, as_hdf5])
def test_bad_rows_of_a_part_are_named_by_their_number(make, rows, tmp_path):
    rows[18, 1] = np.nan
    source = make(rows, tmp_path)
    with pytest.raises(ValueError, match="row 19, column 2: nan"):
        list(batches(source, 5, start=5, part=slice(2, 5)))
    if make in (as_npy, as_csv, as_hdf5):  # other rows are not looked at
        list(batches(source, 5, start=5, part=slice(0, 2)))


@pytest.mark.parametrize("make", [as_npy, as_npz, as_parquet, as_hdf5, as_memory_map])
def test_total_is_known_where_the_source_knows_it(make, rows, tmp_path):
    assert batches(make(rows, tmp_path), 5).total == ROWS


def test_sparse_rows_stay_sparse(rng, tmp_path):
    matrix = sparse.random_array((40, 30), density=0.1, rng=rng, format="coo")
    sparse.save_npz(tmp_path / "a.npz", matrix)
    for source in (matrix, tmp_path / "a.npz"):
        found = list(batches(source, 16))
        assert all(sparse.issparse(b) for b in found)
        assert np.array_equal(sparse.vstack(found).toarray(), matrix.toarray())


def test_standard_input_is_a_dash(rows, tmp_path, monkeypatch):
    with as_npy(rows, tmp_path).open("rb") as file:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=file))
        assert np.array_equal(np.concatenate(list(batches("-", 5))), rows)


def test_batches_of_an_iterable_are_kept_unless_a_size_is_asked_for(rows):
    parts = np.split(rows, [1, 9])
    assert [len(b) for b in batches(parts)] == [1, 8, 14]
    assert [len(b) for b in batches(parts, 10)] == [10, 10, 3]
    assert [len(b) for b in batches(rows)] == [ROWS]


def test_single_precision_and_images_and_integers(rng):
    images = rng.integers(0, 255, (6, 3, 2), dtype=np.uint8)
    (found,) = batches(images)
    assert found.dtype == np.float64
    assert np.array_equal(found, images.reshape(6, 6))
    assert next(batches(images.astype(np.float32))).dtype == np.float32
    assert next(batches(images.astype(">f8"))).dtype == np.float64


def test_each_row_is_fetched_once_and_lazily(rows):
    class Watched:
        shape = rows.shape
        fetched = 0

        def __getitem__(self, part):
            self.fetched += len(rows[part])
            return rows[part]

    source = Watched()
    parts = batches(source, 5)
    assert source.fetched == 0
    next(parts)
    assert source.fetched == 5
    list(parts)
    assert source.fetched == ROWS


def test_columns_and_keys_are_chosen_by_name(rows, tmp_path):
    path = as_csv_with_header(rows, tmp_path)
    assert np.array_equal(next(batches(path, columns=["d", "a"])), rows[:, [3, 0]])
    assert np.array_equal(next(batches(as_parquet(rows, tmp_path), columns=["c1"])), rows[:, 1:2])
    np.savez(tmp_path / "two.npz", first=rows, second=2 * rows)
    assert np.array_equal(next(batches(tmp_path / "two.npz", key="second")), 2 * rows)
    with pytest.raises(ValueError, match=r"two\.npz: holds 2 arrays: .* first, second"):
        batches(tmp_path / "two.npz")
    with pytest.raises(ValueError, match=r"no column 'z': choose from a, b, c, d"):
        next(batches(path, columns=["z"]))


def test_text_in_other_columns_does_no_harm(tmp_path):
    (tmp_path / "a.csv").write_text("day,x,y\nMonday,1,2\nTuesday,3,4\n")
    assert np.array_equal(next(batches(tmp_path / "a.csv", columns=["x", "y"])), [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2\n3,abc\n", r"a\.csv: row 2 \(line 2\), column 2: 'abc' is not a number"),
        ("x,y\n\n# note\n1,2\nfoo,3\n", r"row 2 \(line 5\), column 1 \(x\): 'foo' is not a number"),
        ("1,2\n3\n", r"a\.csv: row 2 \(line 2\) has 1 columns where the first has 2"),
        ("1,2\n3,4,5\n", r"row 2 \(line 2\) has 3 columns where the first has 2"),
        ("1,2\n3,\n", r"a\.csv: row 2, column 2: nan is not a finite number"),
        ("1,inf\n", r"a\.csv: row 1, column 2: inf is not a finite number"),
        ("", r"a\.csv: holds no rows"),
        ("1,2\n\xff\n", r"a\.csv: line 2 is not text in UTF-8"),
    ],
)
def test_bad_text_is_named_with_row_and_column(text, message, tmp_path):
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        list(batches(tmp_path / "a.csv"))


def test_bad_cell_far_down_a_file_is_found(rng, tmp_path):
    lines = [f"{a},{b}\n" for a, b in rng.standard_normal((10_000, 2))]
    lines[9_000] = "1,oops\n"
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(lines))
    found = []
    with pytest.raises(ValueError, match=r"row 9001 \(line 9002\), column 2 \(y\)"):
        found.extend(batches(tmp_path / "a.csv", 1000))
    assert len(found) == 9


def test_truncated_and_foreign_files_are_named(rows, tmp_path):
    path = as_npy(rows, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-60])  # 7½ numbers short: 84½ of 92 are there
    with pytest.raises(ValueError, match=r"a\.npy: truncated.* 23 rows.* row 22, column 1"):
        batches(path)
    with pytest.raises(ValueError, match=r"truncated.* row 22, column 1"):
        list(batches(io.BytesIO(whole[:-60])))
    path.write_bytes(b"not numpy")
    with pytest.raises(ValueError, match=r"a\.npy: cannot be read as a \.npy file"):
        batches(path)
    for name in ("a.npz", "a.parquet", "a.h5"):
        (tmp_path / name).write_bytes(b"nonsense")
        with pytest.raises(ValueError, match=f"{name}: cannot be read"):
            batches(tmp_path / name)
    with pytest.raises(ValueError, match=r"gone\.npy: no such file"):
        batches(tmp_path / "gone.npy")
    with pytest.raises(ValueError, match=r"a\.xyz: unknown ending, expected one of \.npy"):
        batches(tmp_path / "a.xyz")


def test_arrays_that_are_not_rows_of_numbers_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3.0))
    with pytest.raises(
        ValueError, match=r"a\.npy: expected rows and columns .*\(3,\).*\[:, None\]"
    ):
        batches(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([["x", "y"]]))
    with pytest.raises(ValueError, match="expected rows and columns of real numbers"):
        batches(tmp_path / "a.npy")
    with pytest.raises(ValueError, match="expected real numbers, got complex128 in row 1"):
        list(batches(np.ones((2, 2), dtype=complex)))
    with pytest.raises(ValueError, match="row 2, column 1: 'x' is not a number"):
        list(batches([[1, 2], np.array(["x", 3], dtype=object)]))
    with pytest.raises(ValueError, match="from row 2 on there are 3 columns where the first has 2"):
        list(batches([[1, 2], [1, 2, 3]]))
    with pytest.raises(TypeError, match="source yields dicts"):
        list(batches([{"x": [1.0]}]))
    with pytest.raises(TypeError, match="source must be a path"):
        batches(3)


def test_parquet_columns_of_text_are_named(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"x": [1.0], "name": ["a"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"column 2 \(name\) holds string, not numbers"):
        batches(tmp_path / "a.parquet")


@pytest.mark.parametrize(("suffix", "module"), [(".parquet", "pyarrow"), (".h5", "h5py")])
def test_missing_extra_names_the_install_line(suffix, module, tmp_path, monkeypatch):
    (tmp_path / f"a{suffix}").touch()
    for name in [m for m in sys.modules if m.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"{module}: pip install 'bracketflow\[files\]'"):
        batches(tmp_path / f"a{suffix}")


def test_bad_rows_can_be_left_out(rows, tmp_path):
    rows[4, 2] = np.nan
    rows[11, 0] = np.inf
    good = np.delete(rows, [4, 11], axis=0)
    found = batches(as_csv(rows, tmp_path), 5, on_bad="skip")
    parts = list(found)
    assert np.array_equal(np.concatenate(parts), good)
    assert [len(p) for p in parts] == [5, 5, 5, 5, 1]
    assert found.refused == 2
    later = np.concatenate(list(batches(rows, 5, on_bad="skip", start=10)))
    assert np.array_equal(later, good[10:])
    with pytest.raises(ValueError, match="row 5, column 3: nan is not a finite number"):
        list(batches(rows, 5))


@pytest.mark.parametrize("size", [1, 7, 50, 500])
@pytest.mark.parametrize("kind", ["dense", "float32", "sparse", "torch"])
def test_centred_operators_average_to_the_covariance_of_all_rows(size, kind, rng):
    data = rng.standard_normal((500, 6)) @ rng.standard_normal((6, 6)) + 50 * rng.random(6)
    x = data
    if kind == "torch":
        torch = pytest.importorskip("torch")
        x, eye = torch.asarray(data), torch.eye(6, dtype=torch.float64)
    else:
        x = {"dense": data, "float32": data.astype(np.float32), "sparse": sparse.csr_array(data)}[
            kind
        ]
        eye = np.eye(6, dtype=np.float32 if kind == "float32" else np.float64)
    operators = list(covariances(x, size))
    assert sum(op.weight for op in operators) == 500
    mean = sum(op.weight * np.asarray(op @ eye, dtype=float) for op in operators) / 500
    expected = np.cov(data.T, bias=True)
    # Rounding: in float32 of rows of size ~50 before the mean is taken out; a sparse product
    # takes it out afterwards, so that it rounds like the squares.
    eps = np.finfo(np.float32 if kind == "float32" else np.float64).eps
    size_before = np.abs(data).max() * (np.abs(data).max() if kind == "sparse" else 10)
    assert np.abs(mean - expected).max() < 100 * eps * size_before


def test_trace_and_moments_of_batches(rng):
    data = rng.standard_normal((60, 5)) + 3
    for x in (data, sparse.csr_array(data)):
        seen, total = Moments(), 0.0
        for part in batches(x, 16):
            found = covariance(part, seen)
            trace = np.trace(found.operator @ np.eye(5))
            assert found.total == pytest.approx(trace, rel=1e-12)
            seen, total = found.moments, total + found.operator.weight * found.total
        assert seen.rows == 60
        assert seen.mean == pytest.approx(data.mean(axis=0), rel=1e-14)
        assert total / 60 == pytest.approx(data.var(axis=0).sum(), rel=1e-12)


def test_uncentred_stream_is_gram_of_the_batches(rows):
    operators = list(covariances(rows, 10, centre=False))
    for operator, part in zip(operators, batches(rows, 10), strict=True):
        assert np.array_equal(operator @ np.eye(COLUMNS), bf.gram(part) @ np.eye(COLUMNS))
        assert operator.weight == len(part)


def test_a_stream_from_a_file_is_tracked(rng, tmp_path):
    scales = np.r_[6.0, 4.0, np.ones(18)]
    data = (rng.standard_normal((20_000, 20)) * scales + 100) @ bf.random_basis(20, rng=rng).T
    np.save(tmp_path / "a.npy", data)
    result = bf.track(streams.covariances(tmp_path / "a.npy", 200), k=2, rng=rng)
    leading = np.linalg.eigh(np.cov(data.T))[1][:, -2:]
    # Two independent estimates could not differ more than their own error, √(n λ λ_0/N)/(λ − λ_0).
    assert bf.subspace_error(result.eigenvectors, leading) < 2 * np.sqrt(20 * 16 / 20_000) / 15


def test_senseless_arguments(rows):
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        batches(rows, 0)
    with pytest.raises(ValueError, match="start must be at least 0, got -1"):
        batches(rows, start=-1)
    with pytest.raises(ValueError, match='on_bad must be "raise" or "skip"'):
        batches(rows, on_bad="drop")


def test_matrices_with_bad_entries_are_named(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1.0, np.nan], [np.nan, 1.0]]))
    with pytest.raises(ValueError, match=r"a\.npy: row 1, column 2: nan is not a finite number"):
        streams.load_matrix(tmp_path / "a.npy")
    broken = sparse.coo_array(([1.0, np.inf], ([0, 2], [0, 1])), shape=(3, 3))
    sparse.save_npz(tmp_path / "b.npz", broken)
    with pytest.raises(ValueError, match=r"b\.npz: row 3, column 2: inf is not a finite number"):
        streams.load_matrix(tmp_path / "b.npz")
    (tmp_path / "c.mtx").write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n1 x 3\n")
    with pytest.raises(ValueError, match=r"c\.mtx: .*entry 2 after the sizes, b'x', is not"):
        streams.load_matrix(tmp_path / "c.mtx")
