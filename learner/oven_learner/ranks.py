"""Several ranks: rank 0 speaks to the bus, and every rank hears what it heard, at the same step.

What is decided travels apart from the gradients, in its own gloo group: on CPU, so that no rank waits for its
device, and never between two collectives of the trainer's. A step costs one broadcast of 16 bytes; news follow in a
second one. What other ranks have to say rank 0 asks for, once per second at most.
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
from oven_core.protocol.messages import LearnerMessage, LogMessage
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel

if TYPE_CHECKING:
    import torch

log = logging.getLogger("oven.learner")

T = TypeVar("T")

ASK_S = 1.0
"""Between two rounds in which the other ranks may ask for something: gathering costs as much again as the broadcast."""


class SilentLink:
    """The link of the other ranks: nothing goes out, nothing comes in but from rank 0."""

    dropped = 0

    def open(self) -> ResumeState:
        return ResumeState()

    def begin(self) -> None:
        pass

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        pass

    def show(self, make: Parcel) -> None:
        pass

    def receive(self) -> LogMessage | None:
        return None

    def close(self, timeout_s: float) -> bool:
        return True


class Ranks:
    """The ranks of one run, this process among them; one that is alone waits for no one.

    Every method is a collective: all ranks call the same ones in the same order. One whose peer is dead raises, as the
    trainer's own next collective would.
    """

    def __init__(self, group: Any = None) -> None:
        """`group`: of torch.distributed, with all ranks, for tensors on CPU; None: there is one process."""
        self._group = group
        self.index = rank() if group is not None else 0
        self.count = world() if group is not None else 1
        self.asker: int | None = None
        """On rank 0: a rank that asked for an end in the last round of questions."""
        self._asked_at = 0.0

    @classmethod
    def join(cls, timeout_s: float | None = None, *, processes: int | None = None) -> Ranks:
        """A group with all the others that torch.distributed knows. `timeout_s`: how long rank 0 may keep the others
        waiting between two steps; torch's default is half an hour. `processes`: so many the trainer counts.

        Raises ConfigError when the ranks cannot reach each other over TCP, or are not torch.distributed's.
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

    def same(self, said: T) -> T:
        """Rank 0's `said`, on every rank."""
        return self._second(pickle.dumps(said) if self.leader else b"") if self._group is not None else said

    def broadcast_if_any(self, say: Callable[[], T | None], *, asks: bool = False) -> T | None:
        """What rank 0 says, on every rank; None: nothing. Only rank 0 calls `say`: if that raises it has said nothing,
        and all continue. `asks`: this rank wants an end; rank 0 finds that in `asker` within a second."""
        if self._group is None:
            return _unless_it_raises(say, None)
        import torch
        from torch import distributed

        packed, asking = b"", False
        if self.leader:
            packed = _unless_it_raises(partial(_packed, say), b"")
            asking = time.monotonic() >= self._asked_at + ASK_S
        head = torch.tensor([len(packed), asking], dtype=torch.int64, device="cpu")  # whatever its default is
        distributed.broadcast(head, src=0, group=self._group)
        size, asking = head.tolist()
        news: T | None = self._second(packed, size) if size else None
        if asking:
            self._ask(asks)
        return news

    def each(self, said: T) -> list[T]:
        """What every rank says, in the order of ranks."""
        if self._group is None:
            return [said]
        from torch import distributed

        box: list[Any] = [None] * self.count
        distributed.all_gather_object(box, said, group=self._group)
        return box

    def mean(self, metrics: Mapping[str, float], names: Sequence[str]) -> Mapping[str, float]:
        """On rank 0 its metrics, with those among `names`, which are the same on every rank, as the mean over the ranks
        that measured them. The others keep their own."""
        if self._group is None or not names:
            return metrics
        import torch
        from torch import distributed

        own = torch.tensor(
            [(metrics[name], 1.0) if name in metrics else (0.0, 0.0) for name in names],
            dtype=torch.float64,
            device="cpu",
        )  # (names, value and count)
        parts = [torch.empty_like(own) for _ in range(self.count)] if self.leader else None
        distributed.gather(own, parts, dst=0, group=self._group)
        if parts is None:
            return metrics
        total = torch.stack(parts).sum(0).tolist()
        means = {name: value / count for name, (value, count) in zip(names, total, strict=True) if count}
        return {**metrics, **means}

    def mean_on_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """A scalar's mean over the ranks, in float32 on its own device, by the trainer's own group: only who reads it
        waits for the device."""
        if self._group is None:
            return tensor
        from torch import distributed

        total = tensor.detach().float().clone()
        distributed.all_reduce(total)
        return total / self.count

    def _ask(self, asks: bool) -> None:
        import torch
        from torch import distributed

        own = torch.tensor([asks], device="cpu")
        answers = [torch.empty_like(own) for _ in range(self.count)] if self.leader else None
        distributed.gather(own, answers, dst=0, group=self._group)
        self._asked_at = time.monotonic()
        if answers is not None:
            self.asker = next((index for index, answer in enumerate(answers) if answer.item()), None)

    def _second(self, packed: bytes, size: int | None = None) -> Any:
        import torch
        from torch import distributed

        if size is None:
            head = torch.tensor([len(packed)], device="cpu")
            distributed.broadcast(head, src=0, group=self._group)
            size = int(head.item())
        body = torch.frombuffer(bytearray(packed or bytes(size)), dtype=torch.uint8)
        distributed.broadcast(body, src=0, group=self._group)
        return pickle.loads(body.numpy().tobytes())


def _packed(say: Callable[[], object]) -> bytes:
    said = say()
    return b"" if said is None else pickle.dumps(said)


def _unless_it_raises(say: Callable[[], T], instead: T) -> T:
    try:
        return say()
    except Exception:
        log.exception("hearing what was decided failed; training continues")
        return instead


def rank() -> int:
    """This process's rank; 0 without torch.distributed."""
    distributed = _distributed()
    return distributed.get_rank() if distributed else 0


def world() -> int:
    distributed = _distributed()
    return distributed.get_world_size() if distributed else 1


def barrier() -> None:
    """Come back when every rank is here. A collective; nothing in one process."""
    from torch import distributed

    if world() > 1:
        distributed.barrier()


def gather_rows(said: T, rows: int) -> tuple[range, list[T]]:
    """What every rank says, in the order of ranks, and which of all their rows are this one's. A collective."""
    from torch import distributed

    box: list[Any] = [None] * world()
    distributed.all_gather_object(box, (said, rows))
    start = sum(count for _, count in box[: rank()])
    return range(start, start + rows), [part for part, _ in box]


def broadcast(said: Any) -> Any:
    """Rank 0's `said`, on every rank. A collective."""
    from torch import distributed

    box = [said]
    distributed.broadcast_object_list(box, src=0)
    return box[0]


def from_leader(said: T) -> T:
    """Rank 0's `said`, by the trainer's own group; itself in one process. A collective."""
    if world() == 1:
        return said
    same: T = broadcast(said)
    return same


def _distributed() -> Any:
    """None where no one imported torch, or no process group was made: there is one process then."""
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None
