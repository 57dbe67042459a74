"""What a format has no place for, kept in its free field: its own readers pass over it, ours puts it back."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from oven_core.errors import reason
from oven_runs.traces.formats.chat_messages import NotReadable
from oven_runs.traces.records import Trace

NAME = "oven"
"""Of the free field's entry."""


def difference(trace: Trace, plain: Trace) -> dict[str, Any]:
    """What must be added to `plain`, the trace as the format alone has it, to get `trace` back."""
    wanted, found = trace.model_dump(mode="json"), plain.model_dump(mode="json")
    alike = len(trace.steps) == len(plain.steps)
    missing = {
        name: value for name, value in wanted.items() if value != found[name] and not (alike and name == "steps")
    }
    if alike:
        steps = {}
        for at, (step, other) in enumerate(zip(wanted["steps"], found["steps"], strict=True)):
            if differing := {name: value for name, value in step.items() if value != other[name]}:
                steps[str(at)] = differing
        if steps:
            missing["each_step"] = steps
    return {**missing, "of": len(plain.steps)} if missing else {}


def restored(plain: Trace, missing: object) -> Trace:
    """`plain` with its difference added. Raises NotReadable where the two do not belong together."""
    if not missing:
        return plain
    if not isinstance(missing, dict) or missing.get("of") != len(plain.steps):
        raise NotReadable(f"its field {NAME!r} was written for another list of messages")
    whole = plain.model_dump(mode="json")
    whole |= {name: value for name, value in missing.items() if name not in ("of", "each_step")}
    try:
        for at, step in missing.get("each_step", {}).items():
            whole["steps"][int(at)] |= step
        return Trace.model_validate(whole)
    except ValidationError as error:
        raise NotReadable(f"its field {NAME!r} does not fit: {reason(error)}") from error
    except (IndexError, ValueError, TypeError, AttributeError) as error:
        raise NotReadable(f"its field {NAME!r} was written for another list of messages") from error
