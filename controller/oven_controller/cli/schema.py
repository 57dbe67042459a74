"""The `schema` command: print the JSON Schema of the messages, for clients in other languages."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from oven_core.errors import ConfigError
from oven_core.protocol.asyncapi import generate_asyncapi
from oven_core.protocol.codec import json_schema, service_schema


def schema(
    requests: Annotated[bool, typer.Option("--requests", help="Print requests and replies instead.")] = False,
    as_asyncapi: Annotated[bool, typer.Option("--asyncapi", help="Print everything as AsyncAPI 3.")] = False,
) -> None:
    """Print the JSON Schema of every message in the log, or of every request and reply, or an AsyncAPI document.

    Example: oven-controller schema > oven.schema.json
    """
    if requests and as_asyncapi:
        raise ConfigError("--requests and --asyncapi print different documents; use only one of them")
    document = generate_asyncapi() if as_asyncapi else service_schema() if requests else json_schema()
    print(json.dumps(document, indent=1, ensure_ascii=False))
