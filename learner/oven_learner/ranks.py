"""Training on several ranks. Rank 0 talks to the bus, and every rank gets the same messages at the same step.

Messages use a separate gloo group from the gradients. That group is on CPU, so that no rank waits for its device. It
is never used between two collectives of the trainer. A step costs one broadcast of 16 bytes, and messages follow in a
second one. Rank 0 asks the other ranks for their requests at most once per second.
"""

from __future__ import annotations

import logging
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from oven_core.errors import ConfigError
from oven_learner.link.link_interface import floats

if TYPE_CHECKING:
    import torch

log = logging.getLogger("oven.learner")

T = TypeVar("T")

ASK_S = 1.0
"""Seconds between two rounds of requests from the other ranks. Gathering them costs as much as the broadcast."""


class Ranks:
    """The ranks of one run. A single process waits for nothing.

    Every method is a collective: all ranks call the same methods in the same order. If a peer is dead the method
    raises, as the trainer's own next collective would.
    """

    def __init__(self, group: Any = None) -> None:
        """`group`: a group of torch.distributed with all ranks, for tensors on CPU; None for a single process."""
        self._group = group
        if group is not None:  # a single process needs no torch
            import torch

            self._torch, self._distributed = torch, torch.distributed
        self.index = rank() if group is not None else 0
        self.count = world() if group is not None else 1
        self.asker: int | None = None
        """The rank that asked for a stop in the last round, known on rank 0."""
        self._last_round_at = 0.0

    @classmethod
    def join(cls, timeout_s: float | None = None, *, processes: int | None = None) -> Ranks:
        """Make a group of all processes of torch.distributed.

        `timeout_s`: how long rank 0 may keep the others waiting between two steps; torch's default is half an hour.
        `processes`: the trainer's own count of processes. Raises ConfigError if the ranks cannot reach each other over
        TCP, or the counts differ.
        """
        if processes is not None and processes != world():
            raise ConfigError(
                f"the trainer counts {processes} processes and torch.distributed {world()}: decisions would reach only "
                "some; start them by torchrun or `accelerate launch`"
            )
        if world() == 1:
            return cls()
        from torch import distributed

        timeout = timedelta(seconds=timeout_s) if timeout_s else None
        try:
            return cls(distributed.new_group(backend="gloo", timeout=timeout))
        except RuntimeError as error:
            raise ConfigError(
                f"the {world()} ranks cannot reach each other over TCP, by which they agree on decisions: {error}; set "
                "GLOO_SOCKET_IFNAME to the network interface by which the nodes see each other"
            ) from error

    @property
    def leader(self) -> bool:
        return self.index == 0

    def same(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        return self._broadcast_bytes(pickle.dumps(value) if self.leader else b"") if self._group is not None else value

    def broadcast_if_any(self, get_news: Callable[[], T | None], *, asks: bool = False) -> T | None:
        """Return rank 0's news on every rank; None if there are none.

        Only rank 0 calls `get_news`. If that raises, there are no news and all ranks continue. `asks`: this rank wants
        a stop; rank 0 finds it in `asker` within a second.
        """
        if self._group is None:
            return _or_default(get_news, None)
        packed, is_round = b"", False
        if self.leader:
            packed = _or_default(partial(_packed, get_news), b"")
            is_round = time.monotonic() >= self._last_round_at + ASK_S
        # On the CPU: torch's default device may be a GPU.
        head = self._torch.tensor([len(packed), int(is_round)], device="cpu")
        self._distributed.broadcast(head, src=0, group=self._group)
        size, is_round = head.tolist()
        news: T | None = self._broadcast_bytes(packed, size) if size else None
        if is_round:
            self._gather_requests(asks)
        return news

    def each(self, value: T) -> list[T]:
        """Return every rank's value, in the order of ranks."""
        if self._group is None:
            return [value]
        values: list[Any] = [None] * self.count
        self._distributed.all_gather_object(values, value, group=self._group)
        return values

    def mean(self, metrics: Mapping[str, float], names: Sequence[str]) -> Mapping[str, float]:
        """Replace, on rank 0, the metrics in `names` with the mean over the ranks that measured them.

        `names` are the same on every rank. The other ranks get their own metrics back.
        """
        if self._group is None or not names:
            return metrics
        metrics = floats(metrics)
        own = self._torch.tensor(
            [(metrics[name], 1.0) if name in metrics else (0.0, 0.0) for name in names],
            dtype=self._torch.float64,
            device="cpu",
        )  # (names, value and count)
        parts = [self._torch.empty_like(own) for _ in range(self.count)] if self.leader else None
        self._distributed.gather(own, parts, dst=0, group=self._group)
        if parts is None:
            return metrics
        total = self._torch.stack(parts).sum(0).tolist()
        means = {name: value / count for name, (value, count) in zip(names, total, strict=True) if count}
        return {**metrics, **means}

    def mean_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a scalar's mean over the ranks, in float32 on its own device.

        It uses the trainer's own group, so that only the reader of the mean waits for the device.
        """
        if self._group is None:
            return tensor
        total = tensor.detach().float().clone()
        self._distributed.all_reduce(total)
        return total / self.count

    def _gather_requests(self, asks: bool) -> None:
        own = self._torch.tensor([asks], device="cpu")
        answers = [self._torch.empty_like(own) for _ in range(self.count)] if self.leader else None
        self._distributed.gather(own, answers, dst=0, group=self._group)
        self._last_round_at = time.monotonic()
        if answers is not None:
            self.asker = next((index for index, answer in enumerate(answers) if answer.item()), None)

    def _broadcast_bytes(self, packed: bytes, size: int | None = None) -> Any:
        if size is None:
            head = self._torch.tensor([len(packed)], device="cpu")
            self._distributed.broadcast(head, src=0, group=self._group)
            size = int(head.item())
        body = self._torch.frombuffer(bytearray(packed or bytes(size)), dtype=self._torch.uint8)
        self._distributed.broadcast(body, src=0, group=self._group)
        return pickle.loads(body.numpy().tobytes())


def _packed(get_news: Callable[[], object]) -> bytes:
    news = get_news()
    return b"" if news is None else pickle.dumps(news)


def _or_default(get_news: Callable[[], T], default: T) -> T:
    try:
        return get_news()
    except Exception:
        log.exception("receiving decisions failed; training continues")
        return default


def rank() -> int:
    distributed = _distributed()
    return distributed.get_rank() if distributed else 0


def world() -> int:
    distributed = _distributed()
    return distributed.get_world_size() if distributed else 1


def barrier() -> None:
    """Wait for all ranks. A collective; it does nothing in a single process."""
    from torch import distributed

    if world() > 1:
        distributed.barrier()


def gather_rows(value: T, rows: int) -> tuple[range, list[T]]:
    """Return which of all ranks' rows are this rank's, and every rank's value in order. A collective."""
    from torch import distributed

    gathered: list[Any] = [None] * world()
    distributed.all_gather_object(gathered, (value, rows))
    start = sum(count for _, count in gathered[: rank()])
    return range(start, start + rows), [part for part, _ in gathered]


def from_leader(value: T) -> T:
    """Return rank 0's value on every rank, through the trainer's own group. A collective."""
    if world() == 1:
        return value
    from torch import distributed

    box: list[Any] = [value]
    distributed.broadcast_object_list(box, src=0)
    same: T = box[0]
    return same


def _distributed() -> Any:
    """Return torch.distributed, or None if torch is not imported or there is no process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None
