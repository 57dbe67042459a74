"""A recipe's settings as flags of `up`: their names, and the layer that each one given makes."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from oven_core.errors import ConfigError
from oven_runs.settings.layers import Layer
from oven_runs.settings.strict_yaml import load_yaml, problem_of


def dashed(words: Sequence[str]) -> list[str]:
    """The words of a command line with each flag's underscores as dashes: `--kl_penalty=.05` → `--kl-penalty=.05`."""
    found = []
    for word in words:
        flag, sign, value = word.partition("=")
        found.append((flag.replace("_", "-") if flag.startswith("--") else flag) + sign + value)
    return found


def flag(name: str) -> str:
    """`kl_penalty` → `--kl-penalty`."""
    return "--" + name.replace("_", "-")


def is_switch(field: FieldInfo) -> bool:
    """Whether a setting is yes or no, so that its flag takes no value: `--initial-eval`, `--no-initial-eval`."""
    return _kinds(field.annotation) <= {bool}


def flag_layers(model: type[BaseModel], given: Mapping[str, str | bool]) -> list[Layer]:
    """A layer per setting of `model` given as a flag, so that an error names the flag. Raises ConfigError for a value
    that is not YAML; commas make a list."""
    return [
        Layer(flag(name), {"recipe_options": {name: _value(name, value, model.model_fields[name])}}, "flag")
        for name, value in given.items()
    ]


def _value(name: str, given: str | bool, field: FieldInfo) -> Any:
    kinds = _kinds(field.annotation)
    if isinstance(given, bool) or (kinds & {str, Path} and given not in ("null", "none")):
        return given
    listed = kinds & {tuple, list} and not given.startswith("[")
    try:
        return load_yaml(f"[{given}]" if listed else "null" if given == "none" else given)
    except yaml.YAMLError as error:
        raise ConfigError(f"{flag(name)} {given}: the value is not YAML: {problem_of(error)}") from error


def _kinds(annotation: Any) -> set[Any]:
    """The plain types that a value may have, None left out."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return set().union(*(_kinds(one) for one in get_args(annotation))) - {type(None)}
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    return {origin or annotation}
