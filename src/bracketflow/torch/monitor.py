"""HessianMonitor: leading eigenvectors of the Hessian while a model trains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bracketflow.core import Result, State, Status, to_host, whole_number
from bracketflow.driver import read_off
from bracketflow.geometry import random_basis
from bracketflow.monitor import Record, Sink
from bracketflow.solve import Which, oriented, reoriented
from bracketflow.threads import one_at_a_time
from bracketflow.torch.curvature import (
    Curvature,
    LossFunction,
    checked_chunk,
    chosen_parameters,
    hessian,
)
from bracketflow.tracker import EigenTracker


class HessianMonitor:
    """Leading eigenvectors of the Hessian of a loss while the model trains.

    Call ``monitor.step((inputs, targets))`` anywhere in a training loop. A look multiplies the
    Hessian of this minibatch with 5k + 1 vectors, as `EigenTracker` does (with all, up to 64
    parameters), and averages it with the earlier looks, as far back as the training allows.

    Training is not disturbed: parameters, gradients, buffers, random numbers and modes stay as
    they are. The model is looked at in evaluation mode: dropout is off, batch normalisation uses
    its running statistics.

    Parameters
    ----------
    model : torch.nn.Module
    loss_fn : function of (output, targets) that gives one number
    k : int
        Eigenvectors to follow.
    every : int
        Steps between looks; the first step looks.
    which : "largest" or "smallest"
    params, chunk
        As for `hessian`.
    sinks : sequence of functions of one record
        Where `records` go too, for example `bracketflow.monitor.JSONLines(path)`.
    rng
        Seed or generator of the starting basis.

    Attributes
    ----------
    records : list of dicts
        One a look: step, loss, eigenvalues, background, sharpness, alignment, gradient_norm and
        the products spent so far.
    state : State
        What the tracker carries. `bracketflow.save` keeps it; assign it to go on from there.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        k: int = 5,
        every: int = 1,
        which: Which = "largest",
        *,
        params: Iterable[str] | None = None,
        chunk: int | None = None,
        sinks: Sequence[Sink] = (),
        rng: Any = 0,
    ):
        self.model = model
        self.loss_fn = loss_fn
        self.params = chosen_parameters(model, params)
        first = model.get_parameter(self.params[0])
        size = sum(model.get_parameter(name).numel() for name in self.params)
        self.k = whole_number(k, "k", at_least=1, at_most=size, limit="the number of parameters")
        self.every = whole_number(every, "every", at_least=1)
        if which not in ("largest", "smallest"):
            raise ValueError(f'which must be "largest" or "smallest", got {which!r}')
        self.which: Which = which
        self.chunk = checked_chunk(chunk)
        self.sinks = tuple(sinks)
        self.records: list[Record] = []
        self.steps = 0
        self.tracker = EigenTracker(self.k)
        start = random_basis(size, self.k, rng=rng, like=first.detach())
        self.state: State = self.tracker.init(start)
        self._result: Result | None = None

    @one_at_a_time
    def step(self, batch: Sequence[Any]) -> None:
        """Count a training step; look at this batch (inputs, targets) if the turn has come."""
        self.steps += 1
        if (self.steps - 1) % self.every:
            return
        with undisturbed(self.model):
            curvature = hessian(
                self.model, self.loss_fn, batch, params=self.params, chunk=self.chunk
            )
            operator = oriented(curvature, self.which)
            self.state, probe = self.tracker.step(operator, self.state)
        result = read_off(
            probe,
            self.state,
            Status.MOVING,
            eigenvalues=self.tracker.eigenvalues(self.state, probe),
            background=self.tracker.background(self.state),
        )
        self._result = reoriented(result, self.which)
        self._record(curvature)

    def _record(self, curvature: Curvature) -> None:
        inside = torch.linalg.vector_norm(self.eigenvectors.mT @ curvature.gradient)
        length = torch.linalg.vector_norm(curvature.gradient)
        record = {
            "step": self.steps,
            "matvecs": int(self.state.matvecs),
            "loss": curvature.loss,
            "eigenvalues": self.eigenvalues.tolist(),
            "background": float(to_host(self.result.background)),
            "sharpness": float(self.eigenvalues[0]),
            "gradient_norm": float(length),
            "alignment": float((inside / length) ** 2) if length > 0 else 0.0,
        }
        self.records.append(record)
        for sink in self.sinks:
            sink(record)

    @property
    def result(self) -> Result:
        """The last look's `Result`."""
        if self._result is None:
            raise _nothing_seen()
        return self._result

    @property
    def latest(self) -> Record:
        """The last look's record."""
        if not self.records:
            raise _nothing_seen()
        return self.records[-1]

    @property
    def eigenvalues(self) -> Tensor:
        """Largest first, (k,), averaged over the looks."""
        values: Tensor = self.result.eigenvalues
        return values

    @property
    def eigenvectors(self) -> Tensor:
        """Of the flat parameters, in the order of `eigenvalues`, (P, k)."""
        vectors: Tensor = self.result.eigenvectors
        return vectors

    @property
    def background(self) -> float:
        """Averaged level of the bulk, outside of the tracked eigenvectors, any damping included."""
        return float(self.latest["background"])

    @property
    def sharpness(self) -> float:
        """The largest eigenvalue that is tracked."""
        return float(self.latest["sharpness"])

    @property
    def alignment(self) -> float:
        """‖Vᵀg‖²/‖g‖²: the part of the last look's gradient in the tracked subspace, 0 … 1."""
        return float(self.latest["alignment"])

    def plot(self, axes: Any = None) -> Any:
        """Eigenvalues and, against the right axis, the gradient's alignment; gives the Axes."""
        try:
            from matplotlib import pyplot
        except ImportError:
            raise ImportError("plot needs matplotlib: pip install 'bracketflow[cli]'") from None
        axes = pyplot.subplots(layout="constrained")[1] if axes is None else axes
        steps = [record["step"] for record in self.records]
        axes.plot(steps, np.asarray([record["eigenvalues"] for record in self.records]))
        axes.set(xlabel="training step", ylabel=f"{self.k} {self.which} eigenvalues of the Hessian")
        right = axes.twinx()
        part = [record["alignment"] for record in self.records]
        right.plot(steps, part, ":", color="0.7", linewidth=0.8)
        right.set(ylabel="gradient's part in their span (dotted)", ylim=(0, 1))
        return axes


def _nothing_seen() -> RuntimeError:
    return RuntimeError("nothing seen yet: call monitor.step((inputs, targets)) first")


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within; every submodule's mode and all random numbers restored after."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {value.device for value in model.parameters()} - {torch.device("cpu")}
    kind = next((device.type for device in devices), "cuda")
    with torch.random.fork_rng(devices, device_type=kind):
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, training in modes:
                module.training = training
