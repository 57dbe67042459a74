"""A recorder that turns TRL's rollouts in an environment into traces, with the state, action and reward of each step.

A GRPOTrainer with an `environment_factory` runs the tool calls and stores the messages, but hides two things. It drops
a result that would make the completion too long, although the call ran. It may also truncate a completion in the middle
of a call. The recorder sees both the environment's calls and the trainer's messages, so it can mark such traces as
`truncated`. It uses internals of TRL through `oven_learner.trainer_internals`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

from transformers.utils.chat_template_utils import get_json_schema

from oven_core.errors import ConfigError, reason
from oven_learner import trainer_internals
from oven_runs.traces.completeness import LOST_BEFORE, TOKENS_LOST, UNPARSED
from oven_runs.traces.formats.chat_messages import from_chat, text_of
from oven_runs.traces.trace_records import Ended, Message, Policy, Sampled, Task, Tool, Trace, TraceStep

log = logging.getLogger("oven.learner")

RESERVED_METHODS: Final = ("reset", "get_reward")
"""Public methods of an environment that TRL does not offer as tools."""
TraceSink = Callable[[Trace], None]


@dataclass(frozen=True)
class Call:
    """A tool call that the environment ran, with its result. The reward and the digest of the environment's state are
    only known for some environments."""

    tool: str
    result: str
    reward: float | None = None
    digest: str = ""


@dataclass(frozen=True)
class Rollout:
    """The tokens of one rollout. `mask` is 1 for the completion's sampled tokens, and 0 for the tool results."""

    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    mask: Sequence[int] | None
    logprobs: Sequence[float] | None


def build_steps(
    messages: list[Any], calls: list[Call], rollout: Rollout, lost_content: Counter[str], *, rewards_each_step: bool
) -> tuple[tuple[TraceStep, ...], list[Call]]:
    """Return the steps of a rollout, and the calls whose results the policy never saw. `rewards_each_step` says whether
    the environment rewards each step. `lost_content` counts the content that a trace cannot represent, by kind."""
    turns: list[tuple[Any, list[Any]]] = []  # the policy's messages, each with the results of its calls
    for message in messages:
        if message["role"] == "tool" and turns:
            _, newest_results = turns[-1]
            newest_results.append(message)
        else:
            turns.append((message, []))
    sampled = _sampled_turns(rollout, sum(action["role"] == "assistant" for action, _ in turns))
    steps: list[TraceStep] = []
    pending_calls = list(calls)
    for turn_index, (action, results) in enumerate(turns):
        is_truncated = bool(action.get("tool_calls")) and not results
        turn_calls = pending_calls if is_truncated else _take_calls(pending_calls, results)
        rewards = [call.reward for call in turn_calls if call.reward is not None]
        default_reward = 0.0 if rewards_each_step else None  # of a step without a call, which changes nothing
        result_messages = tuple(
            _convert_result(result, f"{turn_index}-{number}", lost_content) for number, result in enumerate(results)
        )
        steps.append(
            TraceStep(
                action=convert_message(action, lost_content, str(turn_index)),
                result=None if is_truncated else result_messages,
                reward=sum(rewards) if rewards else default_reward,
                sampled=sampled[turn_index] if sampled else None,
                outcome=next((call.digest for call in reversed(turn_calls) if call.digest), ""),
            )
        )
        if is_truncated:
            return tuple(steps), turn_calls
    return tuple(steps), pending_calls


def _take_calls(pending_calls: list[Call], results: list[Any]) -> list[Call]:
    """Remove the calls that gave these results from `pending_calls`, and return them. A result has no call if the tool
    does not exist or the arguments were not an object."""
    count = 0
    for result in results:
        expected = result.get("name"), str(result["content"])
        if count < len(pending_calls) and (pending_calls[count].tool, pending_calls[count].result) == expected:
            count += 1
    calls = pending_calls[:count]
    del pending_calls[:count]
    return calls


def _sampled_turns(rollout: Rollout, turn_count: int) -> list[Sampled] | None:
    """Return the sampled tokens of each turn. A turn is a span of consecutive sampled tokens in the mask. Return None
    if the number of spans is not `turn_count`."""
    if rollout.mask is None:
        return None
    turns: list[Sampled] = []
    stop = 0
    for is_sampled, span in groupby(rollout.mask):
        start, stop = stop, stop + len(list(span))
        if is_sampled:
            logprobs = tuple(rollout.logprobs[start:stop]) if rollout.logprobs is not None else None
            turns.append(Sampled(ids=tuple(rollout.completion_ids[start:stop]), logprobs=logprobs))
    return turns if len(turns) == turn_count else None


def convert_message(message: Any, lost_content: Counter[str], turn: str = "") -> Message:
    """Convert a message to the format of traces. The ids of its calls are built from `turn` and a number, because the
    trainer's calls have no ids. `lost_content` has the same meaning as in `build_steps`."""
    tool_calls = message.get("tool_calls") or ()
    calls = [_convert_call(tool_call, f"{turn}-{number}") for number, tool_call in enumerate(tool_calls)]
    return from_chat({**message, "tool_calls": calls}, lost_content)


def _convert_call(tool_call: Any, call_id: str) -> dict[str, Any]:
    """Convert a call. If it has no `function`, the whole call is stored as the arguments."""
    function = tool_call.get("function") or {"name": tool_call.get("name", "unknown"), "arguments": tool_call}
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": call_id, "name": function["name"], "arguments": text}


def _convert_result(message: Any, call_id: str, lost_content: Counter[str]) -> Message:
    content = text_of(message["content"], lost_content)  # the content is a list if the tool also returned images
    return Message(role="tool", content=content, call_id=call_id, name=message.get("name", ""))


class Recorder:
    """A wrapper for an environment factory. Pass `environment` to the trainer as its `environment_factory` and `reward`
    as one of its `reward_funcs`, then `bind` the recorder to the trainer. Any TRL environment with a `get_reward`
    works. If the environment has the attributes `newest_call` (a `ToolResult`) and `solved`, the rewards and digests
    of steps and the attempt's success are also recorded.

    Args:
        factory: Creates an environment.
        sink: Called with each trace once its reward is known.
        split: Name of the set from which the tasks come, for example "train".
        name: Name of the policy in the traces.
        first: Number of the first trace. It must be higher than all numbers from an earlier process of this run.
    """

    def __init__(
        self, factory: Callable[[], Any], sink: TraceSink, *, split: str = "", name: str = "", first: int = 0
    ) -> None:
        self._factory, self._sink = factory, sink
        self._split, self._policy_name = split, name
        self._trainer: Any = None
        self._rollouts: list[Rollout] = []
        self._tools: tuple[Tool, ...] = ()
        self._next_number, self._lost_count = first, 0

    def environment(self) -> Any:
        """Return an environment whose calls are recorded. Raises ConfigError if it lacks `get_reward`."""
        instance = self._factory()
        if not callable(getattr(instance, "get_reward", None)) or inspect.iscoroutinefunction(instance.get_reward):
            raise ConfigError(
                f"{type(instance).__name__} cannot be recorded; add a method get_reward that is not async"
            )
        instance.__class__ = _recording_class(type(instance))
        instance.calls = []
        return instance

    def bind(self, trainer: Any) -> None:
        """Observe the trainer's sampled tokens. Call it before training."""
        tools_by_environment = trainer_internals.environment_tools(trainer)
        if len(tools_by_environment) != 1:
            raise ConfigError(
                "the recorder supports one environment, but this trainer has several; use one per trainer"
            )
        self._trainer = trainer
        accelerator = trainer.accelerator
        self._rank = f"{accelerator.process_index}-" if accelerator.num_processes > 1 else ""
        (tools,) = tools_by_environment.values()
        self._tools = tuple(_describe_tool(function) for function in tools)
        trainer_internals.wrap(trainer, trainer_internals.GENERATE, self._record_tokens)

    def _record_tokens(self, generate: Callable[..., Any]) -> Callable[..., Any]:
        def generate_and_record(prompts: list[Any]) -> Any:
            generated = generate(prompts)
            prompt_ids, completion_ids, masks, _, logprobs, *_ = generated
            missing = [None] * len(completion_ids)
            columns = zip(prompt_ids, completion_ids, masks or missing, logprobs or missing, strict=True)
            self._rollouts = [Rollout(*column) for column in columns]
            return generated

        return generate_and_record

    def reward(
        self, prompts: list[Any], completions: list[Any], environments: list[Any], trainer_state: Any, **columns: Any
    ) -> list[float]:
        """Return the environments' rewards, and pass each finished trace to the sink. TRL calls this method. A trace
        that cannot be built or stored is lost. Then a warning is logged, and the next stored trace contains the number
        of lost traces."""
        if self._trainer is None or len(self._rollouts) != len(completions):
            raise ConfigError("the recorder has no rollouts; call bind(trainer) before training")
        rewards = []
        for index, (prompt, messages, environment) in enumerate(zip(prompts, completions, environments, strict=True)):
            rewards.append(environment.get_reward())
            row = {name: values[index] for name, values in columns.items() if isinstance(values, list)}
            try:
                step = trainer_state.global_step
                self._sink(self._build_trace(prompt, messages, environment, self._rollouts[index], row, step))
                self._lost_count = 0  # the stored trace contains the previous value
            except Exception as error:  # for example a full disk, which must not stop the training
                self._count_lost_trace(error)
            self._next_number += 1
        self._rollouts = []
        return rewards

    def _count_lost_trace(self, error: Exception) -> None:
        if not self._lost_count:
            log.warning("a trace could not be recorded; the next one will contain the number of lost traces: %s",
                        reason(error))  # fmt: skip
        self._lost_count += 1

    def _build_trace(
        self, prompt: list[Any], messages: list[Any], environment: Any, rollout: Rollout, row: dict[str, Any], step: int
    ) -> Trace:
        calls = list(environment.calls)
        lost_content: Counter[str] = Counter()
        has_rewards = hasattr(environment, "newest_call")
        steps, lost_calls = build_steps(messages, calls, rollout, lost_content, rewards_each_step=has_rewards)
        ending, end_reason = self._ending(messages, rollout, lost_calls)
        prompt_messages = tuple(convert_message(message, lost_content) for message in prompt)
        meta: dict[str, Any] = {
            "why": end_reason,
            UNPARSED: self._unparsed_steps(steps, rollout),
            LOST_BEFORE: self._lost_count,
            TOKENS_LOST: bool(steps) and steps[0].sampled is None,
            "lost": dict(lost_content),
        }
        tokenizer = self._trainer._tokenizer
        return Trace(
            id=f"{self._split or 'rollout'}-{step}-{self._rank}{self._next_number}",
            task=build_task(row, self._split),
            tools=self._tools,
            prompt=prompt_messages,
            steps=steps,
            reward=float(environment.get_reward()),
            solved=getattr(environment, "solved", None),
            ended=ending,
            policy=Policy(model=self._policy_name, step=step, vocabulary=vocabulary_digest(tokenizer)),
            meta={name: value for name, value in meta.items() if value},
        )

    def _unparsed_steps(self, steps: Sequence[TraceStep], rollout: Rollout) -> list[int]:
        """Return the index of the step whose call the trainer could not parse, or an empty list. Only the last step can
        have such a call, because the trainer treats it as text, which ends the rollout."""
        tokenizer = self._trainer._tokenizer
        sampled = steps[-1].sampled if steps and not steps[-1].action.calls else None
        if sampled is None or getattr(tokenizer, "response_template", None) is None:
            return []  # without a template, answers are not parsed for calls
        earlier_ids = rollout.completion_ids[: len(rollout.completion_ids) - len(sampled.ids)]
        prefix = [*rollout.prompt_ids, *earlier_ids]
        try:
            response = tokenizer.parse_response(list(sampled.ids), prefix=prefix)
        except (ValueError, TypeError):  # TRL catches the same errors
            response = None
        return [len(steps) - 1] if response is None or response.get("tool_calls") else []

    def _ending(self, messages: list[Any], rollout: Rollout, lost_calls: Sequence[Call]) -> tuple[Ended, str]:
        """Return how the rollout ended, and the reason if the policy did not end it."""
        last_message = messages[-1] if messages else {}
        if lost_calls:
            tools = ", ".join(call.tool for call in lost_calls)
            return "truncated", f"the result of {tools} was dropped because it made the completion too long"
        if not rollout.completion_ids or rollout.completion_ids[-1] not in self._trainer.eos_token_ids:
            return "truncated", "the completion was truncated at its maximum length"
        if last_message.get("role") != "assistant":
            return "truncated", "the completion had no tokens left for an answer to the last result"
        if last_message.get("tool_calls"):
            # The last round of calls did not run.
            rounds = sum(bool(message.get("tool_calls")) for message in messages) - 1
            if rounds >= self._trainer.max_tool_calling_iterations:
                return "turns", f"the trainer allows {rounds} rounds of calls"
            return "truncated", "the result of the last call was dropped because it made the completion too long"
        return "submitted", ""


def _recording_class(cls: type[Any]) -> type[Any]:
    """Return a subclass with the same name whose tools record their calls, and whose `reset` clears the record. The
    method `get_reward` is hidden from TRL, because the recorder returns the reward."""

    def reset(self: Any, **row: Any) -> Any:
        self.calls = []
        return cls.reset(self, **row)

    members: dict[str, Any] = {"reset": reset, "get_reward": _HiddenMethod(cls.get_reward)}
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if name not in RESERVED_METHODS and not name.startswith("_"):
            members[name] = _recording_method(name, function)
    return type(cls.__name__, (cls,), members)


class _HiddenMethod:
    """A method that `inspect` does not recognise as a method."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self._function, instance)


def _recording_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"the tool {name} is async, which the recorder does not support; make it a plain method")

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        reports_calls = hasattr(self, "newest_call")
        if reports_calls:
            self.newest_call = None
        try:
            result = function(self, *args, **kwargs)
        except Exception as error:  # TRL reports the error to the policy and continues
            self.calls.append(Call(name, str({"error": str(error)})))
            raise
        newest = self.newest_call if reports_calls else None
        if newest is None:
            self.calls.append(Call(name, str(result)))
        else:
            self.calls.append(Call(name, str(result), newest.reward, newest.digest))
        return result

    return call


def _describe_tool(function: Callable[..., Any]) -> Tool:
    schema = get_json_schema(function)["function"]
    return Tool(name=schema["name"], description=schema["description"], parameters=schema["parameters"])


def vocabulary_digest(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's vocabulary, 16 hexadecimal digits."""
    text_tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor contains a tokenizer
    return hashlib.sha256(json.dumps(sorted(text_tokenizer.get_vocab().items())).encode()).hexdigest()[:16]


def build_task(row: dict[str, Any], split: str) -> Task:
    """Build the task from a dataset row, using SWE-bench's columns if present."""
    return Task(
        id=str(row.get("instance_id", "")),
        prompt=str(row.get("problem_statement", "")),
        split=split,
        fail_to_pass=tuple(row.get("FAIL_TO_PASS") or ()),
        pass_to_pass=tuple(row.get("PASS_TO_PASS") or ()),
    )
