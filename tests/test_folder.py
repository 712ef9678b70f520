"""The folder of `bracketflow track`: one whole run in it, whoever else writes, whatever is damaged.

Runs are in this process and without figures; those that are killed are in `test_kills`.
"""

import errno
import json
import os
import resource
import signal
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

import bracketflow as bf
import endurance_folder
from bracketflow.cli import main
from bracketflow.locking import folder_lock
from bracketflow.monitor import CSV, JSONLines
from bracketflow.tracking import page, series
from bracketflow.tracking.folder import Folder
from bracketflow.tracking.rows import RowTracker, as_batch
from bracketflow.tracking.session import Settings, follow

N, ROWS = 6, 400
SETTINGS = Settings(k=3, batch=20)


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    monkeypatch.setattr(page, "_draw", lambda *arguments: False)


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(3)
    np.save(tmp_path / "data.npy", rng.standard_normal((ROWS, N)) * np.r_[4.0, 2.0, np.ones(N - 2)])
    return tmp_path / "data.npy"


class StopAfter:
    """Ends a stream after some batches, as a signal would."""

    signal = None

    def __init__(self, batches):
        self.batches = batches

    def __call__(self, parts):
        yield from islice(parts, self.batches)
        self.signal = signal.SIGTERM


def files(folder):
    """Every file but those of the lock, which hold a process number."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def results(folder):
    names = ("series.csv", "checkpoint.bf", "eigenpairs.npz", "run.json")
    return {name: (folder / name).read_bytes() for name in names}


@pytest.fixture
def whole(data, tmp_path):
    follow(str(data), tmp_path / "whole", SETTINGS)
    return results(tmp_path / "whole")


@pytest.fixture
def interrupted(data, tmp_path):
    """A folder whose run has read half of the rows."""
    out = tmp_path / "run"
    follow(str(data), out, SETTINGS, interruption=StopAfter(10))
    return out


# Two processes ----------------------------------------------------------------------------------


def meanwhile(monkeypatch, act):
    """Have `act` happen once, while a run has looked at its folder and waits for its first rows."""
    opened = Settings.opened
    waiting = [act]

    def late(self, *args, **options):
        while waiting:
            waiting.pop()()
        return opened(self, *args, **options)

    monkeypatch.setattr(Settings, "opened", late)


@pytest.mark.parametrize("rows", [100, ROWS])
def test_a_run_that_is_replaced_while_another_waits_to_resume_it_stays(
    data, interrupted, tmp_path, monkeypatch, rows
):
    other = tmp_path / "other.npy"
    np.save(other, np.load(data)[:rows] + 1)
    meanwhile(monkeypatch, lambda: follow(str(other), interrupted, Settings(k=2), force=True))
    with pytest.raises(ValueError, match="another process has written there"):
        follow(str(data), interrupted, Settings(), resume=True)
    follow(str(other), tmp_path / "expected", Settings(k=2))
    assert results(interrupted) == results(tmp_path / "expected")


def test_a_run_that_is_resumed_by_two_is_finished_by_one(data, interrupted, whole, monkeypatch):
    meanwhile(monkeypatch, lambda: follow(str(data), interrupted, Settings(), resume=True))
    with pytest.raises(ValueError, match="give --resume again"):
        follow(str(data), interrupted, Settings(), resume=True)
    assert results(interrupted) == whole
    follow(str(data), interrupted, Settings(), resume=True)
    assert results(interrupted) == whole


def test_a_run_that_begins_in_an_empty_folder_does_not_put_another_one_aside(
    data, whole, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    meanwhile(monkeypatch, lambda: follow(str(data), out, SETTINGS))
    with pytest.raises(ValueError, match="holds an earlier run"):
        follow(str(data), out, SETTINGS)
    assert results(out) == whole
    assert not (out / "previous").exists()


def test_processes_that_meet_and_are_killed_leave_one_whole_run(tmp_path, seed):
    figures = endurance_folder.meetings(tmp_path, 12, seed)
    assert figures.wrong == []
    assert figures.ended_well + figures.refused + figures.killed == figures.processes


def test_a_mutated_folder_gives_a_clear_error_or_the_right_result(tmp_path, seed):
    figures = endurance_folder.mutations(tmp_path, 60, seed)
    assert figures.wrong == []
    assert figures.refused > 0
    assert figures.right > 0


def test_an_earlier_run_that_was_put_aside_by_half_is_put_aside_whole(data, interrupted):
    before = results(interrupted)
    real, moved = Path.rename, []

    def dies(self, target):
        if len(moved) == 2:
            raise KeyboardInterrupt
        moved.append(self)
        return real(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            follow(str(data), interrupted, SETTINGS, force=True)
    assert main(["track", str(data), "--out", str(interrupted), "--resume"]) == 2
    follow(str(data), interrupted, SETTINGS, force=True)
    assert results(interrupted / "previous" / "1") == before
    follow(str(data), interrupted, SETTINGS, force=True)
    assert sorted(os.listdir(interrupted / "previous")) == ["1", "2"]


def test_earlier_runs_are_numbered_on_where_some_were_removed(data, interrupted):
    for _ in range(2):
        follow(str(data), interrupted, SETTINGS, force=True)
    (interrupted / "previous" / "1").rename(interrupted / "previous" / "kept")
    follow(str(data), interrupted, SETTINGS, force=True)
    assert sorted(os.listdir(interrupted / "previous")) == ["2", "3", "kept"]


# The lock ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "pipe"])
def test_a_lock_that_stands_for_something_else_is_refused(data, tmp_path, capsys, kind):
    out = tmp_path / "run"
    out.mkdir()
    thesis = tmp_path / "thesis.tex"
    if kind == "link":
        thesis.write_text("mine")
    if kind in ("link", "dangling"):
        (out / ".lock").symlink_to(thesis)
    elif kind == "folder":
        (out / ".lock").mkdir()
    else:
        os.mkfifo(out / ".lock")
    assert main(["track", str(data), "--out", str(out)]) == 2
    assert f"{out / '.lock'}: a link, or no ordinary file: remove it" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == [".lock"]
    assert not thesis.exists() or thesis.read_text() == "mine"


def test_a_lock_may_be_held_again_after_a_refusal(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="remove it"), folder_lock(tmp_path):
        pass
    (tmp_path / ".lock").unlink()
    with folder_lock(tmp_path):
        assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"


# Damage -----------------------------------------------------------------------------------------


def lose_a_line(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))


def change_a_digit(path):
    text = bytearray(path.read_bytes())
    at = len(text) // 2
    while not chr(text[at]).isdigit():
        at += 1
    text[at] = ord("1") + (text[at] == ord("1"))
    path.write_bytes(text)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: os.truncate(path, path.stat().st_size // 3),
        Path.unlink,
        lose_a_line,
        change_a_digit,
    ],
    ids=["emptied", "truncated", "removed", "a line less", "a digit changed"],
)
def test_a_damaged_series_is_not_gone_on_with(data, interrupted, capsys, damage):
    damage(interrupted / "series.csv")
    before = files(interrupted)
    assert main(["track", str(data), "--out", str(interrupted), "--resume"]) == 2
    assert "series.csv: damaged, its first" in capsys.readouterr().err
    assert files(interrupted) == before


def test_settings_that_were_changed_in_the_manifest_are_not_gone_on_with(data, interrupted, capsys):
    path = interrupted / "run.json"
    path.write_text(path.read_text().replace('"batch": 20', '"batch": 10'))
    before = files(interrupted)
    assert main(["track", str(data), "--out", str(interrupted), "--resume"]) == 2
    assert "run.json: damaged" in capsys.readouterr().err
    assert files(interrupted) == before
    assert main(["track", str(data), "--out", str(interrupted), "--force"]) == 0


@pytest.mark.parametrize("name", ["run.json", "series.csv", "checkpoint.bf"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(data, interrupted, capsys, name):
    (interrupted / name).unlink()
    os.mkfifo(interrupted / name)
    assert main(["track", str(data), "--out", str(interrupted), "--resume"]) == 2
    assert "ordinary file" in capsys.readouterr().err


# A full disk ------------------------------------------------------------------------------------


class Full:
    """A disk on which one file cannot grow beyond a size."""

    def __init__(self, monkeypatch, name, size):
        self.name, self.size = name, size
        monkeypatch.setattr(series.Writer, "flush", self.flush())

    def flush(self):
        real = series.Writer.flush

        def flush(writer, **options):
            real(writer, **options)
            if writer.path.name == self.name and writer.path.stat().st_size > self.size:
                os.truncate(writer.path, self.size)
                raise OSError(errno.ENOSPC, "No space left on device", str(writer.path))

        return flush


def test_a_full_disk_names_its_file_and_loses_nothing(data, whole, tmp_path, capsys, monkeypatch):
    """Also in the first seconds of a run, before its first regular checkpoint."""
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        Full(patch, "series.csv", 3000)
        assert main(["track", str(data), "-k", "3", "--batch", "20", "--out", str(out)]) == 2
    told = capsys.readouterr().err
    assert f"{out / 'series.csv'}: No space left on device: mend that and go on" in told
    assert bf.load(out / "checkpoint.bf").state.steps > 3
    assert main(["track", str(data), "--out", str(out), "--resume"]) == 0
    assert results(out) == whole


@pytest.mark.parametrize("name", ["run.json", "checkpoint.bf"])
@pytest.mark.parametrize("earlier", [False, True])
def test_a_disk_that_does_not_hold_a_new_run_leaves_the_folder_as_it_was(
    data, tmp_path, capsys, monkeypatch, name, earlier
):
    out, command = tmp_path / "run", ["track", str(data), "-k", "2", "--batch", "20"]
    again = [*command, "--out", str(out), *(["--force"] if earlier else [])]
    if earlier:
        for _ in range(2):  # one is on the shelf
            assert main([*again, "--batch", "40"]) == 0
    before, real = files(out), os.fsync

    def full(number):
        if name in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        assert main(again) == 2
    told = capsys.readouterr().err
    assert f"{out / name}: No space left on device: the folder is as it was" in told
    assert files(out) == before
    assert main(again) == 0
    assert len(list(out.glob("previous/*"))) == 2 * earlier


def test_a_process_whose_files_cannot_grow_says_which_and_can_be_resumed(data, tmp_path):
    out, settings = tmp_path / "run", Settings(k=3, batch=2)
    follow(str(data), tmp_path / "whole", settings)
    sizes = {name: len(kept) for name, kept in results(tmp_path / "whole").items()}
    limit = sizes["series.csv"] // 2
    assert limit > sizes["checkpoint.bf"]
    child = os.fork()
    if child == 0:
        said = (tmp_path / "said").open("w")  # opened before files are limited
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            follow(str(data), out, settings)
        except BaseException as error:
            said.write(f"{type(error).__name__}: {error}")
            said.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"ValueError: {out / 'series.csv'}: File too large: mend that"), said
    assert bf.load(out / "checkpoint.bf").state.steps > 50
    follow(str(data), out, Settings(), resume=True)
    assert results(out) == results(tmp_path / "whole")


@pytest.mark.parametrize("kind", [CSV, JSONLines])
def test_a_sink_on_a_full_disk_names_its_file(kind):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    sink = kind("/dev/full")
    sink({"step": 1})
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        sink.flush()
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        sink.close()


# The last bit -----------------------------------------------------------------------------------


def arrays(value):
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from arrays(part)


@pytest.mark.parametrize(("n", "k"), [(5, 2), (40, 7), (80, 3)])
def test_a_state_in_memory_is_laid_out_as_the_one_read_from_its_checkpoint(tmp_path, n, k, rng):
    """Sums of the same numbers in other layouts differ in their last bit, and so would a line."""
    method, folder = RowTracker(), Folder(tmp_path)
    state = method.init(bf.random_basis(n, k, rng=0))
    for _ in range(6):
        batch = as_batch(rng.standard_normal((30, n)))
        after, probe = method.step(batch, state)
        assert all(array.flags.c_contiguous for array in arrays(after))
        folder.save_state(state, method, series.NOTHING_WRITTEN)
        read = folder.load_state()
        _, again = method.step(batch, read)
        lines = [
            json.dumps({**series.of_state(method, s), **series.of_batch(s, p)})
            for s, p in ((state, probe), (read, again))
        ]
        assert lines[0] == lines[1]
        state = after
