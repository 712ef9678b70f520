"""Matrices from files: every layout comes back as it was written, every damage is named."""

import zipfile

import numpy as np
import pytest
from scipy import io, sparse

from bracketflow import streams

DENSE = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 2.0], [0.0, 2.0, 5.0]])
SKEW = np.array([[0.0, -1.0, 2.0], [1.0, 0.0, -3.0], [-2.0, 3.0, 0.0]])
HERMITIAN = DENSE + 1j * SKEW


def dense(matrix):
    return matrix.toarray() if sparse.issparse(matrix) else matrix


@pytest.mark.parametrize("sparsely", [False, True])
@pytest.mark.parametrize(
    ("matrix", "symmetry"),
    [
        (DENSE, "general"),
        (DENSE, "symmetric"),
        (SKEW, "skew-symmetric"),
        (HERMITIAN, "hermitian"),
        (HERMITIAN, "general"),
        (DENSE[:2], "general"),
    ],
)
def test_matrix_market_as_scipy_writes_it(matrix, symmetry, sparsely, tmp_path):
    path = tmp_path / "a.mtx"
    io.mmwrite(path, sparse.coo_array(matrix) if sparsely else matrix, symmetry=symmetry)
    read = streams.load_matrix(path)
    assert sparse.issparse(read) == sparsely
    assert np.array_equal(dense(read), matrix)


def test_matrix_market_patterns_are_ones_and_comments_are_passed_over(tmp_path):
    path = tmp_path / "a.mtx"
    path.write_text(
        "%%MatrixMarket matrix coordinate pattern symmetric\n% a comment\n\n3 3 2\n1 1\n3 2\n"
    )
    assert np.array_equal(dense(streams.load_matrix(path)), [[1, 0, 0], [0, 0, 1], [0, 1, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%%MatrixMarket matrix diagonal real general\n1 1\n1\n", "of no known kind"),
        ("%%MatrixMarket matrix array quaternion general\n1 1\n1\n", "of no known kind"),
        ("%%MatrixMarket matrix array real upper\n1 1\n1\n", "of no known kind"),
        ("hello\n", "of no known kind"),
        ("%%MatrixMarket matrix array pattern general\n1 1\n", "pattern has no numbers"),
        ("%%MatrixMarket matrix array real general\n2\n1\n", r"sizes b'2\\n'"),
        ("%%MatrixMarket matrix array real general\n-1 -1\n1\n", "sizes"),
        ("%%MatrixMarket matrix array real general\n2 2\n1 2 3\n", "3 numbers where 4 entries"),
        ("%%MatrixMarket matrix array real symmetric\n2 3\n1 2 3\n", "for half of 2 × 3"),
        ("%%MatrixMarket matrix array real symmetric\n9 9\n1 2 3\n", "3 numbers for half of 9 × 9"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 3\n", "2 entries of 3"),
        ("%%MatrixMarket matrix coordinate real general\n2 2 1\n1.5 1 3\n", "not whole numbers"),
        (
            "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 3\n",
            "row index 2 exceeds|axis 0",
        ),
    ],
)
def test_damaged_matrix_market_files_are_named(text, message, tmp_path):
    path = tmp_path / "a.mtx"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"a\.mtx: cannot be read as a matrix: .*{message}"):
        streams.load_matrix(path)


@pytest.mark.parametrize("write", [np.save, lambda path, a: np.savez_compressed(path, matrix=a)])
def test_arrays_come_back(write, tmp_path):
    path = tmp_path / ("a.npy" if write is np.save else "a.npz")
    write(path, DENSE)
    assert np.array_equal(streams.load_matrix(path), DENSE)


@pytest.mark.parametrize("layout", ["csr", "csc", "coo", "dia", "bsr"])
def test_sparse_matrices_come_back(layout, tmp_path):
    sparse.save_npz(tmp_path / "a.npz", sparse.coo_array(DENSE).asformat(layout))
    assert np.array_equal(dense(streams.load_matrix(tmp_path / "a.npz")), DENSE)


def test_files_that_hold_no_matrix_are_named(tmp_path):
    np.savez(tmp_path / "two.npz", a=DENSE, b=DENSE)
    with pytest.raises(ValueError, match=r"two\.npz: .*holds 2 arrays \['a', 'b'\]"):
        streams.load_matrix(tmp_path / "two.npz")
    np.save(tmp_path / "line.npy", DENSE[0])
    with pytest.raises(ValueError, match=r"line\.npy: expected a matrix of numbers, got shape \(3"):
        streams.load_matrix(tmp_path / "line.npy")
    np.save(tmp_path / "text.npy", DENSE.astype(str))
    with pytest.raises(ValueError, match=r"text\.npy: expected a matrix of numbers, got .*<U"):
        streams.load_matrix(tmp_path / "text.npy")
    with pytest.raises(ValueError, match=r"a\.txt: unknown ending, expected one of \.npy, \.npz"):
        streams.load_matrix(tmp_path / "a.txt")
    with pytest.raises(ValueError, match=r"absent\.npy: no such file"):
        streams.load_matrix(tmp_path / "absent.npy")


def header(shape, version=(1, 0)):
    """The beginning of a `.npy` file that promises float64 numbers of this shape."""
    text = (
        repr({"descr": "<f8", "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    )
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text


def test_headers_that_promise_too_much_are_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(header((40, 40)) + bytes(640))
    with pytest.raises(ValueError, match=r"a\.npy: .*header promises 12800 bytes, it has 768"):
        streams.load_matrix(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("bomb.npy", header((1 << 20, 1 << 20)))
    with pytest.raises(ValueError, match=r"bomb\.npy announces 8796093022208 bytes in a file of"):
        streams.load_matrix(tmp_path / "a.npz")


def test_objects_and_structured_arrays_are_refused_unread(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, "x"]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"a\.npy: .*holds objects, not numbers"):
        streams.load_matrix(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_bytes(header((2, 2), (3, 0)) + bytes(32))
    with pytest.raises(ValueError, match=r"b\.npy: .*format version 3 holds a structured array"):
        streams.load_matrix(tmp_path / "b.npy")
    with pytest.raises(ValueError, match=r"b\.npy: .*format version \(3, 0\) holds a structured"):
        streams.batches(tmp_path / "b.npy")


def test_a_matrix_beyond_the_memory_is_named(tmp_path, monkeypatch):
    np.save(tmp_path / "a.npy", DENSE)

    def exhausted(*args, **kwargs):
        raise MemoryError("no room for 72 bytes")

    monkeypatch.setattr(np, "load", exhausted)
    with pytest.raises(ValueError, match=r"a\.npy: too large for the memory there is: no room"):
        streams.load_matrix(tmp_path / "a.npy")
