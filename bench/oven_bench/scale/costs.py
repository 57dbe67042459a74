"""The calculation behind `bench scale`: costs per second, step and decision, gloo's messages, and a day's table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from oven_core.protocol.rules import Rules
from oven_runs.server.embedded_server import MAX_STORE_BYTES

DAY_S = 86_400.0
PARAMETERS = 70e9
TYPES = {"bf16": 2, "f32": 4}
"""Type of the weights and moments → bytes of a value."""
PACES = {"10/min": 10 / 60, "100/s": 100.0}
"""Pace of the training → steps per second."""
HEADER_BYTES = 8
"""Bytes that `Ranks` broadcasts at each step."""
MEMORY_GB = 8
"""Memory for one rank's snapshots, for the row with the number that fits."""


@dataclass(frozen=True)
class Cost:
    """Messages and bytes at nats-server, in and out; events and bytes of the log; and CPU seconds by process."""

    messages: float = 0.0
    message_bytes: float = 0.0
    """Payloads and headers, as the server counts them."""
    events: float = 0.0
    store_bytes: float = 0.0
    """Growth of the log in the server's store."""
    copy_bytes: float = 0.0
    """Growth of log.jsonl, which `up` writes next to it."""
    server_s: float = 0.0
    mesh_s: float = 0.0
    agents_s: float = 0.0
    link_s: float = 0.0
    """CPU of the process that connects the learner."""

    def __add__(self, addend: Cost) -> Self:
        return type(self)(*(getattr(self, name) + getattr(addend, name) for name in _NAMES))

    def __mul__(self, factor: float) -> Self:
        return type(self)(*(factor * getattr(self, name) for name in _NAMES))

    def __sub__(self, subtrahend: Cost) -> Self:
        return self + subtrahend * -1.0


_NAMES = tuple(field.name for field in fields(Cost))


@dataclass(frozen=True)
class Block:
    """The measured costs of some steps at one pace."""

    ranks: int
    steps: int
    decisions: int
    seconds: float
    """Duration, with the wait for the last messages."""
    rank_messages: int
    """Messages between simulated ranks, without those of rings, which are not sent."""
    order_bytes: int
    """Bytes of the last decision as the ranks pass it on, or 0."""
    cost: Cost


@dataclass(frozen=True)
class GroupCosts:
    """The costs of real ranks on gloo. All of them share this machine's cores."""

    ranks: int
    connections: int
    """File descriptors that one rank needs for the group."""
    step_s: float
    """Time from rank 0's call until the last rank has the result."""
    decision_s: float
    """The same for a step with a decision: two broadcasts, and the comparison of the ranks' results."""
    step_cpu_s: float
    """CPU of an average rank per step."""
    decision_cpu_s: float
    """CPU of an average rank per step with a decision."""


@dataclass(frozen=True)
class Measured:
    """Everything that was measured on this machine."""

    ranks: int
    cores: int
    idle: Block
    paced: Sequence[Block]
    """A block without decisions for each of PACES, at the same or a reduced pace."""
    compared: Sequence[Block]
    """Blocks with 1 rank and with `ranks` ranks, with and without decisions."""
    groups: Sequence[GroupCosts]
    """In rising order of ranks."""
    gauges_s: float
    """CPU seconds of the optimizer's gauges per trained element."""

    def step(self, blocks: Sequence[Block]) -> Cost:
        """Return the cost of a step in blocks without decisions."""
        return self._above_idle(blocks) * (1 / sum(block.steps for block in blocks))

    def decision(self, blocks: Sequence[Block]) -> Cost:
        """Return the cost of a decision in addition to its steps."""
        deciding = [block for block in blocks if block.decisions]
        step = self.step([block for block in blocks if not block.decisions])
        extra = self._above_idle(deciding) - step * sum(block.steps for block in deciding)
        return extra * (1 / sum(block.decisions for block in deciding))

    def _above_idle(self, blocks: Sequence[Block]) -> Cost:
        idle = self.idle.cost * (1 / self.idle.seconds)
        return sum((block.cost - idle * block.seconds for block in blocks), Cost())

    def per_day(self, paced: Block, steps_per_s: float, decisions: float) -> Cost:
        idle = self.idle.cost * (DAY_S / self.idle.seconds)
        return idle + self.step([paced]) * (DAY_S * steps_per_s) + self.decision(self.compared) * decisions

    def with_ranks(self, ranks: int) -> list[Block]:
        return [block for block in self.compared if block.ranks == ranks]


def broadcast_tree(count: int) -> Iterator[tuple[int, int]]:
    """Yield the (sender, receiver) pairs of gloo's broadcast from rank 0, in order. In round i, each rank below 2ⁱ
    sends to the rank 2ⁱ above it (gloo/broadcast.cc)."""
    for distance in (1 << number for number in range(tree_rounds(count))):
        for sender in range(min(distance, count - distance)):
            yield sender, sender + distance


def tree_rounds(count: int) -> int:
    """Return the number of rounds of a broadcast: log2 of the ranks, rounded up."""
    return (count - 1).bit_length()


def messages_per_step(count: int, steps_per_s: float) -> float:
    """Return the messages between ranks per step: a broadcast, and a collection of stop requests at most once per
    second."""
    return (count - 1) * (1 + min(1.0, 1 / steps_per_s))


def ring_time(count: int, cores: int) -> float:
    """Return the relative time of gloo's all-gather: each part passes through all other ranks (gloo/allgather.cc), and
    all ranks work at every hop, so they wait for each other if they share too few cores."""
    return (count - 1) * max(1.0, count / cores)


@dataclass(frozen=True)
class Line:
    """A least-squares line."""

    intercept: float
    slope: float
    error: float
    """Root mean square of the residuals, as a share of the values' mean."""

    @classmethod
    def fit(cls, x: Sequence[float], y: Sequence[float]) -> Self:
        slope, intercept = np.polyfit(x, y, 1)
        residuals = np.asarray(y) - (intercept + slope * np.asarray(x))
        return cls(float(intercept), float(slope), float(np.sqrt(np.mean(residuals**2)) / np.mean(y)))

    def __call__(self, x: float) -> float:
        return self.intercept + self.slope * x


class RankModel:
    """Extrapolates the costs of real ranks to more ranks, each of which has its own core."""

    def __init__(self, groups: Sequence[GroupCosts], cores: int) -> None:
        groups = [group for group in groups if group.ranks > 1]
        others = [group.ranks - 1 for group in groups]
        self.hop_s = next(group.step_s for group in groups if group.ranks == 2)
        """Time of a broadcast to one other rank. Both have their own core, if there are two."""
        self.by_rounds = Line.fit([tree_rounds(group.ranks) for group in groups], [group.step_s for group in groups])
        self.by_ranks = Line.fit(others, [group.step_s for group in groups])
        """The time of a broadcast on shared cores, by its rounds and by the number of other ranks."""
        self.decision = Line.fit(
            [ring_time(group.ranks, cores) for group in groups], [group.decision_s for group in groups]
        )
        self.decision_cpu = Line.fit(others, [group.decision_cpu_s for group in groups])
        self.connections = Line.fit(others, [group.connections for group in groups])


def table(measured: Measured) -> list[dict[str, object]]:
    """Compute the costs of a day at each of PACES, with this number of ranks and 70 billion parameters."""
    ranks, decisions, paces = measured.ranks, Rules().max_interventions, list(PACES.values())
    days = [measured.per_day(block, pace, decisions) for block, pace in zip(measured.paced, paces, strict=True)]
    model, largest = RankModel(measured.groups, measured.cores), measured.groups[-1]
    broadcast_s = model.hop_s * tree_rounds(ranks)
    decision_s = model.decision(ring_time(ranks, ranks))
    rows: list[dict[str, object]] = []

    def add(what: str, values: Sequence[float], source: str) -> None:
        rounded = (float(f"{value:.4g}") for value in values)
        rows.append({"what": what, **dict(zip(PACES, rounded, strict=True)), "source": source})

    def add_equal(what: str, value: float, source: str) -> None:
        add(what, [value] * len(paces), source)

    add("thousand steps per day", [DAY_S * pace / 1e3 for pace in paces], "assumed")
    add_equal("decisions per day", decisions, "default limit")
    add("thousand messages at nats-server", [day.messages / 1e3 for day in days], "computed")
    add("GB at nats-server", [day.message_bytes / 1e9 for day in days], "computed")
    add("thousand events in the log", [day.events / 1e3 for day in days], "computed")
    add("GB of log in the server's store", [day.store_bytes / 1e9 for day in days], "computed")
    add("GB of its copy log.jsonl", [day.copy_bytes / 1e9 for day in days], "computed")
    add("days until the store is full", [MAX_STORE_BYTES / day.store_bytes for day in days], "computed")
    add("nats-server, % of a core", [100 * day.server_s / DAY_S for day in days], "computed")
    add("mesh, % of a core", [100 * day.mesh_s / DAY_S for day in days], "computed")
    add("agents, % of a core", [100 * day.agents_s / DAY_S for day in days], "computed")
    add("learner's link, % of a core", [100 * day.link_s / DAY_S for day in days], "computed")
    add("messages between ranks per step", [messages_per_step(ranks, pace) for pace in paces], "simulated")
    add_equal("bytes to each rank per step", HEADER_BYTES, "simulated")
    add("each rank's messages, % of a core", [100 * pace * largest.step_cpu_s for pace in paces], "measured")
    add_equal("ms until the last rank has a step", 1e3 * broadcast_s, "extrapolated")
    add("the same, % of a step", [100 * pace * broadcast_s for pace in paces], "extrapolated")
    add_equal("ms of pause for a decision", 1e3 * decision_s, "extrapolated")
    add("the same, in steps", [pace * decision_s for pace in paces], "extrapolated")
    add_equal("ms of each rank's CPU for a decision", 1e3 * model.decision_cpu(ranks - 1), "extrapolated")
    add_equal("file descriptors per rank", model.connections(ranks - 1), "extrapolated")
    for name, size in TYPES.items():
        snapshot_bytes = 3 * PARAMETERS * size / ranks  # the weights and two moments
        add_equal(f"GB per snapshot and rank, {name}", snapshot_bytes / 1e9, "computed")
        add_equal(f"snapshots in {MEMORY_GB} GB, {name}", MEMORY_GB * 1e9 // snapshot_bytes, "computed")
    add_equal("ms of gauges per step, on this CPU", 1e3 * measured.gauges_s * PARAMETERS / ranks, "computed")
    return rows
