"""Parses a model's reply as one JSON object with a schema. JSON within other text is not accepted."""

from __future__ import annotations

import json
import re
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from oven_llm.providers.failures import ModelFailure

_FENCED_REPLY: Final = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)


class ReplyForm(BaseModel):
    """Base class for reply schemas. Values are not coerced, extra fields are forbidden and numbers must be finite."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


Form = TypeVar("Form", bound=ReplyForm)


def object_schema(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object with exactly these properties, for the strict modes of all providers. Some
    providers reject ranges and lengths in a schema, so the caller must check those after parsing."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def read_reply(text: str, form: type[Form]) -> Form:
    """Parse the whole text as a `form`, ignoring a code fence around it. Raises ModelFailure `bad_json` or `schema`."""
    text = text.strip()
    match = _FENCED_REPLY.match(text)
    try:
        value = json.loads(match[1] if match else text, object_pairs_hook=_dict_with_unique_keys)
    except _RepeatedKeyError:
        raise ModelFailure("schema", "a key appears twice in one object") from None
    except (ValueError, RecursionError):
        raise ModelFailure("bad_json", "the reply is not a JSON object") from None
    try:
        return form.model_validate(value)
    except ValidationError as error:
        raise ModelFailure("schema", f"{error.error_count()} fields do not match the schema") from None


class _RepeatedKeyError(ValueError):
    pass


def _dict_with_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise _RepeatedKeyError
    return dict(pairs)
