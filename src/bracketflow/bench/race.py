"""Running the scenes: every contender, the same observations, errors against products and time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bracketflow.bench.contenders import OURS, RowPCA, contenders, versions
from bracketflow.bench.scenes import SCENES, Problem, Scene
from bracketflow.checkpoint import write_atomically
from bracketflow.core import ObservationError, State
from bracketflow.geometry import basis_error, subspace_error

MARKS = 40  # points of a curve
Track = dict[str, list[float]]
Announce = Callable[[str, str], None]


def run_bench(
    names: Sequence[str] = (),
    *,
    seeds: int = 5,
    quick: bool = False,
    out: Path | None = None,
    announce: Announce = lambda scene, contender: None,
) -> dict[str, Any]:
    """Race every contender through the scenes called `names` (all by default).

    Parameters
    ----------
    seeds : int
        Independent draws of each scene; errors are averaged over them.
    quick : bool
        One seed and a tenth of the steps: shows that everything runs, not who wins.
    out : Path, optional
        Folder for `bench.json`.
    """
    unknown = [name for name in names if name not in SCENES]
    if unknown:
        raise ValueError(f"unknown scenes {unknown}: choose from {', '.join(SCENES)}")
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    results = {
        name: race(scene, 1 if quick else seeds, 0.1 if quick else 1.0, name, announce)
        for name, scene in SCENES.items()
        if not names or name in names
    }
    record = {"versions": versions(), "seeds": 1 if quick else seeds, "scenes": results}
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "bench.json", [json.dumps(record, indent=1).encode()])
    return record


def race(
    scene: Scene, seeds: int, part: float, name: str, announce: Announce
) -> dict[str, dict[str, Any]]:
    """Curves of every contender at its best setting, averaged over seeds."""
    steps = max(10, int(scene.steps * part))
    problems = [scene.draw(np.random.default_rng(seed), steps) for seed in range(seeds)]
    k = problems[0].start.shape[-1]
    curves = {}
    for contender, variants in contenders(scene, k).items():
        announce(name, contender)
        tried = {
            setting: _mean([follow(method, p, steps, scene) for p in problems])
            for setting, method in variants.items()
        }
        setting, best = min(tried.items(), key=lambda item: _score(item[1]))
        curves[contender] = {"setting": setting, **best}
    if problems[0].reference is not None:
        limits = [_error(scene, p.reference, p.truth(steps)) for p in problems]
        curves["PCA of all rows (the limit)"] = {"setting": "", "error": [float(np.mean(limits))]}
    return curves


def follow(method: Any, problem: Problem, steps: int, scene: Scene) -> Track:
    """Error, products and seconds of one method along one problem, at `MARKS` steps."""
    marks = set(np.unique(np.geomspace(1, steps, MARKS).astype(int)).tolist())
    state = method.init(problem.start)
    track: Track = {"step": [], "error": [], "matvecs": [], "seconds": []}
    spent = 0.0
    for t, (operator, rows) in enumerate(problem.observations(), start=1):
        begin = time.perf_counter()
        state = _advance(method, operator, rows, state)
        spent += time.perf_counter() - begin
        if t in marks:
            track["step"].append(t)
            # The basis is judged against the signal that the last observation showed.
            track["error"].append(_error(scene, state.basis, problem.truth(t - 1)))
            track["matvecs"].append(int(state.matvecs))
            track["seconds"].append(spent)
    return track


def _advance(method: Any, operator: Any, rows: np.ndarray | None, state: State) -> State:
    if isinstance(method, RowPCA) and rows is not None:
        return method.step_rows(rows, state)
    try:
        following: State = method.step(operator, state)[0]
    except (ObservationError, np.linalg.LinAlgError):
        return state  # a rival that broke down keeps what it had
    return following


def _error(scene: Scene, basis: Any, truth: np.ndarray) -> float:
    return float((basis_error if scene.full else subspace_error)(basis, truth))


def _mean(tracks: list[Track]) -> Track:
    return {name: np.mean([t[name] for t in tracks], axis=0).tolist() for name in tracks[0]}


def _score(track: Track) -> float:
    """Mean error of the second half of the marks: one lucky point does not decide."""
    half = track["error"][len(track["error"]) // 2 :]
    score = float(np.mean(half))
    return score if np.isfinite(score) else float("inf")


def table(curves: dict[str, dict[str, Any]]) -> list[str]:
    """A scene as lines of text: final error, its ratio to ours, products, time ratio."""
    ours = curves[OURS]
    lines = [
        f"  {'':<30s}{'error':>12s}{'/ ours':>9s}{'products':>10s}{'time / ours':>13s}  setting"
    ]
    for name, curve in curves.items():
        error, ratio = curve["error"][-1], curve["error"][-1] / ours["error"][-1]
        line = f"  {name:<30s}{error:>12.3g}{ratio:>9.3g}"
        if "seconds" in curve:
            pace = curve["seconds"][-1] / ours["seconds"][-1]
            line += f"{curve['matvecs'][-1]:>10.0f}{pace:>13.2g}  {curve['setting']}"
        if name != OURS and ratio < 1 and "seconds" in curve:
            line += "  <- better than ours"
        lines.append(line.rstrip())
    return lines
