"""`bracketflow bench`: the tracker and its rivals on the same observations in the same run."""

from bracketflow.bench.race import run_bench
from bracketflow.bench.scenes import SCENES

__all__ = ["SCENES", "run_bench"]
