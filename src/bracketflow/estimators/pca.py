"""StreamingPCA and EigenBasisTransformer: scikit-learn on the outside, a covariance inside."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.utils import check_random_state, gen_batches
from sklearn.utils.validation import validate_data

from bracketflow.core import Array, whole_number
from bracketflow.estimators import memory
from bracketflow.estimators.callbacks import CallbackSupportMixin, reported, with_callbacks
from bracketflow.estimators.covariance import Covariance, absorbed, nothing
from bracketflow.threads import one_at_a_time

EXACT = 128  # features up to which every column is kept
COVERAGE = 0.95  # of the error bars
LARGEST_BATCH = 1 << 22  # entries in a batch of the default size


class Stream(NamedTuple):
    """All that an estimator carries from one call to the next."""

    covariance: Covariance
    watch: memory.Watch | None
    rows: int
    components: int
    batch_size: int


class StreamingPCA(CallbackSupportMixin, IncrementalPCA):  # type: ignore[misc]
    """Principal components of a stream of rows: `IncrementalPCA` with one import changed.

    Any number of rows a call, dense, sparse or memory-mapped; the same answer however they are
    cut. What the components leave out is kept as a level, so that noise alike in all directions,
    however strong and however it changes, does not turn them.

    Parameters
    ----------
    n_components : int, optional
        Components to keep; None keeps min(n_samples, n_features) of the first call.
    whiten : bool
        Scale the transformed columns to unit variance.
    copy : bool
        As in `IncrementalPCA`; it makes no difference, for no input is ever written to.
    batch_size : int, optional
        Rows absorbed at a time, of calls with more; None takes 5 · n_features, or as many as fill
        32 MB.
    forget : float or None
        Share of the memory lost with every row, mean and covariance alike: 0 counts all rows the
        same, 0.001 remembers about a thousand. None lets an `EigenTracker` learn it from the
        stream, and start anew when the components jump.
    nan : {"raise", "ignore"}
        What to do with NaN entries: an error, or leave them out. A missing entry then counts as
        the mean of its feature, which takes variance from features that miss many.
    random_state : int, RandomState or None
        Start of the tracker that learns how fast to forget; not used otherwise.

    Attributes
    ----------
    components_, explained_variance_, explained_variance_ratio_, singular_values_, mean_, var_, \
noise_variance_, n_components_, batch_size_, n_samples_seen_, n_features_in_, feature_names_in_
        As in `IncrementalPCA`. With forgetting, they speak of the rows that still count.
    background_ : float
        Bulk level: the mean of the n_features − n_components_ variances not among the components.
    error_bars_ : ndarray of shape (n_components_,)
        The error of `explained_variance_` stays below this with probability 0.95.

    Notes
    -----
    Up to 128 features nothing is left out: the result is that of `PCA` on all rows, to rounding.
    Beyond, q = 4 · n_components + 10 columns and a level are carried, and memory is a few times
    n_features · (q + batch_size) numbers. Components are ordered and signed as those of `PCA`.
    `partial_fit` takes all its rows or, when it raises, none. Threads may share an estimator: they
    wait for each other, and no rows are lost.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        whiten: bool = False,
        copy: bool = True,
        batch_size: int | None = None,
        forget: float | None = 0.0,
        nan: str = "raise",
        random_state: Any = None,
    ):
        super().__init__(n_components, whiten=whiten, copy=copy, batch_size=batch_size)
        self.forget = forget
        self.nan = nan
        self.random_state = random_state

    @one_at_a_time
    @with_callbacks  # type: ignore[untyped-decorator]
    def fit(self, X: Any, y: Any = None) -> StreamingPCA:
        """Fit anew with the rows X, (n_samples, n_features), batch by batch."""
        X = self._validated(X, reset=True)
        stream = self._started(X)
        batches = list(gen_batches(X.shape[0], stream.batch_size))
        for batch in reported(self, X, batches):
            stream = self._absorbed(stream, X[batch], batch.start)
            self._publish(stream)
        return self

    @one_at_a_time
    def partial_fit(self, X: Any, y: Any = None, check_input: bool = True) -> StreamingPCA:
        """Take in more rows, one or a million; `check_input` is as in `IncrementalPCA`."""
        stream = getattr(self, "_stream", None)
        if check_input:
            X = self._validated(X, reset=stream is None)
        if stream is None:
            stream = self._started(X)
        elif self.n_components not in (None, stream.components):
            raise ValueError(
                f"n_components was {stream.components} and is now {self.n_components}: it cannot "
                "change between calls to partial_fit, call fit to start anew"
            )
        for batch in gen_batches(X.shape[0], stream.batch_size):
            stream = self._absorbed(stream, X[batch], batch.start)
        self._publish(stream)
        return self

    @one_at_a_time
    def transform(self, X: Any) -> Array:
        """Rows in the coordinates of the components, (n_samples, n_components)."""
        return super().transform(self._filled(X))

    inverse_transform = one_at_a_time(IncrementalPCA.inverse_transform)
    get_covariance = one_at_a_time(IncrementalPCA.get_covariance)
    get_precision = one_at_a_time(IncrementalPCA.get_precision)

    @one_at_a_time
    def score_samples(self, X: Any) -> Array:
        """Log-likelihood of each row under the probabilistic model, as in `PCA`."""
        return PCA.score_samples(self, self._filled(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-likelihood of the rows, as in `PCA`."""
        return float(np.mean(self.score_samples(X)))

    @one_at_a_time
    def __getstate__(self) -> dict[str, Any]:
        """All attributes of one moment, for copies and pickles."""
        return {**super().__getstate__()}

    def __sklearn_tags__(self) -> Any:
        """Sparse input everywhere; NaN where it is to be ignored."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.nan == "ignore"
        return tags

    def _validated(self, X: Any, reset: bool) -> Any:
        """X as rows of floats; whether they are finite is asked batch by batch, to read once."""
        if self.nan not in ("raise", "ignore"):
            raise ValueError(f'nan must be "raise" or "ignore", got {self.nan!r}')
        number = isinstance(self.forget, int | float | np.number)
        if self.forget is not None and not (number and 0 <= self.forget < 1):
            raise ValueError(f"forget must be None or a number in [0, 1), got {self.forget!r}")
        kinds = [np.float64, np.float32]
        return validate_data(
            self, X, accept_sparse="csr", dtype=kinds, ensure_all_finite=False, reset=reset
        )

    def _filled(self, X: Any) -> Any:
        """X with the mean in the place of entries to be ignored."""
        if self.nan == "raise" or not hasattr(self, "_stream"):
            return X
        if hasattr(X, "fillna"):  # a data frame stays one, with its names
            return X.fillna(dict(zip(X.columns, self.mean_, strict=False)))
        X = self._validated(X, reset=False)
        X = X.toarray() if sparse.issparse(X) else X
        return np.where(np.isnan(X), self.mean_, X).astype(X.dtype)

    def _components(self, n_samples: int, n_features: int) -> int:
        if self.n_components is None:
            return min(n_samples, n_features)
        limit = "the number of features"
        return whole_number(
            self.n_components, "n_components", at_least=1, at_most=n_features, limit=limit
        )

    def _started(self, X: Any) -> Stream:
        """A stream without rows, for rows like X."""
        n = X.shape[1]
        k = self._components(*X.shape)
        columns = n if n <= EXACT else min(4 * k + 10, n)
        past = nothing(columns, n, X.dtype)
        watch = None
        if self.forget is None:
            seed = check_random_state(self.random_state).randint(2**31)
            watch = memory.start(past, k, seed)
        if self.batch_size is None:
            size = max(min(5 * n, LARGEST_BATCH // n), columns)
        else:
            size = whole_number(self.batch_size, "batch_size", at_least=1)
        return Stream(past, watch, 0, k, size)

    def _absorbed(self, stream: Stream, rows: Any, first: int) -> Stream:
        """The stream after rows of X from the `first` on."""
        rows = self._checked(rows.toarray() if sparse.issparse(rows) else rows, first)
        watch = stream.watch
        if watch is None:
            keep = 1.0 - (self.forget or 0.0)
            past = absorbed(stream.covariance, rows, keep=keep, kept=keep ** len(rows))
        else:
            watch, past = memory.watched(watch, rows, 2 * len(stream.covariance.spread))
        return stream._replace(covariance=past, watch=watch, rows=stream.rows + len(rows))

    def _checked(self, rows: Array, first: int) -> Array:
        """The rows, or an error that says where they hold what cannot be used."""
        usable = np.isfinite(rows) if self.nan == "raise" else ~np.isinf(rows)
        if usable.all():
            return rows
        row, feature = np.argwhere(~usable)[0]
        remedy = "" if self.nan == "ignore" else ', or pass nan="ignore" to leave out NaN'
        raise ValueError(
            f"Input X contains {rows[row, feature]} (NaN or inf) in row {first + row}, feature "
            f"{feature}: remove or impute it{remedy}"
        )

    def _publish(self, stream: Stream) -> None:
        """Set the public attributes: they and the stream change together."""
        past, k = stream.covariance, stream.components
        n = len(past.mean)
        # An unbiased variance: N/(N − 1) for rows that count the same.
        unbiased = 1 / (1 - past.noise) if past.noise < 1 else 1.0
        total, values = past.variance.sum(), past.values[:k]
        rest = max(total - values.sum(), 0.0) * unbiased if k < min(n, stream.rows) else 0.0
        dtype = past.vectors.dtype
        self._stream = stream
        self.n_components_ = k
        self.batch_size_ = stream.batch_size
        self.n_samples_seen_ = stream.rows
        self.components_ = past.vectors[:k].copy()
        self.mean_, self.var_ = past.mean.astype(dtype), past.variance.astype(dtype)
        self.explained_variance_ = (values * unbiased).astype(dtype)
        self.explained_variance_ratio_ = (values / (total or 1.0)).astype(dtype)
        self.singular_values_ = np.sqrt(values / past.noise).astype(dtype)
        self.noise_variance_ = float(rest / max(min(stream.rows, n) - k, 1))
        self.background_ = float(rest / max(n - k, 1))
        width = NormalDist().inv_cdf(0.5 + 0.5 * COVERAGE)
        self.error_bars_ = (width * unbiased * past.errors[:k]).astype(dtype)


class EigenBasisTransformer(StreamingPCA):
    """The full eigenbasis of a stream of rows: a transform that decorrelates the features.

    `StreamingPCA` with as many components as features, from the first row on; see there for
    the parameters and attributes. Memory is O(n_features²).
    """

    n_components = None

    def __init__(
        self,
        *,
        whiten: bool = False,
        batch_size: int | None = None,
        forget: float | None = 0.0,
        nan: str = "raise",
        random_state: Any = None,
    ):
        self.whiten = whiten
        self.batch_size = batch_size
        self.forget = forget
        self.nan = nan
        self.random_state = random_state

    def _components(self, n_samples: int, n_features: int) -> int:
        return n_features
