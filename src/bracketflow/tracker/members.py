"""An ensemble is many problems side by side: one product for all, then each for itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from bracketflow.core import Array, Probe, State, namespace


def members_of(state: State) -> list[State]:
    """The states of the members, in C order; of a single problem its own."""
    ensemble = tuple(state.basis.shape[:-2])
    return [state] if not ensemble else [member(state, index) for index in np.ndindex(ensemble)]


def member(tree: Any, index: tuple[int, ...]) -> Any:
    """One member of nested tuples of arrays with the ensemble's leading axes."""
    if tree is None:
        return None
    if isinstance(tree, tuple):
        parts = (member(part, index) for part in tree)
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree[index] if np.ndim(tree) or hasattr(tree, "shape") else tree


def stack_trees(trees: list[Any], ensemble: tuple[int, ...]) -> Any:
    """The inverse of `member` for all members of an ensemble; of a single problem the tree."""
    if not ensemble:
        return trees[0]
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        parts = [stack_trees(list(part), ensemble) for part in zip(*trees, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return stack(trees, ensemble)


def stack(arrays: list[Any], ensemble: tuple[int, ...]) -> Array:
    """Arrays of the members as one with leading axes."""
    xp = (
        np if isinstance(arrays[0], np.ndarray | np.generic | float | int) else namespace(arrays[0])
    )
    together = xp.stack([xp.asarray(array) for array in arrays])
    return xp.reshape(together, (*ensemble, *together.shape[1:]))


def stack_probes(probes: list[Probe], ensemble: tuple[int, ...]) -> Probe:
    """One probe of all members."""
    if not ensemble:
        return probes[0]
    names = ("basis", "centred", "background", "rayleigh")
    basis, image, level, rayleigh = (
        stack([getattr(probe, name) for probe in probes], ensemble) for name in names
    )
    return Probe(basis, image, level, rayleigh, probes[0].matvecs)
