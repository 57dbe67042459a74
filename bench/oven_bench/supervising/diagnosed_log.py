"""A diagnosis of a long log with models that answer at once: what is left is ours."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Final

from oven_bench.supervising.scripted_model import ScriptedModel, program
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    Horizon,
    LogMessage,
    MetricSpec,
    Observation,
    RunStarted,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_kg.service.endpoints import answers
from oven_llm.diagnosis.diagnosing import DiagnosisResult, diagnose
from oven_llm.diagnosis.graph_view import view
from oven_llm.diagnosis.log_context import context_of

LR: Final = "optimizer.lr_scale"
METRICS: Final = ("loss", "grad_norm", "reward", "kl", "entropy", *(f"gauge/{n}" for n in range(21)))
"""As many as the GRPO recipe publishes."""
VOTES_EVERY: Final = 10
BROKEN_AT: Final = 0.8
"""Share of the log after which loss and gradient norm are ten standard deviations higher."""
PROGRAMS: Final = (
    "print({key: len(value) for key, value in context.items()})\nprint(context['alarms'][:3])",
    """\
from statistics import fmean, pstdev
def onset(name, bound=25.0):
    values = context['observations'][name]
    mean, spread = fmean(values[:500]), pstdev(values[:500])
    high = low = 0.0
    for tick, value in zip(context['ticks'], values):
        z = (value - mean) / spread
        high, low = max(0.0, high + z - 0.5), max(0.0, low - z - 0.5)
        if max(high, low) > bound:
            return tick
found = {name: at for name in context['observations'] if (at := onset(name)) is not None}
print(found)""",
    """\
first = min(found.values())
lines = [f"{tick}: {value}" for tick, value in zip(context['ticks'], context['observations']['loss'])]
said = worker_batch(["\\n".join(lines[at:at + 100]) for at in range(first - 200, first + 200, 100)])
cause = next(iter(one['cause'] for one in context['graph']['ranked']), 'none')
FINAL({'cause': cause, 'evidence': [evidence(name, first, first + 50) for name in found], 'knob': None, 'value': None,
       'revert_if': None, 'confidence': 0.6})""",
)


@dataclass(frozen=True)
class Took:
    """Milliseconds."""

    context: float
    """The log's events, one by one, into what a diagnosis reads."""
    alarms: float
    """Detectors and the knowledge graph."""
    loop: float
    """From the call to an answer whose figures were computed again: sandbox, programs, logs."""
    found: DiagnosisResult

    @property
    def total(self) -> float:
        return self.context + self.alarms + self.loop


def log_of(steps: int, seed: int = 0) -> list[Event]:
    """A run's log: an observation per step with 26 announced metrics, two of which break, and a vote in ten steps."""
    draw, numbers, on = random.Random(seed), count(1), Subjects("bench")

    def event(subject: str, body: LogMessage) -> Event:
        return Event(next(numbers), subject, b"", UNKNOWN, body)

    def events() -> Iterator[Event]:
        spec = ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.01, high=100, value=1.0)
        metrics = tuple(MetricSpec(name=name, better="down" if name == "loss" else "neither") for name in METRICS)
        yield event(
            on.run,
            RunStarted(incarnation=1, n=1, recipe="bench", horizon=Horizon(), actuators=(spec,), metrics=metrics),
        )
        for step in range(1, steps + 1):
            late = 1.0 if step > BROKEN_AT * steps else 0.0
            values = {name: round(draw.gauss(1.0, 0.1) + late * (at < 2), 6) for at, name in enumerate(METRICS)}
            yield event(
                on.observation,
                Observation(incarnation=1, n=step + 1, tick=step, step=step, progress=step / steps, metrics=values),
            )
            if step % VOTES_EVERY == 0:
                yield event(
                    on.vote("learning_rate"),
                    Vote(actuator=LR, stance="abstain", tick=step, confidence=0.5, rationale="steady"),
                )

    return list(events())


def diagnosed(events: list[Event], runs: int) -> list[Took]:
    """One after another, each with its own sandbox and its logs on the disk."""
    ask, found = answers(), []
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(runs):
            supervisor, worker = ScriptedModel([program(code) for code in PROGRAMS]), ScriptedModel(["NONE"])
            times = [time.perf_counter()]
            log = context_of(events)
            times.append(time.perf_counter())
            seen = view(log.alarms, log.started, ask)
            times.append(time.perf_counter())
            made = asyncio.run(diagnose(log, seen, supervisor, worker, log_dir=Path(scratch) / str(number)))
            times.append(time.perf_counter())
            context, alarms, loop = (1e3 * (after - before) for before, after in pairwise(times))
            found.append(Took(context, alarms, loop, made))
    return found
