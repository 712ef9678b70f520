"""The lists that contract tests run through: problems, retractions, step rules, methods."""

import numpy as np

import bracketflow as bf


def symmetric(rng, n, *, ensemble=(), eigenvalues=None):
    """Q Λ Qᵀ with Haar Q, exactly symmetric; Λ = diag(n … 1) unless given."""
    values = np.arange(n, 0, -1.0) if eigenvalues is None else np.asarray(eigenvalues, float)
    q = bf.random_basis(n, rng=rng, ensemble=ensemble)
    c = (q * values) @ q.mT
    return 0.5 * (c + c.mT)


def noise(rng, n, size):
    """Symmetric, trace-free E with ‖E‖_F = size."""
    g = rng.standard_normal((n, n))
    e = g + g.T
    e -= np.trace(e) / n * np.eye(n)
    return size * e / np.linalg.norm(e)


RETRACTIONS = {
    "cayley": bf.cayley,
    "neumann2": bf.neumann(2),
    "neumann3": bf.neumann(3),
    "neumann4": bf.neumann(4),
    "qr": bf.qr,
    "polar": bf.polar,
}

N, K = 8, 3

# name: (method, number of columns)
METHODS = {
    **{f"so-{name}": (bf.DoubleBracketFlow(0.004, r), N) for name, r in RETRACTIONS.items()},
    "so-certified": (bf.DoubleBracketFlow(), N),
    "so-paper": (bf.DoubleBracketFlow(bf.Certified(bound="paper")), N),
    "so-adaptive": (bf.DoubleBracketFlow(bf.Adaptive()), N),
    "so-escape": (bf.DoubleBracketFlow(bf.Adaptive(), givens_escape=True), N),
    "so-guard": (bf.DoubleBracketFlow(guard=True), N),
    "so-decay": (bf.DoubleBracketFlow(bf.Decay(2.0, 500.0)), N),
    **{f"st-{name}": (bf.BrockettFlow((3, 2, 1), 0.01, r), K) for name, r in RETRACTIONS.items()},
    "st-adaptive": (bf.BrockettFlow((3, 2, 1)), K),
    "st-decay": (bf.BrockettFlow((3, 2, 1), bf.Decay(5.0, 500.0)), K),
    "st-certified": (bf.BrockettFlow((3, 2, 1), bf.Certified()), K),
    "st-certified-spread": (bf.BrockettFlow((3, 2, 1), bf.Certified(spread=8.0)), K),
    "grassmann-certified": (bf.BrockettFlow(None, bf.Certified(spread=8.0), bf.qr), K),
    "grassmann": (bf.BrockettFlow(), K),
    "tracker-full": (bf.EigenTracker(), N),
    "tracker-leading": (bf.EigenTracker(K), K),
    "brockett-square": (bf.BrockettFlow(tuple(range(N, 0, -1))), N),
}


def same_bits(a, b):
    """Whether two states (nested tuples of arrays and numbers) agree to the last bit."""
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if a is None or b is None:
        return a is b
    return np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True)
