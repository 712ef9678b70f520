"""Untrusted input gets a clear error or a right answer, within bounded time and memory."""

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import io, sparse

import bracketflow as bf
import endurance_hostile as hostile
from bracketflow import checkpoint
from bracketflow.experiments import report, store
from bracketflow.streams import load_matrix

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "bracketflow"
BENCHMARKS = ROOT / "benchmarks"
quickly = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def attacked(count, seed, *kinds):
    """The figures of a process that was attacked; it must have survived."""
    command = [sys.executable, BENCHMARKS / "endurance_hostile.py", str(count), str(seed), *kinds]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-300:]
    return json.loads(done.stdout)


def test_hundreds_of_hostile_inputs_of_many_kinds(seed):
    figures = attacked(12 * len(hostile.KINDS), seed)
    assert len(figures["inputs"]) >= 20
    assert figures["wrong"] == []
    assert max(figures["slowest"].values()) < 2  # seconds of processor time


def test_the_harness_sees_wrong_answers(monkeypatch):
    """The attacks can fail: each of these breaks a promise and must be caught."""
    with pytest.raises(hostile.Answer, match="accepted"):
        hostile.observe_all(hostile.signal_matrix(), must_refuse=True)
    monkeypatch.setitem(hostile.KINDS, "hang", lambda rng, folder: 1 / 0)
    assert "ZeroDivisionError" in hostile.attack_once("hang", 0)[1]
    assert hostile.attack_once("not_finite", 0)[1] is None


# Hypothesis -------------------------------------------------------------------------------------

numbers = st.floats(width=64, allow_nan=True, allow_infinity=True, allow_subnormal=True)
matrices = arrays.arrays(np.float64, (hostile.N, hostile.N), elements=numbers)


@quickly
@given(matrices)
def test_any_matrix(matrix):
    hostile.observe_all(matrix)


@quickly
@given(matrices)
def test_any_symmetric_matrix(matrix):
    with np.errstate(all="ignore"):
        hostile.observe_all(matrix + matrix.T, must_refuse=not np.isfinite(matrix).all())


@quickly
@given(arrays.arrays(arrays.scalar_dtypes(), arrays.array_shapes(min_dims=0, max_dims=4)))
def test_any_array(array):
    hostile.observe_all(array)


@quickly
@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_no_checkpoint(tmp_path, raw, ours):
    path = tmp_path / "bytes"
    path.write_bytes(checkpoint.MAGIC + checkpoint.FORMATS[-1] + raw if ours else raw)
    with pytest.raises(ValueError, match="bytes"):
        bf.load(path)


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
names = st.sampled_from(
    ["state", "method", "rng", "array", "tensor", "record", "configuration", "function", "dict"]
)
trees = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4)
)


@quickly
@given(trees, trees)
def test_any_tree_with_a_right_checksum_is_no_checkpoint(tmp_path, tree, table):
    text = json.dumps({"version": "1", "arrays": table, "tree": tree}).encode()
    body = checkpoint.MAGIC + b"2\n" + len(text).to_bytes(8, "little") + text
    path = tmp_path / "tree"
    path.write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(ValueError, match="tree"):
        bf.load(path)


# Matrices from files ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", [np.asarray, sparse.coo_array])
@pytest.mark.parametrize("field", ["real", "integer", "complex"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
def test_matrix_market_is_read_as_scipy_reads_it(form, field, symmetry, tmp_path, rng):
    matrix = np.round(9 * rng.standard_normal((5, 5)))
    if field == "complex":
        matrix = matrix + 1j * rng.standard_normal((5, 5))
    mirrored = {"symmetric": matrix.T, "skew-symmetric": -matrix.T, "hermitian": matrix.conj().T}
    matrix = matrix + mirrored.get(symmetry, 0)
    path = tmp_path / "a.mtx"
    io.mmwrite(path, form(matrix.astype(int) if field == "integer" else matrix), precision=17)
    found = load_matrix(path)
    assert np.array_equal(found.toarray() if sparse.issparse(found) else found, matrix)


def test_sparse_indices_beyond_the_matrix_are_refused(tmp_path):
    path = tmp_path / "a.npz"
    sparse.save_npz(path, sparse.csr_array(np.eye(4)))
    parts = dict(np.load(path))
    np.savez(path, **{**parts, "indices": np.array([0, 1, 2, 1 << 30], np.int32)})
    for read in (load_matrix, hostile.read_rows):
        with pytest.raises(ValueError, match=r"a\.npz"):
            read(path)


# Records and pages ------------------------------------------------------------------------------


def stored(folder, **changes):
    content = {**hostile.good_record(), **changes}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    store.record_path(folder, "B5").write_text(json.dumps({**content, "digest": digest}))


def test_pages_escape_what_records_and_names_hold(tmp_path):
    stored(tmp_path)
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / 'B5_"><script>alert(1)<.csv').write_text("")
    page = report.write_page(tmp_path).read_text()
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("svg", ["<svg><script>x</script></svg>", "<svg onload='x'/>", "", "\xff"])
def test_pages_take_over_no_active_figure(svg, tmp_path):
    stored(tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "B5.svg").write_bytes(svg.encode("latin-1"))
    page = report.write_page(tmp_path).read_text()
    assert "The figure was not drawn" in page
    assert "onload" not in page


@pytest.mark.parametrize(
    "changes",
    [
        {"records": {"../../escaped": [{"a": 1}]}},
        {"records": {"sizes": "x"}},
        {"records": []},
        {"claims": None},
        {"claims": [{}]},
        {"mode": '"><script>'},
        {"seed": "<b>"},
        {"versions": ["x"]},
        {"versions": {"numpy": 2}},
    ],
    ids=str,
)
def test_records_that_hold_something_else_are_damaged(changes, tmp_path):
    stored(tmp_path, **changes)
    with pytest.raises(store.DamagedRecord, match=r"B5\.json is damaged"):
        store.read_record(tmp_path, "B5")
    assert "B5.json is damaged" in report.write_page(tmp_path).read_text()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"digest": NaN}', "null", '{"digest": 1e999}'])
def test_records_that_are_no_records_are_damaged(text, tmp_path):
    store.record_path(tmp_path, "B5").write_text(text)
    with pytest.raises(store.DamagedRecord):
        store.read_record(tmp_path, "B5")


def test_oversized_records_are_not_read(tmp_path):
    with store.record_path(tmp_path, "B5").open("wb") as file:
        file.truncate(store.LARGEST + 1)
    with pytest.raises(store.DamagedRecord, match="ordinary size"):
        store.read_record(tmp_path, "B5")
    os.mkfifo(store.record_path(tmp_path, "B8"))
    with pytest.raises(store.DamagedRecord, match="ordinary file"):
        store.read_record(tmp_path, "B8")


# The network ------------------------------------------------------------------------------------

FORBIDDEN = {
    *("socket", "ssl", "http", "ftplib", "smtplib", "poplib", "imaplib", "telnetlib", "xmlrpc"),
    *(
        "socketserver",
        "asyncio",
        "webbrowser",
        "requests",
        "httpx",
        "aiohttp",
        "urllib3",
        "paramiko",
    ),
}


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_module_knows_the_network():
    for path in SOURCE.rglob("*.py"):
        for name in imported(path):
            assert name.partition(".")[0] not in FORBIDDEN, (path, name)
            assert name not in ("urllib", "urllib.request", "multiprocessing.connection"), path


GUARD = """
import os, sys

def refuse(event, arguments):
    if event.startswith(("socket.", "urllib.", "ftplib.", "smtplib.", "http.client.")):
        with open(os.environ["NETWORK_LOG"], "a") as file:
            print(event, arguments, file=file)
        raise PermissionError(f"{event} was called")

sys.addaudithook(refuse)
"""

EVERYTHING = """
import pkgutil, importlib, itertools, sys
import numpy as np
import bracketflow as bf

for module in pkgutil.walk_packages(bf.__path__, "bracketflow."):
    if not module.name.startswith("bracketflow.distributed") and "__main__" not in module.name:
        importlib.import_module(module.name)
c = np.diag([3.0, 2.0, 1.0])
bf.decompose(c, 2)
for method in (bf.DoubleBracketFlow(), bf.BrockettFlow((2, 1)), bf.EigenTracker(2)):
    k = 3 if isinstance(method, bf.DoubleBracketFlow) else 2
    keeper = bf.Checkpoint("checkpoint", 2, method=method)
    state = method.init(bf.random_basis(3, k, rng=0))
    bf.run(method, [c] * 5, state, monitors=[bf.Recorder(), keeper])
    bf.load("checkpoint")
from bracketflow.experiments import suite
raise SystemExit(suite.reproduce(["B5"], quick=True, out="run"))
"""


def test_nothing_opens_a_connection(tmp_path):
    """Every module is imported, and the main ways are gone, under a hook that sees every socket."""
    (tmp_path / "sitecustomize.py").write_text(GUARD)  # worker processes take it over
    log = tmp_path / "log"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NETWORK_LOG": str(log)}

    def guarded(code):
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
        )

    done = guarded(EVERYTHING)
    assert done.returncode == 0, done.stderr
    assert not log.exists(), log.read_text()
    page = (tmp_path / "run" / "index.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|@import)\b", page)
    caught = guarded("import socket; socket.create_connection(('127.0.0.1', 9))")
    assert caught.returncode == 1
    assert "socket." in log.read_text()  # the guard can see
