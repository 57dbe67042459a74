"""Traces that are made up: each state has one right action, which a scripted teacher of known skill finds or misses."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable
from typing import Final

from oven_runs.traces.records import Message, Task, Tool, ToolCall, Trace, TraceStep

LINES: Final = 5
"""Actions at a state: a line of the file to edit. One of them is right."""
TOOLS: Final = (
    Tool(
        name="edit",
        description="Replace a line of the file.",
        parameters={
            "type": "object",
            "properties": {"line": {"type": "integer"}, "state": {"type": "string"}},
            "required": ["line", "state"],
        },
    ),
)
MARK: Final = re.compile(r"\[state (\w+)\]")
"""In the last message of each state: its name."""
_WORDS: Final = ("value", "index", "path", "error", "assert", "return", "expected", "module", "item", "buffer", "key")


def made_traces(count: int, steps: int, seed: int, *, student: float = 0.4) -> list[Trace]:
    """`student`: the share of states at which the policy's own action is the right one."""
    return [_trace(f"t{number:04}", steps, random.Random(f"trace {seed} {number}"), student) for number in range(count)]


def right_line(state: str) -> int:
    """The right action at the state of this name."""
    return int(hashlib.sha256(state.encode()).hexdigest(), 16) % LINES


def edit(line: int, state: str) -> tuple[str, str]:
    """A call's name and arguments."""
    return "edit", json.dumps({"line": line, "state": state})


def state_name(texts: Iterable[str]) -> str:
    """The name of the state that ends with the last of these texts. Raises ValueError where there is none."""
    *_, last = texts
    if (found := MARK.search(last)) is None:
        raise ValueError(f"no state is named in {last[:60]!r}")
    return found[1]


def _trace(name: str, steps: int, chance: random.Random, student: float) -> Trace:
    def prose(least: int, most: int) -> str:
        return " ".join(chance.choice(_WORDS) for _ in range(chance.randint(least, most)))

    made = []
    for step in range(steps):
        state = f"{name}s{step:03}"
        right = right_line(state)
        line = right if chance.random() < student else (right + chance.randint(1, LINES - 1)) % LINES
        call = ToolCall(id=f"call_{step}", name="edit", arguments=edit(line, state)[1])
        answer = f"line {line} replaced. {prose(20, 160)} [state {name}s{step + 1:03}]"
        made.append(
            TraceStep(
                action=Message(role="assistant", content=prose(0, 25), calls=(call,)),
                result=(Message(role="tool", content=answer, call_id=call.id, name="edit"),),
                reward=float(line == right),
            )
        )
    return Trace(
        id=name,
        task=Task(id=f"task{name}", prompt="repair the file"),
        tools=TOOLS,
        prompt=(
            Message(role="system", content=f"Repair the file, one line at a time. {prose(150, 250)}"),
            Message(role="user", content=f"{prose(60, 200)} [state {name}s000]"),
        ),
        steps=tuple(made),
        solved=False,
        ended="turns",
    )
