"""Operators: whatever can be multiplied with a block of columns.

`as_operator` accepts everything once, at the edge; all else is written against `operator @ X`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import LinearOperator

from bracketflow.core import (
    Array,
    ObservationError,
    Scalar,
    namespace,
    whole_number,
)
from bracketflow.sharding import shards
from bracketflow.threads import one_at_a_time

Product = Callable[[Array], Array]


@dataclass(eq=False)
class Operator:
    """A symmetric n × n operator: `operator @ X` for X of shape (..., n, k)."""

    __array_ufunc__ = None  # NumPy must not try to broadcast over us in `X @ operator`

    n: int | None
    """Size; None for a callable, whose size is taken from the basis."""
    product: Product
    weight: float = 1.0
    """How much one observation counts in averages."""
    static: bool = False
    """Whether several products may be made with one observation."""
    stacks: bool = True
    """Whether the product takes a stack of bases (an ensemble)."""
    ensemble: tuple[int, ...] = ()
    """Leading axes of an operator that is a stack of matrices."""
    like: Array | None = None
    """An array of the library, dtype and device that a basis for this operator should have."""
    array: Array | None = None
    """C itself, (..., n, n), where it is at hand: then the product with I costs nothing."""

    @property
    def shape(self) -> tuple[int | None, int | None]:
        """(n, n); n is None for a callable whose size is taken from the basis."""
        return (self.n, self.n)

    def derived(self, **changes: Any) -> Operator:
        """A plain operator like this one but for `changes`; its products go through this one."""
        parts = {field.name: getattr(self, field.name) for field in fields(Operator)}
        return Operator(**{**parts, "product": self.__matmul__, "array": None, **changes})

    def on_identity(self, identity: Array) -> Array:
        """C I, as `operator @ identity` gives it."""
        array = self.array
        if array is None or type(array) is not type(identity) or array.shape != identity.shape:
            return self @ identity
        return _conform(array, identity)

    def __matmul__(self, block: Array) -> Array:
        """Y = C X, checked for shape, array library and dtype."""
        if self.n is not None and block.shape[-2] != self.n:
            raise ObservationError(
                "wrong shape",
                f"the operator is {self.n} × {self.n} but the basis has columns of length "
                f"{block.shape[-2]}: every operator of a stream must keep the size of the basis",
            )
        if block.ndim > 2 and not self.stacks:
            raise ObservationError(
                "wrong shape",
                f"a sparse matrix or LinearOperator cannot multiply a stack of bases "
                f"{tuple(block.shape)}: pass an array (..., n, n), a callable on (..., n, k), or "
                "run the members one by one",
            )
        return _conform(self.product(block), block)


def _conform(image: Array, block: Array) -> Array:
    """`image` with the shape and dtype of `block`, plain, and free of any graph; or refused."""
    if isinstance(image, np.ndarray) != isinstance(block, np.ndarray):
        raise ObservationError(
            "wrong type",
            f"the operator returned {type(image).__name__} for a basis of type "
            f"{type(block).__name__}: keep basis and operator in one array library",
        )
    if image.shape != block.shape:
        raise ObservationError(
            "wrong shape",
            f"the operator returned shape {tuple(image.shape)} for a basis of shape "
            f"{tuple(block.shape)}: it must map (..., n, k) to the same shape "
            "(for an ensemble, stack the basis too)",
        )
    if isinstance(image, np.ndarray) and type(image) is not np.ndarray:
        image = np.asarray(_unmasked(image, "product"))  # matrices multiply in their own way
    if image.dtype == block.dtype:
        # A graph kept from step to step would grow without end.
        return image.detach() if getattr(image, "requires_grad", False) else image
    real = image.dtype.kind in "fiub" if isinstance(image, np.ndarray) else not image.is_complex()
    if not real:
        raise ObservationError(
            "wrong type",
            f"the operator returned numbers of {image.dtype} for a basis of {block.dtype}: "
            "it must map real columns to real ones",
        )
    return namespace(block).astype(image, block.dtype)


def as_operator(x: Any, n: int | None = None, *, static: bool = False) -> Operator:
    """Anything that multiplies, as an `Operator`.

    Parameters
    ----------
    x : ndarray, sparse matrix or array, LinearOperator, torch tensor, callable, or any object
        with `shape` and `@`. An array may carry leading axes (..., n, n), one matrix a member.
    n : int, optional
        Size of a callable's operator; inside a stream it is taken from the basis.
    static : bool
        Allow several products on this one observation (a fixed matrix).
    """
    if isinstance(x, Operator):
        return x if x.static or not static else x.derived(static=True)
    weight = _weight_of(x)
    if isinstance(x, list | tuple):
        x = np.asarray(x)
    if hasattr(x, "shape") and hasattr(x, "__matmul__"):
        matrix = _real(np.asarray(x) if isinstance(x, np.matrix) else x, "operator")
        known = isinstance(matrix, np.ndarray) or sparse.issparse(matrix) or hasattr(matrix, "mT")
        return Operator(
            _square(matrix),
            lambda block: matrix @ (block if known else _copied(block)),
            weight=weight,
            static=static,
            stacks=not (sparse.issparse(x) or isinstance(x, LinearOperator)),
            ensemble=tuple(matrix.shape[:-2]),
            like=_example(matrix),
            array=matrix if isinstance(matrix, np.ndarray) or _is_tensor(matrix) else None,
        )
    if callable(x):
        size = None if n is None else whole_number(n, "n", at_least=1)
        return Operator(size, lambda block: x(_copied(block)), weight=weight, static=static)
    raise TypeError(
        f"operator must be an array, a sparse matrix, a LinearOperator, a callable or an object "
        f"with `shape` and `@`, got {type(x).__name__}"
    )


def as_observation(x: Any) -> Operator:
    """`as_operator(x)` for one observation of a stream: refused where it is no operator.

    Where rows are spread its product refuses it, so that all processes do.
    """
    try:
        return as_operator(x)
    except MemoryError:
        raise
    except Exception as error:
        reason = "wrong type" if isinstance(error, TypeError) else "wrong shape"
        refused = ObservationError(reason, str(error))
        if shards() is None:
            raise refused from error
        return Operator(None, raising(refused))


def raising(error: Exception) -> Product:
    """A product that raises `error` when it is asked for."""

    def product(block: Array) -> Array:
        raise error

    return product


def _copied(block: Array) -> Array:
    """A copy for a stranger's code, which may write into it."""
    return block.copy() if isinstance(block, np.ndarray) else block.clone()


def _is_tensor(matrix: Any) -> bool:
    return type(matrix).__module__.partition(".")[0] == "torch" and hasattr(matrix, "detach")


def _example(matrix: Any) -> Array | None:
    """An empty array with the library, dtype and device of `matrix`; None where it has no say."""
    dtype = getattr(matrix, "dtype", None)
    if isinstance(dtype, np.dtype):
        return np.empty(0, dtype=np.float32 if dtype == np.float32 else np.float64)
    if type(dtype).__module__.partition(".")[0] != "torch":
        return None
    # A torch tensor, or an operator that speaks torch (curvlinops), is there: so torch is too.
    from array_api_compat import torch as xp

    return xp.empty(0, dtype=dtype, device=getattr(matrix, "device", None))


def _weight_of(x: Any) -> float:
    weight = getattr(x, "weight", 1.0)
    if not isinstance(weight, int | float | np.number):
        return 1.0
    if not 0 < weight < inf:
        raise ValueError(f"weight must be a positive finite number, got {weight!r}")
    return float(weight)


def _square(matrix: Any) -> int:
    shape = tuple(matrix.shape)
    if len(shape) < 2 or shape[-1] != shape[-2] or shape[-1] == 0:
        raise ValueError(
            f"operator must be square, (..., n, n), got shape {shape}: "
            "for rows of data use bf.gram(batch)"
        )
    return int(shape[-1])


def _real(matrix: Any, name: str) -> Any:
    """`matrix` with integers and booleans made float64; complex and object entries raise."""
    matrix = _unmasked(matrix, name)
    dtype = getattr(matrix, "dtype", None)
    if dtype is None:
        return matrix
    if isinstance(dtype, np.dtype):
        if dtype.kind in "iub":
            return matrix.astype(np.float64) if hasattr(matrix, "astype") else matrix
        if dtype.kind != "f":
            raise TypeError(
                f"{name} must be real, got dtype {dtype}: complex Hermitian matrices are not "
                "supported, and objects must be converted to numbers"
            )
        return matrix.astype(np.float32) if dtype.itemsize < 4 else matrix
    if not hasattr(matrix, "to"):  # a foreign operator speaks for itself
        return matrix
    if getattr(dtype, "is_complex", False):
        raise TypeError(f"{name} must be real, got dtype {dtype}")
    if not getattr(dtype, "is_floating_point", True):
        return matrix.double()
    return matrix


def _unmasked(array: Any, name: str) -> Any:
    """`array`, or its data where nothing is masked; masked entries would count as zeros."""
    if not np.ma.isMaskedArray(array):
        return array
    if np.ma.is_masked(array):
        raise ValueError(f"{name} has masked entries: fill them, or leave the rows out")
    return np.asarray(array)


def gram(batch: Any) -> Operator:
    """BᵀB/b of the rows B (..., b, n), b ≥ 1, dense, sparse or torch, never formed as n × n.

    Carries `weight` = b, so that averages over batches of any size agree. Rows are used as they
    are: subtract a mean first if the covariance is meant.
    """
    rows = batch if hasattr(batch, "shape") else np.asarray(batch)
    rows = _real(rows, "batch")
    if len(rows.shape) < 2 or 0 in rows.shape[-2:]:
        raise ValueError(
            f"batch must be rows (b, n) with b ≥ 1, got shape {tuple(rows.shape)}: "
            "a single row x is x[None, :]"
        )
    b, n = (int(size) for size in rows.shape[-2:])
    if sparse.issparse(rows):
        rows = rows.tocsr()
        transposed = rows.T
    else:
        transposed = rows.mT
    return Operator(
        n,
        lambda block: transposed @ ((rows @ block) / b),
        weight=float(b),
        stacks=not sparse.issparse(rows),
        ensemble=tuple(rows.shape[:-2]),
        like=_example(rows),
    )


def shifted(op: Any, alpha: Scalar) -> Operator:
    """C + αI as an operator; for an ensemble `alpha` may have its shape."""
    inner_operator = as_operator(op)

    def product(block: Array) -> Array:
        level = alpha
        if getattr(alpha, "ndim", 0):
            level = namespace(block).asarray(alpha, dtype=block.dtype)[..., None, None]
        elif hasattr(alpha, "dtype"):
            level = float(alpha)
        lifted = level * block
        lifted += inner_operator @ block  # has the dtype of the block
        return lifted

    return inner_operator.derived(product=product)


@dataclass(eq=False)
class Counted(Operator):
    """An operator that counts: `matvecs` columns in `products` block products, per member."""

    matvecs: int = 0
    products: int = 0

    def __matmul__(self, block: Array) -> Array:
        self._count(int(block.shape[-1]))
        return super().__matmul__(block)

    @one_at_a_time
    def _count(self, columns: int) -> None:
        self.products += 1
        self.matvecs += columns


def counted(op: Any) -> Counted:
    """`op` with counters `.matvecs` and `.products`: the one object that changes when used."""
    plain = as_operator(op).derived()
    return Counted(**{field.name: getattr(plain, field.name) for field in fields(Operator)})
