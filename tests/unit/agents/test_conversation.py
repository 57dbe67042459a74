"""Conversations without a network: what no API takes, samples whatever fails, and shares of one bill."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.errors import ConfigError
from oven_llm.providers.conversation import Conversation, ConversationFailure, Draw, Message, Sample, Tool, ToolCall
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.sampling import Samples, greatest
from oven_llm.providers.usage import Ledger, Usage, current, opened
from oven_llm.supervisor.models import LMResponse, Messages, ModelHandler, VLLMHandler

ASKED = (Message("user", "How many?"),)
CALL = ToolCall("1", "look", "{}")


@pytest.mark.parametrize(
    ("messages", "options", "said"),
    [
        ([], {}, "no message but the system's"),
        ([Message("system", "Be brief.")], {}, "no message but the system's"),
        ([*ASKED, Message("tool", "7", call_id="2")], {}, "message 1 answers the call '2', which no message asks for"),
        ([Message("user", "", (CALL,))], {}, "message 0 calls tools and is the user's"),
        (ASKED, {"max_tokens": 0}, "max_tokens is 0; give 1 or more"),
        (ASKED, {"temperature": 2.5}, "the temperature is 2.5; give 0 to 2"),
        (ASKED, {"samples": 0}, "samples is 0; give 1 or more"),
    ],
)
async def test_what_no_api_takes_is_refused_before_it_is_sent(messages: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        await Drawn(lambda _: 1).converse(messages, **{"max_tokens": 9, "timeout_s": 60} | options)


class Drawn(Samples):
    """`gives`: how many samples the next request brings, asked for so many; a ModelFailure is raised."""

    name, model = "here", "m"

    def __init__(self, gives: Callable[[int], int | ModelFailure], together: bool = True) -> None:
        self.gives, self.draws_together = gives, together
        self.drawn = 0
        self.asked: list[int] = []

    async def draw(self, conversation: Conversation, samples: int, attempt_s: float) -> Draw:
        self.asked.append(samples)
        ledger = current()
        assert ledger is not None
        ledger.begin()
        await asyncio.sleep(0)  # others are under way
        found = self.gives(samples)
        if isinstance(found, ModelFailure):
            raise found
        self.drawn += found
        usage = Usage(10 * found + 1, 7 * found + 2, 3)
        return Draw(tuple(Sample(str(n), (), "stop") for n in range(found)), usage, 0.5 * found, "m")


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_as_many_samples_come_as_are_asked_for(wanted: int, most: int, together: bool) -> None:
    model = Drawn(lambda samples: min(samples, most), together)
    ledger = Ledger()
    with opened(ledger):
        found = asyncio.run(model.converse(ASKED, samples=wanted, max_tokens=9, timeout_s=60))
    requests = len(model.asked)
    assert len(found) == wanted == model.drawn and ledger.attempts == requests
    assert sum(answer.tokens_in for answer in found) == 10 * wanted + requests, "no more and no less than was billed"
    assert sum(answer.tokens_out for answer in found) == 7 * wanted + 2 * requests
    assert sum(answer.usd or 0 for answer in found) == pytest.approx(0.5 * wanted)
    assert requests == (1 if together and wanted <= most else wanted if not together else 1 + wanted - most)


async def test_samples_that_had_come_are_not_lost_when_another_one_fails() -> None:
    outcomes: list[int | ModelFailure] = [1, 1, ModelFailure("server_error", "HTTP 500"), 1]
    with pytest.raises(ConversationFailure, match="server_error: HTTP 500") as raised:
        await Drawn(lambda _: outcomes.pop(0), together=False).converse(ASKED, samples=4, max_tokens=9, timeout_s=60)
    assert len(raised.value.answers) == 3 and not outcomes


@given(st.text(), st.text(), st.integers(1, 5))
def test_no_tokenizer_makes_more_tokens_than_are_held(text: str, arguments: str, samples: int) -> None:
    text, arguments = (one.encode(errors="ignore").decode() for one in (text, arguments))
    tool = Tool("look", text, {"type": "object"})
    asked = Conversation((*ASKED, Message("assistant", text, (ToolCall("1", "look", arguments),))), 9, (tool,))
    most = greatest(asked, samples)
    assert most.input_tokens >= 2 * len(text.encode()) + len(arguments.encode()) and most.output_tokens == 9 * samples


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
            said = SimpleNamespace(text="seven", token_ids=[1, 2], finish_reason="stop")
            prompts = [[1, 2, 3], None]
            return [
                SimpleNamespace(prompt_token_ids=one, outputs=[said]) for one, _ in zip(prompts, batches, strict=True)
            ]

    vllm = SimpleNamespace(LLM=lambda model: Engine(), SamplingParams=lambda **options: options)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    handler = VLLMHandler("m")
    first, second = handler.chat_batch([[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
    assert isinstance(first, LMResponse) and isinstance(second, LMResponse)
    assert (first.usd, first.usage, second.usd, second.usage) == (None, Usage(3, 2), None, None)
    assert not handler.priced, "so a cap in US dollars is refused"


def test_usage_is_read_back_from_a_log_and_what_is_not_told_is_no_zero() -> None:
    used = Usage(7, 5, 3, 2)
    assert Usage.read(used.plain()) == used and Usage.read({"input_tokens": 7, "output_tokens": 5}) == Usage(7, 5)
    for output in ({}, {"output_tokens": None}, {"output_tokens": -1}, {"output_tokens": "5"}):
        with pytest.raises(ValueError, match="its usage"):
            Usage.read({"input_tokens": 7, **output})


def test_without_vllm_it_is_said_what_to_do() -> None:
    with pytest.raises(ConfigError, match="needs the package vllm: pip install vllm on a machine with a GPU, or start"):
        VLLMHandler("m")
