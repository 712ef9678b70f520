import numpy as np
import pytest

from bracketflow import theory

SHAPES = [(2, 3), (4,), (2, 2, 1), (2, 1, 1, 1), (5, 3)]


def rotation(n, i, j, angle):
    turn = np.eye(n)
    turn[[i, j], [i, j]] = np.cos(angle)
    turn[i, j], turn[j, i] = np.sin(angle), -np.sin(angle)
    return turn


def test_critical_points_are_the_zeros_of_the_generator(problems, saddle):
    for blocks in [*SHAPES, (1, 1, 1)]:
        assert theory.is_critical(saddle(blocks))
    for p in problems:
        assert not np.any(theory.is_critical(p.rotated))
        diagonal = theory.diagonal_part(p.rotated)
        assert np.all(theory.is_critical(diagonal))


def test_a_critical_point_is_a_minimum_or_has_a_degenerate_block(saddle):
    assert theory.degenerate_block(np.diag([3.0, 1, 2])) is None
    for blocks in SHAPES * 20:
        rotated = saddle(blocks)
        i, j = theory.degenerate_block(rotated)
        assert i < j
        assert rotated[i, i] == rotated[j, j]
        assert rotated[i, j] != 0
    with pytest.raises(ValueError, match="tolerance"):
        theory.degenerate_block(np.array([[1.0, 1], [1, 0]]))


def test_f_follows_the_givens_profile_at_a_degenerate_block(saddle, equal):
    angles = np.linspace(0, np.pi / 2, 101)
    for blocks in SHAPES * 5:
        rotated = saddle(blocks)
        i, j = theory.degenerate_block(rotated)
        turned = np.array(
            [theory.rotated_operator(rotated, rotation(len(rotated), i, j, t)) for t in angles]
        )
        level = theory.lyapunov(rotated)
        profile = theory.givens_profile(level, rotated[i, j], angles)
        equal(theory.lyapunov(turned), profile)
        assert profile[50] == pytest.approx(level - rotated[i, j] ** 2)  # t = π/4


def test_the_printed_sign_of_the_turned_entry_is_that_of_the_opposite_turn(problems, equal):
    """The appendix has A_jj − A_ii for Ξ = E_ij − E_ji; the entry grows with A_ii − A_jj."""
    for p in problems:
        angle = 0.3
        rotated = p.rotated / p.norm[:, None, None]
        args = rotated[:, 0, 0], rotated[:, 1, 1], rotated[:, 0, 1]
        there = theory.rotated_operator(rotated, rotation(p.n, 0, 1, angle))[:, 0, 1]
        back = theory.rotated_operator(rotated, rotation(p.n, 0, 1, -angle))[:, 0, 1]
        equal(theory.givens_entry(*args, angle), there)
        equal(theory.printed_givens_entry(*args, angle), back)
        assert np.abs(there - back).max() > 0.1


def test_the_second_derivative_along_givens_is_the_hessian_form(problems, equal):
    for p in problems:
        direction = theory.givens_direction(p.n, 0, p.n - 1)
        form = np.sum(theory.hessian(p.rotated, direction) * direction, (-2, -1))
        equal(theory.givens_curvature(p.rotated, 0, p.n - 1) / p.norm**2, form / p.norm**2)


def test_every_saddle_is_strict_with_the_promised_curvature(saddle, not_above):
    for blocks in SHAPES * 400:
        rotated = saddle(blocks)
        entry = rotated[theory.degenerate_block(rotated)]
        lowest = np.linalg.eigvalsh(theory.hessian_matrix(rotated))[0]
        not_above(lowest, theory.saddle_curvature(entry))
        not_above(theory.largest_block_bound(rotated), entry**2)


def saddles_above(saddle, wanted=2000):
    """Saddles with distinct eigenvalues and f ≥ (g − δ)²/8, δ = g/2."""
    while wanted:
        for blocks in SHAPES:
            rotated = saddle(blocks)
            gap = float(theory.spectral_gap(rotated))
            if gap > 0 and theory.lyapunov(rotated) >= (gap / 2) ** 2 / 8:
                wanted -= 1
                yield rotated, gap
                if not wanted:
                    return


def test_saddles_above_the_entry_level_have_an_explicit_negative_curvature(saddle, not_above):
    for rotated, gap in saddles_above(saddle):
        n = len(rotated)
        lowest = np.linalg.eigvalsh(theory.hessian_matrix(rotated))[0]
        not_above(lowest, -theory.curvature_floor(gap, gap / 2, n))
        block = abs(rotated[theory.degenerate_block(rotated)])
        not_above(theory.block_floor(gap, gap / 2, n), block)


def test_the_curvature_persists_within_its_radius(saddle, skew, frobenius, not_above):
    for rotated, gap in saddles_above(saddle, 60):
        n, norm = len(rotated), float(theory.trace_free_norm(rotated))
        i, j = theory.degenerate_block(rotated)
        radius = theory.preservation_radius(gap, gap / 2, n, norm)
        turn = skew(50, n)
        # ‖Cay(X) − I‖ ≤ ‖X‖ and the geodesic to Cay(X) is no longer than ‖X‖
        bases = theory.cayley(turn * radius / frobenius(turn)[:, None, None])
        curvature = theory.givens_curvature(theory.rotated_operator(rotated, bases), i, j)
        floor = theory.block_floor(gap, gap / 2, n)
        not_above(curvature, -6 * floor**2, norm**2)


def test_the_printed_escape_steps_are_too_few_and_the_corrected_ones_suffice():
    for rate in (0.05, 0.3, 1.0):  # ηγ/2 = x
        step, curvature, radius, start = 1.0, 2 * rate, 1.0, 1e-6
        printed = theory.printed_escape_steps(step, curvature, radius, start)
        corrected = theory.escape_steps(step, curvature, radius, start)
        assert start * (1 + rate) ** np.ceil(printed) < radius
        assert start * (1 + rate) ** np.ceil(corrected) >= radius * (1 - 1e-12)
        assert corrected <= 4 / (step * curvature) * np.log(radius / start)
    ratio = theory.escape_steps(1, 0.1, 1.0, 0.01) / theory.printed_escape_steps(1, 0.1, 1.0, 0.01)
    assert ratio == pytest.approx(1.025, abs=5e-4)


def test_the_escape_radius_is_the_smaller_of_its_two(saddle):
    args = 1.0, 0.5, 10, 4.5
    curvature = theory.escape_curvature(*args[:3])
    assert curvature == pytest.approx(15 / 32 * 0.25 / 90)
    for constant in (1e-6, 1e6):
        radius = theory.escape_radius(*args, constant)
        options = theory.preservation_radius(*args), curvature / (16 * constant)
        assert radius == min(options)


def test_escape_needs_a_start_inside_the_radius():
    with pytest.raises(ValueError, match="start"):
        theory.escape_steps(0.1, 0.1, 1.0, 2.0)
    with pytest.raises(ValueError, match="start"):
        theory.printed_escape_steps(0.1, 0.1, 1.0, 0.0)
    with pytest.raises(ValueError, match="separation"):
        theory.curvature_floor(1.0, 2.0, 5)
