"""`propose` over the real server, on the command line and over MCP: the mesh's answer, its limits, and the replay."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client
from tests.integration.agents.test_agent_ends import IN_A_CALL, hanging
from tests.integration.conftest import Stack
from tests.support.coding_agent import CodingAgent

from oven_core.protocol.messages import Decision, Vote
from oven_runs.access.log_sources import exported_events

pytestmark = pytest.mark.e2e
SETS = ("agents=learning_rate", "kg=false", "rules.cooldown_ticks=500", "rules.approve_ticks=100000")


def propose(stack: Stack, code: int, *args: str, why: str = "the reward stayed at 1") -> dict[str, Any]:
    exit_code, text = stack.command("propose", *args, "--why", why, "--json")
    assert exit_code == code, text
    report: dict[str, Any] = json.loads(text)
    assert (report["code"], report["agent"]) == (code, "cli-proposals")
    return report


@pytest.mark.parametrize("lockstep", [pytest.param("true", marks=pytest.mark.slow), "false"])
async def test_a_proposal_is_bounded_as_a_newcomers_and_replays(stack: Stack, lockstep: str) -> None:
    stack.install({"learner": "oven_services:learner"})
    settings = [part for text in (*SETS, f"lockstep={lockstep}") for part in ("--set", text)]
    up = stack.up("r", *settings, until="learner  toy")

    for args, words in (
        (("grad.clap", "2", "--why", "misspelt"), "did you mean 'grad.clip'"),
        (("grad.clip", "-50", "--why", "too far"), "bounds 0.1 to 10"),
        (("grad.clip", "2", "--why", " "), "needs a reason"),
        (("grad.clip", "2", "--why", "no run", "--run", "nobody"), "no run named 'nobody'"),
    ):
        code, text = stack.command("propose", *args)
        assert (code, words in text, "Traceback" in text) == (2, True, False), text

    arguments = ["-m", "oven_controller.cli.main", "mcp", "r", "--propose"]
    parameters = StdioServerParameters(command=sys.executable, args=arguments, env=dict(stack.env), cwd=stack.folder)
    async with Client(stdio_client(parameters)) as client:
        agent = CodingAgent(client)
        assert (await agent.tools())[-1] == "propose"
        advice = await agent.call("propose", actuator="grad.clip", value=2, why="the reward follows the clip")
        assert (advice["answer"], advice["code"], advice["agent"]) == ("advised", 0, "mcp-proposals"), advice
        assert "no actuator named" in await agent.refused("propose", actuator="grad.clap", value=2, why="misspelt")
    tally = {line["agent"]: line for line in advice["decision"]["tally"]}
    assert tally["mcp-proposals"]["newcomer"]
    assert stack.json("approve", advice["decision"]["id"])["receipt"]["after"] == 2.0

    refusals = [propose(stack, 1, "grad.clip", "3") for _ in range(2)]  # the mesh logs only the first
    for refusal in refusals:
        assert (refusal["answer"], refusal["ballot"], refusal["decision"]) == ("refused", "", None)
        assert "ballots of untrusted agents" in refusal["reason"]
    assert stack.command("trust", "cli-proposals", "grad.clip", "--alone")[0] == 0
    rejected = propose(stack, 1, "grad.clip", "3")
    assert (rejected["answer"], rejected["decision"]["ballot"]) == ("rejected", rejected["ballot"])
    assert "cool" in rejected["reason"]

    (stack.run_folder("r").path / "finish").touch()
    assert stack.end_of(up)[0] == 0
    code, text = stack.command("replay", "r")
    assert (code, "byte for byte" in text) == (0, True), text
    events = list(exported_events(stack.run_folder("r")))
    bodies = [event.body for event in events if event.author.endswith("-proposals")]
    states = [body.stance if isinstance(body, Vote) else getattr(body, "state", "") for body in bodies]
    assert states == ["joined", "propose", "cannot_fire"] * 4
    decisions = [event.body for event in events if isinstance(event.body, Decision)]
    assert sum("ballots of untrusted agents" in decision.reason for decision in decisions) == 1
    code, text = stack.command("propose", "grad.clip", "3", "--why", "too late", "--run", "r")
    assert (code, "Traceback" in text) == (2, False), text


def test_a_ballot_that_stays_open_leaves_the_proposal_pending(stack: Stack) -> None:
    agent = hanging(stack, IN_A_CALL)  # may vote, never does, and the run makes no step that would close the ballot
    settings = ["--set", f"agents={agent.name}", "--set", "recipe_options.mode=wait"]
    up = stack.up("r", *settings, until="step   12/12")
    report = propose(stack, 3, "optimizer.lr_scale", "0.5", "--wait", "10")
    assert (report["answer"], report["decision"]) == ("pending", None)
    assert report["vote"] and "is still open: it closes by tick " in report["reason"], report
    assert stack.command("down", "r")[0] == 0
    assert stack.end_of(up)[0] == 0
    assert stack.command("replay", "r")[0] == 0
