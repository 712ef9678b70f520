"""The shared nouns: small array helpers on both libraries, and what a Probe says."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow import core
from bracketflow.core import BadObservation, Probe, Result, State, Status
from bracketflow.observation import observe
from cases import symmetric

EPS = np.finfo(float).eps
LIBRARIES = [np.asarray, torch.from_numpy]
SHAPES = [(), (3,), (2, 3)]


class Pair(NamedTuple):
    left: object
    right: object


# Helpers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("ensemble", SHAPES)
def test_inner_products_and_diagonals_are_those_of_every_member(library, ensemble, rng):
    a, b = (rng.standard_normal((*ensemble, 5, 4)) for _ in range(2))
    c = rng.standard_normal((*ensemble, 4, 4))
    inner, norm = core.inner(library(a), library(b)), core.frobenius_squared(library(a))
    columns = core.column_inner(library(a), library(b))
    diagonal, off = core.diagonal(library(c)), core.off_diagonal(library(c))
    assert np.shape(inner) == np.shape(norm) == ensemble
    for member in np.ndindex(ensemble):
        assert inner[member] == pytest.approx(np.trace(a[member].T @ b[member]), rel=1e-12)
        assert norm[member] == pytest.approx(np.linalg.norm(a[member]) ** 2, rel=1e-12)
        assert np.allclose(columns[member], np.diag(a[member].T @ b[member]), rtol=1e-12)
        assert np.array_equal(diagonal[member], np.diag(c[member]))
        assert np.array_equal(off[member], c[member] - np.diag(np.diag(c[member])))


@pytest.mark.parametrize("ensemble", SHAPES)
def test_conditions_of_members(ensemble):
    for library in LIBRARIES:
        some = library(np.asarray(np.arange(np.prod(ensemble, dtype=int)).reshape(ensemble) == 0))
        assert core.any_member(some) is True
        assert core.every_member(some) is (ensemble == ())
        assert core.any_member(~some) is (ensemble != ())
        assert core.every_member(some | ~some) is True


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_epsilon_and_identity_have_the_dtype_asked_for(dtype):
    for library in LIBRARIES:
        matrix = library(np.zeros((2, 5, 3), dtype=dtype))
        assert core.epsilon(matrix) == np.finfo(dtype).eps
        identity = core.identity_like(matrix)
        assert identity.dtype == matrix.dtype
        assert np.array_equal(identity, np.eye(3))


def test_the_common_identity_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        core.identity_like(np.zeros((3, 3)))[0, 0] = 2.0


@pytest.mark.parametrize("library", LIBRARIES)
def test_contiguous_is_row_by_row(library):
    array = core.contiguous(library(np.arange(6.0).reshape(2, 3)).mT)
    assert np.asarray(array).flags.c_contiguous
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_small_numbers_come_to_the_host():
    for value in (2, 2.0, np.float32(2), np.array(2.0), torch.tensor(2.0, requires_grad=True)):
        host = core.to_host(value)
        assert type(host) is np.ndarray
        assert host == 2


def test_arrays_stay_on_their_device():
    """The "meta" device holds no numbers, but says where an array would be."""
    like = torch.empty((2, 3, 3), device="meta", dtype=torch.float32)
    mask = np.array([True, False])
    for array in (
        core.identity_like(like),
        core.off_diagonal(like),
        core.select(mask, like, like + 1),
        core.select(mask, 1.0, like),
        bf.random_basis(3, like=like),
    ):
        assert array.device.type == "meta"
        assert array.dtype == torch.float32


# Members chosen ---------------------------------------------------------------------------------


def test_select_goes_member_by_member_through_nested_tuples(rng):
    mask = np.array([True, False, True])
    for library in LIBRARIES:
        a, b = (library(rng.standard_normal((3, 4, 2))) for _ in range(2))
        chosen = (Pair(a, (np.arange(3), None)), np.arange(3.0))
        other = (Pair(b, (10 + np.arange(3), None)), 10.0 + np.arange(3))
        (pair, numbers) = core.select(mask, chosen, other)
        assert type(pair) is Pair
        assert type(pair.right) is tuple
        assert type(pair.left) is type(a)
        assert np.array_equal(pair.left[0], a[0])
        assert np.array_equal(pair.left[1], b[1])
        assert np.array_equal(pair.left[2], a[2])
        assert pair.right[0].tolist() == [0, 11, 2]
        assert pair.right[1] is None
        assert numbers.tolist() == [0, 11, 2]


def test_select_takes_one_number_for_all_members():
    mask = np.array([True, False])
    assert core.select(mask, 1.0, np.array([3.0, 4.0])).tolist() == [1, 4]
    assert core.select(mask, np.array([3.0, 4.0]), 1.0).tolist() == [3, 1]
    assert core.select(mask, 1.0, 2.0).tolist() == [1, 2]
    assert core.select(mask, np.float64(1.0), np.float64(2.0)).tolist() == [1, 2]
    assert core.select(mask, torch.tensor([3.0, 4.0]), 1.0).tolist() == [3, 1]
    assert core.select(mask, 1.0, torch.tensor([3.0, 4.0])).tolist() == [1, 4]


def test_select_of_all_or_none_is_the_thing_itself():
    chosen, other = (np.zeros(2), None), (np.ones(2), 3)
    assert core.select(np.array([True, True]), chosen, other) is chosen
    assert core.select(np.array([False, False]), chosen, other) is other
    assert core.select(np.array(True), chosen, other) is chosen
    assert core.select(np.array(False), chosen, other) is other


def test_select_refuses_memories_of_different_length():
    with pytest.raises(ValueError, match="zip"):
        core.select(np.array([True, False]), (np.zeros(2),), (np.zeros(2), np.zeros(2)))


# Numbers and words ------------------------------------------------------------------------------


def test_whole_numbers_include_their_limits():
    assert core.whole_number(np.int32(3), "k", at_least=3) == 3
    assert core.whole_number(5, "k", at_least=1, at_most=5, limit="n") == 5
    assert type(core.whole_number(np.int64(3), "k", at_least=1)) is int
    with pytest.raises(ValueError, match=r"^k must be at least 1, got 0$"):
        core.whole_number(0, "k", at_least=1)
    with pytest.raises(ValueError, match=r"^k must be at least 1 and at most 5 \(n\), got 6$"):
        core.whole_number(6, "k", at_least=1, at_most=5, limit="n")
    with pytest.raises(TypeError, match=r"^k must be a whole number, got 2.0$") as caught:
        core.whole_number(2.0, "k", at_least=1)
    assert caught.value.__suppress_context__


def test_an_error_names_the_members_where_there_are_any():
    alone = bf.ObservationError("drowned", "too loud")
    assert str(alone) == "drowned observation: too loud"
    assert (alone.reason, alone.members) == ("drowned", ())
    several = bf.ObservationError("drowned", "too loud", ((0, 1), (2, 0)))
    assert str(several) == "drowned observation (ensemble members [(0, 1), (2, 0)]): too loud"
    assert several.members == ((0, 1), (2, 0))


def test_a_status_is_shown_by_its_name_and_its_value_is_advice():
    for status in Status:
        assert str(status) == status.name
        assert status.value.endswith(".")


# Probe ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("k", [1, 3, 6])
@pytest.mark.parametrize("ensemble", SHAPES)
def test_probe_is_what_the_formulas_say(library, k, ensemble, rng):
    n = 6
    c = symmetric(rng, n, ensemble=ensemble) + 40 * np.eye(n)
    x = bf.random_basis(n, k, rng=rng, ensemble=ensemble)
    probe = observe(library(c), State(library(x)))
    assert probe.is_square is (k == n)
    assert probe.matvecs == k
    for member in np.ndindex(ensemble):
        y = c[member] @ x[member]
        s = np.trace(x[member].T @ y) / k
        h = x[member].T @ y - s * np.eye(k)
        r = y - x[member] @ (x[member].T @ y)
        off = h - np.diag(np.diag(h))
        values = np.linalg.eigvalsh(h)
        norm = 0.0 if k == n else np.linalg.norm(r, 2)
        size = np.linalg.norm(h)
        expected = {
            "background": s,
            "rayleigh": h,
            "residual": r,
            "residual_gram": r.T @ r,
            "outside": np.linalg.norm(r) ** 2,
            "size": size,
            "extent": 2**0.5 * size + (0 if k == n else np.linalg.norm(r)),
            "rounding": 16 * EPS * (n * k) ** 0.5 * abs(s),
            "ritz_values": values,
            "residual_norm": norm,
            "range": values[-1] - values[0],
            "spread": values[-1] - values[0] + norm,
            "lyapunov": 0.5 * np.linalg.norm(off) ** 2 + (k < n) * np.linalg.norm(r) ** 2,
            "residuals": np.sqrt((off**2).sum(axis=0) + (k < n) * (r**2).sum(axis=0)),
        }
        for name, value in expected.items():
            found = np.asarray(getattr(probe, name))[member]
            tolerance = 0.0 if name == "rounding" else 1e-11  # the one that is far below 1
            assert np.allclose(found, value, rtol=1e-10, atol=tolerance), name


def test_a_probe_uses_the_gram_matrix_that_it_is_given(rng):
    probe = observe(symmetric(rng, 6), State(bf.random_basis(6, 2, rng=rng)))
    gram = np.diag([4.0, 9.0])
    given = Probe(probe.basis, probe.centred, probe.background, 0 * probe.rayleigh, 2, gram)
    assert given.residual_gram is gram
    assert given.outside == pytest.approx(13)
    assert given.lyapunov == pytest.approx(13)
    assert given.residual_norm == pytest.approx(3)
    assert given.residuals == pytest.approx([2, 3])
    assert given.extent == pytest.approx(13**0.5)


def test_a_probe_of_an_eigenbasis_has_no_residual_norm_of_rounding():
    """The Gram matrix of a vanishing residual may have eigenvalues below zero."""
    probe = observe(np.diag([3.0, 2.0, 1.0]), State(np.eye(3)[:, :2]))
    shaken = Probe(probe.basis, probe.centred, 2.5, probe.rayleigh, 2, -EPS * np.eye(2))
    assert shaken.residual_norm == 0
    assert shaken.spread == pytest.approx(1)


# State and Result -------------------------------------------------------------------------------


def test_a_state_starts_with_nothing():
    assert State("basis") == ("basis", 0, 0, 0.0, None, None)


def test_a_result_has_converged_where_its_status_says_so():
    def result(status):
        return Result(None, None, None, None, status, State(None), None)

    assert result(Status.CONVERGED).converged is True
    assert result(Status.MOVING).converged is False
    several = np.array([[Status.CONVERGED, Status.MOVING]], dtype=object)
    assert result(several).converged.dtype == bool
    assert result(several).converged.tolist() == [[True, False]]
    assert (result(Status.MOVING).bad, result(Status.MOVING).events) == ((), ())
    assert BadObservation(3, "drowned") == (3, "drowned")
