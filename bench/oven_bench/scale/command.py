"""`bench scale`: what would the controller cost at 1,000 ranks and 70 billion parameters, over a day?

The costs of a step and of a decision are measured with a real nats-server, the mesh, the installed agents, and the
learner's client. Only rank 0 is connected, so blocks with 1 rank and with 1,000 ranks alternate: messages, bytes, and
CPU have to follow the decisions, not the ranks. The other 999 ranks are simulated. They are sockets of this process,
which receive what gloo would send them, at a reduced pace. Real processes on gloo show how long broadcasts and
comparisons take between up to 16 ranks.

The table has the costs of a day at two paces: 10 steps per minute and 100 steps per second. Rows are measured, computed
from measured costs, simulated, or extrapolated to ranks with their own cores on a network as fast as loopback. No GPU
and no model of that size is involved.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import click

from oven_agents.sdk.agent_session import WINDOW_LENGTH
from oven_bench.performance.stack_under_test import installed
from oven_bench.scale.bus_costs import Plan, measure_blocks
from oven_bench.scale.costs import Cost, Measured, RankModel, table
from oven_bench.scale.rank_costs import SimulatedRanks, measure_group
from oven_bench.study import Report, Study, progress

WARM_UP, IDLE = Plan(1, WINDOW_LENGTH + 30, 5.4, 2), Plan(1, 0, 10.0)
"""The blocks before the others. After the first, the agents' windows are full, and each process has worked once."""
PACED = (Plan(1, 60, 12.0), Plan(1, 500, 5.0))
"""A block for each of PACES. The first one is faster than 10 steps per minute, so that it ends after 12 s."""
COMPARED = tuple(Plan(1, 100, 5.0, requests) for requests in (0, 8, 20))
"""Blocks for each number of ranks. 999 sockets of one process can follow their pace."""
GROUP_STEPS, GROUP_DECISIONS = 100, 20
ELEMENTS = 4_000_000
"""Elements of the layer on which the gauges are timed."""
MAX_DIFFERENCE = 0.1
"""Relative difference in messages per step, between 1 rank and many, that the pace of heartbeats does not explain."""


def measure(ranks: int, processes: int, repeats: int, *, shorten: int = 1) -> Measured:
    """Measure everything, with blocks shorter by the factor `shorten`. Raises ProcessError if a process dies or nothing
    is decided."""
    plans = [WARM_UP, IDLE, *PACED]
    for number in range(repeats):
        for plan in COMPARED:
            plans += [replace(plan, ranks=count) for count in ((1, ranks) if number % 2 else (ranks, 1))]
    plans = [replace(plan, steps=plan.steps // shorten, seconds=plan.seconds / shorten) for plan in plans]
    counts = [1 << number for number in range(processes.bit_length())]
    with progress("parts", len(counts) + 1 + len(plans)) as advance:
        groups = []
        for count in counts:
            groups.append(measure_group(count, GROUP_STEPS // shorten, GROUP_DECISIONS // shorten))
            advance(f"real ranks {count}")
        gauges_s = _measure_gauges()
        advance("gauges")
        with SimulatedRanks(ranks) as simulated, tempfile.TemporaryDirectory() as scratch:
            _, idle, *blocks = asyncio.run(measure_blocks(Path(scratch), simulated, plans, advance))
    return Measured(ranks, _cores(), idle, blocks[: len(PACED)], blocks[len(PACED) :], groups, gauges_s)


def _measure_gauges() -> float:
    """Return the CPU seconds per element of the gauges of one step, for a float32 layer under AdamW."""
    import torch

    from oven_learner.optim.optimizer_gauges import OptimizerGauges

    torch.set_num_threads(1)
    model = torch.nn.Linear(2000, ELEMENTS // 2000, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    gauges = OptimizerGauges(optimizer, model, publishes=True)
    seconds = []
    for _ in range(6):
        model.weight.grad = torch.randn_like(model.weight)
        began = time.thread_time()
        gauges.before_step()
        middle = time.thread_time()
        optimizer.step()
        stepped = time.thread_time()
        gauges.after_step()
        seconds.append(time.thread_time() - stepped + middle - began)
    return median(seconds[1:]) / ELEMENTS  # the first step has no moments


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def report(measured: Measured) -> Report:
    """Report the costs at both numbers of ranks, and the table. It is a failure if messages follow the ranks."""
    figures: dict[str, Any] = {
        "agents": len(installed()),
        "cores": measured.cores,
        "load": round(os.getloadavg()[0], 1),
    }
    figures["second"] = _rounded(measured.idle.cost * (1 / measured.idle.seconds))
    messages = {}
    for ranks in (1, measured.ranks):
        blocks = measured.with_ranks(ranks)
        quiet = [block for block in blocks if not block.decisions]
        messages[ranks] = measured.step(quiet).messages
        between_ranks = sum(block.rank_messages for block in quiet) / sum(block.steps for block in quiet)
        figures[f"step_at_{ranks}"] = _rounded(measured.step(quiet)) | {"between_ranks": round(between_ranks)}
        figures[f"decision_at_{ranks}"] = _rounded(measured.decision(blocks))
    figures["decision_bytes_between_ranks"] = max(block.order_bytes for block in measured.compared)
    for name in ("step_s", "decision_s", "step_cpu_s", "decision_cpu_s"):
        by_ranks = {group.ranks: round(1e3 * getattr(group, name), 3) for group in measured.groups}
        figures["gloo_" + name.replace("_s", "_ms")] = by_ranks
    model = RankModel(measured.groups, measured.cores)
    lines = {"step_by_rounds": model.by_rounds, "step_by_ranks": model.by_ranks, "decision": model.decision,
             "decision_cpu": model.decision_cpu}  # fmt: skip
    figures["errors_of_lines"] = {name: round(line.error, 3) for name, line in lines.items()}
    figures["rows"] = rows = table(measured)
    failures = []
    if abs(messages[measured.ranks] / messages[1] - 1) > MAX_DIFFERENCE:
        failures.append(f"the messages of a step at nats-server depend on the number of ranks: {messages}")
    return Report(figures, rows, failures)


def _rounded(cost: Cost) -> dict[str, float]:
    """Return the cost with three digits, and its CPU in milliseconds."""
    values = asdict(cost)
    seconds = {name.replace("_s", "_ms"): 1e3 * values.pop(name) for name in list(values) if name.endswith("_s")}
    return {name: float(f"{value:.3g}") for name, value in (values | seconds).items()}


@click.option("--ranks", type=click.IntRange(min=2), default=1000, help="Simulated ranks.")
@click.option("--processes", type=click.IntRange(min=4), default=16, help="Maximum of real ranks, in powers of two.")
@click.option("--repeats", type=click.IntRange(min=1), default=2, help="Blocks of each kind.")
def bench(ranks: int, processes: int, repeats: int) -> Report:
    return report(measure(ranks, processes, repeats))


STUDY = Study("scale", bench, "--rows FILE", "It takes about 3 minutes. Exit code 1: messages follow the ranks.")
