"""Long runs: orthonormal, symmetric, counted, of constant memory, and no worse late than early."""

import itertools

import numpy as np
import pytest

import bracketflow as bf
import endurance_poison as poison
import endurance_steps as steps
from bracketflow import baselines as bl
from cases import METHODS, N, noise, symmetric


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", steps.METHODS)
def test_the_bounds_of_the_long_run_hold_in_a_short_one(name, dtype):
    figures = steps.march(*steps.METHODS[name], dtype, steps=1500, warm=500)
    assert figures.defect <= steps.DEFECT[dtype]
    assert figures.crooked == 0
    assert figures.miscounted == 0
    # So few steps settle less than a million: the long run's bound is 1.2.
    assert figures.ageing <= 1.5


@pytest.mark.parametrize("name", steps.BASELINES)
def test_baselines_stay_orthonormal(name):
    figures = steps.march(*steps.BASELINES[name], "float64", steps=1500, warm=500)
    assert figures.defect <= steps.DEFECT["float64"]
    assert figures.crooked == figures.miscounted == 0


def test_resident_memory_does_not_grow():
    method, columns = steps.METHODS["SO(n) cayley"]
    figures = steps.march(method, columns, steps=8000, warm=2000)
    assert figures.growth < steps.GROWTH


def test_the_march_measures_what_it_says():
    figures = steps.march(bl.PrintedCayley(1e-3), steps.N, steps=1500, warm=500)
    assert figures.defect > steps.DEFECT["float64"]  # what the printed algorithm is known to lose


# Operators of every kind -------------------------------------------------------------------------


def crossing(rng, t):
    """Two eigenvalues that cross, again and again."""
    values = np.arange(N, 0, -1.0)
    values[:2] += 1.5 * np.sin(t / 20) * np.array([-1, 1])
    return values


SPECTRA = {
    "crossings": crossing,
    "exact ties": lambda rng, t: np.repeat([4.0, 2.0], N // 2),
    "one tie at the edge": lambda rng, t: np.array([5, 4, 3, 3, 3, 2, 1, 0.0]),
    "rank one": lambda rng, t: np.eye(N)[0],
    "zero": lambda rng, t: np.zeros(N),
    "zero at times": lambda rng, t: np.arange(N, 0, -1.0) * (t % 7 > 0),
    "indefinite": lambda rng, t: np.arange(N) - 3.5,
    "negative": lambda rng, t: -np.arange(1.0, N + 1),
    "badly scaled": lambda rng, t: 10.0 ** -np.arange(N),
    "swinging scale": lambda rng, t: np.arange(N, 0, -1.0) * 10 ** (3 * np.sin(t / 9)),
    "tiny": lambda rng, t: np.arange(N, 0, -1.0),
    "huge": lambda rng, t: 1e15 * np.arange(N, 0, -1.0),
}
TINY = {"float64": 1e-150, "float32": 1e-17}  # what is smaller cannot be squared, and is refused


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize(
    "name",
    ["so-adaptive", "so-certified", "st-adaptive", "grassmann", "tracker-full", "tracker-leading"],
)
def test_every_kind_of_spectrum_leaves_a_sound_state(name, spectrum, dtype, rng):
    method, columns = METHODS[name]
    frame = bf.random_basis(N, rng=rng)
    state = method.init(bf.random_basis(N, columns, rng=rng).astype(dtype))
    for t in range(120):
        values = SPECTRA[spectrum](rng, t) * (TINY[dtype] if spectrum == "tiny" else 1)
        c = (frame * values) @ frame.T + noise(rng, N, 1e-3 * np.abs(values).max())
        c = 0.5 * (c + c.T)
        state, probe = method.step(c.astype(dtype), state)
        assert np.array_equal(probe.rayleigh, probe.rayleigh.T)
    defect = np.linalg.norm(state.basis.T @ state.basis - np.eye(columns))
    assert defect <= steps.DEFECT[dtype]
    assert state.steps == 120
    assert state.basis.dtype == dtype


@pytest.mark.parametrize("columns", [N, 3])
@pytest.mark.parametrize("kind", poison.POISON)
def test_a_poisoned_fifth_under_a_swinging_background(kind, columns):
    name = "EigenTracker full" if columns == N else "EigenTracker k = 3"
    method, k = poison.METHODS[name]
    _, start, stream = poison.scene(0)
    mixed, rest = poison.poisoned(stream[:200], kind, 0)
    state = method.init(start[:, :k].copy())
    result, absent = bf.run(method, mixed, state, on_bad="skip"), bf.run(method, rest, state)
    assert poison.as_if_absent(kind, result.state, absent.state)
    assert len(result.bad) == 40


def test_states_do_not_grow(rng):
    """Everything a state holds has the same size after hundreds of steps as after some."""

    def size(part):
        return sum(map(size, part)) if isinstance(part, tuple) else np.asarray(part).nbytes

    c = symmetric(rng, N)
    stream = itertools.cycle([c + noise(rng, N, 0.1) for _ in range(50)])
    for method, columns in METHODS.values():
        state = method.init(bf.random_basis(N, columns, rng=rng))
        sizes = []
        for _ in range(2):
            for operator in itertools.islice(stream, 120):
                state, _ = method.step(operator, state)
            sizes.append(max(size(state), size(method.step(next(stream), state)[0])))
        assert sizes[1] <= 1.5 * sizes[0]
