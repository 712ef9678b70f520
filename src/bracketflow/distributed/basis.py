"""A basis whose rows are spread over the ranks: each holds n/P of them, and k × k sums travel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from bracketflow.core import Array, whole_number
from bracketflow.distributed.ranks import process_group, refuse_differences, together
from bracketflow.oracles import Operator, gram
from bracketflow.sharding import Shards, over_rows, spread_rows


@contextmanager
def sharded_basis(n: int, group: Any = None) -> Iterator[slice]:
    """Within, every basis holds this rank's rows of n only; gives which rows these are.

    `bf.random_basis(n, k)` draws them, methods step them as they do on one machine, and an operator
    maps this rank's rows of X to this rank's rows of C X: see `sharded_gram` for rows of data, and
    `over_rows` for sums over all rows in an operator of your own.
    """
    group = process_group(group)
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    refuse_differences({"n": n}, group)
    n = whole_number(n, "n", at_least=ranks)
    shards = Shards(n, rank, ranks, lambda sums: _totals(sums, group))
    with spread_rows(shards):
        yield shards.own


def _totals(sums: Sequence[Array], group: Any) -> list[Array]:
    """Each array summed over the ranks: one all-reduce for all of them."""
    tensors = [part for part in sums if isinstance(part, torch.Tensor)]
    if tensors:
        message: Any = torch.cat([torch.as_tensor(part).reshape(-1) for part in sums])
        wire = message
    else:
        message = np.concatenate([np.ravel(part) for part in sums])
        wire = torch.from_numpy(message)  # the same memory
    together(dist.all_reduce, wire, group=group)
    shapes = [np.shape(part) for part in sums]
    ends = np.cumsum([0, *(int(np.prod(shape)) for shape in shapes)])
    parts = zip(ends[:-1], ends[1:], shapes, strict=True)
    return [message[begin:end].reshape(shape)[()] for begin, end, shape in parts]


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
