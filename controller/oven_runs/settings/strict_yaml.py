"""YAML as a person writes it; what is ambiguous is refused."""

from __future__ import annotations

import re
from typing import Any

import yaml

DEPTH = 32
"""Levels; settings have five. Python's own limit comes later, and as a traceback."""


BOOL = "tag:yaml.org,2002:bool"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML lets a key stand twice and keeps the last, so that the first would be gone unseen.

    Only `true` and `false` are truth values, as in YAML 1.2: in 1.1 an agent called `off` would be one. Where a setting
    is yes or no, pydantic takes those words, too.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own name)
        first: [(tag, pattern) for tag, pattern in known if tag != BOOL]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    wrong = f"the key {key.value!r} stands twice, first in line {seen[key.value]}"
                    raise yaml.MarkedYAMLError(problem=wrong, problem_mark=key.start_mark)
                seen[key.value] = key.start_mark.line + 1
        return dict(super().construct_mapping(node, deep))

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # a date that does not exist, a number of thousands of digits
            wrong = f"{str(node.value)[:20]!r} cannot be read: {str(error).split(';')[0]}"
            raise yaml.MarkedYAMLError(problem=wrong, problem_mark=node.start_mark) from error


_Loader.add_implicit_resolver(BOOL, re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def load_yaml(text: str) -> Any:
    """The value. Raises yaml.YAMLError, also for a key that stands twice, for more than DEPTH levels, and for an alias
    inside of what it stands for."""
    opened: list[str | None] = []
    for event in yaml.parse(text, Loader=_Loader):
        wrong = ""
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append(event.anchor)
            if len(opened) > DEPTH:
                wrong = f"it is nested more than {DEPTH} deep"
        elif isinstance(event, yaml.CollectionEndEvent):
            opened.pop()
        elif isinstance(event, yaml.AliasEvent) and event.anchor in opened:
            wrong = f"the alias {event.anchor!r} is inside of what it stands for"
        if wrong:
            raise yaml.MarkedYAMLError(problem=wrong, problem_mark=event.start_mark)  # type: ignore[arg-type]
    return yaml.load(text, Loader=_Loader)


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line, from 1, of each key of a document's mappings, by its path. `text` is one that `load_yaml` takes."""
    found: dict[tuple[str, ...], int] = {}

    def look(node: Any, path: tuple[str, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode):
                    found[*path, key.value] = key.start_mark.line + 1
                    look(value, (*path, key.value))

    look(yaml.compose(text, Loader=_Loader), ())
    return found


def problem_of(error: yaml.YAMLError) -> str:
    """What is wrong."""
    return str(getattr(error, "problem", None) or error)


def place_of(error: yaml.YAMLError) -> str:
    """Where in a file: `, line 3, column 1`; empty if it is not known."""
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
