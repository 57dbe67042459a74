"""The agent that asks for the best weights at the end: on made-up readings, and on the noise that it has to stand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from tests.support import runs

from oven_agents.shipped.final_weights import FinalWeights
from oven_core.protocol.messages import (
    ActuatorSpec,
    Observation,
    Receipt,
    RunStarted,
    Vote,
)

KNOB = ActuatorSpec(name="run.best", kind="choice", choices=("last", "best"), value="last", effect="at_end")
LEARNT = (0.44, 0.54, 0.61, 0.68, 0.74, 0.79, 0.82, 0.84)
LENGTH = 1000
"""Ticks of the made-up runs."""


def run(value: str = "last") -> RunStarted:
    made = runs.grpo()
    return made.model_copy(update={"actuators": (*made.actuators, KNOB.model_copy(update={"value": value}))})


def read(values: Sequence[float], last: int = LENGTH - 50, every: int = 50) -> list[Observation]:
    """The newest reading at tick `last`."""
    first = last - every * (len(values) - 1)
    return [
        runs.seen(first + every * index, {"reward": 0.7, "eval/accuracy": value}) for index, value in enumerate(values)
    ]


def votes(events: Sequence[Observation | Receipt], started: RunStarted | None = None) -> list[Vote]:
    return runs.votes(FinalWeights(), started or run(), events)


def test_two_readings_below_the_best_late_in_the_run_ask_for_the_best_weights() -> None:
    [vote] = votes(read([*LEARNT, 0.6, 0.62]))
    assert (vote.actuator, vote.value, vote.stance, vote.tick) == ("run.best", "best", "propose", LENGTH - 50)
    assert vote.rationale.startswith("eval/accuracy was 0.84 at its best and is 0.62 now")
    assert (vote.target, vote.horizon, vote.expected_change) == ("", 0, 0.0), "no metric can show it"
    assert 0.65 <= vote.confidence < 1


def test_the_best_reading_of_the_whole_run_counts_also_for_an_agent_that_skips_ticks() -> None:
    accuracy = dict(
        zip(range(50, 1000, 50), (0.44, 0.61, 0.74, 0.84, *(0.82 - 0.02 * step for step in range(15))), strict=True)
    )
    events = [
        runs.seen(tick, {"reward": 0.7} | ({"eval/accuracy": accuracy[tick]} if tick in accuracy else {}))
        for tick in range(1, 990)
    ]
    for every in (1, 7):
        vote = runs.agent_messages(FinalWeights(), run(), events, every)[0]
        assert isinstance(vote, Vote) and vote.rationale.startswith("eval/accuracy was 0.84 at its best"), every


@pytest.mark.parametrize(
    ("values", "last"),
    [
        ((*LEARNT, 0.86, 0.87), 950),
        ((*LEARNT, 0.83, 0.84), 950),
        ((*LEARNT, 0.86, 0.60), 950),
        ((*LEARNT, 0.60, 0.86), 950),
        ((*LEARNT, 0.60, 0.62), 740),
        ((0.44, 0.5, 0.55, 0.6, 0.64, 0.3, 0.3), 950),
    ],
    ids=["improves", "within the noise", "one reading", "recovers", "too early", "too few readings"],
)
def test_it_is_silent(values: Sequence[float], last: int) -> None:
    assert votes(read(values, last)) == []


def test_it_proposes_once_and_respects_values_set_by_others() -> None:
    fallen = [*LEARNT, 0.6, 0.62, 0.61, 0.6]
    assert votes(read(fallen), run("best")) == []
    events = read(fallen)
    back = Receipt(
        incarnation=1, n=1, decision_id="1", actuator="run.best", status="applied", before="best", after="last",
        tick=events[7].tick, step=events[7].step,
    )  # fmt: skip
    assert votes([*events[:9], back, *events[9:]]) == []


def share_of_proposals(
    shape: Callable[[float], float], noise: Callable[[random.Random], float], count: int, runs: int
) -> float:
    """The share of runs with so many readings in which it would speak."""
    agent, draw, spoke = FinalWeights(), random.Random(f"{count}"), 0
    for _ in range(runs):
        values = [shape(index / count) + noise(draw) for index in range(count)]
        spoke += any(agent.has_lost_quality(values[:until]) for until in range(math.ceil(0.75 * count) + 1, count + 1))
    return spoke / runs


def normal(draw: random.Random) -> float:
    return draw.gauss(0, 1)


@pytest.mark.parametrize("count", [10, 30])
def test_noise_alone_rarely_asks_and_harm_does(count: int) -> None:
    def learns(part: float) -> float:
        return 20 * (1 - math.exp(-5 * part))

    assert share_of_proposals(learns, normal, count, 1000) <= 0.01
    assert share_of_proposals(lambda _: 0.0, normal, count, 1000) <= 0.05
    if count == 30:
        assert share_of_proposals(lambda part: learns(part) - (8 if part > 0.8 else 0), normal, count, 300) >= 0.85
