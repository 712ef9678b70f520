"""Operators spread over ranks: each multiplies with its part, one all-reduce adds the parts up.

The message is the block product with a short tail: weight, trace, whether a stream goes on, whether
a rank has failed, and a mark of the basis. So every rank learns of all that from one message, and
decides the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from math import nan
from typing import Any, Literal, Self
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist
from scipy import sparse

from bracketflow.core import Array, ObservationError, Probe, State, frobenius_squared, to_host
from bracketflow.distributed.message import Tail, marked, refuse_different_bases, summed
from bracketflow.distributed.ranks import (
    array_type,
    described,
    device_of,
    empty_array,
    gathered,
    process_group,
    refuse_differences,
    refuse_failures,
)
from bracketflow.distributed.rows import row_batches
from bracketflow.driver import Method
from bracketflow.oracles import Operator, as_operator, gram, raising

Reduce = Literal["mean", "sum"]

_introduced: WeakSet[Any] = WeakSet()  # groups whose ranks have compared their first blocks


class ShardedOperator(Operator):
    """The mean or the sum of one operator a rank, such as the Hessian of each rank's minibatch.

    Parameters
    ----------
    local_operator : anything `bf.as_operator` takes, or None
        This rank's part; None for a rank that has nothing to add.
    reduce : "mean" or "sum"
        Σ w_r C_r / Σ w_r with the weights of the parts (1 where an operator has none), or Σ C_r.
    group : torch.distributed process group, optional
        Default: all ranks.

    Notes
    -----
    A product is exactly one all-reduce. A rank whose own product fails still takes part in it, so
    that all ranks refuse the observation together. The all-reduce gives every rank the same bits;
    a mark of the basis in each message proves that they stay the same.

    `weight` is known after a product; read earlier, it costs a message of its own.
    """

    def __init__(self, local_operator: Any = None, reduce: Reduce = "mean", group: Any = None):
        if reduce not in ("mean", "sum"):
            raise ValueError(f'reduce must be "mean" or "sum", got {reduce!r}')
        process_group(group)  # must be there
        self._group = group
        self.reduce = reduce
        self.local = None if local_operator is None else as_operator(local_operator)
        self.total: Tail | None = None
        self.more: float = 0.0
        part = self.local or Operator(None, lambda block: 0 * block)
        self.n, self.like, self.ensemble = part.n, part.like, part.ensemble
        self.static, self.stacks = part.static, part.stacks
        self.product = self.__matmul__

    @property
    def group(self) -> Any:
        """Whose ranks share the operator.

        The default group is looked up and not kept: one that is still referred to when Python ends
        may abort the process.
        """
        return process_group(self._group)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, rank {dist.get_rank(self.group)})"

    @property
    def weight(self) -> float:  # type: ignore[override]
        """Σ w_r over all ranks."""
        return self._told().weight

    def derived(self, **changes: Any) -> Operator:
        """Like this one but for `changes`; the weight is read when it is asked for."""
        return _Derived(self, changes)

    @classmethod
    def stream(cls, local: Iterable[Any], group: Any = None, **options: Any) -> Iterator[Self]:
        """One operator an observation, until the stream of every rank has ended.

        A rank whose stream ends earlier goes on with nothing to add, so none waits for it. Each
        rank reads one item ahead: that another follows is told in the message before.
        """
        items = _with_next(cls._items(local))
        item, more = next(items, (None, False))
        operator = cls._of(item, group, options)
        n, like, goes_on = operator._agreed(begun=item is not None)
        while goes_on:
            operator.n, operator.like, operator.more = n, like, float(more)
            yield operator
            goes_on = operator._told().more > 0
            item, more = next(items, (None, False))
            operator = cls._of(item, group, options)

    @classmethod
    def _items(cls, local: Iterable[Any]) -> Iterable[Any]:
        return local

    @classmethod
    def _of(cls, item: Any, group: Any, options: dict[str, Any]) -> Self:
        """The operator of an item, of nothing, or of an error that its product will tell of."""
        if not isinstance(item, Exception):
            try:
                return cls(item, group=group, **options)
            except (TypeError, ValueError) as error:
                item = error
        made = cls(None, group=group, **options)
        made.local = Operator(None, raising(item))
        return made

    def _agreed(self, *, begun: bool) -> tuple[int | None, Array | None, bool]:
        """Size and array type of the first operators of all ranks; whether there is any."""
        mine = (self.n, *array_type(self.like)) if begun else None
        facts = [fact for fact in gathered(mine, self.group) if fact is not None]
        known = sorted({fact for fact in facts if fact[0] is not None})
        if len(known) > 1:
            raise ValueError(
                "the streams of the ranks begin with different (n, dtype, library), "
                f"{known}: give every rank the same"
            )
        if not known:
            return None, None, bool(facts)
        n, dtype, library = known[0]
        return n, empty_array(dtype, library, self.group), True

    def __matmul__(self, block: Array) -> Array:
        """Y = C X, the same bits on every rank."""
        self._introduce(block)
        image, tail, failure = self._own(block)
        image, self.total = summed(image, marked(tail, block, self.group), self.group)
        self._refuse(self.total, failure)
        return self._image(image, block, self.total)

    def _image(self, image: Array, block: Array, total: Tail) -> Array:
        """Y from the sums of what the ranks sent."""
        if self.reduce == "mean":
            image /= total.weight
        return image

    def _introduce(self, block: Array) -> None:
        """Compare the first blocks of a group: messages of different length cannot be summed."""
        if self.group not in _introduced:
            facts = {**described(block), "reduce": self.reduce, "static": self.static}
            refuse_differences(facts, self.group)
            _introduced.add(self.group)

    def _own(self, block: Array) -> tuple[Array, Tail, Exception | None]:
        """What this rank adds to the sum, its tail, and what went wrong with it."""
        tail = self._tail()
        try:
            if self.local is None:
                return 0 * block, tail, None
            image = self.local @ block
            return image * tail.weight if self.reduce == "mean" else image, tail, None
        except Exception as error:
            return 0 * block, tail._replace(failed=1.0), error

    def _tail(self) -> Tail:
        weight = 0.0 if self.local is None else self.local.weight
        return Tail(weight, self._trace(), self.more)

    def _trace(self) -> float:
        return 0.0

    def _told(self) -> Tail:
        """The last message's tail; before a product, that of a message of its own."""
        if self.total is None:
            nothing = torch.zeros(0, dtype=torch.float64, device=device_of(self.group))
            self.total = summed(nothing, self._tail(), self.group)[1]
        return self.total

    def _refuse(self, total: Tail, failure: Exception | None) -> None:
        """What all ranks must refuse together."""
        refuse_different_bases(total, self.group)
        if total.failed:  # all ranks know, so all can ask for the reason
            refuse_failures(failure, self.group)
        if self.reduce == "mean" and not total.weight > 0:
            raise ObservationError("empty", "no rank has anything to add: the weights sum to 0")


class ShardedRows(ShardedOperator):
    """Gram operator BᵀB/b of rows B spread over ranks, b in all; never formed as n × n.

    Parameters
    ----------
    local_rows : (b_r, n) array, sparse matrix or torch tensor, or None
        This rank's rows; any number of them, also none.
    group : torch.distributed process group, optional
        Default: all ranks.

    Notes
    -----
    `weight` is b and `trace` is tr(BᵀB)/b; both come with the product. For a stream of batches:
    `ShardedRows.stream(batches)`, also from a Dask array.
    """

    def __init__(self, local_rows: Any = None, group: Any = None):
        rows = local_rows
        if rows is not None:
            rows = rows if hasattr(rows, "shape") else np.asarray(rows)
            if len(rows.shape) != 2 or rows.shape[1] == 0:
                raise ValueError(
                    f"local_rows must be rows (b, n), b ≥ 0, got shape {tuple(rows.shape)}: "
                    "a single row x is x[None, :]"
                )
        holds_any = rows is not None and rows.shape[0] > 0
        super().__init__(gram(rows) if holds_any else None, "mean", group)
        if rows is not None and not holds_any:
            self.n, self.like = int(rows.shape[1]), _like_rows(rows)
        self._squares = _sum_of_squares(rows) if holds_any else 0.0

    @property
    def trace(self) -> float:
        """tr(BᵀB)/b of all rows; known after the first product."""
        return nan if self.total is None else self.total.trace / self.total.weight

    def _trace(self) -> float:
        return self._squares

    @classmethod
    def _items(cls, local: Iterable[Any]) -> Iterable[Any]:
        return row_batches(local)


@dataclass(frozen=True)
class OverRanks:
    """`method`, with each rank's observation a part of a common one: their mean or their sum.

    For code that makes its operators itself, such as the monitor of `bracketflow.torch`:
    ``monitor.tracker = OverRanks(monitor.tracker)``.
    """

    method: Method
    reduce: Reduce = "mean"
    group: Any = None

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at an orthonormal basis, which must be the same on every rank."""
        return self.method.init(basis, rng)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One observation, made of what all ranks bring: exactly one all-reduce a product."""
        part = ShardedOperator._of(operator, self.group, {"reduce": self.reduce})
        return self.method.step(part, state)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "method":
            raise AttributeError(name)
        return getattr(self.method, name)


class _Derived(Operator):
    """`source` but for some changes; its weight is read from the source when it is asked for."""

    def __init__(self, source: Operator, changes: dict[str, Any]):
        self.source, self.changes = source, changes
        for field in fields(Operator):
            if field.name not in ("weight", "product"):
                setattr(self, field.name, changes.get(field.name, getattr(source, field.name)))
        self.product = changes.get("product", source.__matmul__)

    @property
    def weight(self) -> float:  # type: ignore[override]
        """The source's, or the one it was changed to."""
        changed = self.changes.get("weight")
        return float(self.source.weight if changed is None else changed)

    def __repr__(self) -> str:
        return f"derived from {self.source!r}"

    def derived(self, **changes: Any) -> Operator:
        """Another one, from this one."""
        return _Derived(self, changes)


def _with_next(items: Iterable[Any]) -> Iterator[tuple[Any, bool]]:
    """(item, whether another follows); an error in the source is the last item."""
    iterator = iter(items)
    end = object()

    def fetch() -> Any:
        try:
            return next(iterator, end)
        except Exception as error:
            return error

    item = fetch()
    while item is not end:
        following = end if isinstance(item, Exception) else fetch()
        yield item, following is not end
        item = following


def _like_rows(rows: Any) -> Array | None:
    one = rows.new_zeros(1, 1) if hasattr(rows, "new_zeros") else np.zeros((1, 1), rows.dtype)
    return gram(one).like


def _sum_of_squares(rows: Any) -> float:
    entries = rows.data[None, :] if sparse.issparse(rows) else rows
    return float(to_host(frobenius_squared(entries)))
