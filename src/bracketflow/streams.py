"""From files to operators."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import io, sparse


def load_matrix(path: str | Path) -> Any:
    """A matrix from `.npy`, `.npz` (one array, or SciPy sparse) or Matrix Market `.mtx`.

    Raises
    ------
    ValueError
        The file cannot be read as a matrix of numbers; the message names it and says why.
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
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: cannot be read as a matrix: {error}") from error
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiubc":
        raise ValueError(
            f"{path}: expected a matrix of numbers, got shape {matrix.shape} of {matrix.dtype}"
        )
    return matrix


def _from_npy(path: Path) -> Any:
    return np.load(path, allow_pickle=False)


def _from_npz(path: Path) -> Any:
    # np.load leaves the file open when the zip is broken, so it is opened here.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        names = archive.files
        if "format" not in names:
            if len(names) != 1:
                raise ValueError(f"holds {len(names)} arrays {names}, expected exactly one")
            return archive[names[0]]
    return sparse.load_npz(path)


def _from_mtx(path: Path) -> Any:
    return io.mmread(path)
