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
MOST_DRAWS = 3
"""Draws of one integer that opening a loader takes from torch at most: its base seed, its sampler's, a generator's."""

State = dict[str, Any]
"""Generator → its state."""


def take() -> State:
    return {name: get() for name, (get, _) in _generators().items()}


def restore(state: State) -> None:
    """Generators that came into use since stay as they are."""
    generators = _generators()
    for name, value in state.items():
        generators[name][1](value)


def same(one: Any, other: Any) -> bool:
    """Whether two states, of one generator or of all, are equal bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool((one == other).all()) if hasattr(one, "shape") else bool(one == other)


class Advance:
    """What reading a batch did to the generators: an epoch that is opened draws its order, a dataset may crop."""

    def __init__(self, before: State, after: State) -> None:
        moved = {name for name in after if name in before and not same(before[name], after[name])}
        self._after = {name: after[name] for name in moved}
        self._draws = _integers_drawn(before[CPU], after[CPU]) if CPU in moved else 0
        if self._draws:
            del self._after[CPU]

    def repeat(self) -> None:
        """Once more. Draws of integers are drawn again, from wherever the generator is; what was drawn otherwise is
        not known, and the generators get the states that they had after it."""
        restore(self._after)
        for _ in range(self._draws):
            sys.modules["torch"].empty((), dtype=sys.modules["torch"].int64).random_()


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


def _integers_drawn(before: Any, after: Any) -> int:
    """How many 64-bit integers lead from one state to the other; 0 where it is not known."""
    torch = sys.modules["torch"]
    generator = torch.Generator()
    generator.set_state(before)
    for count in range(1, MOST_DRAWS + 1):
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        if same(generator.get_state(), after):
            return count
    return 0


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
