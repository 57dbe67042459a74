"""Count the steps of a trace file that lack a state, an action, a result or a reward, for `traces check`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from oven_runs.traces.jsonl import BadLine
from oven_runs.traces.trace_records import Message, Tool, ToolCall, Trace, TraceStep

MAX_EXAMPLES = 3
"""Maximum examples to show for each kind of defect."""
UNPARSED: Final = "unparsed_calls"
"""Key in a trace's `meta` for the steps whose calls the trainer could not parse and recorded as text."""
LOST_BEFORE: Final = "lost_before"
"""Key in a trace's `meta` for the number of earlier traces that could not be recorded."""
TOKENS_LOST: Final = "tokens_lost"
"""Key in a trace's `meta` that is set if the sampled tokens could not be assigned to steps."""


@dataclass
class Completeness:
    """Counts of a file's traces and steps. A step without defects is "whole". The other steps are counted by defect."""

    traces: int = 0
    steps: int = 0
    whole_traces: int = 0
    """Number of traces that lack nothing, were not truncated, and have only whole steps, at least one."""
    whole_steps: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    steps_lacking: Counter[str] = field(default_factory=Counter)
    """Kind of defect → number of steps. `traces_lacking` and `bad_lines` count traces and lines in the same way."""
    unusable_actions: Counter[str] = field(default_factory=Counter)
    """Actions that no environment could execute, by kind. They count as whole, because the policy sampled them."""
    traces_lacking: Counter[str] = field(default_factory=Counter)
    bad_lines: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    """Kind of defect → the first places in the file where it occurs."""

    @property
    def is_whole(self) -> bool:
        """Whether the file has traces and nothing is missing."""
        return self.traces > 0 and self.whole_traces == self.traces and not self.traces_lacking and not self.bad_lines

    def as_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        return {**vars(self), "whole": self.is_whole}

    def _count(self, counter: Counter[str], kind: str, example: str, count: int = 1) -> None:
        counter[kind] += count
        examples = self.examples.setdefault(kind, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(example)

    def add_bad_line(self, bad: BadLine) -> None:
        self._count(self.bad_lines, bad.fault, f"line {bad.number}: {bad.detail}")

    def add(self, trace: Trace, *, repeated_id: bool) -> None:
        """Count a trace and its steps. `repeated_id` says whether an earlier trace has the same id."""
        self.traces += 1
        self.ended[trace.ended] += 1
        problems = list(_trace_problems(trace))
        if repeated_id:
            problems.append("another trace has the same id")
        for problem in problems:
            self._count(self.traces_lacking, problem, trace.id)
        if isinstance(lost_count := trace.meta.get(LOST_BEFORE), int) and lost_count > 0:
            self._count(self.traces_lacking, "traces before it are lost", f"{trace.id}: {lost_count}", lost_count)
        if isinstance(unparsed_steps := trace.meta.get(UNPARSED), list):
            for number in unparsed_steps:
                self._count(self.unusable_actions, "call_not_parsed", f"{trace.id}, step {number}")
        whole_steps = self._add_steps(trace)
        has_only_whole_steps = bool(trace.steps) and whole_steps == len(trace.steps)
        if has_only_whole_steps and not problems and trace.ended != "truncated":
            self.whole_traces += 1

    def _add_steps(self, trace: Trace) -> int:
        """Count the steps of a trace. Return the number of whole steps."""
        whole_steps = 0
        is_recorded = True  # whether everything before the step was recorded
        tools = {tool.name: tool for tool in trace.tools}
        for number, (step, state) in enumerate(zip(trace.steps, trace.states(), strict=True)):
            is_recorded = is_recorded or step.state is not None
            problems = list(_step_problems(trace, step, state, is_recorded))
            for problem in problems:
                self._count(self.steps_lacking, problem, f"{trace.id}, step {number}")
            if kind := _action_fault(step.action, tools):
                self._count(self.unusable_actions, kind, f"{trace.id}, step {number}")
            is_recorded = is_recorded and step.result is not None
            self.steps += 1
            whole_steps += not problems
        self.whole_steps += whole_steps
        return whole_steps


def check(traces: Iterable[Trace | BadLine]) -> Completeness:
    """Count the traces and bad lines that were read from a file."""
    counts = Completeness()
    ids: set[str] = set()
    for trace in traces:
        if isinstance(trace, BadLine):
            counts.add_bad_line(trace)
        else:
            counts.add(trace, repeated_id=trace.id in ids)
            ids.add(trace.id)
    return counts


def _trace_problems(trace: Trace) -> Iterator[str]:
    if not trace.steps:
        yield "no steps"
    if not trace.prompt and (not trace.steps or trace.steps[0].state is None):
        yield "no prompt"
    if trace.ended == "unknown":
        yield "how it ended is unknown"
    if trace.reward is None:
        yield "no reward"
    if trace.meta.get(TOKENS_LOST):
        yield "its sampled tokens are not assigned to steps"


def _step_problems(trace: Trace, step: TraceStep, state: Sequence[Message], is_recorded: bool) -> Iterator[str]:
    if not state:
        yield "state: empty"
    elif not is_recorded:
        yield "state: an earlier result is missing"
    if step.action.role != "assistant":
        yield f"action: a message of the role {step.action.role}"
    if not step.action.calls and not step.action.content.strip() and step.sampled is None:
        yield "action: no call, text or tokens"
    if step.reward is None:
        yield "reward: missing" if trace.reward is None else "reward: only the whole trace has one"
    if step.result is None:
        yield "result: missing"
    else:
        answered_ids = {message.call_id for message in step.result if message.role == "tool"}
        if any(call.id not in answered_ids for call in step.action.calls):
            yield "result: a call without an answer"
    if step.sampled is not None:
        per_token = (step.sampled.logprobs, step.sampled.entropies)
        if any(values is not None and len(values) != len(step.sampled.ids) for values in per_token):
            yield "tokens: a different number of log-probabilities or entropies"


def _action_fault(action: Message, tools: Mapping[str, Tool]) -> str:
    """Return why no environment could execute an action: the fault of its first bad call, or an empty string."""
    if not action.calls:
        return "" if action.content.strip() else "no_action"
    faults = (_call_fault(call, tools) for call in action.calls)
    return next((fault for fault in faults if fault), "")


def _call_fault(call: ToolCall, tools: Mapping[str, Tool]) -> str:
    if tools and call.name not in tools:
        return "unknown_tool"
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return "arguments_not_json"
    if not isinstance(arguments, dict):
        return "arguments_not_object"
    schema = tools[call.name].parameters if tools else {}
    required, properties = schema.get("required"), schema.get("properties")
    lacks_required = isinstance(required, list) and not set(required) <= arguments.keys()
    has_unknown = isinstance(properties, dict) and properties and not arguments.keys() <= properties.keys()
    if lacks_required or (has_unknown and not schema.get("additionalProperties")):
        return "arguments_outside_schema"
    return ""
