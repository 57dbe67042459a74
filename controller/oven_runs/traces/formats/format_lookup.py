"""Look up a trace format by name, or detect the format of a file."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError, UnknownNameError
from oven_runs.traces.formats.trace_format import TraceFormat

FORMATS: Final[Mapping[str, str]] = {
    "chat": "chat",
    "mini-swe-agent": "mini_swe_agent",
    "openenv": "openenv",
    "oven": "native_format",
    "verifiers": "verifiers",
}
"""Name of a format → the module that defines it as FORMAT. Detection tries the formats in this order."""


def format_named(name: str) -> TraceFormat:
    """Return the format with this name. Raises UnknownNameError."""
    if name not in FORMATS:
        raise UnknownNameError("format of traces", name, FORMATS)
    trace_format: TraceFormat = importlib.import_module(f"oven_runs.traces.formats.{FORMATS[name]}").FORMAT
    return trace_format


def detect_format(path: Path) -> tuple[str, TraceFormat]:
    """Detect the format of a file or folder. Return its name and the format. Raises ConfigError if there is none."""
    if not path.exists():
        raise ConfigError(f"no such file or folder: {path}")
    if path.is_file() and path.stat().st_size == 0:
        raise ConfigError(f"{path} is empty and contains no traces; is its writer still running?")
    for name in FORMATS:
        if format_named(name).claims(path):
            return name, format_named(name)
    raise ConfigError(f"{path} is not in a known trace format ({', '.join(FORMATS)}); name its format with --from")


def format_of(path: Path, name: str | None) -> tuple[str, TraceFormat]:
    """Return the name and the format, or detect them if `name` is None. Raises ConfigError or UnknownNameError."""
    return detect_format(path) if name is None else (name, format_named(name))
