"""The core's promises as figures: exactness under any background, orders, time ratios.

    python benchmarks/core.py            every point, about four minutes
    python benchmarks/core.py 1 4        some of them

Each line prints a measured figure beside its bound. Times are ratios within one run.
"""

from __future__ import annotations

import itertools
import sys
import time
import tracemalloc

import numpy as np
from scipy import sparse
from scipy.linalg import expm

import bracketflow as bf

EPS = np.finfo(np.float64).eps
BACKGROUNDS = (0.0, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0)


def report(what, figure, bound=None):
    verdict = "" if bound is None else ("  ok" if figure <= bound else "  MISSED")
    limit = "" if bound is None else f"  (at most {bound:.4g})"
    print(f"  {what:<66s} {figure:>10.4g}{limit}{verdict}", flush=True)


def protocol(seeds, n=10):
    """One (C, M0) a seed: C = Q diag(n … 1) Qᵀ, the stream draws Q, then M0."""
    pairs = []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        q = bf.random_basis(n, rng=rng)
        pairs.append((q * np.arange(n, 0, -1.0) @ q.T, bf.random_basis(n, rng=rng)))
    signal, start = (np.stack(parts) for parts in zip(*pairs, strict=True))
    return 0.5 * (signal + signal.mT), start


def centred_norm(n):
    """‖C_e‖₂ of diag(n … 1)."""
    return (n - 1) / 2


def point_1_steps_of_the_protocol():
    signal, start = protocol(range(42, 47))
    stop = [bf.lyapunov_below(1e-6), bf.max_steps(30_000)]
    for name, retraction, mean in (
        ("Cayley", bf.cayley, 1594.2),
        ("polar", bf.polar, 1594.2),
        ("QR", bf.qr, 1599.6),
    ):
        flow = bf.DoubleBracketFlow(step=0.1 / centred_norm(10) ** 2, retraction=retraction)
        # All eight backgrounds side by side: members (background, seed).
        stack = signal + np.reshape(BACKGROUNDS, (-1, 1, 1, 1)) * np.eye(10)
        basis = np.broadcast_to(start, stack.shape)
        steps = bf.run(flow, itertools.repeat(stack), flow.init(basis), stop=stop).state.steps
        same = bool(np.all(steps == steps[0]))
        print(
            f"  {name:<8s} steps {steps[0].mean():.1f} ± {steps[0].std():.1f} "
            f"(expected {mean}), identical for all σ²: {same}"
        )


def trajectory_difference(signal, start, shifts, retraction, steps, dtype=np.float64):
    """max_t ‖M_t(σ²) − M_t(0)‖_F per member, and the last bases of the shifted runs."""
    n = signal.shape[-1]
    identity = np.eye(n)
    flow = bf.DoubleBracketFlow(step=0.1 / centred_norm(n) ** 2, retraction=retraction)
    plain = flow.init(start.astype(dtype))
    other = plain
    worst = np.zeros(start.shape[0])
    clean = signal.astype(dtype)
    for level in itertools.islice(shifts, steps):
        observed = (signal + level * identity).astype(dtype)
        plain, _ = flow.step(clean, plain)
        other, _ = flow.step(observed, other)
        gap = np.linalg.norm(plain.basis - other.basis, axis=(-2, -1))
        worst = np.maximum(worst, gap)
    return worst, other.basis, observed


def objective(basis, signal):
    h = basis.astype(float).mT @ signal @ basis.astype(float)
    return 0.5 * np.sum((h - h * np.eye(h.shape[-1])) ** 2, axis=(-2, -1))


def information_limit(observed, signal):
    """f of `eigh` of the rounded observation: what its digits still hold."""
    return objective(np.linalg.eigh(observed)[1], signal)


def point_2_invariance(steps=4000):
    protocol_seeds, fresh_seeds = protocol(range(42, 47)), protocol(range(1000, 1040))
    signal, start = (np.concatenate(p) for p in zip(protocol_seeds, fresh_seeds, strict=True))
    unit = EPS / centred_norm(10)
    impulses = 10 ** np.random.default_rng(7).uniform(0, 9, steps)
    scenes = [(f"{s:.0e}", s, itertools.repeat(s)) for s in (1e3, 1e6, 1e9, 1e12, 1e14)]
    for name, retraction in (
        ("Cayley", bf.cayley),
        ("Neumann 2", bf.neumann(2)),
        ("Neumann 3", bf.neumann(3)),
        ("Neumann 4", bf.neumann(4)),
    ):
        for label, largest, shifts in [*scenes, ("impulses", impulses.max(), iter(impulses))]:
            worst, last, observed = trajectory_difference(signal, start, shifts, retraction, steps)
            units = worst / (unit * largest)
            report(f"{name:<9s} σ² = {label:<8s} protocol seeds, worst, units", units[:5].max(), 25)
            report(
                f"{name:<9s} σ² = {label:<8s} 40 fresh seeds, median, units",
                np.median(units[5:]),
                8,
            )
            if label != "impulses":
                limit = np.maximum(1e-15, 20 * information_limit(observed, signal))
                ratio = objective(last, signal) / limit
                report(
                    f"{name:<9s} σ² = {label:<8s} final f / bound, protocol seeds",
                    ratio[:5].max(),
                    1,
                )
                report(
                    f"{name:<9s} σ² = {label:<8s} final f / bound, fresh, median",
                    np.median(ratio[5:]),
                    1,
                )
    for level in (1e3, 1e4, 1e5, 1e6):
        _, last, observed = trajectory_difference(
            signal, start, itertools.repeat(level), bf.cayley, steps, np.float32
        )
        ratio = objective(last, signal) / information_limit(observed, signal)
        report(f"float32   σ² = {level:.0e}  final f / that of eigh, median", np.median(ratio), 30)
        report(f"float32   σ² = {level:.0e}  final f / that of eigh, protocol", ratio[:5].max(), 30)


def stiefel_problem(n=50, k=5, seed=42):
    rng = np.random.default_rng(seed)
    q = bf.random_basis(n, rng=rng)
    signal = q * np.arange(n, 0, -1.0) @ q.T
    return 0.5 * (signal + signal.T), bf.random_basis(n, k, rng=rng)


def point_3_stiefel():
    signal, start = stiefel_problem()
    flow = bf.BrockettFlow(weights=(5, 4, 3, 2, 1), step=1e-3)
    stack = np.stack([signal, signal + 1e4 * np.eye(50)])
    state = flow.init(np.stack([start, start]))
    worst = 0.0
    for _ in range(5000):
        state, _ = flow.step(stack, state)
        worst = max(worst, float(np.linalg.norm(state.basis[0] - state.basis[1])))
    report("St(5, 50): trajectory difference, σ² = 1e4 against 0", worst, 2e-12)
    state = flow.init(start)
    loud = signal + 1e6 * np.eye(50)
    for _ in range(100_000):
        state, _ = flow.step(loud, state)
    defect = np.linalg.norm(state.basis.T @ state.basis - np.eye(5))
    report("St(5, 50): ‖XᵀX − I‖ after 100,000 steps at σ² = 1e6", defect, 1e-13)


def point_4_identities():
    rng = np.random.default_rng(42)
    worst = max(givens_profile_error(rng) for _ in range(20))
    report("Givens profile f(Me^tΞ) = f − b² sin²2t, error / (eps·f)", worst, 8)
    for name, retraction, exact, order in (
        ("Cayley", bf.cayley, exponential, 3),
        ("polar", bf.polar, geodesic, 3),
        ("QR", bf.qr, geodesic, 2),
    ):
        for kind, k in (("SO(8)", 8), ("St(3, 8)", 3)):
            basis = bf.random_basis(8, k, rng=rng)
            slope = retraction_slope(retraction, exact, basis, *tangent(rng, basis))
            print(f"  {name:<7s} {kind:<9s} error slope {slope:.3f} (expected {order})")
    report("Stiefel gradient against central differences, relative", gradient_error(rng), 1e-8)


def givens_profile_error(rng, n=8):
    """max over t of |f(Me^tΞ) − (f − b² sin²2t)|/(eps·f) at a degenerate block (0, 1)."""
    start = bf.random_basis(n, rng=rng)
    rayleigh = rng.standard_normal((n, n))
    rayleigh = rayleigh + rayleigh.T
    rayleigh[1, 1] = rayleigh[0, 0]
    signal = start @ rayleigh @ start.T
    signal = 0.5 * (signal + signal.T)
    f, b = bf.lyapunov(start, signal), rayleigh[0, 1]
    errors = []
    for t in np.linspace(0, np.pi, 41):
        turn = np.eye(n)
        turn[:2, :2] = [[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]
        profile = f - b**2 * np.sin(2 * t) ** 2
        errors.append(abs(bf.lyapunov(start @ turn, signal) - profile))
    return max(errors) / (EPS * f)


def tangent(rng, basis):
    """A random (K, Z) of unit generator norm ‖Ω‖₂ at `basis`."""
    n, k = basis.shape
    rotation = rng.standard_normal((k, k))
    rotation = rotation - rotation.T
    normal = rng.standard_normal((n, k))
    normal = None if k == n else normal - basis @ (basis.T @ normal)
    size = np.linalg.norm(ambient_generator(basis, rotation, normal), 2)
    return rotation / size, None if normal is None else normal / size


def ambient_generator(basis, rotation, normal):
    """Skew n × n Ω with ΩX = XK + Z."""
    omega = basis @ rotation @ basis.T
    return omega if normal is None else omega + normal @ basis.T - basis @ normal.T


def exponential(basis, rotation, normal):
    """exp(Ω)X: what Cayley follows; the geodesic itself on SO(n)."""
    return expm(ambient_generator(basis, rotation, normal)) @ basis


def geodesic(basis, rotation, normal):
    """Geodesic of the embedded metric on St(k, n) (Edelman, Arias, Smith 1998): polar's."""
    if normal is None:
        return exponential(basis, rotation, None)
    k = basis.shape[1]
    velocity = basis @ rotation + normal
    block = np.block([[rotation, -velocity.T @ velocity], [np.eye(k), rotation]])
    return np.hstack([basis, velocity]) @ expm(block)[:, :k] @ expm(-rotation)


def retraction_slope(retraction, exact, basis, rotation, normal):
    errors = []
    for t in (1e-1, 1e-2):
        move = (t * rotation, None if normal is None else t * normal)
        errors.append(np.linalg.norm(retraction(basis, *move) - exact(basis, *move)))
    return np.log10(errors[0] / errors[1])


def gradient_error(rng, n=12, k=3):
    signal, _ = stiefel_problem(n, k)
    basis = bf.random_basis(n, k, rng=rng)
    weights = np.array([3.0, 2.0, 1.0])
    flow = bf.BrockettFlow(weights=weights, step=1e-9)
    _, probe = flow.step(signal, flow.init(basis))
    gradient = 2 * probe.residual * weights + basis @ (
        probe.rayleigh * (weights[None, :] - weights[:, None])
    )
    objective = lambda x: np.sum((signal @ x) * x * weights)  # noqa: E731
    worst = 0.0
    for _ in range(20):
        rotation, normal = tangent(rng, basis)
        h = 1e-5
        ahead = objective(exponential(basis, h * rotation, h * normal))
        behind = objective(exponential(basis, -h * rotation, -h * normal))
        slope = np.sum(gradient * (basis @ rotation + normal))
        worst = max(worst, abs((ahead - behind) / (2 * h) - slope) / np.linalg.norm(gradient))
    return worst


def bare_step(signal, basis, eta, identity):
    """Algorithm 1 as one would write it by hand, exact Cayley, no checks."""
    image = signal @ basis
    a = basis.mT @ image
    d = a.diagonal(axis1=-2, axis2=-1)
    omega = (d[..., None, :] - d[..., :, None]) * a
    half = 0.5 * eta * omega
    return basis @ np.linalg.solve(identity - half, identity + half)


def ratio_of_times(ours, bare, repeats=9, count=200):
    """Median over repeats of the ratio of two loops timed back to back."""
    ratios = []
    for _ in range(repeats):
        seconds = []
        for loop in (bare, ours):
            begin = time.perf_counter()
            loop(count)
            seconds.append(time.perf_counter() - begin)
        ratios.append(seconds[1] / seconds[0])
    return float(np.median(ratios)), seconds[0] / count * 1e6


def point_5_time_of_a_step():
    signal, start = protocol(range(100), n=15)
    eta = 0.1 / centred_norm(15) ** 2
    flow = bf.DoubleBracketFlow(step=eta)
    identity = np.eye(15)
    for name, c, m, bound, count in (
        ("100 seeds stacked", signal, start, 1.6, 100),
        ("one problem", signal[0], start[0], 4.0, 2000),
    ):
        operator = bf.as_operator(c)

        def ours(count, operator=operator, m=m):
            state = flow.init(m)
            for _ in range(count):
                state, _ = flow.step(operator, state)

        def bare(count, c=c, m=m):
            basis = m
            for _ in range(count):
                basis = bare_step(c, basis, eta, identity)

        ratio, micro = ratio_of_times(ours, bare, count=count)
        report(f"n = 15, {name}: step / bare NumPy step ({micro:.0f} µs)", ratio, bound)
    try:
        import torch
    except ImportError:
        print("  torch is not installed: no comparison")
        return
    state = flow.init(start)
    tensors = flow.init(torch.from_numpy(start))
    observed = signal + 1e3 * identity
    for _ in range(200):
        state, _ = flow.step(observed, state)
        tensors, _ = flow.step(torch.from_numpy(observed), tensors)
    gap = np.abs(state.basis - tensors.basis.numpy()).max()
    report("torch against NumPy after 200 steps, largest difference", gap, 1e-12)


def sparse_symmetric(n, row_entries, rng):
    half = row_entries // 2
    rows = np.repeat(np.arange(n), half)
    columns = rng.integers(0, n, n * half)
    upper = sparse.csr_array((rng.standard_normal(n * half), (rows, columns)), shape=(n, n))
    return (upper + upper.T).tocsr()


def point_6_large_and_sparse(n=100_000, k=10):
    rng = np.random.default_rng(0)
    matrix = sparse_symmetric(n, 20, rng)
    start = bf.random_basis(n, k, rng=rng)
    for name, step in (("Constant", 1e-3), ("Adaptive", bf.Adaptive())):
        flow = bf.BrockettFlow(weights=tuple(range(k, 0, -1)), step=step)
        state = flow.init(start)

        def ours(count, flow=flow, state=state):
            for _ in range(count):
                state, _ = flow.step(matrix, state)

        def bare(count, state=state):
            for _ in range(count):
                matrix @ state.basis

        ratio, micro = ratio_of_times(ours, bare, repeats=7, count=5)
        report(f"n = 100,000, k = 10, {name}: step / product ({micro / 1e3:.0f} ms)", ratio, 2.5)
    tracemalloc.start()
    flow.step(matrix, state)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    report("peak memory of a step in n × k blocks", peak / (8 * n * k), 12)


POINTS = {
    "1": ("Steps of the paper's protocol", point_1_steps_of_the_protocol),
    "2": ("Trajectory difference in units of eps·σ²/‖C_e‖₂, 4,000 steps", point_2_invariance),
    "3": ("Stiefel", point_3_stiefel),
    "4": ("Identities and orders", point_4_identities),
    "5": ("Time of a step", point_5_time_of_a_step),
    "6": ("Large and sparse", point_6_large_and_sparse),
}


if __name__ == "__main__":
    for key in sys.argv[1:] or POINTS:
        title, point = POINTS[key]
        print(f"{key}. {title}")
        point()
