"""The examples, as a user would start it: a real server, a real mesh, both agents, and each way of plugging in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.support.forked import ForkServer
from tests.support.learner_side import ROOT, RUN, Process, Server, serving

from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunEnded, RunStarted
from oven_runs.log.replay import replay

EXAMPLES = ROOT / "examples"
AGENTS = ("custom_agent", "bare_nats_agent")
SMOKE = {"trl_grpo.py": (1, 16), "raw_loop.py": (0, 40), "accelerate_loop.py": (0, 40)}
"""Their first and last step on the log: who evaluates says what it starts from. hf_trainer.py is run in tests/e2e."""


@dataclass
class Stack:
    server: Server
    folder: Path
    agents: list[Process]
    forks: ForkServer

    def learner(self, example: str) -> Process:
        return Process(
            [str(EXAMPLES / example)],
            self.server.env("learner") | {"OVEN_RUN_DIR": str(self.folder)},
            self.folder / "learner.log",
            self.forks.popen(),
        )


@pytest.fixture
async def stack(forks: ForkServer, tmp_path: Path) -> AsyncIterator[Stack]:
    """Lockstep, so that no agent is too slow for a run of two seconds."""
    rules = {"autonomy": "auto", "alone": {"custom_agent": ["grad.clip"]}}
    (tmp_path / "config.json").write_text(json.dumps({"lockstep": True, "rules": rules}))
    async with serving(tmp_path, AGENTS) as server:
        mesh = Process(
            ["-c", "from oven_core.replica.replica_process import main; main([])"],
            server.env("mesh"),
            tmp_path / "mesh.log",
        )
        host = f"from oven_agents.runtime.agent_host import main; main([{str(EXAMPLES / 'custom_agent.py')!r}])"
        commands = {"custom_agent": ["-c", host], "bare_nats_agent": [str(EXAMPLES / "bare_nats_agent.py")]}
        agents = [Process(commands[name], server.env(name), tmp_path / f"{name}.log") for name in AGENTS]
        try:
            for name in AGENTS:
                await server.logged(partial(says, "joined", name))
            yield Stack(server, tmp_path, agents, forks)
        finally:
            for process in [*agents, mesh]:
                process.kill()


def says(state: str, name: str, event: Event) -> bool:
    return isinstance(event.body, AgentStatus) and event.author == name and event.body.state == state


@pytest.mark.parametrize("example", SMOKE)
async def test_the_example_runs_and_its_log_tells_all_of_it(stack: Stack, example: str) -> None:
    learner = stack.learner(example)
    assert await learner.ended(120) == 0, learner.output()
    for process, name in zip(stack.agents, AGENTS, strict=True):
        process.terminate()
        assert await process.ended() == 0, process.output()
        await stack.server.logged(partial(says, "left", name))
    events = await stack.server.events()
    bodies = [event.body for event in events]

    runs = [body for body in bodies if isinstance(body, RunStarted)]
    ends = [body for body in bodies if isinstance(body, RunEnded)]
    observed = [body for body in bodies if isinstance(body, Observation)]
    assert len(runs) == len(ends) == 1 and ends[0].reason == "completed"
    assert ends[0].lockstep_timeouts == 0
    assert [body.step for body in observed] == list(range(SMOKE[example][0], SMOKE[example][1] + 1))

    decided = [body for body in bodies if isinstance(body, Decision)]
    assert decided, "the agent had something to say"
    for decision in decided:
        stances = {line.agent: line.stance for line in decision.tally}
        assert stances["custom_agent"] == "propose"
        assert stances["bare_nats_agent"] in ("for", "against")
    adopted = [decision.id for decision in decided if decision.verdict == "adopted"]
    answered = {body.decision_id: body.status for body in bodies if isinstance(body, Receipt)}
    assert adopted and all(answered[name] == "applied" for name in adopted)

    report = replay(events, RUN)
    assert report.same and report.decisions == len(decided), report


def test_the_bare_agent_imports_nothing_of_ours() -> None:
    assert "oven_" not in (EXAMPLES / "bare_nats_agent.py").read_text()
