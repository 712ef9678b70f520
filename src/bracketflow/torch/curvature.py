"""Hessian, Gauss–Newton and gradient covariance of a model on a batch, as operators.

Products are vectorised over the columns by `torch.func`, with reverse mode only: a pullback that
is linear in its cotangent is pulled back once more where the Jacobian itself is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bracketflow.core import ObservationError, whole_number
from bracketflow.oracles import Operator

LossFunction = Callable[[Any, Any], Tensor]
Parameters = dict[str, Tensor]
vjp: Any = torch.func.vjp  # its annotation knows no third result, the auxiliary one
COLUMNS_ON_CPU = 12  # at once: more of them only leave the cache


@dataclass(eq=False, kw_only=True)
class Curvature(Operator):
    """A curvature operator on flat parameters, with the loss and gradient it came with.

    A snapshot: later changes of the model do not reach it.
    """

    loss: float
    gradient: Tensor
    """Of the loss, (P,)."""


def hessian(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Sequence[Any],
    *,
    params: Iterable[str] | None = None,
    chunk: int | None = None,
) -> Curvature:
    """∇²L of the loss on a batch, P × P.

    Parameters
    ----------
    model : torch.nn.Module
        In the mode it is in: layers that draw (dropout) draw once, here; buffers stay as they are.
    loss_fn : function of (output, targets) that gives one number
        It may use the parameters of the model too, for example in a penalty.
    batch : (inputs, targets)
        Inputs are one tensor, a tuple or list of arguments, or a mapping of named ones.
    params : names of parameters, optional
        As in `model.named_parameters()`; default: all that require gradients.
    chunk : int, optional
        Columns multiplied at once; default: 12 on a CPU, all of them elsewhere. Halved by itself
        when memory runs out.

    Returns
    -------
    Curvature
        Its weight is the number of samples, so that averages over batches agree.
    """
    point = _Point(model, loss_fn, batch, params)
    gradient, pull, loss = vjp(grad_and_value(point.loss), point.values, has_aux=True)
    # ∇²L is symmetric: pulling a vector back through the gradient multiplies it.
    return point.operator(loss, gradient, lambda column: pull(column)[0], chunk)


def gauss_newton(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Sequence[Any],
    *,
    params: Iterable[str] | None = None,
    chunk: int | None = None,
) -> Curvature:
    """Jᵀ(∇²_output L)J, the generalised Gauss–Newton matrix; arguments as for `hessian`.

    J is the Jacobian of the output; positive semidefinite where the loss is convex in the output.
    A penalty on the parameters in `loss_fn` is no function of the output and adds nothing.
    """
    point = _Point(model, loss_fn, batch, params)
    output, pull = vjp(point.output, point.values)
    push = _transposed(pull, output)
    slope, curve, loss = vjp(grad_and_value(point.loss_of), output, has_aux=True)
    gradient = pull(slope)[0]
    return point.operator(loss, gradient, lambda column: pull(*curve(push(column)))[0], chunk)


def gradient_covariance(
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Sequence[Any],
    *,
    params: Iterable[str] | None = None,
    chunk: int | None = None,
    centred: bool = True,
) -> Curvature:
    """(1/b) Σ (g_i − ḡ)(g_i − ḡ)ᵀ of the gradients g_i of single samples, never held as b × P.

    `loss_fn` is called with every sample as a batch of one; `loss` and `gradient` are the means.
    `centred=False` leaves out ḡ: the empirical Fisher matrix (1/b) Σ g_i g_iᵀ. Other arguments as
    for `hessian`.
    """
    point = _Point(model, loss_fn, batch, params)
    losses, pull = vjp(point.losses, point.values)
    push = _transposed(pull, losses)
    (gradient,) = pull(torch.full_like(losses, 1 / len(losses)))

    def product(column: Parameters) -> Parameters:
        slopes = push(column)
        slopes = slopes - slopes.mean() if centred else slopes
        return pull(slopes / len(losses))[0]  # type: ignore[no-any-return]

    return point.operator(losses.mean(), gradient, product, chunk)


def _transposed(pull: Callable[..., Any], output: Any) -> Callable[[Parameters], Any]:
    """v → Jv from u → Jᵀu, which is linear in u: its own pullback, at any u."""
    _, push = vjp(lambda cotangent: pull(cotangent)[0], output)
    return lambda column: push(column)[0]


class _Point:
    """The loss on a batch as a function of the chosen parameters, at a copy of their values."""

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        batch: Sequence[Any],
        params: Iterable[str] | None,
    ):
        self.inputs, self.targets = _pair(batch)
        self.loss_fn = loss_fn
        self.within = _Within(model)
        names = chosen_parameters(model, params)
        everything = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self.values = {name: everything.pop(name).detach().clone() for name in names}
        self.others = everything

    def _call(self, values: Parameters, compute: Callable[[nn.Module], Any]) -> Any:
        """`compute(model)` while the model's parameters are `values`."""
        # Copied here, not before: `torch.func` lets layers change (batch normalisation) only what
        # was made inside its transforms.
        others = {name: value.detach().clone() for name, value in self.others.items()}
        replaced = {f"model.{name}": value for name, value in {**others, **values}.items()}
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            return functional_call(self.within, replaced, (compute,))

    def _predict(self, model: nn.Module) -> Any:
        if isinstance(self.inputs, Mapping):
            return model(**self.inputs)
        if isinstance(self.inputs, tuple | list):
            return model(*self.inputs)
        return model(self.inputs)

    def output(self, values: Parameters) -> Any:
        return self._call(values, self._predict)

    def loss_of(self, output: Any) -> Tensor:
        return _one_number(self.loss_fn(output, self.targets))

    def loss(self, values: Parameters) -> Tensor:
        loss: Tensor = self._call(values, lambda model: self.loss_of(self._predict(model)))
        return loss

    def losses(self, values: Parameters) -> Tensor:
        """Of every sample alone, as a batch of one: loss functions expect the batch axis."""

        def of_one(output: Tensor, target: Tensor) -> Tensor:
            return _one_number(self.loss_fn(output[None], target[None]))

        losses: Tensor = self._call(
            values, lambda model: vmap(of_one)(self._predict(model), self.targets)
        )
        return losses

    def operator(
        self,
        loss: Tensor,
        gradient: Parameters,
        product: Callable[[Parameters], Parameters],
        chunk: int | None,
    ) -> Curvature:
        """The operator of a product with one column, given and returned as parameters."""
        if not bool(torch.isfinite(loss)):
            raise ObservationError(
                "non-finite",
                f"the loss on this batch is {loss.item()}: check inputs, targets and parameters, "
                "or leave this batch out",
            )
        flat = torch.cat([part.detach().reshape(-1) for part in gradient.values()])
        size = checked_chunk(chunk)
        if size is None and flat.device.type == "cpu":
            size = COLUMNS_ON_CPU
        return Curvature(
            n=len(flat),
            product=_blockwise(product, self.values, size),
            weight=float(_samples(self.targets)),
            stacks=False,
            like=flat[:0],
            loss=loss.item(),
            gradient=flat,
        )


class _Within(nn.Module):
    """Calls a function of the model from inside a module, so that it sees replaced parameters."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[nn.Module], Any]) -> Any:
        return compute(self.model)


def _blockwise(
    product: Callable[[Parameters], Parameters], like: Parameters, chunk: int | None
) -> Callable[[Tensor], Tensor]:
    """A product of (P, k) blocks from that of one column, `chunk` columns at once."""
    sizes = [value.numel() for value in like.values()]

    def of_rows(rows: Tensor, chunk: int | None) -> Tensor:
        parts = zip(like.items(), torch.split(rows, sizes, dim=1), strict=True)
        columns = {name: part.reshape(-1, *value.shape) for (name, value), part in parts}
        images = vmap(product, chunk_size=chunk)(columns)
        return torch.cat([images[name].reshape(len(rows), -1) for name in like], dim=1)

    def of_block(block: Tensor) -> Tensor:
        at_once = chunk
        while True:
            try:
                with torch.no_grad():
                    return of_rows(block.mT.contiguous(), at_once).mT.contiguous()
            except RuntimeError as error:
                at_once = min(at_once or block.shape[1], block.shape[1]) // 2
                if not (at_once and _out_of_memory(error)):
                    raise

    return of_block


def _out_of_memory(error: RuntimeError) -> bool:
    """Whether an accelerator or, which has no error class of its own, the CPU is out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _pair(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        found = f"{len(batch)} parts" if isinstance(batch, tuple | list) else type(batch).__name__
        raise ValueError(
            f"batch must be a pair (inputs, targets), got {found}: "
            "several inputs go into one tuple, ((first, second), targets)"
        )
    return batch[0], batch[1]


def _one_number(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"loss_fn must give a tensor, got {type(loss).__name__}")
    if loss.ndim:
        raise ValueError(
            f"loss_fn must give one number, got shape {tuple(loss.shape)}: use reduction='mean', "
            "or take the mean inside it"
        )
    return loss


def checked_chunk(chunk: int | None) -> int | None:
    """None, or a whole number of columns."""
    return None if chunk is None else whole_number(chunk, "chunk", at_least=1)


def _samples(targets: Any) -> int:
    return len(targets) if isinstance(targets, Tensor) and targets.ndim else 1


def chosen_parameters(model: nn.Module, params: Iterable[str] | None) -> list[str]:
    """Names of the parameters to use, checked: present, of one dtype and on one device."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if isinstance(params, str):
        raise TypeError(f"params must be a collection of names, got the string {params!r}")
    present = dict(model.named_parameters())
    if params is None:
        names = [name for name, value in present.items() if value.requires_grad]
    else:
        names = list(dict.fromkeys(params))
    unknown = [name for name in names if name not in present]
    if unknown:
        raise ValueError(f"params holds unknown names {unknown}: the model has {list(present)}")
    if not names:
        raise ValueError(
            f"model has no parameters to look at ({len(present)} in all, none that requires "
            "gradients): unfreeze some, or name them in params"
        )
    kinds = {(present[name].dtype, present[name].device) for name in names}
    if len(kinds) > 1 or next(iter(kinds))[0] not in (torch.float32, torch.float64):
        found = sorted(f"{dtype} on {device}" for dtype, device in kinds)
        raise TypeError(
            f"parameters must all be float32 or all float64 and on one device, got {found}: "
            "choose a subset with params, or convert the model"
        )
    return names
