"""Centring over ranks: rows are spread, the mean that is taken out of them is that of all."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from bracketflow.core import Array
from bracketflow.distributed.message import Tail
from bracketflow.distributed.operators import ShardedOperator
from bracketflow.oracles import Operator, gram
from bracketflow.streams.moments import Moments, column_means, power


class ShardedCovariance:
    """`streams.covariance` of a batch of which each rank holds a part.

    With N rows of mean m before and c = m (for the first batch, N = 0, any point near its mean)
    each rank sends

        Σ (x − c)(x − c)ᵀX,    Σ (x − c),    Σ ‖x − c‖²,    b_r

    as the block of one message, one column more, and two numbers of its tail. From their sums, with
    d = Σ (x − c)/b = m_b − c, every rank has the same

        C X = Σ (x − c)(x − c)ᵀX/b − b/(N + b) d dᵀX,    and the mean of all rows c + b/(N + b) d.

    Once N ≥ b at least half of d dᵀ stays, so that nothing cancels.

    Parameters
    ----------
    local_rows : (b_r, n) ndarray or sparse matrix, or None
        This rank's part of the batch.
    seen : Moments
        Of all rows before; the same on every rank.
    near : (n,) array, optional
        c while nothing was seen, the same on every rank. None: nothing is taken out, Σxxᵀ/b.
    more : float
        What the message says of the batches that follow; see `Tail`.
    """

    def __init__(
        self, local_rows: Any, seen: Moments, near: Array | None = None, *, more: float = 0.0
    ):
        self.seen = seen
        self.point = near if near is None or seen.mean is None else seen.mean
        self.operator = _Rows(local_rows, self.point, seen.rows)
        self.operator.more = more

    @property
    def total(self) -> float:
        """Its trace, the total variance; known after the product."""
        told, d = self.operator.told, self.operator.deviation
        missing = 0.0 if d is None else float(d @ d) * self.operator.share
        return told.trace / told.weight - missing

    @property
    def moments(self) -> Moments:
        """Of all rows up to and with this batch; known after the product."""
        rows, d = self.seen.rows + round(self.operator.weight), self.operator.deviation
        return Moments(rows, None if d is None else self.point + d * self.operator.share)


class _Rows(ShardedOperator):
    """C of `ShardedCovariance`."""

    def __init__(self, rows: Any, point: Array | None, before: int):
        self.point, self.before = point, before
        self.deviation: Array | None = None
        """d, known after the product."""
        self._sum: Array | float = 0.0
        self._squares = 0.0
        super().__init__(None if rows is None else self._about_point(rows))

    def _about_point(self, rows: Any) -> Operator:
        if self.point is None:
            self._squares = power(rows)
            return gram(rows)
        if sparse.issparse(rows):
            return self._about_point_sparse(rows, self.point)
        wide = rows - self.point
        self._sum, self._squares = wide.sum(axis=0), power(wide)
        return gram(wide.astype(rows.dtype, copy=False))

    def _about_point_sparse(self, rows: Any, c: Array) -> Operator:
        """The same with c taken out of sums and product, so that the rows stay sparse."""
        raw, b = gram(rows), int(rows.shape[0])
        mean = column_means(rows)
        self._sum = b * (mean - c)
        self._squares = power(rows) + b * float(c @ c - 2 * (c @ mean))

        def product(block: Array) -> Array:
            about = mean[:, None] * (c @ block) + c[:, None] * ((mean - c) @ block)
            return (raw @ block) - about.astype(block.dtype)

        return raw.derived(product=product)

    @property
    def told(self) -> Tail:
        """What came with the last product."""
        return self._told()

    @property
    def share(self) -> float:
        """b/(N + b)"""
        return self.weight / (self.before + self.weight)

    def _trace(self) -> float:
        return self._squares

    def _own(self, block: Array) -> tuple[Array, Tail, Exception | None]:
        image, tail, failure = super()._own(block)
        if self.point is not None:
            column = np.zeros_like(block, shape=(block.shape[0], 1))
            column[:, 0] = self._sum
            image = np.concatenate([image, column], axis=1)
        return image, tail, failure

    def _image(self, image: Array, block: Array, total: Tail) -> Array:
        if self.point is None:
            return super()._image(image, block, total)
        image = super()._image(image, block, total)
        self.deviation = image[:, -1].astype(np.float64)
        about = self.deviation[:, None] * (self.share * (self.deviation @ block))
        return image[:, :-1] - about.astype(block.dtype)
