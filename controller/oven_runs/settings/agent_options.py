"""Options of an agent: its numeric class attributes that have a docstring, so that a run can set them.

An attribute `CUT` is the option `cut`. Nothing here imports an agent; the class is given.
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
"""What the docstring of an agent's class says, in paragraphs that begin so: "Signals: …"."""


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    default: Number
    meaning: str
    """The first sentence of the attribute's docstring."""
    least: float = -math.inf
    most: float = math.inf
    """Both bounds are included."""

    @property
    def attribute(self) -> str:
        return self.name.upper()

    def problem(self, value: Number) -> str:
        """Why it cannot be set to this finite number; empty if it can."""
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
    """The options of an agent's class by name, in the order of its source. Its attribute `options` may bound some:
    {name: (least, most)}. Without a bound an option keeps the sign of its default."""
    bounds = getattr(agent, "options", {})
    bounds = bounds if isinstance(bounds, Mapping) else {}
    found = {}
    for attribute, text in _docstrings(agent).items():
        name, default = attribute.lower(), getattr(agent, attribute, None)
        if _tunable(attribute, default):
            least, most = bounds.get(name, (-math.inf, math.inf))
            found[name] = Option(name, default, text, least, most)  # type: ignore[arg-type]
    return found


def sections(agent: type) -> dict[str, str]:
    """Heading → what the docstring of an agent's class says under it, in one line; without those that it lacks."""
    found = {}
    for paragraph in (inspect.getdoc(agent) or "").split("\n\n"):
        heading, colon, text = " ".join(paragraph.split()).partition(": ")
        if colon and heading in HEADINGS:
            found[heading] = text
    return found


def described(name: str, agent: type) -> dict[str, Any]:
    """An agent's options, and the sections of its docstring, as plain data, for `agent list`."""
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


def checked(name: str, agent: type, given: Mapping[str, Any]) -> dict[str, Number]:
    """Attribute → value of the options that are given for the agent called `name`. Raises UnknownNameError or
    ConfigError, with one sentence."""
    if not given:
        return {}
    known, found = options_of(agent), {}
    for key, value in numbers(name, given).items():
        if key not in known:
            if _tunable(key.upper(), getattr(agent, key.upper(), None)):
                raise ConfigError(f"agent {name!r}: {key.upper()} has no docstring, without which it is not an option")
            if not known:
                raise ConfigError(f"agent {name!r} has no options: no numeric class attribute of it has a docstring")
            raise UnknownNameError(f"option of agent {name!r}", key, known)
        option = known[key]
        if problem := option.problem(value):
            raise ConfigError(f"agent {name!r}: option {key} = {value!r}: {problem} (default {option.default!r})")
        found[option.attribute] = value if isinstance(option.default, int) else float(value)
    return found


def numbers(name: str, given: Mapping[str, Any]) -> dict[str, Number]:
    """`given` by lower-case name. Raises ConfigError for a value that is not a finite number."""
    found: dict[str, Number] = {}
    for key, value in given.items():
        option, number = str(key).lower(), _number(value)
        if option in found:
            raise ConfigError(f"agent {name!r}: option {option} is given twice")
        if number is None:
            raise ConfigError(f"agent {name!r}: option {option} = {value!r} is not a finite number")
        found[option] = number
    return found


def assigned(text: str) -> tuple[str, str]:
    """NAME=VALUE of a command line. Raises ConfigError."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise ConfigError(f"--option {text!r} has no name and value; write e.g. --option cut=4")
    return name.strip(), value.strip()


def arguments(name: str, options: Iterable[tuple[str, Number]]) -> list[str]:
    """As an agents' process takes the options of the agent called `name`."""
    return [part for option, value in options for part in ("--option", f"{name}.{option}={value!r}")]


def _number(value: object) -> Number | None:
    """YAML reads 1e-3 as a text."""
    if isinstance(value, str):
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
    """Class attribute → first sentence of the string after its assignment, inherited ones included. Empty where the
    source is not there."""
    found: dict[str, str] = {}
    for base in reversed(agent.__mro__):
        try:
            tree = ast.parse(inspect.getsource(sys.modules[base.__module__]))
        except (OSError, TypeError, KeyError, SyntaxError):
            continue
        body = next((n.body for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == base.__name__), [])
        found.update(_documented(body))
    return found


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for one, after in itertools.pairwise(body):
        targets = one.targets if isinstance(one, ast.Assign) else [one.target] if isinstance(one, ast.AnnAssign) else []
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            sentence = " ".join(after.value.value.split()).split(". ")[0].removesuffix(".")
            for target in targets:
                yield from ((node.id, sentence) for node in ast.walk(target) if isinstance(node, ast.Name))
