"""The page of a run: figures and plots from its manifest and series, in one file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from bracketflow import __version__, plot
from bracketflow.atomic import write_atomically
from bracketflow.core import Status
from bracketflow.experiments.figures import CYCLE, STYLE, inline_svg, plain_powers
from bracketflow.experiments.store import FIGURES
from bracketflow.monitor import Record
from bracketflow.tracking import series
from bracketflow.tracking.folder import CHECKPOINT, EIGENPAIRS, MANIFEST, PAGE, SERIES, Folder
from bracketflow.tracking.rows import faint_words, vector_error_words

EVENTS_SHOWN = 200
Draw = Callable[[Sequence[Record], Any], Any]


class Picture(NamedTuple):
    """A figure of the page."""

    title: str
    words: str
    draw: Draw


def _tracks(records: Sequence[Record], axes: Any) -> Any:
    full = all(record["unseen"] != record["unseen"] for record in records)
    axes = plot.eigenvalues(records, axes, above=None if full else "unseen")
    axes.set_ylabel("eigenvalue" if full else "eigenvalue − background")
    return axes


PICTURES = {
    "eigenvalues": Picture(
        "Eigenvalues",
        "Variance along each vector, averaged, above the background (the mean of the eigenvalues "
        "that are not tracked). Bands hold the true value with 95 % probability while the data "
        "stand still.",
        _tracks,
    ),
    "background": Picture(
        "Background",
        "The mean of the eigenvalues that are not tracked, batch by batch: where the noise is "
        "the same in all directions, its variance σ².",
        plot.background,
    ),
    "change": Picture(
        "Change of the subspace",
        "Distance between the subspaces before and after a batch, where it made the vectors turn.",
        plot.subspace_change,
    ),
    "residuals": Picture(
        "Residuals",
        "How far each vector is from being an eigenvector of the next batch alone. Batches differ, "
        "so these level off at their noise; a dotted line, if any, is the rounding.",
        plot.residuals,
    ),
    "certificate": Picture(
        "Certificate",
        "Solid: bound by a single batch on the angle between a vector and the true one of that "
        "batch; open where it gives none. For all columns it is proved; for the k leading ones "
        "estimated, as if nothing hid between them and the rest, and with the size of the "
        "covariance as the run has seen it. Dashed: the error expected of the averaged "
        "vector, exceeded with 5 % probability while the data stand still.",
        plot.certificate,
    ),
    "lyapunov": Picture(
        "How far from diagonal",
        "f = ½‖off H‖² + ‖R‖² of each batch in the basis before it.",
        plot.lyapunov,
    ),
}


def write(folder: Folder, manifest: dict[str, Any]) -> Path:
    """Write figures/*.svg and index.html from the manifest and the stored series."""
    stored = series.load(folder / SERIES)
    drawn = "".join(
        _section(folder, name, picture, stored.records)
        for name, picture in PICTURES.items()
        if not (name == "background" and _is_full(manifest))
    )
    css = resources.files("bracketflow.experiments").joinpath("page.css").read_text("utf-8")
    source = escape(manifest["source"] if manifest["source"] != "-" else "standard input")
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{source}: eigenvectors tracked</title><link rel="icon" href="data:,">
<style>{css}</style></head>
<body><header><h1>{source}</h1>
{_lead(manifest)}{_problem(manifest)}</header>
<main>{_table(manifest)}{drawn}{_events(stored.events)}</main>
{_footer(folder, manifest)}</body></html>
"""
    write_atomically(folder / PAGE, [page.encode()])
    return folder / PAGE


def _is_full(manifest: dict[str, Any]) -> bool:
    return bool(manifest["result"]["k"] == manifest["result"]["columns"])


def _lead(manifest: dict[str, Any]) -> str:
    result, settings = manifest["result"], manifest["settings"]
    about = "around their running mean" if settings["centre"] else "as they are, no mean taken out"
    refused = f" {manifest['refused']} rows were left out." if manifest["refused"] else ""
    averaged = result["averaged_rows"]
    memory = (
        f" The last averages reach over about {averaged:,.0f} rows."
        if averaged and averaged < 0.95 * result["rows"]
        else ""
    )
    faint = f" {faint_words(result)}." if result["counted_little"] else ""
    return f"""<p class="lead">The {result["k"]} leading eigenvectors of the covariance of
{result["rows"]:,} rows with {result["columns"]:,} columns, {about}, followed in batches of
{settings["batch"]}.{memory}{faint}{refused}</p>"""


def _problem(manifest: dict[str, Any]) -> str:
    if manifest["problem"] is not None:
        return (
            f'<p class="banner">Stopped early: {escape(manifest["problem"])}. What was read before '
            "is shown; go on with <code>--resume</code> when it is repaired.</p>"
        )
    if manifest["status"] == Status.INTERRUPTED.name:
        return '<p class="banner">Interrupted: go on with <code>--resume</code>.</p>'
    return ""


def _table(manifest: dict[str, Any]) -> str:
    result = manifest["result"]
    names = ("eigenvalues", "eigenvalue_errors", "share", "vector_errors")
    rows = "".join(
        f'<tr><td data-label="vector">{i}</td><td data-label="variance">{value:.6g}</td>'
        f'<td data-label="± 95 %">{_known(error)}</td>'
        f'<td data-label="share">{_known(share, ".1%")}</td>'
        f'<td data-label="error of the vector">{vector_error_words(angle)}</td></tr>'
        for i, (value, error, share, angle) in enumerate(
            zip(*(result[name] for name in names), strict=True), 1
        )
    )
    rest = (
        f"<p>Background, the mean of the {result['columns'] - result['k']:,} eigenvalues that are "
        f"not tracked: <b>{_known(result['background'], '.6g')}</b>. "
        if not _is_full(manifest)
        else "<p>"
    )
    return f"""<section><h2>Eigenvalues now</h2><div class="scroll"><table>
<thead><tr><th>vector</th><th>variance</th><th>± 95 %</th><th>share of the total</th>
<th>error of the vector, at most (95 %)</th></tr></thead><tbody>{rows}</tbody></table></div>
{rest}Total variance: <b>{_known(result["total_variance"], ".6g")}</b>.
Variances are Σ(x − mean)²/N; error bars hold while the data stand still.</p></section>"""


def _known(value: float | None, form: str = ".2g") -> str:
    return "unknown" if value is None else format(value, form)


def _section(folder: Folder, name: str, picture: Picture, records: Sequence[Record]) -> str:
    if not _draw(folder, name, picture, records):
        shown = "<p class=\"banner\">Plots need matplotlib: pip install 'bracketflow[cli]'</p>"
    else:
        svg = inline_svg(folder.path, name)
        shown = (
            f'<figure role="img" aria-label="{picture.title}"><div class="scroll">{svg}</div>'
            "</figure>"
        )
    return f"""<section class="experiment" id="{name}"><h2>{picture.title}</h2>
<p class="protocol">{picture.words}</p>{shown}</section>
"""


def _draw(folder: Folder, name: str, picture: Picture, records: Sequence[Record]) -> bool:
    try:
        import matplotlib as mpl
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError:
        return False
    style: Any = {**STYLE, "axes.prop_cycle": cycler(color=CYCLE)}
    buffer = io.BytesIO()
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 3.4), layout="constrained")
        plain_powers(picture.draw(records, figure.subplots()).yaxis)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    path = folder / FIGURES / f"{name}.svg"
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, [buffer.getvalue()])
    return True


def _events(events: Sequence[tuple[int, str]]) -> str:
    if not events:
        return '<section class="experiment" id="events"><h2>Events</h2><p>None.</p></section>'
    shown = "".join(
        f"<tr><td>{rows:,}</td><td>{escape(words)}</td></tr>"
        for rows, words in events[-EVENTS_SHOWN:]
    )
    more = f" The last {EVENTS_SHOWN} are shown." if len(events) > EVENTS_SHOWN else ""
    return f"""<section class="experiment" id="events"><h2>Events</h2>
<p>{len(events)} batches brought something to notice.{more}</p>
<table><thead><tr><th>rows read</th><th>what happened</th></tr></thead>
<tbody>{shown}</tbody></table></section>"""


def _footer(folder: Folder, manifest: dict[str, Any]) -> str:
    names = (EIGENPAIRS, SERIES, Path(SERIES).with_suffix(".parquet").name, CHECKPOINT, MANIFEST)
    links = " ".join(f'<a href="{name}">{name}</a>' for name in names if (folder / name).exists())
    return f"""<footer><p class="files">Data: {links}</p>
<p>Status {escape(manifest["status"])}. Computed with bracketflow {__version__}; nothing on this
page needs a network.</p></footer>"""
