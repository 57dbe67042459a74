"""Reading what a model answered: the whole text is one JSON value, or it is a failure."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from oven_llm.providers.failures import ModelFailure

_FENCED: Final = re.compile(r"\A```(?:json)?\s*\n(.*)\n```\Z", re.DOTALL)


def json_object(text: str) -> Any:
    """The value. Raises ModelFailure: bad_json, or schema where a key stands twice in one object. A code fence around
    the whole is taken off: endpoints without their own schema add one."""
    text = text.strip()
    fenced = _FENCED.match(text)
    try:
        return json.loads(fenced[1] if fenced else text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, _RepeatedKey):
            raise ModelFailure("schema", "a key stands twice in one object") from None
        raise ModelFailure("bad_json", "the answer is not one JSON object") from None


class _RepeatedKey(ValueError):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RepeatedKey
    return found
