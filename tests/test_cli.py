"""The command line shows results, writes files, and exits with codes that scripts can use."""

import pytest

import bracketflow as bf
from bracketflow.cli import main


def test_demo_shows_errors_and_writes_its_plot(tmp_path, capsys):
    out = tmp_path / "new" / "demo.png"
    assert main(["demo", "--steps", "120", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert str(out) in shown
    assert out.read_bytes().startswith(b"\x89PNG")
    rows = {line.split("  ")[0]: line.split() for line in shown.splitlines() if "   " in line}
    tracker, flow, oja = (
        float(rows[name][-1])
        for name in ("bracketflow: EigenTracker", "bracketflow: BrockettFlow", "raw Oja + QR")
    )
    assert tracker < flow < 0.1 * oja


def test_version_and_unknown_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == bf.__version__
    with pytest.raises(SystemExit) as stop:
        main(["dance"])
    assert stop.value.code == 2
