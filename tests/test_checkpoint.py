"""Checkpoints come back bit for bit, survive failed writes, and refuse what is not one."""

import hashlib
import itertools
import json
import os

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import checkpoint
from bracketflow.checkpoint import DIGEST, MAGIC
from cases import METHODS, N, noise, same_bits, symmetric


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
}


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
    (tmp_path / "y").write_bytes(MAGIC[:-2] + b"2\n" + bytes(100))
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


def test_written_by_this_version_only_knows_public_names():
    with pytest.raises(ValueError, match="not part of bracketflow"):
        checkpoint._named("bracketflow.checkpoint:_named")
