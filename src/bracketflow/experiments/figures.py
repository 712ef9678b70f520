"""Figures from stored records: crisp SVG that follows the page's colours, PNG and PDF."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

from bracketflow.experiments import EXPERIMENTS
from bracketflow.experiments.claims import Records
from bracketflow.experiments.store import FIGURES, write_bytes

INK = "#14161a"
"""Text and axes; becomes the page's text colour in the SVG."""
FAINT = "#c8ccd2"
"""Grid lines; becomes the page's line colour in the SVG."""
# Readable on white and on near-black alike.
CYCLE = ("#2f7ed8", "#e8710a", "#2a9d5c", "#c2459a", "#8a63d2", "#b8860b", "#d64545", "#1aa6b7")

# What matplotlib never writes, and a page must not take over from a file.
ACTIVE = re.compile(
    r"<script|<foreign|<iframe|\son\w+\s*=|javascript:|href=[\"'](?!#|data:image/png;)", re.I
)

STYLE: dict[str, Any] = {
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "font.size": 10,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",
    "svg.hashsalt": "bracketflow",
}


def draw(directory: Path, name: str, records: Records) -> str | None:
    """Write NAME.svg, .png and .pdf; None when drawn, else why not."""
    try:
        import matplotlib as mpl
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError:
        return "figures need matplotlib: pip install 'bracketflow[cli]'"
    style: Any = {**STYLE, "axes.prop_cycle": cycler(color=CYCLE)}
    with mpl.rc_context(style):
        figure = Figure(figsize=(9, 3.9), dpi=140, layout="constrained")
        EXPERIMENTS[name].plot(records, figure)
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                plain_powers(axis)
        _save(figure, directory / FIGURES / name)
    return None


def _save(figure: Any, path: Path) -> None:
    """PNG on white, PDF and SVG without a background; each canvas draws once."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    # One after the other: a canvas, when made, takes hold of the figure and its resolution.
    png: Any = FigureCanvasAgg(figure)
    drawn = {"png": io.BytesIO(), "pdf": io.BytesIO(), "svg": io.BytesIO()}
    png.print_png(drawn["png"], metadata={"Software": None})
    figure.set_layout_engine("none")  # the first canvas has laid it out
    for part in (figure, *figure.axes):
        part.patch.set_alpha(0)
    pdf: Any = FigureCanvasPdf(figure)
    pdf.print_pdf(drawn["pdf"], metadata={"CreationDate": None})
    svg: Any = FigureCanvasSVG(figure)
    svg.print_svg(drawn["svg"], metadata={"Date": None})
    for kind, file in drawn.items():  # the SVG last: where it is, the others are
        write_bytes(path.with_suffix(f".{kind}"), file.getvalue())


def plain_powers(axis: Any) -> None:
    """Label a wide logarithmic axis 10⁻³, 10⁰, 10³ in plain text: the page's own font draws it."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    low, high = axis.get_view_interval()
    if axis.get_scale() != "log" or not 0 < 30 * low < high:
        return
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))
    axis.set_minor_locator(NullLocator())


def power_of_ten(value: float) -> str:
    """10ᵏ for a power of ten, 1 and 10 as they are."""
    exponent = round(math.log10(value)) if value > 0 else 0
    if exponent in (0, 1):
        return str(10**exponent)
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}"


def inline_svg(directory: Path, name: str) -> str | None:
    """The stored SVG made fit to stand inside a page, or None when there is none to trust."""
    path = directory / FIGURES / f"{name}.svg"
    try:
        text = path.read_text(encoding="utf-8")
        text = text[text.index("<svg") :]
    except (OSError, ValueError):
        return None
    if ACTIVE.search(text):
        return None
    text = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--line)")
    # Several figures share one page: their ids must not meet.
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r"url\(#", f"url(#{name}-", text)
    text = re.sub(r'href="#', f'href="#{name}-', text)
    return re.sub(r"font: ([^;]*?)'[^;]*?sans-serif", r"font: \1 sans-serif", text)
