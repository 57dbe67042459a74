"""`tuner` and `author` in a whole stack: while nothing of theirs is adopted they leave the training as it is."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven
from tests.support.authored import STEPS
from tests.support.scripted_model import KEY, ScriptedModel

from oven_core.protocol.announcements import PromptsInjected
from oven_core.protocol.messages import AgentStatus, Decision, Receipt, Vote
from oven_runs.home.model_spend import read_spend
from oven_runs.log.replay import replay

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


async def trained(oven: Oven, run: str, url: str) -> str:
    parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
    process = oven.popen(
        [sys.executable, "-m", "tests.support.authored", run, url],
        cwd=ROOT,
        env=parent_env | {"OVEN_HOME": str(oven.home), "OMP_NUM_THREADS": "1", "OVEN_TEST_KEY": KEY},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output: str = (await asyncio.to_thread(process.communicate))[0]
    assert process.returncode == 0, output
    return output


async def test_a_tuner_and_an_author_that_nobody_follows_leave_the_training_alone(oven: Oven) -> None:
    """That an author's prompts change no weight is in tests/unit/learner/test_authored_prompts.py."""
    async with ScriptedModel().running() as endpoint:
        output = await trained(oven, "asked", endpoint.url)
    assert f"completed at step {STEPS}" in output
    events = oven.events("asked")
    votes = {(event.author, event.body.actuator) for event in events if isinstance(event.body, Vote)}
    assert {("tuner", "optimizer.lr_scale"), ("author", "data.authored_share")} <= votes
    decisions = [event.body for event in events if isinstance(event.body, Decision)]
    assert all(decision.verdict != "adopted" for decision in decisions), "the author is no quorum alone"
    assert {line.shadow for decision in decisions for line in decision.tally if line.agent == "tuner"} <= {True}
    assert not any(isinstance(event.body, Receipt) for event in events)
    states = {
        event.body.state for event in events if isinstance(event.body, AgentStatus) and event.author == "supervisor"
    }
    assert {"joined", "done"} <= states, "in its own process, and silent: it asks nothing before it has 40 observations"
    injected = [event.body for event in events if isinstance(event.body, PromptsInjected)]
    assert sum(len(injection.hashes) for injection in injected) == 30, "author.total"
    assert {injection.by for injection in injected} == {"author"}
    assert replay(events, "asked").same
    folder = oven.home / "runs" / "asked"
    assert sum(spend.calls for spend in read_spend(folder).values()) == endpoint.served["ok"]
    assert (folder / "logs" / "agent-supervisor.log").is_file() and not (folder / "diagnoses").exists()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if KEY.encode() in path.read_bytes()] and KEY not in output
    text = json.loads((folder / "authored" / "prompts.jsonl").read_text().partition("\n")[0])["prompt"].encode()
    assert {path.parent.name.partition("-")[0] for path in files if text in path.read_bytes()} == {
        "authored",
        "checkpoint",
    }
