"""The page: one self-contained HTML file from the stored records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bracketflow.experiments import EXPERIMENTS, store
from bracketflow.experiments.claims import Verdict
from bracketflow.experiments.figures import inline_svg

KEYS = {verdict.value: verdict.key for verdict in Verdict}
MEANING = {
    Verdict.HOLDS: "reproduced to the printed digit, or the statement was confirmed",
    Verdict.ORDER: "the order of magnitude agrees; the digits depend on rounding",
    Verdict.UNSTATED: "agrees only with choices that the paper does not state",
    Verdict.WEAK: "true in part only",
    Verdict.VACUOUS: "true, but says nothing at any size that occurs",
    Verdict.NOT_REPRODUCED: "we could not obtain it under the stated protocol",
    Verdict.WRONG: "measured to be otherwise",
    Verdict.ADDED: "what the paper does not say",
    Verdict.UNTESTED: "needs the full size: run with --full",
}


def write_page(directory: Path) -> Path:
    """Write index.html from whatever records the directory holds."""
    sections, stored = [], {}
    for name in EXPERIMENTS:
        failed = store.error_path(directory, name).exists()
        try:
            stored[name] = store.read_record(directory, name)
            sections.append(_section(directory, name, stored[name]))
        except store.MissingRecord:
            sections += [_failed_section(directory, name)] if failed else []
        except store.DamagedRecord as problem:
            text = f"{problem}. Run `bracketflow reproduce --resume` to compute it again."
            sections.append(
                _failed_section(directory, name) if failed else _problem_section(name, text)
            )
    page = directory / store.PAGE
    store.write_text(page, _page(stored, sections))
    return page


def _page(stored: dict[str, Any], sections: Sequence[str]) -> str:
    css, script = (_asset(name) for name in ("page.css", "page.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Double-bracket flows: the paper, redone</title>
<link rel="icon" href="data:,">
<style>{css}</style>
</head>
<body>
{_header(stored)}
<main>
{_summary(stored)}
{"".join(sections)}
</main>
{_footer(stored)}
<script>{script}</script>
</body>
</html>
"""


def _prose(text: str) -> str:
    """Escaped text, with `code` marked as such."""
    return re.sub(r"`(.+?)`", r"<code>\1</code>", escape(text))


def _asset(name: str) -> str:
    return resources.files("bracketflow.experiments").joinpath(name).read_text(encoding="utf-8")


def _header(stored: dict[str, Any]) -> str:
    modes = sorted({content["mode"] for content in stored.values()})
    quick = "quick" in modes
    note = (
        '<p class="banner">Quick sizes: some printed numbers need the full run and are marked '
        "“not tested at this size”.</p>"
        if quick
        else ""
    )
    links = "".join(_card(name, content["claims"]) for name, content in stored.items())
    return f"""<header>
<h1>The paper, redone</h1>
<p class="lead">A paper on <em>discrete double-bracket flows</em> says that one can find the
eigenvectors of a matrix <i>C</i> + σ²<i>I</i> without ever noticing the background σ², by an
iteration built from commutators. Here every experiment of that paper is computed again, number by
number: what was claimed, what holds, and what does not.</p>
{note}
<nav aria-label="experiments, one dot for each statement">{links}</nav>
</header>"""


def _card(name: str, claims: Sequence[dict[str, str]]) -> str:
    """Link to a section, with one dot a claim in the colour of its verdict."""
    order = [verdict.value for verdict in Verdict]
    verdicts = sorted((claim["verdict"] for claim in claims), key=order.index)
    dots = "".join(f'<i class="{KEYS[verdict]}" title="{verdict}"></i>' for verdict in verdicts)
    title = escape(EXPERIMENTS[name].TITLE)
    return f'<a href="#{name}"><b>{escape(name)}</b> {title}<span class="dots">{dots}</span></a>'


def _summary(stored: dict[str, Any]) -> str:
    claims = [(name, claim) for name, content in stored.items() for claim in content["claims"]]
    counts = Counter(claim["verdict"] for _, claim in claims)
    buttons = "".join(
        f'<button type="button" class="chip {verdict.key}" data-verdict="{verdict.key}" '
        f'aria-pressed="false" title="{escape(MEANING[verdict])}">'
        f"<b>{counts[verdict.value]}</b> {escape(verdict.value)}</button>"
        for verdict in Verdict
        if counts[verdict.value]
    )
    legend = "".join(
        f"<dt><span class='chip {v.key}'>{escape(v.value)}</span></dt><dd>{escape(MEANING[v])}</dd>"
        for v in Verdict
        if counts[v.value]
    )
    cells = "".join(_claim_row(claim, name) for name, claim in claims)
    return f"""<section id="summary">
<h2>Every number: paper, ours, verdict</h2>
<div class="chips" role="group" aria-label="show one verdict only">{buttons}</div>
<details class="legend"><summary>What the verdicts mean</summary><dl>{legend}</dl></details>
<table class="claims" id="all-claims">
<thead><tr><th>Exp.</th><th>Statement</th><th>Paper</th><th>Ours</th><th>Verdict</th></tr></thead>
<tbody>{cells}</tbody>
</table>
</section>"""


def _claim_row(claim: dict[str, str], name: str | None = None) -> str:
    key = KEYS[claim["verdict"]]
    first = "" if name is None else f'<td class="exp"><a href="#{name}">{escape(name)}</a></td>'
    reason = f'<p class="reason">{_prose(claim["reason"])}</p>' if claim["reason"] else ""
    return f"""<tr class="{key}" data-verdict="{key}">{first}
<td class="what">{escape(claim["what"])}</td>
<td class="paper" data-label="Paper">{escape(claim["paper"])}</td>
<td class="ours" data-label="Ours">{escape(claim["ours"])}</td>
<td class="verdict"><span class="chip {key}">{escape(claim["verdict"])}</span>{reason}</td></tr>
"""


def _section(directory: Path, name: str, content: dict[str, Any]) -> str:
    module = EXPERIMENTS[name]
    cells = "".join(_claim_row(claim) for claim in content["claims"])
    return f"""<section id="{name}" class="experiment" data-mode="{content["mode"]}">
<h2><span class="name">{escape(name)}</span> {escape(module.TITLE)}</h2>
<p><b>Claimed.</b> {_prose(module.CLAIMED)}</p>
<p class="protocol"><b>Protocol.</b> {_prose(module.PROTOCOL)}</p>
{_warning(directory, name)}
{_figure(directory, name)}
<table class="claims">
<thead><tr><th>Statement</th><th>Paper</th><th>Ours</th><th>Verdict</th></tr></thead>
<tbody>{cells}</tbody>
</table>
<p class="conclusion"><b>To conclude.</b> {_prose(module.CONCLUSION)}</p>
{_files(directory, name)}
</section>
"""


def _warning(directory: Path, name: str) -> str:
    """A banner when a later run of this experiment failed."""
    path = store.error_path(directory, name)
    if not path.exists():
        return ""
    return f'<p class="banner">Its last run ended with an error: {escape(_last_line(path))}</p>'


def _last_line(path: Path) -> str:
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason was kept"


def _figure(directory: Path, name: str) -> str:
    svg = inline_svg(directory, name)
    title = escape(EXPERIMENTS[name].TITLE)
    if svg is None:
        return (
            '<p class="banner">The figure was not drawn: install matplotlib '
            "(pip install 'bracketflow[cli]') and run <code>bracketflow report</code>.</p>"
        )
    return (
        f'<figure role="img" aria-label="{name}: {title}"><div class="scroll">{svg}</div></figure>'
    )


def _files(directory: Path, name: str) -> str:
    tables = sorted((directory / store.TABLES).glob(f"{name}_*.csv"))
    figures = [directory / store.FIGURES / f"{name}.{kind}" for kind in ("png", "pdf")]
    paths = [store.record_path(directory, name), *figures, *tables]
    links = " ".join(
        f'<a href="{quote(path.relative_to(directory).as_posix())}">{escape(path.name)}</a>'
        for path in paths
        if path.exists()
    )
    return f'<p class="files">Data: {links}</p>'


def _failed_section(directory: Path, name: str) -> str:
    reason = _last_line(store.error_path(directory, name))
    return _problem_section(name, f"This experiment failed. {reason}")


def _problem_section(name: str, text: str) -> str:
    return f"""<section id="{name}" class="experiment problem">
<h2><span class="name">{escape(name)}</span> {escape(EXPERIMENTS[name].TITLE)}</h2>
<p class="banner">{_prose(text)}</p>
</section>
"""


def _footer(stored: dict[str, Any]) -> str:
    if not stored:
        return "<footer></footer>"
    content = next(iter(stored.values()))
    tools = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return f"""<footer><p>Computed with {escape(tools)}; seed {content["seed"]} for problems beyond
the paper's own seeds. Redraw with <code>bracketflow report</code>; nothing on this page needs a
network.</p></footer>"""
