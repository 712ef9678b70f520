"""Checkpoints: one file, written atomically, versioned, checksummed, and never a pickle.

Layout: magic with the format's number, 8 bytes of header length, a JSON header that describes the
tree, the arrays' bytes (little-endian), and the SHA-256 of all that. Types come back by name, from
the modules in `HOMES` only, through their own constructors. Format 1, which kept the fields of a
record by position, is still read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

import bracketflow.core as core
from bracketflow.atomic import NotAFile, open_ordinary
from bracketflow.atomic import write_atomically as write_atomically
from bracketflow.core import Probe, State, whole_number
from bracketflow.sharding import shards
from bracketflow.threads import one_at_a_time

MAGIC = b"bracketflow checkpoint "
FORMATS = (b"1\n", b"2\n")  # the last one is written
DIGEST = 32  # bytes of SHA-256
DTYPES = ("float32", "float64", "int64", "int32", "uint32", "uint64", "uint8", "bool")
HOMES = ("core", "geometry", "flows", "tracker", "baselines")
# What a hostile file may ask for before its sizes are compared with its own.
LARGEST_HEADER = 1 << 20
LARGEST_RANK = 32
LARGEST_AXIS = 1 << 48


class Loaded(NamedTuple):
    """What a checkpoint held."""

    state: State
    method: Any
    rng: Any
    version: str
    """The version of bracketflow that wrote the file."""


def save(path: str | Path, state: State, *, method: Any = None, rng: Any = None) -> None:
    """Write `state`, and `method` and `rng` when given, to `path`; all or nothing.

    The bytes go to a temporary file in the same folder, are flushed to the disk, and take the name
    `path` in one step: a crash or a full disk leaves the previous checkpoint as it was.
    """
    _refuse_part()
    write(path, state, method=method, rng=rng)


def _refuse_part() -> None:
    spread = shards()
    if spread is not None:
        raise ValueError(
            f"state: this process holds only its own rows of the {spread.n} of a sharded basis: "
            "save all of them with bracketflow.distributed.save_shards(folder, state, "
            "method=method), called on every rank"
        )


def write(path: str | Path, state: State, *, method: Any = None, rng: Any = None) -> str:
    """`save` of whatever rows `state` has; gives the checksum at the end of the file."""
    arrays: list[np.ndarray] = []
    tree = {
        "state": _encode(state, arrays, "state"),
        "method": _encode(method, arrays, "method"),
        "rng": _encode_rng(rng, arrays),
    }
    header = json.dumps(
        {
            "version": _version(),
            "arrays": [[a.dtype.name, list(a.shape)] for a in arrays],
            "tree": tree,
        }
    ).encode()
    if len(header) > LARGEST_HEADER:
        raise ValueError(f"state has too many parts: {len(header)} bytes to describe them")
    begin = MAGIC + FORMATS[-1] + len(header).to_bytes(8, "little") + header
    parts = [begin, *(a.tobytes() for a in arrays)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    write_atomically(Path(path), [*parts, digest.digest()])
    return digest.hexdigest()


def checksum(path: str | Path) -> str:
    """The one at the end of a checkpoint; `load` compares it with what is before it."""
    with _opened(Path(path)) as file:
        file.seek(-DIGEST, os.SEEK_END)
        return file.read().hex()


def _version() -> str:
    return str(importlib.import_module("bracketflow").__version__)


def load(path: str | Path, *, device: Any = None) -> Loaded:
    """Read a checkpoint; arrays come back in their library, dtype and device.

    Parameters
    ----------
    device : optional
        Put torch tensors there instead of where they were saved from.

    Raises
    ------
    ValueError
        The file is not a checkpoint, is truncated or damaged, or needs another version.
    """
    path = Path(path)
    try:
        with _opened(path) as file:
            header, arrays = _contents(path, file)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such checkpoint") from None
    try:
        decode = _Decoder(arrays, device)
        tree = header["tree"]
        state, method = decode(tree["state"]), decode(tree["method"])
        rng, version = decode.rng(tree["rng"]), str(header["version"])
        _check(state, method)
    except _Refused as error:
        raise ValueError(
            f"{path}: {error}; it was written by bracketflow {header.get('version')!s:.20}, "
            f"this is {_version()}"
        ) from error
    except _HOSTILE as error:
        raise ValueError(f"{path}: its header does not describe a checkpoint: {error}") from error
    return Loaded(state, method, rng, version)


class _Refused(ValueError):
    """What is wrong with a well-formed file, with the remedy."""


# Whatever a forged header can make constructors and generators raise.
_HOSTILE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError)


class Checkpoint:
    """A monitor that saves every `every`-th state: `run(..., monitors=[Checkpoint(path, 100)])`.

    The saved state has absorbed `state.steps` observations; to resume, go on with the next one.
    `rng` is the generator that draws the stream: it is saved as it was before that next one was
    drawn. A write that fails (disk full, folder gone) is a warning, counted in `failures`: the
    run goes on, the previous checkpoint stays, and the next turn tries again.
    """

    def __init__(self, path: str | Path, every: int, *, method: Any = None, rng: Any = None):
        self.path = Path(path)
        self.every = whole_number(every, "every", at_least=1)
        self.method = method
        self.rng = rng
        self.failures = 0
        self._before = _frozen(rng)
        _refuse_part()  # refuse now what could not be saved later
        _encode(method, [], "method")
        if not self.path.parent.is_dir():
            raise ValueError(f"path: the folder {self.path.parent} does not exist: create it first")

    @one_at_a_time
    def __call__(self, state: State, probe: Probe) -> None:
        """Save when the turn has come."""
        steps = int(np.max(state.steps))
        if steps % self.every == 0:
            self._save(state)
        if (steps + 1) % self.every == 0:  # the next call will save
            self._before = _frozen(self.rng)

    def _save(self, state: State) -> None:
        try:
            save(self.path, state, method=self.method, rng=self._before)
        except OSError as error:
            self.failures += 1
            warnings.warn(
                f"{self.path}: the checkpoint of step {np.max(state.steps)} could not be written "
                f"({error}); the one before it is kept, the next try is in {self.every} steps",
                RuntimeWarning,
                stacklevel=2,
            )


def _frozen(rng: Any) -> Any:
    """A generator that stays as `rng` is now."""
    if rng is None:
        return None
    arrays: list[np.ndarray] = []
    return _Decoder(arrays, None).rng(_encode_rng(rng, arrays))


# Reading ----------------------------------------------------------------------------------------


def _opened(path: Path) -> BinaryIO:
    try:
        return open_ordinary(path)
    except NotAFile:
        raise ValueError(
            f"{path}: not a bracketflow checkpoint, not even an ordinary file"
        ) from None


def _contents(path: Path, file: BinaryIO) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Header and arrays of an intact file; no more is read than its own size accounts for."""
    size = os.fstat(file.fileno()).st_size
    begin = file.read(len(MAGIC) + len(FORMATS[0]) + 8)
    found, length = begin[len(MAGIC) : -8], int.from_bytes(begin[-8:], "little")
    if not begin.startswith(MAGIC):
        raise ValueError(f"{path}: not a bracketflow checkpoint")
    if found not in FORMATS:
        raise ValueError(f"{path}: written in another format: read it with a newer release")
    if length > min(LARGEST_HEADER, size - len(begin) - DIGEST):
        raise ValueError(f"{path}: truncated, or its header length is wrong")
    text = file.read(length)
    digest = hashlib.sha256(begin + text)
    try:
        header = json.loads(text)
        layout = [_described(*entry) for entry in header["arrays"]]
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: damaged, its header cannot be read: {error}") from None
    stored = size - len(begin) - length - DIGEST
    described = sum(dtype.itemsize * count for dtype, _, count in layout)
    if described != stored:
        raise ValueError(f"{path}: truncated, arrays of {described} bytes in {stored}")
    arrays = []
    for dtype, shape, count in layout:
        raw = file.read(dtype.itemsize * count)
        digest.update(raw)
        if len(raw) == dtype.itemsize * count:
            arrays.append(np.frombuffer(raw, dtype).reshape(shape).astype(dtype.newbyteorder("=")))
    if digest.digest() != file.read(DIGEST):
        raise ValueError(f"{path}: damaged, its checksum does not match; use the one before it")
    return header, arrays


def _described(name: Any, shape: Any) -> tuple[np.dtype[Any], list[int], int]:
    """Type, shape and number of entries of a stored array."""
    sane = isinstance(shape, list) and len(shape) <= LARGEST_RANK
    if name not in DTYPES or not sane:
        raise ValueError(f"array of {name!s:.20} and shape {shape!s:.40}")
    if not all(type(axis) is int and 0 <= axis <= LARGEST_AXIS for axis in shape):
        raise ValueError(f"array of shape {shape!s:.40}")
    return np.dtype(name).newbyteorder("<"), shape, prod(shape)


def _check(state: Any, method: Any) -> None:
    """Raise unless these are a state and a method."""
    shape: Any = getattr(getattr(state, "basis", None), "shape", ())
    if not isinstance(state, State) or len(shape) < 2 or not 1 <= shape[-1] <= shape[-2]:
        raise TypeError("it holds no state")
    if not str(state.basis.dtype).endswith(("float32", "float64")):
        raise TypeError(f"its basis is of {state.basis.dtype}")
    for count in (state.steps, state.matvecs):
        numbers = np.asarray(count)
        if numbers.dtype.kind not in "iu" or numbers.shape not in ((), tuple(shape[:-2])):
            raise TypeError("its counters are not whole numbers, one a member")
    if method is not None and not (hasattr(method, "init") and hasattr(method, "step")):
        raise TypeError(f"{type(method).__name__} is not a method")


class _Decoder:
    """Turns the header's tree back into objects."""

    def __init__(self, arrays: list[np.ndarray], device: Any):
        self.arrays = arrays
        self.device = device

    def __call__(self, node: Any) -> Any:
        if not isinstance(node, dict):
            return node  # None, bool, int, float or str
        ((kind, value),) = node.items()
        decoders: dict[str, Callable[[Any], Any]] = {
            "array": lambda i: self.arrays[i],
            "scalar": lambda i: self.arrays[i][()],
            "tensor": self._tensor,
            "float": float.fromhex,
            "tuple": lambda items: tuple(map(self, items)),
            "list": lambda items: list(map(self, items)),
            "dict": lambda items: {name: self(item) for name, item in items.items()},
            "record": self._record,
            "configuration": self._configuration,
            "function": _function,
        }
        return decoders[kind](value)

    def _tensor(self, value: Any) -> Any:
        index, device = value
        device = self.device or device
        array, torch = self.arrays[index], _torch()
        try:
            if torch.device(device).type != "meta":
                return torch.asarray(array, device=device)
        except (RuntimeError, AssertionError):  # torch built without that kind of device
            pass
        raise _Refused(f"device {device!s:.40} cannot be used here: pass device='cpu'")

    def _record(self, value: Any) -> Any:
        name, items = value
        kind = _named(name)
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise TypeError(f"{name} is not a record")
        fields: tuple[str, ...] = getattr(kind, "_fields", ())
        if isinstance(items, list):  # format 1
            items = dict(zip(fields, items, strict=len(items) <= len(fields)))
        known = getattr(kind, "_field_defaults", {})
        if not set(fields) - set(known) <= set(items) <= set(fields):
            raise _Refused(_changed(name))
        return kind(**{field: self(item) for field, item in items.items()})

    def _configuration(self, value: Any) -> Any:
        name, items = value
        kind = _named(name)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise TypeError(f"{name} is not a configuration")
        fields = [field.name for field in dataclasses.fields(kind)]
        if set(items) != set(fields):
            raise _Refused(_changed(name))
        return kind(*(self(items[field]) for field in fields))

    def rng(self, node: Any) -> Any:
        """A generator in the state in which it was saved."""
        if node is None:
            return None
        kind, value, *device = node
        if kind == "torch":
            generator = _torch().Generator(*(self.device or d for d in device))
            generator.set_state(self(value).cpu())
            return generator
        if kind not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
            raise ValueError(f"unknown random generator {kind!s:.20}")
        bits, state = getattr(np.random, kind)(), self(value)
        # NumPy does not check these, and would read beside its own memory.
        if not (0 <= state["state"].get("pos", 0) <= 624 and 0 <= state.get("buffer_pos", 0) <= 4):
            raise ValueError("a random state of no generator")
        bits.state = state
        return np.random.Generator(bits)


REMEDY = "read it with the version that wrote it, and go on here from method.init(state.basis)"


def _changed(name: str) -> str:
    return f"{name.partition(':')[2]} has other fields in this version: {REMEDY}"


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ValueError(
            "it holds torch tensors: pip install 'bracketflow[torch]' to read it"
        ) from None


def _named(name: str) -> Any:
    """The object called `module:name`, from `HOMES` only."""
    module, _, attribute = str(name).partition(":")
    package, _, inner = module.partition(".")
    if package != "bracketflow" or inner.partition(".")[0] not in HOMES or attribute[:1] == "_":
        raise ValueError(f"{name!s:.80} is not a part of bracketflow that a checkpoint may name")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError):
        raise _Refused(f"{name!s:.80} is not part of this version: {REMEDY}") from None
    if getattr(found, "__module__", None) != module:
        raise ValueError(f"{name!s:.80} is not defined there: if it once was, {REMEDY}")
    return found


def _function(name: str) -> Any:
    """A retraction."""
    if not str(name).startswith("bracketflow.geometry:"):
        raise ValueError(f"{name!s:.80} is not a retraction")
    return _named(name)


# Writing ----------------------------------------------------------------------------------------


def _encode(value: Any, arrays: list[np.ndarray], name: str) -> Any:
    """`value` as JSON, its arrays moved to `arrays`."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return {"float": value.hex()}
    if isinstance(value, np.ndarray | np.generic):
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return {kind: _stored(np.asarray(value), arrays, name)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        items = {f: _encode(v, arrays, name) for f, v in zip(value._fields, value, strict=True)}
        return {"record": [_name_of(type(value), name), items]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(v, arrays, name) for v in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _encode(item, arrays, name) for key, item in value.items()}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = {
            f.name: _encode(getattr(value, f.name), arrays, name) for f in dataclasses.fields(value)
        }
        return {"configuration": [_name_of(type(value), name), items]}
    if hasattr(value, "detach"):
        return {"tensor": [_stored(core.to_host(value), arrays, name), str(value.device)]}
    if callable(value):
        return {"function": _name_of(value, name)}
    raise TypeError(f"{name} holds a {type(value).__name__}, which a checkpoint cannot keep")


def _stored(array: np.ndarray, arrays: list[np.ndarray], name: str) -> int:
    if array.dtype.name not in DTYPES:
        raise TypeError(f"{name} holds an array of {array.dtype}, which a checkpoint cannot keep")
    little = array.astype(array.dtype.newbyteorder("<"), order="C")  # a copy, for any machine
    arrays.append(little)
    return len(arrays) - 1


def _name_of(thing: Any, name: str) -> str:
    """`module:name` of a public class or function of this package."""
    full = f"{thing.__module__}:{getattr(thing, '__qualname__', '?')}"
    with suppress(ValueError, AttributeError):
        if _named(full) is thing:
            return full
    raise TypeError(
        f"{name} uses {full}, which is not part of bracketflow: save the state alone and rebuild "
        "the method when you load it"
    )


def _encode_rng(rng: Any, arrays: list[np.ndarray]) -> Any:
    if rng is None:
        return None
    if isinstance(rng, np.random.Generator):
        state = dict(rng.bit_generator.state)
        return [type(rng.bit_generator).__name__, _encode(state, arrays, "rng")]
    if hasattr(rng, "get_state") and hasattr(rng, "device"):
        return ["torch", _encode(rng.get_state(), arrays, "rng"), str(rng.device)]
    raise TypeError(f"rng must be a numpy.random.Generator or torch.Generator, got {rng!r}")
