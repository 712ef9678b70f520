"""The folder of a run: what it holds, and what may be done to it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from bracketflow.atomic import TEMPORARY, open_ordinary, write_atomically
from bracketflow.checkpoint import load, save
from bracketflow.core import State
from bracketflow.locking import LOCK
from bracketflow.tracking.rows import RowTracker, eigenpairs, ledger_of

MANIFEST = "run.json"
CHECKPOINT = "checkpoint.bf"
SERIES = "series.csv"
EIGENPAIRS = "eigenpairs.npz"
PAGE = "index.html"
PREVIOUS = "previous"
UNFINISHED = "unfinished"  # in there: what is being moved


@dataclass(frozen=True)
class Folder:
    """An output folder; every file in it is whole or absent, but for the growing series."""

    path: Path

    def __truediv__(self, name: str) -> Path:
        """The path of a file in it."""
        return self.path / name

    def earlier(self, *, resume: bool, force: bool) -> dict[str, Any]:
        """The manifest of the run it holds, empty if there is none; an error if it is in the way.

        Looks only; nothing is written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path}: is a file: give a folder with --out")
        held = self._contents()
        manifest = {} if force and not resume else self.manifest()
        if resume and not manifest:
            raise ValueError(f"{self.path}: holds no run to resume: leave --resume out")
        if held and not (resume or force):
            names = ", ".join(path.name for path in held[:3])
            what = "an earlier run" if manifest else f"other contents ({names} …)"
            ways = "--resume to go on with it, --force" if manifest else "--force"
            raise ValueError(
                f"{self.path}: holds {what}: pass {ways} to put it aside and start anew, or choose "
                "another --out"
            )
        return manifest

    def _contents(self) -> list[Path]:
        if not self.path.is_dir():
            return []
        found = (p for p in self.path.iterdir() if p.name not in (LOCK, PREVIOUS))
        # What a killed process has left there is removed by the next one that writes.
        return sorted(p for p in found if not (p.name[0] == "." and p.suffix == TEMPORARY))

    def manifest(self) -> dict[str, Any]:
        """What it says of the run in it; empty if it holds none."""
        path = self / MANIFEST
        try:
            with open_ordinary(path) as file:
                found = dict(json.load(file))
            if found.pop("checksum", None) != _checksum(found):
                raise ValueError("its checksum is missing or does not match")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise ValueError(
                f"{path}: damaged, it does not describe a run ({error}): put a copy of it back, or "
                "start anew with --force"
            ) from None
        return found

    def stamp(self) -> list[tuple[int, int, int] | None]:
        """Another one after any process has written here."""
        return [_stamp(self / name) for name in (MANIFEST, CHECKPOINT, SERIES)]

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Within, the first files of a new run are written; what was there goes to `previous`.

        And comes back where the disk does not hold these files: the folder is then as it was.
        """
        shelf = self.put_aside()
        try:
            yield
        except OSError as error:
            self._put_back(shelf)
            raise ValueError(
                f"{error.filename or self.path}: {error.strerror}: the folder is as it was: mend "
                "that and give the same command again"
            ) from error

    def put_aside(self) -> Path | None:
        """Move an earlier run to previous/1, the next one to previous/2, … Gives where it is now.

        Through a folder of its own, so that one that was killed here is made good by the next.
        """
        old, shelf = self._contents(), self / PREVIOUS
        moving = shelf / UNFINISHED
        if not old and not moving.exists():
            return None
        moving.mkdir(parents=True, exist_ok=True)
        for path in old:
            path.rename(moving / path.name)
        numbers = [int(path.name) for path in shelf.iterdir() if path.name.isdecimal()]
        return moving.rename(shelf / str(1 + max(numbers, default=0)))

    def _put_back(self, aside: Path | None) -> None:
        """Undo `put_aside`: the manifest comes last, for with it the folder holds a run."""
        for path in self._contents():
            path.unlink()
        if aside is None:
            return
        moving = aside.rename(aside.with_name(UNFINISHED))
        for path in sorted(moving.iterdir(), key=lambda path: path.name == MANIFEST):
            path.rename(self / path.name)
        moving.rmdir()
        with suppress(OSError):  # there are others
            moving.parent.rmdir()

    def load_state(self) -> State:
        """The state to go on from."""
        path = self / CHECKPOINT
        if not path.exists():
            raise ValueError(f"{path}: there is none: start anew with --force")
        return load(path).state

    def save_state(self, state: State, method: RowTracker, series: tuple[int, str]) -> None:
        """Write the checkpoint; what it knows of the series must be on the disk before."""
        ledger = ledger_of(state)
        plain = (
            *ledger._replace(
                series=tuple(series),  # type: ignore[arg-type]
                moments=tuple(ledger.moments),  # type: ignore[arg-type]
                noticed=tuple(tuple(event) for event in ledger.noticed),  # type: ignore[misc]
            ),
        )
        save(self / CHECKPOINT, state._replace(memory=plain), method=method.tracker)

    def write_manifest(self, content: dict[str, Any]) -> None:
        """Write what the run is and how far it has come."""
        whole = {**content, "checksum": _checksum(content)}
        text = json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n"
        write_atomically(self / MANIFEST, [text.encode()])

    def write_eigenpairs(self, state: State, method: RowTracker) -> None:
        """Write `eigenpairs`: eigenvectors are columns, by descending eigenvalue."""
        buffer = io.BytesIO()
        np.savez(buffer, **eigenpairs(state, method))  # type: ignore[arg-type]
        write_atomically(self / EIGENPAIRS, [buffer.getvalue()])


def _checksum(content: dict[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
