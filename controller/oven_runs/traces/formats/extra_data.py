"""Extra data: the parts of a trace that a format has no place for, stored under a key that other programs ignore."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from oven_core.errors import reason
from oven_runs.traces.formats.chat_messages import NotReadable
from oven_runs.traces.trace_records import Trace

KEY = "oven"
"""The key, in an object of the format for additional information, such as `info` or `extra`."""


def find_missing(trace: Trace, plain: Trace) -> dict[str, Any]:
    """Return the data of `trace` that is missing from `plain`, the trace as the format alone stores it."""
    full, plain_data = trace.model_dump(mode="json"), plain.model_dump(mode="json")
    has_same_count = len(trace.steps) == len(plain.steps)
    extra = {
        name: value
        for name, value in full.items()
        if value != plain_data[name] and not (has_same_count and name == "steps")
    }
    if has_same_count:
        steps = {}
        for number, (step, plain_step) in enumerate(zip(full["steps"], plain_data["steps"], strict=True)):
            if differing := {name: value for name, value in step.items() if value != plain_step[name]}:
                steps[str(number)] = differing
        if steps:
            extra["each_step"] = steps
    return {**extra, "of": len(plain.steps)} if extra else {}  # `restore` checks the number of steps


def restore(plain: Trace, extra: object) -> Trace:
    """Return `plain` with the data that `find_missing` returned. Raises NotReadable if the two do not match."""
    if not extra:
        return plain
    if not isinstance(extra, dict) or extra.get("of") != len(plain.steps):
        raise NotReadable(f"its field {KEY!r} was written for another list of messages")
    full = plain.model_dump(mode="json")
    full |= {name: value for name, value in extra.items() if name not in ("of", "each_step")}
    try:
        for number, step in extra.get("each_step", {}).items():
            full["steps"][int(number)] |= step
        return Trace.model_validate(full)
    except ValidationError as error:
        raise NotReadable(f"its field {KEY!r} is invalid: {reason(error)}") from error
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise NotReadable(f"its field {KEY!r} was written for another list of messages") from error
