"""Files that are whole or absent, whatever happens to the process that writes them."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY = ".tmp"


class NotAFile(ValueError):
    """A directory, a pipe or a device where a file should be."""


def open_ordinary(path: Path, mode: str = "rb") -> BinaryIO:
    """An ordinary file, opened: a pipe or a device could be read for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise NotAFile(f"{path}: not an ordinary file: put that aside")
    return path.open(mode)  # type: ignore[return-value]


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Within, errors of the system name `path`: those of a full disk name nothing."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_atomically(path: Path, parts: Iterable[bytes]) -> None:
    """Put `parts` into `path`: a reader sees the old file or the new one, never a mixture.

    The name of the temporary file beside it holds the number of this process; what a dead process
    has left there is removed.
    """
    path = Path(os.path.realpath(path))  # the file that a link points to, not the link
    _remove_leftovers(path)
    mark = f"{os.getpid()}.{threading.get_ident()}"
    temporary = path.with_name(f".{path.name}.{mark}{TEMPORARY}")
    try:
        with named_errors(path), temporary.open("xb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name survives a power cut too
        finally:
            os.close(folder)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files beside `path` whose process is gone, or was this very thread."""
    if os.name != "posix":  # elsewhere a process cannot be asked for without harming it
        return
    for leftover in path.parent.iterdir():
        stem, _, mark = leftover.name.removesuffix(TEMPORARY).rpartition(f".{path.name}.")
        process, _, thread = mark.partition(".")
        if stem or not leftover.name.endswith(TEMPORARY) or not (process + thread).isdecimal():
            continue
        own = (int(process), int(thread or 0)) == (os.getpid(), threading.get_ident())
        if own or not _is_running(int(process)):
            leftover.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
