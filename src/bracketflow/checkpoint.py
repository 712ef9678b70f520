"""Checkpoints: one file, written atomically, versioned, checksummed, and never a pickle.

Layout: magic, 8 bytes of header length, a JSON header that describes the tree, the raw bytes of its
arrays, and the SHA-256 of all that. Types are restored by name from this package only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import bracketflow.core as core
from bracketflow.core import Probe, State, whole_number

MAGIC = b"bracketflow checkpoint 1\n"
LARGEST_HEADER = 1 << 24
DIGEST = 32  # bytes of SHA-256
DTYPES = ("float32", "float64", "int64", "int32", "uint32", "uint64", "uint8", "bool")


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
    path = Path(path)
    arrays: list[np.ndarray] = []
    tree = {
        "state": _encode(state, arrays, "state"),
        "method": _encode(method, arrays, "method"),
        "rng": _encode_rng(rng, arrays),
    }
    header = json.dumps(
        {
            "version": importlib.import_module("bracketflow").__version__,
            "arrays": [[a.dtype.name, list(a.shape)] for a in arrays],
            "tree": tree,
        }
    ).encode()
    parts = [MAGIC, len(header).to_bytes(8, "little"), header, *(a.tobytes() for a in arrays)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    write_atomically(path, [*parts, digest.digest()])


def write_atomically(path: Path, parts: list[bytes]) -> None:
    """Put `parts` into `path`: a reader sees the old file or the new one, never a mixture."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a power cut too
    finally:
        os.close(folder)


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
        raw = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: no such checkpoint") from None
    header, payload = _checked(path, raw)
    try:
        arrays = _arrays(header["arrays"], payload)
        decode = _Decoder(arrays, device)
        tree = header["tree"]
        state, method = decode(tree["state"]), decode(tree["method"])
        rng, version = decode.rng(tree["rng"]), str(header["version"])
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its header does not describe a checkpoint: {error}") from error
    if not isinstance(state, State):
        raise ValueError(f"{path}: holds no state")
    return Loaded(state, method, rng, version)


class Checkpoint:
    """A monitor that saves every `every`-th state: `run(..., monitors=[Checkpoint(path, 100)])`.

    The saved state has absorbed `state.steps` observations; to resume, go on with the next one.
    """

    def __init__(self, path: str | Path, every: int, *, method: Any = None, rng: Any = None):
        self.path = Path(path)
        self.every = whole_number(every, "every", at_least=1)
        self.method = method
        self.rng = rng
        _encode(method, [], "method")  # refuse now what could not be saved later
        if not self.path.parent.is_dir():
            raise ValueError(f"path: the folder {self.path.parent} does not exist: create it first")

    def __call__(self, state: State, probe: Probe) -> None:
        """Save when the turn has come."""
        if np.max(state.steps) % self.every == 0:
            save(self.path, state, method=self.method, rng=self.rng)


# Reading ----------------------------------------------------------------------------------------


def _checked(path: Path, raw: bytes) -> tuple[dict[str, Any], memoryview]:
    """Header and payload of an intact file."""
    if not raw.startswith(MAGIC[:-2]):
        raise ValueError(f"{path}: not a bracketflow checkpoint")
    if not raw.startswith(MAGIC):
        raise ValueError(f"{path}: written in another format version: read it with a newer release")
    start = len(MAGIC) + 8
    length = int.from_bytes(raw[len(MAGIC) : start], "little")
    if len(raw) < start + DIGEST or length > min(LARGEST_HEADER, len(raw) - start - DIGEST):
        raise ValueError(f"{path}: truncated, or its header length is wrong")
    if hashlib.sha256(raw[:-DIGEST]).digest() != raw[-DIGEST:]:
        raise ValueError(f"{path}: damaged, its checksum does not match; use the one before it")
    try:
        header = json.loads(raw[start : start + length])
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its header cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise ValueError(f"{path}: its header does not describe a checkpoint")
    return header, memoryview(raw)[start + length : -DIGEST]


def _arrays(described: list[Any], payload: memoryview) -> list[np.ndarray]:
    """The stored arrays; their sizes must add up to the payload before any is made."""
    layout, offset = [], 0
    for name, shape in described:
        if name not in DTYPES or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"array of {name!r}, {shape!r}")
        count = int(np.prod(shape, dtype=object)) if shape else 1
        layout.append((name, shape, offset, count))
        offset += count * np.dtype(name).itemsize
    if offset != len(payload):
        raise ValueError(f"arrays of {offset} bytes in a payload of {len(payload)}")
    return [
        np.frombuffer(payload, name, count, start).reshape(shape).copy()
        for name, shape, start, count in layout
    ]


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
            "function": _named,
        }
        return decoders[kind](value)

    def _tensor(self, value: Any) -> Any:
        index, device = value
        return _torch().asarray(self.arrays[index], device=self.device or device)

    def _record(self, value: Any) -> Any:
        name, items = value
        kind = _named(name)
        if not (isinstance(kind, type) and issubclass(kind, tuple)):
            raise TypeError(f"{name} is not a record")
        return kind(*map(self, items))

    def _configuration(self, value: Any) -> Any:
        name, items = value
        kind = _named(name)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            raise TypeError(f"{name} is not a configuration")
        if set(items) != {field.name for field in dataclasses.fields(kind)}:
            raise TypeError(f"{name} has other fields in this version")
        made = object.__new__(kind)
        for field, item in items.items():
            object.__setattr__(made, field, self(item))
        return made

    def rng(self, node: Any) -> Any:
        """A generator in the state in which it was saved."""
        if node is None:
            return None
        kind, value = node
        if kind == "torch":
            generator = _torch().Generator()
            generator.set_state(self(value))
            return generator
        if kind not in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"):
            raise ValueError(f"unknown random generator {kind!r}")
        bits = getattr(np.random, kind)()
        bits.state = self(value)
        return np.random.Generator(bits)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        raise ValueError(
            "it holds torch tensors: pip install 'bracketflow[torch]' to read it"
        ) from None


def _named(name: str) -> Any:
    """The object called `module:name`, from this package only."""
    module, _, attribute = str(name).partition(":")
    if module.split(".")[0] != "bracketflow" or attribute.startswith("_"):
        raise ValueError(f"{name!r} is not part of bracketflow")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except ImportError:
        raise ValueError(f"{name!r} is not part of this version") from None
    if getattr(found, "__module__", None) != module:
        raise ValueError(f"{name!r} is not defined there")
    return found


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
        return {"record": [_name_of(type(value), name), [_encode(v, arrays, name) for v in value]]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(v, arrays, name) for v in value]}
    if isinstance(value, dict):
        return {"dict": {str(k): _encode(v, arrays, name) for k, v in value.items()}}
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
    arrays.append(np.ascontiguousarray(array).reshape(array.shape))
    return len(arrays) - 1


def _name_of(thing: Any, name: str) -> str:
    """`module:name` of a public class or function of this package."""
    full = f"{thing.__module__}:{getattr(thing, '__qualname__', '?')}"
    try:
        if _named(full) is thing:
            return full
    except (ValueError, AttributeError):
        pass
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
        return ["torch", _encode(rng.get_state(), arrays, "rng")]
    raise TypeError(f"rng must be a numpy.random.Generator or torch.Generator, got {rng!r}")
