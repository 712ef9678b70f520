"""`reproduce` and `report`: the run directory, two experiments side by side, resume, the page."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bracketflow.experiments import EXPERIMENTS, store
from bracketflow.experiments.report import write_page
from bracketflow.locking import LOCK, folder_lock

WORKERS = 2


@dataclass(frozen=True)
class Event:
    """Something happened: kind is start, progress, done, failed, kept, damaged, note or page."""

    kind: str
    name: str = ""
    fraction: float = 0.0
    text: str = ""


Show = Callable[[Event], None]


Job = tuple[str, str | None]
"""Experiment and mode; no mode means: only draw."""


class UnusableFolder(ValueError):
    """The output folder holds something that must not be overwritten."""


def chosen_names(names: Iterable[str] = (), skip: Iterable[str] = ()) -> list[str]:
    """Experiments asked for, in the order of the registry; unknown names list the known ones."""
    known = {name.lower(): name for name in EXPERIMENTS}
    wanted, unwanted = ([part] if isinstance(part, str) else list(part) for part in (names, skip))
    for name in (*wanted, *unwanted):
        if name.lower() not in known and name.lower() != "all":
            raise ValueError(
                f"unknown experiment {name!r}: choose from all, {', '.join(EXPERIMENTS)}"
            )
    everything = not wanted or any(name.lower() == "all" for name in wanted)
    picked = set(EXPERIMENTS) if everything else {known[name.lower()] for name in wanted}
    dropped = {known[name.lower()] for name in unwanted if name.lower() in known}
    return [name for name in EXPERIMENTS if name in picked - dropped]


def reproduce(
    names: Iterable[str] = (),
    *,
    quick: bool,
    out: str | Path,
    skip: Iterable[str] = (),
    resume: bool = False,
    force: bool = False,
    show: Show | None = None,
    seed: int = 42,
) -> int:
    """Redo experiments into the folder `out` and write its page; 0 when all went well.

    Parameters
    ----------
    names, skip : names of experiments; none or "all" means all
    resume : keep finished experiments of the same mode, seed and versions
    force : use a folder that holds other contents, or a run of another mode or seed
    show : called with an `Event` for all that happens
    seed : for problems drawn beyond the paper's own seeds, which are fixed
    """
    todo = chosen_names(names, skip)
    directory, mode = Path(out), "quick" if quick else "full"
    tell = show or (lambda event: None)
    check_folder(directory, mode, seed, force=force)
    with folder_lock(directory):
        check_folder(directory, mode, seed, force=force)
        store.write_json(directory / store.MANIFEST, {"mode": mode, "seed": seed})
        kept = _finished(directory, todo, mode, seed, tell) if resume else []
        jobs: list[Job] = [(name, mode) for name in todo if name not in kept]
        # A kept record whose figure is missing is drawn again, not computed again.
        jobs += [
            (name, None)
            for name in kept
            if not (directory / store.FIGURES / f"{name}.svg").exists()
        ]
        failed = _work(jobs, seed, directory, tell)
        page = write_page(directory)
    tell(Event("page", text=str(page)))
    return 1 if failed else 0


def report(directory: str | Path, show: Show | None = None) -> Path:
    """Redraw every figure, table and the page from the stored records; nothing is computed."""
    folder = Path(directory)
    tell = show or (lambda event: None)
    sound = [name for name in store.stored_names(folder) if _is_sound(folder, name, tell)]
    if not sound:
        raise ValueError(
            f"{folder} holds no readable records: run `bracketflow reproduce --out {folder}` first"
        )
    with folder_lock(folder):
        _work([(name, None) for name in sound], 0, folder, tell)
        page = write_page(folder)
    tell(Event("page", text=str(page)))
    return page


def check_folder(directory: Path, mode: str, seed: int, *, force: bool) -> None:
    """Refuse a folder whose contents are not of this run."""
    if directory.exists() and not directory.is_dir():
        raise UnusableFolder(f"{directory} is a file: give a folder with --out")
    contents = sorted(p.name for p in directory.iterdir()) if directory.is_dir() else []
    # A run that was killed before it could write its manifest leaves these, and nothing else.
    contents = [n for n in contents if n != LOCK and not n.startswith(f".{store.MANIFEST}.")]
    manifest = store.read_json(directory / store.MANIFEST)
    wanted = {"mode": mode, "seed": seed}
    if not contents or force:
        return
    if not manifest:
        raise UnusableFolder(
            f"{directory} already holds other contents ({', '.join(contents[:3])} …): "
            "choose another --out, or pass --force to write into it"
        )
    if {key: manifest.get(key) for key in wanted} != wanted:
        raise UnusableFolder(
            f"{directory} holds a --{manifest.get('mode')} run with seed "
            f"{manifest.get('seed')}: choose another --out, or pass --force to overwrite it"
        )


def _is_sound(directory: Path, name: str, tell: Show) -> bool:
    try:
        store.read_record(directory, name)
    except store.DamagedRecord as problem:
        tell(Event("damaged", name, text=str(problem)))
        return False
    return True


def _finished(directory: Path, names: Sequence[str], mode: str, seed: int, tell: Show) -> list[str]:
    """Experiments whose stored record is sound and current; damaged ones are named."""
    kept = []
    for name in names:
        if not store.record_path(directory, name).exists() or not _is_sound(directory, name, tell):
            continue
        if store.is_current(store.read_record(directory, name), mode, seed):
            tell(Event("kept", name))
            kept.append(name)
    return kept


# Work in processes ------------------------------------------------------------------------------


def _work(jobs: Sequence[Job], seed: int, directory: Path, tell: Show) -> list[str]:
    """Carry out jobs in worker processes; names of those that failed."""
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    crew = [_Crew(waiting, events, seed, directory) for _ in range(min(WORKERS, len(jobs)))]
    failed = []
    try:
        for member in crew:
            member.start()
        still_working = len(crew)
        while still_working:
            event = events.get()
            if event is None:
                still_working -= 1
                continue
            if event.kind == "failed":
                failed.append(event.name)
            tell(event)
    finally:
        for member in crew:
            member.end()
    return failed


class _Crew(threading.Thread):
    """A thread with a worker process of its own; a process that dies is replaced."""

    def __init__(self, waiting: Any, events: Any, seed: int, directory: Path):
        super().__init__(daemon=True)
        self.waiting, self.events, self.seed, self.directory = waiting, events, seed, directory
        self.process: subprocess.Popen[str] | None = None
        self.ended = False

    def run(self) -> None:
        """Take jobs until none is left; None on the queue says that this thread has ended."""
        try:
            while not self.ended:
                name, mode = self.waiting.get_nowait()
                self.events.put(Event("start", name))
                event = self._carry_out(name, mode)
                if not self.ended:
                    self.events.put(event)
        except queue.Empty:
            pass
        except OSError as error:  # the folder has become unwritable
            self.events.put(Event("failed", name, text=str(error)))
        finally:
            self._dismiss()
            self.events.put(None)

    def _carry_out(self, name: str, mode: str | None) -> Event:
        answer = self._ask({"name": name, "mode": mode}, name)
        if answer["kind"] == "failed":
            if mode is not None and not self.ended:  # a run that was stopped has not failed
                store.write_text(store.error_path(self.directory, name), answer["text"])
            last_line = answer["text"].strip().splitlines()[-1]
            return Event("failed", name, text=last_line)
        if mode is not None:
            _note_time(self.directory, name, answer)
        return Event("done", name, 1.0, answer["text"] or "")

    def _ask(self, job: dict[str, Any], name: str) -> dict[str, Any]:
        """Send a job to the worker and pass its progress on until it is done."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        message = {**job, "seed": self.seed, "directory": str(self.directory)}
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if answer["kind"] != "progress":
                    return dict(answer)
                self.events.put(Event("progress", name, answer["fraction"]))
        except (OSError, ValueError):
            pass
        return {"kind": "failed", "text": f"the worker process ended (exit code {process.wait()})"}

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None or self.process.poll() is not None:
            self._dismiss()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bracketflow.experiments.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # an interrupt is for us: finished records are kept
                # Small matrices: one BLAS thread a process; no display for the figures.
                env={**os.environ, **_ONE_THREAD, "MPLBACKEND": "Agg", "PYTHONUTF8": "1"},
            )
        return self.process

    def end(self) -> None:
        """Stop the worker process, whatever it is doing."""
        self.ended = True
        if self.process is not None:
            self.process.kill()
        if self.is_alive():
            self.join(timeout=10)

    def _dismiss(self) -> None:
        """Let the worker process go: it ends with its input, or is killed when it does not."""
        if self.process is not None:
            try:
                self.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()


_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
_TIMINGS_LOCK = threading.Lock()


def _note_time(directory: Path, name: str, answer: dict[str, Any]) -> None:
    """Seconds go to a file of their own, so that records can be compared byte by byte."""
    with _TIMINGS_LOCK:
        known = store.read_json(directory / store.TIMINGS)
        known[name] = {key: answer[key] for key in ("seconds", "cpu_seconds")}
        store.write_json(directory / store.TIMINGS, known)
