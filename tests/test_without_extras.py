"""Where an optional package or a facility of the system is missing: the remedy, or a way round."""

import importlib.util
import os
import sys

import numpy as np
import pytest

import bracketflow as bf
from bracketflow import atomic, locking
from bracketflow.monitor import CSV, JSONLines, Progress
from cases import symmetric


def block(monkeypatch, *modules):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def again(module):
    """`module`, executed once more under a name of its own: the one in use stays as it is."""
    spec = importlib.util.find_spec(module.__name__)
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    return fresh


# Packages ---------------------------------------------------------------------------------------


def test_progress_names_rich(monkeypatch):
    block(monkeypatch, "rich")
    with pytest.raises(ImportError, match=r"Progress needs rich: pip install 'bracketflow\[cli\]'"):
        Progress()


def test_the_plot_of_the_training_monitor_names_matplotlib(monkeypatch):
    torch = pytest.importorskip("torch")
    from bracketflow.torch import HessianMonitor

    monitor = HessianMonitor(torch.nn.Linear(3, 1), torch.nn.functional.mse_loss, 1)
    block(monkeypatch, "matplotlib")
    with pytest.raises(
        ImportError, match=r"plot needs matplotlib: pip install 'bracketflow\[cli\]'"
    ):
        monitor.plot()


def test_a_checkpoint_of_tensors_names_torch(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")
    bf.save(tmp_path / "a", bf.EigenTracker().init(torch.eye(3)[:, :2]))
    block(monkeypatch, "torch")
    with pytest.raises(ValueError, match=r"torch tensors: pip install 'bracketflow\[torch\]' to"):
        bf.load(tmp_path / "a")


def test_estimators_need_no_callbacks_of_scikit_learn(monkeypatch, rng):
    pytest.importorskip("sklearn")
    from bracketflow.estimators import callbacks

    block(monkeypatch, "sklearn.callback")
    silent = again(callbacks)

    class Estimator(silent.CallbackSupportMixin):
        @silent.with_callbacks
        def fit(self, rows, batches):
            return [rows[batch] for batch in silent.reported(self, rows, batches)]

    rows = rng.standard_normal((5, 2))
    parts = Estimator().fit(rows, [slice(0, 3), slice(3, 5)])
    assert np.array_equal(np.concatenate(parts), rows)


def test_rows_that_were_checked_before_are_taken_as_they_are(rng):
    pytest.importorskip("sklearn")
    from bracketflow.estimators import StreamingPCA

    rows = rng.standard_normal((30, 4))
    checked = StreamingPCA(2, random_state=0).partial_fit(rows)
    trusted = StreamingPCA(2, random_state=0).partial_fit(rows, check_input=False)
    assert np.array_equal(checked.components_, trusted.components_)


# The operating system ---------------------------------------------------------------------------


def test_without_file_locks_a_folder_is_not_guarded(monkeypatch, tmp_path):
    block(monkeypatch, "fcntl")
    unguarded = again(locking)
    assert unguarded.fcntl is None
    with unguarded.folder_lock(tmp_path / "a"), unguarded.folder_lock(tmp_path / "a"):
        assert (tmp_path / "a" / locking.LOCK).read_text() == f"{os.getpid()}\n"


def test_a_second_writer_is_refused_and_the_first_is_named(tmp_path):
    with (
        locking.folder_lock(tmp_path),
        pytest.raises(locking.FolderBusy, match=rf"process \(number {os.getpid()}\) is writing"),
        locking.folder_lock(tmp_path),
    ):
        pytest.fail("two writers in one folder")
    with locking.folder_lock(tmp_path):
        pass  # free again


def test_where_processes_cannot_be_asked_for_leftovers_stay(monkeypatch, tmp_path):
    leftover = tmp_path / f".a.1{'0' * 30}.1.tmp"
    leftover.write_bytes(b"")

    class System:
        """`os` as it is elsewhere."""

        name = "nt"

        def __getattr__(self, name):
            return getattr(os, name)

    monkeypatch.setattr(atomic, "os", System())
    atomic.write_atomically(tmp_path / "a", [b"new"])
    assert (tmp_path / "a").read_bytes() == b"new"
    assert leftover.exists()


def test_leftovers_of_processes_that_may_be_running_stay(tmp_path, monkeypatch):
    running = tmp_path / f".a.{os.getppid()}.1.tmp"
    absurd = tmp_path / f".a.1{'0' * 30}.1.tmp"  # larger than any process number
    for path in (running, absurd):
        path.write_bytes(b"")

    def forbidden(process, signal):
        raise PermissionError if process < 1 << 62 else OverflowError

    monkeypatch.setattr(os, "kill", forbidden)
    atomic.write_atomically(tmp_path / "a", [b"new"])
    assert running.exists()
    assert absurd.exists()


# Sinks and bars ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [JSONLines, CSV])
def test_a_sink_that_got_no_record_leaves_no_file(sink, tmp_path):
    with sink(tmp_path / "none") as unused:
        unused.flush()
        unused.flush(to_disk=True)
    unused.close()
    assert list(tmp_path.iterdir()) == []


def test_flushing_shows_the_record_at_once(tmp_path):
    with JSONLines(tmp_path / "a") as lines:
        lines({"step": 1})
        lines.flush()
        assert (tmp_path / "a").read_text() == '{"step": 1}\n'


def test_a_bar_without_steps_and_one_that_counts_by_itself(rng, capsys):
    with Progress(10, "idle"):
        pass
    assert "0/10" in capsys.readouterr().out
    method = bf.BrockettFlow((2, 1))
    with Progress(
        20,
        "rows",
        done=lambda state, probe: 2 * state.steps,
        below=lambda state, probe: f"after {state.steps}",
        stderr=True,
    ) as bar:
        start = method.init(bf.random_basis(5, 2, rng=rng))
        bf.run(method, [symmetric(rng, 5)] * 10, start, monitors=[bar])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "after 9" in shown.err
    assert "18/20" in shown.err


# Pictures ---------------------------------------------------------------------------------------


def test_pictures_show_rounding_and_proved_angles_where_they_matter():
    figure = pytest.importorskip("matplotlib.figure")
    from bracketflow import plot

    def axes():
        return figure.Figure().subplots()

    near = [{"step": t, "residuals": [1e-9, 2e-9], "rounding": 1e-10} for t in range(3)]
    drawn = plot.residuals(near, axes())
    assert [line.get_label() for line in drawn.lines] == ["vector 1", "vector 2", "rounding"]
    far = [{**record, "rounding": 1e-20} for record in near]
    assert len(plot.residuals(far, axes()).lines) == 2
    told = [{"step": t, "angles": [0.25, float("inf")]} for t in range(3)]
    proved, unproved = plot.certificate(told, axes()).lines
    assert proved.get_ydata().tolist() == [0.25] * 3
    assert np.isnan(unproved.get_ydata()).all()
    many = [{"step": t, "residuals": [1e-9] * 11} for t in range(3)]
    assert plot.residuals(many, axes()).get_legend() is None
    assert plot.residuals(near, axes()).get_legend() is not None
