"""Conversations over real HTTP in both wire formats, and the budget that they are paid from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from tests.support.judge_endpoint import Endpoint

from oven_core.errors import ConfigError
from oven_llm import providers
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.supervisor.model_handlers import AnthropicHandler, OpenAIHandler
from oven_runs.settings.judge_providers import Price, Wire, catalogue, endpoint_of
from oven_runs.settings.language_models import ModelSettings

KEY = "sk-canary-77aa"
ASKED = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"})
WIRES: tuple[Wire, ...] = ("openai", "anthropic")


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint(seed=1).running() as endpoint:
        yield endpoint


class Connect(Protocol):
    """Connects to the endpoint, until the test's end."""

    def __call__(self, wire: Wire, model: str = "m", price: Price | None = None) -> RemoteModel: ...


@pytest.fixture
async def connect(endpoint: Endpoint) -> AsyncIterator[Connect]:
    made: list[RemoteModel] = []

    def connect_model(wire: Wire, model: str = "m", price: Price | None = None) -> RemoteModel:
        settings = ModelSettings(
            provider="compatible" if wire == "openai" else "claude",
            model=model,
            base_url=endpoint.openai_url if wire == "openai" else endpoint.url,
        )
        model_settings = replace(
            endpoint_of("worker", settings, catalogue(), "worker"), price=price, token_limit_field="max_tokens"
        )
        made.append(providers.connect("worker", model_settings, KEY))
        return made[-1]

    yield connect_model
    for provider in made:
        await provider.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_second_turn_is_answered_and_billed_with_the_cached_part(
    endpoint: Endpoint, connect: Connect, wire: Wire
) -> None:
    model = connect(wire, price=Price(input=5000, output=5000))
    first = await model.ask(Conversation(ASKED, 99, temperature=0.5), 60)
    assert (first.finish, first.text, first.model) == (
        "stop", "The answer to “How many?” is seven.", "judge-2026-01-01",
    )  # fmt: skip
    turns = (*ASKED, {"role": "assistant", "content": first.text}, {"role": "user", "content": "So?"})
    second = await model.ask(Conversation(turns, 99), 60)
    third = await model.ask(Conversation((*turns, {"role": "user", "content": "Well?"}), 99), 60)
    assert second.text == "The answer to “So?” is seven."
    assert first.usage and second.usage and third.usage
    bill = endpoint.bills.tokens["m"]
    used = first.usage + second.usage + third.usage
    assert (used.input_tokens, used.output_tokens) == (bill["input"], bill["output"])
    assert third.usage.cached_tokens > 0 and (wire == "openai" or second.usage.written_tokens > 0)
    assert first.cost_usd == pytest.approx((first.usage.input_tokens + first.usage.output_tokens) / 200)
    assert (endpoint.requests[0]["temperature"], endpoint.requests[0]["max_tokens"]) == (0.5, 99)
    if wire == "anthropic":
        assert endpoint.requests[0]["system"] == "Be brief."
        with pytest.raises(ModelFailure, match=r"temperature is 1\.5; this API accepts 0 to 1"):
            await model.ask(Conversation(ASKED, 9, temperature=1.5), 60)


@pytest.mark.parametrize("wire", WIRES)
async def test_a_fault_is_a_kind_of_failure_and_never_a_reply(endpoint: Endpoint, connect: Connect, wire: Wire) -> None:
    """A quarter of all requests fails, in every way; what an answer says is right or marked."""
    model = connect(wire, "m@chaos")
    conversations = [Conversation(({"role": "user", "content": f"question {n}"},), 99) for n in range(40)]
    ended = await asyncio.gather(
        *(model.ask(conversation, 0.9) for conversation in conversations), return_exceptions=True
    )
    for number, outcome in enumerate(ended):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, ModelFailure) and KEY not in str(outcome)
            assert outcome.kind in ("rate_limit", "server_error", "overloaded", "connection", "timeout", "bad_response")
        elif outcome.finish == "stop":
            assert outcome.text == f"The answer to “question {number}” is seven."
        else:
            assert outcome.finish in ("length", "refusal")
    assert endpoint.served["ok"] >= 20 and len(endpoint.served) > 5


async def test_a_budget_covers_all_accounts_and_survives_a_restart(
    endpoint: Endpoint, connect: Connect, tmp_path: Path
) -> None:
    path = tmp_path / "results" / "spend.sqlite"
    for cap in (2, 4):
        with Budget.with_caps(calls=cap, path=path) as budget:
            worker = connect("openai").with_budget(budget, "worker")
            teacher = connect("anthropic").with_budget(budget, "teacher")
            await worker.ask(Conversation(ASKED, 9), 60)
            await teacher.ask(Conversation(ASKED, 9), 60)
            with pytest.raises(ModelFailure, match=f"budget.calls is {cap}, {cap} are used"):
                await teacher.ask(Conversation(ASKED, 9), 60)
            assert budget.spent.calls == cap == sum(endpoint.served.values())
            assert budget.cost_usd is None and budget.spent.unpriced == cap, "no price is known, and that is said"
    with (
        Budget.with_caps(usd=1.0) as budget,
        pytest.raises(ConfigError, match="price of 'm', the model of worker, is unknown"),
    ):
        connect("openai").with_budget(budget, "worker")
    with pytest.raises(ConfigError, match=r"budget.tokens is 0: .*omit it for no cap"):
        Budget.with_caps(tokens=0)


async def test_handlers_work_in_synchronous_programs(endpoint: Endpoint) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}]
    with Budget() as budget:
        openai = OpenAIHandler("m", endpoint.openai_url, temperature=0.0, max_tokens=64, budget=budget)
        anthropic = AnthropicHandler("m@refusal,html", endpoint.url, api_key=KEY)
        response = await asyncio.to_thread(openai.chat, messages)
        assert response.text == "The answer to “How many?” is seven." and response.finish == "stop"
        assert (
            response.usage
            and response.usage.input_tokens == endpoint.bills.tokens["m"]["input"]
            and response.cost_usd is None
        )
        assert (await asyncio.to_thread(anthropic.chat, messages)).finish == "refusal"
        with pytest.raises(ModelFailure, match="bad_response"):
            await asyncio.to_thread(anthropic.chat, messages)
        assert (await asyncio.to_thread(anthropic.chat, messages)).finish == "stop"
        assert anthropic.secrets == (KEY,) and openai.secrets == (), "no key is no secret"
        calls = [asyncio.to_thread(openai.chat, [{"role": "user", "content": str(n)}]) for n in range(20)]
        assert [response.text for response in await asyncio.gather(*calls)] == [
            f"The answer to “{n}” is seven." for n in range(20)
        ]
        assert budget.accounts["m"].calls == 21
        await asyncio.to_thread(openai.close)
        await asyncio.to_thread(anthropic.close)
