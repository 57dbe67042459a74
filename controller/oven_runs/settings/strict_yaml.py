"""A strict YAML loader for user-written files. It rejects ambiguous input such as duplicate keys."""

from __future__ import annotations

import re
from typing import Any

import yaml

MAX_DEPTH = 32
"""Maximum nesting depth. Settings use five levels. Exceeding Python's own, higher limit would print a traceback."""
_BOOL_TAG = "tag:yaml.org,2002:bool"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that rejects duplicate keys, for which PyYAML would silently keep the last value. As in YAML 1.2, only
    `true` and `false` are booleans. In YAML 1.1 an agent named `off` would become False. Boolean settings still accept
    such words through pydantic.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own name)
        first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL_TAG]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in lines:
                    problem = f"the key {key.value!r} is a duplicate, first used in line {lines[key.value]}"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                lines[key.value] = key.start_mark.line + 1
        return dict(super().construct_mapping(node, deep))

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # e.g. a date that does not exist, or a number with thousands of digits
            problem = f"{str(node.value)[:20]!r} cannot be read: {str(error).split(';')[0]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error


_Loader.add_implicit_resolver(_BOOL_TAG, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def load_yaml(text: str) -> Any:
    """Parse a document. Raises yaml.YAMLError, also for duplicate keys, deep nesting and recursive aliases."""
    open_anchors: list[str | None] = []
    for event in yaml.parse(text, Loader=_Loader):
        problem = ""
        if isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            if len(open_anchors) > MAX_DEPTH:
                problem = f"it is nested more than {MAX_DEPTH} deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in open_anchors:
            problem = f"the alias {event.anchor!r} is inside the value that it refers to"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)  # type: ignore[arg-type]
    return yaml.load(text, Loader=_Loader)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """Map the path of each key to its line number, counted from 1. `load_yaml` must accept `text`."""
    lines: dict[tuple[str, ...], int] = {}

    def visit(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    lines[*path, key.value] = key.start_mark.line + 1
                    visit(value, (*path, key.value))

    visit(yaml.compose(text, Loader=_Loader), ())
    return lines


def problem_of(error: yaml.YAMLError) -> str:
    """Return the error's description without its position."""
    return str(getattr(error, "problem", None) or error)


def place_of(error: yaml.YAMLError) -> str:
    """Return the position in the file as `, line 3, column 1`, or an empty string if unknown."""
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
