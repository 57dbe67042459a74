"""A cap on what judges spend, over members that are processes and die, and prompts of a megabyte."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.integration.agents.test_committee_member import configured, connection, once_there, process, request, score
from tests.integration.agents.test_committee_member import server as server
from tests.integration.conftest import WAIT_S, Stack, wait_for
from tests.support.judge_endpoint import Endpoint

from oven_core.protocol.committee_requests import Completion, ScoreRequest
from oven_core.security.credentials import Credentials
from oven_learner.rewards.member_models import RequestedModel
from oven_learner.rewards.remote_members import RemoteMembers
from oven_learner.rewards.verdicts import Abstention
from oven_runs.home.model_spend import read_spend
from oven_runs.server.embedded_server import EmbeddedServer

CAP = 30


class Slow(Endpoint):
    """Answers when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_made = 0
        self.open = asyncio.Event()

    async def _serve(
        self, request: web.Request, body: dict[str, Any], user: str, schema: dict[str, Any], wrap: Any
    ) -> web.StreamResponse:
        self.calls_made += 1
        await self.open.wait()
        return await super()._serve(request, body, user, schema, wrap)


async def test_a_cap_holds_after_a_member_is_killed_and_the_run_resumed(
    stack: Stack, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Slow().running() as endpoint, connection(server, "learner") as learner:
        configured(
            tmp_path,
            {"calls": CAP},
            critic={"provider": "compatible", "model": "m@", "base_url": endpoint.openai_url},
            adversary={"provider": "compatible", "model": "m@", "base_url": endpoint.openai_url},
        )

        async def kinds(groups: range) -> list[str]:
            """What came of a step of both members."""
            requests = [score(learner, name, request(n)) for name in ("critic", "adversary") for n in groups]
            return [reply.failure for reply in await asyncio.gather(*requests)]

        async with AsyncExitStack() as running:
            critic = await running.enter_async_context(process(stack, server, tmp_path, "critic"))
            await running.enter_async_context(process(stack, server, tmp_path, "adversary"))
            for name in ("critic", "adversary"):
                await _listening(learner, name)
            step = [
                asyncio.create_task(score(learner, name, request(n, 120)))
                for name in ("critic", "adversary")
                for n in range(20)
            ]
            await asyncio.to_thread(wait_for, lambda: endpoint.calls_made == CAP, "the whole cap under way")
            os.kill(critic.pid, signal.SIGKILL)
            await critic.wait()
            await running.enter_async_context(process(stack, server, tmp_path, "critic"))
            await _listening(learner, "critic")
            endpoint.open.set()
            replies = await asyncio.gather(*step[20:])
            for task in step[:20]:
                task.cancel()
            scored = sum(reply.scores is not None for reply in replies)
            assert 0 < scored < 20 and {reply.failure for reply in replies} == {"", "budget"}
            assert (await once_there(learner, "critic")).failure == "budget", "it knows what the dead one held"
        async with AsyncExitStack() as resumed:
            for name in ("critic", "adversary"):
                await resumed.enter_async_context(process(stack, server, tmp_path, name))
                await once_there(learner, name)
            assert set(await kinds(range(100, 104))) == {"budget"}
        assert endpoint.calls_made == CAP, "not one call more"
    spent = read_spend(tmp_path)
    assert sum(spend.calls for spend in spent.values()) == CAP
    assert spent["judges/adversary"].calls == scored + 1, "and its probe"
    assert spent["judges/critic"].unanswered == spent["judges/critic"].calls == CAP - scored - 1


async def test_a_prompt_of_a_megabyte_is_shortened_or_an_abstention(
    stack: Stack, server: EmbeddedServer, tmp_path: Path
) -> None:
    async with Endpoint().running() as endpoint, connection(server, "learner") as learner:
        configured(tmp_path, critic={"provider": "compatible", "model": "m@", "base_url": endpoint.openai_url})
        async with process(stack, server, tmp_path, "critic"):
            await _listening(learner, "critic")
            remote = RemoteMembers(
                ("critic",), server.url, Credentials.load(server.folder.creds / "learner.nk"), deadline_s=WAIT_S
            )
            texts = ("worth 7", "worth 2 " + "x" * 400_000)
            completions = tuple(Completion(id=f"c{n}", text=text) for n, text in enumerate(texts))
            scored_steps = await asyncio.to_thread(
                remote.ask,
                [
                    ScoreRequest(run="r", group="g", prompt="p" * size, completions=completions, deadline_s=WAIT_S)
                    for size in (500_000, 1 << 20)
                ],
                {"critic": RequestedModel()},
            )
            await asyncio.to_thread(remote.close)
    assert scored_steps == {"critic": [(0.7, 0.2), Abstention("too_large")]}
    assert max(len(str(body)) for body in endpoint.requests) < 30_000, "a judge is shown the ends of what is too long"


async def _listening(learner: Any, name: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while not await learner.has_listener(f"oven.reward.{name}"):
            await asyncio.sleep(0.05)
