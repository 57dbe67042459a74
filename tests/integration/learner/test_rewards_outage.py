"""The recipe with a remote judge on a real server that goes away in the middle of a run, and comes back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from nats.aio.msg import Msg
from tests.support.attached import THIRD_PARTY
from tests.support.learner_side import Server
from tests.unit.learner.test_grpo_job import TINY
from tests.unit.learner.test_rewards_skipping import Remembering, same

from oven_bench import committee as bench
from oven_core.bus.connection import Bus
from oven_core.protocol import names
from oven_core.protocol.committee_requests import ScoreReply, ScoreRequest
from oven_core.protocol.messages import Observation, RunStarted
from oven_core.security.credentials import Credentials
from oven_learner.hf.attach import attach
from oven_learner.rewards import Committee
from oven_learner.rewards.remote_members import RemoteMembers
from oven_recipes.grpo.settings import parse_start
from oven_recipes.grpo.sorting_task import RULES, WEIGHTS, make_example
from oven_recipes.grpo.training_job import build

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]


class Judge:
    """Knows how to sort. `there` and `gone` are called from the training thread, between two steps."""

    def __init__(self, bus: Bus, loop: asyncio.AbstractEventLoop) -> None:
        self.bus, self.loop = bus, loop
        self.policies: set[str] = set()
        self.subscription: Any = None

    async def listen(self) -> None:
        self.subscription = await self.bus.client.subscribe(names.reward("judge"), cb=self.answer)
        await self.bus.flush()

    async def leave(self) -> None:
        await self.subscription.unsubscribe()
        await self.bus.flush()

    def now(self, what: Any) -> None:
        asyncio.run_coroutine_threadsafe(what(), self.loop).result(30)

    async def answer(self, message: Msg) -> None:
        request = ScoreRequest.model_validate_json(message.data)
        self.policies.add(request.policy)
        right = make_example(request.prompt.strip("S=")).answer
        scores = {c.id: 0.9 if c.text == right else 0.1 for c in request.completions}
        await self.bus.publish(message.reply, ScoreReply(member="judge", group=request.group, scores=scores).wire())


class Outage(Remembering):
    """The judge is away for the generations of steps 4 and 5."""

    judge: Judge

    def send(self, make: Any) -> None:
        super().send(make)
        step = self.sent[-1].step if isinstance(self.sent[-1], Observation) else None
        if step == 3:
            self.judge.now(self.judge.leave)
        if step == 5:
            self.judge.now(self.judge.listen)


async def test_an_outage_of_the_judge_is_skipped_and_the_run_goes_on(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.files.add_user("member", "judge")
    await server.start()
    try:
        async with Bus.connect(server.url, Credentials.load(server.creds("judge"))) as bus:
            judge = Judge(bus, asyncio.get_running_loop())
            await judge.listen()
            key = Credentials.load(server.creds("learner"))
            remote = RemoteMembers(("judge",), server.url, key, deadline_s=20, absence_timeout_s=0)
            committee = Committee(RULES, remote=remote, weights=WEIGHTS, seed=1)
            settings = TINY.model_copy(update={"max_steps": 8})
            job = await asyncio.to_thread(
                build, settings, parse_start("tuned", 1, settings), 1, tmp_path, tmp_path / "cache", committee
            )
            line = Outage()
            line.trainer, line.judge = job.trainer, judge
            attach(job.trainer, committee=committee, link=line)
            await asyncio.to_thread(job.trainer.train)
    finally:
        await server.stop()
    seen = line.observed()
    assert [o.metrics["committee/skipped_steps"] for o in seen] == [0, 0, 0, 1, 1, 0, 0, 0]
    assert [o.metrics["committee/abstain/no_responder"] for o in seen[3:5]] == [4.0, 4.0], "one a group"
    for step in range(1, 8):
        assert same(line.states[step], line.states[step - 1]) == (step in (3, 4)), f"step {step + 1}"
    assert all("rewards/exact/mean" in o.metrics for o in seen), "the rules go on measuring"
    assert ["rewards/judge/mean" in o.metrics for o in seen] == [True] * 3 + [False] * 2 + [True] * 3
    run = line.sent[0]
    assert isinstance(run, RunStarted)
    (weights,) = [spec for spec in run.actuators if spec.name == "reward.weights"]
    assert weights.value == {"exact": 0.5, "format": 0.0, "length": 0.0, "judge": 0.5}
    assert all("Sort the digits" in policy for policy in judge.policies)


def test_the_bench_finds_no_wrong_score_and_would_find_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    result = bench.measure(tmp_path / "a", groups=20, members=4, share=0.5, deadline_s=0.5, seed=1)
    assert result["wrong_scores"] == 0 and sum(result["faults_by_kind"].values()) > 0
    assert result["skipped"] < result["skipped_by_one_judge"]
    liar = bench.rescored(lambda score: 1 - score)
    monkeypatch.setattr(bench, "FAULTS", {"a lie in the right form": liar})
    (tmp_path / "b").mkdir()
    assert bench.measure(tmp_path / "b", groups=5, members=4, share=0.5, deadline_s=5, seed=1)["wrong_scores"] > 0
