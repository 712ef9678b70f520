"""More than one process or machine: rows and operators spread over torch.distributed.

Every rank runs the same method on the same basis. Only the block product is shared: each rank
multiplies with what it holds, one all-reduce adds the parts up, and every rank goes on with the
same bits. Inside `sharded_basis(n)` each rank holds n/P rows of the basis instead. Start the
processes with `torchrun`, then `torch.distributed.init_process_group`.
"""

from bracketflow.distributed.basis import sharded_basis, sharded_gram
from bracketflow.distributed.operators import OverRanks, ShardedOperator, ShardedRows
from bracketflow.distributed.ranks import GroupError, check_ranks, on_first_rank
from bracketflow.distributed.rows import own_rows, row_batches
from bracketflow.distributed.shards import load_shards, save_shards
from bracketflow.distributed.starting import start
from bracketflow.sharding import over_rows

__all__ = [
    "GroupError",
    "OverRanks",
    "ShardedOperator",
    "ShardedRows",
    "check_ranks",
    "load_shards",
    "on_first_rank",
    "over_rows",
    "own_rows",
    "row_batches",
    "save_shards",
    "sharded_basis",
    "sharded_gram",
    "start",
]
