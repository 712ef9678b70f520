"""Each formula at one point, worked out by hand from the paper: loose bounds cannot drift."""

from contextlib import suppress
from itertools import product
from math import e, exp, log, pi, sqrt

import numpy as np
import pytest

from bracketflow import theory

# ‖C_e‖ = 3, n = 4, g = 2, δ = 1, η = 0.01, L = 100, Ū = 0.5 throughout
VALUES = [
    ("commutator_bound", (3, 5), 30),
    ("generator_bound", (3, 4), 36),
    ("generator_spectral_bound", (3,), 18),
    ("input_bound", (3, 0.5), 6.5),
    ("generator_lipschitz", (3,), 72),
    ("rotation_lipschitz", (3,), 6),
    ("cayley_path_bounds", (0.5, 4), (2, 4, 8)),
    ("step_length_bound", (0.01, 4), 0.04),
    ("truncation_error", (0.5, 2, 4), 2 * 3 * 0.125),
    ("sharp_truncation_error", (0.5, 2, 4), 0.25),
    ("truncation_radius", (4,), 2 / 16),
    ("sharp_truncation_radius", (0.01, 3), 0.09),
    ("orthogonality_defect", (0.5, 2), 2**-6),
    ("orthogonality_defect", (0.5, 3), 2 * 2**-4 - 2**-8),
    ("orthogonality_defect", (0.5, 1), 2 * 2**-2 + 2**-4),
    ("shift_leak", (10, 3, 0.05), 6.5),
    ("gradient_lipschitz", (3, 4), 108),
    ("sharp_gradient_lipschitz", (3,), 90),
    ("descent_constant", (3, 4), 144),
    ("sharp_descent_constant", (3,), 108),
    ("admissible_step", (4,), 0.25),
    ("local_step_edge", (0.5,), 2),
    ("guaranteed_decrease", (0.01, 100, 2), 0.02),
    ("path_energy_bound", (0.01, 100, 0.5), 100),
    ("deviation_lipschitz", (3,), 3 * sqrt(2)),
    ("lyapunov_lipschitz", (3, 4), 36),
    ("clean_map_lipschitz", (0.01, 3), 1.72),
    ("local_inverse_bound", (0.01, 3), 0.28),
    ("raw_norm_slowdown", (6, 3), 4),
    ("separation_bound", (2, 0.5), 2 - sqrt(2)),
    ("entry_threshold", (2, 1), 1 / (2 * sqrt(2))),
    ("dissipation_floor", (2, 3), 24),
    ("dissipation_ceiling", (3, 2), 144),
    ("level_contraction", (0.01, 100, 1), 0.99),
    ("deviation_contraction", (0.01, 100, 1), 0.995),
    ("iss_step", (2, 0.01, 100, 1, 3, 0.5), 0.995 * 2 + 0.015 * sqrt(2)),
    ("noise_ball", (3, 1, 0.5), 3 * sqrt(2)),
    ("noise_ball_from_noise", (3, 1, 0.5), 6 * sqrt(2) * 6.5),
    ("iss_envelope", (2, 2, 0.01, 100, 1, 3, 0.5), 0.995**2 * 2 + 3 * sqrt(2)),
    ("flow_input", (3, 0.5, 0.6), 0.6),
    ("flow_noise_ball", (3, 1, 0.5, 0.6), 1.8 * sqrt(2)),
    ("flow_envelope", (1, 2, 1, 3, 0.5, 0.6), 2 / e + 1.8 * sqrt(2)),
    ("post_entry_steps", (0.1, 2, 1, 0.01, 100, 3, 0), 200 * log(1 / (0.2 * sqrt(2)))),
    ("growth_floor", (2, 3), 9),
    ("growth_ceiling", (3, 2), 72),
    ("distance_bound", (2, 0.5), 1 / (2 - 0.5 * sqrt(2))),
    ("minimum_hessian_bounds", (2, 3), (4, 36)),
    ("sharp_noise_ball", (1, 0.5), 0.5 / sqrt(2)),
    ("sharp_iss_step", (2, 0.01, 100, 1, 0.5), 1.98 + 0.00125),
    ("brockett_constant", (3, 5), 30),
    ("brockett_dissipation_floor", (1, 3, 4), 4.5),
    ("brockett_level_step", (1, 0.01, 100, 3, 4, 0.5), 1 - 0.0225 + 0.00125),
    ("brockett_deviation_step", (1, 0.01, 50, 3, 4, 0.5), 1 - 0.01125 + 0.025),
    ("brockett_input_bound", (3, 0.5), 1.5 * sqrt(2)),
    ("brockett_input_limit", (2, 4), 2),
    ("brockett_noise_ball", (2, 4, 2), (sqrt(2), sqrt(2))),
    ("brockett_noise_ball", (2, 4, 1.2), (sqrt(0.4), sqrt(3.6))),
    ("spread_bound", (2, 3, 0.25), 14),
    ("spread_floor", (2, 3), 6),
    ("spread_floor", (7, 3), 7),
    ("haar_overlap", (3, 1, 0.5), 0.25),
    ("haar_overlap", (2, 1, 0.5), 0.5),
    ("guard_contraction", (2,), 0),
    ("guard_contraction", (4,), sqrt(5 / 6)),
    ("guard_target", (2,), 0.25),
    ("guard_step", (2, 2, 2, 0.1), 0.25 + 0.05 / sqrt(8) + 0.1 / sqrt(2)),
    ("guard_step", (2, 2, 2, 4), (2 + 4 * sqrt(2)) / 8 + 4 / sqrt(2)),
    ("guard_noise_ball", (2, 4), 4 / sqrt(2)),
    ("guard_noise_limit", (2, 18), 1),
    ("guard_entry_steps", (1, 8 / e, 2), 2),
    ("decaying_step", (3, 2, 5), 0.25),
    ("rate_constant", (2, 200, 100, 1, 0.25, 0), 4 * 100 * 0.25 / 2),
    ("rate_constant", (2, 200, 100, 1, 0.25, 3), 600),
    ("rate_bound", (2, 3, 10), 2),
    ("sample_complexity", (0.1, 100, 1, 0.25), 50 / 0.1 - 200),
    ("printed_sample_complexity", (0.1, 3, 2, 4), 90),
    ("input_variance_bound", (3, 0.5, 2), 338),
    ("input_bias_bound", (3,), 6),
    ("sampled_background", (2, 4, 9), 2 * sqrt(2)),
    ("mean_bound", (1, 2, 0.01, 100, 1, 3, 0.5), 0.995 * 2 + 3 * sqrt(2)),
    ("bernstein_excess", (exp(-1), 0.01, 1, 3, 5, 2), 3 * sqrt(2) * (1 + 0.04)),
    ("chebyshev_tail", (2, 0.01, 1, 3, 5), 18 * 25 * 0.01 / (0.5 * 4)),
    ("chebyshev_excess", (0.25, 0.01, 1, 3, 5), 3 * sqrt(2) * 5 * sqrt(0.08)),
    ("uniform_failure", (0.1, 9), 0.01),
    ("givens_profile", (5, 2, pi / 4), 1),
    ("saddle_curvature", (2,), -16),
    ("curvature_floor", (2, 1, 4), 1 / 12),
    ("block_floor", (2, 1, 4), 1 / (2 * sqrt(12))),
    ("preservation_radius", (2, 1, 4, 3), 1 / (96 * sqrt(12))),
    ("escape_curvature", (2, 1, 4), 15 / 384),
    ("escape_steps", (0.5, 4, 8, 1), 3),
    ("printed_escape_steps", (0.5, 4, e, 1), 1),
    ("tracking_gain", (2, 0.01, 3), 0.01 * 2.72),
    ("invariance_threshold", (2, 1, 3), 1 / 24),
    ("levy_tail", (3, 4, 3, 0.5), 2 * exp(-2)),
    ("separation_tail", (1, 4, 3, 0.5), 8 * exp(-0.5 / 4 * 4 * 9 / 9)),
    ("separation_quantile", (8 / e**4, 4, 3, 0.5), 2 * sqrt(2)),
    ("printed_separation_quantile", (8 / e**4, 4, 3, 1), 4),
    ("gradient_perturbation_bound", (4, 3, 0.5), 12),
    ("critical_count", (5, 2), 80),
    ("subspace_contraction", (3, 1, 2), 0.6),
    ("largest_background", (0.6, 3, 1), 2),
    ("angle_steps", (0.5, 8, 1), 3),
    ("subspace_steps_floor", (3, 1, 2, e, 1), 1.5),
    ("oja_effective_step", (0.5, 2), 0.25),
    ("oja_contraction", (0.5, 3, 1, 2), 2.5 / 3.5),
    ("oja_steps_floor", (0.5, 3, 1, 2, e, 1), 2.5),
    ("normal_part_floor", (5, 3, 2), 8),
]


@pytest.mark.parametrize(("function", "arguments", "value"), VALUES)
def test_the_formulas_have_the_printed_values(function, arguments, value):
    assert getattr(theory, function)(*arguments) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("function", "arguments", "_"), VALUES)
def test_no_formula_turns_bad_arguments_into_a_number(function, arguments, _):
    """NaN raises or stays NaN; −1, 0 and ∞ raise or give a real, non-negative value."""
    for index, bad in product(range(len(arguments)), (np.nan, -1.0, 0.0, np.inf)):
        broken = [*arguments[:index], bad, *arguments[index + 1 :]]
        with suppress(ValueError, TypeError):
            result = np.asarray(getattr(theory, function)(*broken))
            assert np.all(np.isnan(result)) if np.isnan(bad) else np.all(np.isreal(result))
            assert np.isnan(bad) or function == "saddle_curvature" or np.all(result >= 0)


# logarithms, exponentials and counts are NumPy's
NUMPY_ONLY = """post_entry_steps sample_complexity bernstein_excess givens_profile escape_steps
printed_escape_steps tracking_gain levy_tail separation_tail separation_quantile
printed_separation_quantile critical_count haar_overlap
guard_contraction guard_step guard_noise_limit guard_noise_ball guard_entry_steps
angle_steps subspace_steps_floor oja_steps_floor"""
PLAIN = [row for row in VALUES if row[0] not in NUMPY_ONLY.split()]


@pytest.mark.parametrize(("function", "arguments", "value"), PLAIN)
def test_plain_arithmetic_takes_tensors(function, arguments, value):
    torch = pytest.importorskip("torch")
    tensors = [torch.full((2,), argument, dtype=torch.float64) for argument in arguments]
    if function in ("truncation_error", "sharp_truncation_error", "orthogonality_defect"):
        tensors[1] = arguments[1]  # the order decides by its parity
    result = getattr(theory, function)(*tensors)
    parts, numbers = (result, value) if isinstance(value, tuple) else ([result], [value])
    for part, number in zip(parts, numbers, strict=True):
        assert torch.is_tensor(part)
        assert part.tolist() == pytest.approx([number, number])
