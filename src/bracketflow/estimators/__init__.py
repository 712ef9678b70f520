"""scikit-learn estimators: streaming PCA where `IncrementalPCA` was, and a full eigenbasis.

>>> import numpy as np
>>> from bracketflow.estimators import StreamingPCA
>>> rows = np.random.default_rng(0).standard_normal((300, 5)) * [5, 3, 1, 1, 1]
>>> pca = StreamingPCA(n_components=2)
>>> for row in rows:
...     pca = pca.partial_fit(row[None, :])
>>> pca.transform(rows).shape
(300, 2)
"""

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "bracketflow.estimators needs scikit-learn: pip install 'bracketflow[sklearn]'"
    ) from error

from bracketflow.estimators.pca import EigenBasisTransformer, StreamingPCA

__all__ = ["EigenBasisTransformer", "StreamingPCA"]
