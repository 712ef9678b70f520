"""Seeds and dtypes for all tests. BRACKETFLOW_SEEDS=5 runs every seeded test with five seeds."""

import os

import numpy as np
import pytest


def pytest_generate_tests(metafunc):
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(int(os.environ.get("BRACKETFLOW_SEEDS", "1"))))


@pytest.fixture
def rng(seed):
    return np.random.default_rng(seed)
