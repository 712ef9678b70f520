"""The page: one self-contained HTML file with the tracks, the errors and the noise floor."""

from __future__ import annotations

from html import escape
from importlib import resources
from pathlib import Path

import numpy as np

from bracketflow.demo.contest import Contest
from bracketflow.demo.pictures import picture
from bracketflow.demo.words import (
    CAPTION,
    HEAD,
    NOTES,
    bar_words,
    burst_words,
    cells,
    exactness,
    labels,
    setting_words,
    verdict,
)
from bracketflow.experiments.store import PAGE, versions, write_text


def write_page(contest: Contest, directory: Path) -> Path:
    """Write `index.html` into `directory`, its pictures inside it, and beside it as files."""
    css = resources.files("bracketflow.experiments").joinpath("page.css").read_text("utf-8")
    tools = ", ".join(f"{name} {version}" for name, version in versions().items())
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>bracketflow: directions under a swinging noise floor</title>
<link rel="icon" href="data:,"><style>{css}</style></head>
<body><header><h1>Directions under a swinging noise floor</h1>
<p class="lead">An array of sensors hears moving sources. Where they are is in the leading
eigenvectors of the sensors' covariance; the receiver noise adds σ²I to it, and that changes from
batch to batch. Who keeps the directions?</p>
<p class="protocol">{escape(setting_words(contest))}</p></header>
<main>
<section><h2>In numbers</h2>{_table(contest)}
<p class="conclusion">{escape(verdict(contest))} {escape(exactness(contest))}</p>
{_absent(contest)}</section>
<section class="experiment"><h2>Directions</h2>
<p>Grey: where the sources are. Dots: where each method puts them after each batch. The two upper
sources come as close as {_closest(contest):.1f}° while the floor is at its highest; the lowest one
jumps at batch {contest.scene.jump}.</p>{_picture(contest, directory, "tracks")}</section>
<section class="experiment"><h2>Error of the signal subspace</h2>
<p>0 is the true subspace, 1 one that has nothing of it. Shaded: batches too noisy to show all
sources by themselves, so that only memory helps.</p>{_picture(contest, directory, "errors")}
</section>
<section class="experiment"><h2>The noise floor, and how sure the tracker is</h2>
<p>Above, σ² and our estimate from each batch: the mean eigenvalue outside the tracked subspace. The
tracker itself never uses it. Below, how far its vectors are from the true eigenvectors, and its
bars, which say with 95 % probability how far at most.
{escape(bar_words(contest))}</p>{_picture(contest, directory, "floor")}</section>
<section class="experiment"><h2>Noise bursts</h2>
<p>{escape(burst_words(contest.bursts))}</p>{_picture(contest, directory, "bursts")}</section>
<section class="experiment"><h2>How it is done</h2>
<p>Complex snapshots z of a uniform array become real rows Re Qᴴz and Im Qᴴz by a fixed unitary Q;
the Gram matrix of the rows is the forward–backward averaged covariance. Each batch is one
observation <code>bf.gram(rows)</code> and costs one block product. The angles come from the tracked
basis by unitary ESPRIT, for every method alike. <code>examples/sensor_array.py</code> does this on
a page of code.</p></section>
</main><footer><p>Computed with {escape(tools)}; seed {contest.scene.seed}. Nothing on this page
needs a network.</p></footer></body></html>
"""
    path = directory / PAGE
    write_text(path, page)
    return path


def _table(contest: Contest) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in HEAD)
    body = "".join(_row(contest, name, label) for name, label in labels(contest).items())
    return f"""<table><thead><tr><th>Method</th>{head}</tr></thead><tbody>{body}</tbody></table>
<p class="reason">{escape(CAPTION)}</p>"""


def _row(contest: Contest, name: str, label: str) -> str:
    values = "".join(
        f'<td class="ours" data-label="{escape(title)}">{escape(cell)}</td>'
        for title, cell in zip(HEAD, cells(contest, name), strict=True)
    )
    note = f'<p class="reason">{escape(NOTES[name])}</p>'
    return f'<tr><td class="what">{escape(label)}{note}</td>{values}</tr>'


def _absent(contest: Contest) -> str:
    return f'<p class="banner">{escape(contest.absent)}</p>' if contest.absent else ""


def _closest(contest: Contest) -> float:
    return float(np.min(np.diff(contest.scene.angles, axis=-1)))


def _picture(contest: Contest, directory: Path, name: str) -> str:
    svg = picture(contest, directory, name)
    if svg is None:
        return "<p class=\"banner\">Pictures need matplotlib: pip install 'bracketflow[cli]'</p>"
    return f'<figure class="scroll">{svg}</figure>'
