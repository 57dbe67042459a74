"""Communication between the ranks of a run, so that every rank gets the same messages at the same step.

Only rank 0 is connected to the bus. Messages use a separate gloo group on the CPU, so that no rank waits for its
device. The group is only used between steps, never between two collectives of the trainer. Each step costs one
broadcast of 8 bytes. If there are messages, they follow in a second broadcast. Rank 0 collects the stop requests of
the other ranks at most once per second.
"""

from __future__ import annotations

import logging
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from oven_core.errors import ConfigError, reason
from oven_learner.link.link_interface import to_floats

if TYPE_CHECKING:
    import torch

log = logging.getLogger("oven.learner")

T = TypeVar("T")

REQUEST_INTERVAL_S = 1.0
"""Seconds between two collections of stop requests. A collection takes as long as the broadcast of a step."""


class Ranks:
    """The ranks of one run. Every method is a collective, so all ranks must call the same methods in the same order. If
    another rank has died, the method raises an error, as the trainer's next collective would. A single process does
    not wait."""

    def __init__(self, group: Any = None) -> None:
        """`group` is a torch.distributed group of all ranks, for tensors on the CPU, or None for a single process."""
        self._group = group
        if group is not None:  # a single process does not import torch
            import torch

            self._torch, self._distributed = torch, torch.distributed
        self.index = rank() if group is not None else 0
        self.count = world_size() if group is not None else 1
        self.stop_requester: int | None = None
        """Rank that requested a stop in the last collection of requests. Only set on rank 0."""
        self._last_collection_at = 0.0

    @classmethod
    def join(cls, timeout_s: float | None = None, *, processes: int | None = None) -> Ranks:
        """Create a group of all processes of torch.distributed. `timeout_s` limits how long the other ranks wait for
        rank 0 between two steps. The default is torch's 30 minutes. `processes` is the trainer's count of processes.
        Raises ConfigError if the ranks cannot reach each other over TCP, or if the counts differ."""
        if processes is not None and processes != world_size():
            raise ConfigError(
                f"the trainer counts {processes} processes, but torch.distributed has {world_size()}, so decisions "
                "would not reach all of them; start them with torchrun or `accelerate launch`"
            )
        if world_size() == 1:
            return cls()
        from torch import distributed

        timeout = timedelta(seconds=timeout_s) if timeout_s else None
        try:
            return cls(distributed.new_group(backend="gloo", timeout=timeout))
        except RuntimeError as error:
            raise ConfigError(
                f"the {world_size()} ranks cannot reach each other over TCP, which they use to agree on decisions: "
                f"{error}; set GLOO_SOCKET_IFNAME to the network interface that connects the nodes"
            ) from error

    @property
    def leader(self) -> bool:
        return self.index == 0

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        if self._group is None:
            return value
        values: list[Any] = [value]
        # The device is explicit, because torch's default device may be a GPU.
        self._distributed.broadcast_object_list(values, src=0, group=self._group, device=self._torch.device("cpu"))
        rank_0_value: T = values[0]
        return rank_0_value

    def broadcast_if_any(self, get_message: Callable[[], T | None], *, wants_stop: bool = False) -> T | None:
        """Return rank 0's message on every rank, or None if there is none. Only rank 0 calls `get_message`. If it
        raises an error, there is no message and all ranks continue. `wants_stop` means that this rank requests a stop.
        Rank 0 then finds the request in `stop_requester` within a second."""
        message: T | None = None
        packed, collects_requests = b"", False
        if self.leader:
            try:
                message = get_message()
                packed = b"" if message is None or self._group is None else pickle.dumps(message)
            except Exception:
                log.exception("receiving decisions failed; training continues")
        if self._group is None:
            return message
        if self.leader:
            collects_requests = time.monotonic() >= self._last_collection_at + REQUEST_INTERVAL_S
        header = self._torch.tensor([2 * len(packed) + collects_requests], device="cpu")
        self._distributed.broadcast(header, src=0, group=self._group)
        byte_count, asks_for_requests = divmod(int(header), 2)
        message = self._broadcast_bytes(packed, byte_count) if byte_count else None
        if asks_for_requests:
            self._gather_requests(wants_stop)
        return message

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in rank order."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.count
        self._distributed.all_gather_object(values, value, group=self._group)
        return values

    def call_on_all(self, function: Callable[[], T]) -> T:
        """Call the function on all ranks, and return this rank's result. If the call fails on one rank, raise
        RuntimeError on every rank."""
        result: T | None = None
        failure = ""
        try:
            result = function()
        except Exception as error:
            failure = reason(error)
        failures = [text for text in self.all_gather(failure) if text]
        if failures:
            raise RuntimeError(failures[0])
        return cast("T", result)

    def mean(self, metrics: Mapping[str, float], names: Sequence[str]) -> Mapping[str, float]:
        """On rank 0, replace the metrics in `names` with their means over the ranks that measured them. `names` must be
        the same on every rank. The other ranks get their own metrics back."""
        if self._group is None or not names:
            return metrics
        metrics = to_floats(metrics)
        values_and_counts = self._torch.tensor(
            [(metrics[name], 1.0) if name in metrics else (0.0, 0.0) for name in names],
            dtype=self._torch.float64,
            device="cpu",
        )  # (names, 2)
        gathered = [self._torch.empty_like(values_and_counts) for _ in range(self.count)] if self.leader else None
        self._distributed.gather(values_and_counts, gathered, dst=0, group=self._group)
        if gathered is None:
            return metrics
        totals = self._torch.stack(gathered).sum(0).tolist()
        means = {name: value / count for name, (value, count) in zip(names, totals, strict=True) if count}
        return {**metrics, **means}

    def mean_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the mean of a scalar over the ranks, in float32 on its own device. The trainer's group computes it on
        the device, so that nothing waits until the mean is read."""
        if self._group is None:
            return tensor
        total = tensor.detach().float().clone()
        self._distributed.all_reduce(total)
        return total / self.count

    def _gather_requests(self, wants_stop: bool) -> None:
        request = self._torch.tensor([wants_stop], device="cpu")
        requests = [self._torch.empty_like(request) for _ in range(self.count)] if self.leader else None
        self._distributed.gather(request, requests, dst=0, group=self._group)
        self._last_collection_at = time.monotonic()
        if requests is not None:
            self.stop_requester = next((index for index, flag in enumerate(requests) if flag.item()), None)

    def _broadcast_bytes(self, packed: bytes, byte_count: int) -> Any:
        """Return rank 0's message on every rank. `packed` is empty on the other ranks."""
        buffer = bytearray(packed or bytes(byte_count))
        body = self._torch.frombuffer(buffer, dtype=self._torch.uint8)
        self._distributed.broadcast(body, src=0, group=self._group)
        return pickle.loads(body.numpy().tobytes())


def rank() -> int:
    """Return this process's rank, or 0 without torch.distributed."""
    distributed = _distributed()
    return distributed.get_rank() if distributed else 0


def world_size() -> int:
    """Return the number of ranks, or 1 without torch.distributed."""
    distributed = _distributed()
    return distributed.get_world_size() if distributed else 1


def barrier() -> None:
    """Wait for all ranks. This is a collective, and it does nothing in a single process."""
    from torch import distributed

    if world_size() > 1:
        distributed.barrier()


def gather_rows(value: T, row_count: int) -> tuple[range, list[T]]:
    """Return the range of this rank's rows among the rows of all ranks, and the values of all ranks in rank order.
    `row_count` is the number of this rank's rows. This is a collective."""
    from torch import distributed

    gathered: list[Any] = [None] * world_size()
    distributed.all_gather_object(gathered, (value, row_count))
    start = sum(count for _, count in gathered[: rank()])
    return range(start, start + row_count), [rank_value for rank_value, _ in gathered]


def broadcast_on_trainer_group(value: T) -> T:
    """Return rank 0's value on every rank, through the trainer's own group. This is a collective."""
    if world_size() == 1:
        return value
    from torch import distributed

    values: list[Any] = [value]
    distributed.broadcast_object_list(values, src=0)
    leader_value: T = values[0]
    return leader_value


def _distributed() -> Any:
    """Return torch.distributed, or None if torch is not imported or there is no process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None
