"""Smoothness constants, admissible steps and the decrease that a step is certain to bring."""

from .hypotheses import Real, count, non_negative, positive, require


def gradient_lipschitz(norm: Real, n: Real) -> Real:
    """L_grad = (2√n + 8)‖C_e‖₂²  [thm:lipschitz_constant_G, rem:constants]."""
    positive(norm=norm)
    count(1, n=n)
    return (2 * n**0.5 + 8) * norm**2


def sharp_gradient_lipschitz(radius: Real) -> Real:
    """L_grad = 10r² for every n, r = ‖C_e‖₂ or the half spread  [thm:lipschitz_constant_G].

    Sharper than the paper: ‖Ω‖₂ ≤ 2r² takes the place of ‖Ω‖_F ≤ 2√n r².
    """
    positive(radius=radius)
    return 10 * radius**2


def descent_constant(norm: Real, n: Real) -> Real:
    """L_C = (4√n + 8)‖C_e‖₂²  [eq:LC_def, lem:descent, rem:constants]."""
    positive(norm=norm)
    count(1, n=n)
    return (4 * n**0.5 + 8) * norm**2


def sharp_descent_constant(radius: Real) -> Real:
    """L_C = 12r² for every n, r = ‖C_e‖₂ or the half spread  [lem:descent, thm:sigma_immunity].

    Sharper than the paper: |⟨Ω, Q′ − Ξ⟩| ≤ ‖Ω‖₂‖Q′ − Ξ‖_* ≤ 2r² t‖Ξ‖_F².
    """
    positive(radius=radius)
    return 12 * radius**2


def admissible_step(constant: Real) -> Real:
    """η = 1/L, where the guaranteed decrease is largest  [cor:step_size, thm:sigma_immunity].

    The paper calls it the maximal stable step; it is a sufficient one. See ``local_step_edge``.
    """
    positive(constant=constant)
    return 1 / constant


def local_step_edge(radius: Real) -> Real:
    """η < 2/(2r)² is the exact condition for minimisers to attract, r the half spread.

    From DT_η = I − η Hess f and max Hess f = (λ_max − λ_min)²  [lem:discrete_linearization,
    lem:hessian_global_min]; the printed 1/L_C is 11.7 times smaller for λ = 15, …, 1.
    """
    positive(radius=radius)
    return 2 / (2 * radius) ** 2


def guaranteed_decrease(step: Real, constant: Real, generator_norm: Real) -> Real:
    """f(M_k) − f(M_{k+1}) ≥ η(1 − ηL/2)‖Ω_k‖_F²  [lem:descent, lem:discrete_descent].

    The paper asks for η < 1/L; its proof gives the inequality for every η, so that we ask for what
    makes it useful, 0 < η < 2/L  [rem:cayley_failure].
    """
    positive(step=step, constant=constant)
    non_negative(generator_norm=generator_norm)
    require(step * constant < 2, "step", step, f"no decrease is known from 2/L = {2 / constant!r}")
    return step * (1 - step * constant / 2) * generator_norm**2


def path_energy_bound(step: Real, constant: Real, level: Real) -> Real:
    """Σ_k ‖Ω_k‖_F² ≤ f(M_0)/(η(1 − ηL/2))  [lem:single_limit, thm:global]."""
    non_negative(level=level)
    return level / guaranteed_decrease(step, constant, 1.0)


def deviation_lipschitz(norm: Real) -> Real:
    """|√f(M) − √f(N)| ≤ √2‖C_e‖₂‖M − N‖_F  [lem:discrete_iss_recursion, eq:y_lipschitz_D]."""
    non_negative(norm=norm)
    return 2**0.5 * norm


def lyapunov_lipschitz(norm: Real, n: Real) -> Real:
    """L_f = 2√n‖C_e‖₂²  [lem:f_lipschitz]."""
    non_negative(norm=norm)
    count(1, n=n)
    return 2 * n**0.5 * norm**2


def clean_map_lipschitz(step: Real, norm: Real) -> Real:
    """Λ_η = 1 + 8η‖C_e‖₂², the Lipschitz constant of T_η  [lem:clean_lipschitz]."""
    non_negative(step=step, norm=norm)
    return 1 + 8 * step * norm**2


def local_inverse_bound(step: Real, norm: Real) -> Real:
    """‖DT_η(M)[H]‖_F ≥ (1 − 8η‖C_e‖₂²)‖H‖_F > 0: T_η is a local diffeomorphism.

    Needs 8η‖C_e‖₂² < 1 only, so that the sharp 1/(12‖C_e‖₂²) is covered too  [lem:local_diffeo].
    """
    positive(step=step, norm=norm)
    require(8 * step * norm**2 < 1, "step", step, f"take less than {1 / (8 * norm**2)!r}")
    return 1 - 8 * step * norm**2


def raw_norm_slowdown(raw_norm: Real, norm: Real) -> Real:
    """(‖C_k‖₂/‖C_e‖₂)²: how many times more steps η = c/‖C_k‖₂² takes than η = c/‖C_e‖₂².

    The paper says that this choice does not degrade convergence [subsec:cayley]; the trajectory is
    free of σ² at a given η, but this η is not, and the slowdown grows like σ⁴. The paper's reason
    ‖C_k‖₂ ≥ ‖C_e‖₂ needs C_k ≥ 0: diag(1, 1, −1) has 1 < 4/3. (‖C_k‖₂ ≥ r always holds.)
    """
    positive(raw_norm=raw_norm, norm=norm)
    return (raw_norm / norm) ** 2
