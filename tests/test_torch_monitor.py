"""HessianMonitor finds eigenvectors, notices no damping and disturbs no training."""

import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import bracketflow as bf
import bracketflow.torch as bft
from bracketflow.monitor import JSONLines, TensorBoard, WandB
from torch_cases import (
    EPS,
    F64,
    damping_of,
    dense_hessian,
    noisy_model,
    perceptron,
    samples,
)

# The monitor ------------------------------------------------------------------------------------


def test_monitor_finds_the_eigenpairs_of_a_model_at_rest(seed):
    model, batch = perceptron(seed), samples(seed)
    values, vectors = torch.linalg.eigh(dense_hessian(model, cross_entropy, batch))
    for which, values_, vectors_ in (
        ("largest", values[-3:], vectors[:, -3:]),
        ("smallest", values[:3], vectors[:, :3]),
    ):
        monitor = bft.HessianMonitor(model, cross_entropy, k=3, which=which, rng=seed)
        for _ in range(60):
            monitor.step(batch)
        # A still signal is solved to rounding; √eps leaves room for the gaps of a random model.
        assert torch.allclose(monitor.eigenvalues, values_.flip(0), rtol=0, atol=EPS**0.5)
        assert bf.basis_error(monitor.eigenvectors, vectors_) <= 1e-5
        assert monitor.sharpness == monitor.eigenvalues[0]
        assert monitor.eigenvectors.shape == (53, 3)


def test_eigenvalues_average_out_the_level_of_a_minibatch(seed):
    """Of a model at rest: what they have in common varies less than in single looks."""
    model, (inputs, targets) = perceptron(seed, (20, 16, 3)), samples(seed, 400, 20)
    monitor = bft.HessianMonitor(model, cross_entropy, k=3, rng=seed)
    averaged, single = [], []
    for step in range(100):
        rows = torch.randperm(400, generator=torch.Generator().manual_seed(step))[:20]
        monitor.step((inputs[rows], targets[rows]))
        if step >= 50:
            averaged.append(monitor.eigenvalues.mean().item())
            single.append(monitor.result.probe.background.item())
    assert np.var(averaged) < 0.5 * np.var(single)


def test_alignment_is_the_gradients_part_in_the_subspace(seed):
    model, batch = perceptron(seed), samples(seed)
    monitor = bft.HessianMonitor(model, cross_entropy, k=4, rng=seed)
    monitor.step(batch)
    gradient = bft.hessian(model, cross_entropy, batch).gradient
    part = monitor.eigenvectors @ (monitor.eigenvectors.mT @ gradient)
    expected = (part @ part) / (gradient @ gradient)
    assert monitor.alignment == pytest.approx(expected.item(), rel=1e-12)
    assert 0 < monitor.alignment < 1


def test_alignment_without_a_gradient_is_zero():
    model = nn.Linear(2, 1, bias=False).to(F64)
    with torch.no_grad():
        model.weight.zero_()
    monitor = bft.HessianMonitor(model, mse_loss, k=1)
    monitor.step((torch.eye(2, dtype=F64), torch.zeros(2, 1, dtype=F64)))
    assert monitor.alignment == 0


def trained(seed, watch, steps=8):
    """A model with dropout and batch normalisation after some steps, and the random state then."""
    torch.manual_seed(seed)
    model = noisy_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = bft.HessianMonitor(model, cross_entropy, k=2)
    for step in range(steps):
        batch = samples(step)
        optimiser.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        if watch:
            monitor.step(batch)
        optimiser.step()
    assert all(module.training for module in model.modules())
    gradients = [value.grad for value in model.parameters()]
    return [*model.state_dict().values(), *gradients, torch.get_rng_state()]


def test_training_is_bit_for_bit_the_same_with_a_monitor(seed):
    plain, watched = trained(seed, False), trained(seed, True)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_modes_are_restored_one_by_one_even_after_an_error(seed):
    torch.manual_seed(seed)
    model = noisy_model()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    monitor = bft.HessianMonitor(model, cross_entropy, k=2)
    monitor.step(samples(seed))
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(RuntimeError):
        monitor.step((torch.zeros(3, 99, dtype=F64), torch.zeros(3, dtype=torch.long)))
    assert [module.training for module in model.modules()] == modes


def test_looks_are_made_in_evaluation_mode(seed):
    torch.manual_seed(seed)
    model, batch = noisy_model(), samples(seed)
    monitor = bft.HessianMonitor(model, cross_entropy, k=2)
    monitor.step(batch)
    model.eval()
    assert monitor.records[-1]["loss"] == cross_entropy(model(batch[0]), batch[1]).item()


def test_monitor_works_inside_no_grad(seed):
    model, batch = perceptron(seed), samples(seed)
    inside, outside = (bft.HessianMonitor(model, cross_entropy, k=2) for _ in range(2))
    with torch.no_grad():
        inside.step(batch)
    outside.step(batch)
    assert torch.equal(inside.eigenvectors, outside.eigenvectors)


def watched_with_damping(seed, levels):
    """A monitor of a training run whose loss carries ½·level·‖parameters‖², another every look.

    Also the level of each single look, and the shares of the looks in the averages then.
    """
    model, level = perceptron(seed), [0.0]

    def damped(output, targets):
        return cross_entropy(output, targets) + damping_of(model, level[0])

    monitor = bft.HessianMonitor(model, damped, k=3, rng=seed)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    looks, shares = [], []
    for step, level[0] in enumerate(levels):
        batch = samples(1000 * seed + step)
        monitor.step(batch)
        ladder = monitor.state.memory.ladder
        looks.append(monitor.result.probe.background.item())
        shares.append(
            np.pad(ladder.shares[ladder.chosen, -step - 1 :], (0, len(levels) - step - 1))
        )
        optimiser.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimiser.step()
    return monitor, np.array(looks), np.array(shares)


@pytest.mark.parametrize("kind", ["constant", "swinging", "impulses"])
def test_damping_does_not_turn_the_eigenvectors(kind, rng, seed):
    steps = 25
    levels = {
        "constant": np.full(steps, 2000.0),
        "swinging": rng.uniform(0, 2000, steps),
        "impulses": 2000.0 * (rng.random(steps) < 0.2),
    }[kind]
    plain, looks, shares = watched_with_damping(seed, np.zeros(steps))
    damped, damped_looks, damped_shares = watched_with_damping(seed, levels)
    # A product is rounded to eps·σ²; a hundred times that a look leaves room for small gaps.
    tolerance = 100 * steps * EPS * 2000.0
    assert torch.linalg.norm(damped.eigenvectors - plain.eigenvectors) <= tolerance
    assert damped_looks - looks == pytest.approx(levels, abs=tolerance)
    assert damped_shares == pytest.approx(shares, abs=1e-9)  # nor what each look counts
    for name in ("background", "sharpness"):
        recorded = [np.array([r[name] for r in m.records]) for m in (damped, plain)]
        assert np.subtract(*recorded) == pytest.approx(shares @ levels, abs=tolerance)


def test_monitor_follows_a_network_in_training():
    """A short piece of the benchmark: three checkpoints of digits, at its bound."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    inputs, targets = torch.tensor(digits.data / 16), torch.tensor(digits.target)
    model = perceptron(0, (64, 16, 10))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    monitor = bft.HessianMonitor(model, cross_entropy, k=3)
    generator = torch.Generator().manual_seed(0)
    captured = []
    for step in range(1, 91):
        chosen = torch.randperm(len(inputs), generator=generator)[:128]
        batch = inputs[chosen], targets[chosen]
        monitor.step(batch)
        if step % 30 == 0:
            full = bft.hessian(model, cross_entropy, (inputs, targets))
            best = bf.decompose(full, k=3, rng=0).eigenvalues.sum()
            vectors = monitor.eigenvectors
            captured.append(float((vectors * (full @ vectors)).sum() / best))
        optimiser.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimiser.step()
    assert np.median(captured) >= 0.97


def test_every_and_records(seed, tmp_path):
    class Run:
        logged = ()

        def log(self, values):
            self.logged = (*self.logged, values)

    class Writer:
        scalars = ()

        def add_scalar(self, name, value, step):
            self.scalars = (*self.scalars, (name, value, step))

    run, writer = Run(), Writer()
    model, batch = perceptron(seed), samples(seed)
    with JSONLines(tmp_path / "looks.jsonl") as lines:
        sinks = [lines, TensorBoard(writer, "hessian/"), WandB(run, "hessian/")]
        monitor = bft.HessianMonitor(model, cross_entropy, k=2, every=3, sinks=sinks)
        for _ in range(7):
            monitor.step(batch)
    assert [record["step"] for record in monitor.records] == [1, 4, 7]
    stored = [json.loads(line) for line in (tmp_path / "looks.jsonl").read_text().splitlines()]
    assert stored == monitor.records
    assert ("hessian/sharpness", monitor.sharpness, 7) in writer.scalars
    assert ("hessian/eigenvalues_1", monitor.eigenvalues[1].item(), 7) in writer.scalars
    assert not any(name == "hessian/step" for name, _, _ in writer.scalars)
    assert [values["hessian/step"] for values in run.logged] == [1, 4, 7]
    assert run.logged[-1]["hessian/alignment"] == monitor.alignment


def test_recorder_feeds_tensorboard(rng):
    """Numbers only, also those of an ensemble; words stay out."""
    scalars = {}

    class Writer:
        def add_scalar(self, name, value, step):
            scalars[name, step] = value

    recorder = bf.Recorder(sinks=[TensorBoard(Writer(), "")], measures={"note": lambda s, p: "hm"})
    tracker = bf.EigenTracker()
    start = tracker.init(bf.random_basis(4, rng=rng, ensemble=(2,)))
    bf.run(tracker, [np.diag([4.0, 3, 2, 1])] * 3, start, monitors=[recorder])
    assert scalars["lyapunov_1", 2] == recorder.records[2]["lyapunov"][1]
    assert not any(name.startswith(("note", "step")) for name, _ in scalars)


def test_resumed_monitor_goes_on_as_if_uninterrupted(seed, tmp_path):
    model = perceptron(seed)
    whole, first, second = (bft.HessianMonitor(model, cross_entropy, k=2) for _ in range(3))
    for step in range(8):
        whole.step(samples(step))
    for step in range(4):
        first.step(samples(step))
    bf.save(tmp_path / "look", first.state)
    second.state = bf.load(tmp_path / "look").state
    for step in range(4, 8):
        second.step(samples(step))
    assert torch.equal(whole.eigenvectors, second.eigenvectors)


def test_tensorboard_files_hold_the_records(seed, tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    with warnings.catch_warnings():  # of protobuf and the like
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(tmp_path) as writer:
            sink = TensorBoard(writer)
            monitor = bft.HessianMonitor(perceptron(seed), cross_entropy, k=2, sinks=[sink])
            for _ in range(3):
                monitor.step(samples(seed))
        events = EventAccumulator(str(tmp_path)).Reload().Scalars("bracketflow/eigenvalues_0")
    assert [event.step for event in events] == [1, 2, 3]
    expected = [record["eigenvalues"][0] for record in monitor.records]
    assert [event.value for event in events] == pytest.approx(expected, rel=1e-6)  # float32 files


def test_plot_draws_the_records(seed):
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    monitor = bft.HessianMonitor(perceptron(seed), cross_entropy, k=3)
    for _ in range(4):
        monitor.step(samples(seed))
    axes = monitor.plot()
    assert len(axes.lines) == 3
    assert axes.lines[0].get_ydata() == pytest.approx([r["sharpness"] for r in monitor.records])
    mine = pyplot.figure().subplots()
    assert monitor.plot(mine) is mine
    pyplot.close("all")


# Bad input --------------------------------------------------------------------------------------


def test_monitor_is_as_it_was_after_a_bad_batch(seed):
    model, (inputs, targets) = perceptron(seed), samples(seed)
    monitor = bft.HessianMonitor(model, cross_entropy, k=2)
    monitor.step((inputs, targets))
    state, records = monitor.state, list(monitor.records)
    with pytest.raises(bf.ObservationError):
        monitor.step((torch.full_like(inputs, torch.inf), targets))
    assert monitor.state is state
    assert monitor.records == records


@pytest.mark.parametrize("batch", [torch.zeros(2, 6), (torch.zeros(2, 6),), [1, 2, 3], None])
def test_batch_that_is_not_a_pair(batch, seed):
    with pytest.raises(ValueError, match=r"batch must be a pair \(inputs, targets\), got"):
        bft.HessianMonitor(perceptron(seed), cross_entropy).step(batch)


def test_model_without_parameters(seed):
    with pytest.raises(ValueError, match="model has no parameters to look at"):
        bft.HessianMonitor(nn.Tanh(), cross_entropy)
    frozen = perceptron(seed).requires_grad_(False)
    with pytest.raises(ValueError, match="4 in all, none that requires gradients"):
        bft.hessian(frozen, cross_entropy, samples(seed))


def test_model_that_is_none():
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got function"):
        bft.HessianMonitor(lambda inputs: inputs, cross_entropy)


def test_unknown_parameters(seed):
    with pytest.raises(ValueError, match=r"params holds unknown names \['head'\].*0.weight"):
        bft.HessianMonitor(perceptron(seed), cross_entropy, params=["head"])
    with pytest.raises(TypeError, match="params must be a collection of names"):
        bft.HessianMonitor(perceptron(seed), cross_entropy, params="0.weight")


def test_mixed_or_half_precision(seed):
    model = perceptron(seed)
    model[0].float()
    with pytest.raises(TypeError, match=r"all be float32 or all float64.*float32 on cpu"):
        bft.HessianMonitor(model, cross_entropy)
    with pytest.raises(TypeError, match="float16 on cpu"):
        bft.HessianMonitor(perceptron(seed).half(), cross_entropy)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 54}, "k must be at least 1 and at most 53 .the number of parameters., got 54"),
        ({"k": 0}, "k must be at least 1"),
        ({"k": 2.5}, "k must be a whole number"),
        ({"every": 0}, "every must be at least 1, got 0"),
        ({"which": "middle"}, 'which must be "largest" or "smallest", got \'middle\''),
        ({"chunk": 0}, "chunk must be at least 1, got 0"),
    ],
)
def test_senseless_arguments(wrong, message, seed):
    with pytest.raises((ValueError, TypeError), match=message):
        bft.HessianMonitor(perceptron(seed), cross_entropy, **{"k": 2, **wrong})


def test_nothing_seen_yet(seed):
    monitor = bft.HessianMonitor(perceptron(seed), cross_entropy)
    for name in ("eigenvalues", "eigenvectors", "background", "sharpness", "alignment"):
        with pytest.raises(RuntimeError, match="nothing seen yet"):
            getattr(monitor, name)


def test_missing_torch_names_the_install_line():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import bracketflow\n"
        "try: import bracketflow.torch\n"
        "except ImportError as error: print(error)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'bracketflow[torch]'" in shown.stdout
