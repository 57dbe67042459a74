"""Functions that save and restore the state of the random generators of Python, NumPy and torch. They import neither
NumPy nor torch. A library that is not imported has no state yet."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

State = dict[str, Any]
"""Name of a generator → its state."""
GetAndSet = tuple[Callable[[], Any], Callable[[Any], object]]
"""Functions that return and set the state of a generator."""


def capture() -> State:
    """Return the state of all generators that are in use."""
    return {name: get() for name, (get, _) in _generators().items()}


def restore(state: State) -> None:
    """Restore the generators in `state`. Others stay unchanged."""
    generators = _generators()
    for name, generator_state in state.items():
        _, set_state = generators[name]
        set_state(generator_state)


@contextmanager
def preserve_state(model: Any) -> Iterator[None]:
    """Restore the random generators and the training modes of the model's modules at the end of the block."""
    state = capture()
    modes = {module: module.training for module in model.modules()} if hasattr(model, "modules") else {}
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        restore(state)


def _generators() -> dict[str, GetAndSet]:
    """Return the functions that get and set the state of each generator whose library is imported."""
    generators: dict[str, GetAndSet] = {"python": (random.getstate, random.setstate)}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        generators["numpy"] = (numpy.random.get_state, numpy.random.set_state)
    if torch is not None:
        generators["torch on the CPU"] = (torch.get_rng_state, torch.set_rng_state)
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            generators["torch on CUDA"] = (torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all)
    return generators
