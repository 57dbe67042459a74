"""Whether two actions are the same: the tool and its arguments in one canonical form.

The tool's schema decides: defaults are filled in, 1.0 becomes 1, and keys are sorted. An action that cannot be compared
is an `Unusable` with its kind, and equals nothing.
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
"""Levels of nested arguments. Deeper ones are outside any tool's schema and would exhaust the stack."""
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
"""JSON schema's types. In Python bool is an int; here it is not."""


@dataclass(frozen=True, order=True)
class Action:
    """A comparable action. Two are equal if their form gives the environment no way to tell them apart. A message
    without calls has an empty `tool`, and its text with white space joined as `arguments`."""

    tool: str
    arguments: str
    then: tuple[Action, ...] = ()
    """Further calls of the same message in their order, which may matter."""

    def __str__(self) -> str:
        if not self.tool:
            return self.arguments
        return "; ".join(f"{call.tool}({call.arguments})" for call in (self, *self.then))


@dataclass(frozen=True)
class Unusable:
    """The reason why an action cannot be compared."""

    kind: UnusableKind
    detail: str


def action(message: Message, tools: Sequence[Tool]) -> Action | Unusable:
    """Return the comparable form of an assistant's message. `tools` are those that it was offered. If that is empty,
    names and arguments are not checked."""
    if not message.calls:
        text = " ".join(message.content.split())
        return Action("", text) if text else Unusable("no_action", "the message has neither a call nor a text")
    offered = {tool.name: tool for tool in tools}
    calls: list[Action] = []
    for call in message.calls:
        comparable = _call(call, offered)
        if isinstance(comparable, Unusable):
            return comparable
        calls.append(comparable)
    first, *others = calls
    return Action(first.tool, first.arguments, tuple(others))


def equivalent(first: Action, second: Action, outcomes: tuple[str, str] = ("", "")) -> bool:
    """Return whether two actions are the same by their form, or by the digests of the environment after each."""
    return first == second or (outcomes[0] != "" and outcomes[0] == outcomes[1])


def _call(call: ToolCall, offered: Mapping[str, Tool]) -> Action | Unusable:
    if offered and call.name not in offered:
        return Unusable("unknown_tool", call.name)
    try:
        arguments = json.loads(call.arguments or "{}", parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return Unusable("arguments_not_json", f"{call.name}: {error}")
    if not isinstance(arguments, dict):
        return Unusable("arguments_not_object", f"{call.name}: a {type(arguments).__name__}")
    schema = offered[call.name].parameters if call.name in offered else {}
    try:
        canonical = _canonical(arguments, schema, 0)
    except _OutsideSchema as error:
        return Unusable("arguments_outside_schema", f"{call.name}: {error}")
    return Action(call.name, json.dumps(canonical, sort_keys=True, ensure_ascii=False, separators=(",", ":")))


class _OutsideSchema(Exception):
    pass


def _refuse(constant: str) -> Any:
    raise ValueError(f"JSON has no {constant}")


def _canonical(value: Any, schema: Any, depth: int, where: str = "arguments") -> Any:
    """Return `value` with defaults filled in and numbers in one form. Of JSON schema it reads type, enum, properties,
    required, default, additionalProperties, items, and the format "path". Raises _OutsideSchema."""
    if depth > DEPTH:
        raise _OutsideSchema(f"{where} is nested more than {DEPTH} deep")
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _OutsideSchema(f"{where} is too large for a number")
        value = int(value) if value.is_integer() else value
    _check_type(value, schema, where)
    if isinstance(value, dict):
        return _canonical_object(value, schema, depth, where)
    if isinstance(value, list):
        items = schema.get("items")
        return [_canonical(item, items, depth + 1, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, str) and schema.get("format") == "path":
        return posixpath.normpath(value) if value else value
    return value


def _check_type(value: Any, schema: Mapping[str, Any], where: str) -> None:
    if "enum" in schema and isinstance(schema["enum"], list) and value not in schema["enum"]:
        raise _OutsideSchema(f"{where} is none of the values that the schema lists")
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    types = [_TYPES[name] for name in names if name in _TYPES]
    if types and not any(isinstance(value, kind) and (bool in kind or not isinstance(value, bool)) for kind in types):
        raise _OutsideSchema(f"{where} is a {type(value).__name__}, and the schema says {' or '.join(names)}")


def _canonical_object(value: dict[str, Any], schema: Mapping[str, Any], depth: int, where: str) -> dict[str, Any]:
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
    canonical: dict[str, Any] = {}
    for name in (*fields, *unknown):
        field = fields.get(name)
        default = field.get("default", _MISSING) if isinstance(field, dict) else _MISSING
        item = value.get(name, default)
        if item is _MISSING or (item is None and name not in required):
            continue  # null for an optional field means that it is omitted
        is_default = default is not _MISSING and item == default and type(item) is type(default)
        canonical[name] = _canonical(item, {} if is_default else field, depth + 1, f"{where}.{name}")
    return canonical
