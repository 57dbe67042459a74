"""Functions of the caller's that programs can call besides those that are always there."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from oven_core.errors import ConfigError

Primitives: TypeAlias = Mapping[str, Callable[..., Any]]
"""By name; arguments and results are values of JSON. They run in the caller's process, with its rights."""
RESERVED: Final = ("context", "query", "worker", "worker_batch", "FINAL")
"""Names that programs have anyway."""


@dataclass(frozen=True)
class Primitive:
    """What the supervisor is told of one."""

    name: str
    signature: str
    about: str


def described(primitives: Primitives) -> list[Primitive]:
    """As the prompt lists them: signature and first line of the docstring."""
    found = []
    for name, function in primitives.items():
        try:
            signature = str(inspect.signature(function))
        except (TypeError, ValueError):  # a builtin that has none
            signature = "(…)"
        found.append(Primitive(name, signature, (inspect.getdoc(function) or "").partition("\n")[0]))
    return found


def check_primitives(primitives: Primitives) -> None:
    """Raises ConfigError for a name that a program cannot call."""
    for name, function in primitives.items():
        if name in RESERVED or keyword.iskeyword(name) or not name.isidentifier():
            raise ConfigError(f"{name!r} cannot be the name of a primitive; take another than {', '.join(RESERVED)}")
        if not callable(function):
            raise ConfigError(f"the primitive {name} is of type {type(function).__name__}; give a function")
