"""Conversations with tools and samples, over real HTTP in both wire formats; and the budget that they are paid from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from tests.support.judge_endpoint import Endpoint

from oven_core.errors import ConfigError
from oven_llm import providers
from oven_llm.providers.budget import Budget
from oven_llm.providers.conversation import Conversation, SamplesMissing
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.models import AnthropicHandler, OpenAIHandler
from oven_runs.settings.judge_providers import Price, Wire, catalogue, endpoint_of
from oven_runs.settings.language_models import ModelSettings
from oven_runs.traces.records import Message, Tool, ToolCall

KEY = "sk-canary-77aa"
LOOK = Tool(
    name="look",
    description="Looks a word up.",
    parameters={"type": "object", "properties": {"word": {"type": "string"}}},
)
ASKED = (Message(role="system", content="Be brief."), Message(role="user", content="How many?"))
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
            endpoint_of("worker", settings, catalogue(), "worker"), price=price, limit_as="max_tokens"
        )
        made.append(providers.connect("worker", model_settings, KEY))
        return made[-1]

    yield connect_model
    for provider in made:
        await provider.close()


@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_calls_a_tool_and_answers_from_its_result(
    endpoint: Endpoint, connect: Connect, wire: Wire
) -> None:
    model = connect(wire, price=Price(input=5000, output=5000))
    conversation = Conversation(ASKED, 99, tools=(LOOK,), temperature=0.5, stop=(".",))
    (first,) = await model.ask(conversation, 60)
    assert (first.finish, first.text, first.model) == ("tool_calls", "", "judge-2026-01-01")
    (call,) = first.calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"word": "How many?"})
    results = (*ASKED, first.message, Message(role="tool", content="Seven.", call_id=call.id))
    (second,) = await model.ask(Conversation(results, 99, tools=(LOOK,)), 60)
    assert (second.finish, second.text, second.calls) == ("stop", "The answer to “Seven.” is seven.", ())
    bill = endpoint.bills.tokens["m"]
    used = first.usage + second.usage
    assert (used.input_tokens, used.output_tokens) == (bill["input"], bill["output"])
    assert first.reported
    assert first.cost_usd == pytest.approx((first.usage.input_tokens + first.usage.output_tokens) / 200)
    sent = endpoint.requests[0]
    assert (sent["temperature"], sent["max_tokens"]) == (0.5, 99)
    assert sent["stop" if wire == "openai" else "stop_sequences"] == ["."]


async def test_turns_of_one_model_can_be_sent_to_another(endpoint: Endpoint, connect: Connect) -> None:
    """Anthropic takes objects as arguments, few characters in ids, a turn's results together, and no empty text."""
    calls = (
        ToolCall(id="fn:1.0", name="look", arguments="{broken"),
        ToolCall(id="2", name="look", arguments='{"word": "b"}'),
    )
    results = (
        Message(role="tool", content="none", call_id="fn:1.0"),
        Message(role="tool", content="one", call_id="2"),
        Message(role="user", content="So?"),
    )
    model = connect("anthropic")
    messages = (*ASKED, Message(role="assistant", calls=calls), *results)
    await model.ask(Conversation(messages, 9, tools=(LOOK,)), 60)
    sent = endpoint.requests[0]
    assert sent["system"] == "Be brief."
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    used = sent["messages"][1]["content"]
    assert [(block["id"], block["input"]) for block in used] == [
        ("fn_1_0", {"arguments": "{broken"}),
        ("2", {"word": "b"}),
    ]
    assert [block["type"] for block in sent["messages"][2]["content"]] == ["tool_result", "tool_result", "text"]
    with pytest.raises(ModelFailure, match=r"temperature is 1\.5; this API takes 0 to 1"):
        await model.ask(Conversation(ASKED, 9, temperature=1.5), 60)


@pytest.mark.parametrize(
    ("wire", "several", "requests"),
    [("openai", "drawn", 1), ("openai", "ignored", 4), ("openai", "refused", 5), ("anthropic", "drawn", 4)],
)
async def test_samples_arrive_whether_or_not_the_endpoint_supports_n(
    endpoint: Endpoint, connect: Connect, wire: Wire, several: str, requests: int, tmp_path: Path
) -> None:
    endpoint.several = several  # type: ignore[assignment]
    with Budget(path=tmp_path / "spend.sqlite") as budget:
        model = connect(wire, price=Price(input=2.5, output=10)).within(budget, "teacher")
        answers = await model.ask(Conversation(ASKED, 99), 60, samples=4)
        assert {answer.text[-10:] for answer in answers} == {" is seven.", *(f"(sample {n})" for n in (1, 2, 3))}
        bill, spent = endpoint.bills.tokens["m"], budget.accounts["teacher"]
        used = sum((answer.usage for answer in answers), Usage(0, 0))
        for counted in (spent, used):
            billed = counted.input_tokens, counted.output_tokens
            assert billed == (bill["input"], bill["output"]), "no more and no less than was billed"
        assert spent.usd == pytest.approx(sum(answer.cost_usd or 0 for answer in answers))
        assert budget.cost_usd == spent.usd
        assert sum(endpoint.served.values()) == requests
        await model.ask(Conversation(ASKED, 99), 60, samples=2)
        assert sum(endpoint.served.values()) - requests == (1 if several == "drawn" and wire == "openai" else 2)
        if wire == "anthropic":
            cached = [answer.usage.cached_tokens for answer in answers]
            assert cached[0] == 0 and all(cached[1:]), "the first one alone warms the cache"


@pytest.mark.parametrize("wire", WIRES)
async def test_a_fault_is_a_kind_of_failure_and_never_a_reply(endpoint: Endpoint, connect: Connect, wire: Wire) -> None:
    """A quarter of all requests fails, in every way; what an answer says is right or marked."""
    model = connect(wire, "m@chaos")
    conversations = [
        Conversation((Message(role="user", content=f"question {n}"),), 99, tools=(LOOK,)) for n in range(40)
    ]
    ended = await asyncio.gather(
        *(model.ask(conversation, 0.9) for conversation in conversations), return_exceptions=True
    )
    for number, outcome in enumerate(ended):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, ModelFailure) and KEY not in str(outcome)
            assert outcome.kind in ("rate_limit", "server_error", "overloaded", "connection", "timeout", "bad_response")
        elif outcome[0].finish == "tool_calls":
            arguments = outcome[0].calls[0].arguments
            whole = json.dumps({"word": f"question {number}"})
            assert arguments == whole or (arguments and whole.startswith(arguments)) or arguments == "{}"
        else:
            assert outcome[0].finish in ("length", "refusal")
    assert endpoint.served["ok"] >= 20 and len(endpoint.served) > 5


async def test_a_budget_covers_all_accounts_and_survives_a_restart(
    endpoint: Endpoint, connect: Connect, tmp_path: Path
) -> None:
    path = tmp_path / "results" / "spend.sqlite"
    endpoint.several = "ignored"
    for made, cap in ((0, 3), (3, 5)):
        with Budget.limited_to(calls=cap, path=path) as budget:
            worker = connect("openai").within(budget, "worker")
            teacher = connect("anthropic").within(budget, "teacher")
            await worker.ask(Conversation(ASKED, 9), 60)
            with pytest.raises(SamplesMissing, match=f"budget.calls is {cap}, {cap} are used") as raised:
                await teacher.ask(Conversation(ASKED, 9), 60, samples=4)
            assert len(raised.value.replies) == cap - made - 1, "what was paid for is not lost"
            assert budget.spent.calls == cap == sum(endpoint.served.values())
            assert budget.cost_usd is None and budget.spent.unpriced == cap, "no price is known, and that is said"
    with (
        Budget.limited_to(usd=1.0) as budget,
        pytest.raises(ConfigError, match="price of 'm', the model of worker, is not known"),
    ):
        connect("openai").within(budget, "worker")
    with pytest.raises(ConfigError, match=r"budget.tokens is 0: .*leave it out for no cap"):
        Budget.limited_to(tokens=0)


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
            and response.usd is None
        )
        with pytest.raises(ModelFailure, match="refusal"):
            await asyncio.to_thread(anthropic.chat, messages)
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
