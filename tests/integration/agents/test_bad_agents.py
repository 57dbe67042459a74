"""Agents that vote nonsense: each is told why, once, in the log; nothing else happens."""

from __future__ import annotations

import pytest
from tests.integration.conftest import Stack

from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision

pytestmark = pytest.mark.e2e

NONSENSE = '''
"""Votes nonsense."""
from oven_agents import Agent

class Nonsense(Agent):
    moves = ("optimizer.lr_scale", "grad.clap")

    def vote(self, window):
        def wish(actuator, value):
            return window.propose(actuator, value, confidence=0.99, why="because")
        return [
            wish("optimizer.lr_scale", float("nan")),
            wish("optimizer.lr_scale", 4000.0),
            wish("optimizer.lr_scale", {"a": 1.0}),
            wish("grad.clap", 1.0),
        ]
'''

RAISES = '''
"""Raises on every vote."""
from oven_agents import Agent

class Raises(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window):
        return window.series("reward")[999]
'''


def test_nonsense_is_refused_with_the_value_the_limit_and_the_remedy(stack: Stack) -> None:
    (stack.folder / "nonsense.py").write_text(NONSENSE)
    up = stack.up("bad", "--set", "agents=nonsense.py", "--set", "recipe_options.mode=wait", until="grad.clap")
    result = stack.command("down", "bad")
    assert result[0] == 0, result
    code, said_up = stack.end_of(up)
    assert code == 0, said_up
    events = [Event.from_line(line) for line in stack.run_folder("bad").export.read_text().splitlines()]
    decisions = [event.body for event in events if isinstance(event.body, Decision)]
    assert {decision.verdict for decision in decisions} == {"rejected"}
    reasons = "\n".join(decision.reason for decision in decisions)
    assert "but a finite number is required: propose one, bounds 0.01 to 100" in reasons
    assert "proposed 4000 for optimizer.lr_scale, outside its bounds 0.01 to 100: propose a value inside" in reasons
    assert (
        "proposed 1 for grad.clap, but this run has no such actuator: its actuators are optimizer.lr_scale" in reasons
    )
    assert len(decisions) == 3, "the first of each kind; later ones are only counted"
    assert stack.command("replay", "bad")[0] == 0


def test_an_agent_that_raises_on_every_vote_says_that_it_cannot_fire(stack: Stack) -> None:
    (stack.folder / "raises.py").write_text(RAISES)
    code, output = stack.command(
        "up", "--headless", "--recipe", "toy", "--run", "raises", "--steps", "200", "--set", "agents=raises.py"
    )
    assert code == 0, output
    events = [Event.from_line(line) for line in stack.run_folder("raises").export.read_text().splitlines()]
    states = [e.body.state for e in events if isinstance(e.body, AgentStatus)]
    assert "joined" in states and states[-1] == "left"
    log = (stack.run_folder("raises").logs / "agent-raises.log").read_text()
    assert "the agent raised an exception and abstains on this window" in log and "IndexError" in log
