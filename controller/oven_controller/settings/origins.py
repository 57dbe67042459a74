"""Where each setting comes from: the layers that were merged, and which of them has the value that counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["default", "run", "file", "environment", "set", "flag"]
Path = tuple[str, ...]


@dataclass(frozen=True)
class Layer:
    """Settings from one place."""

    source: str
    """What a person calls it: a file, a variable, an option."""
    values: dict[str, Any]
    kind: Kind
    lines: Mapping[Path, int] = field(default_factory=dict)
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


def _flat(path: Path, values: Mapping[str, Any]) -> Iterator[tuple[Path, Any]]:
    """The values that are not mappings, with their paths; an empty mapping is a value."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat((*path, key), value)
        else:
            yield (*path, key), value
