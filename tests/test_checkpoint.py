"""Checkpoints come back bit for bit, survive failed writes, and refuse what is not one."""

import hashlib
import itertools
import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import checkpoint
from bracketflow.checkpoint import DIGEST, FORMATS
from cases import METHODS, K, N, noise, same_bits, symmetric

MAGIC = checkpoint.MAGIC + FORMATS[-1]


def observations(rng, count):
    signal = symmetric(rng, N)
    return [signal + noise(rng, N, 0.1) for _ in range(count)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_resuming_from_a_file_is_bit_for_bit_the_uninterrupted_run(name, library, rng, tmp_path):
    method, columns = METHODS[name]
    stream = [library(c) for c in observations(rng, 20)]
    start = method.init(library(bf.random_basis(N, columns, rng=rng)))
    whole = bf.run(method, stream, start).state
    half = bf.run(method, stream[:9], start).state
    bf.save(tmp_path / "half", half, method=method)
    loaded = bf.load(tmp_path / "half")
    assert same_bits(loaded.state, half)
    assert type(loaded.state.basis) is type(half.basis)
    assert loaded.method == method
    assert loaded.version == bf.__version__
    assert same_bits(bf.run(loaded.method, stream[9:], loaded.state).state, whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ensembles_and_dtypes_come_back(dtype, rng, tmp_path):
    method = bf.BrockettFlow((2, 1))
    operators = symmetric(rng, 5, ensemble=(3,)).astype(dtype)
    state = method.init(bf.random_basis(5, 2, rng=rng, ensemble=(3,)).astype(dtype))
    stop = [bf.lyapunov_below(1e-2), bf.max_steps(40)]
    state = bf.run(method, itertools.repeat(operators), state, stop=stop).state
    bf.save(tmp_path / "e", state)
    loaded = bf.load(tmp_path / "e")
    assert same_bits(loaded.state, state)
    assert loaded.state.basis.dtype == dtype
    assert loaded.state.steps.dtype == state.steps.dtype
    assert loaded.method is None
    assert loaded.rng is None


@pytest.mark.parametrize("bits", ["PCG64", "MT19937", "Philox", "SFC64", "PCG64DXSM"])
def test_random_state_comes_back(bits, tmp_path, rng):
    generator = np.random.Generator(getattr(np.random, bits)(7))
    generator.standard_normal(3)
    state = bf.DoubleBracketFlow().init(bf.random_basis(3, rng=rng))
    bf.save(tmp_path / "r", state, rng=generator)
    assert np.array_equal(
        bf.load(tmp_path / "r").rng.standard_normal(5), generator.standard_normal(5)
    )


def test_torch_random_state_comes_back(tmp_path, rng):
    generator = torch.Generator().manual_seed(3)
    torch.rand(4, generator=generator)
    state = bf.DoubleBracketFlow().init(bf.random_basis(3, rng=rng))
    bf.save(tmp_path / "r", state, rng=generator)
    loaded = bf.load(tmp_path / "r").rng
    assert torch.equal(torch.rand(4, generator=loaded), torch.rand(4, generator=generator))


def test_checkpoint_monitor_saves_states_that_resume(rng, tmp_path):
    method = bf.DoubleBracketFlow(0.01)
    stream = observations(rng, 25)
    start = method.init(bf.random_basis(N, rng=rng))
    keeper = bf.Checkpoint(tmp_path / "c", 10, method=method)
    whole = bf.run(method, stream, start, monitors=[keeper]).state
    saved = bf.load(tmp_path / "c")
    assert saved.state.steps == 20
    resumed = bf.run(saved.method, stream[saved.state.steps :], saved.state).state
    assert same_bits(resumed, whole)


def test_the_random_state_is_that_before_the_next_observation_was_drawn(rng, tmp_path):
    signal = symmetric(rng, N)

    def drawn(generator):
        while True:
            yield signal + noise(generator, N, 0.1)

    method = bf.DoubleBracketFlow(0.01)
    start = method.init(bf.random_basis(N, rng=rng))
    whole = bf.run(method, drawn(np.random.default_rng(5)), start, stop=bf.max_steps(33)).state
    generator = np.random.default_rng(5)
    keeper = bf.Checkpoint(tmp_path / "c", 10, method=method, rng=generator)
    bf.run(method, drawn(generator), start, stop=bf.max_steps(27), monitors=keeper)
    saved = bf.load(tmp_path / "c")
    assert saved.state.steps == 20
    resumed = bf.run(saved.method, drawn(saved.rng), saved.state, stop=bf.max_steps(33)).state
    assert same_bits(resumed, whole)


# Other machines, other versions -----------------------------------------------------------------


def test_files_hold_the_same_bytes_on_every_machine(rng, tmp_path):
    state = bf.DoubleBracketFlow().init(bf.random_basis(3, rng=rng))
    foreign = np.arange(3.0).astype(">f8")
    bf.save(tmp_path / "b", state._replace(memory=(foreign, np.int32(7))))
    raw = (tmp_path / "b").read_bytes()
    assert state.basis.astype("<f8").tobytes() in raw
    assert foreign.astype("<f8").tobytes() in raw
    assert foreign.tobytes() not in raw
    loaded = bf.load(tmp_path / "b").state
    assert loaded.memory[0].tolist() == [0.0, 1.0, 2.0]
    assert loaded.memory[0].dtype.isnative
    assert loaded.memory[1] == 7


def as_format_1(raw):
    """A checkpoint as the first format had it: the fields of a record by position."""
    start = len(MAGIC) + 8
    length = int.from_bytes(raw[len(MAGIC) : start], "little")

    def positional(node):
        if isinstance(node, list):
            return [positional(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "record" in node:
            name, items = node["record"]
            return {"record": [name, [positional(item) for item in items.values()]]}
        return {key: positional(item) for key, item in node.items()}

    header = json.loads(raw[start : start + length])
    text = json.dumps({**header, "tree": positional(header["tree"])}).encode()
    body = checkpoint.MAGIC + b"1\n" + len(text).to_bytes(8, "little") + text
    body += raw[start + length : -DIGEST]
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize("name", ["so-adaptive", "grassmann", "tracker-full", "tracker-leading"])
def test_files_of_the_first_format_load(name, rng, tmp_path):
    method, columns = METHODS[name]
    state = method.init(bf.random_basis(N, columns, rng=rng))
    state = bf.run(method, observations(rng, 5), state).state
    bf.save(tmp_path / "old", state, method=method, rng=rng)
    (tmp_path / "old").write_bytes(as_format_1((tmp_path / "old").read_bytes()))
    loaded = bf.load(tmp_path / "old")
    assert same_bits(loaded.state, state)
    assert loaded.method == method


def edited(raw, change):
    """A checkpoint whose header was changed, with a right checksum."""
    start = len(MAGIC) + 8
    length = int.from_bytes(raw[len(MAGIC) : start], "little")
    header = json.loads(raw[start : start + length])
    change(header)
    return forged(header, raw[start + length : -DIGEST])


def test_a_file_of_another_version_names_the_migration(rng, tmp_path):
    path = tmp_path / "old"
    method = bf.EigenTracker(K)
    state = method.init(bf.random_basis(N, K, rng=rng))
    bf.save(path, bf.run(method, observations(rng, 3), state).state, method=method)
    good = path.read_bytes()

    def without_a_field(header):
        header["version"] = "0.0.9"
        header["tree"]["state"]["record"][1]["memory"]["record"][1].pop("spread")

    def without_one_that_has_a_default(header):
        header["tree"]["state"]["record"][1].pop("order")

    def with_an_option_more(header):
        header["tree"]["method"]["configuration"][1]["depth"] = 3

    def with_a_class_that_is_gone(header):
        header["tree"]["method"]["configuration"][0] = "bracketflow.tracker:OldTracker"

    for change, words in (
        (without_a_field, r"Memory has other fields.*method\.init\(state\.basis\).*0\.0\.9"),
        (with_an_option_more, "EigenTracker has other fields"),
        (with_a_class_that_is_gone, "OldTracker is not part of this version"),
    ):
        path.write_bytes(edited(good, change))
        with pytest.raises(ValueError, match=words):
            bf.load(path)
    path.write_bytes(edited(good, without_one_that_has_a_default))
    assert bf.load(path).state.order is None


def test_tensors_go_where_they_can(rng, tmp_path):
    path = tmp_path / "t"
    method = bf.DoubleBracketFlow()
    state = method.init(torch.from_numpy(bf.random_basis(4, rng=rng)).float())
    bf.save(path, state, method=method)
    raw = path.read_bytes()
    for device in ("nowhere", "meta", "cuda:7"):

        def moved(header, device=device):
            header["tree"]["state"]["record"][1]["basis"]["tensor"][1] = device

        path.write_bytes(edited(raw, moved))
        with pytest.raises(ValueError, match=r"cannot be used here: pass device='cpu'"):
            bf.load(path)
        loaded = bf.load(path, device="cpu").state
        assert loaded.basis.dtype == torch.float32
        assert same_bits(loaded, state)


# Failures ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(rng, tmp_path):
    path = tmp_path / "kept"
    method = bf.DoubleBracketFlow()
    bf.save(path, method.init(bf.random_basis(4, rng=rng)), method=method, rng=rng)
    return path


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_failed_write_keeps_the_previous_checkpoint_and_leaves_nothing_behind(
    saved, monkeypatch, call, rng
):
    before = saved.read_bytes()

    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        bf.save(saved, bf.DoubleBracketFlow().init(bf.random_basis(5, rng=rng)))
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == ["kept"]


def test_a_full_disk_does_not_end_the_run(saved, monkeypatch, rng):
    before = saved.read_bytes()
    method = bf.DoubleBracketFlow(0.01)
    stream = observations(rng, 25)
    start = method.init(bf.random_basis(N, rng=rng))
    whole = bf.run(method, stream, start).state
    calls = itertools.count()
    fsync = os.fsync

    def full_at_first(handle):
        if next(calls) < 2:
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full_at_first)
    keeper = bf.Checkpoint(saved, 10)
    with pytest.warns(RuntimeWarning, match=r"step 0 .*No space left.*one before it is kept"):
        bf.run(method, stream[:9], start, monitors=keeper)
    assert saved.read_bytes() == before
    with pytest.warns(RuntimeWarning, match="next try is in 10 steps"):
        state = bf.run(method, stream, start, monitors=keeper).state
    assert keeper.failures == 2
    assert same_bits(state, whole)
    assert bf.load(saved).state.steps == 20


def test_what_a_killed_writer_left_behind_is_removed(saved, rng):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    leftovers = [f".kept.{gone.pid}.1.tmp", f".kept.{gone.pid}.139.tmp"]
    others = [f".kept.{os.getppid()}.1.tmp", ".kept.notes.tmp", f".other.{gone.pid}.1.tmp"]
    for name in leftovers + others:
        (saved.parent / name).write_bytes(b"half")
    bf.save(saved, bf.DoubleBracketFlow().init(bf.random_basis(3, rng=rng)))
    assert {p.name for p in saved.parent.iterdir()} == {"kept", *others}


def test_a_link_is_followed(saved, rng):
    link = saved.with_name("link")
    link.symlink_to(saved)
    bf.save(link, bf.DoubleBracketFlow().init(bf.random_basis(5, rng=rng)))
    assert link.is_symlink()
    assert bf.load(saved).state.basis.shape == (5, 5)


def test_every_truncation_and_every_flipped_byte_is_noticed(saved):
    raw = saved.read_bytes()
    for length in range(0, len(raw), 7):
        saved.write_bytes(raw[:length])
        with pytest.raises(ValueError, match="kept"):
            bf.load(saved)
    for position in range(0, len(raw), 11):
        broken = bytearray(raw)
        broken[position] ^= 0x55
        saved.write_bytes(bytes(broken))
        with pytest.raises(ValueError, match="kept"):
            bf.load(saved)


def forged(header, payload=b""):
    """A file with a right checksum around whatever an attacker wants."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = MAGIC + len(text).to_bytes(8, "little") + text + payload
    return body + hashlib.sha256(body).digest()


BASIS = {"array": 0}
HOSTILE = {
    "not json": b"\xff\xfe",
    "a list": [],
    "no tree": {"version": "1", "arrays": []},
    "no state": {
        "version": "1",
        "arrays": [],
        "tree": {"state": None, "method": None, "rng": None},
    },
    "absurd shape": {"version": "1", "arrays": [["float64", [1 << 60, 1 << 60]]], "tree": {}},
    "negative shape": {"version": "1", "arrays": [["float64", [-1]]], "tree": {}},
    "objects": {"version": "1", "arrays": [["object", [1]]], "tree": {}},
    "foreign class": {
        "version": "1",
        "arrays": [],
        "tree": {"state": {"record": ["os:stat_result", []]}, "method": None, "rng": None},
    },
    "foreign function": {
        "version": "1",
        "arrays": [],
        "tree": {"state": {"function": "os:system"}, "method": None, "rng": None},
    },
    "borrowed function": {
        "version": "1",
        "arrays": [],
        "tree": {"state": {"function": "bracketflow.checkpoint:load_module"}, "method": None},
    },
    "through a module": {
        "version": "1",
        "arrays": [],
        "tree": {"state": {"function": "bracketflow.checkpoint:os.system"}, "method": None},
    },
    "deep nesting": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "two kinds": {
        "version": "1",
        "arrays": [],
        "tree": {"state": {"tuple": [], "list": []}, "method": None, "rng": None},
    },
    "unknown generator": {
        "version": "1",
        "arrays": [],
        "tree": {"state": None, "method": None, "rng": ["os", {}]},
    },
    "too many axes": {"version": "1", "arrays": [["float64", [9] * 400_000]], "tree": {}},
    "shape of floats": {"version": "1", "arrays": [["float64", [1e300]]], "tree": {}},
    "endless number": b'{"version": "1", "arrays": [["float64", [' + b"9" * 100_000 + b"]]]}",
    "a generator that reads beside its memory": {
        "version": "1",
        "arrays": [["uint32", [624]]],
        "tree": {
            "state": None,
            "method": None,
            "rng": [
                "MT19937",
                {
                    "dict": {
                        "bit_generator": "MT19937",
                        "state": {"dict": {"key": {"array": 0}, "pos": 10**9}},
                    }
                },
            ],
        },
    },
    "the command line": {
        "version": "1",
        "arrays": [],
        "tree": {"state": None, "method": {"function": "bracketflow.cli:main"}, "rng": None},
    },
    "a class that writes files": {
        "version": "1",
        "arrays": [],
        "tree": {
            "state": None,
            "method": {"configuration": ["bracketflow.checkpoint:Checkpoint", {}]},
            "rng": None,
        },
    },
}


def test_a_float_beyond_all_bounds_is_refused(saved):
    def huge(header):
        header["tree"]["state"]["record"][1]["seen"] = {"float": "0x1p+99999"}

    saved.write_bytes(edited(saved.read_bytes(), huge))
    with pytest.raises(ValueError, match="kept"):
        bf.load(saved)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("basis", None),
        ("basis", "x"),
        ("basis", {"list": []}),
        ("steps", "many"),
        ("steps", {"float": "0x1p+1"}),
        ("matvecs", {"array": 0}),
    ],
)
def test_states_that_are_none_are_refused(saved, field, value):
    def spoilt(header):
        header["tree"]["state"]["record"][1][field] = value

    saved.write_bytes(edited(saved.read_bytes(), spoilt))
    with pytest.raises(ValueError, match="kept: its header does not describe"):
        bf.load(saved)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("retraction", {"function": "bracketflow.geometry:check_basis2"}),
        ("retraction", {"function": "bracketflow.core:to_host"}),
        ("retraction", "cayley"),
        ("step_size", None),
        ("step_size", "fast"),
    ],
)
def test_methods_go_through_their_own_checks(saved, field, value):
    def spoilt(header):
        header["tree"]["method"]["configuration"][1][field] = value

    saved.write_bytes(edited(saved.read_bytes(), spoilt))
    if value is None:  # what the constructor takes as its default
        assert bf.load(saved).method == bf.DoubleBracketFlow()
        return
    with pytest.raises(ValueError, match="kept"):
        bf.load(saved)


def test_pipes_devices_and_folders_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match="not even an ordinary file"):
            bf.load(path)


def test_large_files_of_nothing_are_refused_within_little_memory(tmp_path):
    absurd = {"version": "1", "arrays": [["float64", [1 << 30]]], "tree": {}}
    for name, begin in (("other", b"PK"), ("ours", forged(absurd)[: -DIGEST - 100])):
        with (tmp_path / name).open("wb") as file:
            file.write(begin)
            file.truncate(1 << 35)  # 32 GB, of which the disk holds a few bytes
    code = "import sys, bracketflow as bf; bf.load(sys.argv[1])"
    for name in ("other", "ours"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30)),
        )
        assert done.stderr.splitlines()[-1].startswith("ValueError"), done.stderr


@pytest.mark.parametrize("kind", HOSTILE)
def test_forged_files_are_refused(kind, tmp_path):
    path = tmp_path / "forged"
    path.write_bytes(forged(HOSTILE[kind]))
    with pytest.raises(ValueError, match="forged"):
        bf.load(path)


def test_other_files_and_versions_are_named(tmp_path):
    (tmp_path / "x").write_bytes(b"PK\x03\x04")
    with pytest.raises(ValueError, match="not a bracketflow checkpoint"):
        bf.load(tmp_path / "x")
    (tmp_path / "y").write_bytes(MAGIC[:-2] + b"9\n" + bytes(100))
    with pytest.raises(ValueError, match="newer release"):
        bf.load(tmp_path / "y")
    with pytest.raises(ValueError, match="no such checkpoint"):
        bf.load(tmp_path / "absent")
    (tmp_path / "z").write_bytes(MAGIC + (1 << 62).to_bytes(8, "little") + bytes(DIGEST))
    with pytest.raises(ValueError, match="header length is wrong"):
        bf.load(tmp_path / "z")


def test_what_cannot_be_kept_is_refused_at_once(tmp_path, rng):
    state = bf.DoubleBracketFlow().init(bf.random_basis(3, rng=rng))
    own = bf.DoubleBracketFlow(0.1, lambda x, k, z: x)
    with pytest.raises(TypeError, match=r"method uses .*not part of bracketflow"):
        bf.save(tmp_path / "m", state, method=own)
    with pytest.raises(TypeError, match="method uses"):
        bf.Checkpoint(tmp_path / "m", 5, method=own)
    with pytest.raises(TypeError, match="state holds a set"):
        bf.save(tmp_path / "m", state._replace(memory={1}))
    with pytest.raises(TypeError, match="array of complex128"):
        bf.save(tmp_path / "m", state._replace(memory=np.ones(1) * 1j))
    with pytest.raises(TypeError, match="rng must be"):
        bf.save(tmp_path / "m", state, rng=3)
    with pytest.raises(ValueError, match="does not exist: create it first"):
        bf.Checkpoint(tmp_path / "absent" / "m", 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    ["bracketflow.checkpoint:_named", "bracketflow.core:_identity", "bracketflow.cli:main", "os:x"],
)
def test_a_file_may_name_public_parts_of_the_mathematics_only(name):
    with pytest.raises(ValueError, match="not a part of bracketflow that a checkpoint may name"):
        checkpoint._named(name)
