"""The sensor-array demonstration: its mathematics, its contest, its page."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from bracketflow import demo
from bracketflow.baselines import QROja
from bracketflow.demo.array import directions, real_rows, real_steering, steering, unitary
from bracketflow.demo.bursts import INCREMENTAL, KNOWN, PLAIN, TRACKER, run_bursts
from bracketflow.demo.contest import OJA, OURS, PCA, STEPS, exact_background, follow
from bracketflow.demo.scene import scene
from bracketflow.demo.words import burst_words, figures
from bracketflow.geometry import random_basis
from bracketflow.tracker import EigenTracker

EPS = np.finfo(float).eps
ANGLES = np.array([-63.0, -5.0, 12.0, 41.0])


@pytest.fixture(scope="module")
def contest():
    return demo.run_demo(steps=60)


@pytest.mark.parametrize("n", [7, 8])
def test_the_unitary_transform_makes_plane_waves_real(n):
    q = unitary(n)
    np.testing.assert_allclose(q.conj().T @ q, np.eye(n), atol=n * EPS)
    transformed = q.conj().T @ steering(n, ANGLES)
    np.testing.assert_allclose(transformed.imag, 0, atol=8 * n * EPS)
    np.testing.assert_allclose(real_steering(n, ANGLES), transformed.real)


@pytest.mark.parametrize("n", [7, 8])
def test_real_rows_hold_the_forward_backward_average(n):
    rng = np.random.default_rng(0)
    z = rng.standard_normal((5, n)) + 1j * rng.standard_normal((5, n))
    forward = z.T @ z.conj() / len(z)
    averaged = (forward + forward[::-1, ::-1].conj()) / 2
    rows = real_rows(z)
    q = unitary(n)
    np.testing.assert_allclose(
        rows.T @ rows / len(rows), q.conj().T @ averaged @ q, atol=64 * n * EPS
    )


@pytest.mark.parametrize("n", [9, 16])
def test_directions_of_the_exact_subspace_are_exact(n):
    basis = np.linalg.qr(real_steering(n, ANGLES))[0]
    turned = basis @ random_basis(len(ANGLES), rng=0)
    # Degrees, and the four directions are well apart: a few hundred roundings are generous.
    np.testing.assert_allclose(directions(np.stack([basis, turned])), [ANGLES] * 2, atol=1e4 * EPS)


def test_batches_repeat_and_have_the_covariance_they_should():
    problem = replace(scene(steps=10), snapshots=4000)
    first, again = list(problem.batches()), list(problem.batches())
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    rows, t = first[5], 5
    n = problem.sensors
    waves = real_steering(n, problem.angles[t]) * np.sqrt(problem.powers)
    expected = waves @ waves.T + problem.floor[t] * np.eye(n)
    found = rows.T @ rows / len(rows)
    # Entries have variance at most 2·C_ii·C_jj/2b: six of their standard deviations.
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) / problem.snapshots)
    assert np.all(abs(found - expected) < 6 * scale)


def test_a_source_is_hidden_when_one_batch_cannot_show_it():
    problem = scene()
    alone = np.stack([np.linalg.eigh(r.T @ r)[1][:, -3:] for r in problem.batches()])
    errors = np.linalg.norm(problem.truth - alone @ (alone.mT @ problem.truth), axis=(-2, -1))
    assert errors[problem.hidden].min() > 0.5 > np.median(errors[~problem.hidden])


@pytest.mark.parametrize("draw", range(4))
def test_an_exact_background_does_not_change_the_angles(draw):
    problem, tracker = scene(steps=100, seed=draw), EigenTracker(3)
    plain = follow(tracker, problem).angles
    drowned = follow(tracker, problem, background=exact_background(100, draw)).angles
    # A product is rounded by eps·1e6; hidden sources make an angle up to a thousand times as
    # sensitive to it as the subspace of a clear one.
    assert np.max(abs(drowned - plain)) < np.degrees(1e3 * EPS * 1e6)


def test_every_contender_gets_the_same_snapshots_and_rivals_their_best_setting(contest):
    for name, track in contest.tracks.items():
        assert track.bases.shape == (60, 32, 3), name
        gram = track.bases.mT @ track.bases
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(3), gram.shape), atol=1e-12)
    tried = {step: follow(QROja(step), contest.scene) for step in STEPS}
    errors = {
        f"step {step:g}": replace(contest, tracks={OJA: track}).subspace_errors(OJA).mean()
        for step, track in tried.items()
    }
    assert contest.tracks[OJA].setting == min(errors, key=lambda setting: errors[setting])


def test_the_floor_is_the_mean_eigenvalue_outside_the_subspace(contest):
    problem, n, k = contest.scene, 32, 3
    inside = [
        np.sum((rows @ basis) ** 2) / len(rows) / k
        for rows, basis in zip(problem.batches(), problem.truth, strict=True)
    ]
    exact = replace(contest.tracks[OURS], levels=np.array(inside))
    found = replace(contest, tracks={OURS: exact}).floor
    # The mean of 2b(n − k) squared normals of variance σ²: six standard deviations of it.
    limit = 6 / np.sqrt(problem.snapshots * (n - k))
    np.testing.assert_allclose(found, problem.floor, rtol=limit)


def test_distances_of_the_true_eigenvectors_are_zero(contest):
    order = np.stack([reading.order for reading in contest.tracks[OURS].readings])
    back = np.argsort(order, axis=-1)[:, None, :]
    truth = np.take_along_axis(contest.scene.signal_eigenvectors, back, axis=-1)
    perfect = replace(contest, tracks={OURS: replace(contest.tracks[OURS], bases=-truth)})
    distances, bars = perfect.vector_errors
    assert distances.max() < 1e-7
    assert bars.shape == distances.shape


@pytest.mark.parametrize("draw", range(4))
def test_noise_bursts_hide_the_signal_from_all_but_the_tracker(draw):
    bursts = run_bursts(seed=draw)
    assert 0.2 < np.mean(bursts.noise > 1) < 0.4
    assert bursts.late(TRACKER) <= 1.3 * bursts.late(KNOWN)
    for name in (PLAIN, INCREMENTAL):
        assert bursts.late(name) > 5 * bursts.late(TRACKER)
    assert f"{bursts.late(TRACKER):.3f}" in burst_words(bursts)


def test_figures_are_those_of_the_tracks(contest):
    perfect = replace(contest.tracks[OURS], bases=contest.scene.truth)
    found = figures(replace(contest, tracks={OURS: perfect}), OURS)
    assert found.usual < 1e-9
    assert found.subspace < 1e-12
    assert (found.close, found.back) == (1.0, 0)
    lost = replace(perfect, bases=np.roll(contest.scene.truth, 16, axis=-2))
    found = figures(replace(contest, tracks={OURS: lost}), OURS)
    assert found.back is None


def test_the_page_is_whole_and_needs_no_network(contest, tmp_path):
    text = demo.write_page(contest, tmp_path / "new").read_text(encoding="utf-8")
    assert text.count("<svg") == 4
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    for name in contest.tracks:
        assert name in text
    _Balanced().feed(text)


class _Balanced(HTMLParser):
    """Fails on a tag that closes another one than the last opened."""

    VOID = frozenset(("meta", "link", "br"))

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_without_scikit_learn_the_others_run_and_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sklearn.decomposition", None)
    contest = demo.run_demo(steps=10)
    assert PCA not in contest.tracks
    assert "pip install 'bracketflow[sklearn]'" in contest.absent
    assert "bracketflow[sklearn]" in demo.write_page(contest, tmp_path).read_text(encoding="utf-8")


def test_without_matplotlib_the_page_names_the_extra(contest, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = demo.write_page(contest, tmp_path).read_text(encoding="utf-8")
    assert "<svg" not in text
    assert "pip install 'bracketflow[cli]'" in text


@pytest.mark.parametrize("steps", [0, 9, 2.5])
def test_too_few_batches_are_refused(steps):
    with pytest.raises((ValueError, TypeError), match="steps"):
        scene(steps=steps)
