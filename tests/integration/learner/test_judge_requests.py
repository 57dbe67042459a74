"""How often a judge is asked, counted where it costs: at its endpoint, behind a member on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("trl")

from datasets import Dataset
from tests.support.attached import THIRD_PARTY
from tests.support.judge_endpoint import Endpoint
from tests.support.learner_side import Server
from tests.support.tiny_grpo import ROWS, grpo

from oven_core.bus.connection import Bus
from oven_core.security.credentials import Credentials
from oven_learner.hf.attach import attach
from oven_learner.rewards import Committee
from oven_learner.rewards.remote_members import RemoteMembers
from oven_llm import providers
from oven_llm.judges.committee_member import Member
from oven_llm.judges.judge import Judge
from oven_llm.judges.member_process import serve
from oven_runs.settings.committee_settings import MemberSettings
from oven_runs.settings.judge_providers import NO_KEY, catalogue, endpoint_of

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


async def test_a_second_training_and_an_evaluation_after_it_ask_once_for_each_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVEN_MODE", "optional")
    server = Server(tmp_path)
    server.files.add_user("member", "critic")
    await server.start()
    stop = asyncio.Event()
    try:
        async with Endpoint().running() as endpoint, Bus.connect(server.url, _key(server, "critic")) as bus:
            endpoint.likes = "a"
            settings = MemberSettings(provider="compatible", model="m@", base_url=endpoint.openai_url)
            critic_endpoint = endpoint_of("critic", settings, catalogue())
            judge = Judge("critic", providers.connect("critic", critic_endpoint, NO_KEY))
            serving = asyncio.create_task(serve(Member("critic", judge), bus, stop))
            remote = RemoteMembers(("critic",), server.url, _key(server, "learner"), deadline_s=20)
            committee = Committee({}, remote=remote, description="A test.")
            trainer = grpo(
                tmp_path, rewards=[committee], eval_dataset=Dataset.from_list(ROWS[:2]), per_device_eval_batch_size=8
            )
            attach(trainer, committee=committee)
            requests = []
            for ask in (trainer.train, trainer.train, trainer.evaluate, trainer.evaluate):
                before = sum(endpoint.served.values())
                await asyncio.to_thread(ask)
                requests.append(sum(endpoint.served.values()) - before)
            await asyncio.to_thread(committee.close)
            stop.set()
            await serving
            await judge.close()
    finally:
        await server.stop()
    assert requests == [6, 6, 2, 2], "two groups a step, three steps; two groups to evaluate"
    assert not remote.faults


def _key(server: Server, name: str) -> Credentials:
    return Credentials.load(server.creds(name))
