"""The `schema` command: print the JSON Schema of the messages, for clients in other languages."""

from __future__ import annotations

import json

import click

from oven_core.errors import ConfigError
from oven_core.protocol.asyncapi import generate_asyncapi
from oven_core.protocol.codec import json_schema, service_schema


@click.command()
@click.option("--requests", is_flag=True, help="Print requests and replies instead.")
@click.option("--asyncapi", "as_asyncapi", is_flag=True, help="Print everything as AsyncAPI 3.")
def schema(requests: bool, as_asyncapi: bool) -> None:
    """Print the JSON Schema of every message in the log, or of every request and reply, or an AsyncAPI document.

    Example: oven-controller schema > oven.schema.json
    """
    if requests and as_asyncapi:
        raise ConfigError("--requests and --asyncapi print different documents; use only one of them")
    document = generate_asyncapi() if as_asyncapi else service_schema() if requests else json_schema()
    print(json.dumps(document, indent=1, ensure_ascii=False))
