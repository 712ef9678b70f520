"""One quick run of everything: records, verdicts, and the page, also in a browser."""

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from bracketflow.experiments import EXPERIMENTS, store, suite
from bracketflow.experiments.claims import Verdict

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory):
    """All experiments at quick size, once."""
    folder = tmp_path_factory.mktemp("quick") / "run"
    problems = []
    code = suite.reproduce(
        quick=True, out=folder, show=lambda e: problems.append(e) if e.kind == "failed" else None
    )
    assert code == 0, problems
    return folder


def claims(folder, name):
    return {c["what"]: c for c in store.read_record(folder, name)["claims"]}


def verdicts(folder, name):
    return [c["verdict"] for c in claims(folder, name).values()]


def test_every_experiment_has_records_claims_and_figures(quick_run):
    for name in EXPERIMENTS:
        content = store.read_record(quick_run, name)
        assert content["claims"], name
        assert all(content["records"].values()), name
        assert {c["verdict"] for c in content["claims"]} <= {v.value for v in Verdict}
        assert (quick_run / "figures" / f"{name}.pdf").exists()
        assert (quick_run / "tables" / f"{name}_sizes.csv").exists()


@pytest.mark.parametrize("name", ["B1", "B3", "B4", "B8"])
def test_what_is_computed_at_full_size_even_here_is_confirmed(quick_run, name):
    bad = {Verdict.NOT_REPRODUCED.value}
    assert not bad & set(verdicts(quick_run, name))


def test_printed_digits_that_need_no_full_run(quick_run):
    a1, b2 = claims(quick_run, "A1"), claims(quick_run, "B2")
    assert a1["Cayley, σ² = 0 … 1000"]["ours"].startswith("1594.2")
    assert a1["Riem-QR, σ² = 0 … 1000"]["ours"].startswith("1599.6")
    assert a1["TF-Oja, all σ²"]["verdict"] == Verdict.UNSTATED.value
    assert b2["Bases in N_δ after 500 steps"]["ours"].startswith("34 ")
    ratios = [c for what, c in claims(quick_run, "B1").items() if what.startswith("ε")]
    assert len(ratios) == 7
    assert {c["verdict"] for c in ratios} == {Verdict.HOLDS.value}
    examples = claims(quick_run, "counterexamples")
    values = [c for what, c in examples.items() if "f(M" in what]
    assert len(values) == 6
    assert {c["verdict"] for c in values} == {Verdict.HOLDS.value}
    assert examples["Ex. 3, σ = 5: change"]["verdict"] == Verdict.WRONG.value


def test_verdicts_that_hold_at_any_size(quick_run):
    wrong = {
        "A1": "η = 0.1/‖C_e‖₂² < 1/L_C",
        "A4": "1/L_C is the maximal stable step",
        "A5": "Escape is observed at all noise levels",
        "B1": "The bound is tight to about 15 %",
        "B7": "The printed retraction (M + H)(I + HᵀH)^(−1/2) keeps MᵀM = I",
        "neumann": "Every truncation order keeps the trajectory free of σ²",
        "rounding": "Algorithm 1 is invariant to machine precision",
        "sanity": "Caption: n = 10–15, 500–5000 random trials",
        "steps": "η = 1/(c_n‖C_k‖₂²) does not degrade convergence",
    }
    for name, what in wrong.items():
        assert claims(quick_run, name)[what]["verdict"] == Verdict.WRONG.value, (name, what)


@pytest.mark.parametrize("name", ["A2-stiefel", "A7-guard"])
def test_theorems_of_ours_are_not_refuted_at_any_size(quick_run, name):
    assert Verdict.WRONG.value not in verdicts(quick_run, name)
    order = list(EXPERIMENTS)
    assert order.index(name) == order.index(name[:2]) + 1  # beside the paper's own on the page


class Outline(HTMLParser):
    """Which sections a page has, what is inside each, and whether its tags are balanced."""

    VOID = frozenset({"meta", "link", "br", "img", "hr"})

    def __init__(self):
        super().__init__()
        self.stack, self.sections, self.ids, self.external = [], {}, [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.external += [
            v for k, v in attributes if k in ("src", "href") and re.match(r"(https?:)?//", v or "")
        ]
        if tag == "section":
            self.sections[values["id"]] = []
        elif self.sections:
            last = next(reversed(self.sections.values()))
            last.append((tag, values))
        if tag not in self.VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag, self.getpos()


def test_page_is_whole_and_every_experiment_has_figure_and_verdict(quick_run):
    outline = Outline()
    outline.feed((quick_run / "index.html").read_text(encoding="utf-8"))
    assert outline.stack == []
    assert len(outline.ids) == len(set(outline.ids))
    assert outline.external == []
    for name in EXPERIMENTS:
        tags = [tag for tag, _ in outline.sections[name]]
        chips = [v for tag, v in outline.sections[name] if "chip" in v.get("class", "")]
        assert "svg" in tags, name
        assert len(chips) == len(store.read_record(quick_run, name)["claims"]), name


def test_links_of_the_page_lead_somewhere(quick_run):
    page = (quick_run / "index.html").read_text(encoding="utf-8")
    for target in set(re.findall(r'<a href="([^"#]+)"', page)):
        assert (quick_run / target).exists(), target


@pytest.mark.skipif(BROWSER is None, reason="no chromium found: the page is only parsed")
def test_page_in_a_browser_without_errors(quick_run, tmp_path):
    probe = """<script>
    window.addEventListener("load", () => {
      const count = (selector) => document.querySelectorAll(selector).length;
      const visible = (e) => e.getBoundingClientRect().height > 50;
      const button = document.querySelector("button.chip.wrong");
      button.click();
      const shown = [...document.querySelectorAll("#all-claims tbody tr")].filter((r) => !r.hidden);
      document.body.innerHTML = "<pre>" + JSON.stringify({
        errors: window.pageErrors, wide: document.documentElement.scrollWidth,
        filtered: shown.every((r) => r.dataset.verdict === "wrong") && shown.length > 0,
        sections: [...document.querySelectorAll("section.experiment")].map((s) => [
          s.id, [...s.querySelectorAll("figure svg")].filter(visible).length,
          s.querySelectorAll("tbody .chip").length]),
      }) + "</pre>";
    });</script></body>"""
    catcher = "<head><script>window.pageErrors=[];window.onerror=(m)=>pageErrors.push(m)</script>"
    page = (quick_run / "index.html").read_text(encoding="utf-8")
    watched = tmp_path / "watched.html"
    watched.write_text(
        page.replace("<head>", catcher, 1).replace("</body>", probe, 1), encoding="utf-8"
    )
    dump = subprocess.run(
        [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", f"--user-data-dir={tmp_path / 'profile'}", "--window-size=390,800",
            "--virtual-time-budget=5000", "--dump-dom", watched.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    found = json.loads(re.search(r"<pre>(.*?)</pre>", dump.stdout, re.DOTALL)[1])
    assert found["errors"] == []
    assert found["filtered"]
    assert found["wide"] <= 500  # nothing sticks out of a phone's screen
    assert [name for name, _, _ in found["sections"]] == list(EXPERIMENTS)
    for name, figures, chips in found["sections"]:
        assert figures == 1, name
        assert chips >= 1, name
