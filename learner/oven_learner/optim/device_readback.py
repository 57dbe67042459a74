"""One transfer a step from the device: what a step measured there is asked for in one piece, and never waited for.

On a CUDA device a step's numbers are stacked, copied into pinned memory behind the kernels that are queued already, and
published once per event says that they have arrived: at the end of their step if the device has come that far, else at
the end of a later one, always in order, each under its own tick and step. Elsewhere they are there at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

Publish = Callable[[int, int, Mapping[str, float]], object]
"""Tick, step, metrics."""


class Signal(Protocol):
    """What is asked of a torch.cuda.Event."""

    def query(self) -> bool: ...
    def synchronize(self) -> object: ...


@dataclass(slots=True)
class Transfer:
    """Numbers on their way: `values` is [len(names)], and means nothing before `signal` has come."""

    names: tuple[str, ...]
    values: torch.Tensor
    signal: Signal | None = None

    @property
    def here(self) -> bool:
        return self.signal is None or self.signal.query()

    def read(self) -> dict[str, float]:
        """Waits for them."""
        if self.signal is not None:
            self.signal.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


Start = Callable[[Mapping[str, torch.Tensor]], Transfer]


def transfer(numbers: Mapping[str, torch.Tensor]) -> Transfer:
    """Asks for scalars, each on whatever device. Waits for nothing on CUDA; elsewhere they are there on return."""
    names = tuple(numbers)
    scalars = [number.detach().reshape(()) for number in numbers.values()]
    if not any(scalar.is_cuda for scalar in scalars):
        return Transfer(names, torch.tensor([scalar.item() for scalar in scalars], dtype=torch.float64))
    device = next(scalar.device for scalar in scalars if scalar.is_cuda)
    stacked = torch.stack([scalar.to(device, torch.float64, non_blocking=True) for scalar in scalars])
    values = torch.empty(stacked.shape, dtype=torch.float64, pin_memory=True)
    values.copy_(stacked, non_blocking=True)
    signal = torch.cuda.Event()  # type: ignore[no-untyped-call]
    signal.record(torch.cuda.current_stream(device))
    return Transfer(names, values, signal)


@dataclass(slots=True)
class _Step:
    tick: int
    step: int
    known: dict[str, float]
    wanted: frozenset[str]
    coming: Transfer


@dataclass(slots=True)
class Readback:
    """The steps whose numbers are on their way, oldest first. The device's own queue bounds how many there can be."""

    publish: Publish
    absent_if_nan: frozenset[str] = frozenset()
    """Numbers for which NaN says that there was nothing to measure; any other NaN is published."""
    start: Start = transfer
    _waiting: deque[_Step] = field(default_factory=deque)
    _asked: Transfer | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What has been asked for in the step under way."""
        return self._asked.names if self._asked else ()

    def ask(self, numbers: Mapping[str, torch.Tensor]) -> None:
        """Once per step, as soon as they are computed: the sooner asked, the sooner here."""
        self._asked = self.start(numbers) if numbers else None

    def end_step(self, tick: int, step: int, known: Mapping[str, float], wanted: frozenset[str]) -> None:
        """The step's end: what is `known` on this side, and which of the numbers that were asked for are `wanted`."""
        coming = self._asked or Transfer((), torch.empty(0))
        self._waiting.append(_Step(tick, step, dict(known), wanted, coming))
        self._asked = None
        self.pass_on()

    def pass_on(self) -> None:
        """Publish what has arrived."""
        while self._waiting and self._waiting[0].coming.here:
            self._publish(self._waiting.popleft())

    def settle(self) -> None:
        """Wait for what is on its way, and publish it."""
        while self._waiting:
            self._publish(self._waiting.popleft())

    def forget(self) -> None:
        """Training begins anew."""
        self._waiting.clear()
        self._asked = None

    def _publish(self, step: _Step) -> None:
        found = {name: value for name, value in step.coming.read().items() if name in step.wanted}
        arrived = {n: value for n, value in found.items() if value == value or n not in self.absent_if_nan}
        self.publish(step.tick, step.step, {**arrived, **step.known})
