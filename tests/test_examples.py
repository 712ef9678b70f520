"""Every file in examples/ runs, quickly, and says something."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
BEHIND = {"bracketflow.estimators": "sklearn", "bracketflow.torch": "torch"}
SECONDS = 120


def imported(path):
    """The packages that a script imports, with those behind parts of this one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (BEHIND.get(name, name.partition(".")[0]) for name in names)


def test_there_are_examples():
    assert EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path):
    missing = {name for name in imported(path) if importlib.util.find_spec(name) is None}
    if missing:
        pytest.skip(f"needs {', '.join(sorted(missing))}")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
