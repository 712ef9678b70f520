"""The examples that need PyTorch run, and show what they say they show."""

import re
import runpy
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def shown_by(name, capsys):
    runpy.run_path(str(EXAMPLES / name))
    return capsys.readouterr().out


def test_hessian_training(capsys):
    shown = shown_by("hessian_training.py", capsys)
    captured = float(re.search(r"holds ([\d.]+)% of the curvature", shown).group(1))
    assert 90 < captured <= 100


def test_soap_basis(capsys):
    shown = shown_by("soap_basis.py", capsys)
    off_diagonal = {
        line[:32].strip(): float(line[32:].split()[0]) for line in shown.splitlines()[1:5]
    }
    assert set(off_diagonal) == {
        "eigh at every step",
        "one orthogonal iteration (SOAP)",
        "EigenTracker",
        "DoubleBracketFlow",
    }
    assert all(0 <= share < 0.5 for share in off_diagonal.values())
    assert off_diagonal["EigenTracker"] < off_diagonal["one orthogonal iteration (SOAP)"]
