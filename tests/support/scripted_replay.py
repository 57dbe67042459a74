"""Traces and replies of scripted policies: at each state one of K actions is right, and each policy's skill is known.

Teachers err together: with probability `together` all families and the student's teachers take one common draw, as
models do that were trained alike; else each draws on its own. A wrong action is any of the K − 1 others, as probably.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from oven_runs.traces.records import Message, Policy, Reply, Sampled, Task, Tool, ToolCall, Trace, TraceStep

TOOLS: Final = tuple(
    Tool(
        name=name,
        parameters={"type": "object", "properties": {"target": {"type": "integer"}}, "required": ["target"]},
    )
    for name in ("list", "read", "search", "edit", "run_tests")
)
STEPS: Final = 10
"""Of a trace."""


@dataclass(frozen=True)
class Skills:
    """How often the right action is taken."""

    student: float
    families: tuple[float, ...]
    """Each family's, where it draws on its own."""
    together: float = 0.0
    """Probability of a common draw."""
    common: float = 0.5
    """The skill of a common draw."""
    actions: int = 4
    favoured: float = 0.2
    """Probability that the right action's tool is `run_tests`: 1/5 says nothing, more is a signal in the features."""


PLANTED: Final = Skills(student=0.3, families=(0.7, 0.7, 0.6), together=0.3, common=0.6, favoured=0.6)
"""The right action is `run_tests` three times as often as by chance, and teachers know it."""
STATES: Final = 200
"""States of a draw: 20 traces, with about 150 pairs."""


@dataclass(frozen=True)
class ScriptedReplay:
    """Traces, replies of one teacher a family, and the right action's target at each state."""

    traces: tuple[Trace, ...]
    replies: tuple[Reply, ...]
    right: dict[tuple[str, int], int]


def scripted(skills: Skills, states: int, chance: random.Random, *, one_family: bool = False) -> ScriptedReplay:
    """So many states, STEPS a trace. `one_family`: all teachers are of one."""
    traces: list[Trace] = []
    replies: list[Reply] = []
    right: dict[tuple[str, int], int] = {}
    for number in range(0, states, STEPS):
        name = f"t{number}"
        steps: list[TraceStep] = []
        asked: list[list[Message]] = []
        for at in range(min(STEPS, states - number)):
            options = _options(skills, chance)
            right[name, at] = target(options[0])
            own = options[_draw(skills.student, skills.actions, chance)]
            steps.append(
                TraceStep(action=own, result=(_answer(),), reward=0.0, sampled=Sampled(ids=(1,), logprobs=(-1.0,)))
            )
            asked.append([options[one] for one in _teachers(skills, chance)])
        trace = Trace(
            id=name,
            task=Task(id=name),
            tools=TOOLS,
            prompt=(Message(role="user", content=name),),
            steps=tuple(steps),
            ended="submitted",
            policy=Policy(model="scripted"),
        )
        traces.append(trace)
        for at, (digest, given) in enumerate(zip(trace.digests(), asked, strict=True)):
            for family, message in enumerate(given):
                replies.append(_reply(trace.id, at, digest, family, message, one_family))
    return ScriptedReplay(tuple(traces), tuple(replies), right)


def shuffled(replay: ScriptedReplay, chance: random.Random) -> ScriptedReplay:
    """The same votes about other actions: at each state, the different actions change places. Who agrees with whom
    stays, and what they agree about is random."""
    by_state: dict[tuple[str, int], list[Reply]] = {}
    for reply in replay.replies:
        by_state.setdefault((reply.trace, reply.step), []).append(reply)
    traces: list[Trace] = []
    replies: list[Reply] = []
    for trace in replay.traces:
        steps: list[TraceStep] = []
        for at, step in enumerate(trace.steps):
            given = by_state[trace.id, at]
            found = list(
                {message_key(one): one for one in (step.action, *(_action(reply) for reply in given))}.values()
            )
            other = dict(zip(map(message_key, found), chance.sample(found, len(found)), strict=True))
            steps.append(step.model_copy(update={"action": other[message_key(step.action)]}))
            by_state[trace.id, at] = [
                reply.model_copy(update={"action": other[message_key(_action(reply))]}) for reply in given
            ]
        changed = trace.model_copy(update={"steps": tuple(steps)})
        traces.append(changed)
        for at, digest in enumerate(changed.digests()):
            replies += [reply.model_copy(update={"state": digest}) for reply in by_state[trace.id, at]]
    return replace(replay, traces=tuple(traces), replies=tuple(replies))


def target(message: Message) -> int:
    """What a scripted action is about: its number."""
    return int(json.loads(message.calls[0].arguments)["target"])


def message_key(message: Message) -> tuple[str, str]:
    """What tells two scripted actions apart."""
    return message.calls[0].name, message.calls[0].arguments


def _options(skills: Skills, chance: random.Random) -> Sequence[Message]:
    """The actions of a state; the first is right."""
    targets = chance.sample(range(1000, 10_000), skills.actions)
    names = [tool.name for tool in TOOLS]
    drawn = [chance.choice(names) for _ in targets]
    drawn[0] = "run_tests" if chance.random() < skills.favoured else chance.choice(names[:-1])
    return [_call(name, one) for name, one in zip(drawn, targets, strict=True)]


def _draw(skill: float, actions: int, chance: random.Random) -> int:
    return 0 if chance.random() < skill else 1 + chance.randrange(actions - 1)


def _teachers(skills: Skills, chance: random.Random) -> list[int]:
    if chance.random() < skills.together:
        return [_draw(skills.common, skills.actions, chance)] * len(skills.families)
    return [_draw(skill, skills.actions, chance) for skill in skills.families]


def _call(name: str, about: int) -> Message:
    call = ToolCall(id="c", name=name, arguments=json.dumps({"target": about}))
    return Message(role="assistant", calls=(call,))


def _answer() -> Message:
    return Message(role="tool", content="ok", call_id="c")


def _action(reply: Reply) -> Message:
    assert reply.action is not None  # scripted teachers do not fail
    return reply.action


def _reply(trace: str, at: int, digest: str, family: int, message: Message, one_family: bool) -> Reply:
    name = "abcdefgh"[family]
    return Reply(
        trace=trace, step=at, state=digest, teacher=name, family="one" if one_family else name, action=message, usd=0.01
    )
