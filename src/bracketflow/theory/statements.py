"""Every statement of the paper by label: its functions, its tests and what the audit found."""

import tomllib
from pathlib import Path
from typing import NamedTuple


class Statement(NamedTuple):
    """One statement of the paper, or twins of main text and appendix.

    Tests are named without ``test_``. Where there are no functions, the verdict says why.
    """

    labels: tuple[str, ...]
    says: str
    functions: tuple[str, ...]
    tests: tuple[str, ...]
    verdict: str


def _load() -> tuple[Statement, ...]:
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))["statement"]
    return tuple(
        Statement(
            tuple(row["labels"]),
            row["says"],
            tuple(row["functions"]),
            tuple(row["tests"]),
            row["verdict"],
        )
        for row in rows
    )


STATEMENTS = _load()


def as_markdown() -> str:
    """All statements as a Markdown table."""
    rows = ["| statement | says | functions | tests | verdict |", "|---|---|---|---|---|"]
    for statement in STATEMENTS:
        cells = (
            _code(statement.labels),
            statement.says.replace("|", "\\|"),
            _code(statement.functions),
            _code(statement.tests),
            statement.verdict,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _code(names: tuple[str, ...]) -> str:
    return "<br>".join(f"`{name}`" for name in names)
