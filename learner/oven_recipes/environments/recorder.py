"""Traces of TRL's rollouts in an environment: what the policy saw, did and got at each step, whole or marked.

A GRPOTrainer with an `environment_factory` carries calls out and keeps the messages, and says nothing of two things: a
result that would make the completion too long is dropped after the call was carried out, and a completion that is cut
may end within a call. The recorder sees both the environment's calls and the trainer's messages, so such a trace is
marked `truncated`.

Written for TRL 1.16 (`_generate`, `_env_tools`, `_tokenizer`, `eos_token_ids`).
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from transformers.utils.chat_template_utils import get_json_schema

from oven_core.errors import ConfigError, reason
from oven_learner.losses.pair_tokens import vocabulary
from oven_recipes.environments.rollout_steps import Call, Rollout, recorded_message, steps_of
from oven_runs.traces.completeness import LOST_BEFORE, TOKENS_LOST, UNPARSED
from oven_runs.traces.records import Ended, Policy, Task, Tool, Trace, TraceStep

log = logging.getLogger("oven.learner")

OWN: Final = ("reset", "get_reward")
"""Public methods of an environment that TRL does not offer as tools."""


class Recorder:
    """Wraps an environment factory: give `environment` to the trainer as its `environment_factory`, and `reward` as one
    of its `reward_funcs`; then `bind` it to the trainer.

    Environments are any that TRL takes, with a `get_reward`. Of one with the attributes `newest_call` (a `ToolResult`)
    and `solved`, steps' rewards and digests are recorded, too. `sink` is given each trace when it is rewarded.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        sink: Callable[[Trace], None],
        *,
        split: str = "",
        name: str = "",
        first: int = 0,
    ) -> None:
        """`split`: what traces say of their tasks. `name`: of the policy. `first`: the first trace's number, above
        those of an earlier process of this run."""
        self._factory, self._sink = factory, sink
        self._split, self._name = split, name
        self._trainer: Any = None
        self._rollouts: list[Rollout] = []
        self._tools: tuple[Tool, ...] = ()
        self._count, self._lost = first, 0

    def environment(self) -> Any:
        """An environment whose calls are recorded. Raises ConfigError for one without `get_reward`."""
        instance = self._factory()
        if not callable(getattr(instance, "get_reward", None)) or inspect.iscoroutinefunction(instance.get_reward):
            raise ConfigError(f"{type(instance).__name__} needs a get_reward, not async, to be recorded")
        instance.__class__ = _recorded(type(instance))
        instance.calls = []
        return instance

    def bind(self, trainer: Any) -> None:
        """Before it trains. From now on the tokens that the trainer samples are seen. Raises ConfigError for a trainer
        of several environments."""
        if len(trainer._env_tools) != 1:
            raise ConfigError("the recorder knows one environment; this trainer has several: give each a trainer")
        self._trainer = trainer
        accelerator = trainer.accelerator
        self._rank = f"{accelerator.process_index}-" if accelerator.num_processes > 1 else ""
        (tools,) = trainer._env_tools.values()
        self._tools = tuple(_tool(function) for function in tools)
        generate = trainer._generate

        def seen(prompts: list[Any]) -> Any:
            found = generate(prompts)
            asked, ids, mask, _, logprobs, *_ = found
            self._rollouts = [
                Rollout(asked[at], ids[at], mask[at] if mask else None, logprobs[at] if logprobs else None)
                for at in range(len(ids))
            ]
            return found

        trainer._generate = seen

    def reward(
        self, prompts: list[Any], completions: list[Any], environments: list[Any], trainer_state: Any, **columns: Any
    ) -> list[float]:
        """The environments' rewards, by which each rollout is over: its trace goes to the sink. TRL calls it. A trace
        that cannot be made or kept is lost, with a warning, and the next one says how many were."""
        if self._trainer is None or len(self._rollouts) != len(completions):
            raise ConfigError("the recorder sees no rollouts: bind it to the trainer before it trains")
        rewards = []
        for at, (prompt, messages, environment) in enumerate(zip(prompts, completions, environments, strict=True)):
            rewards.append(environment.get_reward())
            row = {name: values[at] for name, values in columns.items() if isinstance(values, list)}
            try:
                self._sink(
                    self._trace(prompt, messages, environment, self._rollouts[at], row, trainer_state.global_step)
                )
                self._lost = 0  # the trace says so
            except Exception as error:  # a disk that is full, say: what watches a training does not end it
                self._lose(error)
            self._count += 1
        self._rollouts = []
        return rewards

    def _lose(self, error: Exception) -> None:
        if not self._lost:
            log.warning("a trace is not recorded, nor are later ones until one says how many: %s", reason(error))
        self._lost += 1

    def _trace(
        self, prompt: list[Any], messages: list[Any], environment: Any, rollout: Rollout, row: dict[str, Any], step: int
    ) -> Trace:
        calls = list(environment.calls)
        no_place: Counter[str] = Counter()
        steps, lost = steps_of(messages, calls, rollout, no_place, known=hasattr(environment, "newest_call"))
        ended, why = self._ended(messages, rollout, lost)
        asked = tuple(recorded_message(one, no_place) for one in prompt)
        marks: dict[str, Any] = {
            "why": why,
            UNPARSED: self._unparsed(steps, rollout),
            LOST_BEFORE: self._lost,
            TOKENS_LOST: bool(steps) and steps[0].sampled is None,
            "lost": dict(no_place),
        }
        tokenizer = self._trainer._tokenizer
        return Trace(
            id=f"{self._split or 'rollout'}-{step}-{self._rank}{self._count}",
            task=task_of(row, self._split),
            tools=self._tools,
            prompt=asked,
            steps=steps,
            reward=float(environment.get_reward()),
            solved=getattr(environment, "solved", None),
            ended=ended,
            policy=Policy(model=self._name, step=step, vocabulary=vocabulary(tokenizer)),
            meta={name: said for name, said in marks.items() if said},
        )

    def _unparsed(self, steps: Sequence[TraceStep], rollout: Rollout) -> list[int]:
        """The step that has no call since the trainer could not read what may be one: it takes that for a text, after
        which a rollout ends. Only the last step can be."""
        words = self._trainer._tokenizer
        sampled = steps[-1].sampled if steps and not steps[-1].action.calls else None
        if sampled is None or getattr(words, "response_template", None) is None:  # it reads no calls off such answers
            return []
        before = [*rollout.prompt, *rollout.ids[: len(rollout.ids) - len(sampled.ids)]]
        try:
            made = words.parse_response(list(sampled.ids), prefix=before)
        except (ValueError, TypeError):  # those that TRL takes for this
            made = None
        return [len(steps) - 1] if made is None or made.get("tool_calls") else []

    def _ended(self, messages: list[Any], rollout: Rollout, lost: Sequence[Call]) -> tuple[Ended, str]:
        """How, and why where that is not by the policy's own will."""
        last = messages[-1] if messages else {}
        if lost:
            named = ", ".join(call.tool for call in lost)
            return "truncated", f"the result of {named} was dropped: it made the completion too long"
        if not rollout.ids or rollout.ids[-1] not in self._trainer.eos_token_ids:
            return "truncated", "the completion was cut at its longest length"
        if last.get("role") != "assistant":
            return "truncated", "the completion had no token left for an answer to the last result"
        if last.get("tool_calls"):
            rounds = sum(bool(one.get("tool_calls")) for one in messages) - 1
            if rounds >= self._trainer.max_tool_calling_iterations:
                return "turns", f"the trainer allows {rounds} rounds of calls"
            return "truncated", "the result of the last call was dropped: it made the completion too long"
        return "submitted", ""


def _recorded(cls: type[Any]) -> type[Any]:
    """A subclass with its name, whose `reset` empties the list of calls and whose tools add to it. It has no
    `get_reward` that TRL would find: the recorder's is the reward."""

    def reset(self: Any, **row: Any) -> Any:
        self.calls = []
        return cls.reset(self, **row)

    members: dict[str, Any] = {"reset": reset, "get_reward": _Hidden(cls.get_reward)}
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if name not in OWN and not name.startswith("_"):
            members[name] = _tool_method(name, function)
    return type(cls.__name__, (cls,), members)


class _Hidden:
    """A method that `inspect` takes for none."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self._function, instance)


def _tool_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"the tool {name} is async, which the recorder does not know; make it a plain method")

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        measured = hasattr(self, "newest_call")
        if measured:
            self.newest_call = None
        try:
            result = function(self, *args, **kwargs)
        except Exception as error:  # TRL tells the policy, and goes on
            self.calls.append(Call(name, str({"error": str(error)}), None, "", True))
            raise
        known = self.newest_call if measured else None
        self.calls.append(
            Call(
                name,
                str(result),
                None if known is None else known.reward,
                "" if known is None else known.digest,
                known is not None and known.failed,
            )
        )
        return result

    return call


def _tool(function: Callable[..., Any]) -> Tool:
    schema = get_json_schema(function)["function"]
    return Tool(name=schema["name"], description=schema["description"], parameters=schema["parameters"])


def task_of(row: dict[str, Any], split: str) -> Task:
    """From a row of the data set, whose columns are SWE-bench's where it has them."""
    return Task(
        id=str(row.get("instance_id", "")),
        prompt=str(row.get("problem_statement", "")),
        split=split,
        fail_to_pass=tuple(row.get("FAIL_TO_PASS") or ()),
        pass_to_pass=tuple(row.get("PASS_TO_PASS") or ()),
    )
