"""`bracketflow track` by several ranks: the same as by one process, together to the end."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this build of torch has no gloo",
)

import bracketflow as bf  # noqa: E402
from bracketflow.cli import main  # noqa: E402
from bracketflow.distributed.joining import attempt  # noqa: E402
from bracketflow.locking import folder_lock  # noqa: E402
from bracketflow.tracking import page  # noqa: E402
from bracketflow.tracking.ranks import ALONE, launched  # noqa: E402
from bracketflow.tracking.rows import RowTracker, as_batch, eigenpairs, ledger_of  # noqa: E402
from bracketflow.tracking.session import follow  # noqa: E402
from bracketflow.tracking.settings import Settings  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent / "distributed_workers"))
from launch import ENVIRONMENT, Ranks  # noqa: E402

N, ROWS, BATCH = 10, 1003, 50
SCENE = "tracking_scenes:followed"
SETTINGS = {"k": 3, "batch": BATCH}
BOUND = 240.0  # seconds for a job that takes 10 on a machine with nothing else to do
# Every way of starting must do without what a script of one's own may need.
PLAIN = {**ENVIRONMENT, "COLUMNS": "100"}
del PLAIN["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]
ENDINGS = (".npy", ".csv", ".npz", ".parquet", ".h5")


@pytest.fixture(scope="module")
def pool():
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch):
    monkeypatch.setattr(page, "_draw", lambda *arguments: False)


def made(rows=ROWS, seed=5, mean=20.0):
    rng = np.random.default_rng(seed)
    scales = np.r_[5.0, 3.0, 2.0, np.ones(N - 3)]
    return (rng.standard_normal((rows, N)) * scales) @ bf.random_basis(N, rng=rng) + mean


def written(path, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".csv":
        np.savetxt(path, rows, delimiter=",", fmt="%.17g")
    elif path.suffix == ".npz":
        np.savez(path, rows)
    elif path.suffix == ".parquet":
        arrow, parquet = (pytest.importorskip(m) for m in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(arrow.table({f"c{i}": rows[:, i] for i in range(N)}), path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["rows"] = rows
    return str(path)


def together(pool, source, out, *, ranks=2, settings=SETTINGS, **options):
    """The common answer of all ranks, whose states agree to the last bit."""
    options = {"settings": settings, "bound": BOUND, **options}
    answers = pool.results(SCENE, ranks=ranks, source=str(source), out=str(out), **options)
    assert all(answer == answers[0] for answer in answers)
    return answers[0]


def refused(pool, source, out, *, ranks=2, settings=SETTINGS, **options):
    """What every rank says of a run that cannot be made; the folder is not touched."""
    before = {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    options = {"settings": settings, **options}
    answers = pool.run(SCENE, ranks=ranks, source=str(source), out=str(out), **options)
    told = {answer["error"] for answer in answers}
    assert len(told) == 1
    assert {p: p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()} == before
    return told.pop()


def pairs(folder):
    return dict(np.load(folder / "eigenpairs.npz"))


def close(found, expected, tolerance=1e-12):
    """Figures equal but for roundings: of vectors beside 1, of variances beside the largest."""
    assert found.keys() == expected.keys()
    scales = {"eigenvectors": 1.0, "vector_errors": 1.0, "mean": np.max(np.abs(expected["mean"]))}
    for name, value in expected.items():
        scale = scales.get(name, np.max(expected["eigenvalues"]))
        known = ~np.isnan(value)
        assert np.array_equal(known, ~np.isnan(found[name])), name
        assert np.all(np.abs(found[name] - value)[known] <= tolerance * scale), name


def same(folder, other):
    """Figures and series are the same byte for byte."""
    assert (folder / "series.csv").read_bytes() == (other / "series.csv").read_bytes()
    assert {n: v.tobytes() for n, v in pairs(folder).items()} == {
        n: v.tobytes() for n, v in pairs(other).items()
    }


# The same as one process ------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_kind_of_file(pool, tmp_path, ending):
    source = written(tmp_path / f"a{ending}", made())
    follow(source, tmp_path / "alone", Settings(**SETTINGS))
    answer = together(pool, source, tmp_path / "run")
    assert answer["status"] == "STREAM_ENDED"
    assert answer["rows"] == ROWS
    close(pairs(tmp_path / "run"), pairs(tmp_path / "alone"))
    series = [
        (tmp_path / name / "series.csv").read_text().splitlines() for name in ("run", "alone")
    ]
    assert len(series[0]) == len(series[1])
    assert [line.split(",")[:3] for line in series[0]] == [
        line.split(",")[:3] for line in series[1]
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"k": N, "batch": BATCH},
        {"k": 3, "batch": BATCH, "centre": False},
        {"k": 3, "batch": BATCH, "forget": 0.0},
        {"k": 1, "batch": 7},
    ],
)
def test_every_setting(pool, tmp_path, settings):
    source = written(tmp_path / "a.npy", made())
    follow(source, tmp_path / "alone", Settings(**settings))
    together(pool, source, tmp_path / "run", ranks=3, settings=settings)
    found, expected = pairs(tmp_path / "run"), pairs(tmp_path / "alone")
    if settings["batch"] < N:  # a vector beyond the rank of a batch, and its bar, are rounding's
        bars = [known.pop("vector_errors") for known in (found, expected)]
        assert bars[0] == pytest.approx(bars[1], rel=1e-5)
    close(found, expected)


@pytest.mark.parametrize("mean", [1e3, 1e6])
def test_a_large_mean_is_taken_out_without_loss(pool, tmp_path, mean):
    """Rows of 1e6 are themselves known to 1e-10 only: that much, squared nowhere, is lost."""
    source = written(tmp_path / "a.npy", made(mean=mean))
    follow(source, tmp_path / "alone", Settings(**SETTINGS))
    together(pool, source, tmp_path / "run")
    close(pairs(tmp_path / "run"), pairs(tmp_path / "alone"), 50 * np.finfo(float).eps * mean)


def test_sparse_and_single_precision(pool, tmp_path):
    rows = made(mean=0.5)
    rows[np.abs(rows) < 1] = 0
    sparse.save_npz(tmp_path / "a.npz", sparse.csr_array(rows))
    np.save(tmp_path / "a.npy", rows.astype(np.float32))
    for name, tolerance in [("a.npz", 1e-12), ("a.npy", 4500 * np.finfo(np.float32).eps)]:
        follow(str(tmp_path / name), tmp_path / f"alone {name}", Settings(**SETTINGS))
        together(pool, tmp_path / name, tmp_path / f"run {name}")
        found, expected = (pairs(tmp_path / f"{run} {name}") for run in ("run", "alone"))
        close(found, expected, tolerance)
        assert found["mean"].dtype == np.float64


def test_a_batch_that_counts_little_does_so_for_all(pool, tmp_path):
    rows = made(2000)
    rows[1000:1050] += 1e4
    source = written(tmp_path / "a.npy", rows)
    expected = follow(source, tmp_path / "alone", Settings(**SETTINGS))
    together(pool, source, tmp_path / "run")
    # What is left of the loud batch carries its own rounding.
    close(pairs(tmp_path / "run"), pairs(tmp_path / "alone"), 1e-11)
    found = json.loads((tmp_path / "run" / "run.json").read_text())["result"]
    assert found["counted_little_at"] == expected.summary["counted_little_at"] == [20]
    assert "loud observation" in (tmp_path / "run" / "series.csv").read_text()


@pytest.mark.parametrize(("settings", "column"), [({}, 1), ({"centre": False}, 0)])
def test_one_message_a_batch(pool, tmp_path, settings, column):
    """Block, sum of the rows, tail."""
    source = written(tmp_path / "a.npy", made())
    answer = together(pool, source, tmp_path / "run", settings={**SETTINGS, **settings})
    summary = json.loads((tmp_path / "run" / "run.json").read_text())["result"]
    batches = -(-ROWS // BATCH)
    assert len(answer["messages"]) == batches + 1  # the first is tried before anything is written
    trial, numbers = answer["messages"][0], sum(answer["messages"])
    assert numbers - trial == 8 * (N * summary["matvecs"] + batches * (N * column + 6))


def test_rows_that_are_left_out(pool, tmp_path):
    rows = made()
    rows[[3, 500, 501, 1002]] = np.nan
    source = written(tmp_path / "a.npy", rows)
    settings = {**SETTINGS, "skip_bad": True}
    follow(source, tmp_path / "alone", Settings(**settings))
    answer = together(pool, source, tmp_path / "run", settings=settings)
    assert answer["refused"] == 4
    close(pairs(tmp_path / "run"), pairs(tmp_path / "alone"))


# A file a rank ----------------------------------------------------------------------------------


def own_files(folder, lengths, ending=".npy"):
    """Files of these lengths, their common name, and the batches that they make together."""
    files = [made(length, seed=rank) for rank, length in enumerate(lengths)]
    for rank, rows in enumerate(files):
        written(folder / f"part{rank}{ending}", rows)
    edges = [BATCH * rank // len(files) for rank in range(len(files) + 1)]
    shares = [high - low for low, high in pairwise(edges)]
    count = max(-(-len(rows) // share) for rows, share in zip(files, shares, strict=True))
    batches = [
        np.concatenate([rows[t * b : (t + 1) * b] for rows, b in zip(files, shares, strict=True)])
        for t in range(count)
    ]
    return str(folder / f"part{{rank}}{ending}"), batches


def tracked(batches, k=3):
    """Figures of the same batches in this process."""
    method = RowTracker()
    state = method.init(bf.random_basis(N, k, rng=0))
    for rows in batches:
        state, _ = method.step(as_batch(rows), state)
    assert ledger_of(state).read == sum(map(len, batches))
    return eigenpairs(state, method)


@pytest.mark.parametrize("lengths", [(400, 400), (30, 700), (700, 0), (333, 100, 260)])
def test_files_of_different_length_end_together(pool, tmp_path, lengths):
    source, batches = own_files(tmp_path, lengths)
    answer = together(pool, source, tmp_path / "run", ranks=len(lengths))
    assert answer["status"] == "STREAM_ENDED"
    assert answer["rows"] == sum(lengths)
    close(pairs(tmp_path / "run"), tracked(batches))


@pytest.mark.parametrize(("cut", "ending"), [(1, ".npy"), (12, ".npy"), (12, ".csv")])
def test_files_of_their_own_are_resumed(pool, tmp_path, cut, ending):
    """Before and after the shorter file has ended."""
    source, batches = own_files(tmp_path, (200, 500), ending)
    together(pool, source, tmp_path / "whole")
    first = together(pool, source, tmp_path / "run", stop=[1, cut - 1, signal.SIGTERM])
    assert first["rows"] == sum(map(len, batches[:cut]))
    together(pool, source, tmp_path / "run", settings={}, resume=True)
    same(tmp_path / "run", tmp_path / "whole")
    close(pairs(tmp_path / "run"), tracked(batches))


def test_files_of_their_own_must_be_the_same_when_resumed(pool, tmp_path):
    source, _ = own_files(tmp_path, (200, 500))
    out = tmp_path / "run"
    together(pool, source, out, stop=[0, 12, signal.SIGTERM])
    told = refused(pool, source, out, ranks=3, settings={}, resume=True)
    assert "a file for each of 2 ranks, but now there is a file for each of 3 ranks" in told
    told = refused(pool, tmp_path / "part0.npy", out, settings={}, resume=True)
    assert "a file for each of 2 ranks, but now there is one file for all" in told
    with pytest.raises(ValueError, match="a file for each of 2 ranks"):
        follow(source, out, Settings(), resume=True)
    written(tmp_path / "part0.npy", made(260, seed=0))
    told = refused(pool, source, out, settings={}, resume=True)
    assert "hold 585 rows but 525 were read before" in told
    written(tmp_path / "part0.npy", made(200, seed=9))
    assert "begins with other rows" in refused(pool, source, out, settings={}, resume=True)


# Interruptions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_one_rank_ends_all(pool, tmp_path, rank):
    source = written(tmp_path / "a.csv", made())
    together(pool, source, tmp_path / "whole")
    first = together(pool, source, tmp_path / "run", stop=[rank, 6, signal.SIGINT])
    assert first["status"] == "INTERRUPTED"
    assert first["signal"] == signal.SIGINT
    assert first["rows"] == 7 * BATCH  # that it came was told with the seventh
    second = together(pool, source, tmp_path / "run", settings={}, resume=True)
    assert second["rows"] == ROWS
    same(tmp_path / "run", tmp_path / "whole")


def test_one_file_is_resumed_by_any_number_of_ranks(pool, tmp_path):
    source, out = written(tmp_path / "a.npy", made()), tmp_path / "run"
    follow(source, tmp_path / "alone", Settings(**SETTINGS))
    together(pool, source, out, stop=[1, 3, signal.SIGTERM])
    together(pool, source, out, ranks=3, settings={}, resume=True, stop=[2, 3, signal.SIGTERM])
    follow(source, out, Settings(), resume=True)
    close(pairs(out), pairs(tmp_path / "alone"))
    again = together(pool, source, out, settings={}, resume=True)  # nothing is left to be read
    assert again["messages"] == []
    assert again["rows"] == ROWS


# What goes wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "culprit"), [(601, "rank 0"), (649, "rank 1")])
def test_rows_that_cannot_be_read_end_all_and_are_named(pool, tmp_path, row, culprit):
    rows = made()
    source = written(tmp_path / "a.npy", rows)
    together(pool, source, tmp_path / "whole")
    broken = np.copy(rows)
    broken[row - 1, 2] = np.inf
    written(tmp_path / "a.npy", broken)
    answer = together(pool, source, tmp_path / "run")
    assert f"{culprit}: {source}: row {row}, column 3: inf is not a finite" in answer["problem"]
    assert answer["rows"] == 600
    assert answer["status"] == "INTERRUPTED"
    written(tmp_path / "a.npy", rows)
    together(pool, source, tmp_path / "run", settings={}, resume=True)
    same(tmp_path / "run", tmp_path / "whole")


def test_text_is_told_by_row_and_line(pool, tmp_path):
    path = Path(written(tmp_path / "a.csv", made()))
    lines = path.read_text().splitlines()
    lines[239] = lines[239].replace(",", ",x", 1)
    path.write_text("# a comment\n" + "\n".join(lines))
    answer = together(pool, path, tmp_path / "run")
    assert f"rank 1: {path}: row 240 (line 241), column 2: 'x" in answer["problem"]


def test_what_cannot_be_begun_is_told_on_every_rank(pool, tmp_path):
    out, source = tmp_path / "run", written(tmp_path / "a.npy", made())
    for name, settings, told in [
        ("gone.npy", SETTINGS, "gone.npy: no such file"),
        ("a.npy", {"k": 99}, "k = 99 is more than its 10 columns"),
        ("a.npy", {"batch": 1}, "--batch 1: 2 ranks share a batch"),
    ]:
        assert told in refused(pool, tmp_path / name, out, settings=settings)
    assert not out.exists()
    together(pool, source, out)
    assert "holds an earlier run: pass --resume" in refused(pool, source, out)
    assert "goes on with k = 3, got 2" in refused(pool, source, out, settings={"k": 2}, resume=True)
    with folder_lock(out):
        assert "another process" in refused(pool, source, out, force=True)
    other = written(tmp_path / "b.npy", made(seed=1))
    assert "begins with other rows" in refused(pool, other, out, settings={}, resume=True)


def test_ranks_with_other_settings_or_files_are_told_so(pool, tmp_path):
    source, out = written(tmp_path / "a.npy", made()), tmp_path / "run"
    told = refused(pool, source, out, of_rank={"1": {"settings": {"k": 2, "batch": 8}}})
    assert "batch is 8 on rank 1 but 50 on rank 0; k is 2 on rank 1 but 3 on rank 0" in told
    other = written(tmp_path / "b.npy", made(900))
    told = refused(pool, source, out, of_rank={"1": {"source": other}})
    assert "rows is 900 on rank 1 but 1003 on rank 0" in told
    each = str(tmp_path / "part{rank}.npy")
    told = refused(pool, source, out, of_rank={"1": {"source": each}})
    assert "a file of its own is True on rank 1 but False on rank 0" in told


def test_a_rank_without_its_file_is_named(pool, tmp_path):
    source = tmp_path / "part{rank}.npy"
    written(tmp_path / "part0.npy", made())
    told = refused(pool, source, tmp_path / "run")
    assert told == f"ValueError: rank 1: {tmp_path / 'part1.npy'}: no such file"
    written(tmp_path / "part1.npy", made().astype(np.float32))
    told = refused(pool, source, tmp_path / "run")
    assert "dtype is 'float32' on rank 1 but 'float64' on rank 0" in told
    for rank in range(2):
        np.save(tmp_path / f"part{rank}.npy", np.empty((0, N)))
    assert "holds no rows" in refused(pool, source, tmp_path / "run")


@pytest.mark.parametrize("what", ["dies", "hangs"])
def test_a_lost_rank_is_noticed_and_nothing_is_lost(pool, tmp_path, what):
    source, out = written(tmp_path / "a.npy", made()), tmp_path / "run"
    together(pool, source, tmp_path / "whole")
    first, _ = pool.run(
        SCENE,
        source=source,
        out=str(out),
        settings=SETTINGS,
        act=[1, 8, what],
        timeout=3.0,
        bound=15.0,
    )
    assert "rank 0 of 2 got no answer" in first["error"]
    together(pool, source, out, settings={}, resume=True)
    same(out, tmp_path / "whole")


# torchrun ---------------------------------------------------------------------------------------


class Torchrun:
    """`torchrun` of the command, in a session of its own, of which nothing is left."""

    def __init__(self, *arguments, ranks=2, restarts=0, meet="--standalone"):
        command = [sys.executable, "-m", "torch.distributed.run", meet]
        command += [f"--nproc-per-node={ranks}", f"--max-restarts={restarts}"]
        command += ["--monitor-interval=0.05", "-m", "bracketflow", "track"]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=PLAIN,
            start_new_session=True,
        )

    def workers(self):
        """Process numbers of the ranks, in no order."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(child) for child in children.read_text().split()]

    def wait(self, bound=BOUND):
        """Exit code, output and complaints."""
        ranks = self.workers() if self.process.poll() is None else []
        try:
            output, errors = self.process.communicate(timeout=bound)
        finally:
            for pid in [self.process.pid, *ranks]:  # each leads a session
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        return self.process.returncode, output, errors

    def until(self, path, lines, bound=BOUND):
        """Wait until a series has so many lines."""
        deadline = time.monotonic() + bound
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert self.process.poll() is None, self.wait()
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_torchrun_shows_once_and_writes_once(tmp_path):
    source, out = written(tmp_path / "a.npy", made()), tmp_path / "run"
    follow(source, tmp_path / "alone", Settings(k=3, batch=BATCH))
    code, shown, complaints = Torchrun(
        source, "-k", 3, "--batch", BATCH, "--out", out, "--json"
    ).wait()
    assert code == 0, complaints
    found = json.loads(shown)
    assert found["finished"] is True
    assert found["rows"] == ROWS
    assert complaints == ""
    close(pairs(out), pairs(tmp_path / "alone"))
    assert (out / "index.html").read_text().count("<html") == 1


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.mark.parametrize(
    ("victim", "number", "meet"),
    [("0", signal.SIGINT, "--master-port={}"), ("1", signal.SIGTERM, "--standalone")],
)
def test_killed_started_again_interrupted_resumed(pool, tmp_path, victim, number, meet):
    """Through all of that, the end is the undisturbed one to the last bit.

    With a port given, torchrun keeps one store for all attempts, with the addresses of the dead.
    """
    settings = {"k": 2, "batch": 16}
    source, out = written(tmp_path / "a.npy", made(16_000)), tmp_path / "run"
    command = (source, "-k", 2, "--batch", 16, "--out", out)
    job = Torchrun(*command, restarts=1, meet=meet.format(free_port()))
    job.until(out / "series.csv", 100)
    (lost,) = (pid for pid in job.workers() if _environment(pid)["RANK"] == victim)
    os.kill(lost, signal.SIGKILL)
    job.until(out / "series.csv", 400)
    job.process.send_signal(number)
    code, shown, complaints = job.wait()
    assert code == 1  # torchrun's own
    assert shown.count("The page is") == 1
    assert complaints.count("interrupted, nothing is lost: go on with the same command") == 1
    assert json.loads((out / "run.json").read_text())["status"] == "INTERRUPTED"
    together(pool, source, tmp_path / "whole", settings=settings)
    together(pool, source, out, settings={}, resume=True)
    same(out, tmp_path / "whole")


HANGS = """
import pathlib, sys, time
from bracketflow.cli import main
from bracketflow.tracking.together import _SharedBatch
added, calls = _SharedBatch.added, []
def hanging(batch, *arguments, **options):
    calls.append(batch)
    if len(calls) == 150:
        pathlib.Path(sys.argv[1]).touch()
        while True:
            time.sleep(1)
    return added(batch, *arguments, **options)
_SharedBatch.added = hanging
main(sys.argv[2:])
"""


@contextlib.contextmanager
def two_ranks(source, out, mark=None):
    """Two ranks without torchrun, in the middle of their run.

    With a `mark`, a file that is made then, the second hangs, and does not hear signals.
    """
    track = ["track", source, "-k", "2", "--batch", "16", "--out", str(out)]
    plain = [sys.executable, "-m", "bracketflow", *track]
    hangs = [sys.executable, "-c", HANGS, str(mark), *track]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            plain if mark is None or rank == 0 else hangs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**PLAIN, **meeting, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    series = out / "series.csv"

    def begun():
        if mark is not None:
            return mark.exists()
        return series.exists() and series.read_bytes().count(b"\n") >= 100

    try:
        deadline = time.monotonic() + BOUND
        while not begun():
            assert ranks[0].poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_woken_when_the_others_are_told_to_end(pool, tmp_path, victim):
    """Whoever it is, the first one too, who alone can save: nothing that was seen is lost."""
    source, out = written(tmp_path / "a.npy", made(16_000)), tmp_path / "run"
    with two_ranks(source, out) as ranks:
        ranks[victim].send_signal(signal.SIGSTOP)
        ranks[1 - victim].send_signal(signal.SIGTERM)
        complaints = [rank.communicate(timeout=BOUND)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [128 + signal.SIGTERM] * 2, complaints
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["status"] == "INTERRUPTED"
    steps = bf.load(out / "checkpoint.bf").state.steps
    assert steps == (out / "series.csv").read_bytes().count(b"\n") - 2  # the head, and step 0
    together(pool, source, tmp_path / "whole", settings={"k": 2, "batch": 16})
    together(pool, source, out, settings={}, resume=True)
    same(out, tmp_path / "whole")


def test_a_rank_that_is_told_to_end_does_not_wait_for_one_that_hangs(pool, tmp_path):
    """What it has seen is saved, long before torchrun would kill it."""
    source, out = written(tmp_path / "a.npy", made(16_000)), tmp_path / "run"
    with two_ranks(source, out, mark=tmp_path / "hangs") as (first, _):
        first.send_signal(signal.SIGTERM)
        _, complaints = first.communicate(timeout=BOUND)
    assert first.returncode == 2
    assert "rank 0 of 2 was asked to end and got no answer for 10 s" in complaints
    # Its line may be written; the batch after it is the one that was waited for.
    lines = (out / "series.csv").read_bytes().count(b"\n")
    assert bf.load(out / "checkpoint.bf").state.steps >= lines - 2
    together(pool, source, tmp_path / "whole", settings={"k": 2, "batch": 16})
    together(pool, source, out, settings={}, resume=True)
    same(out, tmp_path / "whole")


def test_ranks_do_not_take_the_dead_for_the_living():
    """What a rank of an earlier attempt has left in the store is not waited for or believed."""
    store, patience = torch.distributed.HashStore(), timedelta(seconds=BOUND)
    names = []
    for _ in range(3):
        with ThreadPoolExecutor(3) as pool:
            ranks = [pool.submit(attempt, store, rank, 3, patience) for rank in range(3)]
            names.append({rank.result() for rank in ranks})
        store.set("bracketflow/here/1", "a number of one that died while it was waiting")
    assert [len(name) for name in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3


def test_a_rank_that_does_not_come_is_named():
    store = torch.distributed.HashStore()
    with pytest.raises(RuntimeError, match=r"ranks \[1, 2\] were not there within 0:00:00.1"):
        attempt(store, 0, 3, timedelta(seconds=0.1))


def _environment(pid):
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


# One process ------------------------------------------------------------------------------------


def test_one_process_needs_no_torch(tmp_path):
    source = written(tmp_path / "a.npy", made())
    code = (
        "import sys\nfrom bracketflow.cli import main\n"
        f"done = main(['track', {source!r}, '-k', '2', '--out', {str(tmp_path / 'run')!r}])\n"
        "sys.exit(done or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=BOUND)


def test_who_is_launched(monkeypatch, capsys):
    with launched("-") as ranks:
        assert ranks is ALONE
    for name, value in [("RANK", "0"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")]:
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with launched("a{rank}.npy") as ranks:
        assert ranks is ALONE
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["track", "-"]) == 2
    assert "standard input has no parts for the ranks" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "bracketflow.tracking.together", None)
    assert main(["track", "a.npy"]) == 2
    assert "pip install 'bracketflow[torch]'" in capsys.readouterr().err
