"""Several ranks: rank 0 speaks to the bus, and every rank hears what it heard, at the same step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from oven_controller.messages import Body, LearnerMessage
from oven_learner.past import Past

T = TypeVar("T")


class SilentLink:
    """The link of the other ranks: nothing goes out, nothing comes in but by `share`."""

    dropped = 0

    def open(self) -> Past:
        return Past()

    def begin(self) -> None:
        pass

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        pass

    def receive(self) -> Body | None:
        return None

    def close(self, timeout_s: float) -> bool:
        return True


def rank() -> int:
    """This process's rank; 0 without torch.distributed."""
    from torch import distributed

    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def world() -> int:
    from torch import distributed

    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def together() -> None:
    """Come back when every rank is here. A collective; nothing in one process."""
    from torch import distributed

    if world() > 1:
        distributed.barrier()


def gathered(said: T, rows: int) -> tuple[range, list[T]]:
    """What every rank says, in the order of ranks, and which of all their rows are this one's. A collective."""
    from torch import distributed

    box: list[Any] = [None] * world()
    distributed.all_gather_object(box, (said, rows))
    start = sum(count for _, count in box[: rank()])
    return range(start, start + rows), [part for part, _ in box]


def broadcast(said: Any) -> Any:
    """Rank 0's `said`, on every rank. A collective: every rank calls it at every step."""
    from torch import distributed

    box = [said]
    distributed.broadcast_object_list(box, src=0)
    return box[0]
