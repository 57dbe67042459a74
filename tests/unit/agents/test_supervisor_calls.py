"""Calls of a model in a run: slots and prompts belong together, whatever fails, and in whatever order answers come."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.scripted_handler import USED

from oven_llm.providers.conversation import Finish, Messages, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.model_calls import TRUNCATION_MARK, CallThreads, ModelCalls, TimeLimit
from oven_llm.supervisor.model_handlers import ModelHandler
from oven_llm.supervisor.run_logger import RecordedCalls, RunLogger


class Moody(ModelHandler):
    """Fails, cuts or answers as the prompt says. Each call waits until `together` of them are there, if they come."""

    model = "moody"

    def __init__(self, together: int) -> None:
        self._barrier = threading.Barrier(together)

    def chat(self, messages: Messages) -> ModelReply:
        try:
            self._barrier.wait(timeout=0.02)
        except threading.BrokenBarrierError:
            self._barrier.reset()
        prompt = messages[0]["content"]
        if prompt.startswith("fail"):
            raise ModelFailure("overloaded", prompt)
        finish: Finish = "length" if prompt.startswith("cut") else "stop"
        return ModelReply(prompt[::-1], finish, model=self.model, usage=USED)


def calls(model: ModelHandler, concurrency: int) -> ModelCalls:
    stopped: Future[None] = Future()
    return ModelCalls("worker", model, TimeLimit(None), RunLogger(None), RecordedCalls(None), stopped, concurrency)


def expected(prompt: str) -> str:
    if prompt.startswith("fail"):
        return f"overloaded: {prompt}"
    return prompt[::-1] + TRUNCATION_MARK * prompt.startswith("cut")


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("fail", "cut", "ok")), st.integers(0, 5)), max_size=24), st.integers(1, 5))
def test_each_slot_answers_its_own_prompt(drawn: list[tuple[str, int]], concurrency: int) -> None:
    prompts = [f"{kind} {number}" for kind, number in drawn]
    asking = calls(Moody(min(2, concurrency)), concurrency)
    assert [str(item) for item in asking.ask(1, prompts)] == [expected(prompt) for prompt in prompts]
    assert asking.failures.total() == sum(kind == "fail" for kind, _ in drawn)
    asking.close()


def test_call_threads_start_on_demand_and_pass_on_exceptions() -> None:
    threads: CallThreads[Any] = CallThreads(8)
    names = {threads.submit(lambda: threading.current_thread().name).result(timeout=60) for _ in range(5)}
    assert len(names) <= 5
    error = threads.submit(lambda: 1 / 0).exception(timeout=60)
    assert isinstance(error, ZeroDivisionError)
    threads.close()
