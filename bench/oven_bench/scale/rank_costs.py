"""What the ranks of a run cost each other: real processes on gloo, and many simulated ranks on loopback."""

from __future__ import annotations

import resource
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import fmean, median
from typing import Any, Self

import psutil

from oven_bench.scale.costs import GroupCosts, broadcast_tree
from oven_bench.worker_processes import worker_pool
from oven_learner.actuators import ChangeResult
from oven_learner.ranks import Ranks

LIMIT_S = 120
"""Seconds after which a rank gives up on the others."""
GAP_S = 0.004
"""Pause before each call of rank 0, so that the other ranks wait for it as they do in training."""
WARM_UP = 10
ORDER = "x" * 3000
"""A message about as large as a decision of 17 agents."""


@dataclass(frozen=True)
class Calls:
    """Calls of one collective on one rank. All processes of a machine share the monotonic clock."""

    began_ns: list[int]
    ended_ns: list[int]
    cpu_s: float
    """CPU of the process per call."""


@dataclass(frozen=True)
class RankRecord:
    """What one rank measured."""

    connections: int
    step: Calls
    decision: Calls


def measure_group(count: int, steps: int, decisions: int) -> GroupCosts:
    """Measure the collectives of `Ranks` between `count` processes."""
    with tempfile.TemporaryDirectory() as folder, worker_pool(count, preload=["torch.distributed", __name__]) as pool:
        rendezvous = f"file://{Path(folder) / 'rendezvous'}"
        futures = [pool.submit(_serve_rank, index, count, rendezvous, steps, decisions) for index in range(count)]
        records = [future.result() for future in futures]
    return GroupCosts(
        ranks=count,
        connections=max(record.connections for record in records),
        step_s=_until_last([record.step for record in records]),
        decision_s=_until_last([record.decision for record in records]),
        step_cpu_s=fmean(record.step.cpu_s for record in records),
        decision_cpu_s=fmean(record.decision.cpu_s for record in records),
    )


def _serve_rank(index: int, count: int, rendezvous: str, steps: int, decisions: int) -> RankRecord:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=rendezvous, rank=index, world_size=count, timeout=timedelta(seconds=LIMIT_S)
    )
    process = psutil.Process()
    descriptors = process.num_fds()
    ranks = Ranks.join(LIMIT_S)
    connections = process.num_fds() - descriptors

    def decide() -> None:
        ranks.broadcast_if_any(lambda: ORDER)
        ranks.all_gather(ChangeResult("applied", 1.0, 2.0))

    try:
        return RankRecord(
            connections,
            _time_calls(ranks, lambda: ranks.broadcast_if_any(lambda: None), steps),
            _time_calls(ranks, decide, decisions),
        )
    finally:
        distributed.destroy_process_group()


def _time_calls(ranks: Ranks, call: Callable[[], object], repeats: int) -> Calls:
    began_ns, ended_ns, cpu_s = [], [], 0.0
    for number in range(-WARM_UP, repeats):
        if number == 0:
            cpu_s = time.process_time()
        if ranks.leader:
            time.sleep(GAP_S)
        began_ns.append(time.monotonic_ns())
        call()
        ended_ns.append(time.monotonic_ns())
    return Calls(began_ns[WARM_UP:], ended_ns[WARM_UP:], (time.process_time() - cpu_s) / repeats)


def _until_last(calls: Sequence[Calls]) -> float:
    """Return the median time in seconds from rank 0's call until the last rank's call has returned."""
    ends = zip(*(rank.ended_ns for rank in calls), strict=True)
    delays_ns: list[int] = [max(end) - began for began, end in zip(calls[0].began_ns, ends, strict=True)]
    return 1e-9 * median(delays_ns)


class SimulatedRanks(Ranks):
    """Rank 0 of many ranks. The others are sockets of this process, which receive everything and do nothing. The code
    is that of `Ranks`; only gloo is replaced."""

    def __init__(self, most_ranks: int) -> None:
        super().__init__(group=object())
        self.gloo = SimulatedGloo(most_ranks)
        self._distributed: Any = self.gloo
        self.use(most_ranks)

    def use(self, count: int) -> None:
        """Continue with this number of ranks, of which the rest is not used."""
        self.count = self.gloo.count = count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.gloo.close()


class SimulatedGloo:
    """The functions of torch.distributed that `Ranks` uses. Broadcasts and gathers are sent from socket to socket as
    gloo sends them, but one message after the other. The rings of `all_gather_object` are not sent."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.messages = 0
        """Messages between ranks so far."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < count + 512:
            resource.setrlimit(resource.RLIMIT_NOFILE, (count + 512, hard))
        with ExitStack() as opened:
            self._sockets = [opened.enter_context(socket.socket(type=socket.SOCK_DGRAM)) for _ in range(count)]
            for endpoint in self._sockets:
                endpoint.bind(("127.0.0.1", 0))
                # Python's own timeout would poll before each call.
                endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", LIMIT_S, 0))
            self._opened = opened.pop_all()
        self._addresses = [endpoint.getsockname() for endpoint in self._sockets]

    def close(self) -> None:
        self._opened.close()

    def broadcast(self, tensor: Any, src: int, group: object) -> None:
        data = {src: tensor.numpy().tobytes()}
        for sender, receiver in broadcast_tree(self.count):
            data[receiver] = self._pass(data[sender], sender, receiver)

    def gather(self, tensor: Any, gathered: Sequence[Any], dst: int, group: object) -> None:
        for sender in range(self.count):
            gathered[sender].copy_(tensor)
            if sender != dst:
                self._pass(tensor.numpy().tobytes(), sender, dst)

    def all_gather_object(self, values: list[Any], value: object, group: object) -> None:
        values[:] = [value] * self.count

    def broadcast_object_list(self, values: list[Any], src: int, group: object, device: object) -> None:
        """Leave rank 0's values as they are. `Ranks` calls this only at the start of a run."""

    def _pass(self, data: bytes, sender: int, receiver: int) -> bytes:
        self._sockets[sender].sendto(data, self._addresses[receiver])
        self.messages += 1
        return self._sockets[receiver].recv(65_536)
