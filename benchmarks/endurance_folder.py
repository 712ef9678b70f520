"""The folder of `bracketflow track` among processes that meet in it, and after damage of any kind.

    python benchmarks/endurance_folder.py meetings 1000 SEED
    python benchmarks/endurance_folder.py mutations 2000 SEED

print one JSON object, see `Meetings` and `Mutations`, and fail where `wrong` is not empty.
Processes are forked, so that a life begins in milliseconds and not after an import.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from unittest import mock

import numpy as np

from bracketflow import atomic
from bracketflow.tracking import page, series
from bracketflow.tracking.folder import PREVIOUS, UNFINISHED, Folder
from bracketflow.tracking.session import Settings, follow

N, ROWS = 5, 160
SETTINGS = Settings(k=2, batch=20)
MOST_WAIT = 0.03  # seconds for which a process may wait anywhere, about as long as a run takes
PATIENCE = 60.0  # seconds after which a run hangs
KEPT = ("series.csv", "checkpoint.bf", "eigenpairs.npz", "index.html", "run.json")


@dataclass
class Meetings:
    """What became of folders in which two to four processes met."""

    folders: int = 0
    processes: int = 0
    ended_well: int = 0
    refused: int = 0
    """Ended with an error that says what is the matter."""
    killed: int = 0
    resumed: int = 0
    """Folders whose run was unfinished, and was finished by one more process."""
    begun_anew: int = 0
    """Folders whose run had been killed before it could be resumed."""
    wrong: list[str] = field(default_factory=list)
    """What is not as it should be."""


@dataclass
class Mutations:
    """What became of damaged folders."""

    folders: int = 0
    refused: int = 0
    """Ended with an error that names the folder, or a file in it."""
    right: int = 0
    """Ended with the bytes of the undisturbed run."""
    wrong: list[str] = field(default_factory=list)


@contextmanager
def cheaply():
    """Without figures, which take long, and without Parquet, whose threads survive no fork."""
    with (
        mock.patch.object(page, "_draw", return_value=False),
        mock.patch.object(series, "write_parquet", return_value=None),
    ):
        yield


def make_sources(folder):
    """Two files, and the bytes of what a whole run of each leaves."""
    rng = np.random.default_rng(0)
    expected = {}
    for name in ("a", "b"):
        source = str(folder / f"{name}.npy")
        np.save(source, rng.standard_normal((ROWS, N)) * np.r_[3.0, 2.0, np.ones(N - 2)])
        follow(source, folder / name, SETTINGS)
        expected[source] = results(folder / name)
    return expected


def results(folder):
    return {name: (folder / name).read_bytes() for name in KEPT if (folder / name).exists()}


class StopAfter:
    """Ends a stream after some batches, as a signal would."""

    signal = None

    def __init__(self, batches):
        self.batches = batches

    def __call__(self, parts):
        yield from islice(parts, self.batches)
        self.signal = signal.SIGTERM


# Processes that meet ----------------------------------------------------------------------------


def meetings(folder, count, seed):
    """Let processes meet in `count` folders, and look at what they leave."""
    fate, figures = random.Random(seed), Meetings()
    folder = Path(folder)
    with cheaply():
        expected = make_sources(folder)
        for number in range(count):
            out = folder / f"out{number}"
            told = _meet(out, list(expected), fate, figures)
            _look(out, expected, told, figures)
            shutil.rmtree(out, ignore_errors=True)
    return figures


def _meet(out, sources, fate, figures):
    """What the processes of one meeting have told: (source, "well" | "refused" | None)."""
    begin = fate.choice(("empty", "finished", "interrupted"))
    if begin != "empty":
        stop = StopAfter(fate.randrange(1, ROWS // 20)) if begin == "interrupted" else None
        follow(sources[0], out, SETTINGS, interruption=stop)
    lives = []
    for _ in range(fate.randint(2, 4)):
        source, how = fate.choice(sources), fate.choice(("force", "resume", "resume", "plain"))
        pipe = os.pipe()
        child = os.fork()
        if child == 0:
            _live(source, out, how, fate.random(), pipe[1])
        os.close(pipe[1])
        lives.append((child, source, how, pipe[0]))
    figures.folders += 1
    figures.processes += len(lives)
    for child, *_ in fate.sample(lives, fate.choice((0, 1, 1, len(lives)))):
        time.sleep(fate.uniform(0, 2 * MOST_WAIT))
        os.kill(child, signal.SIGKILL)  # which is not reaped yet: no other can have its number
    return [_told(*life, figures) for life in lives]


def _live(source, out, how, seed, answer):
    """One process; it waits now and then, so that others may come between."""
    fate = random.Random(seed)
    opened, write = Settings.opened, atomic.write_atomically

    def wait():
        if fate.random() < 0.4:
            time.sleep(fate.uniform(0, MOST_WAIT))

    def opened_late(self, *args, **options):
        wait()
        rows = opened(self, *args, **options)
        rows.parts = chain(_late(wait), rows.parts)
        return rows

    def write_late(*args):
        wait()
        write(*args)

    try:
        Settings.opened = opened_late
        for module in ("folder", "page"):
            sys.modules[f"bracketflow.tracking.{module}"].write_atomically = write_late
        every = fate.choice((0.0, 0.002, 30.0))
        options = {} if how == "plain" else {how: True}
        settings = Settings() if how == "resume" else SETTINGS
        follow(source, out, settings, save_every=every, **options)
        os.write(answer, b"well")
    except (ValueError, OSError) as error:
        os.write(answer, f"refused {error}"[:4000].encode())
    except BaseException as error:
        os.write(answer, f"wrong {type(error).__name__}: {error}"[:4000].encode())
    finally:
        os._exit(0)


def _late(wait):
    """Nothing, after a while."""
    wait()
    yield from ()


def _told(child, source, how, pipe, figures):
    with open(pipe, "rb") as answer:
        told = answer.read().decode()
    os.waitpid(child, 0)
    word = told.partition(" ")[0]
    figures.ended_well += word == "well"
    figures.refused += word == "refused"
    figures.killed += word == ""
    if word == "wrong":
        figures.wrong.append(f"{how}: {told}")
    return source, word


def _look(out, expected, told, figures):
    """The folder must hold one whole run, or what `--resume` makes whole; so must all put aside."""

    def wrong(what):
        figures.wrong.append(f"{out.name}: {what}; {told}")

    # Where one was killed while it moved a run, the next process makes that good.
    if (out / PREVIOUS / UNFINISHED).exists():
        Folder(out).put_aside()
    runs = [out, *out.glob("previous/[0-9]*")] if out.exists() else []
    whole = [run for run in runs if _status(run) == "STREAM_ENDED"]
    for run in whole:
        if results(run) != expected[_manifest(run)["source"]]:
            wrong(f"{run.name} says that it is whole and is not")
    sources = {_manifest(run)["source"] for run in whole}
    for source, word in told:
        if word == "well" and source not in sources:
            wrong(f"a whole run of {source} is gone")
    source = _manifest(out).get("source", next(iter(expected)))
    try:
        follow(source, out, Settings(), resume=True)
        figures.resumed += out not in whole
    except ValueError as error:
        if "start anew with --force" not in str(error) and "leave --resume out" not in str(error):
            wrong(f"cannot be resumed: {error}")
        follow(source, out, SETTINGS, force=True)
        figures.begun_anew += 1
    if results(out) != expected[source]:
        wrong("is not whole at the end")
    left = [p.name for p in out.iterdir() if p.name not in (*KEPT, ".lock", "previous")]
    if left:
        wrong(f"left behind: {left}")


def _manifest(run):
    path = run / "run.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _status(run):
    return _manifest(run).get("status")


# Damage -----------------------------------------------------------------------------------------


def mutations(folder, count, seed):
    """Damage a file of a folder in `count` ways, each by itself, and resume its run."""
    fate, figures = random.Random(seed), Mutations()
    folder = Path(folder)
    with cheaply():
        expected = make_sources(folder)
        source = next(iter(expected))
        bases = list(_bases(folder, source))
        for number in range(count):
            out = folder / f"out{number}"
            shutil.copytree(bases[number % len(bases)], out)
            files = sorted(path for path in out.rglob("*") if path.is_file())
            file, mutate = files[number // len(bases) % len(files)], fate.choice(MUTATIONS)
            mutate(file, fate)
            what = f"{bases[number % len(bases)].name}/{file.name}: {mutate.__name__}"
            figures.folders += 1
            _resume(source, out, expected[source], what, figures)
            shutil.rmtree(out)
    return figures


def _bases(folder, source):
    """An interrupted run, a killed one and a finished one."""
    follow(source, folder / "interrupted", SETTINGS, interruption=StopAfter(4))
    yield folder / "interrupted"
    child = os.fork()
    if child == 0:
        try:
            with mock.patch.object(page, "write", side_effect=lambda *a: os._exit(0)):
                stop = StopAfter(5)
                follow(source, folder / "killed", SETTINGS, interruption=stop, save_every=0.0)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    yield folder / "killed"
    yield folder / "a"


def _resume(source, out, expected, what, figures):
    def late(number, frame):
        raise TimeoutError("hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        follow(source, out, Settings(), resume=True)
    except TimeoutError:
        figures.wrong.append(f"{what} hangs")
    except (ValueError, OSError) as error:
        figures.refused += 1
        if str(out) not in str(error):
            figures.wrong.append(f"{what} is not named: {error}")
    except BaseException as error:
        figures.wrong.append(f"{what}: {type(error).__name__}: {error}")
    else:
        if results(out) == expected:
            figures.right += 1
        else:
            figures.wrong.append(f"{what} went unnoticed")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def flip_a_bit(file, fate):
    data = bytearray(file.read_bytes())
    if data:
        data[fate.randrange(len(data))] ^= 1 << fate.randrange(8)
    file.write_bytes(data)


def change_a_digit(file, fate):
    data = bytearray(file.read_bytes())
    digits = [at for at, byte in enumerate(data) if chr(byte).isdigit()]
    if digits:
        data[fate.choice(digits)] = ord(fate.choice("0123456789"))
    file.write_bytes(data)


def truncate(file, fate):
    os.truncate(file, fate.randrange(file.stat().st_size + 1))


def empty(file, fate):
    os.truncate(file, 0)


def remove(file, fate):
    file.unlink()


def append(file, fate):
    with file.open("ab") as end:
        end.write(fate.randbytes(fate.randrange(1, 200)))


def overwrite_a_part(file, fate):
    data = file.read_bytes()
    at = fate.randrange(len(data) + 1)
    file.write_bytes(data[:at] + fate.randbytes(30) + data[at + 30 :])


def clear_a_part(file, fate):
    data = file.read_bytes()
    at = fate.randrange(len(data) + 1)
    file.write_bytes((data[:at] + bytes(512) + data[at + 512 :])[: len(data)])


def repeat_a_part(file, fate):
    data = file.read_bytes()
    low, high = sorted((fate.randrange(len(data) + 1), fate.randrange(len(data) + 1)))
    file.write_bytes(data[:high] + data[low:])


def drop_a_line(file, fate):
    lines = file.read_bytes().splitlines(keepends=True)
    if lines:
        del lines[fate.randrange(len(lines))]
    file.write_bytes(b"".join(lines))


def swap_lines(file, fate):
    lines = file.read_bytes().splitlines(keepends=True)
    fate.shuffle(lines)
    file.write_bytes(b"".join(lines))


def take_another_file(file, fate):
    others = sorted(path for path in file.parent.iterdir() if path.is_file())
    file.write_bytes(fate.choice(others).read_bytes())


def make_a_folder(file, fate):
    file.unlink()
    file.mkdir()


def make_a_pipe(file, fate):
    file.unlink()
    os.mkfifo(file)


def link_to_itself(file, fate):
    file.unlink()
    file.symlink_to(file)


def link_to_nothing(file, fate):
    file.unlink()
    file.symlink_to(file.parent / "nothing" / "there")


def link_elsewhere(file, fate):
    elsewhere = file.parent.parent / "elsewhere"
    shutil.move(file, elsewhere)
    file.symlink_to(elsewhere)


MUTATIONS = (
    flip_a_bit,
    change_a_digit,
    truncate,
    empty,
    remove,
    append,
    overwrite_a_part,
    clear_a_part,
    repeat_a_part,
    drop_a_line,
    swap_lines,
    take_another_file,
    make_a_folder,
    make_a_pipe,
    link_to_itself,
    link_to_nothing,
    link_elsewhere,
)


if __name__ == "__main__":
    which, how_many, start = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="bracketflow-") as where:
        work = {"meetings": meetings, "mutations": mutations}[which]
        found = work(where, int(how_many), int(start))
    print(json.dumps(asdict(found), indent=1))
    raise SystemExit(bool(found.wrong))
