"""How much of a background reaches the vectors: every entry point, in units of eps·σ²/spread.

    python benchmarks/blindness.py              writes docs/blindness.md
    python benchmarks/blindness.py --quick      one seed instead of four, and only prints

Fails when something was decided otherwise that stands clear of rounding, or where nothing was, a
vector is further off than 25 units times spread/gap.
"""

import argparse
import itertools
import pathlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import bracketflow as bf
from bracketflow.certificates import rounding_bound
from bracketflow.estimators import StreamingPCA

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "blindness.md"
SEEDS = 4
SPREAD = 10.0
K = 3
NOISE = 0.02
ALLOWED = 25  # units, times spread/gap: what tests/test_contracts.py holds every method to
CLEAR = 1000  # times the rounding of the background: decisions about less than that may differ


# Signals and backgrounds ------------------------------------------------------------------------


def flat(n):
    """K eigenvalues above a bulk of equal ones, in which nothing is to be told apart."""
    return np.concatenate([[10.0, 8.0, 6.5], np.zeros(n - K)])


def linear(n):
    return np.linspace(SPREAD, 0, n)


SPECTRA = {"flat": flat, "linear": linear}


def gap(values, columns):
    """Smallest distance from one of the first eigenvalues to any other."""
    return np.min(-np.diff(values[: columns + 1]))


def generator(n, rng):
    half = rng.standard_normal((n, n))
    return (half - half.T) / np.linalg.norm(half - half.T, 2)


def turned(vectors, tangent):
    """The vectors after a small rotation: Cayley's."""
    eye = np.eye(len(vectors))
    return np.linalg.solve(eye - tangent / 2, (eye + tangent / 2) @ vectors)


def signals(kind, values, steps, rng):
    """Symmetric matrices: the same one, one that turns, or one that jumps in the middle."""
    n, vectors = len(values), bf.random_basis(len(values), rng=rng)
    tangent = 1e-3 * generator(n, rng)
    for t in range(steps):
        if kind == "drifting":
            vectors = turned(vectors, tangent)
        elif kind == "jumping" and t == steps // 2:
            vectors = bf.random_basis(n, rng=rng)
        signal = (vectors * values) @ vectors.T
        if kind != "still":
            noise = rng.standard_normal((n, n))
            signal = signal + NOISE * (noise + noise.T)
        yield (signal + signal.T) / 2


STREAMS = ("still", "drifting", "jumping")


def impulses(rng, t, top):
    return 10 ** rng.uniform(0, 12) if t % 10 == 5 else 1.0


BACKGROUNDS = {
    "constant": lambda rng, t, top: top,
    "swinging": lambda rng, t, top: top * rng.uniform(),
    "impulses": impulses,
}
PRECISIONS = {np.float64: 1e9, np.float32: 1e3}  # with the σ² of the first two


@dataclass(frozen=True)
class Scene:
    """One column of the table for one precision and seed."""

    values: np.ndarray
    kind: str
    background: str
    dtype: type
    seed: int

    def observations(self, steps):
        """Pairs of (C_t, σ_t²), C_t in double precision."""
        rng = np.random.default_rng([self.seed, 1])
        stream = signals(self.kind, self.values, steps, np.random.default_rng([self.seed, 2]))
        for t, signal in enumerate(stream):
            yield signal, self.level(rng, t)

    def level(self, rng, t):
        return float(BACKGROUNDS[self.background](rng, t, PRECISIONS[self.dtype]))

    def operator(self, signal, level):
        """C + σ²I as an array, or from every second seed as a product."""
        if self.seed % 2 == 0:
            return (signal + level * np.eye(len(signal))).astype(self.dtype)
        own, size = signal.astype(self.dtype), self.dtype(level)
        made = bf.as_operator(lambda x: own @ x + size * x, len(signal))
        made.like = np.empty(0, dtype=self.dtype)
        return made

    def start(self, k):
        rng = np.random.default_rng([self.seed, 3])
        return bf.random_basis(len(self.values), k, rng=rng).astype(self.dtype)

    def rounding(self, level):
        return np.finfo(self.dtype).eps * (level + SPREAD)

    def figure(self, apart, worst, level, otherwise=False, grain=0.0, refused=0):
        """Distances in units; `grain` is the least that anything was decided by."""
        unit = self.rounding(level) / SPREAD
        clear = CLEAR * self.rounding(level) <= (grain if self.kind == "still" else NOISE)
        return Figure(apart / unit, worst / unit, otherwise, clear, refused)

    @property
    def grain(self):
        """What stands clear of a background that is constant or swings: stop rules ask for that."""
        return CLEAR * self.rounding(PRECISIONS[self.dtype])

    @property
    def tolerance(self):
        """The same beside the spread."""
        return self.grain / SPREAD


@dataclass
class Figure:
    """What one pair of runs gives."""

    apart: float
    """|x_i − x'_i| at the end, in units,"""
    worst: float
    """and the largest at any step."""
    otherwise: bool
    """Whether anything was decided otherwise:"""
    clear: bool
    """something that stands clear of rounding."""
    refused: int


def distance(plain, loud):
    """max |x_i ∓ x'_i| over the columns of two arrays."""
    plain, loud = plain.astype(float), loud.astype(float)
    signs = np.where(np.sum(plain * loud, axis=0) < 0, -1.0, 1.0)
    return float(np.max(np.linalg.norm(plain - loud * signs, axis=0)))


# Entry points -----------------------------------------------------------------------------------


def stepped(method, columns, steps):
    """A method step by step, both runs side by side; `columns` of its basis, None for all."""

    def figure(scene):
        plain = loud = method.init(scene.start(columns))
        determined, largest, worst, refused = K, 0.0, 0.0, 0
        if columns is None and not np.any(scene.values[:-1] == scene.values[1:]):
            determined = len(scene.values)
        for signal, level in scene.observations(steps):
            try:
                loud, _ = method.step(scene.operator(signal, level), loud)
            except bf.ObservationError:
                refused += 1
                continue
            largest = max(largest, level)
            plain, _ = method.step(scene.operator(signal, 0.0), plain)
            leading = descending(plain.basis, signal)[:determined]
            worst = max(worst, distance(plain.basis[:, leading], loud.basis[:, leading]))
        own = loud.basis[:, descending(loud.basis, signal)[:determined]]
        apart = distance(plain.basis[:, leading], own)
        otherwise = remembered_otherwise(method, plain, loud)
        return scene.figure(apart, worst, largest, otherwise, refused=refused)

    return figure


def descending(basis, signal):
    """The columns by descending quotient: which of them the spectrum determines."""
    return np.argsort(-np.sum(basis * (signal @ basis), axis=0), kind="stable")


def remembered_otherwise(method, plain, loud):
    """Whether a tracker has another memory, by more than a hundredth."""
    if not hasattr(method, "read"):
        return False
    one, other = (float(np.max(method.read(state).memory)) for state in (plain, loud))
    return abs(one - other) > 0.01 * one


def called(solve, stops=True):
    """One call: `solve(scene, loud, left_out)` gives vectors, decisions, and the background taken.

    Where a tolerance `stops` it, that is what it decides by; otherwise it is noise alone.
    """

    def figure(scene):
        vectors, decided, largest, left_out = solve(scene, True, ())
        bare, expected, _, _ = solve(scene, False, left_out)
        # Runs that have ended at different observations speak of different signals.
        same = not stops or scene.kind == "still" or decided == expected
        apart = distance(bare, vectors) if same else np.nan
        otherwise = decided != expected
        return scene.figure(apart, apart, largest, otherwise, stops * scene.grain, len(left_out))

    return figure


def decomposed(k, shifts):
    """`decompose`; with `shifts` every product has a σ² of its own."""

    def solve(scene, loud, left_out):
        rng, calls = np.random.default_rng([scene.seed, 1]), itertools.count()
        ((signal, first),) = scene.observations(1)
        own, levels = signal.astype(scene.dtype), []

        def product(x):
            level = (scene.level(rng, next(calls)) if shifts else first) if loud else 0.0
            levels.append(level)
            return own @ x + scene.dtype(level) * x

        operator = bf.as_operator(product, len(signal))
        operator.like = np.empty(0, dtype=scene.dtype)
        result = bf.decompose(operator, k, shifts=shifts, tol=scene.tolerance, rng=scene.seed)
        determined = K if scene.values[-1] == scene.values[-2] else result.state.basis.shape[-1]
        return result.eigenvectors[:, :determined], result.status, max(levels), left_out

    return called(solve)


class Taken:
    """A stream that notes which observations were refused, and the σ² of the others."""

    def __init__(self, scene, steps, loud, left_out, sign=1):
        self.scene, self.steps, self.loud, self.sign = scene, steps, loud, sign
        self.refused, self.levels, self.at = list(left_out), [], 0

    def __iter__(self):
        for t, (signal, level) in enumerate(self.scene.observations(self.steps)):
            if self.loud or t not in self.refused:
                self.at = t
                self.levels.append(level)
                yield self.scene.operator(self.sign * signal, level if self.loud else 0.0)

    def on_bad(self, bad):
        if "drowned" in bad.reason:
            self.refused.append(self.at)
            self.levels.pop()


def tracked(steps=200):
    """`track`, one call: the eigenvectors of −C that are smallest, events and all."""

    def solve(scene, loud, left_out):
        stream = Taken(scene, steps, loud, left_out, sign=-1)
        result = bf.track(stream, K, which="smallest", on_bad=stream.on_bad, rng=scene.seed)
        kinds = [(event.kind, event.step) for event in result.events]
        return result.eigenvectors, kinds, max(stream.levels), stream.refused

    return called(solve, stops=False)


def ran(method, steps=200):
    """`run` with a stop rule: it is to end at the same step, with the same status."""

    def solve(scene, loud, left_out):
        stream = Taken(scene, steps, loud, left_out)
        rules = [bf.residual_below(scene.tolerance)]
        state = method.init(scene.start(K))
        result = bf.run(method, stream, state, stop=rules, on_bad=stream.on_bad)
        decided = (result.status, int(result.state.steps))
        return result.eigenvectors, decided, max(stream.levels), stream.refused

    return called(solve)


def learned(forget, batches=60):
    """`StreamingPCA`: rows of covariance C_t + I, and after them ±c e_i, whose own is σ_t²I."""

    def solve(scene, loud, left_out):
        rng, n = np.random.default_rng([scene.seed, 4]), len(scene.values)
        pca, largest = StreamingPCA(n_components=K, forget=forget), 0.0
        for signal, level in scene.observations(batches):
            rows = rng.standard_normal((4 * n, n)) @ root(signal + np.eye(n))
            spikes = loud * (n * level) ** 0.5 * np.eye(n)
            pca.partial_fit(rows.astype(scene.dtype))
            pca.partial_fit(np.concatenate([spikes, -spikes]).astype(scene.dtype))
            largest = max(largest, level)
        return pca.components_.T, (), largest, left_out

    return called(solve)


def root(matrix):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**0.5) @ vectors.T


def certified(scene):
    """`certify` on one basis: bounds for it, less what they allow for rounding, and the status."""
    ((signal, level),) = scene.observations(1)
    values, vectors = np.linalg.eigh(signal)
    nudge = 1e-4 * generator(len(values), np.random.default_rng([scene.seed, 5]))
    basis = turned(vectors[:, ::-1], nudge)[:, :K]
    basis = np.linalg.qr(basis)[0].astype(scene.dtype)
    method, bounds, decided = bf.BrockettFlow(), [], []
    for size in (level, 0.0):
        state = method.init(basis)
        _, probe = method.step(scene.operator(signal, size), state)
        found = bf.certify(state, probe, tol=scene.tolerance)
        rounding = rounding_bound(state, probe)
        centres = found.eigenvalues - found.eigenvalues.mean()
        bounds.append(np.concatenate([centres, found.residuals - rounding, found.gaps + rounding]))
        decided.append(found.status)
    apart = np.abs(bounds[0] - bounds[1]).max() / SPREAD
    otherwise = decided[0] is not decided[1]
    return scene.figure(apart, apart, level, otherwise, scene.grain)


@dataclass(frozen=True)
class Entry:
    """One line of the table for each spectrum and precision."""

    name: str
    n: int
    figure: Callable
    full: bool = False
    streams: tuple = STREAMS
    backgrounds: tuple = tuple(BACKGROUNDS)

    @property
    def called(self):
        """Whether it is one call, and no method that is stepped."""
        return not self.figure.__qualname__.startswith("stepped")


ONCE = {"streams": ("still",), "backgrounds": ("constant",)}
ENTRIES = (
    Entry("`decompose(A)`", 40, decomposed(None, False), full=True, **ONCE),
    Entry("`decompose(A, k)`", 40, decomposed(K, False), **ONCE),
    Entry("`decompose(A, k, shifts=True)`", 40, decomposed(K, True), streams=("still",)),
    Entry("`DoubleBracketFlow()`", 10, stepped(bf.DoubleBracketFlow(), None, 400), full=True),
    Entry(
        "`DoubleBracketFlow(step=Adaptive())`",
        10,
        stepped(bf.DoubleBracketFlow(step=bf.Adaptive()), None, 400),
        full=True,
    ),
    Entry("`BrockettFlow((3, 2, 1))`", 20, stepped(bf.BrockettFlow((3, 2, 1)), K, 400)),
    Entry("`BrockettFlow()`, N = I", 20, stepped(bf.BrockettFlow(), K, 400)),
    Entry("`EigenTracker()`", 20, stepped(bf.EigenTracker(), None, 200), full=True),
    Entry("`EigenTracker(k)`", 20, stepped(bf.EigenTracker(K), K, 200)),
    Entry("`EigenTracker(k)`, n = 150", 150, stepped(bf.EigenTracker(K), K, 120)),
    Entry('`track(…, k, which="smallest")`', 20, tracked()),
    Entry("`run(EigenTracker(k), …)`", 20, ran(bf.EigenTracker(K))),
    Entry("`run(BrockettFlow(), …)`", 20, ran(bf.BrockettFlow())),
    Entry("`StreamingPCA`", 20, learned(0.0)),
    Entry("`StreamingPCA(forget=None)`", 20, learned(None)),
    Entry("`certify`", 20, certified, **ONCE),
)


# The table --------------------------------------------------------------------------------------


@dataclass
class Line:
    """An entry point on one spectrum in one precision."""

    entry: Entry
    spectrum: str
    dtype: type

    def __post_init__(self):
        self.values = SPECTRA[self.spectrum](self.entry.n)
        columns = self.entry.n - 1 if self.entry.full and self.spectrum == "linear" else K
        self.ratio = SPREAD / gap(self.values, columns)
        self.cells, self.refusals = {}, {}

    def measure(self, seeds):
        """All figures of the line, and where an observation without which nothing goes on."""
        for scene in itertools.product(self.entry.streams, self.entry.backgrounds):
            self.cells[scene] = cell = []
            for seed in range(seeds):
                try:
                    cell.append(self.entry.figure(Scene(self.values, *scene, self.dtype, seed)))
                except bf.ObservationError as error:
                    self.refusals[scene] = error.reason
        return self

    @property
    def figures(self):
        return [figure for cell in self.cells.values() for figure in cell]

    def largest(self, otherwise):
        """The largest figure beside spread/gap, of pairs that were decided otherwise, or alike."""
        alike = (f.apart for f in self.figures if bool(f.otherwise) is otherwise)
        return worst_of(alike) / self.ratio

    def text(self, scene):
        if scene in self.refusals:
            return self.refusals[scene]
        if scene not in self.cells:
            return "–"
        figures = [figure.apart for figure in self.cells[scene]]
        if np.all(np.isnan(figures)):
            return "ended apart"
        apart = worst_of(figures)
        return f"**{apart:.2g}**" if apart > ALLOWED * self.ratio else f"{apart:.2g}"

    def __str__(self):
        name = f"{self.entry.name} | {self.spectrum} | {self.dtype.__name__} | {self.ratio:.2g}"
        texts = [self.text(scene) for scene in SCENES]
        worst = worst_of(figure.worst for figure in self.figures)
        otherwise = sum(figure.otherwise for figure in self.figures)
        return f"| {name} | {' | '.join(texts)} | {worst:.2g} | {otherwise} |"


def worst_of(figures):
    """The largest, of those that could be measured; 0 of none."""
    return max((figure for figure in figures if not np.isnan(figure)), default=0.0)


SCENES = tuple(itertools.product(STREAMS, BACKGROUNDS))


def summary(lines):
    """What the table shows, in sentences."""
    figures = [figure for line in lines for figure in line.figures]
    clear = [figure.otherwise for figure in figures if figure.clear]
    blurred = [figure.otherwise for figure in figures if not figure.clear]
    worst = max(lines, key=lambda line: line.largest(otherwise=False))
    alike = worst.largest(otherwise=False)
    where = f"{worst.entry.name}, {worst.spectrum}, {worst.dtype.__name__}"
    most = max(line.largest(otherwise=True) for line in lines)
    refused = sum(figure.refused for figure in figures)
    calls = sum(len(line.refusals) for line in lines)
    return f"""\
* **Vectors** of runs in which the same was decided are apart by {alike:.2g}·eps·σ²/gap at most
  ({where}), of the others by {most:.2g}·eps·σ²/gap.
* **Decisions**: of {len(clear)} pairs of runs where all that is decided stands clear of rounding,
  {sum(clear)} were decided otherwise with the background than without; of the other {len(blurred)},
  {sum(blurred)} were.
* **Refused** as drowned were {refused} observations, all of them impulses in single precision, and
  in {calls} lines the call of `decompose` that met one."""


def failed(lines):
    """Whether anything is beyond what README says."""
    decided = any(figure.otherwise and figure.clear for line in lines for figure in line.figures)
    return decided or any(line.largest(otherwise=False) > ALLOWED for line in lines)


PAGE_TEXT = """\
# Blindness

How much of a background σ²I reaches the eigenvectors? `python benchmarks/blindness.py` has measured
it for every entry point and has written this page.

Each problem is solved twice, with σ_t²I and without, from the same start. A figure is the largest
|x_i − x′_i| of the vectors that the spectrum determines, of {seeds} seeds, in units of

    eps·(largest σ² that was taken + spread)/spread,        spread = λ_max − λ_min.

That is the rounding of the products, beside the spread. A vector cannot be known better than to
eps·σ²/gap, so *spread/gap*, which stands beside each line, is what a figure may well be; figures
above {allowed} times that are in bold.

{summary}

| entry point | bulk | precision | spread/gap | {titles} | on the way | otherwise |
|{rule}|
{table}

* **Spectra**, spread 10: *flat*, 10, 8, 6.5 and a bulk of equal eigenvalues, of which only the
  first three vectors are compared; *linear*, evenly spaced. n is {small} for flows on SO(n), 40 for
  `decompose`, 150 where it says so, and 20 otherwise; k = {k}.
* **Streams**: *still*, the same matrix in every observation; *drifting*, it turns by 1e-3 a step;
  *jumping*, another basis from the middle on. The last two with noise, {noise}·(G + Gᵀ) with
  entries of G from N(0, 1), new in every observation.
* **Backgrounds**: *constant*, 1e9 (float32: 1e3); *swinging*, uniform up to that, new in every
  observation; *impulses*, every tenth observation has 10^U(0, 12), the others 1. In single
  precision those above about 1e8 are refused as drowned, and are left out without background, too.
* **On the way**: the largest figure of a line at any step, where runs are compared step by step.
  Columns that are still being found, or leave a saddle, multiply every difference for a while.
* **Otherwise**: pairs of runs in which anything was decided otherwise: the memory of a tracker at
  the end (by more than 1 %), its events, the status, the step at which a stop rule fired. Clear of
  rounding are decisions about noise or a tolerance of {clear_of}·eps·σ² or more. Where nothing
  moves and there is no noise, rounding is all that a memory can be chosen by. A stop rule that is
  asked at an impulse may answer PRECISION_FLOOR, which is true of that observation. Vectors of
  runs that have ended at different observations of a moving signal are not compared.
* `StreamingPCA` gets rows of covariance C_t + I, and after every 80 of them 40 rows ±c·e_i, whose
  own covariance is σ²I. `certify` is compared in its bounds instead of vectors, without what they
  allow for rounding.
"""


def page(lines):
    titles = [f"{stream}, {level}" for stream, level in SCENES]
    return PAGE_TEXT.format(
        seeds=SEEDS,
        allowed=ALLOWED,
        summary=summary(lines),
        titles=" | ".join(titles),
        rule="|".join(["---"] * (6 + len(titles))),
        table="\n".join(map(str, lines)),
        small=10,
        k=K,
        noise=NOISE,
        clear_of=CLEAR,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, and no page")
    quick = parser.parse_args().quick
    warnings.simplefilter("error")
    lines = []
    for what in itertools.product(ENTRIES, SPECTRA, PRECISIONS):
        lines.append(Line(*what).measure(1 if quick else SEEDS))
        print(lines[-1], flush=True)
    print(summary(lines))
    if not quick:
        PAGE.write_text(page(lines), encoding="utf-8")
    sys.exit(failed(lines))


if __name__ == "__main__":
    main()
