"""Hostile observations and files, one function a kind: each makes an attack and checks the answer.

    python benchmarks/endurance_hostile.py COUNT SEED [KIND …]

prints one JSON object: inputs by kind, the slowest in seconds of processor time, and what was
wrong. An attack is answered well by a ValueError or TypeError, or by a right result; never by
another error, a changed state, a wrong result, much memory or much time.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from functools import cache
from pathlib import Path

import numpy as np

import bracketflow as bf
from bracketflow import checkpoint
from bracketflow.certificates import certify_record
from bracketflow.experiments import report, store
from bracketflow.streams import batches, load_matrix

N = 6
MEMORY = 3 << 29  # bytes of address space that an attack may add
HANG = 60  # seconds of wall time after which an attack is given up: a real hang
REFUSED = (ValueError, TypeError)

METHODS = {
    "flow": (bf.DoubleBracketFlow(bf.Adaptive()), N),
    "stiefel": (bf.BrockettFlow((3, 2, 1), retraction=bf.cayley), 3),
    "grassmann": (bf.BrockettFlow(), 2),
    "tracker": (bf.EigenTracker(), N),
    "leading": (bf.EigenTracker(2), 2),
}


class Answer(AssertionError):
    """A wrong answer to an attack."""


@cache
def signal_matrix():
    frame = bf.random_basis(N, rng=0)
    matrix = (frame * np.arange(N, 0, -1.0)) @ frame.T
    return 0.5 * (matrix + matrix.T)


@cache
def settled(name):
    """A method and its state after some good observations."""
    method, columns = METHODS[name]
    rng = np.random.default_rng(1)
    state = method.init(bf.random_basis(N, columns, rng=rng))
    for _ in range(12):
        noise = rng.standard_normal((N, N))
        state, _ = method.step(signal_matrix() + 0.05 * (noise + noise.T), state)
    return method, state


def same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a is b or np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)


def observe_all(observation, *, must_refuse=False):
    """Show one observation to every method: refused with no trace, or a sound step."""
    for name in METHODS:
        method, state = settled(name)
        before = copy.deepcopy(state)
        try:
            result = bf.run(method, [observation], state)
        except REFUSED:
            if not same(state, before):
                raise Answer(f"{name}: a refused observation changed the state") from None
            continue
        if must_refuse:
            raise Answer(f"{name}: accepted")
        if not same(state, before):
            raise Answer(f"{name}: the state that went in was changed")
        basis = result.state.basis
        if not (np.linalg.norm(basis.T @ basis - np.eye(basis.shape[1])) <= 1e-12):
            raise Answer(f"{name}: the basis is not orthonormal")
        if not np.isfinite(result.eigenvalues).all():
            raise Answer(f"{name}: eigenvalues are not finite")


# Observations -----------------------------------------------------------------------------------


def symmetric(rng):
    noise = rng.standard_normal((N, N))
    return noise + noise.T


def not_finite(rng, folder):
    matrix = signal_matrix().copy()
    i, j = rng.integers(N, size=2)
    matrix[i, j] = matrix[j, i] = rng.choice([np.nan, np.inf, -np.inf])
    observe_all(matrix, must_refuse=True)


def any_size(rng, folder):
    observe_all(symmetric(rng) * 10.0 ** rng.uniform(-323, 308))


def impulses(rng, folder):
    level = rng.choice([-1, 1]) * 10.0 ** rng.uniform(0, 308)
    observe_all(signal_matrix() + level * np.eye(N), must_refuse=abs(level) > 1e20)


def asymmetric(rng, folder):
    skew = np.triu(rng.standard_normal((N, N)), 1)
    observe_all(signal_matrix() + 10.0 ** rng.uniform(-3, 6) * (skew - skew.T), must_refuse=True)


def wrong_shapes(rng, folder):
    shape = tuple(rng.integers(0, 8, size=rng.integers(0, 5)))
    if shape[-2:] != (N, N):
        observe_all(np.ones(shape), must_refuse=True)


def wrong_kinds_of_numbers(rng, folder):
    kinds = ["complex128", "object", "U8", "S8", "M8[s]", "m8[s]", "V8", "c8"]
    kind = kinds[rng.integers(len(kinds))]
    matrix = np.zeros((N, N), kind)
    if rng.integers(2):
        observe_all(matrix, must_refuse=True)
    else:
        observe_all(lambda block: np.zeros(block.shape, kind), must_refuse=True)


def raising(rng, folder):
    errors = [ValueError, RuntimeError, OSError, ArithmeticError, RecursionError, StopIteration]
    error = errors[rng.integers(len(errors))]
    message = "<script>" * int(rng.integers(3)) + "\0\ud800" * int(rng.integers(2))

    def operator(block):
        if rng.integers(2):
            block[...] = np.nan
        raise error(message)

    observe_all(operator, must_refuse=True)


def junk(rng, folder):
    things = [None, 0, "x", b"", [], {}, object(), ..., float("nan"), [[1, 2], [3]], set(), int]
    thing = things[rng.integers(len(things))]
    observe_all(lambda block: thing, must_refuse=True)
    if not callable(thing):
        observe_all(thing, must_refuse=True)


def liars(rng, folder):
    """Objects whose attributes are not what they seem."""
    shapes = [(N, N), (N,), (N, -1), "NN", None, (float(N), float(N)), (1 << 62, 1 << 62), 7]
    weights = [1.0, -1, 0.0, np.nan, np.inf, "heavy", None, 1 << 2000]

    class Liar:
        shape = shapes[rng.integers(len(shapes))]
        weight = weights[rng.integers(len(weights))]
        dtype = [np.dtype(float), "float64", None, object()][rng.integers(4)]

        def __matmul__(self, block):
            return signal_matrix() @ block

    observe_all(Liar())


def scribblers(rng, folder):
    """Operators that write into their input, and answer rightly for what they made of it."""
    size = 10.0 ** rng.uniform(-3, 3)

    def operator(block):
        image = signal_matrix() @ block
        block *= size
        return image

    observe_all(operator)


def changing_operators(rng, folder):
    """Another product at every call, of another shape at times."""

    def operator(block):
        rows = block.shape[0] if rng.integers(3) else int(rng.integers(1, 9))
        return np.resize(symmetric(rng), (rows, N))[:, : block.shape[1]]

    observe_all(operator)


def odd_batches(rng, folder):
    rows = rng.standard_normal((int(rng.integers(0, 4)), int(rng.integers(1, 9))))
    rows = rows * 10.0 ** rng.uniform(-320, 300)
    try:
        operator = bf.gram(rows if rng.integers(2) else rows.tolist())
    except REFUSED:
        return
    observe_all(operator, must_refuse=rows.shape[1] != N)


# Files ------------------------------------------------------------------------------------------


def mutated(raw, rng):
    """Bytes with a few of them flipped, cut out, doubled, moved or replaced."""
    raw = bytearray(raw)
    for _ in range(int(rng.integers(1, 5))):
        at, length = int(rng.integers(len(raw) + 1)), int(rng.integers(1, 40))
        kind = rng.integers(6)
        if kind == 0 and raw:
            raw[at % len(raw)] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            raw[at : at + length] = rng.bytes(length)
        elif kind == 2:
            del raw[at : at + length]
        elif kind == 3:
            raw[at:at] = raw[at : at + length]
        elif kind == 4:
            del raw[at:]
        else:
            raw[at : at + 8] = int(rng.choice([0, 1, (1 << 63) - 1, 255])).to_bytes(8, "little")
    return bytes(raw)


@cache
def good_checkpoint(name):
    with tempfile.TemporaryDirectory() as folder:
        method, state = settled(name)
        bf.save(Path(folder) / "c", state, method=method, rng=np.random.default_rng(3))
        return (Path(folder) / "c").read_bytes()


def any_checkpoint(rng):
    return good_checkpoint(list(METHODS)[rng.integers(len(METHODS))])


def refused_file(path, read=bf.load):
    """What `read` makes of a file, None when it refused it and named it."""
    try:
        return read(path)
    except ValueError as error:
        if path.name not in str(error):
            raise Answer(f"the message does not name the file: {error}") from error
        return None


def damaged_checkpoints(rng, folder):
    good, path = any_checkpoint(rng), folder / "damaged"
    path.write_bytes(mutated(good, rng))
    if path.read_bytes() != good and refused_file(path) is not None:
        raise Answer("a damaged checkpoint was loaded")


def random_files(rng, folder):
    path = folder / "noise"
    begin = [b"", checkpoint.MAGIC, checkpoint.MAGIC + b"2\n"][rng.integers(3)]
    path.write_bytes(begin + rng.bytes(int(rng.integers(0, 3000))))
    if refused_file(path) is not None:
        raise Answer("noise was loaded")


WORDS = ["x", "", "\0", "../../etc/passwd", "bracketflow.cli:main", "os:system", "<b>", "9" * 5000]
NUMBERS = [0, -1, 1 << 31, 1 << 63, 1 << 200, 1e308, float("nan"), float("inf"), -0.0, True, None]


def anything(rng, depth=2):
    kind = rng.integers(6 if depth else 3)
    if kind < 2:
        return NUMBERS[rng.integers(len(NUMBERS))]
    if kind == 2:
        return WORDS[rng.integers(len(WORDS))]
    parts = [anything(rng, depth - 1) for _ in range(rng.integers(3))]
    if kind == 3:
        return parts
    names = ["array", "tensor", "record", "configuration", "function", "float", "tuple", "x"]
    return {names[rng.integers(len(names))]: part for part in parts}


def tampered(node, rng):
    """JSON with one part, anywhere in it, replaced, left out or doubled."""
    places = []

    def visit(part):
        for key in part if isinstance(part, dict) else range(len(part)):
            places.append((part, key))
            if isinstance(part[key], dict | list):
                visit(part[key])

    node = copy.deepcopy(node)
    visit(node)
    part, key = places[rng.integers(len(places))]
    kind = rng.integers(4)
    if kind == 0:
        del part[key]
    elif kind == 1 and isinstance(part, list):
        part.append(part[key])
    elif kind == 2 and isinstance(part[key], int):
        part[key] += int(rng.integers(-3, 4))
    else:
        part[key] = anything(rng)
    return node


def forged_checkpoints(rng, folder):
    good = any_checkpoint(rng)
    start = len(checkpoint.MAGIC) + 10
    length = int.from_bytes(good[start - 8 : start], "little")
    header = json.loads(good[start : start + length])
    for _ in range(int(rng.integers(1, 4))):
        header = tampered(header, rng)
    text = json.dumps(header).encode()
    body = good[: start - 8] + len(text).to_bytes(8, "little") + text
    body += good[start + length : -checkpoint.DIGEST]
    path = folder / "forged"
    path.write_bytes(body + hashlib.sha256(body).digest())
    loaded = refused_file(path)
    if loaded is None:
        return
    if not isinstance(loaded.state, bf.State) or loaded.state.basis.ndim < 2:
        raise Answer("what was loaded is no state")
    if loaded.rng is not None:
        loaded.rng.standard_normal(1000)
    bf.save(path, loaded.state, method=loaded.method, rng=loaded.rng)


def npy_bytes(array, allow_pickle=False):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


def npy_header(shape, dtype="<f8", version=1):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    text = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2, "little") + text


def read_rows(path):
    parts = list(batches(path, 50))
    return np.concatenate(parts) if parts else np.zeros((0, 1))


def both_readers(path):
    """Read a file as a matrix and as rows; whatever comes must be finite numbers."""
    for read in (load_matrix, read_rows):
        if read is load_matrix and path.suffix not in (".npy", ".npz", ".mtx"):
            continue
        if read is read_rows and path.suffix == ".mtx":
            continue
        found = refused_file(path, read)
        if found is not None:
            entries = found.data if hasattr(found, "tocsr") else found
            if found.ndim != 2 or entries.dtype.kind not in "fiubc":
                raise Answer(f"{read.__name__} gave {found.shape} of {found.dtype}")
            if not np.isfinite(entries).all():
                raise Answer(f"{read.__name__} gave numbers that are not finite")


def damaged_npy(rng, folder):
    path = folder / "a.npy"
    path.write_bytes(mutated(npy_bytes(rng.standard_normal((9, 4))), rng))
    both_readers(path)


def absurd_npy(rng, folder):
    path = folder / "a.npy"
    big = [1 << 20, 1 << 40, 1 << 62, 1 << 64, -1, 0, 3]
    shape = tuple(big[i] for i in rng.integers(len(big), size=rng.integers(0, 5)))
    dtype = ["<f8", "|O", "<U9", "|V8", "<c16", "nonsense", [["a", "<f8"]]][rng.integers(7)]
    path.write_bytes(npy_header(shape, dtype) + rng.bytes(200))
    both_readers(path)


def pickled_npy(rng, folder):
    path, told = folder / "a.npy", folder / "told"

    class Bomb:
        def __reduce__(self):
            return (open, (str(told), "w"))

    path.write_bytes(npy_bytes(np.array([[Bomb()] * 2] * 2), allow_pickle=True))
    both_readers(path)
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("a.npy", path.read_bytes())
    both_readers(folder / "a.npz")
    if told.exists():
        raise Answer("a pickle was carried out")


def zip_bombs(rng, folder):
    """A few kilobytes that say they are many gigabytes, or are."""
    path = folder / "a.npz"
    rows = int(rng.choice([1 << 12, 1 << 18, 1 << 31]))
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("a.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy_header((rows, 1 << 12), "<f8"))
        file.write(bytes(int(rng.integers(1, 1 << 22))))
    both_readers(path)


def strange_names_in_zips(rng, folder):
    path = folder / "a.npz"
    names = ["../../out.npy", "/etc/out.npy", "a\0.npy", "<script>.npy", "a.npy", "format.npy"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(path, "w") as archive:
            for _ in range(int(rng.integers(1, 4))):
                archive.writestr(names[rng.integers(len(names))], npy_bytes(np.eye(3)))
    both_readers(path)
    if {p.name for p in folder.iterdir()} != {"a.npz"}:
        raise Answer("a file came out of the zip")


def damaged_npz(rng, folder):
    path = folder / "a.npz"
    np.savez(path, rng.standard_normal((9, 4)))
    path.write_bytes(mutated(path.read_bytes(), rng))
    both_readers(path)


def damaged_mtx(rng, folder):
    path = folder / "a.mtx"
    heads = ["coordinate real general", "array real general", "coordinate pattern symmetric", "x y"]
    sizes = [
        "3 3 2",
        "3 3",
        "9999999 9999999 2",
        "100000 100000",
        "-1 3 1",
        "3 3 99999999999",
        "1e9",
    ]
    lines = [f"%%MatrixMarket matrix {heads[rng.integers(4)]}", sizes[rng.integers(7)]]
    lines += [f"{i} {i} {i}.5" for i in range(1, 3)]
    path.write_bytes(mutated("\n".join(lines).encode(), rng))
    both_readers(path)


def damaged_csv(rng, folder):
    path = folder / "a.csv"
    rows = rng.standard_normal((20, 4))
    text = "a,b,c,d\n" * int(rng.integers(2)) + "\n".join(",".join(map(str, r)) for r in rows)
    cells = [
        "nan",
        "inf",
        "1e999",
        '"',
        "<script>",
        "=1+1",
        "\0",
        "1" * 100_000,
        "٣",
        "0x10",
        "1_0",
    ]
    text = text.replace(str(rows[5, 2]), cells[rng.integers(len(cells))])
    path.write_bytes(mutated(text.encode(), rng) if rng.integers(2) else text.encode())
    both_readers(path)


def damaged_parquet(rng, folder):
    path = folder / "a.parquet"
    path.write_bytes(mutated(good_parquet(), rng))
    both_readers(path)


@cache
def good_parquet():
    import pyarrow
    from pyarrow import parquet

    file = io.BytesIO()
    columns = {name: np.arange(50.0) for name in "abc"}
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def damaged_hdf5(rng, folder):
    path = folder / "a.h5"
    path.write_bytes(mutated(good_hdf5(), rng))
    both_readers(path)


@cache
def good_hdf5():
    import h5py

    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(Path(folder) / "a.h5", "w") as file:
            file["rows"] = np.random.default_rng(0).standard_normal((50, 3))
        return (Path(folder) / "a.h5").read_bytes()


# Records and pages ------------------------------------------------------------------------------

SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def good_record():
    claim = {"what": SCRIPT, "paper": SCRIPT, "ours": SCRIPT, "verdict": "holds", "reason": SCRIPT}
    return {
        "experiment": "B5",
        "mode": "quick",
        "seed": 42,
        "config": {SCRIPT: SCRIPT},
        "versions": {SCRIPT: SCRIPT},
        "claims": [claim, claim],
        "records": {"sizes": [{"a": 1, SCRIPT: SCRIPT}]},
    }


def forged_records(rng, folder):
    """Records with a right digest and anything in them, shown on a page."""
    content = good_record()
    for _ in range(int(rng.integers(0, 4))):
        content = tampered(content, rng)
    if rng.integers(4) == 0 and isinstance(content.get("records"), dict):
        content["records"]["../../escaped"] = [{"a": 1}]
    inner = folder / "deep" / "run"
    inner.mkdir(parents=True)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = store.record_path(inner, "B5")
    path.write_text(json.dumps({**content, "digest": digest}))
    (inner / "figures").mkdir()
    (inner / "figures" / "B5.svg").write_text(["<svg>", "", f"<svg>{SCRIPT}"][rng.integers(3)])
    (inner / "B5.error.txt").write_text(["", SCRIPT, "a\n\n"][rng.integers(3)])
    found = refused_file(path, lambda path: store.read_record(path.parent, "B5"))
    if found is not None:
        store.write_tables(inner, "B5", found)
    page = report.write_page(inner).read_text()
    if "<script>alert" in page or "<img src=x" in page:
        raise Answer("the page holds what it should have escaped")
    if {p.name for p in folder.iterdir()} != {"deep"} or len(list((folder / "deep").iterdir())) > 1:
        raise Answer("a file was written outside of the folder")


def damaged_records(rng, folder):
    path = store.record_path(folder, "B5")
    content = good_record()
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    good = json.dumps({**content, "digest": hashlib.sha256(text.encode()).hexdigest()}).encode()
    path.write_bytes(mutated(good, rng))
    found = refused_file(path, lambda path: store.read_record(path.parent, "B5"))
    if found is not None and found != content:
        raise Answer("a damaged record was read")


@cache
def good_run_record():
    recorder = bf.Recorder()
    method, state = settled("leading")
    bf.run(method, [signal_matrix()] * 2, state, monitors=recorder)
    return recorder.records[-1]


def forged_run_records(rng, folder):
    """The last line of a recorded run, as `bracketflow certify` reads it."""
    record = good_run_record()
    for _ in range(int(rng.integers(1, 4))):
        record = tampered(record, rng)
    try:
        certify_record(record)
    except REFUSED:
        return


KINDS = {
    attack.__name__: attack
    for attack in (
        not_finite,
        any_size,
        impulses,
        asymmetric,
        wrong_shapes,
        wrong_kinds_of_numbers,
        raising,
        junk,
        liars,
        scribblers,
        changing_operators,
        odd_batches,
        damaged_checkpoints,
        random_files,
        forged_checkpoints,
        damaged_npy,
        absurd_npy,
        pickled_npy,
        zip_bombs,
        strange_names_in_zips,
        damaged_npz,
        damaged_mtx,
        damaged_csv,
        damaged_parquet,
        damaged_hdf5,
        forged_records,
        damaged_records,
        forged_run_records,
    )
}


def attack_once(kind, seed):
    """Seconds of processor time, and what was wrong with the answer (None: nothing)."""
    rng = np.random.default_rng([seed, *kind.encode()])
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        signal.alarm(HANG)
        begin = time.process_time()
        try:
            KINDS[kind](rng, Path(folder))
            wrong = None
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            wrong = f"{type(error).__name__}: {error!s:.200} ({place.filename}:{place.lineno})"
        finally:
            signal.alarm(0)
        return time.process_time() - begin, wrong


def hang(number, frame):
    raise TimeoutError(f"no answer within {HANG} seconds")


def main(count, seed, kinds):
    signal.signal(signal.SIGALRM, hang)
    for name in METHODS:
        settled(name), good_checkpoint(name)
    good_parquet(), good_hdf5()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    figures = {"inputs": {}, "slowest": {}, "wrong": []}
    order = random.Random(seed)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        case = order.randrange(1 << 30)
        print(f"{kind} {case}", file=sys.stderr, flush=True)  # whom to blame for a crash
        seconds, wrong = attack_once(kind, case)
        figures["inputs"][kind] = figures["inputs"].get(kind, 0) + 1
        figures["slowest"][kind] = max(figures["slowest"].get(kind, 0.0), seconds)
        if wrong is not None:
            figures["wrong"].append(f"{kind} {case}: {wrong}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or list(KINDS))
