"""Plots take a Recorder, its records or a Result, draw what they hold, and return the Axes."""

import sys

import numpy as np
import pytest

import bracketflow as bf
from bracketflow import plot
from bracketflow.monitor import SubspaceChange, error_bars
from cases import symmetric

pyplot = pytest.importorskip("matplotlib.pyplot")

TIMELINES = [
    plot.eigenvalues,
    plot.background,
    plot.residuals,
    plot.subspace_change,
    plot.lyapunov,
    plot.certificate,
]
STEPS, K = 30, 2


@pytest.fixture(autouse=True)
def _quiet():
    pyplot.switch_backend("Agg")
    yield
    pyplot.close("all")


@pytest.fixture
def run(rng):
    method = bf.EigenTracker()
    c = np.diag([9.0, 5.0, 1.0, 1.0, 0.5])
    stream = [c + 0.1 * symmetric(rng, 5) + t * np.eye(5) for t in range(STEPS)]
    recorder = bf.Recorder(measures={**error_bars(method), "change": SubspaceChange()})
    start = method.init(bf.random_basis(5, K, rng=rng))
    result = bf.run(method, stream, start, monitors=[recorder])
    return recorder, result


def axes():
    return pyplot.subplots()[1]


@pytest.mark.parametrize("draw", TIMELINES)
def test_draws_on_the_axes_it_is_given(draw, run):
    recorder, _ = run
    given = axes()
    assert draw(recorder, given) is given
    assert given.lines
    assert given.get_xlabel() == "step"
    assert given.get_ylabel()
    assert draw(recorder.records, axes()).lines[0].get_ydata() == pytest.approx(
        given.lines[0].get_ydata(), nan_ok=True
    )


@pytest.mark.parametrize("draw", TIMELINES)
def test_makes_axes_when_it_is_given_none(draw, run):
    assert draw(run[0]).figure is not None


def test_tracks_are_the_recorded_ones_with_their_bands(run):
    recorder, _ = run
    drawn = plot.eigenvalues(recorder, axes())
    values = recorder.column("eigenvalues")
    assert len(drawn.lines) == K
    for i, line in enumerate(drawn.lines):
        assert np.array_equal(line.get_ydata(), values[:, i])
    assert len(drawn.collections) == K
    assert [t.get_text() for t in drawn.get_legend().get_texts()] == ["vector 1", "vector 2"]
    heights = np.concatenate([path.vertices[:, 1] for path in drawn.collections[0].get_paths()])
    edges = values[:, 0] + recorder.column("eigenvalue_errors")[:, 0]
    assert np.isin(edges[np.isfinite(edges)], heights).all()


def test_background_can_be_taken_off(run):
    recorder, _ = run
    drawn = plot.eigenvalues(recorder, axes(), above="unseen")
    expected = recorder.column("eigenvalues") - recorder.column("unseen")[:, None]
    assert np.array_equal(drawn.lines[0].get_ydata(), expected[:, 0], equal_nan=True)
    # The background rises by 1 a step: taken off, the settled tracks are level.
    assert np.ptp(expected[STEPS // 2 :, 0]) < 1 < np.ptp(recorder.column("eigenvalues")[:, 0])


def test_a_wide_background_gets_a_logarithmic_axis(run):
    recorder, _ = run
    records = [{**r, "background": 10.0**i} for i, r in enumerate(recorder.records)]
    assert plot.background(records, axes()).get_yscale() == "log"
    assert plot.background(recorder, axes()).get_yscale() == "linear"


def test_plain_recorder_suffices_for_all_but_change(rng):
    recorder = bf.Recorder()
    flow = bf.BrockettFlow((2, 1))
    bf.run(
        flow,
        [symmetric(rng, 5)] * 9,
        flow.init(bf.random_basis(5, 2, rng=rng)),
        monitors=[recorder],
    )
    for draw in TIMELINES:
        if draw is not plot.subspace_change:
            assert draw(recorder, axes()).lines
    with pytest.raises(ValueError, match=r"no 'change': record it with .*SubspaceChange\(\)"):
        plot.subspace_change(recorder, axes())


def test_certificate_shows_proved_angles(rng):
    c = np.diag([9.0, 5.0, 1.0, 0.5])
    recorder = bf.Recorder()
    method = bf.EigenTracker()
    bf.run(method, [c] * 12, method.init(bf.random_basis(4, 2, rng=rng)), monitors=[recorder])
    drawn = plot.certificate(recorder, axes())
    proved = [bf.certificates.certify_record(r).angles for r in recorder.records]
    last = drawn.lines[0].get_ydata()[-1]
    assert last == pytest.approx(proved[-1][0])
    assert np.isnan(drawn.lines[0].get_ydata()[0]) or proved[0][0] < np.inf


@pytest.mark.parametrize("draw", [plot.eigenvalues, plot.residuals, plot.certificate])
def test_results_are_drawn_over_their_vectors(draw, run):
    drawn = draw(run[1], axes())
    assert drawn.get_xlabel() == "vector"
    assert list(drawn.lines[0].get_xdata()) == [1, 2]


def test_ensembles_are_drawn_side_by_side(rng):
    recorder = bf.Recorder()
    flow = bf.BrockettFlow((2, 1))
    c = symmetric(rng, 5, ensemble=(3,))
    result = bf.run(
        flow,
        [c] * 5,
        flow.init(bf.random_basis(5, 2, rng=rng, ensemble=(3,))),
        monitors=[recorder],
    )
    assert len(plot.eigenvalues(recorder, axes()).lines) == 6
    assert len(plot.residuals(result, axes()).lines) == 3


def test_misuse_is_explained(run):
    with pytest.raises(ValueError, match="holds no records"):
        plot.residuals(bf.Recorder(), axes())
    with pytest.raises(ValueError, match="a Result holds one moment: pass the Recorder"):
        plot.background(run[1], axes())
    with pytest.raises(ValueError, match="no 'nonsense'"):
        plot.eigenvalues(run[0], axes(), above="nonsense")


def test_missing_matplotlib_names_the_install_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'bracketflow\[cli\]'"):
        plot.residuals(run[0])
