"""One writer a folder: a lock that the operating system frees when its holder dies."""

from __future__ import annotations

import errno
import os
import stat
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
    ValueError
        `.lock` is a link or no ordinary file: what it stands for would be overwritten.
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    handle = _opened(folder / LOCK)
    try:
        _take(handle, folder)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _opened(lock: Path) -> int:
    """A handle of the lock file itself, never of what a link points to."""
    unusable = f"{lock}: a link, or no ordinary file: remove it"
    try:
        # Windows has no O_NOFOLLOW, and no links that a stranger may make.
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise ValueError(unusable) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(unusable)
    return handle


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
