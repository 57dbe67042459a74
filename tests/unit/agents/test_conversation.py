"""Conversations without a network: what no API takes, samples whatever fails, and shares of one bill."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_llm.providers.conversation import Completion, Conversation, Sample, SamplesMissing
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.remote_model import RemoteModel
from oven_llm.providers.terms import AgreedTerms, Terms
from oven_llm.providers.usage import CallTally, Usage, current_tally, tallied
from oven_llm.supervisor.models import LMResponse, Messages, ModelHandler, VLLMHandler
from oven_runs.settings.judge_providers import Price, catalogue, endpoint_of
from oven_runs.settings.language_models import ModelSettings
from oven_runs.traces.records import Message, Tool, ToolCall

ASKED = (Message(role="user", content="How many?"),)
CALL = ToolCall(id="1", name="look", arguments="{}")


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ((), {}, "has only system messages"),
        ((Message(role="system", content="Be brief."),), {}, "has only system messages"),
        (
            (*ASKED, Message(role="tool", content="7", call_id="2")),
            {},
            "message 1 answers the call '2', which no message",
        ),
        ((Message(role="user", calls=(CALL,)),), {}, "message 0 calls tools, but its role is user"),
        (ASKED, {"max_tokens": 0}, "max_tokens is 0; give 1 or more"),
        (ASKED, {"temperature": 2.5}, "the temperature is 2.5; give 0 to 2"),
    ],
)
def test_an_invalid_conversation_is_refused(messages: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Conversation(messages, **{"max_tokens": 9} | options)


class Api:
    """`gives`: how many samples the next request brings, asked for so many; a ModelFailure is raised."""

    def __init__(self, gives: Callable[[int], int | ModelFailure], together: bool = True) -> None:
        self.gives, self.returns_several = gives, together
        self.drawn = 0
        self.requested: list[int] = []

    async def complete(self, conversation: Conversation, samples: int, terms: Terms, attempt_s: float) -> Completion:
        self.requested.append(samples)
        tally = current_tally()
        assert tally is not None
        tally.begin_attempt()
        await asyncio.sleep(0)  # others are under way
        outcome = self.gives(samples)
        if isinstance(outcome, ModelFailure):
            tally.fail_attempt(outcome.kind, billable=False)
            raise outcome
        self.drawn += outcome
        return Completion(
            tuple(Sample(str(n)) for n in range(outcome)), Usage(10 * outcome + 1, 7 * outcome + 2, 3), "m"
        )

    async def close(self) -> None:
        pass


def model(api: Api) -> RemoteModel:
    settings = endpoint_of("t", ModelSettings(provider="claude", model="m"), catalogue(), "t")
    settings = replace(settings, price=Price(input=1e4, output=1e4))
    return RemoteModel(api, settings, AgreedTerms(settings))


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_the_requested_number_of_samples_is_returned(wanted: int, most: int, together: bool) -> None:
    api = Api(lambda samples: min(samples, most), together)
    tally = CallTally()
    with tallied(tally):
        replies = asyncio.run(model(api).ask(Conversation(ASKED, 9), 60, wanted))
    requests = len(api.requested)
    assert len(replies) == wanted == api.drawn and tally.attempts == requests
    used = sum((reply.usage for reply in replies), Usage(0, 0))
    assert used.input_tokens == 10 * wanted + requests, "no more and no less than was billed"
    assert used.output_tokens == 7 * wanted + 2 * requests
    assert used == sum(tally.usages, Usage(0, 0))
    assert sum(reply.cost_usd or 0 for reply in replies) == pytest.approx(0.17 * wanted + 0.03 * requests)
    assert requests == (1 if together and wanted <= most else wanted if not together else 1 + wanted - most)


async def test_samples_that_arrived_are_kept_when_another_fails() -> None:
    outcomes: list[int | ModelFailure] = [1, 1, ModelFailure("server_error", "HTTP 500"), 1]
    with pytest.raises(SamplesMissing, match="server_error: HTTP 500") as raised:
        await model(Api(lambda _: outcomes.pop(0), together=False)).ask(Conversation(ASKED, 9), 60, samples=4)
    assert len(raised.value.replies) == 3 and not outcomes
    with pytest.raises(ValueError, match="samples is 0; give 1 or more"):
        await model(Api(lambda _: 1)).ask(Conversation(ASKED, 9), 60, samples=0)


class Own(ModelHandler):
    """A backend of one's own: `chat` is all it has."""

    model = "own"

    def chat(self, messages: Messages) -> LMResponse:
        if not messages:
            raise ModelFailure("bad_request", "it is empty")
        return LMResponse(messages[-1]["content"], Usage(1, 1), 0.0)


def test_a_batch_says_in_its_slot_why_there_is_no_answer() -> None:
    with Own() as own:
        first, second = own.chat_batch([[{"role": "user", "content": "a"}], []])
    assert isinstance(first, LMResponse) and first.text == "a"
    assert isinstance(second, ModelFailure) and str(second) == "bad_request: it is empty"


def test_what_an_engine_in_this_process_costs_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        """Answers as vLLM's documented RequestOutput has it; of the second prompt it tells no tokens."""

        def chat(self, batches: list[Any], sampling: Any) -> list[Any]:
            output = SimpleNamespace(text="seven", token_ids=[1, 2], finish_reason="stop")
            prompts = [[1, 2, 3], None]
            return [
                SimpleNamespace(prompt_token_ids=ids, outputs=[output]) for ids, _ in zip(prompts, batches, strict=True)
            ]

    vllm = SimpleNamespace(LLM=lambda model: Engine(), SamplingParams=lambda **options: options)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    handler = VLLMHandler("m")
    first, second = handler.chat_batch([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
    assert isinstance(first, LMResponse) and isinstance(second, LMResponse)
    assert (first.usd, first.usage, second.usd, second.usage) == (None, Usage(3, 2), None, None)
    assert not handler.priced, "so a cap in US dollars is refused"


@given(st.text(), st.text(), st.integers(1, 9))
def test_no_tokenizer_produces_more_tokens_than_are_reserved(text: str, arguments: str, samples: int) -> None:
    text, arguments = (part.encode(errors="ignore").decode() for part in (text, arguments))
    tool = Tool(name="look", description=text, parameters={"type": "object"})
    call = Message(role="assistant", content=text, calls=(ToolCall(id="1", name="look", arguments=arguments),))
    most = Conversation((*ASKED, call), 9, tools=(tool,)).greatest_usage(samples)
    assert most.input_tokens >= 2 * len(text.encode()) + len(arguments.encode()) and most.output_tokens == 9 * samples
