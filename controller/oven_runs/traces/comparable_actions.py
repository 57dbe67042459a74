"""What makes two actions the same: the tool and its arguments, in one canonical form.

Arguments are compared after the tool's schema has been asked: defaults are filled in, a number is a number whether it
is written 1 or 1.0, keys are sorted. What cannot be compared is an `Unusable`, with its kind, and never equal to
anything.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from oven_runs.traces.records import Message, Tool, ToolCall

UnusableKind: TypeAlias = Literal[
    "no_action", "unknown_tool", "arguments_not_json", "arguments_not_object", "arguments_outside_schema"
]
DEPTH: Final = 32
"""Levels of nested arguments: deeper ones are outside any tool's schema, and would exhaust the stack."""
_MISSING: Final = object()
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""JSON schema's types. bool is an int in Python, and is not one here."""


@dataclass(frozen=True, order=True)
class Action:
    """A comparable action: equal where the environment cannot tell the two apart by their form. `tool` is empty and
    `arguments` the text, white space joined, for a message without calls."""

    tool: str
    arguments: str
    then: tuple[Action, ...] = ()
    """Further calls of the same message, in their order: it may matter."""

    def __str__(self) -> str:
        if not self.tool:
            return self.arguments
        return "; ".join(f"{one.tool}({one.arguments})" for one in (self, *self.then))


@dataclass(frozen=True)
class Unusable:
    """An action that cannot be compared, and why."""

    kind: UnusableKind
    detail: str


def action(message: Message, tools: Sequence[Tool]) -> Action | Unusable:
    """The comparable form of an assistant's message. `tools`: those that it was offered; an empty sequence: none are
    known, and names and arguments are taken as they are."""
    if not message.calls:
        text = " ".join(message.content.split())
        return Action("", text) if text else Unusable("no_action", "the message has neither a call nor a text")
    known = {tool.name: tool for tool in tools}
    calls: list[Action] = []
    for call in message.calls:
        made = _call(call, known)
        if isinstance(made, Unusable):
            return made
        calls.append(made)
    first, *others = calls
    return Action(first.tool, first.arguments, tuple(others))


def equivalent(one: Action, other: Action, outcomes: tuple[str, str] = ("", "")) -> bool:
    """Whether two actions come to the same: by their form, or by the digests of the environment after each."""
    return one == other or (outcomes[0] != "" and outcomes[0] == outcomes[1])


def _call(call: ToolCall, known: Mapping[str, Tool]) -> Action | Unusable:
    if known and call.name not in known:
        return Unusable("unknown_tool", call.name)
    try:
        given = json.loads(call.arguments or "{}", parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return Unusable("arguments_not_json", f"{call.name}: {error}")
    if not isinstance(given, dict):
        return Unusable("arguments_not_object", f"{call.name}: a {type(given).__name__}")
    schema = known[call.name].parameters if call.name in known else {}
    try:
        whole = _canonical(given, schema, 0)
    except _OutsideSchema as error:
        return Unusable("arguments_outside_schema", f"{call.name}: {error}")
    return Action(call.name, json.dumps(whole, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


class _OutsideSchema(Exception):
    pass


def _refuse(constant: str) -> Any:
    raise ValueError(f"JSON has no {constant}")


def _canonical(value: Any, schema: Any, depth: int, where: str = "arguments") -> Any:
    """`value` with defaults filled in and numbers made alike. Of JSON schema: type, enum, properties, required,
    default, additionalProperties, items, and the format "path". Raises _OutsideSchema."""
    if depth > DEPTH:
        raise _OutsideSchema(f"{where} is nested more than {DEPTH} deep")
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _OutsideSchema(f"{where} is too large for a number")
        value = int(value) if value.is_integer() else value
    _check_type(value, schema, where)
    if isinstance(value, dict):
        return _object(value, schema, depth, where)
    if isinstance(value, list):
        return [_canonical(one, schema.get("items"), depth + 1, f"{where}[{at}]") for at, one in enumerate(value)]
    if isinstance(value, str) and schema.get("format") == "path":
        return posixpath.normpath(value) if value else value
    return value


def _check_type(value: Any, schema: Mapping[str, Any], where: str) -> None:
    if "enum" in schema and isinstance(schema["enum"], list) and value not in schema["enum"]:
        raise _OutsideSchema(f"{where} is none of the values that the schema lists")
    named = schema.get("type")
    wanted = [named] if isinstance(named, str) else named if isinstance(named, list) else []
    types = [_TYPES[one] for one in wanted if one in _TYPES]
    if types and not any(isinstance(value, one) and (bool in one or not isinstance(value, bool)) for one in types):
        raise _OutsideSchema(f"{where} is a {type(value).__name__}, and the schema says {' or '.join(wanted)}")


def _object(value: dict[str, Any], schema: Mapping[str, Any], depth: int, where: str) -> dict[str, Any]:
    properties = schema.get("properties")
    fields: dict[str, Any] = properties if isinstance(properties, dict) else {}
    unknown = sorted(value.keys() - fields.keys())
    if unknown and fields and schema.get("additionalProperties") in (None, False):
        raise _OutsideSchema(f"{where}.{unknown[0]} is not in the schema")
    listed = schema.get("required")
    required: list[Any] = listed if isinstance(listed, list) else []
    for name in required:
        if name not in value:
            raise _OutsideSchema(f"{where}.{name} is missing")
    whole: dict[str, Any] = {}
    for name in (*fields, *unknown):
        field = fields.get(name)
        default = field.get("default", _MISSING) if isinstance(field, dict) else _MISSING
        given = value.get(name, default)
        if given is _MISSING or (given is None and name not in required):
            continue  # null for what may be left out is leaving it out
        same = default is not _MISSING and given == default and type(given) is type(default)
        whole[name] = _canonical(given, {} if same else field, depth + 1, f"{where}.{name}")
    return whole
