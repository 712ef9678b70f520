"""The Krylov span of a signal that stands still: its relation, its basis, its roundings."""

import numpy as np
import pytest

import bracketflow as bf
from bracketflow.core import contracted
from bracketflow.observation import centre
from bracketflow.tracker import krylov, product
from bracketflow.tracker.span import Span, ritz_values, room, summed
from cases import symmetric

EPS = np.finfo(float).eps


def span_of(state):
    """The span of a state, all of S in its columns."""
    span = Span(*state.memory[1])
    return span._replace(columns=np.concatenate([span.columns, *span.tail], axis=-1), tail=())


def span_defects(c, state):
    """How far the span of a state is from C S = S T + Q Gᵀ with [S, Q] orthonormal."""
    span = span_of(state)
    both = np.concatenate([span.columns, span.pending], axis=-1)
    centred = c - span.level * np.eye(len(c))
    relation = span.columns @ span.rayleigh + span.pending @ span.coupling.T
    m = span.columns.shape[-1]
    defects = {
        "orthonormal": both.T @ both - np.eye(both.shape[-1]),
        "relation": centred @ span.columns - relation,
        "symmetric": span.rayleigh - span.rayleigh.T,
    }
    image = centred @ span.reference - span.image
    defects["reference"] = image if not len(span.turn) > m else 0 * image
    values = ritz_values(span)
    defects["basis"] = both[:, : len(span.turn)] @ span.turn - state.basis
    unseen = np.zeros((span.pending.shape[-1],) * 2)  # of Q with itself nothing is known
    known = np.block([[span.rayleigh, span.coupling], [span.coupling.T, unseen]])
    known = known[: len(span.turn), : len(span.turn)]
    defects["values"] = values - (span.turn * (known @ span.turn)).sum(axis=0)
    if len(span.turn) == m:  # the basis lies in S: it is, or waits for, the leading Ritz vectors
        values = np.sum(span.ritz * (span.rayleigh @ span.ritz), axis=0)
        defects["ritz"] = span.rayleigh @ span.ritz - span.ritz * values
        leading = np.linalg.eigvalsh(span.rayleigh)[::-1][: len(values)]
        defects["leading"] = np.sort(values)[::-1] - leading
        if not span.waited:
            defects["turn"] = span.turn - span.ritz
    return m, {name: np.abs(defect).max(initial=0) for name, defect in defects.items()}


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("gap", [0.0, 1.0])
def test_a_span_keeps_its_relation_whatever_the_background_does(static, k, gap, rng):
    n, level = 60, 0.0
    values = np.concatenate([10 + gap * np.arange(k, 0, -1), np.linspace(5, 0, n - k)])
    c = symmetric(rng, n, eigenvalues=values)
    tracker = bf.EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    sizes = []
    for _ in range(40 if gap else 130):  # each copy of a repeated eigenvalue takes a chain
        if not static:
            level = rng.uniform(0, 100)
        operator = bf.as_operator(c + level * np.eye(n), static=static)
        state, _ = tracker.step(operator, state)
        # The span is at the level of its first product: C is compared up to a multiple of I.
        span = span_of(state)
        rayleigh = span.columns.T @ c @ span.columns
        own = np.trace(rayleigh - span.rayleigh) / len(rayleigh)
        size, defects = span_defects(c, state._replace(memory=(None, span._replace(level=own))))
        # Some tens of products of a matrix of norm 115, and their sums.
        assert max(defects.values()) <= 1e4 * EPS * 115, defects
        sizes.append(size)
    assert max(sizes) <= room(k, static) + k
    truth = np.linalg.eigh(c)[1][:, ::-1][:, :k]
    assert bf.subspace_error(state.basis, truth) <= 1e-8


def even_stream(n, k, steps, rng, top=0.0):
    """States and probes of a spectrum without a gap, in which vectors are found slowly."""
    c = symmetric(rng, n, eigenvalues=np.linspace(10, 0, n))
    tracker = bf.EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    for _ in range(steps):
        operator = c + rng.uniform(0, top) * np.eye(n)
        following, probe = tracker.step(operator, state)
        yield c, state, probe, following
        state = following


def test_a_basis_waits_while_the_ritz_vectors_are_hardly_better(rng):
    waiting = 0
    for c, _, _, state in even_stream(400, 4, 60, rng):
        span = span_of(state)
        if not span.waited:
            continue
        waiting += 1
        of_basis, of_ritz = (
            centre(x, c @ x)[0].outside for x in (state.basis, span.columns @ span.ritz)
        )
        assert of_ritz**0.5 > krylov.BETTER * of_basis**0.5 * (1 - 1e-9)
    assert waiting > 30


def test_the_probe_of_a_basis_that_waits_is_that_of_a_product_with_it(rng):
    waiting = 0
    for c, state, probe, _ in even_stream(300, 3, 40, rng, top=1e3):
        if not state.steps or not span_of(state).waited:
            continue
        waiting += 1
        image = c @ state.basis
        exact, _ = centre(state.basis, image)
        # The rounding of some tens of products with a background of 1000.
        slack = 1e4 * EPS * 1e3
        assert np.abs(probe.rayleigh - exact.rayleigh).max() < slack
        assert np.abs(probe.residuals - exact.residuals).max() < slack
        assert np.abs(probe.residual - exact.residual).max() < slack
        reading = bf.EigenTracker().read(state)
        assert np.abs(reading.eigenvalue_errors - exact.residuals).max() < slack
    assert waiting > 15


@pytest.mark.parametrize("kind", ["even", "gap"])
@pytest.mark.parametrize("static", [False, True])
def test_a_span_stays_orthonormal_though_it_is_not_looked_at_all_the_time(
    kind, static, rng, monkeypatch
):
    looks = []
    leans = product._leans
    monkeypatch.setattr(product, "_leans", lambda *args: looks.append(leans(*args)) or looks[-1])
    n, k = 500, 4
    values = np.linspace(10, 0, n)
    if kind == "gap":
        values[:k] += 20
    c = np.diag(values)
    tracker = bf.EigenTracker()
    state = tracker.init(bf.random_basis(n, k, rng=rng))
    for _ in range(40):
        state, _ = tracker.step(bf.as_operator(c, static=static), state)
        span = span_of(state)
        both = np.concatenate([span.columns, span.pending], axis=-1)
        defect = np.abs(both.T @ both - np.eye(both.shape[-1])).max()
        assert defect < 512 * EPS  # what docs/theory.md promises, whatever the code's limit is
    assert any(looks)
    assert not all(looks)


@pytest.mark.parametrize("scale", [1e-20, 1e-21, 1e-22])
def test_a_signal_whose_squares_are_nothing_beside_a_background_that_has_some(scale, rng):
    """Directions that cannot be made orthonormal are none."""
    matrix, tracker = scale * symmetric(rng, 12), bf.EigenTracker()
    state = tracker.init(bf.random_basis(12, 3, rng=rng).astype(np.float32))
    for _ in range(20):
        observed = matrix + scale * rng.uniform(1e4, 1e5) * np.eye(12)
        state, _ = tracker.step(observed.astype(np.float32), state)
        assert np.abs(state.basis.T @ state.basis - np.eye(3)).max() < 1e-5


@pytest.mark.parametrize("n", [1, 7, 1024, 1025, 20_000])
def test_long_columns_are_summed_block_by_block(n, rng):
    left, right = rng.standard_normal((n, 3)), rng.standard_normal((n, 60))
    for a, b in ((left, right), (right, left), (right, right), (left, left)):
        scale = np.linalg.norm(a) * np.linalg.norm(b)
        assert np.abs(contracted(a, b) - a.T @ b).max() <= 4 * EPS * scale
        assert contracted(a, b).flags.c_contiguous
    mix = rng.standard_normal((3, 2)), rng.standard_normal((60, 2))
    whole = left @ mix[0] + right @ mix[1]
    assert np.abs(summed((left, mix[0]), (right, mix[1])) - whole).max() <= 100 * EPS * 60
    one = left[:, :1].copy()
    assert np.array_equal(summed((one, mix[0][:1]), (one, mix[0][:1])), 2 * one * mix[0][:1])


@pytest.mark.parametrize("static", [False, True])
def test_a_span_of_all_directions_is_exact(static, rng):
    c = symmetric(rng, 6)
    tracker = bf.EigenTracker()
    state = tracker.init(bf.random_basis(6, 2, rng=rng))
    for _ in range(12):
        level = 0.0 if static else rng.uniform(0, 10)
        state, probe = tracker.step(bf.as_operator(c + level * np.eye(6), static=static), state)
    span = span_of(state)
    assert probe.residuals.max() <= 1e-11
    assert not tracker.in_doubt(state)
    values = np.sort(ritz_values(span))[::-1]
    assert np.allclose(values - values.mean(), [0.5, -0.5], rtol=0, atol=1e-11)


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("warm", [False, True])
def test_a_span_begins_with_upright_columns(static, warm, rng):
    c = symmetric(rng, 30, eigenvalues=np.arange(30.0, 0, -1) ** 2)
    tracker = bf.EigenTracker()
    start = (
        np.linalg.eigh(c + 0.1 * symmetric(rng, 30))[1] if warm else bf.random_basis(30, rng=rng)
    )
    state, _ = tracker.step(bf.as_operator(c, static=static), tracker.init(start[:, -4:]))
    largest = np.abs(state.basis).argmax(axis=0)
    assert np.all(state.basis[largest, np.arange(4)] > 0)


def test_the_probe_of_a_signal_that_has_moved_shows_it(rng):
    tracker, before, after = bf.EigenTracker(), symmetric(rng, 30), symmetric(rng, 30)
    state = tracker.init(bf.random_basis(30, 4, rng=rng))
    for _ in range(20):
        state, probe = tracker.step(before, state)
    settled = probe.residuals.max()
    _, probe = tracker.step(after, state)
    assert probe.residuals.max() > 1e3 * settled
    assert probe.residuals.max() > 0.1
