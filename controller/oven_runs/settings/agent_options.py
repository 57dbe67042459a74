"""Options of an agent. Each numeric class attribute with a docstring is an option that a run can set.

The attribute `CUT` is the option `cut`. This module imports no agents; callers pass the class.
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
    least: float = -math.inf
    most: float = math.inf

    @property
    def attribute(self) -> str:
        return self.name.upper()

    def problem(self, value: Number) -> str:
        """Return why this finite value is invalid for the option; empty if it is valid."""
        if isinstance(self.default, int) and not isinstance(value, int):
            return "it must be a whole number"
        if not self.least <= value <= self.most:
            return f"it must be between {self.least:g} and {self.most:g}"
        if self.least == -math.inf and self.default > 0 >= value:
            return "it must be above 0"
        if self.most == math.inf and self.default < 0 <= value:
            return "it must be below 0"
        return ""


def options_of(agent: type) -> dict[str, Option]:
    """Return the options of an agent's class by name, in source order. The class attribute `options` may set bounds:
    {name: (least, most)}. Without bounds an option keeps the sign of its default."""
    bounds = getattr(agent, "options", {})
    bounds = bounds if isinstance(bounds, Mapping) else {}
    options = {}
    for attribute, text in _docstrings(agent).items():
        name, default = attribute.lower(), getattr(agent, attribute, None)
        if _tunable(attribute, default):
            least, most = bounds.get(name, (-math.inf, math.inf))
            options[name] = Option(name, default, text, least, most)  # type: ignore[arg-type]
    return options


def sections(agent: type) -> dict[str, str]:
    """Return the sections of an agent class's docstring by heading, each as one line."""
    texts = {}
    for paragraph in (inspect.getdoc(agent) or "").split("\n\n"):
        heading, colon, text = " ".join(paragraph.split()).partition(": ")
        if colon and heading in HEADINGS:
            texts[heading] = text
    return texts


def described(name: str, agent: type) -> dict[str, Any]:
    """Return an agent's options and the sections of its docstring as JSON values, for `agent list`."""
    options = [
        {
            "name": option.name,
            "default": option.default,
            "meaning": option.meaning,
            "least": None if math.isinf(option.least) else option.least,
            "most": None if math.isinf(option.most) else option.most,
        }
        for option in options_of(agent).values()
    ]
    return {"name": name, "sections": sections(agent), "options": options}


def checked(name: str, agent: type, values: Mapping[str, Any]) -> dict[str, Number]:
    """Check options of the agent `name`. Return values by attribute. Raises UnknownNameError or ConfigError."""
    if not values:
        return {}
    known, attributes = options_of(agent), {}
    for key, value in numbers(name, values).items():
        if key not in known:
            if _tunable(key.upper(), getattr(agent, key.upper(), None)):
                raise ConfigError(f"agent {name!r}: {key.upper()} is not an option because it has no docstring")
            if not known:
                raise ConfigError(f"agent {name!r} has no options: none of its numeric attributes has a docstring")
            raise UnknownNameError(f"option of agent {name!r}", key, known)
        option = known[key]
        if problem := option.problem(value):
            raise ConfigError(f"agent {name!r}: option {key} = {value!r}: {problem} (default {option.default!r})")
        attributes[option.attribute] = value if isinstance(option.default, int) else float(value)
    return attributes


def numbers(name: str, values: Mapping[str, Any]) -> dict[str, Number]:
    """Return the values by lower-case name. Raises ConfigError for duplicates and non-finite or non-numeric values."""
    options: dict[str, Number] = {}
    for key, value in values.items():
        option, number = str(key).lower(), _number(value)
        if option in options:
            raise ConfigError(f"agent {name!r}: option {option} is set twice")
        if number is None:
            raise ConfigError(f"agent {name!r}: option {option} = {value!r} is not a finite number")
        options[option] = number
    return options


def assigned(text: str) -> tuple[str, str]:
    """Split a NAME=VALUE text from the command line. Raises ConfigError."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"--option {text!r} has no name and value; write e.g. --option cut=4")
    return name.strip(), value.strip()


def arguments(name: str, options: Iterable[tuple[str, Number]]) -> list[str]:
    """Return the command-line arguments that pass the options of the agent `name` to its process."""
    return [part for option, value in options for part in ("--option", f"{name}.{option}={value!r}")]


def _number(value: object) -> Number | None:
    if isinstance(value, str):  # YAML reads 1e-3 as text
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return _number(kind(value))
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _tunable(attribute: str, value: object) -> bool:
    upper = attribute.isupper() and not attribute.startswith("_")
    return upper and isinstance(value, int | float) and not isinstance(value, bool)


def _docstrings(agent: type) -> dict[str, str]:
    """Return the first sentence of each class attribute's docstring; empty without the source code."""
    docstrings: dict[str, str] = {}
    for base in reversed(agent.__mro__):
        try:
            tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        except (OSError, TypeError, KeyError, SyntaxError):
            continue
        body = next((n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == base.__name__), [])
        docstrings.update(_documented(body))
    return docstrings


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in itertools.pairwise(body):
        match statement, following:
            case (ast.Assign() | ast.AnnAssign()) as assignment, ast.Expr(value=ast.Constant(value=str(text))):
                targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
                sentence = " ".join(text.split()).split(". ")[0].removesuffix(".")
                nodes = (node for target in targets for node in ast.walk(target))
                yield from ((node.id, sentence) for node in nodes if isinstance(node, ast.Name))
