"""Traces for tests: drawn ones, and a complete one of a small repair."""

from __future__ import annotations

import json

from hypothesis import strategies as st

from oven_runs.traces.trace_records import Message, Policy, Sampled, Task, Tool, ToolCall, Trace, TraceStep

# No halves of characters: JSON files are UTF-8.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
real = st.floats(-5, 5) | st.integers(-3, 3).map(float)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | real | text, st.lists, max_leaves=4)
objects = st.dictionaries(text, json_values, max_size=3)
calls = st.builds(
    ToolCall, id=text, name=st.sampled_from(["bash", "read", ""]), arguments=objects.map(json.dumps) | text
)
users = st.builds(Message, role=st.sampled_from(["system", "user"]), content=text)
tool_results = st.builds(Message, role=st.just("tool"), content=text, call_id=text, name=text)
actions = st.builds(
    Message, role=st.just("assistant"), content=text, reasoning=text, calls=st.lists(calls, max_size=2).map(tuple)
)
messages = users | tool_results | actions


@st.composite
def sampled_tokens(draw: st.DrawFn) -> Sampled:
    """1 to 3 tokens, with or without log-probabilities and entropies."""
    size = draw(st.integers(1, 3))
    one_each = st.none() | st.lists(real, min_size=size, max_size=size).map(tuple)
    ids = draw(st.lists(st.integers(0, 1 << 20), min_size=size, max_size=size))
    return Sampled(ids=tuple(ids), logprobs=draw(one_each), entropies=draw(one_each))


def short_tuples(strategy: st.SearchStrategy[Message]) -> st.SearchStrategy[tuple[Message, ...]]:
    return st.lists(strategy, max_size=3).map(tuple)


steps = st.builds(
    TraceStep,
    state=st.none() | short_tuples(messages),
    action=actions,
    result=st.none() | short_tuples(tool_results | users),
    reward=st.none() | real,
    sampled=st.none() | sampled_tokens(),
    outcome=text,
)
tools = st.builds(Tool, name=text, description=text, parameters=objects)
traces = st.builds(
    Trace,
    id=text.filter(bool),
    task=st.builds(
        Task,
        id=text.filter(bool),
        prompt=text,
        split=text,
        fail_to_pass=st.lists(text, max_size=1).map(tuple),
        data=objects,
    ),
    tools=st.lists(tools, max_size=2).map(tuple),
    prompt=short_tuples(messages),
    steps=st.lists(steps, max_size=4).map(tuple),
    reward=st.none() | real,
    solved=st.none() | st.booleans(),
    ended=st.sampled_from(["submitted", "truncated", "turns", "timeout", "error", "unknown"]),
    policy=st.builds(Policy, model=text, step=st.none() | st.integers(0, 9), vocabulary=text),
    meta=objects,
)

READ = Tool(
    name="read", parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)
EDIT = Tool(
    name="edit",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string"}, "old": {"type": "string"}, "new": {"type": "string"}},
        "required": ["path", "old", "new"],
    },
)
SUBMIT = Tool(name="submit", parameters={"type": "object", "properties": {}})


def called(name: str, **arguments: object) -> Message:
    """Return an assistant's message with one call."""
    return Message(role="assistant", calls=(ToolCall(id="c", name=name, arguments=json.dumps(arguments)),))


def answered(content: str, name: str) -> tuple[Message, ...]:
    return (Message(role="tool", content=content, call_id="c", name=name),)


REPAIR = Trace(
    id="repair-1",
    task=Task(id="median", prompt="median([1, 2]) is wrong", fail_to_pass=("test_even",), pass_to_pass=("test_odd",)),
    tools=(READ, EDIT, SUBMIT),
    prompt=(
        Message(role="system", content="You repair code."),
        Message(role="user", content="median([1, 2]) is wrong"),
    ),
    steps=(
        TraceStep(action=called("read", path="median.py"), result=answered("return s[n // 2]", "read"), reward=0.0),
        TraceStep(
            action=called("edit", path="median.py", old="n // 2", new="(n - 1) // 2"),
            result=answered("edited", "edit"),
            reward=0.5,
            sampled=Sampled(ids=(5, 6, 7), logprobs=(-0.1, -1.5, -0.25)),
        ),
        TraceStep(action=called("submit"), result=answered("submitted", "submit"), reward=0.5),
    ),
    reward=1.0,
    solved=True,
    ended="submitted",
    policy=Policy(model="small", step=3, vocabulary="v"),
)
"""Whole: each step has a state, an action and a reward."""
