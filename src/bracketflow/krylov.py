"""A fixed operator, σ² aside: the solver behind `decompose`.

The leading k < n: thick-restart Lanczos with full reorthogonalisation, which keeps

    C S = S T + w bᵀ,        [S, w] orthonormal,

and a search for what one Krylov space cannot hold, further copies of its eigenvalues. The full
basis: `eigh` of the one product that shows the whole matrix.

Which eigenvalues may be missed
-------------------------------
Where the k leading Ritz values have converged, the relation stays as it is, L = S, and a second
chain w_0 = z, w_1, … is run from a random unit vector z on what is outside of L,

    C̃ = P (C + σ w wᵀ) P,        P = I − L Lᵀ,        σ = bᵀ(μ − T)⁻¹b.

C̃ − μ is the Schur complement of T − μ in C − μ. So C has as many eigenvalues above μ as T and C̃
together (Haynsworth): one that was missed is an eigenvalue of C̃ above μ, with an eigenvector u
that has nothing to do with z. With T and b now those of the second chain, C̃ S = S T + w bᵀ and

    uᵀw_{j+1} = uᵀw_j · d_j / β_j,        d_j = μ − α_j − bᵀ(μ − T)⁻¹ b,

so |uᵀz| ≤ Π β_j / d_j, because no overlap is above 1 (and a rounding of ε in every product adds at
most Σ ε / d_j · Π_{i<j} β_i / d_i). This is measured while the chain runs. Some
d_j ≤ 0 if and only if a Ritz value is above μ (Sturm): something was missed and has been found.
Otherwise a random z is that close to orthogonal to u with probability at most |uᵀz| √(2n/π), the
density of one coordinate of a random unit vector at 0 being at most √(n/2π). L need not have
converged: the more it holds, the further the rest of the spectrum is below μ, the shorter is the
chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import inf, pi
from typing import Any, TypeVar

import numpy as np

from bracketflow.core import (
    Array,
    ObservationError,
    Probe,
    Result,
    State,
    Status,
    contiguous,
    epsilon,
    least_squared,
    namespace,
    to_host,
)
from bracketflow.driver import read_off, run
from bracketflow.geometry import orthonormal_columns, random_columns
from bracketflow.observation import advance, centre, multiplied, observe, refuse_bad
from bracketflow.oracles import Operator
from bracketflow.sharding import over_rows
from bracketflow.stopping import max_steps as steps_at_most
from bracketflow.stopping import residual_below, residual_status

MISSED = 1e-6
"""Probability of a missed eigenvalue with which the search ends."""
COARSEST = 1e-7
"""Residuals beside the spread at which the search begins, even where `tol` asks for less: copies
cannot be told from neighbours that are closer than the residuals. Where rounding hides more than
this, or `tol`, from a search, nothing is called converged."""
IN_CACHE = 2**20
"""Numbers that S may hold in any case (8 MB): few restarts for small n. Beyond, 3k + 20 columns."""

CHECKED = 20
"""Convergence is looked at after every 1 + m/20 products: `eigh` of a large T takes longer than a
product."""

T = TypeVar("T")
Steps = Generator[Array, Array, T]  # yields a block of columns, is sent its image


# The full basis ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Eigh:
    """The method X → X V with V = eigh(H), descending: exact after one step if nothing moves."""

    def init(self, basis: Array, rng: Any = None) -> State:
        """State at `basis`."""
        zero: Any = np.zeros(basis.shape[:-2], dtype=np.int64) if basis.ndim > 2 else 0
        return State(basis, zero, zero)

    def step(self, operator: Any, state: State) -> tuple[State, Probe]:
        """One product with all n columns."""
        probe = observe(operator, state)
        xp = namespace(state.basis)
        turn = xp.flip(xp.linalg.eigh(probe.rayleigh)[1], axis=-1)
        return advance(state, probe, orthonormal_columns(state.basis @ turn)), probe


def full_basis(operator: Operator, n: int, *, tol: float, max_steps: int) -> Result:
    """All eigenvectors: one product with I gives C, its `eigh` X; a second one measures X."""
    like = np.empty(0) if operator.like is None else operator.like
    xp = namespace(like)
    identity = xp.eye(n, dtype=like.dtype, device=like.device)
    basis = contiguous(xp.broadcast_to(identity, (*operator.ensemble, n, n)))
    method = _Eigh()
    stop = [residual_below(tol), steps_at_most(max_steps)]
    return run(method, itertools.repeat(operator), method.init(basis), stop=stop)


# The leading k ----------------------------------------------------------------------------------


def leading(
    operator: Operator, n: int, k: int, *, tol: float, max_steps: int, shifts: bool, rng: Any
) -> Result:
    """The k < n largest eigenvalues and their vectors, member by member of an ensemble."""
    rng = np.random.default_rng(rng)
    like = np.empty(0) if operator.like is None else operator.like
    members = list(np.ndindex(operator.ensemble))
    solvers = [_Lanczos(n, k, tol, max_steps, shifts, rng, like) for _ in members]
    _in_step(operator, members, [solver.solve() for solver in solvers])
    if not operator.ensemble:
        return solvers[0].result()
    return _stacked(operator.ensemble, [solver.result() for solver in solvers], solvers)


def _in_step(operator: Operator, members: list[tuple[int, ...]], runs: list[Steps[None]]) -> None:
    """Send every run the images of the blocks that it asks for, of all runs in one product."""
    blocks = [next(each) for each in runs]
    xp, open_ = namespace(blocks[0]), set(range(len(runs)))
    while open_:
        if not operator.ensemble:
            images = [multiplied(operator, blocks[0])]
        else:
            width = max(blocks[i].shape[-1] for i in open_)
            wide = [_padded(block, width) for block in blocks]
            stack = xp.reshape(xp.stack(wide), (*operator.ensemble, *wide[0].shape))
            images = list(xp.reshape(multiplied(operator, stack), (-1, *wide[0].shape)))
        for i in sorted(open_):
            try:
                blocks[i] = runs[i].send(contiguous(images[i][:, : blocks[i].shape[-1]]))
            except StopIteration:
                open_.remove(i)
            except ObservationError as error:
                if not operator.ensemble:
                    raise
                said = str(error).partition(": ")[2]
                raise ObservationError(error.reason, said, (members[i],)) from error


def _padded(block: Array, width: int) -> Array:
    xp = namespace(block)
    columns = block[:, : min(width, block.shape[-1])]
    missing = (block.shape[0], width - columns.shape[-1])
    return xp.concat([columns, xp.zeros(missing, dtype=block.dtype, device=block.device)], axis=-1)


def _stacked(ensemble: tuple[int, ...], results: list[Result], solvers: list[_Lanczos]) -> Result:
    """One result of all members."""
    xp = namespace(results[0].state.basis)

    def array(values: list[Any]) -> Array:
        stack = xp.stack([xp.asarray(value) for value in values])
        return xp.reshape(stack, (*ensemble, *stack.shape[1:]))

    def host(values: list[Any], dtype: Any) -> np.ndarray:
        return np.array(values, dtype=dtype).reshape(ensemble)

    probes = [solver.probe for solver in solvers]
    names = ("basis", "centred", "background", "rayleigh")
    basis, image, level, rayleigh = (array([getattr(p, name) for p in probes]) for name in names)
    state = State(
        basis,
        host([r.state.steps for r in results], np.int64),
        host([r.state.matvecs for r in results], np.int64),
        host([r.state.seen for r in results], np.float64),
    )
    probe = Probe(basis, image, level, rayleigh, int(basis.shape[-1]))
    status = host([r.status for r in results], object)
    missed = host([r.missed_probability for r in results], np.float64)
    return replace(read_off(probe, state, status, rotate=True), missed_probability=missed)


@dataclass
class _Lanczos:
    """One problem: what is asked, the relation C S = S T + w bᵀ, and what has been measured.

    Vectors are rows, (m, n), so that each is contiguous. All that is small, and every decision, is
    in double precision on the host. T is relative to the level of the first product.
    """

    n: int
    k: int
    tol: float
    max_steps: int
    shifts: bool
    rng: np.random.Generator
    like: Array

    rows: Array = None
    """S and behind it w, (capacity + 1, n)."""
    size: int = 0
    """Rows of S, m."""
    T: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    b: np.ndarray = field(default_factory=lambda: np.zeros(0))
    locked: int = 0
    """Rows of S that a search leaves out: those of L; 0 outside of a search."""

    reference: Array = None
    """The first vector multiplied, (n,), and"""
    reference_image: Array = None
    """its image at level 0, (n,)."""
    level: float = 0.0
    """s of the first product: the zero of T."""
    largest_level: float = 0.0
    """Largest |s| of a product."""
    dropped: float = 0.0
    """Largest ρ of a Ritz vector whose part of b was dropped."""
    checked: bool = False
    """Whether symmetry has been looked at."""
    seen: float = 0.0
    """Largest spread of Ritz values, in units of the operator."""
    steps: int = 0
    matvecs: int = 0

    border: Array = None
    """While a search runs: w of the relation C L = L T + w bᵀ, (n,),"""
    coupling: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """its b, and"""
    push: float = 0.0
    """σ = bᵀ(μ − T)⁻¹b, with which it acts on all that is outside of L."""
    forgettable: bool = False
    """Whether that is so little that w is left out of the relation."""

    missed: float = 1.0
    """Probability that an eigenvalue was missed,"""
    lowest: float = inf
    """where the k-th Ritz value stays above this,"""
    resolution: float = 0.0
    """and the one missed is further than this above it."""
    blind: bool = False
    """Whether rounding hides from a search what it looks for."""
    probe: Any = None
    status: Any = None

    # Products ---------------------------------------------------------------------------------

    def multiply(self, w: Array) -> Steps[tuple[Array, float]]:
        """(C − s₀ − α) w with α = wᵀ(C − s₀)w, and α.

        Where σ² may have moved, the reference column r is multiplied along, added to w: for
        x = w ± r the product is C x − τ x with an unknown τ, and rᵀC x = (C r)ᵀx is known.
        """
        first = self.reference is None
        mixed = self.shifts and not first
        x = w
        if mixed:
            overlap = float(over_rows(self.reference @ w))
            sign = 1.0 if overlap >= 0 else -1.0
            x = w + sign * self.reference
        probe = yield from self.observe(x[:, None])
        y, level = probe.centred[:, 0], float(probe.background)
        if first:
            self.reference, self.reference_image, self.level = w + 0, y, level
            return y + 0, 0.0
        if not mixed:
            return y, level - self.level
        known, found = over_rows(self.reference_image @ x, self.reference @ y)
        tau = float(known - found) / (overlap + sign)
        y = y + tau * w + sign * (tau * self.reference - self.reference_image)
        alpha = float(over_rows(w @ y))
        return y - alpha * w, alpha

    @property
    def rounding(self) -> float:
        """What rounding leaves of a product where nothing should be: 2·eps·√n·(|s| + spread)."""
        size = 2 * self.eps * self.n**0.5 * (self.largest_level + self.seen)
        return float(max(size, least_squared(self.like)))

    @property
    def eps(self) -> float:
        return epsilon(self.like)

    def extend(self) -> Steps[tuple[float, float]]:
        """One product: w becomes a row of S, and what of C w is new the next w. Gives α, β."""
        if self.size == self.capacity:
            self.restart()
        m, w = self.size, self.rows[self.size]
        y, alpha = yield from self.multiply(w)
        foretold = self.b
        if self.border is not None:
            along = float(over_rows(self.border @ w))
            y = y + self.push * along * (self.border - along * w)
            alpha += self.push * along**2
            foretold = self.b.copy()
            foretold[: self.locked] = self.coupling * along
        y = y - self.small(foretold) @ self.rows[:m]
        correction, beta = self.orthogonalise(y, m + 1)
        yield from self.check_symmetry(float(np.linalg.norm(correction[:m])))
        column = foretold + correction[:m]
        alpha += correction[m]
        T = np.empty((m + 1, m + 1))
        T[:m, :m], T[:m, m], T[m, :m], T[m, m] = self.T, column, column, alpha
        self.T, self.b, self.size = T, np.zeros(m + 1), m + 1
        if beta <= self.rounding:
            self.draw()
            return alpha, beta
        self.b[m] = beta
        return alpha, beta

    def check_symmetry(self, surprise: float) -> Steps[None]:
        """Where SᵀC w is not the b that C S has foretold: one product with all rows, once.

        It refuses an operator that is not symmetric. One that moves passes, and fails to converge.
        """
        if self.checked or surprise <= self.eps**0.5 * self.seen + self.rounding + self.dropped:
            return
        self.checked = True
        yield from self.observe(contiguous(self.rows[: self.size + 1].mT))

    def observe(self, block: Array) -> Steps[Probe]:
        """The probe of a block of columns, refused where it is bad."""
        image = yield block
        self.matvecs += block.shape[-1]
        self.steps += 1
        with np.errstate(over="ignore", invalid="ignore"):
            probe, skew = centre(block, image)
            refuse_bad(probe, skew, self.seen if self.seen > 8 * self.rounding else 0.0)
        self.largest_level = max(self.largest_level, abs(float(probe.background)))
        return probe

    def orthogonalise(self, y: Array, count: int) -> tuple[np.ndarray, float]:
        """Put y, without its parts along the first rows, behind them: those parts, and ‖y‖."""
        rows, total = self.rows[:count], np.zeros(count)
        for _ in range(4):
            parts, square = over_rows(rows @ y, y @ y)
            y = y - parts @ rows
            along = np.asarray(to_host(parts), dtype=float)
            total += along
            left = float(square) - float(along @ along)
            # What rounding leaves along the rows is eps·‖parts‖: nothing beside what is left of y.
            if along @ along <= left:
                break
        norm = max(left, 0.0) ** 0.5
        if not np.isfinite(norm):
            raise ObservationError(
                "non-finite",
                "the product holds NaN or Inf, or overflows when multiplied with the basis: "
                "check the data, or scale the operator down",
            )
        if norm > 0 and count < len(self.rows):
            self.rows[count] = y / norm
        return total, norm

    def draw(self) -> None:
        """A random w, orthogonal to S, and b = 0."""
        if self.size == self.n:
            return
        self.b[:] = 0.0
        norm = 0.0
        while norm < 1e-3:
            z = random_columns(self.n, 1, rng=self.rng, like=self.like)[:, 0]
            z = z / float(over_rows(z @ z)) ** 0.5
            _, norm = self.orthogonalise(z, self.size)

    # Ritz vectors -----------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        return len(self.rows) - 1

    def small(self, values: np.ndarray) -> Array:
        """A small array of the host in the library, dtype and device of the rows."""
        xp = namespace(self.like)
        return xp.asarray(values, dtype=self.like.dtype, device=self.like.device)

    def ritz(self, first: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ritz values of the rows from `first` on, descending, coefficients, and bᵀ times these."""
        values, turn = np.linalg.eigh(self.T[first:, first:])
        turn = turn[:, ::-1].copy()  # PyTorch takes no negative strides
        return values[::-1], turn, self.b[first:] @ turn

    def compress(self, turn: np.ndarray, first: int = 0) -> None:
        """Replace the rows of S from `first` on by `turn`ᵀ times them; w stays the next one."""
        m, count = self.size, first + turn.shape[-1]
        self.rows[first:count] = self.small(np.ascontiguousarray(turn.T)) @ self.rows[first:m]
        self.rows[count] = self.rows[m]
        whole = np.zeros((m, count))
        whole[:first, :first] = np.eye(first)
        whole[first:, first:] = turn
        self.T = whole.T @ self.T @ whole
        self.T = 0.5 * (self.T + self.T.T)
        self.b, self.size = self.b @ whole, count

    def restart(self) -> None:
        """Keep the leading Ritz vectors, all that are asked for and half of the room beside."""
        _, turn, _ = self.ritz(self.locked)
        wanted = 0 if self.locked else self.k
        room = self.capacity - self.locked
        self.compress(turn[:, : wanted + (room - wanted) // 2], self.locked)

    def drop(self) -> None:
        """Forget w: another vector is to stand in its place."""
        self.dropped = max(self.dropped, float(np.max(abs(self.b), initial=0.0)))
        self.b[:] = 0.0

    # The search -------------------------------------------------------------------------------

    def lock(self, margin: float) -> float:
        """Make all of S, or what leaves three quarters of the room, the L of a search. Gives its μ.

        μ is above θ_k by half the margin at least, and as far from every Ritz value as may be.
        """
        room = self.capacity - self.k
        most = self.n if self.capacity == self.n else self.k + room // 4
        if self.size > most:
            self.compress(self.ritz()[1][:, :most])
        values, _, along = self.ritz()
        levels = values[self.k - 1] + margin * np.linspace(0.5, 1, self.k + 2)
        mu = levels[np.argmax(np.min(abs(values[:, None] - levels), axis=0))]
        self.locked, self.border = self.size, self.rows[self.size] + 0
        self.coupling, self.push = self.b, float(np.sum(along**2 / (mu - values)))
        self.forgettable = bool(_cost(values, along, mu, margin)[-1] <= 0.25 * margin)
        self.b = np.zeros(self.size)
        if self.forgettable:  # T is to be that of C: σ w wᵀ ≤ σ is taken off μ instead
            mu, self.push = mu - max(self.push, 0.0), 0.0
        return float(mu)

    def unlock(self) -> None:
        """End a search: S is L again, and the second chain beside it where w may be forgotten."""
        if self.forgettable:
            self.dropped = max(self.dropped, float(np.max(abs(self.coupling))))
        else:
            self.size = self.locked
            self.T, self.b = self.T[: self.size, : self.size], self.coupling
            self.rows[self.size] = self.border
        self.locked, self.border = 0, None

    def turn_to_found(self, mu: float, margin: float) -> Steps[None]:
        """End a search that has found something: its leading Ritz vector f becomes a row of S.

        Beside it are kept k rows of L, and others as long as w may be forgotten. By them and f one
        more Ritz value is above μ if fᵀC̃f still is without what the rows not kept have put into σ.
        If not, nothing would be gained, and the same found again: the chain from w goes on instead.
        """
        self.missed = 1.0
        if self.forgettable:
            self.unlock()
            return
        found_values, turn, _ = self.ritz(self.locked)
        found = self.small(turn[:, 0].copy()) @ self.rows[self.locked : self.size]
        share = float(over_rows(self.border @ found)) ** 2
        spent = self.size - self.locked
        self.unlock()
        values, turn, along = self.ritz()
        cost = np.append(0.0, _cost(values[self.k :], along[self.k :], mu, margin))
        kept = int(np.searchsorted(cost[1:], 0.25 * margin))
        if found_values[0] - share * (cost[-1] - cost[kept]) <= mu:
            for _ in range(spent):
                if self.steps < self.max_steps and self.size < self.n:
                    yield from self.extend()
            return
        self.compress(turn[:, : self.k + kept])
        self.drop()
        self.orthogonalise(found, self.size)
        if self.steps < self.max_steps:
            yield from self.extend()

    def look(self, margin: float) -> Steps[None]:
        """Run a chain from a random z outside of L, see the head of the module."""
        spheric = (2 * self.n / pi) ** 0.5
        # An eigenvalue that is closer to the k-th cannot be told from it by any number of looks.
        margin = max(margin, 4 * spheric * self.rounding)
        mu = self.lock(margin)
        self.draw()
        overlap, noise = 1.0, 0.0  # Π β / d, and what rounding adds to the bound
        inside = 0.0  # bᵀ(μ − T)⁻¹b of the chain
        chance = inf
        while chance * self.missed > MISSED and overlap > noise:
            if self.steps >= self.max_steps:
                self.unlock()
                return
            if self.size == self.capacity:
                self.restart()
                values, _, along = self.ritz(self.locked)
                inside = float(np.sum(along**2 / (mu - values)))
            alpha, beta = yield from self.extend()
            depth = mu - alpha - inside
            if depth <= 0:
                yield from self.turn_to_found(mu, margin)
                return
            noise += overlap * self.rounding / depth
            overlap *= beta / depth
            inside = beta**2 / depth
            # Once S is everything, nothing is left that could have been missed.
            chance = spheric * (overlap + noise) if self.size < self.n else 0.0
        self.unlock()
        self.lowest, self.resolution = mu - 2 * margin, margin
        self.blind = chance > 0.5
        self.missed *= min(1.0, chance)

    # The solution -----------------------------------------------------------------------------

    def solve(self) -> Steps[None]:
        """Grow the span until the leading k have converged, look elsewhere, measure."""
        room = max(3 * self.k + 20, min(self.n, IN_CACHE // self.n))
        start = random_columns(self.n, 1, rng=self.rng, like=self.like)
        xp = namespace(start)
        shape = (min(room, self.n) + 1, start.shape[0])
        self.rows = xp.zeros(shape, dtype=start.dtype, device=start.device)
        self.draw()
        while self.status is None:
            converged, margin = self.progress()
            searched = self.missed <= MISSED or self.blind
            if self.steps >= self.max_steps or (converged and searched):
                yield from self.measure(margin)
            elif not converged:
                for _ in range(1 + self.size // CHECKED):
                    if self.steps < self.max_steps and self.size < self.n:
                        yield from self.extend()
            elif self.size == self.n:
                self.missed = 0.0
            else:
                yield from self.look(margin)

    def progress(self) -> tuple[bool, float]:
        """Whether the k leading Ritz vectors have converged, and what can be told apart then."""
        if self.size == 0:
            return False, 0.0
        values, _, residuals = self.ritz()
        extent = values[0] - values[-1] + np.max(abs(residuals))
        self.seen = max(self.seen, float(extent))
        if self.size < self.k:
            return False, 0.0
        scale = values[0] - values[self.k - 1] if self.k > 1 else self.seen
        floor = 4 * self.eps * (self.largest_level + 4 * self.seen)
        margin = max(min(self.tol, COARSEST) * scale, floor)
        worst = float(np.max(abs(residuals[: self.k])))
        return worst <= 0.8 * margin or self.size == self.n, margin

    def measure(self, margin: float) -> Steps[None]:
        """One product with the k Ritz vectors: the probe of the result, and its status."""
        limit = self.steps >= self.max_steps
        while self.size < self.k:  # the limit came early: random columns fill up
            self.T, self.b = np.pad(self.T, (0, 1)), np.pad(self.b, (0, 1))
            self.size += 1
            self.draw()
        values, turn, _ = self.ritz()
        X = self.small(np.ascontiguousarray(turn[:, : self.k].T)) @ self.rows[: self.size]
        self.probe = probe = yield from self.observe(contiguous(X.mT))
        rayleigh, gram = (to_host(a).astype(float) for a in (probe.rayleigh, probe.residual_gram))
        measured, inside = np.linalg.eigh(rayleigh)
        squares = np.diagonal(inside.T @ gram @ inside)
        residuals = abs(squares) ** 0.5
        if self.missed > MISSED and limit:
            self.status = Status.STEP_LIMIT
        else:
            self.status = residual_status(self.state, probe, residuals, self.tol)
            rounding = float(probe.rounding_of(self.largest_level + self.seen))
            if self.status is None and residuals.max() <= rounding:
                self.status = Status.PRECISION_FLOOR
            told_apart = self.resolution <= max(self.tol, COARSEST) * self.seen
            if self.status is Status.CONVERGED and not (self.missed <= MISSED and told_apart):
                self.status = Status.PRECISION_FLOOR
        if self.status is None and limit:
            self.status = Status.STEP_LIMIT
        if self.status is not None:
            self.steps -= 1  # this product moved nothing
            return
        # The span has not told the truth: go on with what of the residuals it does not hold.
        if measured[0] + float(np.mean(values[: self.k])) < self.lowest:
            self.missed = 1.0
        if self.size == self.capacity:
            self.restart()
        direction = np.linalg.eigh(gram)[1][:, -1]
        self.drop()
        _, beta = self.orthogonalise(probe.residual @ self.small(direction), self.size)
        if beta <= self.rounding:
            self.draw()
            return
        along = over_rows(self.rows[self.size] @ probe.residual)
        coefficients = turn[:, : self.k] if len(turn) == self.size else np.eye(self.size, self.k)
        self.b = coefficients @ np.asarray(to_host(along), dtype=float)

    @property
    def state(self) -> State:
        """The columns measured."""
        return State(self.probe.basis, self.steps, self.matvecs, self.seen)

    def result(self) -> Result:
        """What was found."""
        result = read_off(self.probe, self.state, self.status, rotate=True)
        return replace(result, missed_probability=self.missed)


def _cost(values: np.ndarray, along: np.ndarray, mu: float, margin: float) -> np.ndarray:
    """What an eigenvalue at μ loses when parts of b are forgotten: partial sums of ρ²/(μ − θ)."""
    return np.cumsum(along**2 / np.maximum(mu - values, margin))
