"""Ctrl-C, SIGTERM, kill −9, full disks and second writers: nothing is lost that was there."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.experiments import store, suite
from bracketflow.experiments.__main__ import main
from bracketflow.locking import FolderBusy, folder_lock
from cases import METHODS, N, noise, same_bits, symmetric

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PATIENCE = 120  # seconds that a busy machine may need for what takes one


def python(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def wait_for(condition):
    """Wait until `condition()` is true, and give its value."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise TimeoutError


# run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flow", "tracker-leading"])
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(name, tmp_path, seed):
    script = BENCHMARKS / "endurance_kills.py"
    process = python(script, tmp_path, name, 8, seed)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    figures = json.loads(out)
    assert figures["kills"] >= 5
    assert figures["unreadable"] == figures["differs"] == figures["left_behind"] == 0
    assert figures["lost"] <= 7  # its interval


# An interrupt between the opening of a file and its `with` leaves the closing to the collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", ["so-adaptive", "st-adaptive", "tracker-full", "tracker-leading"])
def test_an_interrupt_at_any_moment_leaves_a_state_and_its_own_probe(name, rng, tmp_path):
    method, columns = METHODS[name]
    signal_ = symmetric(rng, N)
    stream = [signal_ + noise(rng, N, 0.1) for _ in range(400)]
    start = method.init(bf.random_basis(N, columns, rng=rng))
    states = [start]
    for c in stream:
        states.append(method.step(c, states[-1])[0])

    def armed(moment):
        for t, c in enumerate(stream):
            if t == 7:
                signal.setitimer(signal.ITIMER_REAL, moment)
            yield c

    keeper = bf.Checkpoint(tmp_path / "c", 3, method=method)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for moment in rng.uniform(1e-6, 3e-3, 25):
            result = bf.run(method, armed(moment), start, monitors=keeper)
            assert result.status is bf.Status.INTERRUPTED
            steps = int(result.state.steps)
            assert steps >= 7
            assert same_bits(result.state, states[steps])
            assert same_bits(result.probe.basis, states[steps - 1].basis)
            kept = bf.load(tmp_path / "c").state
            assert steps - 3 <= kept.steps <= steps
            assert same_bits(kept, states[int(kept.steps)])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    bf.save(tmp_path / "c", start)
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


# reproduce --------------------------------------------------------------------------------------

CHEAP = ("B5", "counterexamples")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    assert suite.reproduce(CHEAP, quick=True, out=folder) == 0
    return folder


def reproduce(folder, *options, **settings):
    return python(
        "-m", "bracketflow.experiments", "reproduce", *CHEAP, "--out", folder, *options, **settings
    )


def workers_of(process):
    """Numbers of the worker processes, once there are any."""
    listed = Path(f"/proc/{process.pid}/task").glob("*/children")

    def found():
        return [int(pid) for path in listed for pid in path.read_text().split()]

    return found()


def is_alive(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def assert_same_run(folder, whole):
    for path in whole.rglob("*"):
        if path.is_file() and path.name not in ("timings.json", ".lock"):
            assert (folder / path.relative_to(whole)).read_bytes() == path.read_bytes(), path.name
    # Who is killed while it writes leaves its temporary file, which nobody reads.
    extra = {p.name for p in folder.rglob("*")} - {p.name for p in whole.rglob("*")}
    assert all(name.endswith(".tmp") for name in extra)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_reproduce_survives_being_ended(number, whole, tmp_path, rng):
    folder = tmp_path / "run"
    process = reproduce(folder)
    workers = wait_for(lambda: workers_of(process))
    time.sleep(rng.uniform(0, 2))
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE)
    if process.returncode != 0:  # else it was faster than the signal
        if number != signal.SIGKILL:
            assert process.returncode == 128 + number
            assert "go on with --resume" in err
        wait_for(lambda: not any(map(is_alive, workers)))
    again = reproduce(folder, "--resume")
    assert again.wait(timeout=PATIENCE) == 0, again.stderr.read()
    again.communicate()
    assert_same_run(folder, whole)


def test_a_kill_before_the_manifest_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / ".lock").write_text("1\n")
    (tmp_path / ".run.json.1.1.tmp").write_text("{")
    suite.check_folder(tmp_path, "quick", 42, force=False)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(suite.UnusableFolder, match="other contents"):
        suite.check_folder(tmp_path, "quick", 42, force=False)


def test_a_full_disk_is_reported_and_what_was_there_stays(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    small = (500, 500)  # bytes that a file may have: no record fits
    process = reproduce(folder, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, small))
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 2
    assert "File too large" in err.splitlines()[-1]
    assert "Traceback" not in err
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {**before, folder / ".lock": b""} == {**kept, folder / ".lock": b""}


@pytest.mark.parametrize("place", ["/proc/run", "/dev/null", "/dev/null/run"])
def test_a_place_that_cannot_be_written_is_named(place, capsys):
    assert main(["reproduce", "B5", "--out", place]) == 2
    assert place in capsys.readouterr().err


def test_a_second_writer_is_refused_until_the_first_is_gone(whole, tmp_path, capsys):
    folder = tmp_path / "run"
    code = (
        "import sys, time\nfrom bracketflow.locking import folder_lock\n"
        "with folder_lock(sys.argv[1]):\n    print('held', flush=True)\n    time.sleep(600)"
    )
    holder = python("-c", code, folder)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(FolderBusy, match=f"number {holder.pid}"):
        suite.reproduce(CHEAP, quick=True, out=folder)
    assert main(["reproduce", "B5", "--out", str(folder)]) == 2
    assert "wait for it to end" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {".lock"}
    holder.kill()
    holder.communicate()
    assert suite.reproduce(["B5"], quick=True, out=folder) == 0
    with folder_lock(folder), pytest.raises(FolderBusy, match=f"number {os.getpid()}"):
        suite.report(folder)
    assert store.read_record(folder, "B5")
    with pytest.raises(FolderBusy), folder_lock(folder), folder_lock(folder):
        pass


# track ------------------------------------------------------------------------------------------

TRACK = """
import sys
from bracketflow.tracking import page
from bracketflow.tracking.session import Settings, follow
page._draw = lambda *arguments: False  # drawing takes longer than everything else
source, out, resume = sys.argv[1:]
follow(source, out, Settings(k=3, batch=5), resume=resume == "resume", save_every=0.0)
"""


def has_moved_on(process, checkpoint, before):
    ended = process.poll() is not None
    return ended or (checkpoint.exists() and checkpoint.read_bytes() != before)


def test_track_killed_at_random_moments_ends_as_if_it_had_not_been(tmp_path, rng):
    data = tmp_path / "data.npy"
    np.save(data, rng.standard_normal((2000, N)) * np.r_[5.0, 3.0, 2.0, np.ones(N - 3)])
    killed, checkpoint = tmp_path / "killed", tmp_path / "killed" / "checkpoint.bf"
    for life in range(4):
        before = checkpoint.read_bytes() if life else None
        process = python("-c", TRACK, data, killed, "resume" if life else "anew")
        wait_for(partial(has_moved_on, process, checkpoint, before))
        time.sleep(rng.uniform(0, 0.3))
        process.kill()
        process.communicate()
        bf.load(checkpoint)
    for folder, how in ((killed, "resume"), (tmp_path / "whole", "anew")):
        process = python("-c", TRACK, data, folder, how)
        _, err = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, err
    for name in ("checkpoint.bf", "series.csv", "index.html"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_the_unwritable_folder_of_a_checkpoint_is_a_warning(rng, tmp_path, monkeypatch):
    method, columns = METHODS["st-adaptive"]
    start = method.init(bf.random_basis(N, columns, rng=rng))
    keeper = bf.Checkpoint(tmp_path / "c", 5)

    def read_only(self, *args, **kwargs):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "open", read_only)
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        result = bf.run(method, [symmetric(rng, N)] * 12, start, monitors=keeper)
    assert result.state.steps == 12
    assert np.isfinite(result.eigenvalues).all()


def test_reproduce_answers_scripts_with_json(whole, tmp_path, capsys):
    folder = tmp_path / "run"
    (folder / "B5.json").mkdir(parents=True)  # where the record should go: B5 fails
    assert main(["reproduce", *CHEAP, "--out", str(folder), "--force", "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"page": str(folder / "index.html"), "failed": ["B5"]}
