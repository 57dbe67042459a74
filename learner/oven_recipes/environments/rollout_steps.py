"""Steps of a trace from the trainer's messages, the environment's calls and the sampled tokens. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oven_runs.traces.formats.chat_messages import from_chat, text_of
from oven_runs.traces.records import Message, Sampled, TraceStep


@dataclass(frozen=True)
class Call:
    """A call that the environment carried out, and what it knows of it."""

    tool: str
    text: str
    reward: float | None
    digest: str
    failed: bool


@dataclass(frozen=True)
class Rollout:
    """What the trainer knows of one rollout, beyond its messages."""

    prompt: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int] | None
    logprobs: Sequence[float] | None


def steps_of(
    messages: list[Any], calls: list[Call], rollout: Rollout, lost: Counter[str], *, known: bool
) -> tuple[tuple[TraceStep, ...], list[Call]]:
    """The steps, and the calls whose results the policy never saw. `known`: the environment rewards each step. `lost`
    counts what the messages have and a trace has no place for, by kind."""
    sampled = _sampled(rollout, sum(one["role"] == "assistant" for one in messages))
    steps: list[TraceStep] = []
    waiting = list(calls)
    at = turn = 0
    while at < len(messages):
        action = messages[at]
        at += 1
        results = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        missing = bool(action.get("tool_calls")) and not results
        done = waiting if missing else _carried_out(waiting, results)
        rewards = [call.reward for call in done if call.reward is not None]
        nothing = 0.0 if known else None  # a step without a call turned no test
        steps.append(
            TraceStep(
                action=recorded_message(action, lost, f"{turn}"),
                result=None if missing else tuple(_result(one, f"{turn}-{n}", lost) for n, one in enumerate(results)),
                reward=sum(rewards) if rewards else nothing,
                sampled=sampled[turn] if sampled else None,
                outcome=next((call.digest for call in reversed(done) if call.digest), ""),
            )
        )
        if missing:
            return tuple(steps), done
        turn += 1
    return tuple(steps), waiting


def _carried_out(waiting: list[Call], results: list[Any]) -> list[Call]:
    """Takes the calls off `waiting` that these results are of. Some are of none: there is no such tool, or the
    arguments were no object."""
    given = [(result.get("name"), str(result["content"])) for result in results]
    count = 0
    for one in given:
        count += count < len(waiting) and (waiting[count].tool, waiting[count].text) == one
    done = waiting[:count]
    del waiting[:count]
    return done


def _sampled(rollout: Rollout, turns: int) -> list[Sampled] | None:
    """The tokens of each turn: the runs of the mask that were sampled. None where they are not as many."""
    if rollout.mask is None:
        return None
    runs: list[Sampled] = []
    start: int | None = None
    for at, one in enumerate([*rollout.mask, 0]):
        if one and start is None:
            start = at
        elif not one and start is not None:
            logprobs = tuple(rollout.logprobs[start:at]) if rollout.logprobs is not None else None
            runs.append(Sampled(ids=tuple(rollout.ids[start:at]), logprobs=logprobs))
            start = None
    return runs if len(runs) == turns else None


def recorded_message(message: Any, lost: Counter[str], turn: str = "") -> Message:
    """Ours, with the calls numbered within the turn: the trainer's have no ids. `lost` as in `from_chat`."""
    calls = [_call(one, f"{turn}-{number}") for number, one in enumerate(message.get("tool_calls") or ())]
    return from_chat({**message, "tool_calls": calls}, lost)


def _call(said: Any, name: str) -> dict[str, Any]:
    """A call that the trainer could not read has the name that its result has, and itself as its arguments."""
    function = said.get("function") or {"name": said.get("name", "unknown"), "arguments": said}
    arguments = function["arguments"]
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": name, "name": function["name"], "arguments": written}


def _result(message: Any, call: str, lost: Counter[str]) -> Message:
    content = text_of(message["content"], lost)  # a list where the tool gave images, too
    return Message(role="tool", content=content, call_id=call, name=message.get("name", ""))
