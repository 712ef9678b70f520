"""The command line shows results, writes files, and exits with codes that scripts can use."""

import json

import pytest

import bracketflow as bf
from bracketflow import cli
from bracketflow.cli import main


def test_demo_shows_figures_and_writes_its_page(tmp_path, capsys):
    out = tmp_path / "new" / "demo"
    assert main(["demo", "--steps", "60", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert f"The page is {out / 'index.html'}" in shown
    assert "EigenTracker" in shown
    assert "<svg" in (out / "index.html").read_text()


def test_demo_for_machines(tmp_path, capsys):
    assert main(["demo", "--steps", "60", "--out", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(tmp_path / "index.html")
    assert len(found["contenders"]) >= 3
    assert all(figures["subspace"] >= 0 for figures in found["contenders"].values())


def test_interrupt_and_broken_disk_are_codes_not_tracebacks(monkeypatch, capsys):
    for error, code in ((KeyboardInterrupt(), 130), (OSError("No space left on device"), 2)):

        def fail(*arguments, error=error):
            raise error

        monkeypatch.setattr(cli, "run_demo", fail)
        assert main(["demo"]) == code
    assert "No space left on device" in capsys.readouterr().err


def test_every_command_has_an_example_in_its_help(capsys):
    for command in ("demo", "track", "decompose", "certify", "reproduce", "report", "bench"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        shown = capsys.readouterr().out
        assert "example" in shown
        assert f"bracketflow {command}" in shown


def test_version_and_unknown_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == bf.__version__
    with pytest.raises(SystemExit) as stop:
        main(["dance"])
    assert stop.value.code == 2
