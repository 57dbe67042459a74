"""`tuner` and `author` over real HTTP, in a session without a bus: answers, late ones, faults and floods."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.judge_endpoint import Endpoint
from tests.support.scripted_model import GOOD, KEY, ScriptedModel

from oven_agents.runtime.agent_loader import load
from oven_agents.runtime.companion import RunContext
from oven_agents.sdk.agent_session import Session
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Horizon,
    MetricSpec,
    Observation,
    Receipt,
    RunStarted,
    Vote,
)
from oven_llm.language_models.author import Author
from oven_llm.language_models.tuner import Tuner
from oven_runs.home.authored_prompts import AuthoredPrompt, Topic, read_prompts, write_topics
from oven_runs.home.model_spend import SPEND_FILE, read_spend

RATE = ActuatorSpec(name="optimizer.lr_scale", kind="scalar", scale="log", low=0.1, high=3.0, value=1.0)
MIXTURE = ActuatorSpec(
    name="data.mixture", kind="simplex", choices=("sums", "proofs"), value={"sums": 0.5, "proofs": 0.5}
)
SHARE = ActuatorSpec(name="data.authored_share", kind="scalar", low=0.0, high=0.25, value=0.0, moves_own_metric=True)


def started(*actuators: ActuatorSpec) -> RunStarted:
    better = {"reward": "up", "loss": "down", "eval/accuracy": "up"}
    names = ("reward", "loss", "grad_norm", "reward/sums", "reward/proofs", "eval/accuracy", "data/authored")
    return RunStarted.model_validate(
        {
            "incarnation": 1,
            "n": 0,
            "recipe": "grpo",
            "horizon": Horizon(max_steps=500),
            "actuators": actuators or (RATE, MIXTURE, SHARE),
            "metrics": [
                MetricSpec(name=name, better=better.get(name, "neither"), held_out=name.startswith("eval"))
                for name in names
            ],
        }
    )


class Run:
    """One agent in its session, with its companion beside it."""

    def __init__(self, agent: Tuner | Author, folder: Path, settings: dict[str, Any], *actuators: ActuatorSpec) -> None:
        self.agent, self.messages = agent, list[Vote | AgentStatus]()

        async def ask_graph(endpoint: str, request: bytes) -> bytes | None:
            raise AssertionError("neither agent asks the knowledge graph")

        name = "tuner" if isinstance(agent, Tuner) else "author"
        beside = agent.begin(RunContext(name, folder, {name: settings}, ask_graph))
        self.task = asyncio.create_task(beside) if beside is not None else None
        self.session = Session(agent, name)
        self.session.absorb(started(*actuators))
        self.tick = 0

    def ticks(self, count: int, **metrics: float) -> list[Vote | AgentStatus]:
        """Of a run whose gradient norm doubles at tick 32."""
        messages: list[Any] = []
        for _ in range(count):
            self.tick += 1
            seen = {"reward": 0.2, "loss": 1.0, "grad_norm": 1.0 + 0.01 * (self.tick % 3) + (self.tick > 31), **metrics}
            seen |= {"reward/sums": 0.3, "reward/proofs": 0.99, "eval/accuracy": 0.25}
            self.session.absorb(
                Observation(incarnation=1, n=self.tick, tick=self.tick, step=self.tick, progress=0.1, metrics=seen)
            )
            messages += self.session.react()
        self.messages += messages
        assert not self.session.problems
        return messages

    async def answer(self, count: int = 1, **metrics: float) -> list[Vote | AgentStatus]:
        """What is said `count` ticks after the answer has come."""
        await self.agent.slot.ready.wait()
        return self.ticks(count, **metrics)


@asynccontextmanager
async def playing(
    agent: Tuner | Author,
    folder: Path,
    endpoint: Endpoint | None,
    model: str = "m",
    actuators: tuple[ActuatorSpec, ...] = (),
    **settings: Any,
) -> AsyncIterator[Run]:
    if endpoint is not None:
        settings["llm"] = {
            "provider": "compatible",
            "model": model,
            "base_url": endpoint.openai_url,
            "key_env": "OVEN_TEST_KEY",
        }
    run = Run(agent, folder, settings, *actuators)
    try:
        yield run
    finally:
        if run.task is not None:
            run.task.cancel()
            await asyncio.gather(run.task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVEN_TEST_KEY", KEY)


def votes(messages: list[Vote | AgentStatus]) -> list[Vote]:
    return [message for message in messages if isinstance(message, Vote)]


def notices(messages: list[Vote | AgentStatus]) -> list[str]:
    return [message.reason for message in messages if isinstance(message, AgentStatus) and message.state == "notice"]


async def test_an_answer_becomes_a_vote_at_a_later_tick(tmp_path: Path) -> None:
    async with ScriptedModel().running() as endpoint, playing(Tuner(), tmp_path, endpoint, every=30) as run:
        assert isinstance(endpoint, ScriptedModel)
        assert not votes(run.ticks(20)) and not endpoint.requests, "no vote waits for a model"
        messages = votes(await run.answer())
        assert [(vote.actuator, vote.value, vote.tick, vote.confidence) for vote in messages] == [
            (RATE.name, 0.5, 21, 0.7)
        ]
        assert messages[0].rationale == f"{GOOD['reason']} (m, asked at tick 12)"
        run.session.absorb(
            Receipt.model_validate(
                {"incarnation": 1, "n": 9, "decision_id": "d", "actuator": RATE.name, "before": 1.0, "after": 2.0}
                | {"status": "applied", "tick": 21, "step": 21, "reason": ""}
            )
        )
        run.ticks(32)
        await run.agent.slot.ready.wait()
        _, second = endpoint.data
        assert second["knobs"] == {
            RATE.name: {"value": 2.0, "low": 0.1, "high": 3.0, "scale": "log", "unit": "", "changed_at_tick": 21}
        }
        assert second["changes"][0]["reward_before"] == 0.2
        schema = endpoint.requests[1]["response_format"]["json_schema"]["schema"]["properties"]
        assert schema["actuator"]["enum"] == [RATE.name] and "eval/accuracy" in schema["target"]["enum"]


async def test_late_and_superseded_replies_are_discarded_and_counted(tmp_path: Path) -> None:
    async with ScriptedModel().running() as endpoint, playing(Tuner(), tmp_path, endpoint, every=1, expires=5) as run:
        run.ticks(12)
        await run.agent.slot.ready.wait()
        run.agent.slot.ready.clear()
        collect = run.agent.slot.collect
        run.agent.slot.collect = lambda: None  # type: ignore[method-assign]  # the agent is busy for some ticks
        run.ticks(6)
        run.agent.slot.collect = collect  # type: ignore[method-assign]
        assert not votes(messages := run.ticks(1)) and "expired 1" in notices(messages)[0]
        run.ticks(1)
        moved = {"decision_id": "d", "actuator": RATE.name, "before": 1.0, "after": 2.0, "status": "applied"}
        run.session.absorb(
            Receipt.model_validate({"incarnation": 1, "n": 1, "tick": run.tick, "step": run.tick, "reason": ""} | moved)
        )
        messages = await run.answer()
        assert not votes(messages) and "optimizer.lr_scale has changed since tick 20" in notices(messages)[0]
        assert "superseded 1" in notices(messages)[0]


BAD: dict[str, tuple[str, str]] = {
    "out_of_range": (json.dumps(GOOD | {"value": 99}), "optimizer.lr_scale = 99 is outside 0.1 to 3"),
    "confident": (json.dumps(GOOD | {"confidence": 7}), "out_of_range"),
    "not_finite": (json.dumps(GOOD).replace("0.5", "NaN"), "schema"),
    "not_allowed": (json.dumps(GOOD | {"actuator": "run.stop"}), "schema"),
    "no_reason": (json.dumps(GOOD | {"reason": " \u200b"}), "the reason is empty"),
    "prose": ("Lower the learning rate to 0.5, I am sure of it.", "bad_json"),
    "deep": ("[" * 100_000, "bad_json"),
    "long": (json.dumps(GOOD | {"notes": "x" * 1_000_000}), "schema"),
}


@pytest.mark.parametrize("name", BAD)
async def test_an_unusable_reply_is_an_abstention_of_its_kind(tmp_path: Path, name: str) -> None:
    text, message = BAD[name]
    async with ScriptedModel(lambda data: text).running() as endpoint, playing(Tuner(), tmp_path, endpoint) as run:
        run.ticks(12)
        messages = await run.answer()
        assert not votes(messages) and message in notices(messages)[0] and "1 calls" in notices(messages)[0]
        assert "lower the" not in notices(messages)[0].lower(), "nothing of the answer is quoted"


async def test_faults_are_counted_and_never_show_the_key(tmp_path: Path) -> None:
    async with ScriptedModel().running() as endpoint:
        for model, kind in {"m@401": "auth", "m@echo400x3": "bad_request", "m@refusal": "refusal"}.items():
            async with playing(Tuner(), tmp_path / kind, endpoint, model=model, every=1) as run:
                run.ticks(12)
                messages = await run.answer()
                assert not votes(messages) and f"{kind} 1" in notices(messages)[0] and KEY not in str(messages)
                run.ticks(1)
                assert votes(await run.answer()), "the next question is answered"
        async with playing(Tuner(), tmp_path / "auth", endpoint, model="m@hang", deadline_s=0.3, every=1) as run:
            run.ticks(12)
            assert "timeout 1" in notices(await run.answer())[0]


async def test_the_limit_of_calls_holds_across_restarts(tmp_path: Path) -> None:
    async with ScriptedModel().running() as endpoint:
        for made in (1, 2):
            async with playing(Tuner(), tmp_path, endpoint, every=1, calls=2) as run:
                run.ticks(12)
                assert votes(await run.answer())
                assert read_spend(tmp_path)["tuner"].calls == made
        async with playing(Tuner(), tmp_path, endpoint, every=1, calls=2) as run:
            run.ticks(12)
            assert "budget: tuner.calls is 2, 2 are used" in notices(await run.answer())[0]
        assert endpoint.served["ok"] == 2
        (tmp_path / SPEND_FILE).write_text("two" * 100)
        async with playing(Tuner(), tmp_path, endpoint) as run:
            run.ticks(1)
            assert "the spending on models cannot be read" in str(run.messages) and "remove it" in str(run.messages)


async def test_without_a_model_or_key_the_tuner_cannot_fire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OVEN_TEST_KEY")
    async with ScriptedModel().running() as endpoint, playing(Tuner(), tmp_path, endpoint) as run:
        run.ticks(1)
        assert "OVEN_TEST_KEY is not set" in next(
            m.reason for m in run.messages if isinstance(m, AgentStatus) and m.reason
        )
    for agent in (load("tuner")[1], load("author")[1]):
        assert "no model is configured" in str(agent.cannot_fire(started()))


def topics(folder: Path) -> None:
    write_topics(folder, [Topic(name="sums", prompts=9, examples=("What is 1 + 1?",)), Topic(name="proofs", prompts=9)])


def passed_on(folder: Path) -> tuple[AuthoredPrompt, ...]:
    return read_prompts(folder, 0).prompts


async def test_the_author_writes_prompts_for_lagging_topics_and_proposes_a_share(tmp_path: Path) -> None:
    topics(tmp_path)
    async with ScriptedModel().running() as endpoint, playing(Author(), tmp_path, endpoint, every=20) as run:
        assert isinstance(endpoint, ScriptedModel)
        run.ticks(5)
        messages = await run.answer()
        assert "wrote 6 prompts (sums)" in notices(messages)[0] and "1 + 2?" not in str(run.messages)
        assert passed_on(tmp_path)[2] == AuthoredPrompt(
            topic="sums", prompt="sums 1 + 2?", by="author", model="m", tick=5
        )
        (data,) = endpoint.data
        assert data["topics"] == [
            {"topic": "sums", "mastery": 0.3, "before": None, "readings": 5}
            | {"examples": ["What is 1 + 1?"], "prompts_in_data": 9}
        ], "proofs are mastered"
        assert not votes(run.ticks(2, **{"data/authored": 7.0}))
        (vote,) = votes(run.ticks(1, **{"data/authored": 8.0}))
        assert (vote.actuator, vote.value, vote.confidence, vote.target) == (SHARE.name, 0.1, 0.5, "eval/accuracy")


async def test_a_flood_of_prompts_is_cut_and_counted(tmp_path: Path) -> None:
    topics(tmp_path)
    odd = ["what is  1 + 1?", "a\u202eb", "", "y" * 5000, "z" * 1_000_000]
    flood = [{"topic": "sums", "prompt": text} for text in odd + [f"{n} + 1?" for n in (0, 0, *range(10_000))]]
    text = json.dumps({"prompts": [{"topic": "verses", "prompt": "x"}, *flood]})
    options: dict[str, Any] = {"prompts": 10, "total": 12, "every": 1}
    async with (
        ScriptedModel(lambda data: text).running() as endpoint,
        playing(Author(), tmp_path, endpoint, **options) as run,
    ):
        run.ticks(5)
        notice = notices(await run.answer())[0]
        counts = "capped 9990, control 1, duplicate 3, empty 1, too_long 2, unknown_topic 1"
        assert "wrote 10 prompts (sums)" in notice and counts in notice
        run.ticks(1)
        await run.answer()
        assert len(passed_on(tmp_path)) == 12, "author.total"
        assert "reached author.total, 12 prompts" in notices(run.ticks(3))[-1]


async def test_the_author_abstains_without_topics_or_after_prose(tmp_path: Path) -> None:
    prose = ScriptedModel(lambda data: "1. What is 2 + 2?")
    async with prose.running() as endpoint, playing(Author(), tmp_path, endpoint, every=1) as run:
        run.ticks(5)
        assert "malformed_request: cannot read the learner's topics" in notices(await run.answer())[0]
        topics(tmp_path)
        run.ticks(1)
        assert "bad_json" in notices(await run.answer())[0]
        assert not (tmp_path / "authored" / "prompts.jsonl").exists()
