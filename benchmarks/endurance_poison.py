"""A fifth of the observations poisoned: as if absent, and hardly worse than if they were clean."""

from __future__ import annotations

import numpy as np

import bracketflow as bf

N, K = 10, 3
STEPS = 900
SEEDS = 8
OPENING = 20  # clean observations: the noise must be known before anything can deviate from it
NOISE = 0.5  # ‖E_t‖_F; the gaps are 1
METHODS = {
    "SO(n)": (bf.DoubleBracketFlow(bf.Adaptive()), N),
    "Stiefel": (bf.BrockettFlow((3, 2, 1), bf.Adaptive()), K),
    "EigenTracker full": (bf.EigenTracker(), N),
    "EigenTracker k = 3": (bf.EigenTracker(K), K),
}


def raising(block):
    raise OSError("the sensor is gone")


def symmetric_noise(rng, size):
    noise = rng.standard_normal((N, N))
    noise = noise + noise.T
    return noise * (size / np.linalg.norm(noise))


POISON = {
    "nan": lambda c, rng: c * np.nan,
    "raising": lambda c, rng: raising,
    "asymmetric": lambda c, rng: c + np.triu(rng.standard_normal(c.shape), 1),
    "outliers": lambda c, rng: c + symmetric_noise(rng, 1e6 * NOISE),
}


def scene(seed):
    """Truth, start, observations of one signal under a swinging background."""
    rng = np.random.default_rng(seed)
    truth = bf.random_basis(N, rng=rng)
    signal = (truth * np.arange(N, 0, -1.0)) @ truth.T
    signal = 0.5 * (signal + signal.T)
    levels = 1000 * (1 + np.sin(np.arange(STEPS) / 7))
    stream = [signal + symmetric_noise(rng, NOISE) + s * np.eye(N) for s in levels]
    return truth, bf.random_basis(N, rng=rng), stream


def poisoned(stream, kind, seed):
    """The stream with a fifth of it spoilt, and the stream without that fifth."""
    rng = np.random.default_rng([seed, 5])
    bad = np.zeros(len(stream), bool)
    bad[rng.choice(np.arange(OPENING, len(stream)), len(stream) // 5, replace=False)] = True
    mixed = [POISON[kind](c, rng) if b else c for c, b in zip(stream, bad, strict=True)]
    return mixed, [c for c, b in zip(stream, bad, strict=True) if not b]


def compare(name, kind, seeds=range(SEEDS)):
    """Runs in which the spoilt were not as good as absent, and the error with poison / clean.

    The error is the root mean square over the last third of the stream and over the seeds.
    """
    method, columns = METHODS[name]
    different, squares = 0, np.zeros(2)
    for seed in seeds:
        truth, start, stream = scene(seed)
        mixed, rest = poisoned(stream, kind, seed)
        state = method.init(start[:, :columns].copy())
        result, spoilt = followed(method, mixed, state, truth[:, :columns])
        _, clean = followed(method, stream, state, truth[:, :columns])
        absent = bf.run(method, rest, state)
        different += not as_if_absent(kind, result.state, absent.state)
        different += len(result.bad) != len(stream) - len(rest)
        squares += np.square(spoilt).mean(), np.square(clean).mean()
    return different, float(np.sqrt(squares[0] / squares[1]))


def followed(method, stream, state, truth):
    """The result of a run that skips the bad, and its errors in the last third of the stream."""
    errors, seen = [], []

    def watch(state, probe):
        if 3 * len(seen) >= 2 * len(stream):
            errors.append(bf.basis_error(state.basis, truth))

    told = (seen.append(None) or observation for observation in stream)
    return bf.run(method, told, state, monitors=watch, on_bad="skip"), errors


def as_if_absent(kind, state, other):
    """Whether a state is the one without the spoilt observations, to the last bit.

    Outliers a million times the noise count 1e-12, which leaves 1e-6 of the noise of one.
    """
    if kind == "outliers":
        return bf.basis_error(state.basis, other.basis) <= 1e-6 * NOISE
    return _same(state, other)


def _same(a, b):
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
