"""`bracketflow track` and `decompose`: files in, a folder out, nothing lost, codes for scripts."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from io import BytesIO
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import io, sparse

import bracketflow as bf
from bracketflow.cli import main
from bracketflow.locking import FolderBusy, folder_lock
from bracketflow.tracking import page
from bracketflow.tracking.command import live_line
from bracketflow.tracking.rows import RowTracker, as_batch, ledger_of
from bracketflow.tracking.session import Settings, follow

N, ROWS = 8, 1000
SCALES = np.r_[5.0, 3.0, 2.0, np.ones(N - 3)]


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(5)
    rows = (rng.standard_normal((ROWS, N)) * SCALES) @ bf.random_basis(N, rng=rng) + 20
    np.save(tmp_path / "data.npy", rows)
    return tmp_path / "data.npy"


@pytest.fixture
def no_figures(monkeypatch):
    """Pages without plots: drawing takes longer than everything else."""
    monkeypatch.setattr(page, "_draw", lambda *arguments: False)


def track(*arguments):
    return main(["track", *map(str, arguments)])


def contents(folder):
    """Everything that must not depend on how a run was cut into pieces."""
    pairs = dict(np.load(folder / "eigenpairs.npz"))
    return {
        "series": (folder / "series.csv").read_bytes(),
        "checkpoint": (folder / "checkpoint.bf").read_bytes(),
        "pairs": {name: value.tobytes() for name, value in pairs.items()},
        "page": (folder / "index.html").read_bytes(),
    }


def snapshot(folder):
    return {p: p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


class StopAfter:
    """Ends a stream after some batches, as a signal would."""

    signal = None

    def __init__(self, count):
        self.count = count

    def __call__(self, parts):
        yield from islice(parts, self.count)
        self.signal = signal.SIGINT


# What comes out ---------------------------------------------------------------------------------


def test_track_writes_what_pca_would_find(data, tmp_path, capsys):
    out = tmp_path / "run"
    assert track(data, "-k", 3, "--batch", 64, "--out", out) == 0
    shown = capsys.readouterr().out
    assert f"{data}: 1,000 rows × 8 columns" in shown
    assert f"The page is {out / 'index.html'}" in shown
    rows = np.load(data)
    values, vectors = np.linalg.eigh(np.cov(rows.T, bias=True))
    pairs = np.load(out / "eigenpairs.npz")
    # The error bars are of two standard errors; both are estimates from the same rows.
    assert np.all(np.abs(pairs["eigenvalues"] - values[::-1][:3]) < 2 * pairs["eigenvalue_errors"])
    assert bf.subspace_error(pairs["eigenvectors"], vectors[:, -3:]) < 2 * np.linalg.norm(
        pairs["vector_errors"]
    )
    assert pairs["mean"] == pytest.approx(rows.mean(axis=0), rel=1e-13)
    assert pairs["total_variance"] == pytest.approx(values.sum(), rel=0.05)
    assert pairs["background"] == pytest.approx(values[:-3].mean(), rel=0.1)
    files = {p.name for p in out.iterdir()}
    assert {"index.html", "series.csv", "series.parquet", "checkpoint.bf", "run.json"} <= files


def test_full_basis_and_no_centring(data, tmp_path, capsys):
    full = "-k", N, "--out", tmp_path / "full", "--no-centre", "--forget", 0, "--json"
    assert track(data, *full) == 0
    found = json.loads(capsys.readouterr().out)
    rows = np.load(data)
    second = np.linalg.eigvalsh(rows.T @ rows / ROWS)[::-1]
    assert found["eigenvalues"][0] == pytest.approx(second[0], rel=1e-3)
    assert found["background"] is None
    assert "Background" not in (tmp_path / "full" / "index.html").read_text()


@pytest.mark.usefixtures("no_figures")
def test_json_is_one_object_and_nothing_else(data, tmp_path, capsys):
    assert track(data, "--out", tmp_path / "run", "--json") == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert found["finished"] is True
    assert found["status"] == "STREAM_ENDED"
    assert (found["rows"], found["columns"], found["k"]) == (ROWS, N, 5)
    assert len(found["eigenvalues"]) == len(found["share"]) == 5


@pytest.mark.usefixtures("no_figures")
def test_series_is_the_same_in_csv_and_parquet(data, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    track(data, "-k", 2, "--batch", 100, "--out", tmp_path / "run")
    table = parquet.read_table(tmp_path / "run" / "series.parquet").to_pydict()
    lines = (tmp_path / "run" / "series.csv").read_text().splitlines()
    assert list(table) == lines[0].split(",")
    assert table["rows"] == list(range(0, ROWS + 1, 100))
    assert table["eigenvalues_0"][-1] == float(lines[-1].split(",")[3])


def test_page_is_self_contained_and_escapes_names(tmp_path):
    folder = tmp_path / "<b>&"
    folder.mkdir()
    rng = np.random.default_rng(0)
    path = folder / '"><script>x.npy'
    np.save(path, rng.standard_normal((300, 4)))
    assert track(path, "-k", 2, "--batch", 20, "--out", tmp_path / "run") == 0
    page = (tmp_path / "run" / "index.html").read_text()
    assert "<script>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert not re.search(r'(src|href)="(https?:)?//', page)
    assert page.count("<svg") == 6
    for title in ("Eigenvalues", "Background", "Change of", "Residuals", "Certificate", "Events"):
        assert f"<h2>{title}" in page


@pytest.mark.usefixtures("no_figures")
def test_jump_is_told_on_the_page(tmp_path):
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((6000, 12))
    rows[:3000, 0] *= 20
    rows[3000:, 5] *= 20
    np.save(tmp_path / "a.npy", rows)
    follow(str(tmp_path / "a.npy"), tmp_path / "run", Settings(k=1, batch=50))
    page = (tmp_path / "run" / "index.html").read_text()
    assert "has jumped" in page
    assert json.loads((tmp_path / "run" / "run.json").read_text())["result"]["jumps"] >= 1


@pytest.mark.usefixtures("no_figures")
def test_a_swinging_noise_floor_is_the_background_and_nothing_else(tmp_path):
    """White noise added to the rows shows in the background; the excess of the signal stays."""
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((20_000, 10)) * np.r_[8.0, np.ones(9)]
    floor = np.where(np.arange(20_000) // 2000 % 2, 4.0, 0.0)
    np.save(tmp_path / "a.npy", rows + np.sqrt(floor)[:, None] * rng.standard_normal(rows.shape))
    follow(str(tmp_path / "a.npy"), tmp_path / "run", Settings(k=1, batch=200))
    lines = (tmp_path / "run" / "series.csv").read_text().splitlines()
    at = lines[0].split(",").index("floor")
    settled = 10  # batches until the signal is found, and no longer taken for background
    seen = np.array([float(line.split(",")[at]) for line in lines[2 + settled :]])
    expected = 1 + floor[199::200][settled:]
    # A mean over 9 directions and 200 rows: relative standard error √(2/1800) = 3.3 %.
    assert np.all(np.abs(seen / expected - 1) < 5 * np.sqrt(2 / 1800))


def test_live_line_and_help(data, capsys):
    method = RowTracker()
    state = method.init(bf.random_basis(N, 2, rng=0))
    assert live_line(method, state) == ""
    for part in np.split(np.load(data), 10):
        state, _ = method.step(as_batch(part), state)
    assert re.match(
        r"λ  [\d.]+ ±[\d.]+   [\d.]+ ±[\d.]+   background [\d.]+$", live_line(method, state)
    )
    with pytest.raises(SystemExit):
        main(["track", "--help"])
    shown = capsys.readouterr().out
    for words in ("examples:", "exit code:", "--resume", "130"):
        assert words in shown


# Resuming ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("cut", [1, 2, 3, 7, 15])
def test_resumed_run_is_the_uninterrupted_one_to_the_last_bit(data, tmp_path, cut):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = Settings(k=3, batch=64)
    follow(str(data), whole, settings)
    first = follow(str(data), parts, settings, interruption=StopAfter(cut))
    assert first.status is bf.Status.INTERRUPTED
    assert first.summary["rows"] == 64 * cut
    second = follow(str(data), parts, Settings(), resume=True)
    assert second.status is bf.Status.STREAM_ENDED
    assert contents(parts) == contents(whole)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet", ".h5"])
def test_every_kind_of_file_can_be_resumed(data, tmp_path, ending):
    rows = np.load(data)
    path = tmp_path / f"a{ending}"
    if ending == ".csv":
        np.savetxt(path, rows, delimiter=",", fmt="%.17g")
    elif ending == ".npz":
        np.savez(path, rows)
    elif ending == ".parquet":
        arrow, parquet = (pytest.importorskip(m) for m in ("pyarrow", "pyarrow.parquet"))
        parquet.write_table(arrow.table({f"c{i}": rows[:, i] for i in range(N)}), path)
    else:
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["rows"] = rows
    settings = Settings(k=2, batch=64)
    follow(str(path), tmp_path / "whole", settings)
    follow(str(path), tmp_path / "parts", settings, interruption=StopAfter(4))
    follow(str(path), tmp_path / "parts", Settings(), resume=True)
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


@pytest.mark.usefixtures("no_figures")
def test_a_killed_run_goes_on_from_its_checkpoint(data, tmp_path):
    """Nothing is said when a process dies: the folder holds what the last checkpoint has."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    settings = Settings(k=3, batch=64)
    follow(str(data), whole, settings)

    class Killed(BaseException):
        pass

    def die(parts):
        yield from islice(parts, 9)
        raise Killed

    die.signal = None
    with pytest.raises(Killed):
        follow(str(data), parts, settings, interruption=die, save_every=0.0)
    with (parts / "series.csv").open("ab") as file:
        file.write(b"576,9,12")  # a line that was not finished
    assert json.loads((parts / "run.json").read_text())["status"] == "RUNNING"
    follow(str(data), parts, Settings(), resume=True)
    assert contents(parts) == contents(whole)


@pytest.mark.usefixtures("no_figures")
def test_resuming_a_finished_run_changes_nothing_and_new_rows_are_read(data, tmp_path):
    out = tmp_path / "run"
    assert track(data, "-k", 2, "--batch", 50, "--out", out) == 0
    before = contents(out)
    assert track(data, "--out", out, "--resume") == 0
    assert contents(out) == before
    rows = np.load(data)
    np.save(data, np.concatenate([rows, rows[:100]]))
    assert track(data, "--out", out, "--resume") == 0
    assert json.loads((out / "run.json").read_text())["result"]["rows"] == ROWS + 100


@pytest.mark.usefixtures("no_figures")
def test_resume_refuses_what_does_not_fit(data, tmp_path, capsys):
    out = tmp_path / "run"
    track(data, "-k", 2, "--batch", 50, "--out", out)
    before = snapshot(out)
    other = tmp_path / "other.npy"
    np.save(other, np.load(data) + 1)
    short = tmp_path / "short.npy"
    np.save(short, np.load(data)[:80])
    capsys.readouterr()
    for arguments, message in [
        ((data, "-k", 3), "goes on with k = 2, got 3"),
        ((data, "--batch", 64), "goes on with batch = 50, got 64"),
        ((other,), "begins with other rows"),
        ((short,), "has 80 rows but 1000 of them were read before"),
    ]:
        assert track(*arguments, "--out", out, "--resume") == 2
        assert message in capsys.readouterr().err
    assert track(data, "--out", tmp_path / "none", "--resume") == 2
    assert "holds no run to resume" in capsys.readouterr().err
    assert snapshot(out) == before
    assert not (tmp_path / "none").exists()


# Nothing is lost --------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
def test_an_earlier_run_is_not_overwritten_but_put_aside(data, tmp_path, capsys):
    out = tmp_path / "run"
    track(data, "-k", 2, "--out", out)
    before = snapshot(out)
    assert track(data, "-k", 3, "--out", out) == 2
    assert "holds an earlier run: pass --resume" in capsys.readouterr().err
    assert snapshot(out) == before
    old = np.load(out / "eigenpairs.npz")["eigenvalues"]
    for count in (1, 2):
        assert track(data, "-k", 3, "--out", out, "--force") == 0
        assert (out / "previous" / str(count) / "index.html").exists()
    assert np.array_equal(np.load(out / "previous/1/eigenpairs.npz")["eigenvalues"], old)


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_refused_input_leaves_the_folder_as_it_was(data, tmp_path, capsys, force):
    out = tmp_path / "run"
    track(data, "-k", 2, "--out", out)
    before = snapshot(out)
    bad = tmp_path / "bad.csv"
    bad.write_text("1,2,3\n4,x,6\n")
    for file, k in [(bad, 2), (data, N + 1), (data, 0), (tmp_path / "gone.npy", 2)]:
        assert track(file, "-k", k, "--out", out, *force) == 2
        assert snapshot(out) == before
        assert track(file, "-k", k, "--out", tmp_path / "new") == 2
        assert not (tmp_path / "new").exists()
    assert "gone.npy: no such file" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_k_too_large_for_columns_and_rows(data, tmp_path, capsys):
    assert track(data, "-k", N + 1, "--out", tmp_path / "run") == 2
    assert f"{data}: k = 9 is more than its 8 columns" in capsys.readouterr().err
    few = tmp_path / "few.csv"
    few.write_text("1,2,3,4\n2,3,4,9\n5,6,7,8\n")
    assert track(few, "-k", 3, "--out", tmp_path / "run") == 2
    assert "k = 3 is too large: its 3 rows determine 2 eigenvectors" in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_trouble_in_the_middle_saves_what_was_read(data, tmp_path, capsys):
    rows = np.load(data)
    lines = [",".join(f"{x:.17g}" for x in row) + "\n" for row in rows]
    path, out = tmp_path / "a.csv", tmp_path / "run"
    path.write_text("".join([*lines[:700], "1,2,oops,4,5,6,7,8\n", *lines[701:]]))
    assert track(path, "-k", 2, "--batch", 64, "--out", out) == 2
    shown = capsys.readouterr().err
    assert "a.csv: row 701 (line 701), column 3: 'oops' is not a number" in shown
    assert "--resume" in shown
    manifest = json.loads((out / "run.json").read_text())
    assert manifest["result"]["rows"] == 640
    assert "oops" in (out / "index.html").read_text()
    path.write_text("".join(lines))
    assert track(path, "--out", out, "--resume") == 0
    follow(str(path), tmp_path / "whole", Settings(k=2, batch=64))
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.usefixtures("no_figures")
def test_bad_rows_are_left_out_on_request(data, tmp_path, capsys):
    rows = np.load(data)
    rows[[3, 500]] = np.nan
    np.save(data, rows)
    assert track(data, "-k", 2, "--out", tmp_path / "run") == 2
    assert "row 4, column 1: nan is not a finite number" in capsys.readouterr().err
    assert track(data, "-k", 2, "--out", tmp_path / "run", "--skip-bad") == 0
    assert "2 rows with missing or non-finite values were left out" in capsys.readouterr().out
    clean = tmp_path / "clean.npy"
    np.save(clean, np.delete(rows, [3, 500], axis=0))
    follow(str(clean), tmp_path / "clean", Settings(k=2))
    assert contents(tmp_path / "run")["pairs"] == contents(tmp_path / "clean")["pairs"]


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("batch", [1, 10, 50, 256])
def test_variances_are_those_of_the_covariance_however_rows_are_cut(tmp_path, batch):
    """Also of single rows with heavy tails, from 443003 down to 703."""
    rows = pytest.importorskip("sklearn.datasets").load_breast_cancer().data
    np.save(tmp_path / "a.npy", rows)
    settings = Settings(k=3, batch=batch, forget=0.0)
    found = follow(str(tmp_path / "a.npy"), tmp_path / "run", settings).summary
    values = np.linalg.eigvalsh(np.cov(rows.T, bias=True))[::-1]
    assert found["eigenvalues"] == pytest.approx(values[:3], rel=1e-9)
    assert found["background"] == pytest.approx(values[3:].mean(), rel=1e-9)
    assert found["total_variance"] == pytest.approx(values.sum(), rel=1e-12)
    assert found["counted_little"] == 0


@pytest.mark.usefixtures("no_figures")
def test_an_outlier_batch_counts_next_to_nothing(tmp_path, capsys):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2000, 6)) * np.r_[4.0, np.ones(5)]
    rows[1000:1050] += 1e4
    np.save(tmp_path / "a.npy", rows)
    out = tmp_path / "run"
    assert track(tmp_path / "a.npy", "-k", 1, "--batch", 50, "--out", out, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["steps"]) == (2000, 40)
    assert (found["counted_little"], found["counted_little_at"]) == (1, [20])
    pairs = np.load(out / "eigenpairs.npz")
    rest = np.delete(rows, np.s_[1000:1050], axis=0)
    assert pairs["mean"] == pytest.approx(rest.mean(axis=0), abs=1e-12)
    assert pairs["total_variance"] == pytest.approx(rest.var(axis=0).sum(), rel=1e-6)
    assert abs(pairs["eigenvectors"][0, 0]) > 0.99
    assert "loud observation" in (out / "series.csv").read_text()
    words = "1 of 40 batches were louder than usual and counted little"
    assert words in (out / "index.html").read_text()
    assert track(tmp_path / "a.npy", "--out", out, "--resume") == 0
    assert words in capsys.readouterr().out


@pytest.mark.usefixtures("no_figures")
def test_two_processes_cannot_write_one_folder(data, tmp_path, capsys):
    out = tmp_path / "run"
    with folder_lock(out):
        assert track(data, "-k", 2, "--out", out) == 2
    assert "another process" in capsys.readouterr().err
    assert track(data, "-k", 2, "--out", out) == 0


def test_lock_is_freed_by_a_dead_process(tmp_path):
    code = (
        "import sys, time\nfrom bracketflow.locking import folder_lock\n"
        f"with folder_lock({str(tmp_path)!r}):\n print('held', flush=True)\n time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(FolderBusy, match=f"process \\(number {holder.pid}\\)"),
            folder_lock(tmp_path),
        ):
            pass
        holder.kill()
        holder.wait()
        with folder_lock(tmp_path):
            pass


# Signals ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_a_run_cleanly_even_while_it_waits(data, tmp_path, monkeypatch, number, code):
    """Rows come through a pipe that then stays silent, so that the run waits for more."""
    rows = np.load(data)
    text = "".join(",".join(f"{x:.17g}" for x in row) + "\n" for row in rows)
    out = tmp_path / "run"
    command = [sys.executable, "-m", "bracketflow", "track", "-", "-k", "2", "--batch", "50"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--out", str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        process.stdin.write(text.encode())
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while (
            not (out / "series.csv").exists() or (out / "series.csv").read_text().count("\n") < 19
        ):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        shown, complaint = process.communicate(timeout=60)
    assert process.returncode == code, complaint
    assert b"The page is" in shown
    assert b"--resume" in complaint
    assert json.loads((out / "run.json").read_text())["status"] == "INTERRUPTED"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(text.encode())))
    assert track("-", "--out", out, "--resume") == 0
    follow(str(data), tmp_path / "whole", Settings(k=2, batch=50))
    assert contents(out)["series"] == contents(tmp_path / "whole")["series"]


# The method -------------------------------------------------------------------------------------


def test_row_tracker_is_pure(data):
    method = RowTracker()
    state = method.init(bf.random_basis(N, 2, rng=0))
    parts = [as_batch(p) for p in np.split(np.load(data), 10)]
    for part in parts:
        before = state
        kept = [np.copy(before.basis), ledger_of(before).read]
        state, probe = method.step(part, before)
        again, _ = method.step(part, before)
        assert np.array_equal(again.basis, state.basis)
        assert np.array_equal(before.basis, kept[0])
        assert ledger_of(before).read == kept[1]
        assert probe.basis is before.basis


@pytest.mark.usefixtures("no_figures")
def test_without_matplotlib_and_pyarrow_the_run_is_whole(data, tmp_path, monkeypatch):
    for name in [m for m in sys.modules if m.partition(".")[0] in ("matplotlib", "pyarrow")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert track(data, "-k", 2, "--out", tmp_path / "run") == 0
    assert "pip install 'bracketflow[cli]'" in (tmp_path / "run" / "index.html").read_text()
    assert not (tmp_path / "run" / "series.parquet").exists()


# decompose --------------------------------------------------------------------------------------


def test_decompose_a_matrix_market_file(tmp_path, capsys):
    rng = np.random.default_rng(0)
    matrix = sparse.random_array((60, 60), density=0.1, rng=rng)
    matrix = (matrix + matrix.T).tocoo()
    io.mmwrite(tmp_path / "A.mtx", matrix)
    values = np.linalg.eigvalsh(matrix.toarray())[::-1]
    assert main(["decompose", str(tmp_path / "A.mtx"), "-k", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Quadratically accurate in the residuals, which are 1e-8 of the spread.
    assert found["eigenvalues"] == pytest.approx(values[:6], abs=1e-8 * np.ptp(values))
    assert found["converged"] is True
    assert found["missed_probability"] <= 1e-6
    out = tmp_path / "new" / "pairs.npz"
    arguments = ["decompose", str(tmp_path / "A.mtx"), "-k", "2", "--which", "smallest"]
    assert main([*arguments, "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "CONVERGED" in shown
    assert "an eigenvalue was missed with probability" in shown
    pairs = np.load(out)
    assert pairs["eigenvalues"] == pytest.approx(values[-2:], abs=1e-8 * np.ptp(values))
    residual = matrix @ pairs["eigenvectors"] - pairs["eigenvectors"] * pairs["eigenvalues"]
    assert np.abs(residual).max() < 1e-7 * np.ptp(values)


def test_decompose_tells_scripts_when_it_did_not_converge(tmp_path, capsys):
    np.save(tmp_path / "A.npy", np.diag(np.arange(200.0)))
    assert main(["decompose", str(tmp_path / "A.npy"), "-k", "2", "--max-steps", "3"]) == 1
    assert "STEP_LIMIT" in capsys.readouterr().out


def test_decompose_names_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "A.npy"
    for matrix, arguments, message in [
        (np.ones((2, 3)), (), "A.npy: expected a square matrix, got shape (2, 3)"),
        (np.eye(3), ("-k", "4"), "A.npy: k = 4 is more than its 3 columns"),
        (np.triu(np.ones((5, 5))), (), "A.npy: not symmetric observation"),
        (np.full((2, 2), np.nan), (), "A.npy: row 1, column 1: nan is not a finite number"),
        (np.eye(3), ("--out", "x.csv"), "--out must end in .npz, got x.csv"),
    ]:
        np.save(path, matrix)
        assert main(["decompose", str(path), *arguments]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("no_figures")
def test_example_of_a_fixed_operator(capsys):
    example = Path(__file__).parents[1] / "examples" / "fixed_operator.py"
    runpy.run_path(str(example), run_name="__main__")
    shown = capsys.readouterr().out.splitlines()
    (ours, eigsh), (tracked, drowned) = (
        [float(line.split()[-1]) for line in shown[i : i + 2]] for i in (1, 4)
    )
    # Residuals of 1e-8 of the spread, over gaps that are a few hundredths of it.
    assert max(ours, eigsh, tracked) < 1e-5
    assert drowned > 1


def test_unwritable_folder_is_a_message(data, tmp_path, capsys):
    assert track(data, "-k", 2, "--out", data) == 2
    assert "is a file: give a folder with --out" in capsys.readouterr().err
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        assert track(data, "-k", 2, "--out", locked / "run") == 2
        assert "Permission denied" in capsys.readouterr().err
        shutil.rmtree(locked)
