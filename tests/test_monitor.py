"""Recorders, sinks and progress watch a run and change nothing."""

import csv
import json

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.monitor import (
    CSV,
    MEASURES,
    JSONLines,
    Progress,
    SubspaceChange,
    error_bars,
)
from cases import symmetric

FLOW = bf.BrockettFlow((2, 1))


def watched(rng, *monitors, ensemble=()):
    c = symmetric(rng, 5, ensemble=ensemble)
    start = bf.random_basis(5, 2, rng=rng, ensemble=ensemble)
    return bf.run(FLOW, [c] * 10, FLOW.init(start), monitors=monitors)


def test_recorder_keeps_every_so_many_steps(rng):
    recorder = bf.Recorder(every=3)
    watched(rng, recorder)
    assert [r["step"] for r in recorder.records] == [0, 3, 6, 9]
    assert [r["matvecs"] for r in recorder.records] == [2, 8, 14, 20]
    assert set(recorder.records[0]) == {"step", "matvecs", *MEASURES, "bad"}
    assert recorder.column("eigenvalues").shape == (4, 2)


def test_monitors_change_nothing(rng):
    seed = rng.integers(1 << 30)
    plain = watched(np.random.default_rng(seed))
    seen = watched(np.random.default_rng(seed), bf.Recorder())
    assert np.array_equal(plain.state.basis, seen.state.basis)


def test_own_measures_are_recorded(rng):
    recorder = bf.Recorder(measures={"norm": lambda state, probe: np.linalg.norm(state.basis)})
    watched(rng, recorder)
    assert recorder.column("norm") == pytest.approx(np.full(10, 2**0.5))


@pytest.mark.parametrize("ensemble", [(), (3,)])
def test_sinks_hold_the_records(rng, tmp_path, ensemble):
    with JSONLines(tmp_path / "run.jsonl") as lines, CSV(tmp_path / "run.csv") as table:
        recorder = bf.Recorder(sinks=[lines, table])
        watched(rng, recorder, ensemble=ensemble)
    stored = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert stored == recorder.records
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    values = [float(rows[-1][f"eigenvalues_{i}"]) for i in range(int(np.prod(ensemble)) * 2)]
    assert values == pytest.approx(np.ravel(recorder.records[-1]["eigenvalues"]))


def test_recorder_can_feed_sinks_without_keeping(rng):
    heard = []
    recorder = bf.Recorder(sinks=[heard.append], keep=False)
    watched(rng, recorder)
    assert recorder.records == []
    assert len(heard) == 10


def test_recorder_refuses_a_senseless_interval():
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        bf.Recorder(every=0)


def test_progress_shows_steps_and_residual(rng, capsys):
    with Progress(total=10, label="testing") as progress:
        watched(rng, progress)
    shown = capsys.readouterr().out
    assert "testing" in shown
    assert "10/10" in shown
    assert "largest residual" in shown


def test_library_prints_nothing_by_itself(rng, capsys):
    watched(rng, bf.Recorder())
    bf.decompose(symmetric(rng, 4), rng=rng)
    assert capsys.readouterr() == ("", "")


def test_error_bars_and_change_are_measures(rng):
    method = bf.EigenTracker()
    change = SubspaceChange()
    recorder = bf.Recorder(measures={**error_bars(method), "change": change})
    stream = [np.diag([9.0, 5.0, 1.0, 1.0]) + 0.1 * symmetric(rng, 4) for _ in range(20)]
    bases = []
    start = method.init(bf.random_basis(4, 2, rng=rng))
    bf.run(method, stream, start, monitors=[recorder, lambda s, p: bases.append(s.basis)])
    assert np.isnan(recorder.column("eigenvalue_errors")[0]).all()
    assert (recorder.column("eigenvalue_errors")[-1] > 0).all()
    assert (recorder.column("vector_errors")[-1] > 0).all()
    moved = recorder.column("change")
    assert np.isnan(moved[0])
    assert moved[5] == bf.subspace_error(bases[4], bases[5])


def test_csv_can_be_continued(tmp_path):
    path = tmp_path / "run.csv"
    with CSV(path) as table:
        table({"a": 1, "b": [2.0, 3.0]})
    with CSV(path, append=True) as table:
        table({"a": 4, "b": [5.0, 6.0]})
        table.flush(to_disk=True)
        assert path.read_text().split() == ["a,b_0,b_1", "1,2.0,3.0", "4,5.0,6.0"]
    with CSV(tmp_path / "new.csv", append=True) as table:
        table({"a": 1})
    assert (tmp_path / "new.csv").read_text().split() == ["a", "1"]


def test_progress_shows_a_line_of_ones_own_below_the_bar(rng, capsys):
    steps = []

    def done(state, probe):
        return 7 * (int(state.steps) + 1)

    with Progress(70, "rows", done=done, below=lambda s, p: f"at {s.steps}", stderr=True) as bar:
        watched(rng, bar, lambda s, p: steps.append(s.steps))
    shown = capsys.readouterr().err
    assert "70/70" in shown
    assert f"at {steps[-1]}" in shown
