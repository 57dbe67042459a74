"""`schema`: the messages for those who write in another language."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(schema)


def schema(
    requests: Annotated[bool, typer.Option("--requests", help="What is asked and answered beside the log.")] = False,
) -> None:
    """Print the JSON Schema of every message in the log, or of every request and answer.

    Example: oven-controller schema > oven.schema.json
    """
    from oven_controller.wire import json_schema, service_schema

    print(json.dumps(service_schema() if requests else json_schema(), indent=1))
