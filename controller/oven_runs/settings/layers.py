"""Merge and validate settings from files, environment variables and options. Errors name the source of a value."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_core.removed_names import removal_message
from oven_core.security.tls import redact
from oven_runs.settings.run_settings import dotted_names
from oven_runs.settings.strict_yaml import load_yaml, place_of, problem_of

_Model = TypeVar("_Model", bound=BaseModel)

ENVIRONMENT = "OVEN_SET_"
"""Prefix of environment variables: `OVEN_SET_RULES__WINDOW_TICKS=5` means `--set rules.window_ticks=5`."""

SECRET_SETTINGS = ("key_env", "base_url", "to")
"""Settings whose values never appear in errors. Users sometimes write a key instead of its variable's name or put a key
into an address, and anyone who knows a webhook's address can post to it."""
_MAX_QUOTED_CHARACTERS = 80
"""Maximum characters of an argument in an error message."""

Kind = Literal["default", "run", "file", "environment", "set", "flag"]  # "run": the config.json of the resumed run
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """Settings from one source."""

    source: str
    """The name of the file, variable or option."""
    values: dict[str, Any]
    kind: Kind
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """The line number of each key, if the source is a file."""


DEFAULT = Layer("default", {}, "default")


@dataclass(frozen=True)
class Origin:
    """A setting's value and its source."""

    setting: str
    value: Any
    kind: Kind
    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}, line {self.line}"


def origins(values: Mapping[str, Any], layers: Sequence[Layer]) -> Iterator[Origin]:
    """Yield every setting in the merged `values` with its source."""
    for path, value in _flatten((), values):
        layer = layer_of(path, layers)
        parents = (path[:length] for length in range(len(path), 0, -1))  # from the setting itself outwards
        line = next((layer.lines[parent] for parent in parents if parent in layer.lines), None)
        yield Origin(".".join(path), value, layer.kind, layer.source, line)


def layer_of(path: Sequence[str], layers: Sequence[Layer]) -> Layer:
    """Return the layer that set the value at `path`: the last one that has it."""
    return next((layer for layer in reversed(layers) if _has_value(layer.values, path)), DEFAULT)


def _has_value(values: Any, path: Sequence[str]) -> bool:
    """Return whether a layer has a value at `path`, or one that contains it, such as a list."""
    if not path or not isinstance(values, Mapping):
        return True
    return path[0] in values and _has_value(values[path[0]], path[1:])


def _flatten(path: KeyPath, values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """Yield the paths and values of everything that is not a mapping. An empty mapping counts as a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten((*path, key), value)
        else:
            yield (*path, key), value


def read_yaml(path: Path, label: str = "--config") -> dict[str, Any]:
    """Read a settings file. `label` describes the file in error messages. Raises ConfigError."""
    try:
        value = load_yaml(read_text(path, label))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{place_of(error)}: {problem_of(error)}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        content = "a list" if isinstance(value, list) else f"only the value {str(value)[:40]!r}"
        raise ConfigError(f"{path} contains {content}; it must be `key: value` lines, e.g. `seed: 1`")
    return {str(key): entry for key, entry in value.items()}


def read_text(path: Path, label: str = "--config") -> str:
    """Read a text file. `label` describes the file in error messages. Raises ConfigError."""
    try:
        return read_file(path, label).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def layer_from_set(text: str) -> Layer:
    """Return the layer of `--set KEY=VALUE`. Raises ConfigError."""
    key, separator, raw = text.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {text!r} must have the form KEY=VALUE, e.g. --set rules.window_ticks=5")
    return Layer(f"--set {key.strip()}", _parse_nested(key.strip(), raw, f"--set {text}"), "set")


def layers_from_environment(environ: Mapping[str, str]) -> Iterator[Layer]:
    """Yield a layer for each environment variable that starts with `OVEN_SET_`. Raises ConfigError."""
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT):
            key = variable.removeprefix(ENVIRONMENT).lower().replace("__", ".")
            yield Layer(variable, _parse_nested(key, environ[variable], variable), "environment")


def _parse_nested(key: str, raw: str, source: str) -> dict[str, Any]:
    """Parse a YAML value, and nest it under the parts of its dotted key: `a.b` and `1` → `{"a": {"b": 1}}`."""
    try:
        value = load_yaml(raw)
    except yaml.YAMLError as error:
        if set(key.split(".")) & set(SECRET_SETTINGS):
            source = source.partition("=")[0]
        source = source if len(source) <= _MAX_QUOTED_CHARACTERS else source[: _MAX_QUOTED_CHARACTERS - 1] + "…"
        raise ConfigError(f"{source}: the value is not valid YAML: {problem_of(error)}") from error
    parts = key.split(".")
    if parts[:2] == ["rules", "autonomy_of"] and len(parts) > 2:
        parts = [*parts[:2], ".".join(parts[2:])]  # an actuator's name may contain dots
    for part in reversed(parts):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def merge(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Merge `values` into `target`. Mappings are merged key by key, other values are replaced."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            existing = target.get(key)
            target[key] = dict(existing) if isinstance(existing, Mapping) else {}
            merge(target[key], value)
        else:
            target[key] = value


def validate(
    model: type[_Model],
    values: Mapping[str, Any],
    prefix: str,
    layers: Sequence[Layer],
    options: type[BaseModel] | None,
) -> _Model:
    """Validate the merged `values` of `layers`, whose names begin with `prefix`. Raises ConfigError with one line per
    error: setting, value, source, what was expected, and similar names, also from the recipe's `options`."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    known_names = [prefix + key for key in dotted_names(model)]
    if options is not None:
        known_names += [f"recipe_options.{key}" for key in dotted_names(options)]
    lines = []
    for problem in problems:
        parts = tuple(str(part) for part in problem["loc"])
        name = prefix + ".".join(parts)
        source = layer_of(name.split("."), layers).source
        if problem["type"] == "extra_forbidden":
            hint = name_hint(name, _entry_settings(model, parts, prefix) or known_names)
            lines.append(removal_message("setting", name) or f"there is no setting {name!r} ({source}); {hint}")
        else:
            message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
            value = problem["input"]
            if isinstance(value, str) and name == "nats":
                value = redact(value)  # without a password
            setting = name if set(parts) & set(SECRET_SETTINGS) else f"{name} = {value!r}"
            lines.append(f"{setting} ({source}): {message}")
    raise ConfigError("\n".join(lines))


def _entry_settings(model: type[BaseModel], parts: Sequence[str], prefix: str) -> list[str]:
    """Return the sibling settings of `parts` if it is in an entry that the user named, such as a committee member."""
    inner: Any = model
    in_named_entry = False
    for part in parts[:-1]:
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            field = inner.model_fields.get(part)
            inner = field.annotation if field is not None else None
        elif get_origin(inner) is dict:
            inner, in_named_entry = get_args(inner)[1], True
    if not in_named_entry or not (isinstance(inner, type) and issubclass(inner, BaseModel)):
        return []
    return [prefix + ".".join([*parts[:-1], name]) for name in inner.model_fields]


def name_hint(name: str, known: Sequence[str]) -> str:
    """Return a hint with similar settings. Compare the last part of the name first, and then the whole name."""
    leaves: dict[str, list[str]] = {}
    for known_name in known:
        leaves.setdefault(known_name.rsplit(".", 1)[-1], []).append(known_name)
    similar_leaves = difflib.get_close_matches(name.rsplit(".", 1)[-1], leaves, n=3, cutoff=0.7)
    similar = [known_name for leaf in similar_leaves for known_name in leaves[leaf]]
    similar = similar or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if similar:
        return "did you mean " + " or ".join(repr(known_name) for known_name in similar[:3]) + "?"
    group = name.rpartition(".")[0]
    siblings = [known_name for known_name in known if group and known_name.startswith(group + ".")]
    siblings = siblings or list(dict.fromkeys(known_name.split(".")[0] for known_name in known))
    return "known: " + ", ".join(siblings[:20]) + (", …" if len(siblings) > 20 else "")
