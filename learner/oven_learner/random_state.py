"""Copy and restore the state of the random generators of Python, NumPy and torch.

No library is imported for this: one that is not loaded has no state yet.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

State = dict[str, Any]
"""Generator → its state."""
GetAndSet = tuple[Callable[[], Any], Callable[[Any], object]]


def take() -> State:
    """Return the state of all generators that are in use."""
    return {name: get() for name, (get, _) in _generators().items()}


def restore(state: State) -> None:
    """Restore the generators in `state`. Others stay as they are."""
    generators = _generators()
    for name, value in state.items():
        generators[name][1](value)


@contextmanager
def undisturbed(model: Any) -> Iterator[None]:
    """Restore the random generators and the training modes of the model's parts after measuring something."""
    state = take()
    modes = {module: module.training for module in model.modules()} if hasattr(model, "modules") else {}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        restore(state)


def _generators() -> dict[str, GetAndSet]:
    """Return the functions that get and set each loaded generator's state."""
    generators: dict[str, GetAndSet] = {"python": (random.getstate, random.setstate)}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        generators["numpy"] = (numpy.random.get_state, numpy.random.set_state)
    if torch is not None:
        generators["torch on the CPU"] = (torch.get_rng_state, torch.set_rng_state)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            generators["torch on CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return generators
