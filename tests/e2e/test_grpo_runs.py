"""A model that really learns, votes on a real bus, and knobs that really turn."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import TypeVar

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    LogMessage,
    Observation,
    Receipt,
    RunEnded,
    RunStarted,
)
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e

CUSTOM = Path(__file__).resolve().parents[2] / "examples" / "custom_agent.py"
B = TypeVar("B", bound=LogMessage)
SMALL = ("--set", "recipe_options.hidden=64", "--set", "recipe_options.ffn=256")
"""A policy of a quarter of the recipe's size."""
TIMED = ("step_time", "time/", "tokens_per_s", "machine/")
"""Metrics that measure time, or the machine."""


def bodies(events: list[Event], kind: type[B]) -> list[B]:
    return [event.body for event in events if isinstance(event.body, kind)]


def course(events: list[Event]) -> list[tuple[int, str, object]]:
    """What was measured and what was changed, by tick: what must repeat in lockstep."""
    points: list[tuple[int, str, object]] = []
    for event in events:
        if isinstance(event.body, Observation):
            steady = {k: v for k, v in event.body.metrics.items() if not k.startswith(TIMED)}
            points.append((event.body.tick, "observation", steady))
        elif isinstance(event.body, Receipt):
            points.append((event.body.tick, event.body.actuator, event.body.after))
    return points


def test_the_drill_is_repaired_announced_as_a_drill_and_hidden_from_the_agents(oven: Oven) -> None:
    command = ["up", "--headless", "--start", "drill:lr-low", *SMALL, "--steps", "18", "--seed", "1"]
    command += ["--set", "lockstep=true", "--set", "recipe_options.eval_every=9"]
    code, output = oven(*command, "--run", "drill")
    assert code == 0, output
    assert output.splitlines()[0].startswith("DRILL lr-low: the learning rate is set to 1/10 of the tuned one")

    events = oven.events("drill")
    assert not any(b"drill" in event.data.replace(b"oven.drill", b"") or b"lr-low" in event.data for event in events)

    raised = bodies(events, Receipt)
    assert [receipt.actuator for receipt in raised] == ["optimizer.lr_scale"] * len(raised)
    scale = raised[-1].after
    assert isinstance(scale, float) and 5 <= scale <= 20, "1/10 of the tuned rate: found, and undone within a factor 2"
    observed = bodies(events, Observation)
    first, last = (o.metrics["learning_rate"] for o in (observed[1], observed[-1]))
    assert last == pytest.approx(first * scale), "the trainer's own rate moved, not just the receipt"
    ended = bodies(events, RunEnded)[0]
    assert ended.reason == "completed" and ended.lockstep_timeouts == 0
    assert "eval/accuracy" in observed[0].metrics and "eval/accuracy" in ended.metrics
    assert [o.step for o in observed] == list(range(19)), "the start's evaluation, then every step once"

    silent = {
        e.author: e.body.reason for e in events if isinstance(e.body, AgentStatus) and e.body.state == "cannot_fire"
    }
    without = ("knowledge", "channel.kg"), ("auxiliary_loss", "auxiliary loss"), ("quantisation", "train.quantisation")
    assert all(f"the run announces no {knob}" in silent[agent] or knob in silent[agent] for agent, knob in without)

    report = replay(events, "drill")
    assert report.same and report.decisions == len(bodies(events, Decision)) >= 2
    assert oven("replay", "drill")[0] == 0

    # Lockstep: the same values at the same ticks, in processes that were scheduled otherwise, and with no completions.
    code, output = oven(*command, "--run", "again", "--set", "completions.every=0")
    assert code == 0, output
    assert course(oven.events("again")) == course(events)

    code, output = oven("log", "drill", "--completions", "--json")
    groups = [json.loads(line)["group"] for line in output.splitlines()]
    assert code == 0 and [group["step"] for group in groups] == [1, 11]
    assert {member["member"] for member in groups[0]["members"]} == {"exact", "format", "length"}
    assert all("SampledGroup" not in line and groups[0]["prompt"]["text"] not in line for line in oven.log("drill"))
    code, output = oven("log", "again", "--completions")
    assert code == 2 and "run 'again' stores no completions" in output


def test_a_collapse_is_rolled_back_and_the_rate_cut(oven: Oven) -> None:
    command = ["up", "--headless", *SMALL, "--set", "lockstep=true", "--set", "charge_rollbacks=true"]
    command += ["--steps", "20", "--seed", "1", "--run", "high"]
    code, output = oven(*command, "--start", "drill:lr-high")
    assert code == 0, output
    events = oven.events("high")
    receipts = {receipt.actuator: receipt for receipt in bodies(events, Receipt)}
    assert receipts["run.rollback"].after == 0.0 and receipts["optimizer.lr_scale"].after == 0.125
    rewards = [o.metrics["reward"] for o in bodies(events, Observation) if "reward" in o.metrics]
    assert min(rewards) < 0.1 and rewards[-1] > 0.4, f"gone, and back: {rewards}"
    assert len(rewards) == 20, "the budget counts the steps that the rollback threw away"
    assert replay(events, "high").same


def _joined_by_an_agent(oven: Oven, up: subprocess.Popen[str]) -> None:
    """A user's own agent joins, is counted, and leaves when it is interrupted."""
    options = ("--run", "stopped", "--name", "clip", "--trust", "grad.clip", "--alone")
    agent = oven.start("agent", "run", str(CUSTOM), *options)
    oven.until(up, "adopted (clip")
    agent.send_signal(signal.SIGINT)
    output, _ = agent.communicate(timeout=60)
    assert agent.returncode == 0, output
    oven.until(up, "clip left")


def _counted(events: list[Event]) -> None:
    clips = [
        decision
        for decision in bodies(events, Decision)
        if decision.actuator == "grad.clip" and decision.verdict == "adopted"
    ]
    decision = next(clip for clip in clips if "clip" in [line.agent for line in clip.tally])
    [receipt] = [receipt for receipt in bodies(events, Receipt) if receipt.decision_id == decision.id]
    assert (receipt.status, receipt.after) == ("applied", decision.value)
    states = [e.body.state for e in events if isinstance(e.body, AgentStatus) and e.author == "clip"]
    assert states[0] == "joined" and states[-1] == "left"


def test_ctrl_c_saves_and_resume_goes_on_with_the_knobs_where_they_were(oven: Oven) -> None:
    command = ["up", "--headless", "--start", "drill:lr-low", *SMALL, "--seed", "1", "--run", "stopped"]
    process = oven.start(*command, "--steps", "1000")  # not to be ended before the signal comes
    oven.until(process, "adopted (learning_rate")
    _joined_by_an_agent(oven, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130, output
    assert list((oven.home / "runs" / "stopped" / "checkpoints").glob("checkpoint-*"))

    stopped = next(end.step for end in bodies(oven.events("stopped"), RunEnded))
    code, output = oven(*command, "--resume", "--steps", str(stopped + 4))
    assert code == 0, output
    events = oven.events("stopped")
    first, second = bodies(events, RunStarted)
    assert (first.incarnation, second.incarnation) == (1, 2)
    ended = bodies(events, RunEnded)
    assert [end.reason for end in ended] == ["stopped", "completed"]
    assert second.tick == ended[0].tick and second.step == ended[0].step > 0
    ticks = [o.tick for o in bodies(events, Observation)]
    assert ticks == sorted(set(ticks)), "ticks never go back"
    scale = next(spec.value for spec in second.actuators if spec.name == "optimizer.lr_scale")
    _counted(events)
    turned = [r for r in bodies(events, Receipt) if r.incarnation == 1 and r.actuator == "optimizer.lr_scale"]
    applied = [r for r in turned if r.status == "applied"]
    assert scale == pytest.approx(applied[-1].after)
    resumed = next(o for o in bodies(events, Observation) if o.incarnation == 2 and "learning_rate" in o.metrics)
    begun = next(o for o in bodies(events, Observation) if "learning_rate" in o.metrics)
    assert resumed.metrics["learning_rate"] == pytest.approx(begun.metrics["learning_rate"] * float(str(scale)))
    assert replay(events, "stopped").same
