"""`schema`: the messages for those who write in another language."""

from __future__ import annotations

import json

import typer


def register(app: typer.Typer) -> None:
    app.command()(schema)


def schema() -> None:
    """Print the JSON Schema of every message in the log.

    Example: oven-controller schema > oven.schema.json
    """
    from oven_controller.messages import json_schema

    print(json.dumps(json_schema(), indent=1))
