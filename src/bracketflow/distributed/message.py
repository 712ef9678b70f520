"""The one message of a product: the block, and a short tail that tells all ranks the same."""

from __future__ import annotations

from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from bracketflow.core import Array, contiguous
from bracketflow.distributed.ranks import GroupError, all_reduce, together


class Tail(NamedTuple):
    """What travels behind a block product; all of it is summed over the ranks."""

    weight: float = 0.0
    trace: float = 0.0
    more: float = 0.0
    """1 from a rank whose stream has another observation; −P from one that wants all to end."""
    failed: float = 0.0
    """1 from a rank that could not make its product."""
    mark: float = 0.0
    """A checksum of the basis, and its square: the ranks agree when it has no variance."""
    square: float = 0.0


def summed(image: Array, tail: Tail, group: Any) -> tuple[Array, Tail]:
    """`image` and `tail` summed over the ranks: exactly one all-reduce."""
    size = int(np.prod(image.shape))
    if isinstance(image, np.ndarray):
        end: Any = np.asarray(tail, dtype=image.dtype)
        message: Any = np.concatenate([image.reshape(-1), end])
        wire = torch.from_numpy(message)  # the same memory
    else:
        end = torch.tensor(tail, dtype=image.dtype, device=image.device)
        message = wire = torch.cat([image.reshape(-1), end])
    together(all_reduce, wire, group=group)
    return message[:size].reshape(image.shape), Tail(*message[size:].tolist())


def marked(tail: Tail, block: Array, group: Any) -> Tail:
    """The tail with a checksum of the block's bits, so short that Σ mark² is exact in its dtype."""
    block = contiguous(block)
    if isinstance(block, np.ndarray):
        digits = np.finfo(block.dtype).nmant
        bits: Any = block.view(np.uint64 if block.itemsize == 8 else np.uint32)
        checksum = int(bits.sum(dtype=np.uint64))
    else:
        digits = 52 if block.dtype == torch.float64 else 23
        bits = block.view(torch.int64 if block.dtype == torch.float64 else torch.int32)
        checksum = int(bits.sum(dtype=torch.int64)) % 2**64
    mark = float(_folded(checksum, (digits - ceil(log2(dist.get_world_size(group)))) // 2))
    return tail._replace(mark=mark, square=mark * mark)


def _folded(number: int, bits: int) -> int:
    folded = 0
    while number:
        folded ^= number % 2**bits
        number >>= bits
    return folded


def refuse_different_bases(total: Tail, group: Any) -> None:
    """A GroupError on every rank unless all marks were the same."""
    if int(total.square) * dist.get_world_size(group) != int(total.mark) ** 2:
        raise GroupError(
            "the ranks hold different bases. Give all of them the same start (the same rng, or "
            "bracketflow.distributed.start), the same method and the same stop rules; and run "
            "them with the same libraries, number of threads and kind of processor"
        )
