"""Command-line flags for a recipe's settings: flag names, and one settings layer per flag used."""

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


def with_dashes(arguments: Sequence[str]) -> list[str]:
    """Replace underscores in the flags of a command line by dashes: `--kl_penalty=.05` → `--kl-penalty=.05`."""
    dashed_arguments = []
    for argument in arguments:
        name, separator, value = argument.partition("=")
        dashed_name = name.replace("_", "-") if name.startswith("--") else name
        dashed_arguments.append(dashed_name + separator + value)
    return dashed_arguments


def flag(name: str) -> str:
    """Return a setting's flag: `kl_penalty` → `--kl-penalty`."""
    return "--" + name.replace("_", "-")


def is_switch(field: FieldInfo) -> bool:
    """Whether a setting is boolean. Its flag then has no value: `--initial-eval`, `--no-initial-eval`."""
    return _accepted_types(field.annotation) <= {bool}


def flag_layers(model: type[BaseModel], values: Mapping[str, str | bool]) -> list[Layer]:
    """Return one layer for each setting of `model` in `values`, so that an error names its flag. Commas separate list
    items. Raises ConfigError for invalid YAML."""
    return [
        Layer(flag(name), {"recipe_options": {name: _parse_value(name, value, model.model_fields[name])}}, "flag")
        for name, value in values.items()
    ]


def _parse_value(name: str, value: str | bool, field: FieldInfo) -> Any:
    accepted = _accepted_types(field.annotation)
    if isinstance(value, bool) or (accepted & {str, Path} and value not in ("null", "none")):
        return value
    text = "null" if value == "none" else value
    if accepted & {tuple, list} and not value.startswith("["):
        text = f"[{value}]"
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{flag(name)} {value}: the value is not valid YAML: {problem_of(error)}") from error


def _accepted_types(annotation: Any) -> set[Any]:
    """Return the plain types that a value may have, without None."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return set().union(*(_accepted_types(member) for member in get_args(annotation))) - {type(None)}
    if origin is Annotated:
        return _accepted_types(get_args(annotation)[0])
    if origin is Literal:
        return {type(value) for value in get_args(annotation)}
    return {origin or annotation}
