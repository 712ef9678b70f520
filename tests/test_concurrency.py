"""Steps are pure: one method serves many threads. What changes when used lets one in at a time."""

import copy
import csv
import os
import pickle
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest
import torch

import bracketflow as bf
from bracketflow.core import BadObservation
from bracketflow.monitor import CSV, JSONLines, SubspaceChange
from bracketflow.streams import batches
from bracketflow.threads import one_at_a_time
from bracketflow.torch import HessianMonitor
from cases import METHODS, N, noise, same_bits, symmetric

THREADS = 8
REFUSED = BadObservation(3, "drowned")


@pytest.fixture(autouse=True)
def switch_often():
    """Threads that change places as often as the interpreter lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def problem(name, seed, library):
    """A start and a stream, for one thread; every third observation is bad."""
    rng = np.random.default_rng(seed)
    _, columns = METHODS[name]
    signal = symmetric(rng, N)
    stream = [library(signal + noise(rng, N, 0.2)) for _ in range(15)]
    stream[::3] = [c * float("nan") for c in stream[::3]]
    return library(bf.random_basis(N, columns, rng=rng)), stream


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize("name", METHODS)
def test_one_method_in_many_threads_with_separate_states(name, library):
    method, _ = METHODS[name]
    problems = [problem(name, seed, library) for seed in range(THREADS)]

    def follow(start, stream):
        return bf.run(method, stream, method.init(start), on_bad="skip")

    alone = [follow(*part) for part in problems]
    together = threading.Barrier(THREADS)

    def begin(part):
        together.wait()
        return follow(*part)

    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(begin, problems))
    for result, expected in zip(results, alone, strict=True):
        assert same_bits(result.state, expected.state)
        assert same_bits(result.eigenvalues, expected.eigenvalues)
        assert result.bad == expected.bad


def test_one_state_may_be_stepped_from_many_threads_at_once(rng):
    method = bf.EigenTracker()
    signal = symmetric(rng, N)
    stream = [signal + noise(rng, N, 0.2) for _ in range(20)]
    state = bf.run(method, stream[:10], method.init(bf.random_basis(N, rng=rng))).state
    expected = [method.step(c, state)[0] for c in stream]
    with ThreadPoolExecutor(THREADS) as pool:
        followed = list(pool.map(lambda c: method.step(c, state)[0], stream))
    assert all(map(same_bits, followed, expected))


def test_checkpoints_of_many_threads_do_not_meet(tmp_path, rng):
    method = bf.BrockettFlow((2, 1))
    states = [method.init(bf.random_basis(5, 2, rng=rng)) for _ in range(THREADS)]

    def write(i):
        for _ in range(5):
            bf.save(tmp_path / "shared", states[i])
            bf.save(tmp_path / f"own{i}", states[i])
            assert same_bits(bf.load(tmp_path / f"own{i}").state, states[i])
            shared = bf.load(tmp_path / "shared").state
            assert any(same_bits(shared, state) for state in states)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(THREADS)))
    assert {p.name for p in tmp_path.iterdir()} == {"shared", *(f"own{i}" for i in range(THREADS))}


# Objects that change when used ------------------------------------------------------------------


def in_threads(work, items):
    """Results of `work` on all items by eight threads that begin together."""
    together = threading.Barrier(THREADS)

    def share(number):
        together.wait()
        return [work(item) for item in items[number::THREADS]]

    with ThreadPoolExecutor(THREADS) as pool:
        return [result for part in pool.map(share, range(THREADS)) for result in part]


class Slow(int):
    """A number that takes its time to be added to, so that two threads would lose a count."""

    def __add__(self, other):
        time.sleep(1e-3)
        return Slow(int(self) + other)


def probed(rng):
    method = bf.BrockettFlow((2, 1))
    state = method.init(bf.random_basis(N, 2, rng=rng))
    return state, method.step(symmetric(rng, N), state)[1]


def estimator(**options):
    return pytest.importorskip("bracketflow.estimators").StreamingPCA(3, **options)


@pytest.mark.parametrize("forget", [0.0, None])
def test_no_rows_are_lost_by_an_estimator_that_threads_share(rng, forget):
    rows = rng.standard_normal((20_000, N)) * np.r_[4.0, 3.0, 2.0, np.ones(N - 3)]
    shared, alone = estimator(forget=forget), estimator(forget=forget).fit(rows)
    in_threads(shared.partial_fit, np.split(rows, 80))
    assert shared.n_samples_seen_ == len(rows)
    if forget == 0:  # then order does not matter
        assert shared.mean_ == pytest.approx(alone.mean_, abs=1e-12)
        assert shared.explained_variance_ == pytest.approx(alone.explained_variance_, rel=1e-10)


def test_no_product_is_left_uncounted(rng):
    operator = bf.counted(symmetric(rng, N))
    operator.products = operator.matvecs = Slow(0)
    in_threads(lambda _: operator @ np.ones((N, 3)), range(40))
    assert (operator.products, operator.matvecs) == (40, 120)


def test_no_look_is_lost_by_a_hessian_monitor():
    model = torch.nn.Linear(4, 1)

    def loss(output, targets):
        time.sleep(1e-3)
        return ((output - targets) ** 2).mean()

    monitor = HessianMonitor(model, loss, k=2)
    batch = torch.ones(6, 4), torch.zeros(6, 1)
    in_threads(lambda _: monitor.step(batch), range(24))
    assert int(monitor.state.steps) == monitor.steps == len(monitor.records) == 24
    assert [record["step"] for record in monitor.records] == list(range(1, 25))


def test_a_recorder_makes_one_record_at_a_time(rng):
    inside = []

    def others(state, probe):
        inside.append(probe)
        time.sleep(1e-3)
        inside.pop()
        return len(inside)

    recorder = bf.Recorder(every=2, measures={"others": others})
    in_threads(lambda pair: recorder(*pair), [probed(rng)] * 40)
    assert recorder.column("others").tolist() == [0] * 20


class SlowText(str):
    def __str__(self):
        time.sleep(1e-3)
        return "x"


def test_a_table_has_one_header_and_whole_lines(tmp_path):
    with CSV(tmp_path / "a.csv") as table:
        in_threads(table, [{"step": i, "words": SlowText()} for i in range(40)])
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["step", "words"]
    assert sorted(int(step) for step, _ in lines) == list(range(40))


def test_failures_of_a_checkpoint_are_all_counted(rng, tmp_path):
    (tmp_path / "folder").mkdir()
    keeper = bf.Checkpoint(tmp_path / "folder" / "c", 1)
    keeper.failures = Slow(0)
    (tmp_path / "folder").rmdir()
    with pytest.warns(RuntimeWarning, match="could not be written"):
        in_threads(lambda pair: keeper(*pair), [probed(rng)] * 16)
    assert keeper.failures == 16


def test_threads_may_share_the_batches_of_a_source(rng):
    def rows():
        for i in range(60):
            time.sleep(1e-4)
            yield np.full((1, N), float(i))

    source = batches(rows())
    found = in_threads(lambda _: float(next(source)[0, 0]), range(60))
    assert sorted(found) == list(range(60))
    assert source.read == 60


def guarded(rng, tmp_path):
    """Every method that must wait for another thread in the same object: name, object, call."""
    state, probe = probed(rng)
    rows = rng.standard_normal((40, N))
    fitted, sink = estimator().fit(rows), JSONLines(tmp_path / "a.jsonl")
    short = fitted.transform(rows)
    model = torch.nn.Linear(3, 1)
    hessian = HessianMonitor(model, torch.nn.functional.mse_loss, k=1)
    batch = torch.ones(2, 3), torch.zeros(2, 1)
    counted, source = bf.counted(np.eye(N)), batches([rows])
    recorder, keeper = bf.Recorder(), bf.Checkpoint(tmp_path / "c", 1)
    change = SubspaceChange()
    return {
        "fit": (fitted, lambda: fitted.fit(rows)),
        "partial_fit": (fitted, lambda: fitted.partial_fit(rows)),
        "transform": (fitted, lambda: fitted.transform(rows)),
        "inverse_transform": (fitted, lambda: fitted.inverse_transform(short)),
        "score": (fitted, lambda: fitted.score(rows)),
        "covariance": (fitted, fitted.get_covariance),
        "precision": (fitted, fitted.get_precision),
        "pickle": (fitted, lambda: pickle.dumps(fitted)),
        "deepcopy": (fitted, lambda: copy.deepcopy(fitted)),
        "hessian": (hessian, lambda: hessian.step(batch)),
        "counted": (counted, lambda: counted @ state.basis),
        "batches": (source, lambda: next(source)),
        "recorder": (recorder, lambda: recorder(state, probe)),
        "refused": (recorder, lambda: recorder.refused(REFUSED)),
        "checkpoint": (keeper, lambda: keeper(state, probe)),
        "change": (change, lambda: change(state, probe)),
        "sink": (sink, lambda: sink({"step": 1})),
        "flush": (sink, sink.flush),
        "close": (sink, sink.close),
    }


def test_a_method_waits_for_another_thread_in_its_object_and_for_no_other(rng, tmp_path):
    release, held = threading.Event(), threading.Semaphore(0)

    @one_at_a_time
    def hold(self):
        held.release()
        release.wait()

    calls, others = guarded(rng, tmp_path), guarded(rng, tmp_path)
    objects = list({id(thing): thing for thing, _ in calls.values()}.values())
    with ThreadPoolExecutor(len(objects) + len(calls)) as pool:
        holders = [pool.submit(hold, thing) for thing in objects]
        for _ in objects:
            held.acquire()
        try:
            waiting = {name: pool.submit(call) for name, (_, call) in calls.items()}
            for _, call in others.values():  # of other objects: nobody holds these
                call()
            assert [name for name, future in waiting.items() if future.done()] == []
        finally:
            release.set()
        wait([*waiting.values(), *holders])
        for future in waiting.values():
            future.result()


def test_an_object_may_call_itself_and_others(rng):
    """A sink may look at the recorder that called it."""
    seen = []
    recorder = bf.Recorder(sinks=[lambda record: seen.append(len(recorder.records))])
    inner = bf.Recorder(sinks=[lambda record: recorder.refused(REFUSED)])
    recorder.sinks += (lambda record: inner.refused(REFUSED),)
    recorder(*probed(rng))
    inner(*probed(rng))
    assert seen == [1]


def test_locks_stay_behind_when_an_object_is_copied_pickled_or_cloned(rng):
    base = pytest.importorskip("sklearn.base")
    rows = rng.standard_normal((50, N))
    fitted = estimator().fit(rows)
    names = set(vars(fitted))
    for twin in (copy.deepcopy(fitted), copy.copy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert set(vars(twin)) == names
        assert twin.partial_fit(rows).n_samples_seen_ == 100
    assert fitted.n_samples_seen_ == 50
    assert not hasattr(base.clone(fitted), "mean_")
    recorder = bf.Recorder()
    recorder(*probed(rng))
    assert len(pickle.loads(pickle.dumps(recorder.records))) == 1
    twin = copy.deepcopy(recorder)
    twin(*probed(rng))
    assert (len(recorder.records), len(twin.records)) == (1, 2)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # that it has threads
def test_a_forked_child_does_not_wait_for_threads_that_it_does_not_have(rng):
    recorder, release, held = bf.Recorder(), threading.Event(), threading.Event()

    @one_at_a_time
    def hold(self):
        held.set()
        release.wait()

    holder = threading.Thread(target=hold, args=(recorder,))
    holder.start()
    held.wait()
    pair = probed(rng)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends it where it waits for ever
        recorder(*pair)
        os._exit(len(recorder.records))
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
