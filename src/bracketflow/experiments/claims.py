"""What an experiment says of the paper: claims with a verdict, and the records they rest on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

Row = dict[str, Any]
Records = dict[str, list[Row]]
"""Named tables of flat rows: all that `claims` and `plot` may read."""


class Verdict(Enum):
    """How a printed statement fares."""

    HOLDS = "holds"
    ORDER = "holds to the order"
    UNSTATED = "holds with unstated choices"
    WEAK = "weak"
    VACUOUS = "vacuous"
    NOT_REPRODUCED = "not reproduced"
    WRONG = "wrong"
    ADDED = "not in the paper"
    UNTESTED = "not tested at this size"

    @property
    def key(self) -> str:
        """Name for style sheets and tables."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True)
class Claim:
    """One statement: the paper's figure, ours, the verdict and the reason for it."""

    what: str
    paper: str
    ours: str
    verdict: Verdict
    reason: str = ""

    def as_row(self) -> Row:
        """Plain strings, for JSON, CSV and the page."""
        return {**asdict(self), "verdict": self.verdict.value}


def sizes(config: Any) -> list[Row]:
    """The table `sizes` with which all records begin: the configuration as plain data."""
    return [json.loads(json.dumps(asdict(config)))]


def at_full_size(records: Records, config: type[Any]) -> bool:
    """Whether the records were computed with `config.full()`."""
    return records["sizes"] == sizes(config.full())


def rows(records: Records, table: str, **wanted: Any) -> list[Row]:
    """Rows of a table whose cells equal all of `wanted`."""
    return [r for r in records[table] if all(r[key] == value for key, value in wanted.items())]


def row(records: Records, table: str, **wanted: Any) -> Row:
    """The one row of a table whose cells equal all of `wanted`."""
    (found,) = rows(records, table, **wanted)
    return found


def column(table: Sequence[Row], name: str) -> np.ndarray:
    """One column of some rows as an array; None becomes NaN."""
    return np.asarray([np.nan if r[name] is None else r[name] for r in table], dtype=float)


def digits(value: float, count: int = 3) -> str:
    """`value` with `count` significant digits, the way the paper prints numbers."""
    if value is None or not np.isfinite(value):
        return "∞" if value is not None and np.isinf(value) else "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{count - 1}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    text = f"{value:.{count}g}"
    return text if "e" not in text else f"{value:.0f}"


def matches(ours: float, printed: str) -> bool:
    """Whether `ours`, rounded to as many digits as were printed, is what was printed."""
    target = float(printed)
    mantissa, _, exponent = printed.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    unit = 10.0 ** (int(exponent or 0) - decimals)
    # One part in 1e9 of slack: the decimal unit itself is rounded.
    return bool(abs(ours - target) <= 0.5 * unit * (1 + 1e-9))


def same_order(ours: float, printed: str) -> bool:
    """Whether `ours` is within a factor of ten of what was printed."""
    return bool(0.1 <= ours / float(printed) <= 10)


SMALLER = "Ours is of a smaller run here; the verdict needs the full one."


def numeric(
    what: str,
    printed: str,
    ours: float,
    *,
    count: int = 4,
    tested: bool = True,
    agreed: Verdict = Verdict.HOLDS,
    otherwise: Verdict = Verdict.NOT_REPRODUCED,
    reason: str = "",
) -> Claim:
    """Claim about one printed number: `agreed` when it matches to the printed digit."""
    shown, right = digits(ours, count), matches(ours, printed)
    return judged(
        what, printed, shown, agreed, reason, when=right, otherwise=otherwise, tested=tested
    )


def judged(
    what: str,
    paper: str,
    ours: str,
    verdict: Verdict,
    reason: str = "",
    *,
    when: bool = True,
    otherwise: Verdict = Verdict.NOT_REPRODUCED,
    tested: bool = True,
) -> Claim:
    """Claim whose verdict is `verdict` when the measured condition `when` holds."""
    if not tested:
        return Claim(what, paper, ours, Verdict.UNTESTED, SMALLER)
    return Claim(what, paper, ours, verdict if when else otherwise, reason)
