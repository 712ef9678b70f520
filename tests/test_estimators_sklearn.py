"""scikit-learn's own expectations: its estimator checks, and its tests of IncrementalPCA.

The latter ship in its package and are run here with the class replaced. Those that state more than
behaviour are listed in OTHERS, and shown to fail for the reason given and at that point only.
"""

import importlib.util

import pytest
from scipy.sparse import csr_array
from sklearn.utils.estimator_checks import parametrize_with_checks

from bracketflow.estimators import EigenBasisTransformer, StreamingPCA


@parametrize_with_checks(
    [
        StreamingPCA(),
        StreamingPCA(2, forget=None),
        StreamingPCA(1, whiten=True, forget=0.01, nan="ignore", batch_size=7),
        EigenBasisTransformer(),
    ]
)
def test_estimator_checks(estimator, check):
    check(estimator)


OTHERS = {
    "test_incremental_pca_sparse": (
        "its last lines ask partial_fit to refuse sparse rows; ours takes them",
        "DID NOT RAISE",
    ),
    "test_incremental_pca_validation": (
        "asks for a message that names IncrementalPCA, and for n_components rows in the first "
        "call; ours has its own words and needs no number of rows",
        "n_components must be at least 1 and at most 3",
    ),
    "test_incremental_pca_feature_names_out": (
        "names of transformed features are made of the name of the class",
        "streamingpca0",
    ),
}


def with_the_class_replaced():
    """scikit-learn's test module, a copy of our own, speaking of StreamingPCA."""
    spec = importlib.util.find_spec("sklearn.decomposition.tests.test_incremental_pca")
    if spec is None:
        pytest.skip("this scikit-learn ships no tests", allow_module_level=True)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.IncrementalPCA = StreamingPCA
    return {name: test for name, test in vars(module).items() if name.startswith("test_")}


THEIRS = with_the_class_replaced()
globals().update({name: test for name, test in THEIRS.items() if name not in OTHERS})


@pytest.fixture
def global_random_seed(seed):
    return seed


def test_others_exist():
    assert set(OTHERS) <= set(THEIRS)


@pytest.mark.parametrize("name", OTHERS)
def test_others_fail_for_the_reason_given(name):
    arguments = (csr_array,) if name.endswith("sparse") else ()
    _, shown = OTHERS[name]
    with pytest.raises((AssertionError, pytest.fail.Exception), match=shown):
        THEIRS[name](*arguments)
