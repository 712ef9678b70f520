"""One writer a folder: a lock that the operating system frees when its holder dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no flock: there the folder is not guarded
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


class FolderBusy(ValueError):
    """Another process is writing into the folder."""


@contextmanager
def folder_lock(path: str | Path) -> Iterator[None]:
    """Hold `path` for this process alone; the folder is made when it does not exist.

    The lock is taken on the file `.lock` in it, which stays behind: removing it would let a third
    process in beside a second one. It goes with the process, however that ends.

    Raises
    ------
    FolderBusy
        Another process holds it; the message names that process.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        _take(handle, folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        raise FolderBusy(
            f"{folder}: another process (number {holder}) is writing there: wait for it to end, "
            "or choose another folder"
        ) from None
