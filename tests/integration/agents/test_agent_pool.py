"""Several agents in one process: one connection and one key, each under its own name."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.integration.agents.test_agent_reconnects import COUNTER, history_of, observed, say
from tests.integration.conftest import Stack
from tests.support.learner_side import RUN, Process, Server, serving

from oven_core.bus.connection import Bus
from oven_core.protocol.events import Event
from oven_core.protocol.messages import ActuatorSpec, AgentStatus, Horizon, MetricSpec, RunStarted, Vote
from oven_core.protocol.names import Subjects
from oven_core.security.credentials import Credentials

ON = Subjects(RUN)
RAISES = '''
"""Raises on every vote."""
from oven_agents import Agent

class Raises(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        return [][window.tick]
'''
STARTED = RunStarted(
    incarnation=1, n=0, recipe="made up", horizon=Horizon(max_steps=100), metrics=(MetricSpec(name="loss"),),
    actuators=(ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.1, high=10, value=1.0),),
)  # fmt: skip


def voted(name: str, words: str):  # type: ignore[no-untyped-def]
    return lambda event: isinstance(event.body, Vote) and (event.author, event.body.rationale) == (name, words)


async def all_voted(server: Server, words: str) -> None:
    for name in ("one", "two"):
        await server.logged(voted(name, words))


async def test_each_votes_under_its_own_name_whatever_becomes_of_the_others(tmp_path: Path) -> None:
    """Also after the server was killed; and the key speaks for nobody else."""
    (tmp_path / "counter.py").write_text(COUNTER)
    (tmp_path / "raises.py").write_text(RAISES)
    async with serving(tmp_path, pool=("one", "raises", "two")) as server:
        begun = asyncio.Event()
        serving_history = asyncio.create_task(history_of(server, begun))
        await begun.wait()
        await say(server, STARTED, *observed(1, 2, 3))
        targets = [str(tmp_path / file) for file in ("counter.py", "raises.py", "counter.py")]
        called = ["--name", "one", "--name", "raises", "--name", "two"]
        module = ["-P", "-m", "oven_controller.stack.run_process", "agent", *targets, *called]
        pool = Process(module, server.env("agents-1"), tmp_path / "pool.log")
        try:
            await all_voted(server, "saw 3 up to 3")
            await server.kill()
            await server.start()
            await say(server, *observed(4))
            await all_voted(server, "saw 4 up to 4")
            assert pool.popen.poll() is None
            events: list[Event] = await server.events()
            assert {event.author for event in events if isinstance(event.body, Vote)} == {"one", "two"}
            joined = [e.author for e in events if isinstance(e.body, AgentStatus) and e.body.state == "joined"]
            assert sorted(set(joined)) == ["one", "raises", "two"]
            assert (
                "raises: the agent raised an exception and abstains on this window"
                in (tmp_path / "pool.log").read_text()
            )

            async with Bus.connect(server.url, Credentials.load(server.creds("agents-1"))) as bus:
                await bus.publish(ON.vote("three"), b"{}")
                await bus.flush()
                assert any("permissions violation" in error.lower() for error in bus.errors), bus.errors
        finally:
            pool.kill()
            serving_history.cancel()
            await asyncio.gather(serving_history, return_exceptions=True)


@pytest.mark.e2e
def test_a_stack_with_two_agents_to_a_process(stack: Stack) -> None:
    for name in ("one", "two", "three"):
        (stack.folder / f"{name}.py").write_text(COUNTER)
    agents = ["--set", "agents=one.py,two.py,three.py", "--set", "agents_per_process=2"]
    up = stack.up("pooled", *agents, "--set", "recipe_options.mode=wait", until="starting the learner")
    children = json.loads((stack.run_folder("pooled").path / "run.json").read_text())["children"]
    assert {name for name in children if name.startswith("agent")} == {"agents-1", "agents-2"}
    code, output = stack.command("agent", "run", "two.py", "--run", "pooled")
    assert code == 2 and "an agent named 'two' is already running in 'pooled'" in output
    assert stack.command("down", "pooled")[0] == 0
    assert stack.end_of(up)[0] == 0
    events = [Event.from_line(line) for line in stack.run_folder("pooled").export.read_text().splitlines()]
    states = {(e.author, e.body.state) for e in events if isinstance(e.body, AgentStatus)}
    assert {(name, state) for name in ("one", "two", "three") for state in ("joined", "left")} <= states
