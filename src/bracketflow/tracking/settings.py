"""What a run of `bracketflow track` is made with."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from bracketflow.core import whole_number
from bracketflow.streams import Batches, batches
from bracketflow.tracker import EigenTracker
from bracketflow.tracking.rows import RowTracker

BATCH = 256


@dataclass(frozen=True)
class Settings:
    """What a run is made with; None where it is left open."""

    k: int | None = None
    batch: int | None = None
    centre: bool | None = None
    forget: float | None = None
    key: str | None = None
    columns: tuple[str, ...] | None = None
    skip_bad: bool | None = None

    def agreeing(self, earlier: dict[str, Any]) -> Settings:
        """Those of the run to be resumed: they may be given again, but not otherwise."""
        stored = Settings(**_settings(earlier))
        for field in fields(self):
            given, kept = getattr(self, field.name), getattr(stored, field.name)
            if given is not None and given != kept:
                raise ValueError(
                    f"--resume goes on with {field.name} = {kept}, got {given}: leave it out, or "
                    "choose another --out"
                )
        return stored

    def completed(self) -> Settings:
        """With the defaults where something is open; k stays as it is."""
        return replace(
            self,
            batch=BATCH if self.batch is None else whole_number(self.batch, "batch", at_least=1),
            centre=self.centre is not False,
            skip_bad=bool(self.skip_bad),
        )

    def method(self) -> RowTracker:
        """The tracker that these settings describe."""
        return RowTracker(self.centre is not False, EigenTracker(forget=self.forget))

    def opened(self, source: str, start: int = 0, part: slice = slice(None)) -> Batches:
        """The batches of a source, or a part of each."""
        return batches(
            source,
            self.batch,
            key=self.key,
            columns=self.columns,
            start=start,
            part=part,
            on_bad="skip" if self.skip_bad else "raise",
        )


def _settings(stored: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were before JSON made lists of them."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in stored.items()}
