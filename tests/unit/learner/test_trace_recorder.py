"""The recorder over TRL's environments: traces are whole, or marked, and say what the policy saw and sampled."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oven_core.errors import ProcessError
from oven_learner.losses.channel_trainer import ChannelTrainer
from oven_recipes.environments.recorder import Recorder, Rollout, build_steps
from oven_recipes.environments.repair_environment import RepairEnvironment
from oven_recipes.environments.repair_task_generator import TrustedTests, generate_tasks
from oven_recipes.environments.sandboxed_tests import Outcome
from oven_recipes.repair.chat_format import END, after_results
from oven_recipes.repair.demonstrations import Habits, demonstrate
from oven_recipes.repair.settings import TUNED_LEARNING_RATE, RepairSettings
from oven_recipes.repair.training_job import build_dataset, grpo_arguments, repair_trainer
from oven_recipes.repair.warm_policy import policy_tokenizer, warm_policy
from oven_runs.traces.completeness import check
from oven_runs.traces.trace_records import Trace

SMALL = RepairSettings(
    hidden=16, layers=1, heads=2, ffn=16, demonstrations=8, sft_batch=2, sft_steps=1, sft_tasks=1, train_tasks=4,
    prompts_per_step=2, group_size=2, max_completion_length=300, max_steps=1,
)  # fmt: skip
TASKS = generate_tasks("recorded", 4)
Script = Callable[[str, int], str]
"""(statement, turn) → the policy's answer, without its end-of-turn token where it is cut."""


def call(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>{END}"


class Scripted(ChannelTrainer):
    """A trainer whose policy's tokens are written here; all else is TRL's."""

    script: Script

    def _generate_single_turn(self, prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        words: Any = self.processing_class
        texts: list[str] = [words.decode(ids) for ids in prompt_ids]
        answers = [self.script(text.partition("user\n")[2].partition(END)[0], text.count("tool\n")) for text in texts]
        return [words(answer)["input_ids"] for answer in answers], None


def recorded(
    folder: Path,
    script: Script,
    environment: Callable[[], Any] | None = None,
    *,
    sink: Callable[[Trace], None] | None = None,
    **settings: Any,
) -> list[Trace]:
    """The traces of one generation: two attempts at each of two tasks."""
    traces: list[Trace] = []
    by_id = {task.instance_id: task for task in TASKS}
    arguments = {name: settings.pop(name) for name in ("max_tool_calling_iterations",) if name in settings}
    small = SMALL.model_copy(update=settings)
    create_environment = environment or (lambda: RepairEnvironment(by_id, lambda task: task.files, TrustedTests()))
    recorder = Recorder(create_environment, sink or traces.append, split="train", name="repair")
    arguments = grpo_arguments(small, TUNED_LEARNING_RATE, 0, folder) | arguments
    trainer = repair_trainer(warm_policy(small, 0, folder / "cache"), TASKS, recorder, arguments, Scripted)
    trainer.script = script
    trainer.model.train()
    trainer._generate_and_score_completions([*build_dataset(TASKS[:2])] * 2)
    return traces


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the small policy's cache."""
    return tmp_path_factory.mktemp("recorded")


def shown(habits: Habits) -> Script:
    """The demonstrations' answers."""
    known = {}
    for task in TASKS:
        messages = demonstrate(task, habits, random.Random(task.instance_id))
        turns = [message for message in messages if message["role"] == "assistant"]
        known[task.problem_statement] = [
            call(tool_call["function"]["name"], **json.loads(tool_call["function"]["arguments"]))
            for message in turns
            for tool_call in message.get("tool_calls", ())
        ] + [f"done{END}"]
    return lambda statement, turn: known[statement][turn]


def test_a_complete_attempt_is_recorded_completely(folder: Path) -> None:
    traces = recorded(folder, shown(Habits(correct_edit=1.0, run_tests=1.0)))
    assert [trace.ended for trace in traces] == ["submitted"] * 4
    assert all(trace.solved and trace.reward == 1 for trace in traces)
    assert check(traces).is_whole
    first = traces[0]
    assert first.task.id == TASKS[0].instance_id and first.task.fail_to_pass == TASKS[0].FAIL_TO_PASS
    assert [tool.name for tool in first.tools] == ["edit", "list_files", "read", "run_tests", "search", "submit"]
    assert [call.name for step in first.steps for call in step.action.calls][-4:] == [
        "read",
        "edit",
        "run_tests",
        "submit",
    ]
    edit = first.steps[-4]
    assert edit.reward == pytest.approx(len(TASKS[0].FAIL_TO_PASS) / len(TASKS[0].tests))
    assert sum(step.reward or 0 for step in first.steps) == pytest.approx(edit.reward)
    assert first.steps[-1].action.content == "done" and first.steps[-1].result == ()
    digests = [step.outcome for step in first.steps]
    assert digests[-4] == digests[-3] and digests[-5] != digests[-4] and digests[-2] == f"{digests[-3]}+"
    assert len({step.sampled.ids[-1] for step in first.steps if step.sampled}) == 1  # each with its end-of-turn token


def test_the_state_at_each_step_is_what_the_policy_saw(folder: Path) -> None:
    """Rendered again, the state and the action are the tokens that the trainer trains on."""
    traces = recorded(folder, shown(Habits(correct_edit=0.0, run_tests=1.0, retry=1.0)))
    words: Any = policy_tokenizer()
    for trace in traces:
        text = f"<|im_start|>user\n{trace.task.prompt}{END}\n<|im_start|>assistant\n"
        for state, step in zip(trace.states(), trace.steps, strict=True):
            chat = [plain(message) for message in state]
            assert words.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) == text
            assert step.sampled is not None
            text += words.decode(step.sampled.ids)
            text += after_results(part.content for part in step.result) if step.result else ""


def plain(message: Any) -> dict[str, Any]:
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.calls]
    return {"role": message.role, "content": message.content} | ({"tool_calls": calls} if calls else {})


def read_tests(statement: str) -> str:
    return call("read", path=f"test_{statement.partition(':')[0]}")


LISTED = call("list_files", folder=".")
MARKED: list[tuple[Script, dict[str, Any], str, str | None]] = [
    # The file does not fit; it was read all the same.
    (
        lambda text, turn: [LISTED, read_tests(text)][turn],
        {"max_completion_length": 100},
        "truncated",
        "read was dropped",
    ),
    (lambda _, turn: LISTED, {"max_tool_calling_iterations": 2}, "turns", "allows 2 rounds"),
    (lambda _, turn: LISTED.removesuffix(f"}}</tool_call>{END}"), {}, "truncated", "truncated at its maximum"),
    (lambda _, turn: [LISTED, "I give up" + END][turn], {}, "submitted", None),
]


@pytest.mark.parametrize(("script", "settings", "ended", "why"), MARKED)
def test_what_the_policy_did_not_see_is_marked(
    script: Script, settings: dict[str, Any], ended: str, why: str | None, folder: Path
) -> None:
    traces = recorded(folder, script, **settings)
    assert [trace.ended for trace in traces] == [ended] * 4
    for trace in traces:
        assert trace.reward == 0 and trace.solved is False
        assert (why in str(trace.meta["why"])) if why else not trace.meta
        if "dropped" in str(trace.meta.get("why")):
            assert trace.steps[-1].result is None and trace.steps[-2].result


def test_calls_that_do_not_reach_the_environment_are_in_the_trace(folder: Path) -> None:
    answers = [call("delete", path="x"), call("read", file="x"), f"<tool_call>nonsense</tool_call>{END}"]
    traces = recorded(folder, lambda _, turn: answers[turn])
    for trace in traces:
        assert trace.ended == "submitted"
        assert [step.result[0].content for step in trace.steps if step.result] == [
            "{'error': 'Tool delete not found.'}",
            "{'error': \"RepairTools.read() got an unexpected keyword argument 'file'\"}",
        ]
        assert "nonsense" in trace.steps[-1].action.content and trace.meta == {"unparsed_calls": [2]}
    assert check(traces).is_whole  # the policy did it
    assert dict(check(traces).unusable_actions) == {
        "unknown_tool": 4,
        "arguments_outside_schema": 4,
        "call_not_parsed": 4,
    }


class Dice:
    """An environment of somebody else's, without rewards for steps."""

    def reset(self, **row: Any) -> str:
        self.sum = 0
        return " Roll."

    def roll(self, sides: int) -> int:
        """Roll a die.

        Args:
            sides: How many sides it has.
        """
        self.sum += sides
        return self.sum

    def get_reward(self) -> float:
        return float(self.sum)


def test_two_calls_in_one_answer_are_one_step(folder: Path) -> None:
    both = LISTED.removesuffix(END) + call("read", path="nowhere.py")
    traces = recorded(folder, lambda _, turn: both if turn == 0 else f"done{END}")
    for trace in traces:
        first = trace.steps[0]
        assert [call.name for call in first.action.calls] == ["list_files", "read"]
        assert first.result and [message.call_id for message in first.result] == [
            call.id for call in first.action.calls
        ]
        assert first.result[1].content == "error: no file nowhere.py" and first.reward == 0
    assert check(traces).is_whole


def test_any_environment_of_trl_can_be_recorded(folder: Path) -> None:
    def script(statement: str, turn: int) -> str:
        assert statement.endswith(" Roll.")  # what `reset` adds to the prompt
        return [call("roll", sides=6), call("roll", sides=2), f"done{END}"][turn]

    traces = recorded(folder, script, Dice)
    assert [(trace.reward, trace.solved) for trace in traces] == [(8.0, None)] * 4
    assert [step.result[0].content for step in traces[0].steps[:2] if step.result] == ["6", "8"]
    assert [step.reward for step in traces[0].steps] == [None] * 3
    assert traces[0].prompt[-1].content.endswith(" Roll.") and traces[0].tools[0].name == "roll"


class Pictures(Dice):
    """Its tool answers with parts, of which one is a picture."""

    def look(self) -> list[dict[str, Any]]:
        """Look at the table."""
        return [{"type": "text", "text": "a die"}, {"type": "image", "image": None}]


def test_what_a_trace_has_no_place_for_is_counted(folder: Path) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [{"type": "custom", "name": "look"}]}
    result = {"role": "tool", "name": "look", "content": Pictures().look()}
    lost: Counter[str] = Counter()
    ((step,), waiting) = build_steps(
        [message, result], [], Rollout([], [1, 2], [1, 1], None), lost, rewards_each_step=False
    )
    assert step.action.calls[0].name == "look" and not waiting
    assert step.result is not None and step.result[0].content == "a die" and lost == {"a part of type image": 1}


class Outage(TrustedTests):
    """Tests whose sandbox is gone after the first run."""

    runs = 0

    def outcomes(self, *arguments: Any) -> dict[str, Outcome]:
        self.runs += 1
        if self.runs > 4:
            raise ProcessError("the sandbox did not start")
        return super().outcomes(*arguments)


def test_an_environment_that_fails_is_no_reward_of_0(folder: Path) -> None:
    by_id, tests = {task.instance_id: task for task in TASKS}, Outage()
    with pytest.raises(ProcessError, match=r"has no reward, because .* the sandbox did not start"):
        recorded(
            folder, shown(Habits(correct_edit=1.0)), lambda: RepairEnvironment(by_id, lambda task: task.files, tests)
        )


def test_a_trace_that_cannot_be_kept_ends_nothing_and_the_next_one_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    traces: list[Trace] = []
    full = iter([True, True, False, False])

    def sink(trace: Trace) -> None:
        if next(full):
            raise OSError(28, "No space left on device")
        traces.append(trace)

    recorded(folder, shown(Habits(correct_edit=1.0)), sink=sink)
    assert caplog.text.count("a trace could not be recorded") == 1 and "No space left" in caplog.text
    assert [trace.meta for trace in traces] == [{"lost_before": 2}, {}]
    result = check(traces)
    assert not result.is_whole and result.traces_lacking == {"traces before it are lost": 2}
