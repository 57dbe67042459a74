"""Actions: which are the same, and which cannot be compared."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_runs.traces.comparable_actions import Action, Unusable, action, equivalent
from oven_runs.traces.records import Message, Tool, ToolCall

READ = Tool(
    name="read",
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "format": "path"},
            "start": {"type": "integer", "default": 1},
            "end": {"type": ["integer", "null"], "default": None},
            "mode": {"enum": ["text", "bytes"]},
            "lines": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["path"],
    },
)
RUN = Tool(name="run")


def comparable(*calls: tuple[str, Any], content: str = "") -> Action | Unusable:
    made = tuple(
        ToolCall(
            id=str(index),
            name=name,
            arguments=arguments if isinstance(arguments, str) else json.dumps(arguments),
        )
        for index, (name, arguments) in enumerate(calls)
    )
    return action(Message(role="assistant", content=content, calls=made), [READ, RUN])


def test_an_action_does_not_depend_on_how_it_is_written() -> None:
    wanted = comparable(("read", {"path": "a.py"}))
    assert isinstance(wanted, Action)
    for same in (
        '{ "path" : "./a.py" }',
        {"start": 1, "path": "a.py"},
        {"start": 1.0, "path": "b/../a.py", "end": None},
        {"path": "a.py", "mode": None},
    ):
        assert comparable(("read", same), content="thinking aloud") == wanted
    for second in ({"path": "b.py"}, {"path": "a.py", "start": 2}, {"path": "a.py", "mode": "text"}):
        assert isinstance(comparable(("read", second)), Action)
        assert comparable(("read", second)) != wanted
    assert comparable(("run", {}), ("read", {"path": "a.py"})) != comparable(("read", {"path": "a.py"}), ("run", {}))
    assert comparable(("run", "")) == comparable(("run", "{}"))
    assert comparable(content=" so  be\nit ") == comparable(content="so be it")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (("write", {}), "unknown_tool"),
        (("read", "path=a.py"), "arguments_not_json"),
        (("read", '{"path": NaN}'), "arguments_not_json"),
        (("read", "[" * 100_000), "arguments_not_json"),
        (("read", '["a.py"]'), "arguments_not_object"),
        (("read", {}), "arguments_outside_schema"),
        (("read", {"path": 1}), "arguments_outside_schema"),
        (("read", {"path": "a", "start": True}), "arguments_outside_schema"),
        (("read", {"path": "a", "mode": "image"}), "arguments_outside_schema"),
        (("read", {"path": "a", "lines": ["1"]}), "arguments_outside_schema"),
        (("read", {"path": "a", "other": 1}), "arguments_outside_schema"),
        (("run", '{"a": 1e999}'), "arguments_outside_schema"),
        (("run", "{" + '"a":{' * 40 + "}" * 41), "arguments_outside_schema"),
    ],
)
def test_an_incomparable_action_has_a_kind(call: tuple[str, Any], kind: str) -> None:
    unusable = comparable(call)
    assert isinstance(unusable, Unusable)
    assert unusable.kind == kind
    assert comparable(("run", {}), call) == unusable


def test_equal_outcomes_make_different_actions_equivalent() -> None:
    item, second = comparable(("run", {"command": "ls"})), comparable(("run", {"command": "ls ."}))
    assert isinstance(item, Action)
    assert isinstance(second, Action)
    assert not equivalent(item, second)
    assert not equivalent(item, second, ("", "")), "an outcome that was not measured equals nothing"
    assert equivalent(item, second, ("aa", "aa"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=4))
def test_the_canonical_form_is_idempotent_and_ignores_key_order(arguments: dict[str, Any]) -> None:
    once = comparable(("run", arguments))
    assert isinstance(once, Action)
    assert comparable(("run", once.arguments)) == once
    assert comparable(("run", dict(reversed(arguments.items())))) == once
