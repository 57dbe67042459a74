"""Traces of the environment `repair` with teachers' replies, made without a model: what the A/B of replay reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from oven_recipes.environments.small_functions import tasks
from oven_recipes.repair.warm_policy import Habits, demonstration
from oven_runs.traces import jsonl
from oven_runs.traces.records import Message, Policy, Reply, Task, ToolCall, Trace, TraceStep

SUBMIT = Message(role="assistant", calls=(ToolCall(name="submit", arguments="{}"),))


def write(folder: Path, count: int = 3) -> tuple[Path, Path]:
    """The files of traces and replies. Families a and b do what the demonstration does; the policy, and family c after
    it, hands in at once wherever the demonstration edits."""
    traces, replies = [], []
    for number, one in enumerate(tasks("a/b test", count)):
        shown = demonstration(one, Habits(right=1.0, looks_around=0, runs_tests=0), random.Random(number))
        right = [message for message in shown if message.get("tool_calls")]
        results = [message for message in shown if message["role"] == "tool"]
        steps = [_step(said, told) for said, told in zip(right, results, strict=True)]
        trace = Trace(
            id=f"t{number}",
            task=Task(id=one.instance_id),
            prompt=(Message(role="user", content=one.problem_statement),),
            steps=tuple(steps),
            policy=Policy(model="test"),
        )
        traces.append(trace)
        for at, (said, state) in enumerate(zip(right, trace.digests(), strict=True)):
            for family in "abc":
                action = trace.steps[at].action if family == "c" else _message(said)
                common = {"trace": trace.id, "step": at, "state": state, "teacher": family, "family": family}
                replies.append(Reply.model_validate(common | {"action": action}))
    jsonl.write(folder / "traces.jsonl", traces)
    jsonl.write(folder / "replies.jsonl", replies)
    return folder / "traces.jsonl", folder / "replies.jsonl"


def _step(said: dict[str, Any], told: dict[str, Any]) -> TraceStep:
    right = _message(said)
    action = SUBMIT if right.calls[0].name == "edit" else right
    name = action.calls[0].name
    return TraceStep(action=action, result=(Message(role="tool", name=name, content=told["content"]),))


def _message(said: dict[str, Any]) -> Message:
    function = said["tool_calls"][0]["function"]
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Message(role="assistant", calls=(ToolCall(name=function["name"], arguments=written),))
