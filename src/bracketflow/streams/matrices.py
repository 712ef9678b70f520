"""Square matrices from files, for `decompose` and `certify`."""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from scipy import sparse

ROOMY = 1 << 28  # bytes that an array from a .npz may have, whatever the size of the file
DENSE = 100  # times the size of the file, from there on: more is a bomb rather than a matrix


def load_matrix(path: str | Path) -> Any:
    """A matrix from `.npy`, `.npz` (one array, or SciPy sparse) or Matrix Market `.mtx`.

    Raises
    ------
    ValueError
        The file cannot be read as a matrix of finite numbers; the message names it and says why.
    """
    path = Path(path)
    readers = {".npy": _from_npy, ".npz": _from_npz, ".mtx": _from_mtx}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise ValueError(f"{path}: unknown ending, expected one of {', '.join(readers)}")
    try:
        matrix = reader(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such file") from None
    except MemoryError as error:
        raise ValueError(f"{path}: too large for the memory there is: {error}") from error
    except Exception as error:  # parsers raise anything when the bytes are wrong
        raise ValueError(f"{path}: cannot be read as a matrix: {error}") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiubc":
        raise ValueError(
            f"{path}: expected a matrix of numbers, got shape {matrix.shape} of {matrix.dtype}"
        )
    _refuse_non_finite(matrix, path)
    return matrix


def _refuse_non_finite(matrix: Any, path: Path) -> None:
    entries = sparse.coo_array(matrix) if sparse.issparse(matrix) else matrix
    values = entries.data if sparse.issparse(matrix) else entries
    bad = np.argwhere(~np.isfinite(values))
    if not len(bad):
        return
    where = [axis[bad[0, 0]] for axis in entries.coords] if sparse.issparse(matrix) else bad[0]
    row, column = (int(i) + 1 for i in where)
    raise ValueError(
        f"{path}: row {row}, column {column}: {values[tuple(bad[0])]} is not a finite number"
    )


def _from_npy(path: Path) -> Any:
    with path.open("rb") as file:
        promised, held = promised_bytes(file), path.stat().st_size
    if promised > held:
        raise ValueError(f"truncated: its header promises {promised} bytes, it has {held}")
    return np.load(path, allow_pickle=False)


def promised_bytes(file: BinaryIO) -> int:
    """How many bytes of numbers the header of a `.npy` array announces."""
    readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(file)[0]
    if version not in readers:
        raise ValueError(f"format version {version} holds a structured array")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("holds objects, not numbers")
    return math.prod(shape) * dtype.itemsize


def check_archive(path: Path) -> None:
    """Raise for a zip that would unpack to far more than its size, before anything is unpacked."""
    limit = max(ROOMY, DENSE * path.stat().st_size)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            with archive.open(name) as file:
                promised = promised_bytes(file)  # type: ignore[arg-type]
            if promised > limit:
                raise ValueError(
                    f"{name} announces {promised} bytes in a file of {path.stat().st_size}: "
                    "unpack it to a .npy file if that is right"
                )


def _from_npz(path: Path) -> Any:
    check_archive(path)
    # np.load leaves the file open when the zip is broken, so it is opened here.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        if "format" not in names:
            if len(names) != 1:
                raise ValueError(f"holds {len(names)} arrays {names}, expected exactly one")
            return archive[names[0]]
    return load_sparse(path)


def load_sparse(path: Path) -> Any:
    """A sparse matrix from `scipy.sparse.save_npz`, its indices checked: products do not."""
    matrix = sparse.load_npz(path)
    if hasattr(matrix, "check_format"):
        matrix.check_format(full_check=True)
    return matrix


# Matrix Market ----------------------------------------------------------------------------------

PARTS = {"pattern": 0, "real": 1, "integer": 1, "complex": 2}
MIRRORED = {
    "general": None,
    "symmetric": lambda values: values,
    "hermitian": np.conj,
    "skew-symmetric": np.negative,
}


def _from_mtx(path: Path) -> Any:
    """Matrix Market text. SciPy's own reader ends the process on some damaged files."""
    with path.open("rb") as file:
        begin, layout, field, symmetry = _mtx_header(file.readline(1024))
        line = file.readline(1 << 16)
        while line.startswith(b"%") or (line and not line.strip()):
            line = file.readline(1 << 16)
        sizes = [int(number) for number in line.split()]
        if len(sizes) != begin or min(sizes) < 0:
            raise ValueError(f"sizes {line!r:.60}")
        numbers = _numbers(file.read().split())
    read = _coordinates if layout == "coordinate" else _columns
    return read(numbers, sizes, PARTS[field], MIRRORED[symmetry])


def _numbers(words: list[bytes]) -> np.ndarray:
    try:
        return np.array(words, dtype=float)
    except ValueError:
        place = next(i for i, word in enumerate(words) if not _is_number(word))
        raise ValueError(
            f"entry {place + 1} after the sizes, {words[place]!r:.60}, is not a number"
        ) from None


def _is_number(word: bytes) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _mtx_header(line: bytes) -> tuple[int, str, str, str]:
    """How many sizes follow, and how the entries are laid out."""
    words = line.decode("ascii").lower().split()
    known = len(words) == 5 and words[:2] == ["%%matrixmarket", "matrix"]
    count = {"coordinate": 3, "array": 2}.get(words[2]) if known else None
    if count is None or words[3] not in PARTS or words[4] not in MIRRORED:
        raise ValueError(f"header {line!r:.80} of no known kind")
    if count == 2 and words[3] == "pattern":
        raise ValueError("an array of pattern has no numbers")
    return count, words[2], words[3], words[4]


def _table(numbers: np.ndarray, entries: int, width: int) -> np.ndarray:
    if numbers.size != entries * width:
        raise ValueError(f"{numbers.size} numbers where {entries} entries of {width} are promised")
    return numbers.reshape(entries, width)


def _values(parts: np.ndarray) -> np.ndarray:
    """Entries from no number (1), one, or two (real and imaginary)."""
    if parts.shape[1] == 2:
        return np.asarray(parts[:, 0] + 1j * parts[:, 1])
    return parts[:, 0] if parts.shape[1] else np.ones(len(parts))


def _coordinates(numbers: np.ndarray, sizes: list[int], parts: int, mirror: Any) -> Any:
    rows, columns, entries = sizes
    table = _table(numbers, entries, 2 + parts)
    places = table[:, :2].astype(np.int64)
    if not np.array_equal(places, table[:, :2]):
        raise ValueError("rows and columns of entries are not whole numbers")
    (i, j), values = places.T - 1, _values(table[:, 2:])
    if mirror is not None:
        off = i != j
        i, j, values = (
            np.concatenate([i, j[off]]),
            np.concatenate([j, i[off]]),
            np.concatenate([values, mirror(values[off])]),
        )
    return sparse.coo_array((values, (i, j)), shape=(rows, columns))  # checks the places


def _columns(numbers: np.ndarray, sizes: list[int], parts: int, mirror: Any) -> Any:
    rows, columns = sizes
    if mirror is None:
        return _values(_table(numbers, rows * columns, parts)).reshape(columns, rows).T.copy()
    skew = mirror is np.negative
    if rows != columns or (rows * (rows + 1)) // 2 > numbers.size + rows:
        raise ValueError(f"{numbers.size} numbers for half of {rows} × {columns}")
    j, i = np.triu_indices(rows, k=1 if skew else 0)  # the lower triangle, column by column
    values = _values(_table(numbers, len(i), parts))
    matrix = np.zeros((rows, rows), values.dtype)
    matrix[j, i] = mirror(values)
    matrix[i, j] = values
    return matrix
