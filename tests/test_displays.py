"""What the commands show: bars in a terminal, lines elsewhere, JSON for machines, exit codes."""

import io
import json
import signal
import sys
import threading

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.baselines import Eigsh, Lobpcg, ProjectedOja
from bracketflow.bench import contenders, race, run_bench
from bracketflow.bench.page import write_page
from bracketflow.cli import main
from bracketflow.experiments import command, figures, suite
from bracketflow.experiments.suite import Event
from bracketflow.tracking import series
from bracketflow.tracking.interruption import Interruption
from cases import symmetric


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_terminal(monkeypatch):
    """A wide terminal in the place of standard error."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return screen


@pytest.fixture
def rows(rng, tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, rng.standard_normal((600, 4)) * [4, 3, 2, 1])
    return str(path)


# reproduce and report ---------------------------------------------------------------------------

EVENTS = [
    Event("start", "B5"),
    Event("progress", "B5", 0.5),
    Event("failed", "B5", text="it broke"),
    Event("start", "A1"),
    Event("done", "A1", 1.0),
    Event("page", text="out/index.html"),
]


def pretended(show):
    for event in EVENTS:
        show(event)


def test_bars_in_a_terminal_and_lines_without_rich(monkeypatch):
    terminal = on_terminal(monkeypatch)
    with command.make_display() as show:
        assert isinstance(show, command.Bars)
        pretended(show)
    assert "B5" in terminal.getvalue()
    assert "it broke" in terminal.getvalue()
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert isinstance(command.make_display(), command.Lines)


def test_lines_and_one_json_object_elsewhere(capsys):
    with command.make_display() as show:
        pretended(show)
    plain = capsys.readouterr()
    assert "out/index.html" in plain.out
    assert "it broke" in plain.err
    with command.make_display(as_json=True) as show:
        pretended(show)
    machine = capsys.readouterr()
    assert json.loads(machine.out) == {"page": "out/index.html", "failed": ["B5"]}
    assert "it broke" in machine.err


@pytest.mark.parametrize("call", ["reproduce", "report"])
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["int", "term"]
)
def test_signals_become_exit_codes_and_handlers_come_back(
    call, number, code, monkeypatch, capsys, tmp_path
):
    def interrupted(*args, **kwargs):
        signal.raise_signal(number)

    monkeypatch.setattr(suite, call, interrupted)
    before = signal.getsignal(signal.SIGTERM)
    arguments = ["reproduce", "B5", "--out"] if call == "reproduce" else ["report"]
    assert main([*arguments, str(tmp_path)]) == code
    assert "interrupted: " in capsys.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_report_that_succeeds_exits_with_0(monkeypatch, tmp_path):
    monkeypatch.setattr(suite, "report", lambda directory, show: None)
    assert main(["report", str(tmp_path)]) == 0


def test_signals_are_left_alone_outside_the_main_thread():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def inside():
        with command.ended_by_signals(), Interruption():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert seen == [before]


def test_an_interruption_ends_a_stream_between_two_parts():
    with Interruption() as interruption:
        parts = interruption(iter(range(5)))
        assert next(parts) == 0
        signal.raise_signal(signal.SIGTERM)
        assert list(parts) == []
    assert interruption.signal == signal.SIGTERM


def test_figures_name_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert figures.draw(tmp_path, "B5", {}) == (
        "figures need matplotlib: pip install 'bracketflow[cli]'"
    )


# track ------------------------------------------------------------------------------------------


def test_track_shows_a_bar_with_eigenvalues_in_a_terminal(rows, tmp_path, capsys, monkeypatch):
    terminal = on_terminal(monkeypatch)
    assert main(["track", rows, "-k", "2", "--out", str(tmp_path / "out")]) == 0
    assert "600/600" in terminal.getvalue()
    assert "λ  " in terminal.getvalue()
    assert "background" in capsys.readouterr().out


def test_track_works_in_a_terminal_without_rich_and_without_matplotlib(
    rows, tmp_path, capsys, monkeypatch
):
    terminal = on_terminal(monkeypatch)
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out"
    assert main(["track", rows, "--out", str(out)]) == 0
    assert terminal.getvalue() == ""
    assert "mean of the other" not in capsys.readouterr().out  # all four are tracked
    assert "pip install 'bracketflow[cli]'" in (out / "index.html").read_text()


def test_jumps_are_told(rng, tmp_path, capsys):
    calm = rng.standard_normal((4000, 4)) * [5, 1, 1, 1]
    turned = rng.standard_normal((4000, 4)) * [1, 1, 1, 5]
    np.save(tmp_path / "a.npy", np.concatenate([calm, turned]))
    arguments = ["track", str(tmp_path / "a.npy"), "-k", "1", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--batch", "100"]) == 0
    assert "the data have jumped" in capsys.readouterr().out


def test_sources_and_folders_that_cannot_be_used_exit_with_2(rows, tmp_path, capsys):
    (tmp_path / "none.csv").write_text("a,b\n")
    assert main(["track", str(tmp_path / "none.csv"), "--out", str(tmp_path / "x")]) == 2
    assert "holds no rows" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["track", rows, "--out", str(out)]) == 0
    (checkpoint,) = [path for path in out.iterdir() if path.name.startswith("checkpoint")]
    checkpoint.unlink()
    assert main(["track", rows, "--out", str(out), "--resume"]) == 2
    assert "there is none: start anew with --force" in capsys.readouterr().err


def test_a_long_series_is_thinned_and_keeps_its_last_state_and_largest_change(tmp_path):
    path, count = tmp_path / "series.csv", 2 * series.POINTS + 2
    lines = [f"{t + 1},{t % 7},,{t / 2}" for t in range(count)]
    path.write_text("\n".join([f"rows,change,{series.WORDS},values_0", *lines]) + "\n")
    loaded = series.load(path)
    assert len(loaded.records) <= series.POINTS + 1
    assert loaded.records[-1]["rows"] == count
    assert max(record["change"] for record in loaded.records) == 6


# bench and certify ------------------------------------------------------------------------------


def test_bench_for_machines_and_without_matplotlib(tmp_path, capsys, monkeypatch):
    record = {"versions": {}, "seeds": 1, "scenes": {}}
    monkeypatch.setattr("bracketflow.cli.run_bench", lambda *args, **kwargs: record)
    assert main(["bench", "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == record
    with pytest.raises(ValueError, match="seeds must be at least 1, got 0"):
        run_bench(seeds=0)
    raced = run_bench(["jump"], quick=True)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = write_page(raced, tmp_path).read_text()
    assert "pip install 'bracketflow[cli]'" in page


def test_a_rival_that_breaks_down_keeps_what_it_had(rng):
    state = bf.BrockettFlow().init(bf.random_basis(4, 2, rng=rng))
    broken = np.full((4, 4), np.nan)
    assert race._advance(bf.BrockettFlow(), broken, None, state) is state


def test_a_rival_that_is_better_is_said_to_be():
    curve = {"error": [0.5], "seconds": [1.0], "matvecs": [8.0], "setting": ""}
    better = {**curve, "error": [0.25]}
    lines = race.table({contenders.OURS: curve, "rival": better})
    assert lines[-1].endswith("<- better than ours")
    assert "better" not in lines[-2]


@pytest.mark.parametrize("solver", [Eigsh(), Lobpcg()])
def test_solvers_for_fixed_matrices_are_raced_as_if_it_stood_still(solver, rng):
    c = symmetric(rng, 12)
    method = contenders.Repeated(solver)
    state, _ = method.step(c, method.init(bf.random_basis(12, 2, rng=rng)))
    exact = np.linalg.eigh(c)[1][:, -2:]
    assert bf.subspace_error(state.basis, exact) < 1e-5
    with pytest.raises(ValueError, match=r"one NumPy problem at a time, got \(3, 12, 2\)"):
        method.step(c, state._replace(basis=bf.random_basis(12, 2, rng=rng, ensemble=(3,))))


def test_projected_oja_of_a_full_basis_is_the_eigenbasis(rng):
    c, method = symmetric(rng, 5), ProjectedOja()
    state, _ = method.step(c, method.init(bf.random_basis(5, rng=rng)))
    assert bf.lyapunov(state.basis, c) < 1e-20


@pytest.mark.parametrize(("k", "word"), [(5, "proved"), (2, "estimated")])
def test_certify_says_what_is_proved_and_what_is_estimated(k, word, tmp_path, capsys):
    method, path = bf.EigenTracker(), tmp_path / "run.jsonl"
    recorder, stream = bf.Recorder(), [np.diag([5.0, 4.0, 3.0, 2.0, 1.0])] * 3
    bf.run(method, stream, method.init(bf.random_basis(5, k, rng=0)), monitors=recorder)
    path.write_text(json.dumps(recorder.records[-1]))
    assert main(["certify", str(path)]) == 0
    assert f"Intervals: {word}. Angles: {word}." in capsys.readouterr().out
    assert main(["certify", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["intervals_are"], told["angles_are"]) == (word, word)


def test_certify_refuses_a_line_that_is_no_record(tmp_path, capsys):
    (tmp_path / "run.jsonl").write_text("[1]\n")
    assert main(["certify", str(tmp_path / "run.jsonl")]) == 2
    assert "its last line is not a record" in capsys.readouterr().err
