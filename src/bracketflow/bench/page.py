"""The page: error against products and against time, one section a scene."""

from __future__ import annotations

import io
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from bracketflow.bench.contenders import OURS
from bracketflow.bench.race import table
from bracketflow.bench.scenes import SCENES
from bracketflow.checkpoint import write_atomically
from bracketflow.experiments.figures import CYCLE, FAINT, INK, STYLE


def write_page(record: dict[str, Any], directory: Path) -> Path:
    """Write `index.html` with tables and plots of a bench record; self-contained."""
    css = resources.files("bracketflow.experiments").joinpath("page.css").read_text("utf-8")
    sections = "".join(_section(name, curves) for name, curves in record["scenes"].items())
    versions = ", ".join(f"{name} {v}" for name, v in record["versions"].items())
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>bracketflow: the race</title><link rel="icon" href="data:,"><style>{css}</style></head>
<body><header><h1>The race</h1>
<p class="lead">Every contender sees the same observations in the same run, from the same start.
Errors are means over {record["seeds"]} draw(s) of each scene. Rivals with a setting are shown at
their best one, chosen afterwards, in their favour. Time is a ratio within this run; products do
not depend on the machine.</p><p class="protocol">{escape(versions)}</p></header>
<main>{sections}</main></body></html>
"""
    path = directory / "index.html"
    write_atomically(path, [page.encode()])
    return path


def _section(name: str, curves: dict[str, Any]) -> str:
    scene = SCENES[name]
    return f"""<section class="experiment" id="{escape(name)}">
<h2>{escape(scene.title)}</h2><p class="protocol">{escape(scene.words)}</p>
<figure class="scroll">{_figure(name, curves)}</figure>
<div class="scroll"><pre>{escape(chr(10).join(table(curves)))}</pre></div>
<p class="conclusion">{escape(verdict(curves))}</p></section>
"""


def verdict(curves: dict[str, Any]) -> str:
    """Who ends with the smaller error, in a sentence."""
    ours = curves[OURS]["error"][-1]
    rivals = {name: c["error"][-1] for name, c in curves.items() if name != OURS and "seconds" in c}
    name = min(rivals, key=lambda rival: rivals[rival])
    ratio = rivals[name] / ours
    if ratio < 1:
        return f"{name} ends {1 / ratio:.2g} times closer than EigenTracker here."
    return f"EigenTracker ends closest; the next is {name}, {ratio:.2g} times as far."


def _figure(name: str, curves: dict[str, Any]) -> str:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        return "<p>Plots need matplotlib: pip install 'bracketflow[cli]'</p>"
    style: Any = {**STYLE, "svg.hashsalt": name}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 4.4), layout="constrained")
        against_products, against_time = figure.subplots(1, 2, sharey=True)
        drawn = {rival: curve for rival, curve in curves.items() if "seconds" in curve}
        for i, (rival, curve) in enumerate(drawn.items()):
            width = 2.4 if rival == OURS else 1.1
            look: dict[str, Any] = {"color": CYCLE[i % len(CYCLE)], "linewidth": width}
            look |= {"linestyle": "-" if i < len(CYCLE) else "--", "zorder": 2 + (rival == OURS)}
            against_products.loglog(curve["matvecs"], curve["error"], label=rival, **look)
            against_time.loglog(curve["seconds"], curve["error"], **look)
        against_products.set(xlabel="products", ylabel="error")
        against_time.set(xlabel="seconds in this run")
        figure.legend(loc="outside lower center", ncols=4, fontsize=8)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(FAINT, "var(--line)")
    return (
        text.replace('id="', f'id="{name}-')
        .replace("url(#", f"url(#{name}-")
        .replace('href="#', f'href="#{name}-')
    )
