"""A basis whose rows are spread over the ranks: each holds n/P of them, and k × k sums travel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bracketflow.core import Array, namespace, whole_number
from bracketflow.distributed.alarm import Alarm
from bracketflow.distributed.ranks import (
    printed,
    process_group,
    refuse_differences,
    refuse_failures,
)
from bracketflow.oracles import Operator, gram
from bracketflow.sharding import Shards, over_rows, spread_rows


@contextmanager
def sharded_basis(n: int, group: Any = None) -> Iterator[slice]:
    """Within, every basis holds this rank's rows of n only; gives which rows these are.

    `bf.random_basis(n, k)` draws them, methods step them as they do on one machine, and an operator
    maps this rank's rows of X to this rank's rows of C X: see `sharded_gram` for rows of data, and
    `over_rows` for sums over all rows in an operator of your own.

    An operator that raises on one rank is refused by all of them. A rank that leaves with an error
    stops the others with a `GroupError` that tells it.
    """
    group = process_group(group)
    refuse_differences({"n": n}, group)
    n = whole_number(n, "n", at_least=dist.get_world_size(group))
    alarm = Alarm(group)
    spread = RankShards(n, dist.get_rank(group), dist.get_world_size(group), alarm)
    with spread_rows(spread):
        try:
            yield spread.own
        except BaseException as error:
            alarm.leave(error)
            raise
        alarm.leave(None)


@dataclass(frozen=True)
class RankShards(Shards):
    """Rows spread over the ranks of a process group."""

    alarm: Alarm
    failures: list[Exception] = field(default_factory=list)
    """Of this rank's last product, until all ranks have been told."""

    def total(self, sums: Sequence[Array]) -> list[Array]:
        """Each array summed over the ranks: one all-reduce for all of them."""
        if any(isinstance(part, torch.Tensor) for part in sums):
            message: Any = torch.cat([torch.as_tensor(part).reshape(-1) for part in sums])
            wire = message
        else:
            message = np.concatenate([np.ravel(part) for part in sums])
            wire = torch.from_numpy(message)  # the same memory
        self.alarm.sum(wire)
        shapes = [np.shape(part) for part in sums]
        ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
        parts = zip(ends[:-1], ends[1:], shapes, strict=True)
        return [message[begin:end].reshape(shape)[()] for begin, end, shape in parts]

    def attempted(self, product: Callable[[], Array], block: Array) -> Array:
        """The product; NaN, which all ranks will find in their sums, when it fails on this one."""
        with self.alarm.product():
            try:
                return product()
            except (MemoryError, ConnectionError):  # no fault of the observation
                raise
            except Exception as error:
                self.failures.append(error)
                self.alarm.accompany()
                return namespace(block).full_like(block, nan)

    def refuse_failures(self) -> None:
        """The same ObservationError on all ranks when the product of one of them has failed."""
        failure = self.failures.pop() if self.failures else None
        refuse_failures(failure, self.alarm.group)

    def agree(self, facts: dict[str, Any]) -> None:
        """A ValueError on all ranks unless they give the same facts."""
        plain = {k: v if isinstance(v, int | str) else printed(v) for k, v in facts.items()}
        refuse_differences(plain, self.alarm.group)


def sharded_gram(local_columns: Any) -> Operator:
    """BᵀB/b of rows B whose entries are spread over the ranks as the rows of the basis are.

    `local_columns` (b, n/P) is this rank's part of every row: B[:, own] of the slice that
    `sharded_basis` gives. The product is one all-reduce of B X, b × k.
    """
    local = gram(local_columns)  # checks it
    rows = local_columns if hasattr(local_columns, "shape") else np.asarray(local_columns)
    transposed = rows.T

    def product(block: Array) -> Array:
        return transposed @ (over_rows(rows @ block) / local.weight)

    return local.derived(product=product, stacks=False)
