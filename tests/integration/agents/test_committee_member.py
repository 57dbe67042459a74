"""Committee members on a real bus: as processes, and two hundred groups of a bad day."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.aio.msg import Msg
from tests.integration.conftest import WAIT_S, Stack
from tests.support.judge_endpoint import KINDS as FAULT_KINDS
from tests.support.judge_endpoint import Endpoint

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol import names
from oven_core.protocol.committee_requests import Completion, ScoreReply, ScoreRequest
from oven_core.protocol.names import score_inbox
from oven_core.security.credentials import Credentials
from oven_llm import providers
from oven_llm.judges.adversarial_controls import Controls
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import Judge
from oven_llm.judges.member_process import serve
from oven_llm.providers.failures import KINDS
from oven_runs.home import endpoint_checks
from oven_runs.process.child_process import Child
from oven_runs.server.embedded_server import EmbeddedServer, ServerFolder
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import catalogue, endpoint_of

KEY = "sk-canary-77b1d9"
GROUPS, SIZE = 200, 4


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint(seed=3).running() as running:
        yield running


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    folder = ServerFolder(tmp_path / "nats", "r")
    for role in ("admin", "learner"):
        folder.add_user(role, role)
    for member in ("critic", "adversary", "specialist", "style", "dear"):
        folder.add_user("member", member)
    started = await EmbeddedServer.start(folder, tmp_path / "nats-server.log")
    yield started
    await started.stop()


def connection(server: EmbeddedServer, name: str) -> Any:
    return Bus.connect(server.url, Credentials.load(server.folder.creds / f"{name}.nk"))


def configured(folder: Path, budget: dict[str, float] | None = None, **members: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps({"committee": {"members": members, "budget": budget or {}}}))


@asynccontextmanager
async def process(stack: Stack, server: EmbeddedServer, folder: Path, name: str, **env: str) -> AsyncIterator[Child]:
    """A member as `up` starts it, from its start until it is asked to end."""
    environment = {
        "PYTHONPATH": stack.env["PYTHONPATH"],
        "OVEN_URL": server.url,
        "OVEN_RUN": "r",
        "OVEN_RUN_DIR": str(folder),
        "OVEN_CREDS": str(server.folder.creds / f"{name}.nk"),
        **env,
    }
    command = [sys.executable, "-P", "-m", "oven_controller.stack.run_process", "member", "--name", name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", stack.popen)  # forked: an SDK takes a second to import
        child = await Child.start(name, command, folder / f"{name}.log", env=environment)
    try:
        yield child
    finally:
        await child.end(grace_s=10)


def request(group: int, deadline_s: float = 20.0) -> ScoreRequest:
    completions = tuple(
        Completion(id=os.urandom(6).hex(), text=f"answer {n} of {group} is worth {(group * 7 + n * 3) % 11}")
        for n in range(SIZE)
    )
    return ScoreRequest(run="r", group=str(group), prompt="How much?", completions=completions, deadline_s=deadline_s)


def right(score_request: ScoreRequest) -> dict[str, float]:
    return {completion.id: int(completion.text.split()[-1]) / 10 for completion in score_request.completions}


async def score(bus: Bus, member: str, score_request: ScoreRequest) -> ScoreReply:
    """As the learner asks: into an inbox for scores, where alone a member may answer."""
    inbox = f"{score_inbox('learner')}.{os.urandom(8).hex()}"
    answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
    await bus.client.subscribe(inbox, future=answer, max_msgs=1)
    await bus.client.publish(names.reward(member), score_request.wire(), reply=inbox)
    try:
        message = await asyncio.wait_for(answer, score_request.deadline_s)
    except TimeoutError as error:
        raise BusError(f"{member} did not answer") from error
    if (message.headers or {}).get("Status") == "503":
        raise BusError(f"{member} is not there")
    return ScoreReply.model_validate_json(message.data)


async def once_there(bus: Bus, member: str) -> ScoreReply:
    """The first answer of a member that is still starting, or on its way back."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await score(bus, member, request(1))
            except BusError:
                await asyncio.sleep(0.05)


async def test_a_members_process_from_start_to_end(
    stack: Stack, server: EmbeddedServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    """It answers, comes back after the server was away, says nothing of what it knows, and ends when asked to."""
    (tmp_path / "rubric.txt").write_text("Look for songs of birds.")
    configured(
        tmp_path,
        critic={"provider": "compatible", "model": "m@", "base_url": endpoint.openai_url, "key_env": "CANARY"}
        | {"rubric": str(tmp_path / "rubric.txt")},
        adversary={"provider": "claude", "model": "m@echo401x99", "base_url": endpoint.url, "key_env": "CANARY"}
        | {"role": "adversary"},
        # Each provider's own manners, at its own path of the endpoint.
        specialist={"provider": "deepseek", "model": "m@echo200", "base_url": f"{endpoint.url}/deepseek/v1"}
        | {"role": "specialist", "key_env": "CANARY", "logprobs": True},
        style={"provider": "grok", "model": "m@echo500", "base_url": f"{endpoint.url}/grok/v1", "key_env": "CANARY"}
        | {"role": "style"},
    )
    members = ("critic", "adversary", "specialist", "style")
    received: list[bytes] = []

    async def hear(message: Msg) -> None:
        received.append(message.subject.encode() + message.data)

    loud = {"CANARY": KEY, "OPENAI_LOG": "debug", "ANTHROPIC_LOG": "debug", "OVEN_OTLP": endpoint.url}
    async with AsyncExitStack() as running:
        children = {
            name: await running.enter_async_context(process(stack, server, tmp_path, name, **loud)) for name in members
        }
        async with connection(server, "learner") as learner, connection(server, "admin") as admin:
            for name in members:
                reply = await once_there(learner, name)
                assert (reply.failure == "auth") if name == "adversary" else (reply.scores is not None), reply
            await probed(tmp_path, members)
            await admin.subscribe(">", hear)  # not before: a listener hides that nobody answers
            await admin.flush()
            score_request = request(2)
            reply = await score(learner, "critic", score_request)
            assert (reply.member, reply.group, reply.scores) == ("critic", "2", right(score_request))
            assert (await score(learner, "adversary", score_request)).failure == "auth"
            await admin.flush()
        await server.stop()
        again = await EmbeddedServer.start(server.folder, tmp_path / "again.log", server.port)
        running.push_async_callback(again.stop)
        async with connection(again, "learner") as learner:
            assert (await once_there(learner, "critic")).scores is not None
        commands = [" ".join(process.cmdline()) for child in children.values() for process in tree(child.pid)]
        for child in children.values():
            assert await child.end(grace_s=WAIT_S) == 0
        logs = "".join(child.log.read_text() for child in children.values())
    assert "abstained: auth" in logs
    assert "does not support JSON Schema" in logs, "what DeepSeek lacks is one sentence in its member's log"
    assert endpoint_checks.read(tmp_path)["adversary"].failure == "auth"
    assert any("songs of birds" in str(body["messages"]) for body in endpoint.requests)
    assert sum(b"ScoreReply" in message for message in received) == 2
    assert len(commands) >= len(members) and all(header["Authorization"].endswith(KEY) for header in endpoint.headers)
    assert any(b"chat m@echo200" in trace for trace in endpoint.traces), "a span for each call"
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for where in (
        logs,
        b"".join(received).decode(),
        "".join(commands),
        b"".join(files + endpoint.traces).decode(errors="replace"),
    ):
        assert KEY not in where
    assert "worth" not in logs  # neither prompts nor completions


async def probed(folder: Path, members: tuple[str, ...]) -> None:
    """Once each member's process has written what its probe found."""
    async with asyncio.timeout(WAIT_S):
        while set(endpoint_checks.read(folder)) != set(members):
            await asyncio.sleep(0.05)


def tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


async def test_a_restart_does_not_end_a_quarantine(
    stack: Stack, server: EmbeddedServer, endpoint: Endpoint, tmp_path: Path
) -> None:
    configured(
        tmp_path,
        critic={"provider": "compatible", "model": "m@", "base_url": endpoint.openai_url, "key_env": "CANARY"},
    )
    endpoint.obeys = ":"
    async with connection(server, "learner") as learner:
        for life in range(2):
            async with process(stack, server, tmp_path, "critic", CANARY=KEY) as critic:
                failures = [(await once_there(learner, "critic")).failure]
                reply = await score(learner, "critic", request(2))
                failures += [reply.failure, (await score(learner, "critic", request(3))).failure]
                assert failures == (["quarantined"] * 3 if life else ["fooled", "fooled", "quarantined"])
                assert reply.health is not None and reply.health.quarantined
                critic.kill()
                await critic.wait()
    assert "still in quarantine: it failed on colon" in (tmp_path / "critic.log").read_text()
    assert KEY not in (tmp_path / "judges" / "critic.0.controls").read_text()


@pytest.mark.parametrize(
    ("credentials", "replies"),
    [
        ("critic", ("oven.r.decision.1", "_INBOX_.mesh.1")),  # the server's permissions hold it
        ("admin", ("oven.r.decision.1",)),  # and where there are none, its own care
    ],
)
async def test_a_member_answers_the_learner_and_nobody_else(
    server: EmbeddedServer, endpoint: Endpoint, credentials: str, replies: tuple[str, ...]
) -> None:
    stolen: list[Msg] = []

    async def hear(message: Msg) -> None:
        stolen.append(message)

    async with (
        serving(server, endpoint, "critic", "", credentials),
        connection(server, "learner") as learner,
        connection(server, "admin") as admin,
    ):
        for subject in replies:
            await admin.client.subscribe(subject, cb=hear)
            await admin.client.publish(names.reward("critic"), request(1).wire(), reply=subject)
        await admin.flush()
        score_request = request(2)
        assert (await score(learner, "critic", score_request)).scores == right(
            score_request
        )  # so it had the others before
        await admin.flush()
    assert stolen == []


@asynccontextmanager
async def serving(
    server: EmbeddedServer, endpoint: Endpoint, name: str, script: str, credentials: str = ""
) -> AsyncIterator[Member]:
    """A member in this process, so that its counts can be read."""
    critic = name == "critic"
    settings = MemberSettings(
        provider="compatible" if critic else "claude",
        model=f"m@{script}",
        base_url=endpoint.openai_url if critic else endpoint.url,
    )
    provider = providers.connect(name, endpoint_of(name, settings, catalogue()), KEY)
    member = Member(name, Judge("critic", provider, Controls()))
    stop = asyncio.Event()
    async with connection(server, credentials or name) as bus:
        task = asyncio.create_task(serve(member, bus, stop))
        await asyncio.sleep(0)
        await bus.flush()  # its subscription stands
        try:
            yield member
        finally:
            stop.set()
            await task
            await provider.close()


async def test_requests_under_way_do_not_delay_the_end(server: EmbeddedServer, endpoint: Endpoint) -> None:
    async with connection(server, "learner") as learner, asyncio.timeout(WAIT_S):
        async with serving(server, endpoint, "critic", "hangx9") as critic:
            score_request = request(1, deadline_s=600)
            await learner.client.publish(names.reward("critic"), score_request.wire(), reply="_INBOX_.learner.score.1")
            while not endpoint.served["hang"]:
                await asyncio.sleep(0.02)
        assert critic.group_count == 0


@pytest.mark.slow
async def test_two_hundred_groups_on_a_bad_day(
    server: EmbeddedServer, endpoint: Endpoint, record_property: Any
) -> None:
    """A quarter of all requests fail, in fourteen ways: no score is wrong, and each fault is counted by its kind."""
    async with (
        serving(server, endpoint, "critic", "chaos") as critic,
        serving(server, endpoint, "adversary", "chaos") as adversary,
        connection(server, "learner") as learner,
    ):
        members = {"critic": critic, "adversary": adversary}
        turn = asyncio.Semaphore(16)

        async def ask(group: int) -> tuple[int, int]:
            """(scores that are wrong, members that abstained)."""
            score_request = request(group, deadline_s=12.0)
            async with turn:
                replies = await asyncio.gather(*(score(learner, name, score_request) for name in members))
            wrong = sum(
                reply.scores[key] != value
                for reply in replies
                if reply.scores is not None
                for key, value in right(score_request).items()
            )
            assert all(reply.failure in KINDS for reply in replies if reply.scores is None)
            return wrong, sum(reply.scores is None for reply in replies)

        started = time.monotonic()
        results = await asyncio.gather(*(ask(group) for group in range(GROUPS)))
        seconds = time.monotonic() - started

    faults = critic.failed_attempts + adversary.failed_attempts
    figures: dict[str, Any] = {
        "groups": GROUPS,
        "wrong_scores": sum(wrong for wrong, _ in results),
        "abstained_by_both": sum(silent == 2 for _, silent in results),
        "abstained_by_one": sum(silent == 1 for _, silent in results),
        "requests": sum(endpoint.served.values()),
        "faults_by_kind": dict(sorted(faults.items())),
        "seconds": round(seconds, 2),
    }
    for key, value in figures.items():
        record_property(key, value)
    print(figures)
    assert figures["wrong_scores"] == 0
    served = {name: count for name, count in endpoint.served.items() if name != "ok"}
    assert sum(served.values()) > GROUPS * len(members) * 0.2
    expected: Counter[str] = Counter()
    for name, count in served.items():
        expected[FAULT_KINDS[name]] += count
    assert dict(faults) == expected
    silent = sum(silent for _, silent in results)
    assert silent == sum((critic.abstentions + adversary.abstentions).values())
    # Two independent judges that retry and ask once more: next to nothing is lost.
    assert silent <= GROUPS * len(members) * 0.06
    assert figures["abstained_by_both"] <= 2
