"""The run directory: one JSON file an experiment, checked by digest; timings apart."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from bracketflow.experiments import EXPERIMENTS
from bracketflow.experiments.claims import Records

MANIFEST = "run.json"
TIMINGS = "timings.json"
PAGE = "index.html"
FIGURES = "figures"
TABLES = "tables"


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
        content = json.loads(path.read_text(encoding="utf-8"))
        digest = content.pop("digest")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedRecord(f"{path.name} is damaged: {type(error).__name__}: {error}") from None
    if digest != _digest(content) or content.get("experiment") != name:
        raise DamagedRecord(f"{path.name} is damaged: its content does not match its digest")
    return dict(content)


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
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
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
        path.parent.mkdir(parents=True, exist_ok=True)
        header = list(dict.fromkeys(key for cell in cells for key in cell))
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=header)
            writer.writeheader()
            writer.writerows(cells)
        written.append(path)
    return written
