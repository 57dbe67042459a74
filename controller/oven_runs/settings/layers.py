"""Layers of settings: read, merged and remembered, so that a value or an error can name its place."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_core.removed import removal
from oven_core.security.tls import shown
from oven_runs.settings.model import dotted_names
from oven_runs.settings.strict_yaml import load_yaml, place_of, problem_of

_Model = TypeVar("_Model", bound=BaseModel)

ENVIRONMENT = "OVEN_SET_"
"""`OVEN_SET_RULES__WINDOW_TICKS=5` says what `--set rules.window_ticks=5` says; two underscores stand for the dot."""

SECRETIVE = ("key_env", "base_url", "to")
"""Settings whose wrong values are not repeated, nor those of anything in them: a key is sometimes written where its
variable's name belongs, or into an address; and who has the address of a webhook can post to it."""
_QUOTED = 80
"""Characters of an argument that an error repeats."""

Kind = Literal["default", "run", "file", "environment", "set", "flag"]
KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """Settings from one place."""

    source: str
    """What a person calls it: a file, a variable, an option."""
    values: dict[str, Any]
    kind: Kind
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    """Of a file: in which line each key stands."""


DEFAULT = Layer("default", {}, "default")


@dataclass(frozen=True)
class Origin:
    """A setting's value, and where it comes from."""

    setting: str
    value: Any
    kind: Kind
    source: str
    line: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}, line {self.line}"


def origins(values: Mapping[str, Any], layers: Sequence[Layer]) -> Iterator[Origin]:
    """Every setting of `values`, which is what `layers` came to, in its order."""
    for path, value in _flat((), values):
        layer = layer_of(path, layers)
        line = next((layer.lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in layer.lines), None)
        yield Origin(".".join(path), value, layer.kind, layer.source, line)


def layer_of(path: Sequence[str], layers: Iterable[Layer]) -> Layer:
    """The layer that the value at `path` came from: the last one that has it."""
    found = DEFAULT
    for layer in layers:
        value: Any = layer.values
        for depth, part in enumerate(path):
            if not isinstance(value, Mapping) or part not in value:
                # The rest of the path is inside a value (an item of a list, say) of this layer.
                if depth and not isinstance(value, Mapping):
                    found = layer
                break
            value = value[part]
        else:
            found = layer
    return found


def _flat(path: KeyPath, values: Mapping[str, Any]) -> Iterator[tuple[KeyPath, Any]]:
    """The values that are not mappings, with their paths; an empty mapping is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat((*path, key), value)
        else:
            yield (*path, key), value


def read_yaml(path: Path, called: str = "--config") -> dict[str, Any]:
    """The settings in a file; `called`: what it is, for the message. Raises ConfigError."""
    try:
        value = load_yaml(read_text(path, called))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{place_of(error)}: {problem_of(error)}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        what = "a list" if isinstance(value, list) else f"the value {str(value)[:40]!r} alone"
        raise ConfigError(f"{path} holds {what}; it must be `key: value` lines, e.g. `seed: 1`")
    return {str(key): entry for key, entry in value.items()}


def read_text(path: Path, called: str = "--config") -> str:
    try:
        return read_file(path, called).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def from_set(text: str) -> Layer:
    key, sign, raw = text.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"--set {text!r} has no key and value; write e.g. --set rules.window_ticks=5")
    return Layer(f"--set {key.strip()}", _nested(key.strip(), raw, f"--set {text}"), "set")


def from_environment(environ: Mapping[str, str]) -> Iterator[Layer]:
    for variable in sorted(environ):
        if variable.startswith(ENVIRONMENT):
            key = variable.removeprefix(ENVIRONMENT).lower().replace("__", ".")
            yield Layer(variable, _nested(key, environ[variable], variable), "environment")


def _nested(key: str, raw: str, source: str) -> dict[str, Any]:
    try:
        value = load_yaml(raw)
    except yaml.YAMLError as error:
        if set(key.split(".")) & set(SECRETIVE):
            source = source.partition("=")[0]
        source = source if len(source) <= _QUOTED else source[: _QUOTED - 1] + "…"
        raise ConfigError(f"{source}: the value is not YAML: {problem_of(error)}") from error
    parts = key.split(".")
    if parts[:2] == ["rules", "autonomy_of"] and len(parts) > 2:
        parts = [*parts[:2], ".".join(parts[2:])]  # an actuator's name has dots of its own
    for part in reversed(parts):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping):
            held = into.get(key)
            into[key] = dict(held) if isinstance(held, Mapping) else {}
            merge(into[key], value)
        else:
            into[key] = value


def validated(
    model: type[_Model],
    values: Mapping[str, Any],
    prefix: str,
    layers: Sequence[Layer],
    options: type[BaseModel] | None,
) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False)
    known = [prefix + key for key in dotted_names(model)]
    if options is not None:
        known += [f"recipe_options.{key}" for key in dotted_names(options)]
    lines = []
    for problem in found:
        parts = tuple(str(part) for part in problem["loc"])
        where = prefix + ".".join(parts)
        source = layer_of(where.split("."), layers).source
        if problem["type"] == "extra_forbidden":
            leaves, of_entry = _leaves(where, problem["input"]), _entry_settings(model, parts, prefix)
            for leaf in leaves:
                near = f"there is no setting {leaf!r} ({source}); {nearest(leaf, of_entry or known)}"
                lines.append(removal("setting", leaf) or near)
        else:
            message = str(problem["msg"]).removeprefix("Value error, ").replace("Input should be", "it should be")
            value = problem["input"]
            if isinstance(value, str) and where == "nats":
                value = shown(value)  # a password in an address is not repeated
            said = where if set(parts) & set(SECRETIVE) else f"{where} = {value!r}"
            lines.append(f"{said} ({source}): {message}")
    raise ConfigError("\n".join(lines))


def _entry_settings(model: type[BaseModel], parts: Sequence[str], prefix: str) -> list[str]:
    """The settings beside the one at `parts`, where that is in an entry with a name of the user's own (a committee's
    member, say); else none."""
    inner: Any = model
    named = False
    for part in parts[:-1]:
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            field = inner.model_fields.get(part)
            inner = field.annotation if field is not None else None
        elif get_origin(inner) is dict:
            inner, named = get_args(inner)[1], True
    if not named or not (isinstance(inner, type) and issubclass(inner, BaseModel)):
        return []
    return [prefix + ".".join([*parts[:-1], name]) for name in inner.model_fields]


def _leaves(where: str, value: Any) -> list[str]:
    """The dotted names that were written: an unknown folder is best understood by what is in it."""
    if not isinstance(value, Mapping) or not value:
        return [where]
    return [leaf for key, inner in value.items() for leaf in _leaves(f"{where}.{key}", inner)]


def nearest(name: str, known: Sequence[str]) -> str:
    """A sentence with the settings that may have been meant: by the last part wherever it stands, else by the whole."""
    leaves: dict[str, list[str]] = {}
    for full in known:
        leaves.setdefault(full.rsplit(".", 1)[-1], []).append(full)
    close = difflib.get_close_matches(name.rsplit(".", 1)[-1], leaves, n=3, cutoff=0.7)
    near = [full for leaf in close for full in leaves[leaf]] or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(repr(full) for full in near[:3]) + "?"
    folder = name.rpartition(".")[0]
    beside = [full for full in known if folder and full.startswith(folder + ".")]
    beside = beside or list(dict.fromkeys(full.split(".")[0] for full in known))
    return "known: " + ", ".join(beside[:20]) + (", …" if len(beside) > 20 else "")
