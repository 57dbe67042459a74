"""Find the options of agents, and check the values that a run sets.

An agent's options are the numeric attributes of its class that have a docstring. The attribute `CUT` is the option
`cut`. This module does not import agents: callers pass the class.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from oven_core.errors import ConfigError, UnknownNameError

Number: TypeAlias = int | float

HEADINGS: Final = ("Signals", "Actions", "False alarms", "Limits")
"""Paragraph headings in the docstring of an agent's class, as in "Signals: …"."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option with inclusive bounds."""

    name: str
    default: Number
    meaning: str
    """The first sentence of the attribute's docstring."""
    minimum: float = -math.inf
    maximum: float = math.inf

    @property
    def attribute(self) -> str:
        return self.name.upper()

    def problem(self, value: Number) -> str:
        """Return why this finite value is invalid for the option, or an empty string if it is valid."""
        if isinstance(self.default, int) and not isinstance(value, int):
            return "it must be a whole number"
        if not self.minimum <= value <= self.maximum:
            return f"it must be between {self.minimum:g} and {self.maximum:g}"
        if self.minimum == -math.inf and self.default > 0 and value <= 0:
            return "it must be above 0"
        if self.maximum == math.inf and self.default < 0 and value >= 0:
            return "it must be below 0"
        return ""


def options_of(agent_class: type) -> dict[str, Option]:
    """Return the options of an agent's class by name, in source order. The class attribute `options` may set bounds:
    {name: (minimum, maximum)}. Without bounds, an option must have the sign of its default."""
    bounds = getattr(agent_class, "options", {})
    bounds = bounds if isinstance(bounds, Mapping) else {}
    options = {}
    for attribute, meaning in _attribute_meanings(agent_class).items():
        name, default = attribute.lower(), getattr(agent_class, attribute, None)
        if _is_tunable(attribute, default):
            minimum, maximum = bounds.get(name, (-math.inf, math.inf))
            options[name] = Option(name, default, meaning, minimum, maximum)  # type: ignore[arg-type]
    return options


def docstring_sections(agent_class: type) -> dict[str, str]:
    """Return the sections of an agent class's docstring by heading, each as one line."""
    sections = {}
    for paragraph in (inspect.getdoc(agent_class) or "").split("\n\n"):
        heading, colon, text = " ".join(paragraph.split()).partition(": ")
        if colon and heading in HEADINGS:
            sections[heading] = text
    return sections


def describe_agent(name: str, agent_class: type) -> dict[str, Any]:
    """Describe an agent's options and the sections of its docstring as JSON values, for `agent list`."""
    options = [
        {
            "name": option.name,
            "default": option.default,
            "meaning": option.meaning,
            "minimum": None if math.isinf(option.minimum) else option.minimum,
            "maximum": None if math.isinf(option.maximum) else option.maximum,
        }
        for option in options_of(agent_class).values()
    ]
    return {"name": name, "sections": docstring_sections(agent_class), "options": options}


def checked_options(name: str, agent_class: type, values: Mapping[str, Any]) -> dict[str, Number]:
    """Check a run's options for the agent `name`. Return them by attribute. Raises UnknownNameError or ConfigError."""
    if not values:
        return {}
    known_options, attributes = options_of(agent_class), {}
    for key, value in numeric_options(name, values).items():
        if key not in known_options:
            if _is_tunable(key.upper(), getattr(agent_class, key.upper(), None)):
                raise ConfigError(f"agent {name!r}: {key.upper()} is not an option because it has no docstring")
            if not known_options:
                raise ConfigError(f"agent {name!r} has no options: none of its numeric attributes has a docstring")
            raise UnknownNameError(f"option of agent {name!r}", key, known_options)
        option = known_options[key]
        if problem := option.problem(value):
            raise ConfigError(f"agent {name!r}: option {key} = {value!r}: {problem} (default {option.default!r})")
        attributes[option.attribute] = value if isinstance(option.default, int) else float(value)
    return attributes


def numeric_options(name: str, values: Mapping[str, Any]) -> dict[str, Number]:
    """Return the values as finite numbers, by lower-case name. Raises ConfigError for duplicates and other values."""
    options: dict[str, Number] = {}
    for key, value in values.items():
        option_name, number = str(key).lower(), _to_number(value)
        if option_name in options:
            raise ConfigError(f"agent {name!r}: option {option_name} is set twice")
        if number is None:
            raise ConfigError(f"agent {name!r}: option {option_name} = {value!r} is not a finite number")
        options[option_name] = number
    return options


def parse_assignment(text: str) -> tuple[str, str]:
    """Split a NAME=VALUE string from the command line. Raises ConfigError."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"--option {text!r} must have the form NAME=VALUE, e.g. --option cut=4")
    return name.strip(), value.strip()


def option_arguments(name: str, options: Iterable[tuple[str, Number]]) -> list[str]:
    """Return the command-line arguments that pass the options of the agent `name` to its process."""
    return [part for option, value in options for part in ("--option", f"{name}.{option}={value!r}")]


def _to_number(value: object) -> Number | None:
    if isinstance(value, str):  # YAML reads 1e-3 as a string
        for number_type in (int, float):
            with contextlib.suppress(ValueError):
                return _to_number(number_type(value))
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _is_tunable(attribute: str, value: object) -> bool:
    is_constant = attribute.isupper() and not attribute.startswith("_")
    return is_constant and isinstance(value, int | float) and not isinstance(value, bool)


def _attribute_meanings(agent_class: type) -> dict[str, str]:
    """Return the first sentence of each class attribute's docstring. Classes without source code are skipped."""
    meanings: dict[str, str] = {}
    for base in reversed(agent_class.__mro__):
        try:
            tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        except (OSError, TypeError, KeyError, SyntaxError):
            continue
        classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == base.__name__)
        if (definition := next(classes, None)) is not None:
            meanings.update(_documented_names(definition.body))
    return meanings


def _documented_names(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield each assigned name that is followed by a docstring, with the first sentence of the docstring."""
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (ast.Assign() | ast.AnnAssign()) as assignment, ast.Expr(value=ast.Constant(value=str(text))):
                targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
                sentence = " ".join(text.split()).split(". ")[0].removesuffix(".")
                nodes = (node for target in targets for node in ast.walk(target))
                yield from ((node.id, sentence) for node in nodes if isinstance(node, ast.Name))
