"""The run directory: one JSON file an experiment, checked by digest; timings apart."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import platform
import re
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from bracketflow.atomic import write_atomically
from bracketflow.experiments import EXPERIMENTS
from bracketflow.experiments.claims import Records, Verdict

MANIFEST = "run.json"
TIMINGS = "timings.json"
PAGE = "index.html"
FIGURES = "figures"
TABLES = "tables"
LARGEST = 1 << 26  # bytes of a record; the largest of a full run has less than a hundredth of it


class DamagedRecord(ValueError):
    """A record file that cannot be trusted; the message names the file and what is wrong."""


class MissingRecord(ValueError):
    """There is no record file."""


def versions() -> dict[str, str]:
    """Versions that the numbers depend on."""
    from bracketflow import __version__

    return {
        "bracketflow": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "scipy": scipy.__version__,
    }


def record_path(directory: Path, name: str) -> Path:
    """Where the records of an experiment are kept."""
    return directory / f"{name}.json"


def error_path(directory: Path, name: str) -> Path:
    """Where the traceback of a failed experiment is kept."""
    return directory / f"{name}.error.txt"


def write_record(directory: Path, name: str, mode: str, seed: int, records: Records) -> None:
    """Store config, records, claims, versions and seed, with a digest over all of them."""
    module = EXPERIMENTS[name]
    plain = json.loads(json.dumps(records, allow_nan=False))
    content = {
        "experiment": name,
        "mode": mode,
        "seed": seed,
        "config": asdict(getattr(module.Config, mode)()),
        "versions": versions(),
        "claims": [claim.as_row() for claim in module.claims(plain)],
        "records": plain,
    }
    write_json(record_path(directory, name), {**content, "digest": _digest(content)})


def read_record(directory: Path, name: str) -> dict[str, Any]:
    """A stored record; `MissingRecord`, or `DamagedRecord` that says why it is not trusted."""
    path = record_path(directory, name)
    if not path.exists():
        raise MissingRecord(f"there is no {path.name} in {directory}")
    try:
        content = json.loads(_bounded_text(path))
        digest = content.pop("digest")
        sound = digest == _digest(content) and content["experiment"] == name
    except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedRecord(f"{path.name} is damaged: {type(error).__name__}: {error}") from None
    if not sound:
        raise DamagedRecord(f"{path.name} is damaged: its content does not match its digest")
    if not _is_well_formed(content):
        raise DamagedRecord(f"{path.name} is damaged: it does not hold what a record holds")
    return dict(content)


def _bounded_text(path: Path) -> str:
    if not path.is_file() or path.stat().st_size > LARGEST:
        raise ValueError("it is no ordinary file of an ordinary size")
    return path.read_text(encoding="utf-8")


def _is_well_formed(content: dict[str, Any]) -> bool:
    """Whether a record, whoever wrote it, can be shown: names of tables become names of files."""
    claims: Any = content.get("claims")
    records: Any = content.get("records")
    verdicts = {verdict.value for verdict in Verdict}
    fields = {"what", "paper", "ours", "verdict", "reason"}
    return (
        content.get("mode") in ("quick", "full")
        and type(content.get("seed")) is int
        and _all(content.get("versions"), dict, lambda item: isinstance(item[1], str))
        and _all(claims, list, lambda c: isinstance(c, dict) and set(c) == fields)
        and all(_all(c, dict, lambda item: isinstance(item[1], str)) for c in claims)
        and all(claim["verdict"] in verdicts for claim in claims)
        and _all(records, dict, lambda item: re.fullmatch(r"\w+", item[0]) is not None)
        and all(_all(rows, list, lambda row: isinstance(row, dict)) for rows in records.values())
    )


def _all(value: Any, kind: type, condition: Callable[[Any], bool]) -> bool:
    """Whether `value` is a list or dict of this kind whose entries all meet the condition."""
    entries = value.items() if isinstance(value, dict) else value
    return isinstance(value, kind) and all(condition(entry) for entry in entries)


def is_current(content: dict[str, Any], mode: str, seed: int) -> bool:
    """Whether a stored record is what a run with this mode and seed would compute now."""
    config = asdict(getattr(EXPERIMENTS[content["experiment"]].Config, mode)())
    same = content["mode"] == mode and content["seed"] == seed
    return bool(same and content["config"] == _plain(config) and content["versions"] == versions())


def stored_names(directory: Path) -> list[str]:
    """Experiments of which the directory holds a record file, damaged or not."""
    return [name for name in EXPERIMENTS if record_path(directory, name).exists()]


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, content: Any) -> None:
    """Write sorted, indented JSON in one go: an interrupted run leaves no half file."""
    write_text(path, json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a text file in one go."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file in one go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [content])


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is missing or damaged."""
    try:
        content = json.loads(_bounded_text(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def write_tables(directory: Path, name: str, content: dict[str, Any]) -> list[Path]:
    """Claims and every table of records as CSV files."""
    tables = {"claims": content["claims"], **content["records"]}
    written = []
    for table, cells in tables.items():
        if not cells:
            continue
        path = directory / TABLES / f"{name}_{table}.csv"
        header = list(dict.fromkeys(key for cell in cells for key in cell))
        lines = io.StringIO(newline="")
        writer = csv.DictWriter(lines, fieldnames=header)
        writer.writeheader()
        writer.writerows(cells)
        write_text(path, lines.getvalue())
        written.append(path)
    return written
