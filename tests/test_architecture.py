"""Light import, complete exports, documents that agree with the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bracketflow as bf
from bracketflow.cli import _parser

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bracketflow"


def test_import_is_light():
    code = (
        "import sys, bracketflow\n"
        "heavy = {'torch', 'sklearn', 'matplotlib', 'rich', 'pandas'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_exports_are_sorted_and_complete():
    assert bf.__all__ == sorted(bf.__all__)
    assert all(hasattr(bf, name) for name in bf.__all__)
    public = {
        name
        for name, value in vars(bf).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("bracketflow.")
    }
    assert public == set(bf.__all__)


def test_every_public_name_has_a_docstring():
    assert [name for name in bf.__all__ if not getattr(bf, name).__doc__] == []


def test_versions_agree():
    project = (ROOT / "pyproject.toml").read_text()
    assert f'version = "{bf.__version__}"' in project
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == bf.__version__
    assert f"version: {bf.__version__}" in (ROOT / "CITATION.cff").read_text()


def readme_blocks():
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("block", readme_blocks())
def test_readme_examples_run_as_printed(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    shown = capsys.readouterr().out
    for promised in re.findall(r"print\(.*\)\s+# (\S+)", block):
        assert float(shown) <= 10 * float(promised)


def readme_commands():
    """Calls in a terminal, block by block: what stands behind the prompts."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return [re.findall(r"^\$ (.*)$", block, re.M) for block in blocks]


@pytest.mark.parametrize("commands", readme_commands())
def test_readme_commands_run_as_printed(commands, tmp_path):
    assert commands
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "MPLBACKEND": "Agg"},
            capture_output=True,
            text=True,
        )
        # `certify` says with 1 that something is not guaranteed, and that is an answer.
        answers = (0, 1) if " certify " in command else (0,)
        assert done.returncode in answers, (command, done.stderr)
        assert done.stderr == "", command


def test_readme_names_no_command_that_cannot_be_parsed():
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    lines = [line for block in blocks for line in block.splitlines() if line[:12] == "bracketflow "]
    assert lines
    for line in lines:
        _parser().parse_args(line.partition("#")[0].split()[1:])


def test_architecture_page_names_every_module():
    page = (ROOT / "docs" / "architecture.md").read_text()
    modules = {p.name for p in SOURCE.glob("*.py")} - {"__init__.py"}
    packages = {f"{p.parent.name}/" for p in SOURCE.glob("*/__init__.py")}
    assert [name for name in sorted(modules | packages) if f"`{name}`" not in page] == []


def test_theory_page_names_tests_that_exist():
    page = (ROOT / "docs" / "theory.md").read_text()
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", page)
    assert named
    for file, test in named:
        assert f"def {test}(" in (ROOT / "tests" / file).read_text(), (file, test)


def test_nothing_prints_outside_the_command_line():
    loud = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"^\s*print\(", path.read_text(), re.M)
    ]
    allowed = {
        "cli.py",
        "experiments/command.py",
        "experiments/progress.py",
        "tracking/command.py",
    }
    assert set(loud) <= allowed
