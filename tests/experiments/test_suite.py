"""The runner: names, folders, resume, damage, failure, interruption. Cheap experiments only."""

import io
import json

import pytest

from bracketflow.experiments import EXPERIMENTS, store, suite, worker
from bracketflow.experiments.__main__ import main

CHEAP = ["B5", "counterexamples"]


def events_of(run):
    seen = []
    code = run(seen.append)
    return code, seen


def kinds(events):
    return [(event.kind, event.name) for event in events if event.kind not in ("start", "progress")]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with two finished experiments."""
    folder = tmp_path_factory.mktemp("runs") / "done"
    assert suite.reproduce(CHEAP, quick=True, out=folder) == 0
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of the finished folder that a test may spoil."""
    target = tmp_path / "run"
    for source in finished.rglob("*"):
        if source.is_file():
            copy = target / source.relative_to(finished)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(source.read_bytes())
    return target


def test_names_any_case_skip_and_all():
    assert suite.chosen_names(["b5", "A1"]) == ["A1", "B5"]
    assert suite.chosen_names() == list(EXPERIMENTS) == suite.chosen_names(["all"])
    assert "A1" not in suite.chosen_names(["all"], skip=["A1"])


def test_unknown_names_list_the_known_ones(capsys, tmp_path):
    with pytest.raises(ValueError, match=r"A1, A2, .*neumann"):
        suite.chosen_names(["A99"])
    assert main(["reproduce", "A99", "--out", str(tmp_path / "x")]) == 2
    assert "unknown experiment 'A99'" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_run_writes_records_tables_figures_and_page(finished):
    for name in CHEAP:
        content = store.read_record(finished, name)
        assert {"config", "records", "claims", "versions", "seed"} <= set(content)
        assert "seconds" not in json.dumps(content)
        for kind in ("svg", "png", "pdf"):
            assert (finished / "figures" / f"{name}.{kind}").stat().st_size > 1000
        assert (finished / "tables" / f"{name}_claims.csv").exists()
    assert set(json.loads((finished / "timings.json").read_text())) == set(CHEAP)
    assert (finished / "index.html").exists()
    assert not list(finished.rglob("*.part"))


def test_two_runs_give_the_same_bytes(finished, tmp_path):
    assert suite.reproduce(CHEAP, quick=True, out=tmp_path / "again") == 0
    for name in CHEAP:
        one, two = (store.record_path(d, name).read_bytes() for d in (finished, tmp_path / "again"))
        assert one == two


def test_resume_keeps_what_is_done(folder):
    before = {name: store.record_path(folder, name).stat().st_mtime_ns for name in CHEAP}
    code, events = events_of(
        lambda show: suite.reproduce(CHEAP, quick=True, out=folder, resume=True, show=show)
    )
    assert code == 0
    assert kinds(events)[:-1] == [("kept", name) for name in CHEAP]
    assert before == {name: store.record_path(folder, name).stat().st_mtime_ns for name in CHEAP}


@pytest.mark.parametrize("damage", ["truncated", "one digit", "not json", "empty", "folder"])
def test_damage_is_seen(folder, damage):
    path = store.record_path(folder, "B5")
    good = path.read_text()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        bad = {
            "truncated": good[: len(good) // 2],
            "one digit": good.replace('"trials": 10', '"trials": 11'),
            "not json": "<html>",
            "empty": "",
        }[damage]
        path.write_text(bad)
    with pytest.raises(store.DamagedRecord, match=r"B5\.json is damaged"):
        store.read_record(folder, "B5")


def test_a_damaged_record_is_named_and_recomputed(folder):
    path = store.record_path(folder, "B5")
    good = path.read_text()
    path.write_text(good.replace('"trials": 10', '"trials": 11'))
    code, events = events_of(
        lambda show: suite.reproduce(CHEAP, quick=True, out=folder, resume=True, show=show)
    )
    assert code == 0
    named = [event.text for event in events if event.kind == "damaged"]
    assert len(named) == 1
    assert "B5.json" in named[0]
    assert ("done", "B5") in kinds(events)
    assert path.read_text() == good


def test_report_redraws_without_computing_and_names_damage(folder):
    for path in (folder / "figures").iterdir():
        path.unlink()
    store.record_path(folder, "B5").write_text("{}")
    before = store.record_path(folder, "counterexamples").read_bytes()
    seen = []
    page = suite.report(folder, seen.append)
    assert (folder / "figures" / "counterexamples.svg").exists()
    assert store.record_path(folder, "counterexamples").read_bytes() == before
    assert [event.name for event in seen if event.kind == "damaged"] == ["B5"]
    assert "B5.json is damaged" in page.read_text()


def test_report_of_an_empty_folder_says_what_to_do(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "reproduce" in capsys.readouterr().err


def test_a_folder_with_other_contents_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("mine")
    assert main(["reproduce", "B5", "--out", str(tmp_path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    assert main(["reproduce", "B5", "--out", str(tmp_path), "--force"]) == 0
    assert (tmp_path / "thesis.tex").read_text() == "mine"
    assert store.read_record(tmp_path, "B5")


def test_a_full_run_is_not_overwritten_by_a_quick_one(folder):
    with pytest.raises(suite.UnusableFolder, match="quick run"):
        suite.reproduce(["B5"], quick=False, out=folder)


def test_out_may_not_be_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(suite.UnusableFolder, match="is a file"):
        suite.reproduce(["B5"], quick=True, out=tmp_path / "file")


def test_a_failing_experiment_does_not_lose_the_others(tmp_path):
    # A folder where the record should go makes that experiment fail when it stores its result.
    (tmp_path / "B5.json").mkdir()
    code, events = events_of(
        lambda show: suite.reproduce(CHEAP, quick=True, out=tmp_path, force=True, show=show)
    )
    assert code == 1
    assert ("failed", "B5") in kinds(events)
    assert ("done", "counterexamples") in kinds(events)
    assert "Error" in store.error_path(tmp_path, "B5").read_text()
    assert "This experiment failed" in (tmp_path / "index.html").read_text()


def test_a_worker_that_dies_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(suite.sys, "executable", "/bin/false")
    code, events = events_of(
        lambda show: suite.reproduce(["B5"], quick=True, out=tmp_path / "x", show=show)
    )
    assert code == 1
    assert "worker process ended" in next(e.text for e in events if e.kind == "failed")


def test_an_interrupted_run_resumes(tmp_path):
    def interrupt(event):
        if event.kind == "done":
            raise KeyboardInterrupt

    names = ["B5", "counterexamples", "B8"]
    with pytest.raises(KeyboardInterrupt):
        suite.reproduce(names, quick=True, out=tmp_path / "x", show=interrupt)
    code, events = events_of(
        lambda show: suite.reproduce(names, quick=True, out=tmp_path / "x", resume=True, show=show)
    )
    assert code == 0
    assert any(event.kind == "kept" for event in events)
    assert not list((tmp_path / "x").glob("*.error.txt"))  # stopped is not failed
    assert sorted(store.stored_names(tmp_path / "x")) == sorted(names)


def test_the_worker_answers_with_progress_and_errors(tmp_path, monkeypatch):
    def broken(config, rng, progress):
        progress(0.5)
        raise RuntimeError("no luck")

    monkeypatch.setattr(EXPERIMENTS["B8"], "compute", broken)
    job = {"name": "B8", "mode": "quick", "seed": 1, "directory": str(tmp_path)}
    sink = io.StringIO()
    worker.serve(io.StringIO(json.dumps(job) + "\n"), sink)
    answers = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [answer["kind"] for answer in answers] == ["progress", "failed"]
    assert "no luck" in answers[1]["text"]


def test_command_line_help_names_every_experiment(capsys):
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    text = capsys.readouterr().out
    assert all(name in text for name in EXPERIMENTS)
    assert "--resume" in text
