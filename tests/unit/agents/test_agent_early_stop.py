"""Early stopping: proposals to end a run that overfits, on a loop that really does, and what the mesh makes of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.support import runs
from tests.support.mesh_log import SPECS, Log

import oven_learner as oven
from oven_agents.shipped.final_weights import FinalWeights
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import ActuatorSpec, Observation, Receipt, RunEnded, RunStarted, Value
from oven_core.protocol.rules import Rules
from oven_learner.testing import FakeLink

BEST, STOP = "run.best", "run.stop"
STEPS, EVERY = 400, 10
KNOBS = (
    ActuatorSpec(name=BEST, kind="choice", choices=("last", "best"), value="last", effect="at_end"),
    ACTUATORS[STOP],
)
GAIN = (0.44, 0.54, 0.61, 0.68, 0.74, 0.79, 0.82, 0.84)
LASTING = (*GAIN, 0.80, 0.76, 0.72, 0.69, 0.66, 0.63, 0.60, 0.57, 0.55)
"""Readings that are past their best for six readings at the end."""


def overfit(line: FakeLink) -> FakeLink:
    """Train a wide network on twelve noisy points, until it has learnt the noise."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005, weight_decay=0.0)
    x, held_out = torch.randn(12, 4), torch.randn(256, 4)
    y = x.sum(1, keepdim=True) + 2 * torch.randn(12, 1)

    def evaluate() -> dict[str, float]:
        with torch.no_grad():
            return {"eval/loss": float((model(held_out) - held_out.sum(1, keepdim=True)).square().mean())}

    options: dict[str, Any] = {"evaluate": evaluate, "evaluate_every": EVERY, "max_steps": STEPS}
    with oven.connect(model=model, optimizer=optimizer, link=line, **options) as client:
        for step in range(1, STEPS + 1):
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            client.observe(step, {"loss": loss.item()})
            client.poll()
            if client.stopping:
                break
    return line


def started(line: FakeLink) -> RunStarted:
    return next(message for message in line.sent if isinstance(message, RunStarted))


def made_up(autonomy: Any, value: Value = "last") -> RunStarted:
    made = runs.grpo()
    knobs = (KNOBS[0].model_copy(update={"value": value}), KNOBS[1])
    return made.model_copy(update={"actuators": (*made.actuators, *knobs), "rules": Rules(autonomy=autonomy)})


def read(values: Sequence[float]) -> list[Observation]:
    """One reading every 25 ticks, in a run of 1,000 ticks."""
    return [runs.seen(25 * index, {"eval/accuracy": value}) for index, value in enumerate(values)]


def votes(run: RunStarted, events: Sequence[Observation | Receipt]) -> list[tuple[str, Value, int]]:
    return [(vote.actuator, vote.value, vote.tick) for vote in runs.votes(FinalWeights(), run, events)]


def test_a_loop_that_overfits_is_stopped_with_its_best_weights() -> None:
    watched = overfit(FakeLink())
    proposals = runs.votes(FinalWeights(), started(watched), watched.observed())
    best, stop = proposals[:2]
    assert (best.actuator, stop.actuator, best.tick) == (BEST, STOP, stop.tick), "in observe, both are logged"
    assert stop.tick < 0.75 * STEPS and "of the run left: stop the run" in stop.rationale
    stopped = overfit(FakeLink({stop.tick: (BEST, "best"), stop.tick + 1: (STOP, None)}))
    end = stopped.sent[-1]
    assert isinstance(end, RunEnded) and end.reason == "stopped" and end.step < STEPS
    scores = [seen.metrics["eval/loss"] for seen in watched.observed() if "eval/loss" in seen.metrics]
    assert end.metrics["eval/loss"] == min(scores) < 0.8 * scores[-1]


def test_where_agents_may_set_the_best_weights_they_are_set_before_the_stop_is_proposed() -> None:
    run, events = made_up("auto"), read(LASTING)
    [first] = votes(run, events[:-1])[:1]
    assert first[:2] == (BEST, "best")
    receipt = runs.receipt(first[2], BEST, "last", "best")
    later = [event for event in events if event.tick > first[2]]
    proposals = votes(run, [*(event for event in events if event.tick <= first[2]), receipt, *later])
    assert [vote[:2] for vote in proposals] == [(BEST, "best"), (STOP, None)]
    assert proposals[1][2] == first[2] + 3 * 25, "after as many further readings"


@pytest.mark.parametrize(
    "values",
    [
        (*GAIN, 0.86, 0.87, 0.88, 0.88, 0.89, 0.9, 0.9, 0.9, 0.9),
        (*GAIN, 0.80, 0.76, 0.72, 0.69, 0.80, 0.84, 0.86, 0.87, 0.88),
        (*GAIN, 0.83, 0.84, 0.82, 0.83, 0.84, 0.83, 0.82, 0.83, 0.84),
        (0.5, 0.5, 0.5, 0.51, 0.51, 0.49, 0.47, 0.46, 0.45, 0.44, 0.43, 0.42, 0.41),
    ],
    ids=["improves", "recovers", "within the noise", "lost more than it ever gained"],
)
def test_it_is_silent(values: Sequence[float]) -> None:
    assert votes(made_up("observe"), read(values)) == []


def test_a_recent_change_has_to_show_its_effect_first() -> None:
    run, events = made_up("observe"), read(LASTING)
    assert votes(run, events)
    cut = runs.receipt(355, "optimizer.lr_scale", 1.0, 0.5)
    before, after = [e for e in events if e.tick <= 355], [e for e in events if e.tick > 355]
    assert votes(run, [*before, cut, *after]) == votes(run, before)


def test_runs_without_a_trend_are_hardly_ever_proposed_to_end() -> None:
    draw = random.Random(5)
    false_alarms = sum(
        bool(votes(made_up("observe"), read([0.4 + draw.gauss(0, 0.02) for _ in range(29)]))) for _ in range(100)
    )
    assert false_alarms <= 1


@pytest.mark.parametrize(
    ("rules", "verdict", "reason"),
    [
        ({"autonomy": "auto"}, "advised", "approve with `oven-controller approve"),
        ({"autonomy": "auto", "autonomy_of": {STOP: "auto"}}, "adopted", ""),
        ({"autonomy": "observe"}, "rejected", "observe: would have run run.stop"),
    ],
)
def test_only_a_grant_by_name_lets_agents_stop_a_run(rules: dict[str, Any], verdict: str, reason: str) -> None:
    log = Log()
    log.start(specs=(*SPECS, *KNOBS), alone={"amy": (STOP,)}, **rules)
    log.join("amy", moves=(STOP,))
    log.propose("amy", None, STOP, 0.8)
    [decision] = log.decisions
    assert decision.verdict == verdict and reason in decision.reason


@pytest.mark.parametrize(
    ("command", "verdict"), [((), "advised"), (("",), "advised"), ((STOP,), "adopted"), ((STOP, ""), "advised")]
)
def test_an_operator_grants_the_stop_by_name(command: Sequence[str], verdict: str) -> None:
    log = Log()
    log.start(specs=(*SPECS, *KNOBS), autonomy="auto", alone={"amy": (STOP,)})
    log.join("amy", moves=(STOP,))
    for number, actuator in enumerate(command):
        log.operator(f"c{number}", "autonomy", actuator=actuator, autonomy="auto")
    log.propose("amy", None, STOP, 0.8)
    assert [decision.verdict for decision in log.decisions] == [verdict]
