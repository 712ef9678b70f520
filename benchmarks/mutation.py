"""Mutation testing of core, geometry, the flows and the tracker: which changes does no test notice?

    make mutation                                a uniform sample of mutants, about 20 minutes
    python benchmarks/mutation.py --share 1      all of them
    python benchmarks/mutation.py ladder block   those of these modules

A mutant is one small change of the source, of the kinds that mutmut makes: another operator, a
number one larger, an argument left out, a condition turned round. One pytest session collects the
tests and learns which of them run which line. For each mutant it is then forked, the changed
functions and constants are exchanged in the fork, and the tests that run the changed line follow,
the cheapest first and the cases of one test by turns with others, until one fails (the mutant is
killed) or SECONDS' worth of them have passed (it survived). So the share killed is at most
understated.

Left out: docstrings, annotations, decorators, imports, calls of `isinstance` and `len` (as mutmut
does), prose (strings with a blank: messages and advice), type aliases and members of enumerations.
Tests that start processes are no part of it: the exchange does not reach those.
"""

import argparse
import dataclasses
import os
import pickle
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import coverage
import libcst as cst
import pytest
import torch
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

import bracketflow

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path(bracketflow.__file__).parent
MODULES = ("core", "geometry", "givens", "spread", "flows", "tracker")
TESTS = (
    "core",
    "geometry",
    "flows",
    "guard",
    "spread",
    "tracker",
    "tracker_ladder",
    "tracker_means",
    "tracker_reading",
    "tracker_events",
    "contracts",
    "properties",
    "oracles",
    "edge_cases",
    "driver",
    "faults",
    "refusals",
    "torch",
    "spread_rows",
)
NEEDED = 0.85  # share of the mutants that must be killed
LEAST = 60  # mutants of a module in a sample
SECONDS = 10.0  # of computing, as measured without a mutant, that each mutant is given at most
SLOWEST = 2.0  # seconds: a longer test is left out
PATIENCE = 5  # times those seconds after which a mutant is taken to hang
SURVIVED, KILLED, UNCHANGED = 0, 1, 2


# Mutants ----------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """One change: the node of a file's tree that gives way to another."""

    path: Path
    tree: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode
    lines: tuple[int, ...]
    """Lines that run it; those of its statement outside of any function."""
    names: tuple[str, ...]
    """Outside of any function: the names to which it gives a value."""

    @property
    def source(self):
        """The file with the change."""
        return self.tree.deep_replace(self.old, self.new).code

    def __str__(self):
        """Where it is, and the lines before and after."""
        before, after = self.tree.code.splitlines(), self.source.splitlines()
        first = _alike(before, after)
        rest = _alike(before[:first:-1], after[:first:-1])
        old, new = (
            " ".join(map(str.strip, part[first : len(part) - rest])) for part in (before, after)
        )
        return f"{self.path.relative_to(PACKAGE)}:{first + 1}\n  - {old}\n  + {new}\n"


def _alike(left, right):
    """How many entries agree from the start."""
    return next(
        (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
        min(len(left), len(right)),
    )


class _Finder(cst.CSTVisitor):
    """All (node, its replacement, lines, function's lines, names) of a file."""

    METADATA_DEPENDENCIES = (PositionProvider,)
    SKIPPED = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)

    def __init__(self):
        super().__init__()
        self.found, self.prose = [], 0
        self.functions, self.statements = [], []

    def on_visit(self, node):
        if isinstance(node, self.SKIPPED) or _checks_a_type(node):
            return False
        if isinstance(node, cst.SimpleString) and " " in node.value:
            self.prose += not node.value.startswith('"""')
            return False
        self.functions += [node] * isinstance(node, cst.FunctionDef)
        self.statements += [node] * isinstance(node, cst.SimpleStatementLine)
        for kind, changes in mutation_operators:
            if isinstance(node, kind):
                self.found += [(node, new, *self._place(node)) for new in changes(node)]
        return True

    def on_leave(self, node):
        for stack in (self.functions, self.statements):
            if stack and stack[-1] is node:
                stack.pop()

    def _place(self, node):
        outer = self.functions[0] if self.functions else None
        statement = self.statements[-1] if self.statements else None
        lines = self._lines(node) or (self._lines(statement) if statement else ())
        if outer is None:
            return lines, (), _assigned(statement)
        return lines, self._lines(outer), ()

    def _lines(self, node):
        place = self.get_metadata(PositionProvider, node, None)
        return tuple(range(place.start.line, place.end.line + 1)) if place else ()


def _checks_a_type(node):
    called = isinstance(node, cst.Call) and isinstance(node.func, cst.Name)
    return called and node.func.value in ("isinstance", "len")


def _assigned(statement):
    targets = []
    for part in statement.body if statement else ():
        targets += [t.target for t in part.targets] if isinstance(part, cst.Assign) else []
        targets += [part.target] if isinstance(part, cst.AnnAssign) else []
    return tuple(t.value for t in targets if isinstance(t, cst.Name))


def mutants_of(path):
    """All mutants of a file, in the order of its lines, and how many strings of prose it has."""
    wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
    finder = _Finder()
    wrapper.visit(finder)
    return [
        Mutant(path, wrapper.module, old, new, _run_by(lines, function), names)
        for old, new, lines, function, names in finder.found
    ], finder.prose


def _run_by(lines, function):
    """The lines of a change; all of its function where the change is in the signature."""
    return lines if not function or set(lines) & set(function[1:]) else function


def sampled(mutants, share, rng):
    """A uniform sample of a module's mutants, of at least LEAST of them."""
    size = min(len(mutants), max(LEAST, round(share * len(mutants))))
    return [mutants[i] for i in sorted(rng.sample(range(len(mutants)), size))]


# Exchange ---------------------------------------------------------------------------------------


def exchange(mutant):
    """Put the mutant's functions and constants in the place of those that are loaded."""
    module = sys.modules[_module_name(mutant.path)]
    fresh = ModuleType(module.__name__)
    fresh.__file__, fresh.__package__ = module.__file__, module.__package__
    exec(compile(mutant.source, module.__file__, "exec"), vars(fresh))
    return any([_exchanged(module, name, new) for name, new in list(vars(fresh).items())])


def _module_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _exchanged(module, name, new):
    old = vars(module).get(name)
    if isinstance(new, type) and new.__module__ == module.__name__:
        members = [(vars(old).get(key), value) for key, value in list(vars(new).items())]
        return any([_recoded(_function(a), _function(b)) for a, b in members])
    if isinstance(_function(new), FunctionType):
        own = _function(new).__module__ == module.__name__
        return own and _recoded(_function(old), _function(new))
    if not name.isupper() or not isinstance(new, int | float | str | tuple | None) or new == old:
        return False
    for other in list(sys.modules.values()):  # also where it was imported by name
        if getattr(other, "__name__", "").startswith("bracketflow") and name in vars(other):
            setattr(other, name, new)
    return True


def _function(thing):
    """The plain function within a property, a cached property, a cache or a class method."""
    if isinstance(thing, property):
        return thing.fget
    if isinstance(thing, cached_property):
        return thing.func
    return getattr(thing, "__wrapped__", thing)


def _recoded(old, new):
    """Give `old` the code and defaults of `new`; whether that changes anything."""
    if not (isinstance(old, FunctionType) and isinstance(new, FunctionType)):
        return False
    parts = ("__code__", "__defaults__", "__kwdefaults__")
    changed = any(repr_of(getattr(old, part)) != repr_of(getattr(new, part)) for part in parts)
    for part in parts:
        setattr(old, part, getattr(new, part))
    return changed


def repr_of(part):
    """What counts of code or defaults: not the lines it comes from."""
    if not hasattr(part, "co_code"):
        return repr(part)
    names = (part.co_names, part.co_varnames, part.co_freevars, part.co_cellvars)
    return part.co_code, names, tuple(map(repr_of, part.co_consts))


# Session ----------------------------------------------------------------------------------------


class Baseline(NamedTuple):
    """How long each test takes, when its turn is, and which tests run each line of each file."""

    seconds: dict[int, float]
    turn: dict[int, float]
    runs: dict[Path, dict[int, set[int]]]


@dataclasses.dataclass
class Mutation:
    """A pytest plugin that runs mutants instead of the tests."""

    mutants: list[Mutant]
    workers: int
    verdicts: dict[int, int] = dataclasses.field(default_factory=dict)
    hung: set[int] = dataclasses.field(default_factory=set)
    failed: bool = False

    def pytest_runtest_logreport(self, report):
        """Note a failure."""
        self.failed |= report.failed

    def pytest_runtestloop(self, session):
        """Learn what each test runs, then try one mutant after the other."""
        base = _from_fork(lambda: self._learned(session.items))
        print(f"{len(base.seconds)} tests, {sum(base.seconds.values()):.0f} s", flush=True)
        running, started = {}, time.monotonic()
        for number, mutant in enumerate(self.mutants):
            tests = _chosen(mutant, base)
            limit = PATIENCE * sum(base.seconds[test] for test in tests) + 20
            if len(running) == self.workers:
                self._collected(running)
            running[_forked(lambda m=mutant, t=tests: self._tried(m, t, session.items), limit)] = (
                number
            )
            if number % 100 == 99:
                print(f"{number + 1} in {time.monotonic() - started:.0f} s", flush=True)
        while running:
            self._collected(running)
        return True

    def _learned(self, items):
        paths = {mutant.path for mutant in self.mutants}
        tracer = coverage.Coverage(
            data_file=None, include=[str(path) for path in paths], config_file=False
        )
        seconds = {}
        tracer.start()
        for number, item in enumerate(items):
            tracer.switch_context(str(number))
            begun = time.process_time()
            self._ran(item, items[number + 1 : number + 2])
            seconds[number] = time.process_time() - begun
            if self.failed:
                raise SystemExit(f"{item.nodeid} fails without any mutant")
        tracer.stop()
        data = tracer.get_data()
        runs = {
            path: {
                line: {int(test) for test in tests if test}
                for line, tests in data.contexts_by_lineno(str(path)).items()
            }
            for path in paths
        }
        seconds = {test: spent for test, spent in seconds.items() if spent <= SLOWEST}
        return Baseline(seconds, _turns(items, seconds), runs)

    def _tried(self, mutant, tests, items):
        try:
            if not exchange(mutant):
                return UNCHANGED
        except Exception:  # it cannot even be imported
            return KILLED
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            self._ran(items[test], [] if following is None else [items[following]])
            if self.failed:
                return KILLED
        return SURVIVED

    def _ran(self, item, following):
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=following[0] if following else None
        )

    def _collected(self, running):
        pid, status = os.wait()
        number = running.pop(pid)
        self.verdicts[number] = os.waitstatus_to_exitcode(status)
        if os.WIFSIGNALED(status):
            self.verdicts[number] = KILLED
            self.hung.add(number)


def _turns(items, seconds):
    """Seconds of a test, times two for the second cheapest case of one function, and so on."""
    cases, turn = Counter(), {}
    for test in sorted(seconds, key=seconds.__getitem__):
        name = items[test].nodeid.partition("[")[0]
        cases[name] += 1
        turn[test] = seconds[test] * cases[name]
    return turn


def _chosen(mutant, base):
    """Numbers of the tests that run the changed lines, in turn, within SECONDS."""
    runs, lines = base.runs[mutant.path], mutant.lines
    if mutant.names:
        word = re.compile(rf"\b({'|'.join(mutant.names)})\b")
        found = {
            test
            for path, by_line in base.runs.items()
            for line, text in enumerate(path.read_text().splitlines(), 1)
            if word.search(text)
            for test in by_line.get(line, ())
        }
    else:
        found = {test for line in lines for test in runs.get(line, ())}
    chosen, total = [], 0.0
    for test in sorted(found & base.turn.keys(), key=base.turn.__getitem__):
        total += base.seconds[test]
        if total > SECONDS:
            break
        chosen.append(test)
    return chosen


def _forked(work, limit):
    """Process that does the work, in `limit` seconds of computing, and ends with its answer."""
    pid = os.fork()
    if pid:
        return pid
    resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(20 * int(limit))  # should it wait for ever
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    answer = KILLED
    try:
        answer = work()
    finally:
        os._exit(answer)


def _from_fork(work):
    """What the work returns, done in a process of its own."""
    with tempfile.NamedTemporaryFile() as file:
        pid = os.fork()
        if not pid:
            code = 1
            try:
                Path(file.name).write_bytes(pickle.dumps(work()))
                code = 0
            except SystemExit as error:
                print(error, file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1]:
            raise SystemExit("the tests do not pass without a mutant")
        return pickle.loads(Path(file.name).read_bytes())


# Report -----------------------------------------------------------------------------------------


class Score(NamedTuple):
    """How the mutants of a module or file fared."""

    killed: int
    survived: int
    unchanged: int

    @property
    def tried(self):
        """Those that changed anything."""
        return self.killed + self.survived

    @property
    def share(self):
        """Of them, those that were killed."""
        return self.killed / max(self.tried, 1)

    def row(self, name):
        """A line of the table."""
        return f"{name:24} {self.tried:6} {self.killed:7} {self.survived:9} {self.share:7.1%}"


def scored(mutation, paths):
    """The score of the mutants of these files."""
    numbers = [i for i, mutant in enumerate(mutation.mutants) if mutant.path in paths]
    verdicts = Counter(mutation.verdicts[i] for i in numbers)
    return Score(verdicts[KILLED], verdicts[SURVIVED], verdicts[UNCHANGED])


def reported(mutation, modules, counts):
    """Print the table, and return the share killed; `counts` are the mutants there are."""
    print(f"{'':24} {'tried':>6} {'killed':>7} {'survived':>9} {'share':>7}")
    weights, scores = [], []
    for name, paths in modules.items():
        score = scored(mutation, paths)
        print(score.row(name))
        for path in paths if len(paths) > 1 else ():
            print(scored(mutation, [path]).row(f"  {path.stem}"))
        weights.append(counts[name] * score.tried / (score.tried + score.unchanged))
        scores.append(score)
    whole = sum(weights)
    total = sum(w * s.share for w, s in zip(weights, scores, strict=True)) / whole
    variance = sum(  # sampled module by module, without replacement
        (w / whole) ** 2 * s.share * (1 - s.share) / s.tried * (1 - s.tried / w)
        for w, s in zip(weights, scores, strict=True)
    )
    print(f"killed of all {whole:.0f}: {total:.1%} ± {1.96 * variance**0.5:.1%} (95% confidence)")
    unchanged = sum(score.unchanged for score in scores)
    print(f"killed by time: {len(mutation.hung)}; without effect on any object: {unchanged}")
    return total


def listed(mutation):
    """Write the survivors to out/mutation.txt."""
    path = ROOT / "out" / "mutation.txt"
    path.parent.mkdir(exist_ok=True)
    survivors = [m for i, m in enumerate(mutation.mutants) if mutation.verdicts[i] == SURVIVED]
    path.write_text("\n".join(map(str, survivors)))
    print(f"survivors: {path.relative_to(ROOT)}")


def main():
    """Mutants of the modules asked for; exits with 1 where less than NEEDED of them are killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", default=list(MODULES))
    parser.add_argument("--share", type=float, default=0.2, help="of each module's mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    modules = {name: _files(name) for name in options.modules}
    rng, counts, prose, mutants = random.Random(options.seed), {}, 0, []
    for name, paths in modules.items():
        found = [mutants_of(path) for path in paths]
        every = [mutant for part, _ in found for mutant in part]
        counts[name], prose = len(every), prose + sum(strings for _, strings in found)
        mutants += sampled(every, options.share, rng)
    print(f"{len(mutants)} of {sum(counts.values())} mutants, seed {options.seed}; ", end="")
    print(f"{prose} strings of prose are left alone", flush=True)
    (torch.empty(1, device="meta") + 1).sum()  # what torch loads late is loaded once
    mutation = Mutation(mutants, options.workers)
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in TESTS]
    code = pytest.main(
        ["-q", "-s", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *files], plugins=[mutation]
    )
    if len(mutation.verdicts) < len(mutants):
        raise SystemExit(int(code) or 1)
    share = reported(mutation, modules, counts)
    listed(mutation)
    raise SystemExit(share < NEEDED)


def _files(name):
    """The files of a module, a package, or a module of the tracker."""
    for path in (PACKAGE / f"{name}.py", PACKAGE / "tracker" / f"{name}.py"):
        if path.exists():
            return [path]
    folder = PACKAGE / name
    if not folder.is_dir():
        raise SystemExit(f"no module {name} in {PACKAGE}")
    return sorted(folder.glob("*.py"))


if __name__ == "__main__":
    main()
