"""Local models behind chat completions, and both actions of a pair tried in the environment."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from oven_bench.trace_replay.directions import directions
from oven_bench.trace_replay.local_models import MODELS, STUDENT, models
from oven_bench.trace_replay.model_endpoint import Loaded, _choice, answer
from oven_recipes.environments.patches import apply_patch
from oven_recipes.environments.small_functions import TrustedTests, tasks
from oven_recipes.repair.chat_format import build_tokenizer
from oven_recipes.repair.warm_policy import POSITIONS, build_model, replacement
from oven_runs.traces.records import Message, Pair, Task, ToolCall, Trace, TraceStep

CALL = '<tool_call>{"name": "read", "arguments": {"path": "units.py"}}</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    tokenizer = build_tokenizer([CALL, "units.py: total(price) returns price times 2"])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = build_model(models(quick=True)["small"].settings, tokenizer)
    return Loaded(policy, tokenizer)


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": "total"}], "max_completion_tokens": 5} | more


def test_an_answer_is_the_apis_and_the_same_for_the_same_question(loaded: Loaded) -> None:
    first = answer(loaded, asked(n=3))
    assert [choice["index"] for choice in first["choices"]] == [0, 1, 2]
    assert first["usage"]["total_tokens"] == first["usage"]["prompt_tokens"] + first["usage"]["completion_tokens"]
    assert first["usage"]["completion_tokens"] <= 15
    before = torch.get_rng_state()
    assert answer(loaded, asked(n=3)) == first and answer(loaded, asked(n=3, temperature=0.5)) != first
    assert torch.equal(torch.get_rng_state(), before)
    greedy = answer(loaded, asked(n=2, temperature=0))["choices"]
    assert greedy[0]["message"]["content"] == greedy[1]["message"]["content"]
    with pytest.raises(ValueError, match=f"the model's window {POSITIONS}"):
        answer(loaded, asked(messages=[{"role": "user", "content": "total " * 1000}]))


def test_a_call_is_read_back_and_what_is_none_is_a_text(loaded: Loaded) -> None:
    def choice(text: str) -> dict[str, Any]:
        return _choice(0, loaded.tokenizer(text)["input_ids"], loaded.tokenizer)

    called = choice(CALL)
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["tool_calls"][0]["function"] == {"name": "read", "arguments": '{"path": "units.py"}'}
    cut = choice(CALL[:40])
    assert cut["finish_reason"] == "length" and "tool_calls" not in cut["message"]
    spoilt = choice('<tool_call>{"name": "read", "arguments": {"path</tool_call><|im_end|>')
    assert spoilt["finish_reason"] == "stop" and "read" in spoilt["message"]["content"]
    assert choice("done<|im_end|>")["message"]["content"] == "done"


def test_the_models_differ_in_size_and_training() -> None:
    teachers = [model for name, model in MODELS.items() if name != STUDENT]
    assert len({model.family for model in teachers}) == len({model.seed for model in teachers}) == 3
    assert len({(model.settings.hidden, model.settings.layers) for model in teachers}) == 3
    assert all(model.settings.right_habit > MODELS[STUDENT].settings.right_habit for model in teachers)


def test_the_action_after_which_more_tests_pass_is_the_right_one() -> None:
    (instance,) = tasks("directions", 1, evaluation=True, shapes=("linear",))
    right = apply_patch(instance.files, instance.patch)
    (path,) = [name for name in right if right[name] != instance.files[name]]
    old, new = replacement(instance.files[path], right[path])

    def call(name: str, **arguments: str) -> Message:
        return Message(role="assistant", calls=(ToolCall(name=name, arguments=json.dumps(arguments)),))

    repaired, read = call("edit", path=path, old=old, new=new), call("read", path=path)
    spoilt = call("edit", path=path, old=old, new="return None")
    broken = Message(role="assistant", calls=(ToolCall(name="edit", arguments="{"),))
    trace = Trace(
        id="t",
        task=Task(id=instance.instance_id),
        prompt=(Message(role="user", content=instance.problem_statement),),
        steps=(TraceStep(action=read), TraceStep(action=broken)),
    )

    def pair(chosen: Message, rejected: Message, step: int = 1, **more: Any) -> Pair:
        fixed = {"trace": "t", "step": step, "task": trace.task.id, "state": trace.state(step), "votes": 2, "voters": 2}
        said = {"chosen": chosen, "rejected": rejected, "share": 1.0, "rule": "teachers_over_student"}
        return Pair.model_validate(fixed | said | more)

    pairs = [
        pair(repaired, broken),
        pair(repaired, spoilt),
        pair(spoilt, repaired),
        pair(read, call("list_files", folder=".")),
        pair(broken, read, rule="student_over_minority"),
    ]
    found = directions([trace], pairs, {instance.instance_id: instance}, TrustedTests())
    assert found == {
        "teachers_over_student": {"right": 2, "wrong": 1, "untried": 1},
        "student_over_minority": {"same": 1},
    }
