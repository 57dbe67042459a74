"""The random generators that training draws from, taken and put back: Python's, NumPy's and torch's.

Nothing is imported for it: a library that is not loaded has no state yet.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CPU = "torch on the CPU"

State = dict[str, Any]
"""Generator → its state."""


def take() -> State:
    return {name: get() for name, (get, _) in _generators().items()}


def restore(state: State) -> None:
    """Generators that came into use since stay as they are."""
    generators = _generators()
    for name, value in state.items():
        generators[name][1](value)


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Whatever is measured within: the generators, and which parts of `model` are in training mode, are as before."""
    state = take()
    modes = {module: module.training for module in model.modules()} if hasattr(model, "modules") else {}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        restore(state)


def _generators() -> dict[str, tuple[Callable[[], Any], Callable[[Any], object]]]:
    """How each is read and set."""
    found: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {"python": (random.getstate, random.setstate)}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        found["numpy"] = (numpy.random.get_state, numpy.random.set_state)
    if torch is not None:
        found[CPU] = (torch.get_rng_state, torch.set_rng_state)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["torch on CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return found
