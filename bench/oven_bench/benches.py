"""All benches by name. A bench's module is imported when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final

from oven_core.errors import UnknownNameError

SUMMARIES: Final[Mapping[str, str]] = {
    "committee": "A reward committee whose remote judges fail: wrong scores, skipped groups, faults by kind.",
    "configurations": "TRL's and transformers' trainers, alone and attached in observe: are both the same bits?",
    "foreign": "Training scripts of other authors, with and without the controller: does it do harm?",
    "gpu": "On one GPU: equal bits, step time, gauges, snapshots, steering, a drill, teachers, and unit tests.",
    "gym": "Faults in small training runs, repaired by the controller, by fixed rules, at random or not at all.",
    "hostile": "Faulty or hostile agents on the real stack, next to the same run without them.",
    "kg": "Our arrays against networkx on a large graph, and the prior service over NATS.",
    "latency": "Time from an observation to its decision, next to a bare relay through as many processes.",
    "monitor": "The monitor's CPU at 20 and 500 observations per second, key to paint, and first paint.",
    "opening": "Time and memory to open a run of 1,000,000 events in the monitor.",
    "overhead": "Observe and poll on the training thread, and a training step with and without the whole stack.",
    "reading": "Time of status, decisions, explain, log and replay on 1,000,000 events, and on a few hundred.",
    "rates": "Final bits per byte from a random learning rate: swarm, no controller, plateau rule, cosine schedule.",
    "sandbox": "Attacks on the sandbox for model-written code, honest programs in it, and its speed.",
    "scale": "A day at 1,000 ranks and 70 billion parameters, from costs measured on this machine.",
    "sharded": "Under FSDP2 on several ranks: the time of a step with gauges, and drills.",
    "snapshots": "Share of wall time that copies for rollback take, and the time of one copy.",
    "stacks": "Other versions of TRL, transformers and Lightning: alone, observed, and with one decision.",
    "starts": "Final held-out accuracy from random starts: swarm, no controller, blind schedule, plateau rule.",
    "step": "An optimizer step with the whole stack attached, next to plain TRL on the same model and task.",
    "teachers": "Memory, time per batch, error and swap time of a teacher, for each way of keeping it.",
    "throughput": "Steps per second that 4 and 64 agents keep up with, and how many steps late decisions are.",
}
"""Name → what it measures."""

_MODULES: Final[Mapping[str, str]] = {
    "committee": "committee",
    "configurations": "configurations.command",
    "foreign": "foreign.command",
    "gpu": "gpu.command",
    "gym": "gym.command",
    "hostile": "hostile.command",
    "rates": "training.drawn_learning_rates",
    "sandbox": "sandbox.command",
    "scale": "scale.command",
    "sharded": "sharded.command",
    "stacks": "stacks.command",
    "starts": "training.drawn_starts",
}
"""Name → module in `oven_bench`; the others are in `performance`."""


def run(name: str, args: Sequence[str]) -> int:
    """Run a bench with its command-line arguments and return the exit code. Raises UnknownNameError, and what the bench
    raises."""
    if name not in SUMMARIES:
        raise UnknownNameError("bench", name, SUMMARIES)
    module = import_module("oven_bench." + _MODULES.get(name, f"performance.{name}"))
    return int(module.STUDY.run(args, SUMMARIES[name]))
