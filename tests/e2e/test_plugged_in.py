"""A user's own agent beside a real run, and a user's own script inside a real stack."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven

from oven_controller.log.replay import replay
from oven_controller.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunEnded, RunStarted

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_an_agent_of_ones_own_joins_is_counted_and_leaves(oven: Oven) -> None:
    up = oven.start("up", "--headless", "--start", "tuned", "--seed", "1", "--steps", "400", "--run", "joined")
    oven.until(up, "/400")
    agent = oven.start(
        "agent", "run", str(EXAMPLES / "custom_agent.py"), "--run", "joined", "--name", "clip", "--trust", "grad.clip"
    )
    oven.until(up, "receipt  grad.clip")
    agent.send_signal(signal.SIGINT)
    said, _ = agent.communicate(timeout=60)
    assert agent.returncode == 0, said
    oven.until(up, "clip left")
    code, said = oven("stop", "joined", "--reason", "seen enough")
    assert code == 0, said
    said, _ = up.communicate(timeout=120)
    assert up.returncode == 0, said
    events = oven.events("joined")
    clips = [e.body for e in events if isinstance(e.body, Decision) and e.body.actuator == "grad.clip"]
    decision = next(one for one in clips if one.verdict == "adopted")
    assert "clip" in [line.agent for line in decision.tally]
    receipt = next(e.body for e in events if isinstance(e.body, Receipt) and e.body.decision_id == decision.id)
    assert (receipt.status, receipt.after) == ("applied", decision.value)
    states = [e.body.state for e in events if isinstance(e.body, AgentStatus) and e.author == "clip"]
    assert states[0] == "joined" and states[-1] == "left"
    ended = next(e.body for e in events if isinstance(e.body, RunEnded))
    assert (ended.reason, ended.detail) == ("stopped", "seen enough")
    assert replay(events, "joined").same


def test_a_script_of_ones_own_begins_in_observe(oven: Oven) -> None:
    script = [sys.executable, str(EXAMPLES / "hf_trainer.py")]
    code, said = oven("run", "--run", "script", "--set", f"agents={EXAMPLES / 'custom_agent.py'}", "--", *script)
    assert code == 0, said
    events = oven.events("script")
    started = next(e.body for e in events if isinstance(e.body, RunStarted))
    assert started.recipe == "attached" and started.rules.autonomy == "observe"
    bounds = {spec.name: (spec.low, spec.high) for spec in started.actuators if spec.kind == "scalar"}
    assert bounds == {"optimizer.lr_scale": (0.1, 3.0), "grad.clip": (pytest.approx(0.05), pytest.approx(1.5))}
    steps = [e.body.step for e in events if isinstance(e.body, Observation)]
    assert steps == list(range(1, 41)), "every step, whatever logging_steps says"
    assert not [e for e in events if isinstance(e.body, Receipt)], "nothing was turned"
    assert replay(events, "script").same
