"""Copies all metrics of a step from the device at once and publishes them, without waiting for the device.

On a CUDA device, the metrics are stacked and copied into pinned memory, behind the kernels that are already queued. At
the end of each step, all steps whose copies are complete are published in order, each with its own tick. On other
devices, the values are available immediately."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

Publish = Callable[[int, int, Mapping[str, float]], object]
"""A function that publishes metrics, called with (tick, step, metrics)."""


class CopyEvent(Protocol):
    """The event after a copy. This is the part of torch.cuda.Event that is used here."""

    def query(self) -> bool: ...
    def synchronize(self) -> object: ...


@dataclass(slots=True)
class Transfer:
    """Numbers that are being copied from the device. `values`, one per name, are valid once `event` has occurred."""

    names: tuple[str, ...]
    values: torch.Tensor
    event: CopyEvent | None = None

    @property
    def has_arrived(self) -> bool:
        return self.event is None or self.event.query()

    def read(self) -> dict[str, float]:
        """Wait for the numbers and return them by name."""
        if self.event is not None:
            self.event.synchronize()
        return dict(zip(self.names, self.values.tolist(), strict=True))


def start_transfer(numbers: Mapping[str, torch.Tensor]) -> Transfer:
    """Start copying scalar tensors from their devices. Only transfers from CUDA may be unfinished on return."""
    names = tuple(numbers)
    scalars = [number.detach().reshape(()) for number in numbers.values()]
    if not any(scalar.is_cuda for scalar in scalars):
        return Transfer(names, torch.tensor([scalar.item() for scalar in scalars], dtype=torch.float64))
    device = next(scalar.device for scalar in scalars if scalar.is_cuda)
    stacked = torch.stack([scalar.to(device, torch.float64, non_blocking=True) for scalar in scalars])
    values = torch.empty(stacked.shape, dtype=torch.float64, pin_memory=True)
    values.copy_(stacked, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return Transfer(names, values, event)


@dataclass(slots=True)
class _PendingStep:
    tick: int
    step: int
    metrics: dict[str, float]
    published_names: frozenset[str]
    transfer: Transfer


@dataclass(slots=True)
class Readback:
    """A queue of steps whose numbers are being copied, oldest first. The device's own queue limits its length."""

    publish: Publish
    absent_if_nan: frozenset[str] = frozenset()
    """Names of numbers for which NaN means that there was nothing to measure. Any other NaN is published."""
    start: Callable[[Mapping[str, torch.Tensor]], Transfer] = start_transfer
    _pending: deque[_PendingStep] = field(default_factory=deque)
    _current: Transfer | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers that were requested in the current step."""
        return self._current.names if self._current else ()

    def request(self, numbers: Mapping[str, torch.Tensor]) -> None:
        """Request the numbers of a step. Call this once per step, as soon as they are computed."""
        self._current = self.start(numbers) if numbers else None

    def end_step(self, tick: int, step: int, metrics: Mapping[str, float], published_names: frozenset[str]) -> None:
        """End a step with these `metrics`, plus the requested numbers in `published_names`."""
        requested = self._current or Transfer((), torch.empty(0))
        self._pending.append(_PendingStep(tick, step, dict(metrics), published_names, requested))
        self._current = None
        self.publish_arrived()

    def publish_arrived(self) -> None:
        """Publish the steps whose numbers have arrived."""
        while self._pending and self._pending[0].transfer.has_arrived:
            self._publish(self._pending.popleft())

    def settle(self) -> None:
        """Wait for all pending numbers and publish them."""
        while self._pending:
            self._publish(self._pending.popleft())

    def forget(self) -> None:
        """Discard all steps that have not been published."""
        self._pending.clear()
        self._current = None

    def _publish(self, step: _PendingStep) -> None:
        numbers = {
            name: value
            for name, value in step.transfer.read().items()
            if name in step.published_names and not (math.isnan(value) and name in self.absent_if_nan)
        }
        self.publish(step.tick, step.step, {**numbers, **step.metrics})
