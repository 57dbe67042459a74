"""Options that several commands of `oven-controller kg` share, and the check of what they ask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from oven_core.errors import ConfigError

Asked = TypeVar("Asked", bound=BaseModel)

Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]
GraphFile = Annotated[
    Path | None,
    typer.Option("--graph", metavar="PATH", help="a graph's file, or a large one's folder, for the built-in one"),
]


def validated(model: type[Asked], values: Mapping[str, object]) -> Asked:
    """A request of these values. Raises ConfigError that names the first wrong one."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None
