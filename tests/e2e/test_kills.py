"""Everything but the learner is killed while a model trains; and no key gets anywhere.

The real recipe, all agents, the prior service, traces, and a judge over HTTP whose endpoint sends the key back.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from tests.e2e.conftest import Oven
from tests.support.judge_endpoint import Endpoint

from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, Receipt, RunEnded, RunStarted
from oven_llm.judges.judge_probe import TASK
from oven_runs.home.run_folder import RunFolder
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e

CANARY = "sk-canary-9f3a71c2e5"
SWAP = ("--run", "kills", "--provider", "compatible", "--model")
KILLED = (("agents-1", "kg", "member-critic", "member-tone"), ("mesh",), ("nats-server",))
"""At once, and then one after another."""

LATENCY_S = 0.25
"""Of a judge's answer: more than a step's other work takes."""


class Sorted(Endpoint):
    """Full marks for the digits of the task in order, 2 for anything else, and as slow as judges are: else the model
    would train through hundreds of steps on the core that the others need to come back."""

    async def _openai(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(LATENCY_S)
        return await super()._openai(request)

    async def _anthropic(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(LATENCY_S)
        return await super()._anthropic(request)

    def _answer(self, user: str) -> str:
        data = json.loads(user.split("<data>\n")[1].split("\n</data>")[0])
        right = "".join(sorted(re.sub(r"\D", "", data["task"])))
        marks = [
            {"id": answer["id"], "reason": "compared", "score": 10 if answer["text"] == right else 2}
            for answer in data["answers"]
        ]
        return json.dumps({"verdicts": marks})


async def test_a_run_survives_the_loss_of_every_service_and_leaks_no_key(oven: Oven) -> None:
    async with Sorted().running() as endpoint:
        member = f"{{provider: claude, model: 'm@echo500,echo401', base_url: '{endpoint.url}', key_env: JUDGE_KEY}}"
        small = ("hidden=64", "ffn=256", "prompts_per_step=4")  # nothing here hangs on what the model learns
        sizes = [part for size in small for part in ("--set", f"recipe_options.{size}")]
        up = oven.start(
            *("up", "--headless", "--start", "tuned", "--seed", "1", "--steps", "1000", "--run", "kills"),
            *("--set", f"committee.members.critic={member}", "--otlp", endpoint.url),
            *sizes,
            env={"JUDGE_KEY": CANARY},
        )
        folder = RunFolder(oven.home / "runs" / "kills")
        output = await asyncio.to_thread(oven.until, up, "step   20/")
        said_of = {
            model: await asyncio.to_thread(
                oven, "judge", "swap", name, *SWAP, model, "--base-url", endpoint.openai_url, "--key-env", "JUDGE_KEY"
            )
            for name, model in (("critic", "m@401x9"), ("critik", "none"), ("critic", "second"))
        }
        to = ("--provider", "compatible", "--base-url", endpoint.openai_url, "--key-env", "JUDGE_KEY", "--run", "kills")
        added = ("judge", "add", "tone", "--role", "style", "--model", "third", "--weight", ".2", *to)
        said_of["add"] = await asyncio.to_thread(oven, *added)
        swapped = len(endpoint.requests)
        for names in KILLED:
            for name in names:
                await asyncio.to_thread(_kill, folder, name)
            output += await asyncio.to_thread(oven.until, up, *(f"{name} is back after" for name in names))
        output += await asyncio.to_thread(oven.until, up, "/1000")
        _, listed = await asyncio.to_thread(oven, "judge", "list", "--run", "kills", "--json")
        said_of["remove"] = await asyncio.to_thread(oven, "judge", "remove", "tone", "--run", "kills")
        output += await asyncio.to_thread(oven.until, up, "member tone has left")
        code, stopped = await asyncio.to_thread(oven, "stop", "kills", "--reason", "seen enough")
        assert code == 0, stopped
        rest, _ = await asyncio.to_thread(up.communicate, None, 120)
        output += rest
    assert up.returncode == 0 and "stopped at step" in output, output

    assert [code for code, _ in said_of.values()] == [1, 2, 0, 0, 0], said_of
    assert "claude/m@echo500,echo401" in said_of["m@401x9"][1], "what judged before stays"
    assert "auth" in said_of["m@401x9"][1] and "did you mean 'critic'" in said_of["none"][1], said_of
    swapped_to = f"compatible/second@{endpoint.openai_url.removeprefix('http://')}"
    scored = (request for request in endpoint.requests[swapped:] if TASK not in str(request["messages"]))
    models = {request["model"] for request in scored}
    assert models == {"second", "third"}, "also by a member that was started again"

    critic, tone = json.loads(listed)["members"]
    assert (critic["judge"], critic["role"], critic["state"]) == (swapped_to, "critic", "scoring"), critic
    assert (tone["role"], tone["state"], tone["weight"]) == ("style", "scoring", pytest.approx(0.2)), tone
    assert "tone" not in json.loads((folder.path / "config.json").read_text())["committee"]["members"]

    events = oven.events("kills")
    _whole(events)
    [ended] = [event.body for event in events if isinstance(event.body, RunEnded)]
    assert (ended.reason, ended.detail) == ("stopped", "seen enough")
    assert replay(events, "kills").same, "byte for byte"
    measured = [event.body.metrics for event in events if isinstance(event.body, Observation)]
    assert sum(metrics.get("committee/skipped_steps", 0.0) for metrics in measured) == 0, "it was waited for"
    assert endpoint.served["ok"] > 50 and endpoint.served["echo401"] == 1
    assert any(header.get("Authorization", "").endswith(CANARY) for header in endpoint.headers), "it was used"

    assert endpoint.traces and any(b"chat m@" in trace for trace in endpoint.traces)
    assert not any(CANARY.encode() in trace for trace in endpoint.traces), "not in a span"
    assert CANARY not in output
    leaking_files = [path for path in _files(folder.path) if CANARY.encode() in path.read_bytes()]
    assert leaking_files == [], "not in a log, an error or a message: the bus's store is among these files"


def _kill(folder: RunFolder, name: str) -> None:
    process = psutil.Process(folder.info().children[name])
    if name == "nats-server":  # behind its guard
        [process] = process.children()
    process.send_signal(signal.SIGKILL)
    psutil.wait_procs([process], timeout=60)


def _whole(events: list[Event]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    numbers = [
        (event.body.incarnation, event.body.n)
        for event in events
        if isinstance(event.body, RunStarted | ActuatorAnnounced | Observation | Receipt | RunEnded)
    ]
    assert numbers == [(1, n) for n in range(numbers[0][1], numbers[0][1] + len(numbers))], (
        "nothing lost, nothing twice, in order"
    )
    ticks = [event.body.tick for event in events if isinstance(event.body, Observation)]
    assert ticks == list(range(1, len(ticks) + 1))


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
